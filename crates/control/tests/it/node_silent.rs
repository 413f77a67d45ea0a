//! A node falls silent in every phase of an allocation, and comes back before the deadline, after it, or never. Each ends in
//! a status with a reason, and capacity comes free on proof alone.

use std::time::Duration;

use control::Error;
use control::allocation::clean;
use control::node::{dispatch, heartbeat, task};
use domain::ids::{AllocationId, NodeTaskId};
use domain::machines::allocation::Status;
use testkit::{Act, CLEAN, House, envelope_of};
use wire::http::admin::Because;
use wire::node::{Access, TaskOutcome, TaskResult};

const PROVISION_DEADLINE: Duration = Duration::from_secs(601);

async fn house() -> House {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await;
    house
}

fn provisioned() -> TaskOutcome {
    let access = Access { host: "192.0.2.7".to_owned(), port: 22, user: "tenant".to_owned() };
    TaskOutcome::Provisioned { access }
}

fn cleaned() -> TaskOutcome {
    TaskOutcome::Cleaned { proof: CLEAN }
}

/// Nothing but time passes, until every clean-up has been given up.
async fn wait_out_the_clean_up(house: &House) {
    for _ in 0..7 {
        house.pass(Duration::from_secs(130)).await;
    }
}

#[tokio::test]
async fn silent_while_the_work_is_queued_and_back_in_time_it_is_done() {
    let house = house().await;
    house.first_node().will(&[Act::StayAway]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    house.pass(Duration::from_secs(61)).await;
    assert_eq!(house.status(id).await, Status::Provisioning);
    assert!(house.show(id).await.status_text.contains("has not been heard of"));
    assert!(matches!(house.create("h100.slice", 1).await, Err(Error::SkuUnavailable { .. })));
    house.first_node().forget_script();
    house.beat_all().await;
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Active);
    house.close().await;
}

/// The node falls silent before any worker has seen the request.
#[tokio::test]
async fn silent_while_it_is_only_requested_it_waits_and_is_done_when_the_node_is_back() {
    for back in [true, false] {
        let house = house().await;
        house.first_node().will(&[Act::StayAway]);
        let id = house.create("h100.slice", 1).await.expect("it fits").id;
        house.ctx.clock.advance(Duration::from_secs(61));
        heartbeat::sweep_offline(&house.ctx).await.expect("it looks");
        assert_eq!(house.status(id).await, Status::Requested);
        house.settle().await;
        let shown = house.show(id).await;
        assert_eq!(shown.status.0, Status::Provisioning);
        assert!(shown.status_text.contains("has not been heard of"), "{}", shown.status_text);
        if back {
            house.first_node().forget_script();
            house.beat_all().await;
            house.settle().await;
            assert_eq!(house.status(id).await, Status::Active);
        } else {
            house.pass(PROVISION_DEADLINE).await;
            let shown = house.show(id).await;
            assert_eq!(shown.status.0, Status::Failed);
            assert_eq!(shown.status_reason.as_deref(), Some("node_lost"));
            assert_eq!(house.claims(id).await, ["freed"], "no node was ever told");
        }
        house.close().await;
    }
}

#[tokio::test]
async fn silent_during_a_restart_it_is_back_in_time_or_the_restart_has_failed_and_it_stays_the_tenants()
 {
    for back in [true, false] {
        let house = house().await;
        let id = house.active("h100.slice", 1).await.id;
        house.first_node().will(&[Act::FallSilent, Act::StayAway]);
        house.restart(id).await.expect("asked");
        house.settle().await;
        house.pass(Duration::from_secs(61)).await;
        let shown = house.show(id).await;
        assert_eq!(shown.status.0, Status::Restarting);
        assert!(shown.status_text.contains("has not been heard of"), "{}", shown.status_text);
        if back {
            house.first_node().forget_script();
            house.beat_all().await;
            house.settle().await;
            assert_eq!(house.status(id).await, Status::Active);
        } else {
            house.pass(Duration::from_secs(900)).await;
            let shown = house.show(id).await;
            assert_eq!(shown.status.0, Status::RestartFailed);
            assert_eq!(shown.status_reason.as_deref(), Some("node_did_not_return"));
        }
        assert_eq!(house.claims(id).await, ["held"]);
        house.close().await;
    }
}

