//! R08: every message delivered 2, 5 and 100 times, results posted 5 times, and the whole outbox replayed from its first
//! message twice: not a row is changed by what comes again.

use std::time::Duration;

use control::allocation_group::{release, view};
use domain::derived::allocation_group::Status as Group;
use domain::ids::AllocationGroupId;
use domain::machines::allocation::Status;
use testkit::{Act, House};
use wire::node::FailureReason;

/// From the request to the end of its workflow.
const ROUNDS: usize = 2;

async fn house() -> House {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 1, 1]).await;
    house
}

/// Everything moves, and at every point of it the whole outbox so far comes again, so often.
async fn settle_under_redelivery(house: &House, times: usize) {
    for _ in 0..ROUNDS {
        house.replay(times).await;
        house.spine.step_all().await.expect("the spine moves");
        house.replay(times).await;
        house.let_nodes_work().await;
    }
    house.settle().await;
}

/// What comes again changes nothing: not a row of any table.
async fn assert_deaf(house: &House) {
    let before = house.digest().await;
    house.replay(1).await;
    house.settle().await;
    house.replay(1).await;
    house.settle().await;
    house.repeat_results(5).await;
    house.settle().await;
    assert_eq!(house.digest().await, before);
}

async fn whole_story(times: usize) {
    let house = house().await;
    let id = house.create("h100.slice", 2).await.expect("it fits").id;
    settle_under_redelivery(&house, times).await;
    assert_eq!(house.status(id).await, Status::Active);
    assert_deaf(&house).await;
    house.first_node().will(&[Act::LeaveResidue]);
    house.release(id).await.expect("asked");
    settle_under_redelivery(&house, times).await;
    house.ctx.clock.advance(Duration::from_secs(60));
    settle_under_redelivery(&house, times).await;
    assert_eq!(house.status(id).await, Status::Released);
    assert_deaf(&house).await;
    house.close().await;
}

#[tokio::test]
async fn r08_two_deliveries_are_one() {
    whole_story(2).await;
}

#[tokio::test]
async fn r08_five_deliveries_are_one() {
    whole_story(5).await;
}

#[tokio::test]
async fn r08_a_hundred_deliveries_are_one() {
    whole_story(100).await;
}

#[tokio::test]
async fn r08_a_provision_fails_once_however_often_it_is_told() {
    let house = house().await;
    house.first_node().will(&[Act::Fail(FailureReason::SshNotReady)]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    settle_under_redelivery(&house, 5).await;
    assert_eq!(house.status(id).await, Status::Failed);
    assert_eq!(house.claims(id).await, ["freed"]);
    assert_deaf(&house).await;
    house.close().await;
}

/// Both ends of a restart: one that fails, and the one that follows.
async fn restarts(times: usize) {
    let house = house().await;
    let id = house.active("h100.slice", 2).await.id;
    for (act, ends) in [(Act::KeepBoot, Status::RestartFailed), (Act::Succeed, Status::Active)] {
        house.first_node().will(&[act]);
        house.restart(id).await.expect("asked");
        settle_under_redelivery(&house, times).await;
        assert_eq!(house.status(id).await, ends);
        assert_deaf(&house).await;
    }
    let tasks = house.tasks(id).await;
    assert_eq!(tasks.iter().filter(|task| task.kind == "slice.vm_restart").count(), 2);
    house.close().await;
}

#[tokio::test]
async fn r08_a_restart_ends_once_however_often_it_is_told() {
    for times in [2, 5] {
        restarts(times).await;
    }
}

#[tokio::test]
async fn r08_a_restart_ends_once_when_it_is_told_a_hundred_times() {
    restarts(100).await;
}

/// A group comes and goes as one, with a member whose clean-up takes two attempts.
async fn group(times: usize) {
    let house = house().await;
    let group = house.group("h100.slice", &[1, 2]).await.expect("it fits").id;
    let group = AllocationGroupId(group);
    settle_under_redelivery(&house, times).await;
    let shown = view::show(&house.ctx, &house.tenant, group).await.expect("theirs");
    assert_eq!(shown.status.0, Group::Active);
    assert_deaf(&house).await;
    house.first_node().will(&[Act::LeaveResidue]);
    let key = house.key("release_allocation_group");
    release::request(&house.ctx, &house.tenant, group, Some(&key)).await.expect("asked");
    settle_under_redelivery(&house, times).await;
    house.ctx.clock.advance(Duration::from_secs(60));
    settle_under_redelivery(&house, times).await;
    let again = release::request(&house.ctx, &house.tenant, group, Some(&key)).await;
    assert!(again.expect("answered").replayed);
    let shown = view::show(&house.ctx, &house.tenant, group).await.expect("theirs");
    assert_eq!(shown.status.0, Group::Released);
    assert_deaf(&house).await;
    house.close().await;
}

#[tokio::test]
async fn r08_a_group_comes_and_goes_once_however_often_it_is_told() {
    for times in [2, 5] {
        group(times).await;
    }
}

#[tokio::test]
async fn r08_a_group_comes_and_goes_once_when_it_is_told_a_hundred_times() {
    group(100).await;
}
