//! When money runs and when it stops: each promise with the lines of the ledger.

use std::time::Duration;

use control::billing::charge;
use domain::machines::allocation::Status;
use testkit::{Act, House};
use wire::node::FailureReason;

const MINUTE: i64 = 60_000_000;
/// What a minute of two H100 slices costs: 831 millionths a GPU and second, 99.72 cents in ten minutes.
const TWO_GPUS: i64 = 2 * 831;

/// What so many microseconds of two GPUs cost, in cents, rounded down once.
fn price(micros: i64) -> i64 {
    i64::try_from(i128::from(TWO_GPUS) * i128::from(micros) / 10_000_000_000).expect("it fits")
}

async fn house() -> House {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    house
}

/// Charged: whole minutes since it became active, and not the one that is not over.
#[tokio::test]
async fn minutes_are_charged_as_they_pass_and_each_of_them_once() {
    let house = house().await;
    let id = house.active("h100.slice", 2).await.id;
    assert_eq!(charge::sweep(&house.ctx).await.expect("it looks"), 0, "no minute is over");
    house.charge_after(10).await;
    let (micros, charged) = house.charged(id).await;
    assert!(micros > 9 * MINUTE && micros <= 11 * MINUTE, "{micros}");
    assert_eq!(charged, price(micros));
    assert_eq!(house.lines().await, [("usage".to_owned(), -charged)]);
    assert_eq!(house.balance().await, testkit::FUNDS_MINOR - charged);
    for _ in 0..3 {
        assert_eq!(charge::sweep(&house.ctx).await.expect("it looks"), 0, "nothing is due twice");
    }
    house.charge_after(1).await;
    let (later, _) = house.charged(id).await;
    assert_eq!(later, micros + MINUTE);
    house.close().await;
}

#[tokio::test]
async fn a_release_stops_the_money_at_the_moment_it_is_asked_for() {
    let house = house().await;
    let id = house.active("h100.slice", 2).await.id;
    house.charge_after(5).await;
    house.release(id).await.expect("asked");
    let lasted = house.lasted(id).await;
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    house.charge_after(30).await;
    assert_eq!(
        house.charged(id).await,
        (lasted, price(lasted)),
        "to the microsecond, and no further"
    );
    let total: i64 = house.lines().await.iter().map(|(_, amount)| amount).sum();
    assert_eq!(total, -price(lasted));
    house.close().await;
}

#[tokio::test]
async fn a_release_that_fails_and_is_tried_again_costs_nothing_more() {
    let house = house().await;
    let id = house.active("h100.slice", 2).await.id;
    house.first_node().will(&[Act::LeaveResidue; 5]);
    house.charge_after(3).await;
    house.release(id).await.expect("asked");
    for _ in 0..10 {
        house.pass(Duration::from_secs(60)).await;
    }
    assert_eq!(house.status(id).await, Status::ReleaseFailed);
    house.charge_after(60).await;
    let stopped = house.charged(id).await;
    assert_eq!(stopped.1, price(stopped.0));
    house.release(id).await.expect("asked again");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    house.charge_after(60).await;
    assert_eq!(house.charged(id).await, stopped);
    house.close().await;
}

#[tokio::test]
async fn what_was_called_off_or_failed_before_it_was_active_costs_nothing() {
    let house = house().await;
    house.first_node().will(&[Act::Fail(FailureReason::SshNotReady)]);
    let failed = house.create("h100.slice", 2).await.expect("it fits").id;
    house.settle().await;
    assert_eq!(house.status(failed).await, Status::Failed);
    let called_off = house.create("h100.slice", 2).await.expect("it fits").id;
    house.release(called_off).await.expect("called off");
    house.settle().await;
    assert_eq!(house.status(called_off).await, Status::Released);
    house.charge_after(10).await;
    assert_eq!(house.lines().await, []);
    house.close().await;
}

#[tokio::test]
async fn a_restart_is_charged_and_a_failed_one_is_not_until_it_is_active_again() {
    let house = house().await;
    let id = house.active("h100.slice", 2).await.id;
    house.charge_after(2).await;
    house.restart(id).await.expect("asked");
    house.charge_after(2).await;
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Active);
    let (restarted, _) = house.charged(id).await;
    assert!(restarted > 3 * MINUTE, "the restart was charged: {restarted}");
    house.first_node().will(&[Act::Fail(FailureReason::RebootFailed)]);
    house.restart(id).await.expect("asked");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::RestartFailed);
    house.charge_after(30).await;
    let (stopped, _) = house.charged(id).await;
    assert!(stopped < 6 * MINUTE, "it stands still and costs nothing: {stopped}");
    house.restart(id).await.expect("asked");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Active);
    house.charge_after(4).await;
    let (again, charged) = house.charged(id).await;
    assert!(again > stopped + 3 * MINUTE && again <= stopped + 5 * MINUTE);
    assert!(
        charged <= price(again) && charged >= price(again) - 1,
        "two records, rounded down each"
    );
    house.close().await;
}

#[tokio::test]
async fn minutes_in_which_the_machine_could_not_be_reached_are_given_back() {
    let house = house().await;
    let id = house.active("h100.slice", 2).await.id;
    let node = house.first_node();
    house.beat(node).await;
    house.charge_after(3).await;
    let before = house.charged(id).await;
    house.beat(node).await;
    house.database.age(10).await;
    house.pass(Duration::ZERO).await;
    assert_eq!(house.outages().await, 1);
    house.beat(node).await;
    charge::sweep(&house.ctx).await.expect("given back");
    house.charge_after(5).await;
    let after = house.charged(id).await;
    assert!(after.0 < before.0 + 7 * MINUTE, "{before:?} {after:?}");
    let lines = house.lines().await;
    let given: i64 =
        lines.iter().filter(|(kind, _)| kind == "unreachable").map(|line| line.1).sum();
    assert!(given >= price(9 * MINUTE), "{lines:?}");
    assert_eq!(lines.iter().map(|line| line.1).sum::<i64>(), -after.1);
    for _ in 0..3 {
        assert_eq!(charge::sweep(&house.ctx).await.expect("it looks"), 0, "given back once");
    }
    house.settle().await;
    house.close().await;
}

/// A clock that was set back ends a record before the moment up to which it was charged.
#[tokio::test]
async fn what_was_charged_behind_the_end_is_given_back() {
    let house = house().await;
    let id = house.active("h100.slice", 2).await.id;
    house.charge_after(10).await;
    house.release(id).await.expect("asked");
    house.set_clock_back_before_the_release_of(id).await;
    charge::sweep(&house.ctx).await.expect("it is settled");
    let lasted = house.metered(id).await;
    let lines = house.lines().await;
    assert_eq!(lines.iter().map(|line| line.1).sum::<i64>(), -price(lasted), "{lines:?}");
    assert_eq!(lines.last().map(|line| line.0.as_str()), Some("overrun"));
    assert_eq!(charge::sweep(&house.ctx).await.expect("it looks"), 0);
    house.settle().await;
    house.is_sound().await;
    house.database.remove().await;
}
