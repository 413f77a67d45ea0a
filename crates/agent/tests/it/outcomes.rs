//! How tasks end: what the simulated machine checks, and where each fault lands.

use std::time::Duration;

use agent::faults::{Fault, FaultKind};
use jiff::SignedDuration;
use lifecycle::Code as _;
use wire::Coded;
use wire::node::{CleanupProof, FailureReason, Phase, PhaseStatus, TaskKind, TaskOutcome, Work};

use crate::crashes::{prepared, succeeded};
use crate::fences::reason;
use crate::gateway::Log;
use crate::house::{House, Order, farewell, id, parameters, provision, release, user};

async fn done(house: &House, order: &Order) -> TaskOutcome {
    house.push(order);
    house.gateway.outcome(order.task).await
}

fn proof(outcome: &TaskOutcome) -> CleanupProof {
    match outcome {
        TaskOutcome::Cleaned { proof } => *proof,
        TaskOutcome::Provisioned { .. }
        | TaskOutcome::Restarted { .. }
        | TaskOutcome::Failed { .. } => panic!("{outcome:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_slice_comes_and_goes() {
    let house = House::new();
    let agent = house.start();
    let come = Order::new(id(), 1, provision(&[2, 3]));
    let TaskOutcome::Provisioned { access } = done(&house, &come).await else {
        panic!("it is prepared")
    };
    assert_eq!((access.host.as_str(), access.port), ("localhost", 2202));
    let there = |log: &Log| log.heartbeats.last().is_some_and(|last| !last.guests.is_empty());
    let log = house.gateway.until("the guest in a heartbeat", there).await;
    let guest = log.heartbeats.last().expect("there is one").guests[0].clone();
    assert_eq!((guest.allocation_id, guest.slots), (come.allocation, vec![2, 3]));
    let go = Order::new(come.allocation, 2, release(&[2, 3]));
    let proof = proof(&done(&house, &go).await);
    assert!(proof.is_complete() && !proof.hard_stopped);
    assert_eq!((house.guests(), house.residue()), (0, 0));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_whole_machine_comes_and_goes_and_excludes_slices() {
    let house = House::new();
    let agent = house.start();
    let come = Order::new(id(), 1, user());
    assert!(succeeded(&done(&house, &come).await));
    let slice = done(&house, &Order::new(id(), 1, provision(&[0]))).await;
    assert_eq!(reason(&slice), Some(FailureReason::LeaseConflict));
    assert!(succeeded(&done(&house, &Order::new(come.allocation, 2, farewell())).await));
    assert!(succeeded(&done(&house, &Order::new(id(), 1, provision(&[0]))).await));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn allocations_are_worked_on_side_by_side() {
    let mut house = House::new();
    house.machine.speed = 1.0;
    let agent = house.start();
    let orders: Vec<Order> = (0..8).map(|slot| Order::new(id(), 1, provision(&[slot]))).collect();
    let begun = house.clock.now();
    for order in &orders {
        house.push(order);
    }
    for order in &orders {
        assert!(succeeded(&house.gateway.outcome(order.task).await));
    }
    // One takes 180 seconds, give or take a fifth.
    let took = house.clock.now().duration_since(begun);
    assert!(took > SignedDuration::from_secs(144) && took < SignedDuration::from_secs(220));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_must_be_at_hand_and_be_the_right_one() {
    let house = House::new();
    let agent = house.start();
    let other = parameters(&[0]);
    let unknown = wire::node::Provision { image: "windows".to_owned(), ..other.clone() };
    let order = Order::new(id(), 1, Work::SliceProvision(unknown));
    assert_eq!(reason(&done(&house, &order).await), Some(FailureReason::ImageUnavailable));
    let forged = wire::node::Provision { image_sha256: "00".repeat(32), ..other };
    let order = Order::new(
        id(),
        1,
        Work::SliceProvision(wire::node::Provision { slots: crate::house::slots(&[1]), ..forged }),
    );
    assert_eq!(reason(&done(&house, &order).await), Some(FailureReason::ImageChecksumMismatch));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_must_be_empty_and_clean() {
    let house = House::new();
    let agent = house.start();
    house.gateway.until("a start", |log| !log.heartbeats.is_empty()).await;
    // Somebody nobody has a lease for: left by a hand, or by a journal that was lost.
    let stranger = id();
    let guests = house.path().join("world/guests");
    let guest =
        serde_json::json!({"allocation": stranger, "slots": [4], "image": "x", "stage": []});
    std::fs::write(guests.join(format!("{stranger}.json")), guest.to_string()).expect("written");
    let occupied = done(&house, &Order::new(id(), 1, provision(&[4]))).await;
    assert_eq!(reason(&occupied), Some(FailureReason::LeaseConflict));
    let residue = house.path().join("world/residue/5");
    std::fs::write(residue, stranger.to_string()).expect("written");
    let dirty = done(&house, &Order::new(id(), 1, provision(&[5]))).await;
    assert_eq!(reason(&dirty), Some(FailureReason::DeviceDirty));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_of_an_allocation_nobody_heard_of_is_a_complete_proof() {
    let mut house = House::new();
    // Looking takes no time where there is nothing.
    house.machine.speed = 1.0;
    let agent = house.start();
    house.gateway.until("a start", |log| !log.heartbeats.is_empty()).await;
    let begun = house.clock.now();
    for work in [release(&[0, 1]), farewell()] {
        let order = Order::new(id(), 1, work);
        assert!(proof(&done(&house, &order).await).is_complete());
    }
    assert!(house.clock.now().duration_since(begun) < SignedDuration::from_secs(1));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_phase_fails_the_task_with_its_reason_and_leaves_what_was_built() {
    for kind in TaskKind::ALL.iter().copied() {
        for phase in agent::tasks::phases(kind) {
            let house = House::new();
            let (_, order) = prepared(&house, kind).await;
            house.faults(&[Fault::new(FaultKind::Fail).at(*phase).of(kind).times(1)]);
            let agent = house.start_supervised();
            let outcome = done(&house, &order).await;
            assert_eq!(reason(&outcome), Some(expected(*phase)), "{kind} {phase}");
            let TaskOutcome::Failed { phase: failed, .. } = outcome else { panic!("it failed") };
            assert_eq!(failed, Some(Coded(*phase)));
            let log = house.gateway.log();
            let last = log.reports(order.task, 1).pop().expect("there are reports");
            assert_eq!((last.phase.0, last.status.0), (*phase, PhaseStatus::Failed));
            let clean = match kind {
                TaskKind::SliceProvision | TaskKind::SliceRestart | TaskKind::SliceRelease => {
                    release(&[0, 1])
                }
                TaskKind::UserProvision | TaskKind::NodeReboot | TaskKind::UserDeprovision => {
                    farewell()
                }
            };
            let order = Order::new(order.allocation, 3, clean);
            assert!(proof(&done(&house, &order).await).is_complete(), "{kind} {phase}");
            assert_eq!((house.guests(), house.residue()), (0, 0), "{kind} {phase}");
            assert_eq!(agent::faults::read(house.path()).expect("a list")[0].times, Some(0));
            agent.stopped().await;
        }
    }
}

fn expected(phase: Phase) -> FailureReason {
    match phase.code() {
        "image_prepared" => FailureReason::ImageUnavailable,
        "domain_defined" => FailureReason::VfioUnavailable,
        "ssh_reachable" => FailureReason::SshNotReady,
        "driver_probe" => FailureReason::GuestNotReady,
        "wiped" => FailureReason::CleanupIncomplete,
        "rebooted" => FailureReason::RebootFailed,
        "mounts_reconciled" => FailureReason::MountsNotReady,
        "runtimes_reconciled" => FailureReason::RuntimesNotReady,
        _ => FailureReason::DriverFailed,
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_may_name_its_reason_and_its_chance() {
    let house = House::new();
    let certain = Fault { probability: Some(1.0), ..Fault::new(FaultKind::Fail) };
    let never = Fault { probability: Some(0.0), ..Fault::new(FaultKind::Hang) };
    let reasoned = Fault { reason: Some(Coded(FailureReason::VfioUnavailable)), ..certain };
    house.faults(&[never, reasoned.at(Phase::VmStarted)]);
    let agent = house.start();
    let outcome = done(&house, &Order::new(id(), 1, provision(&[0]))).await;
    assert_eq!(reason(&outcome), Some(FailureReason::VfioUnavailable));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn residue_stays_until_a_later_clean_up_succeeds_and_keeps_others_away() {
    let house = House::new();
    house.faults(&[Fault::new(FaultKind::Residue).times(1)]);
    let agent = house.start();
    let come = Order::new(id(), 1, provision(&[0]));
    assert!(succeeded(&done(&house, &come).await));
    let first = proof(&done(&house, &Order::new(come.allocation, 2, release(&[0]))).await);
    assert_eq!((first.released, first.wiped, first.leases_released), (true, false, false));
    assert_eq!((house.guests(), house.residue()), (0, 1));
    let other = done(&house, &Order::new(id(), 1, provision(&[0]))).await;
    assert_eq!(reason(&other), Some(FailureReason::LeaseConflict));
    // The retry may come at the same fence: the allocation has not moved on.
    let second = proof(&done(&house, &Order::new(come.allocation, 2, release(&[0]))).await);
    assert!(second.is_complete());
    assert_eq!(house.residue(), 0);
    assert!(succeeded(&done(&house, &Order::new(id(), 1, provision(&[0]))).await));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_hard_stop_is_told_and_complete_even_if_the_agent_dies_after_it() {
    let house = House::new();
    let crash = Fault::new(FaultKind::Crash).at(Phase::Wiped).times(1);
    house.faults(&[Fault::new(FaultKind::HardStop).times(1), crash]);
    let agent = house.start();
    let come = Order::new(id(), 1, provision(&[0]));
    assert!(succeeded(&done(&house, &come).await));
    let go = Order::new(come.allocation, 2, release(&[0]));
    house.push(&go);
    agent.crashed().await;
    let agent = house.start();
    let proof = proof(&house.gateway.outcome(go.task).await);
    assert!(proof.is_complete() && proof.hard_stopped);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_phase_takes_ten_times_as_long() {
    let took = async |faults: &[Fault]| {
        let mut house = House::new();
        house.machine.speed = 1.0;
        house.faults(faults);
        let agent = house.start();
        let order = Order { allocation: uuid::Uuid::from_u128(1), ..Order::new(id(), 1, user()) };
        let begun = house.clock.now();
        assert!(succeeded(&done(&house, &order).await));
        agent.stopped().await;
        house.clock.now().duration_since(begun)
    };
    let usual = took(&[]).await;
    let slow = took(&[Fault::new(FaultKind::Slow)]).await;
    let ratio = slow.as_secs_f64() / usual.as_secs_f64();
    assert!((9.9..10.1).contains(&ratio), "{ratio}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_network_delays_what_is_told_but_not_what_is_done() {
    let house = House::new();
    let loss = Fault { seconds: Some(120), ..Fault::new(FaultKind::NetworkLoss).times(1) };
    house.faults(&[loss.at(Phase::VmStarted)]);
    let agent = house.start();
    let order = Order::new(id(), 1, provision(&[0]));
    house.push(&order);
    let begun = house.clock.now();
    assert!(succeeded(&house.gateway.outcome(order.task).await));
    let result = house.clock.now().duration_since(begun);
    assert!(result >= SignedDuration::from_secs(120), "{result}");
    let log = house.gateway.log();
    let ended = log.reports(order.task, 1).pop().expect("there are reports").at;
    assert!(ended.duration_since(begun) < SignedDuration::from_secs(1));
    // And tasks come again.
    assert!(succeeded(&done(&house, &Order::new(id(), 1, provision(&[1]))).await));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn phases_are_streamed_while_the_work_goes_on_and_the_rest_comes_with_the_result() {
    let mut house = House::new();
    house.machine.speed = 1.0;
    let agent = house.start();
    let order = Order::new(id(), 1, provision(&[0]));
    assert!(succeeded(&done(&house, &order).await));
    let log = house.gateway.log();
    let streamed: usize = log.batches.iter().map(|(_, batch)| batch.phases.len()).sum();
    let result = log.results_of(order.task)[0];
    assert_eq!((streamed, result.phases.len()), (11, 1));
    assert!(log.waits >= 2, "the next poll does not wait for the work");
    agent.stopped().await;

    // Work that takes no time says everything at once.
    let house = House::new();
    let agent = house.start();
    let order = Order::new(id(), 1, provision(&[0]));
    assert!(succeeded(&done(&house, &order).await));
    let log = house.gateway.log();
    assert!(log.batches.is_empty());
    assert_eq!(log.results_of(order.task)[0].phases.len(), 12);
    tokio::time::advance(Duration::from_secs(1)).await;
    agent.stopped().await;
}
