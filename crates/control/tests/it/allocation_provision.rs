//! Provisioning: to active, or to failed with the capacity free again after a proof.

use std::time::Duration;

use domain::machines::allocation::Status;
use testkit::{Act, House};
use wire::node::FailureReason;

#[tokio::test]
async fn a_request_becomes_active_and_says_how_to_reach_it() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    let shown = house.active("h100.slice", 2).await;
    assert_eq!(shown.access.expect("it is there").user, "tenant");
    assert!(shown.active_at.is_some());
    assert_eq!(house.claims(shown.id).await, ["held", "held"]);
    assert_eq!(house.published(shown.id).await, ["provisioning.requested", "provisioning.active"]);
    house.close().await;
}

#[tokio::test]
async fn a_whole_machine_becomes_active_too() {
    let mut house = House::open().await;
    house.node("h100.metal", &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    let shown = house.active("h100.metal", 8).await;
    assert!(shown.slots.is_empty());
    assert_eq!(house.claims(shown.id).await, ["held"]);
    house.release(shown.id).await.expect("asked");
    house.settle().await;
    assert_eq!(house.status(shown.id).await, Status::Released);
    house.close().await;
}

/// Each failure of the node lands in `failed` with its reason, and the capacity is free after the clean-up.
#[tokio::test]
async fn every_failure_of_the_node_ends_in_failed_and_frees_on_proof() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    for reason in [
        FailureReason::ImageUnavailable,
        FailureReason::ImageChecksumMismatch,
        FailureReason::VfioUnavailable,
        FailureReason::SshNotReady,
        FailureReason::GuestNotReady,
        FailureReason::DriverFailed,
        FailureReason::BadSignature,
    ] {
        house.first_node().will(&[Act::Fail(reason)]);
        let id = house.create("h100.slice", 8).await.expect("it fits").id;
        house.settle().await;
        let shown = house.show(id).await;
        assert_eq!(shown.status.0, Status::Failed, "{reason}");
        assert_eq!(shown.status_reason, Some(reason.to_string()));
        assert_eq!(house.claims(id).await, ["freed"; 8], "{reason}");
    }
    house.close().await;
}

#[tokio::test]
async fn a_lease_in_the_way_is_tried_again_and_then_given_up() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    let conflict = Act::Fail(FailureReason::LeaseConflict);
    house.first_node().will(&[conflict]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Provisioning);
    house.pass(Duration::from_secs(3)).await;
    assert_eq!(house.status(id).await, Status::Active);

    house.first_node().will(&[conflict, conflict, conflict]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    for _ in 0..4 {
        house.pass(Duration::from_secs(10)).await;
    }
    assert_eq!(house.show(id).await.status_reason.as_deref(), Some("lease_conflict"));
    assert_eq!(house.claims(id).await, ["freed"]);
    house.close().await;
}

/// The second attempt was begun by a step that was done and never saved; when it is repeated, time is over.
#[tokio::test]
async fn an_attempt_that_nobody_remembers_is_over_when_the_provision_is_given_up() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    house.first_node().will(&[Act::Fail(FailureReason::LeaseConflict), Act::FallSilent]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    let paused = house.state_of_runs("provision").await;
    house.ctx.clock.advance(Duration::from_secs(3));
    house.settle().await;
    house.put_runs_back("provision", &paused).await;
    house.first_node().will(&[Act::FallSilent]);
    // No sweep comes first.
    house.ctx.clock.advance(Duration::from_secs(1_100));
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Failed);
    let tasks: Vec<String> =
        house.dispatches(id).await.into_iter().map(|(_, status, _)| status).collect();
    assert_eq!(tasks, ["failed", "expired", "dispatched"], "only the clean-up is under way");
    house.database.remove().await;
}

#[tokio::test]
async fn no_answer_within_the_deadline_fails_and_is_cleaned_up() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    house.first_node().will(&[Act::StayAway]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    // In steps that are longer than any deadline, so that each of them is found overdue in turn.
    for _ in 0..12 {
        house.pass(Duration::from_secs(1_000)).await;
    }
    let shown = house.show(id).await;
    assert_eq!(shown.status.0, Status::Failed);
    assert_eq!(shown.status_reason.as_deref(), Some("node_lost"));
    // Nothing was ever handed to the node, so there is nothing to clean up.
    assert_eq!(house.claims(id).await, ["freed"]);
    house.close().await;
}

/// The node takes the task and is never heard of again: what it may hold is offered to nobody.
#[tokio::test]
async fn what_a_lost_node_may_still_hold_stays_assigned() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    house.first_node().will(&[Act::FallSilent, Act::StayAway]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    for _ in 0..12 {
        house.pass(Duration::from_secs(1_000)).await;
    }
    let shown = house.show(id).await;
    assert_eq!(
        (shown.status.0, shown.status_reason.as_deref()),
        (Status::Failed, Some("node_lost"))
    );
    assert_eq!(house.claims(id).await, ["stuck"]);
    assert!(house.create("h100.slice", 1).await.is_err(), "a silent node was offered");
    house.close().await;
}

/// Nobody is left holding anything when clean-up after a failed provision never works.
#[tokio::test]
async fn a_failed_provision_that_can_not_be_cleaned_up_is_stuck_and_seen() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    house.first_node().will(&[Act::Fail(FailureReason::SshNotReady)]);
    house.first_node().will(&[Act::LeaveResidue; 5]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    for _ in 0..8 {
        house.pass(Duration::from_secs(61)).await;
    }
    assert_eq!(house.status(id).await, Status::Failed);
    assert_eq!(house.claims(id).await, ["stuck"]);
    assert!(house.create("h100.slice", 8).await.is_err(), "a dirty slot was offered");
    house.close().await;
}
