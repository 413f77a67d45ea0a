//! Why something is as it is, and why there is no room: in one answer, for whoever asks as far as it is for them.

use std::time::Duration;

use control::Error;
use control::allocation::{capacity, create, explain};
use domain::ids::AllocationId;
use testkit::{Act, CLEAN, House};
use wire::http::allocations::NewAllocation;
use wire::http::catalogue::CapacityQuestion;
use wire::http::explain::{Explanation, Owner};
use wire::node::{FailureReason, TaskOutcome};

async fn seen(house: &House, id: uuid::Uuid) -> Explanation {
    explain::for_tenant(&house.ctx, &house.tenant, AllocationId(id)).await.expect("theirs")
}

#[tokio::test]
async fn what_waits_says_for_what_since_when_and_what_comes_then() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await.will(&[Act::FallSilent]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    let told = seen(&house, id).await;
    assert_eq!(told.status.to_string(), "requested");
    assert_eq!(told.waits_for[0].what, "A worker has not begun yet.");
    house.settle().await;
    let told = seen(&house, id).await;
    assert_eq!(told.status.to_string(), "provisioning");
    let what = &told.waits_for[0].what;
    assert_eq!(what, "The machine is at its task: creating GPU slice VM (nothing was told yet).");
    let next = told.next_step.expect("there is one");
    assert_eq!((next.owner.0, next.overdue), (Owner::Berth, false));
    assert!(next.by.is_some_and(|by| by > told.since) && next.then.contains("given up"));
    assert_eq!(told.steps[0].name, "provisioning_started");
    assert!(told.steps.iter().all(|step| step.actor.is_none()));
    assert!(told.runs.is_empty() && told.machine.is_none(), "that is for operators");
    house.ctx.clock.advance(Duration::from_secs(7_200));
    assert!(seen(&house, id).await.next_step.is_some_and(|next| next.overdue));
    let operators = explain::for_operator(&house.ctx, &house.operator, AllocationId(id)).await;
    let operators = operators.expect("an operator may");
    assert_eq!(operators.machine.map(|machine| machine.name).as_deref(), Some("node-0"));
    assert_eq!(operators.runs[0].waits_for.as_deref(), Some("the node to finish"));
    assert!(operators.steps.iter().all(|step| step.actor.is_some()));
    house.close().await;
}

#[tokio::test]
async fn what_was_refused_is_told_with_why() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0]).await.will(&[Act::FallSilent]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    house.release(id).await.expect("theirs");
    house.settle().await;
    let node = house.first_node();
    let late = node.held().remove(0);
    let answer = node.answer(&house.ctx, &late, TaskOutcome::Cleaned { proof: CLEAN }).await;
    assert!(!answer.applied);
    let told = seen(&house, id).await;
    let refused = &told.refused[0];
    assert_eq!((refused.event.as_str(), refused.why.as_str()), ("task.succeeded", "late"));
    assert_eq!(refused.sentence, "It came too late: it was cancelled already.");
    assert!(refused.about.starts_with("task:") && refused.actor.is_none(), "{refused:?}");
    assert_eq!(told.next_step, None, "it is over");
    house.close().await;
}

#[tokio::test]
async fn what_rests_says_what_may_be_done_and_what_comes_of_it() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0]).await;
    let id = house.active("h100.slice", 1).await.id;
    let told = seen(&house, id).await;
    assert!(told.waits_for.is_empty());
    assert_eq!(told.next_step.map(|next| next.owner.0), Some(Owner::Nobody));
    assert!(!told.may_do.is_empty());
    for may in &told.may_do {
        assert!(may.sentence.ends_with('.'), "{may:?}");
    }
    let foreign = explain::for_tenant(&house.ctx, &house.operator, AllocationId(id)).await;
    assert!(matches!(foreign, Err(Error::NotFound("allocation"))));
    let refused = explain::for_operator(&house.ctx, &house.tenant, AllocationId(id)).await;
    assert!(matches!(refused, Err(Error::Forbidden(_))));
    house.close().await;
}