/// Nothing was ever handed out, so there is nothing to clean.
#[tokio::test]
async fn silent_while_the_work_is_queued_until_the_deadline_it_fails_and_the_slot_is_clean() {
    let house = house().await;
    house.first_node().will(&[Act::StayAway]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    house.pass(Duration::from_secs(61)).await;
    house.pass(PROVISION_DEADLINE).await;
    let shown = house.show(id).await;
    assert_eq!(shown.status.0, Status::Failed);
    assert_eq!(shown.status_reason.as_deref(), Some("node_lost"));
    assert_eq!(house.claims(id).await, ["freed"]);
    house.close().await;
}

/// R21: the lease expires while the agent still works, the task is handed out again, and only the newer dispatch counts.
#[tokio::test]
async fn r21_a_rescued_task_counts_for_its_newest_dispatch_alone() {
    let house = house().await;
    let node = house.first_node();
    node.will(&[Act::FallSilent, Act::FallSilent]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    house.pass(Duration::from_secs(61)).await;
    let held = node.held();
    assert_eq!(held.len(), 2, "it is handed out again");
    assert_eq!((held[0].task_id, held[0].dispatch), (held[1].task_id, 1));
    assert_eq!(held[1].dispatch, 2);
    assert_eq!(envelope_of(&held[0]).fence, envelope_of(&held[1]).fence, "it is the same work");
    let old = node.answer(&house.ctx, &held[0], provisioned()).await;
    assert!(!old.applied && old.answer.contains("same_dispatch"), "{old:?}");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Provisioning);
    let refused = house.ctx.store.refusals("node_task", held[0].task_id).await.expect("records");
    assert_eq!(refused.len(), 1, "what was superseded is on record");
    let new = node.answer(&house.ctx, &held[1], provisioned()).await;
    assert!(new.applied, "{new:?}");
    let twice = node.answer(&house.ctx, &held[1], provisioned()).await;
    assert!(!twice.applied && twice.answer == "duplicate", "{twice:?}");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Active);
    house.close().await;
}

/// R20: while the node is cut off its disk is replaced and it is enrolled anew. The agent of before comes back with a result.
#[tokio::test]
async fn r20_the_result_of_an_agent_that_was_replaced_is_refused() {
    let house = house().await;
    let (ctx, node) = (&house.ctx, house.first_node());
    node.will(&[Act::FallSilent, Act::StayAway]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    let old = node.held().pop().expect("it was handed out");
    let newer = house.enrol_anew(node.identity.node_id).await;
    house.pass(Duration::from_secs(61)).await;
    let again =
        dispatch::claim(ctx, &newer, 1).await.expect("a claim").pop().expect("it came back");
    assert_eq!((again.task_id, again.dispatch), (old.task_id, 2));
    let refused = node.answer(ctx, &old, provisioned()).await;
    assert!(!refused.applied, "{refused:?}");
    let claims_to_be = node.answer(ctx, &again, provisioned()).await;
    assert!(
        !claims_to_be.applied && claims_to_be.answer.contains("same_agent"),
        "{claims_to_be:?}"
    );
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Provisioning);
    let result = TaskResult { dispatch: 2, outcome: provisioned(), phases: Vec::new() };
    let counted = task::finish(ctx, &newer, NodeTaskId(again.task_id), &result).await;
    assert!(counted.expect("heard").applied);
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Active);
    house.close().await;
}

