//! Releasing: freed on proof alone; late, repeated and overtaken answers.

use std::time::Duration;

use control::Error;
use control::allocation::{receipt, release, timeline};
use control::node::task::{self, Order};
use domain::ids::AllocationId;
use domain::machines::allocation::Status;
use store::{allocations, workflow_runs};
use testkit::{Act, CLEAN, House};
use wire::http::allocations::ForceRelease;
use wire::node::{Cleanup, FailureReason, TaskOutcome, Work};
use wire::seal::{Purpose, VerifyingKey};

async fn house() -> House {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    house
}

#[tokio::test]
async fn what_is_given_back_is_free_on_proof_and_the_tenant_has_it_in_writing() {
    let house = house().await;
    let id = house.active("h100.slice", 2).await.id;
    let asked = house.release(id).await.expect("asked");
    assert_eq!((asked.status, asked.body.status.0), (202, Status::Releasing));
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    assert_eq!(house.claims(id).await, ["freed", "freed"]);
    let signed =
        receipt::show(&house.ctx, &house.tenant, AllocationId(id)).await.expect("a receipt");
    let key = VerifyingKey::parse(&signed.public_key).expect("a key");
    assert!(key.verifies(Purpose::Receipt, signed.document.as_bytes(), &signed.signature));
    assert_eq!(signed.receipt.proof, Some(CLEAN));
    assert_eq!(signed.receipt.slots, [0, 1]);
    house.close().await;
}

#[tokio::test]
async fn a_release_asked_for_twice_is_one_release() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    house.release(id).await.expect("asked");
    let again = house.release(id).await.expect("it is being released");
    assert_eq!(again.body.status.0, Status::Releasing);
    house.settle().await;
    let late = house.release(id).await;
    assert!(matches!(late, Err(Error::Conflict(_))), "{late:?}");
    let requested = house.published(id).await;
    assert_eq!(
        requested.iter().filter(|subject| subject.ends_with("releasing.requested")).count(),
        1
    );
    house.close().await;
}

#[tokio::test]
async fn cleaning_up_is_tried_as_often_as_the_policy_says_and_then_an_operator_is_asked() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::LeaveResidue, Act::Fail(FailureReason::CleanupIncomplete)]);
    house.first_node().will(&[Act::LeaveResidue; 3]);
    house.release(id).await.expect("asked");
    for _ in 0..6 {
        house.pass(Duration::from_secs(61)).await;
    }
    let shown = house.show(id).await;
    assert_eq!(shown.status.0, Status::ReleaseFailed);
    assert_eq!(shown.status_reason.as_deref(), Some("cleanup_incomplete"));
    assert_eq!(house.claims(id).await, ["stuck"]);
    let told =
        timeline::for_tenant(&house.ctx, &house.tenant, AllocationId(id)).await.expect("told");
    let attempts: Vec<String> = told
        .items
        .iter()
        .filter(|item| item.name == "slice.vm_release")
        .map(|item| item.status.to_string())
        .collect();
    assert_eq!(
        attempts, ["failed"; 5],
        "a clean-up that left something behind looks like a success"
    );

    // The tenant tries again, and this time it works.
    house.release(id).await.expect("asked again");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    assert_eq!(house.claims(id).await, ["freed"]);
    house.close().await;
}

#[tokio::test]
async fn an_operator_can_take_it_back() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    let because = ForceRelease { reason: "the rack is on fire".to_owned() };
    let (ctx, id_) = (&house.ctx, AllocationId(id));
    let refused = release::force(ctx, &house.tenant, id_, &because, None).await;
    assert!(matches!(refused, Err(Error::Forbidden(_))), "{refused:?}");
    release::force(ctx, &house.operator, id_, &because, None).await.expect("taken back");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    house.close().await;
}