/// Whoever has to see to it is told what it holds, and what to type.
#[tokio::test]
async fn what_did_not_end_well_names_the_ways_out_and_what_it_holds() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await.will(&[Act::Fail(FailureReason::DeviceDirty)]);
    house.first_node().will(&[Act::LeaveResidue; 5]);
    let failed = house.create("h100.slice", 1).await.expect("it fits").id;
    let exhaust = async || {
        for _ in 0..6 {
            house.ctx.clock.advance(Duration::from_secs(61));
            house.beat_all().await;
            house.pass(Duration::ZERO).await;
        }
    };
    house.settle().await;
    exhaust().await;
    let given_up = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::LeaveResidue; 5]);
    house.release(given_up).await.expect("asked");
    exhaust().await;
    for (id, status, ways) in [
        (failed, "failed", ["clean", "quarantine"]),
        (given_up, "release_failed", ["force-release", "abandon"]),
    ] {
        let told = explain::for_operator(&house.ctx, &house.operator, AllocationId(id)).await;
        let told = told.expect("an operator may");
        assert_eq!(told.status.to_string(), status);
        let [claim] = told.claims.as_slice() else { panic!("{told:?}") };
        assert_eq!(claim.status.to_string(), "stuck");
        for (command, way) in claim.commands.iter().zip(ways) {
            let of = if way == "quarantine" { claim.id } else { id };
            assert_eq!(*command, format!("berth admin {way} {of} --reason WHY"));
        }
        for may in &told.may_do {
            let command = may.command.as_ref().expect("a command");
            assert!(command.starts_with("berth admin ") && command.contains(&id.to_string()));
        }
        let tenants = seen(&house, id).await;
        assert!(tenants.claims.is_empty(), "that is for operators");
        let commands = tenants.may_do.iter().filter_map(|may| may.command.as_deref());
        assert!(commands.into_iter().all(|command| command.starts_with("berth alloc ")));
    }
    house.close().await;
}

/// What each filter took away.
async fn removed(house: &House, region: &str, gpus: i16) -> (bool, Vec<i64>, String) {
    let question = CapacityQuestion {
        sku: "h100.slice".to_owned(),
        region: region.to_owned(),
        gpus,
        image: None,
    };
    let told = capacity::explain(&house.ctx, &house.tenant, &question).await.expect("an answer");
    let removed = told.narrowed.iter().map(|each| each.removed).collect();
    let last = told.narrowed.last().map(|each| each.sentence.clone()).unwrap_or_default();
    assert!(told.fits || !told.detail.is_empty());
    (told.fits, removed, last)
}

#[tokio::test]
async fn a_refusal_says_what_each_filter_took_away() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 4]).await;
    house.node("h100.slice", &[0; 2]).await;
    house.node("h100.metal", &[0; 8]).await;
    let asked = NewAllocation {
        project_id: house.project,
        sku: "h100.slice".to_owned(),
        gpus: 8,
        region: "eu-1".to_owned(),
        ssh_key_ids: Vec::new(),
        image: None,
        name: None,
    };
    let key = house.key("POST /allocations");
    let answer = create::request(&house.ctx, &house.tenant, &asked, &key).await;
    let Err(Error::SkuUnavailable { narrowed, would_fit, .. }) = answer else {
        panic!("{answer:?}");
    };
    let told: Vec<(String, i64, i64)> =
        narrowed.iter().map(|each| (each.filter.to_string(), each.removed, each.left)).collect();
    let expected =
        [("sku", 1, 2), ("region", 0, 2), ("status", 0, 2), ("image", 0, 2), ("free", 2, 0)];
    assert_eq!(told, expected.map(|(filter, removed, left)| (filter.to_owned(), removed, left)));
    assert_eq!(
        narrowed[4].sentence,
        "2 of 2 machines have fewer than 8 GPUs free on one machine (the most is 4), which leaves 0."
    );
    assert!(narrowed.iter().all(|each| !each.sentence.contains("node-")), "no names");
    assert_eq!(would_fit.len(), 1);

    assert_eq!(removed(&house, "eu-1", 4).await.1, [1, 0, 0, 0, 1]);
    assert!(removed(&house, "eu-1", 4).await.0, "one is left");
    assert_eq!(removed(&house, "us-1", 1).await.1, [1, 2, 0, 0, 0]);
    assert!(removed(&house, "moon", 1).await.1.is_empty(), "there is nothing to count");
    // Nobody has heard of them for a while.
    house.pass(Duration::from_secs(600)).await;
    let (fits, gone, _) = removed(&house, "eu-1", 1).await;
    assert_eq!((fits, gone), (false, vec![1, 0, 2, 0, 0]));
    house.close().await;
}