#[tokio::test]
async fn silent_in_the_middle_of_the_work_for_good_it_fails_and_the_slot_stays_taken() {
    let house = house().await;
    house.first_node().will(&[Act::FallSilent, Act::StayAway]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    house.pass(Duration::from_secs(61)).await;
    house.pass(PROVISION_DEADLINE).await;
    let shown = house.show(id).await;
    assert_eq!(shown.status.0, Status::Failed);
    assert_eq!(shown.status_reason.as_deref(), Some("node_lost"));
    assert_eq!(house.claims(id).await, ["cleaning"]);
    wait_out_the_clean_up(&house).await;
    assert_eq!(house.claims(id).await, ["stuck"]);

    // It comes back after all. Its late success revives nothing, and it is cleaned up when an operator asks for it.
    let late = house.first_node().held().remove(0);
    let answer = house.first_node().answer(&house.ctx, &late, provisioned()).await;
    assert!(!answer.applied, "{answer:?}");
    house.first_node().forget_script();
    house.beat_all().await;
    house.settle().await;
    assert_eq!(house.claims(id).await, ["stuck"], "nobody has asked for it");
    let why = Because { reason: "it is back".to_owned() };
    let (ctx, operator) = (&house.ctx, &house.operator);
    clean::request(ctx, operator, AllocationId(id), &why, None).await.expect("asked");
    house.settle().await;
    assert_eq!(house.claims(id).await, ["freed"]);
    assert_eq!(house.status(id).await, Status::Failed);
    house.close().await;
}

#[tokio::test]
async fn silent_while_it_is_active_it_stays_the_tenants_and_says_so() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    for _ in 0..5 {
        house.pass(Duration::from_secs(3_600)).await;
    }
    let shown = house.show(id).await;
    assert_eq!(shown.status.0, Status::Active);
    assert!(shown.status_text.contains("has not been heard of"), "{}", shown.status_text);
    assert_eq!(house.claims(id).await, ["held"]);
    house.beat_all().await;
    let shown = house.show(id).await;
    assert!(!shown.status_text.contains("heard of"), "{}", shown.status_text);
    house.close().await;
}

#[tokio::test]
async fn silent_during_the_release_and_back_in_time_it_is_released() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::FallSilent, Act::StayAway]);
    house.release(id).await.expect("asked");
    house.settle().await;
    house.pass(Duration::from_secs(130)).await;
    assert_eq!(house.status(id).await, Status::Releasing);
    assert_eq!(house.claims(id).await, ["cleaning"]);
    house.first_node().forget_script();
    house.beat_all().await;
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    assert_eq!(house.claims(id).await, ["freed"]);
    house.close().await;
}

#[tokio::test]
async fn silent_during_the_release_until_it_is_given_up_it_is_released_by_a_retry() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::StayAway]);
    house.release(id).await.expect("asked");
    wait_out_the_clean_up(&house).await;
    let shown = house.show(id).await;
    assert_eq!(shown.status.0, Status::ReleaseFailed);
    assert_eq!(shown.status_reason.as_deref(), Some("node_lost"));
    assert_eq!(house.claims(id).await, ["stuck"]);
    let again = house.release(id).await.expect("asked again").body;
    assert_eq!(again.release_requested_at, shown.release_requested_at, "billing stopped once");
    house.first_node().forget_script();
    house.beat_all().await;
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    house.close().await;
}

/// R21: the first clean-up is rescued, the second proves it, and the slot is somebody else's when the first comes back.
#[tokio::test]
async fn r21_no_clean_up_is_ordered_for_a_slot_that_was_given_back() {
    let house = house().await;
    let (ctx, node) = (&house.ctx, house.first_node());
    let id = house.active("h100.slice", 2).await.id;
    node.will(&[Act::FallSilent]);
    house.release(id).await.expect("asked");
    house.settle().await;
    house.pass(Duration::from_secs(61)).await;
    assert_eq!(house.status(id).await, Status::Released);
    house.beat_all().await;
    let next = house.active("h100.slice", 2).await;
    let late = node.held().pop().expect("the first dispatch");
    assert!(!node.answer(ctx, &late, cleaned()).await.applied);
    wait_out_the_clean_up(&house).await;
    assert_eq!(dispatch::claim(ctx, &node.identity, 1).await.expect("a claim"), []);
    let open: Vec<String> = house
        .dispatches(id)
        .await
        .into_iter()
        .map(|(_, status, _)| status)
        .filter(|status| status == "queued" || status == "dispatched")
        .collect();
    assert!(open.is_empty(), "{open:?}");
    assert_eq!(house.claims(next.id).await, ["held", "held"]);
    house.close().await;
}

