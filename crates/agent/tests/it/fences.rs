//! Newer work wins over older, whatever the order in which they come; the same task is done once.

use agent::faults::{Fault, FaultKind};
use wire::node::{FailureReason, Phase, PhaseStatus, TaskOutcome};

use crate::crashes::succeeded;
use crate::gateway::{Log, Mood};
use crate::house::{House, Order, id, provision, release};

pub(crate) fn reason(outcome: &TaskOutcome) -> Option<FailureReason> {
    match outcome {
        TaskOutcome::Failed { reason, .. } => Some(reason.0),
        TaskOutcome::Provisioned { .. }
        | TaskOutcome::Restarted { .. }
        | TaskOutcome::Cleaned { .. } => None,
    }
}

#[tokio::test(start_paused = true)]
async fn newer_work_stops_older_and_removes_what_it_had_built() {
    let house = House::new();
    house.faults(&[Fault::new(FaultKind::Hang).at(Phase::SshReachable)]);
    let older = Order::new(id(), 3, provision(&[0, 1]));
    let newer = Order::new(older.allocation, 5, release(&[0, 1]));
    let agent = house.start();
    house.push(&older);
    let hangs = |log: &Log| log.heard(older.task, Phase::SshReachable, PhaseStatus::Running);
    house.gateway.until("the phase that hangs", hangs).await;
    assert_eq!((house.guests(), house.residue()), (1, 2));
    house.push(&newer);
    assert!(succeeded(&house.gateway.outcome(newer.task).await));
    let interrupted = house.gateway.outcome(older.task).await;
    assert_eq!(reason(&interrupted), Some(FailureReason::Interrupted));
    assert_eq!((house.guests(), house.residue()), (0, 0));
    agent.stopped().await;

    // The older one does not come back, in this run or in another.
    let agent = house.start();
    house.push(&older.dispatched(2));
    let again = |log: &Log| log.results_of(older.task).len() == 2;
    let log = house.gateway.until("an answer to the older", again).await;
    assert_eq!(log.outcome(older.task), Some(&interrupted));
    assert_eq!(house.guests(), 0);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn work_with_an_older_fence_is_refused_also_after_a_restart() {
    let house = House::new();
    let newer = Order::new(id(), 9, release(&[0]));
    let agent = house.start();
    house.push(&newer);
    assert!(succeeded(&house.gateway.outcome(newer.task).await));
    is_refused_as_stale(&house, &Order::new(newer.allocation, 8, provision(&[0]))).await;
    agent.stopped().await;

    let agent = house.start();
    is_refused_as_stale(&house, &Order::new(newer.allocation, 8, provision(&[0]))).await;
    let counted = |log: &Log| log.heartbeats.last().is_some_and(|heartbeat| heartbeat.refused == 1);
    house.gateway.until("the count of refusals", counted).await;
    agent.stopped().await;
}

async fn is_refused_as_stale(house: &House, older: &Order) {
    house.push(older);
    let outcome = house.gateway.outcome(older.task).await;
    assert_eq!(reason(&outcome), Some(FailureReason::StaleFence), "{outcome:?}");
    assert!(house.effects(older.allocation).is_empty());
    assert_eq!(house.guests(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_behind_a_newer_one_is_refused() {
    let house = House::new();
    house.faults(&[Fault::new(FaultKind::Hang).at(Phase::SshReachable)]);
    let running = Order::new(id(), 3, provision(&[0]));
    let newest = Order::new(running.allocation, 7, release(&[0]));
    let between = Order::new(running.allocation, 5, provision(&[0]));
    let agent = house.start();
    house.push(&running);
    let hangs = |log: &Log| log.heard(running.task, Phase::SshReachable, PhaseStatus::Running);
    house.gateway.until("the phase that hangs", hangs).await;
    house.push(&newest);
    house.push(&between);
    let refused = house.gateway.outcome(between.task).await;
    assert_eq!(reason(&refused), Some(FailureReason::StaleFence));
    assert!(succeeded(&house.gateway.outcome(newest.task).await));
    assert_eq!(house.guests(), 0);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_finished_task_that_comes_again_gets_its_recorded_outcome_under_the_new_dispatch() {
    let house = House::new();
    let order = Order::new(id(), 1, provision(&[0]));
    let agent = house.start();
    house.push(&order);
    let first = house.gateway.outcome(order.task).await;
    let effects = house.effects(order.allocation);
    house.push(&order.dispatched(2));
    let again = |log: &Log| log.results_of(order.task).len() == 2;
    let log = house.gateway.until("the outcome again", again).await;
    let results = log.results_of(order.task);
    assert_eq!((results[1].dispatch, &results[1].outcome), (2, &first));
    assert_eq!(house.effects(order.allocation), effects);
    agent.stopped().await;

    // The very same envelope, replayed after a restart, does no more.
    let agent = house.start();
    house.push(&order);
    let thrice = |log: &Log| log.results_of(order.task).len() == 3;
    let log = house.gateway.until("the outcome once more", thrice).await;
    assert_eq!(log.outcome(order.task), Some(&first));
    assert_eq!(house.effects(order.allocation), effects);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_running_task_that_comes_again_goes_on_under_the_new_dispatch() {
    let mut house = House::new();
    house.machine.speed = 1.0;
    let order = Order::new(id(), 1, provision(&[0]));
    let agent = house.start();
    house.push(&order);
    let starting = |log: &Log| log.heard(order.task, Phase::VmStarted, PhaseStatus::Running);
    house.gateway.until("the machine starting", starting).await;
    house.push(&order.dispatched(2));
    assert!(succeeded(&house.gateway.outcome(order.task).await));
    let log = house.gateway.log();
    let results = log.results_of(order.task);
    assert_eq!(results.iter().map(|result| result.dispatch).collect::<Vec<_>>(), [2]);
    let seqs: Vec<i32> = log.reports(order.task, 2).iter().map(|report| report.seq).collect();
    assert_eq!(seqs, (1..=12).collect::<Vec<_>>());
    assert_eq!(house.effects(order.allocation).len(), 6);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_copy_of_a_running_task_changes_nothing_about_it() {
    let mut house = House::new();
    house.machine.speed = 1.0;
    let order = Order::new(id(), 1, provision(&[0]));
    let agent = house.start();
    house.push(&order);
    let starting = |log: &Log| log.heard(order.task, Phase::VmStarted, PhaseStatus::Running);
    house.gateway.until("the machine starting", starting).await;
    let mut forged = house.sign(&order.dispatched(2));
    forged.signature = house.sign(&Order::new(id(), 1, provision(&[0]))).signature;
    house.gateway.push(forged);
    assert!(succeeded(&house.gateway.outcome(order.task).await));
    let log = house.gateway.log();
    let results = log.results_of(order.task);
    assert_eq!(results.iter().map(|result| result.dispatch).collect::<Vec<_>>(), [1]);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_copy_of_a_finished_task_gets_its_recorded_outcome() {
    let house = House::new();
    let order = Order::new(id(), 1, provision(&[0]));
    let agent = house.start();
    house.push(&order);
    let first = house.gateway.outcome(order.task).await;
    house.gateway.heartbeats(1).await;
    let mut forged = house.sign(&order.dispatched(2));
    forged.signature = String::new();
    house.gateway.push(forged);
    let again = |log: &Log| log.results_of(order.task).len() == 2;
    let log = house.gateway.until("an answer", again).await;
    assert_eq!(log.outcome(order.task), Some(&first));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_dispatch_that_comes_while_the_result_is_on_its_way_is_told_too() {
    let house = House::new();
    house.gateway.set_mood(Mood::Holding);
    let order = Order::new(id(), 1, provision(&[0]));
    let agent = house.start();
    house.push(&order);
    house.gateway.outcome(order.task).await;
    house.push(&order.dispatched(2));
    house.gateway.heartbeats(1).await;
    house.gateway.let_go();
    let again = |log: &Log| log.results_of(order.task).len() == 2;
    let log = house.gateway.until("the new dispatch", again).await;
    assert_eq!(log.results_of(order.task)[1].dispatch, 2);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_dispatch_is_remembered_through_a_death() {
    let house = House::new();
    house.faults(&[Fault::new(FaultKind::Hang).at(Phase::SshReachable).times(1)]);
    let order = Order::new(id(), 1, provision(&[0]));
    let agent = house.start();
    house.push(&order);
    let hangs = |log: &Log| log.heard(order.task, Phase::SshReachable, PhaseStatus::Running);
    house.gateway.until("the phase that hangs", hangs).await;
    house.push(&order.dispatched(2));
    house.gateway.heartbeats(1).await;
    agent.killed().await;
    let agent = house.start();
    assert!(succeeded(&house.gateway.outcome(order.task).await));
    assert_eq!(house.gateway.log().results_of(order.task)[0].dispatch, 2);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn work_that_waits_for_room_until_it_has_expired_is_not_begun() {
    let mut house = House::new();
    house.machine.gpus = agent::SimulatedConfig::with_gpus(32, 2, "H100").gpus;
    house.faults(&[Fault::new(FaultKind::Hang).at(Phase::SshReachable)]);
    let agent = house.start();
    let hanging: Vec<Order> = (0..16).map(|slot| Order::new(id(), 1, provision(&[slot]))).collect();
    for order in &hanging {
        house.push(order);
    }
    let hangs = |log: &Log| {
        hanging.iter().all(|order| log.heard(order.task, Phase::SshReachable, PhaseStatus::Running))
    };
    house.gateway.until("sixteen that hang", hangs).await;
    let waiting = Order::new(id(), 1, provision(&[16]));
    house.push(&waiting);
    // More than a quarter of an hour.
    let log = house.gateway.heartbeats(110).await;
    assert!(log.heartbeats.last().is_some_and(|heartbeat| heartbeat.running.len() == 17));
    house.push(&Order::new(hanging[0].allocation, 2, release(&[0])));
    let outcome = house.gateway.outcome(waiting.task).await;
    assert_eq!(reason(&outcome), Some(FailureReason::TaskExpired));
    assert!(house.effects(waiting.allocation).is_empty());
    agent.stopped().await;
}