#[tokio::test]
async fn a_release_before_anything_was_handed_out_is_over_at_once() {
    let house = house().await;
    house.first_node().will(&[Act::StayAway]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.release(id).await.expect("asked");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    assert_eq!(house.claims(id).await, ["freed"]);
    house.close().await;
}

/// The provision is under way on the node when the tenant changes their mind.
#[tokio::test]
async fn a_provision_that_is_overtaken_by_a_release_never_becomes_active() {
    let house = house().await;
    house.first_node().will(&[Act::FallSilent]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    let provision = house.first_node().held().pop().expect("it was handed out");
    house.release(id).await.expect("asked");
    house.settle().await;
    let late = testkit_provisioned();
    let answer = house.first_node().answer(&house.ctx, &provision, late).await;
    assert!(!answer.applied, "{answer:?}");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    assert_eq!(house.show(id).await.active_at, None);
    house.close().await;
}

fn testkit_provisioned() -> TaskOutcome {
    let access =
        wire::node::Access { host: "192.0.2.7".to_owned(), port: 22, user: "t".to_owned() };
    TaskOutcome::Provisioned { access }
}

/// The last attempt goes unanswered, the release is given up, and then the proof comes after all.
#[tokio::test]
async fn a_proof_that_comes_after_giving_up_still_counts() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::LeaveResidue; 4]);
    house.first_node().will(&[Act::FallSilent, Act::StayAway]);
    house.release(id).await.expect("asked");
    for _ in 0..5 {
        house.pass(Duration::from_secs(61)).await;
    }
    let cleanup = house.first_node().held().pop().expect("the last attempt");
    // Longer than an attempt may take, in steps in which the agent's heartbeats would come.
    house.ctx.clock.advance(Duration::from_secs(130));
    house.settle().await;
    assert_eq!(house.status(id).await, Status::ReleaseFailed);
    assert_eq!(house.claims(id).await, ["stuck"]);
    let outcome = TaskOutcome::Cleaned { proof: CLEAN };
    let answer = house.first_node().answer(&house.ctx, &cleanup, outcome).await;
    assert!(answer.applied, "{answer:?}");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    assert_eq!(house.claims(id).await, ["freed"]);
    house.close().await;
}

/// The first release fails, a second is under way, and the proof of the first arrives.
#[tokio::test]
async fn late_proof_of_an_old_release_does_not_free_a_retried_allocation() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::LeaveResidue; 4]);
    house.first_node().will(&[Act::FallSilent, Act::FallSilent, Act::StayAway]);
    house.release(id).await.expect("asked");
    for _ in 0..5 {
        house.pass(Duration::from_secs(61)).await;
    }
    house.ctx.clock.advance(Duration::from_secs(130));
    house.settle().await;
    assert_eq!(house.status(id).await, Status::ReleaseFailed);
    house.release(id).await.expect("asked again");
    house.settle().await;
    let held = house.first_node().held();
    let outcome = TaskOutcome::Cleaned { proof: CLEAN };
    let late = house.first_node().answer(&house.ctx, &held[0], outcome.clone()).await;
    assert!(!late.applied, "{late:?}");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Releasing);
    assert_eq!(house.claims(id).await, ["cleaning"]);
    let proof = house.first_node().answer(&house.ctx, &held[1], outcome).await;
    assert!(proof.applied, "{proof:?}");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    house.close().await;
}

/// A step was done and never saved: what it queued is still there when the proof of the attempt before it comes.
#[tokio::test]
async fn a_proof_that_comes_while_another_clean_up_is_under_way_ends_the_release_after_that_one() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::StayAway]);
    house.release(id).await.expect("asked");
    house.settle().await;
    let runs = workflow_runs::open_of(&house.ctx.store, id, &[release::WORKFLOW]).await;
    let run = runs.expect("they are listed").remove(0);
    let mut tx = house.ctx.store.begin().await.expect("it begins");
    let held = allocations::hold(&mut tx, AllocationId(id)).await.expect("it is held");
    let order = Order {
        run: &run,
        label: "clean up 2".to_owned(),
        node: house.first_node().identity.node_id,
        allocation: AllocationId(id),
        operation: held.expect("it is there").operation,
        deadline: house.ctx.after_seconds(600),
    };
    let work = Work::SliceRelease(Cleanup { slots: Vec::new() });
    task::issue(&mut tx, &order, &work).await.expect("it is queued");
    tx.commit().await.expect("it commits");

    house.first_node().forget_script();
    assert!(house.let_nodes_work().await, "the first of the two");
    while house.spine.step_all().await.expect("the spine moves") > 0 {}
    assert_eq!(house.status(id).await, Status::Releasing);
    house.settle().await;
    // No sweep comes to its help: the run itself asks again.
    house.ctx.clock.advance(Duration::from_secs(10));
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    assert_eq!(house.claims(id).await, ["freed"]);
    house.close().await;
}