/// R24: the agent dies of one task, again and again. It ends with a reason, and the node's other work goes on.
#[tokio::test]
async fn r24_a_task_that_kills_its_agent_three_times_is_given_up_and_others_go_on() {
    let house = house().await;
    let node = house.first_node();
    node.will(&[Act::FallSilent; 3]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    for _ in 0..3 {
        house.ctx.clock.advance(Duration::from_secs(61));
        house.beat_all().await;
        house.pass(Duration::ZERO).await;
    }
    let shown = house.show(id).await;
    assert_eq!(shown.status.0, Status::Failed);
    assert_eq!(shown.status_reason.as_deref(), Some("timeout"));
    let poisoned = house.dispatches(id).await[0].clone();
    assert_eq!((poisoned.1.as_str(), poisoned.2), ("expired", 3));
    house.beat_all().await;
    let other = house.active("h100.slice", 1).await;
    assert_eq!(other.status.0, Status::Active);
    house.close().await;
}

/// The process dies in the middle of a provision, and nobody remembers the run.
#[tokio::test]
async fn a_provision_whose_run_was_lost_is_taken_up_and_its_task_is_not_done_twice() {
    let house = house().await;
    let node = house.first_node();
    node.will(&[Act::FallSilent]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    house.forget_runs("provision").await;
    house.pass(Duration::from_secs(31)).await;
    assert_eq!(house.status(id).await, Status::Active);
    let lost = node.held().pop().expect("the first task");
    assert!(!node.answer(&house.ctx, &lost, provisioned()).await.applied);
    let tasks: Vec<String> =
        house.dispatches(id).await.into_iter().map(|(_, status, _)| status).collect();
    assert_eq!(tasks, ["cancelled", "succeeded"]);
    house.close().await;
}

/// What was taken up and came to nothing is taken up again, as often as it takes; and once, however many sweep.
#[tokio::test]
async fn a_provision_whose_runs_end_with_nothing_done_is_taken_up_every_time() {
    let house = house().await;
    house.first_node().will(&[Act::FallSilent; 4]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    for _ in 0..3 {
        house.end_runs("provision").await;
        house.ctx.clock.advance(Duration::from_secs(31));
        house.beat_all().await;
        let (one, other) = tokio::join!(house.spine.step_timers(), house.spine.step_timers());
        one.and(other).expect("they sweep");
        house.settle().await;
        assert_eq!(house.status(id).await, Status::Provisioning);
        assert_eq!(house.open_runs(id).await, 1);
    }
    house.end_runs("provision").await;
    house.pass(Duration::from_secs(31)).await;
    assert_eq!(house.status(id).await, Status::Active);
    house.close().await;
}

/// R23: the node was re-imaged: another agent, with an empty journal, does the clean-up and proves it.
#[tokio::test]
async fn r23_a_node_that_was_imaged_anew_finishes_the_release() {
    let house = house().await;
    let (ctx, node) = (&house.ctx, house.first_node());
    let id = house.active("h100.slice", 1).await.id;
    node.will(&[Act::FallSilent, Act::StayAway]);
    house.release(id).await.expect("asked");
    house.settle().await;
    let newer = house.enrol_anew(node.identity.node_id).await;
    house.pass(Duration::from_secs(61)).await;
    let given = dispatch::claim(ctx, &newer, 1).await.expect("a claim").pop();
    let given = given.expect("it is handed out again");
    let result = TaskResult { dispatch: given.dispatch, outcome: cleaned(), phases: Vec::new() };
    let done = task::finish(ctx, &newer, NodeTaskId(given.task_id), &result).await.expect("heard");
    assert!(done.applied, "{done:?}");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    house.close().await;
}
