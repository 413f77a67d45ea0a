//! Cancelling: a release of what is not ready yet, or is just restarting. What was under way is called off, and a late success
//! is cleaned up: it never becomes active, and nobody pays for it.

use domain::machines::allocation::Status;
use testkit::{Act, House, new_id};
use uuid::Uuid;
use wire::node::{Access, TaskOutcome};

async fn house() -> House {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    house
}

fn provisioned() -> TaskOutcome {
    let access = Access { host: "192.0.2.7".to_owned(), port: 22, user: "t".to_owned() };
    TaskOutcome::Provisioned { access }
}

fn restarted() -> TaskOutcome {
    TaskOutcome::Restarted { boot_id_before: new_id(), boot_id: new_id() }
}

/// Released and free, without ever having been ready.
async fn was_never_active(house: &House, id: Uuid) {
    let shown = house.show(id).await;
    assert_eq!((shown.status.0, shown.active_at), (Status::Released, None));
    assert!(shown.status_text.contains("you were not charged"), "{}", shown.status_text);
    assert_eq!(house.claims(id).await, ["freed"; 8]);
    let published = house.published(id).await;
    assert!(!published.iter().any(|subject| subject == "provisioning.active"), "{published:?}");
    assert_eq!(house.open_runs(id).await, 0, "nobody is at it any more");
    house.create("h100.slice", 8).await.expect("all of it can be had again");
}

/// Kind and status of its tasks.
async fn tasks(house: &House, id: Uuid) -> Vec<(String, String)> {
    house.tasks(id).await.into_iter().map(|task| (task.kind, task.status)).collect()
}

fn task(kind: &str, status: &str) -> (String, String) {
    (kind.to_owned(), status.to_owned())
}

#[tokio::test]
async fn what_is_only_requested_is_free_at_once() {
    let house = house().await;
    house.first_node().will(&[Act::StayAway]);
    let id = house.create("h100.slice", 8).await.expect("it fits").id;
    assert_eq!(house.status(id).await, Status::Requested);
    house.release(id).await.expect("cancelled");
    house.settle().await;
    assert_eq!(tasks(&house, id).await, [], "no node was ever told");
    was_never_active(&house, id).await;
    house.close().await;
}

#[tokio::test]
async fn work_that_no_node_has_taken_is_called_off_and_leaves_nothing_to_clean() {
    let house = house().await;
    house.first_node().will(&[Act::StayAway]);
    let id = house.create("h100.slice", 8).await.expect("it fits").id;
    house.settle().await;
    assert_eq!(tasks(&house, id).await, [task("slice.vm_provision", "queued")]);
    house.release(id).await.expect("cancelled");
    house.settle().await;
    assert_eq!(tasks(&house, id).await, [task("slice.vm_provision", "cancelled")]);
    was_never_active(&house, id).await;
    house.close().await;
}

/// The node succeeds between the request and the moment in which somebody takes it up.
#[tokio::test]
async fn a_success_that_comes_just_after_the_cancel_is_cleaned_up() {
    let house = house().await;
    house.first_node().will(&[Act::FallSilent]);
    let id = house.create("h100.slice", 8).await.expect("it fits").id;
    house.settle().await;
    let given = house.first_node().held().pop().expect("it was handed out");
    house.release(id).await.expect("cancelled");
    let answer = house.first_node().answer(&house.ctx, &given, provisioned()).await;
    assert!(answer.applied, "the task is done, whatever is made of it: {answer:?}");
    house.settle().await;
    let expected = [task("slice.vm_provision", "succeeded"), task("slice.vm_release", "succeeded")];
    assert_eq!(tasks(&house, id).await, expected);
    was_never_active(&house, id).await;
    house.close().await;
}

/// The late success comes while the clean-up waits for the node, and once more while the node is at it.
#[tokio::test]
async fn a_late_success_is_cleaned_up_before_and_after_the_clean_up_was_taken() {
    for taken in [false, true] {
        let house = house().await;
        house.first_node().will(&[Act::FallSilent]);
        let id = house.create("h100.slice", 8).await.expect("it fits").id;
        house.settle().await;
        let provision = house.first_node().held().pop().expect("it was handed out");
        house.first_node().will(&[if taken { Act::FallSilent } else { Act::StayAway }]);
        house.release(id).await.expect("cancelled");
        house.settle().await;
        let clean_up = if taken { "dispatched" } else { "queued" };
        let expected =
            [task("slice.vm_provision", "cancelled"), task("slice.vm_release", clean_up)];
        assert_eq!(tasks(&house, id).await, expected);
        let late = house.first_node().answer(&house.ctx, &provision, provisioned()).await;
        assert!(!late.applied, "{late:?}");
        house.settle().await;
        assert_eq!(house.status(id).await, Status::Releasing, "nothing is free without a proof");
        assert_eq!(house.claims(id).await, ["cleaning"; 8]);
        house.first_node().forget_script();
        if taken {
            let given = house.first_node().held().pop().expect("the clean-up");
            let proof = TaskOutcome::Cleaned { proof: testkit::CLEAN };
            house.first_node().answer(&house.ctx, &given, proof).await;
        }
        house.settle().await;
        was_never_active(&house, id).await;
        house.close().await;
    }
}

/// A restart that is under way when the tenant gives the machine back: whenever its success comes, it revives nothing.
#[tokio::test]
async fn a_restart_is_called_off_and_its_late_success_is_cleaned_up() {
    for late_after_settling in [false, true] {
        let house = house().await;
        let id = house.active("h100.slice", 8).await.id;
        house.first_node().will(&[Act::FallSilent]);
        house.restart(id).await.expect("asked");
        house.settle().await;
        let restart = house.first_node().held().pop().expect("it was handed out");
        house.first_node().will(&[Act::StayAway]);
        house.release(id).await.expect("cancelled");
        if late_after_settling {
            house.settle().await;
            assert_eq!(
                house.open_runs(id).await,
                1,
                "the restart's run is over, the release's is not"
            );
        }
        let answer = house.first_node().answer(&house.ctx, &restart, restarted()).await;
        assert_eq!(answer.applied, !late_after_settling, "{answer:?}");
        house.settle().await;
        assert_eq!(house.status(id).await, Status::Releasing);
        house.first_node().forget_script();
        house.settle().await;
        assert_eq!(house.status(id).await, Status::Released);
        assert_eq!(house.claims(id).await, ["freed"; 8]);
        let statuses: Vec<String> =
            house.steps(id).await.into_iter().map(|step| step.to_status).collect();
        let expected =
            ["requested", "provisioning", "active", "restarting", "releasing", "released"];
        assert_eq!(statuses, expected);
        let restarts = tasks(&house, id).await.remove(1);
        let ended = if late_after_settling { "cancelled" } else { "succeeded" };
        assert_eq!(restarts, task("slice.vm_restart", ended));
        assert_eq!(house.open_runs(id).await, 0);
        house.close().await;
    }
}

/// Given back before anybody has begun the restart: no machine is restarted for nothing.
#[tokio::test]
async fn a_restart_that_nobody_has_begun_never_reaches_the_node() {
    let house = house().await;
    let id = house.active("h100.slice", 8).await.id;
    house.restart(id).await.expect("asked");
    house.release(id).await.expect("cancelled");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    let kinds: Vec<String> = house.tasks(id).await.into_iter().map(|task| task.kind).collect();
    assert_eq!(kinds, ["slice.vm_provision", "slice.vm_release"]);
    house.close().await;
}
