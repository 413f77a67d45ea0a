//! R08: every message delivered 2, 5 and 100 times, results posted 5 times, and the whole outbox replayed from its first
//! message twice: not a row is changed by what comes again.

use std::time::Duration;

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
