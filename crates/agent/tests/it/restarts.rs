//! Restarts: a guest gets another boot and keeps everything else; a machine takes its agent with it, and the next one
//! proves by the boot that it really went down.

use std::time::Duration;

use agent::drivers::simulated;
use agent::faults::{Fault, FaultKind};
use jiff::SignedDuration;
use uuid::Uuid;
use wire::Coded;
use wire::node::{FailureReason, Phase, PhaseStatus, TaskOutcome};

use crate::crashes::succeeded;
use crate::fences::reason;
use crate::gateway::Log;
use crate::house::{House, Order, farewell, id, provision, reboot, restart, user};

fn boots(outcome: &TaskOutcome) -> (Uuid, Uuid) {
    match outcome {
        TaskOutcome::Restarted { boot_id_before, boot_id } => (*boot_id_before, *boot_id),
        TaskOutcome::Provisioned { .. }
        | TaskOutcome::Cleaned { .. }
        | TaskOutcome::Failed { .. } => panic!("{outcome:?}"),
    }
}

fn failed_in(outcome: &TaskOutcome) -> Option<Phase> {
    match outcome {
        TaskOutcome::Failed { phase, .. } => phase.map(|phase| phase.0),
        TaskOutcome::Provisioned { .. }
        | TaskOutcome::Cleaned { .. }
        | TaskOutcome::Restarted { .. } => None,
    }
}

async fn done(house: &House, order: &Order) -> TaskOutcome {
    house.push(order);
    house.gateway.outcome(order.task).await
}

/// A whole machine that somebody has.
async fn taken(house: &House) -> Uuid {
    let come = Order::new(id(), 1, user());
    let agent = house.start();
    assert!(succeeded(&done(house, &come).await));
    agent.stopped().await;
    come.allocation
}

fn boot_id(log: &Log) -> Option<Uuid> {
    log.heartbeats.last().map(|last| last.boot_id)
}

#[tokio::test(start_paused = true)]
async fn a_guest_gets_a_new_boot_and_keeps_everything_else() {
    let house = House::new();
    let agent = house.start();
    let come = Order::new(id(), 1, provision(&[2, 3]));
    assert!(succeeded(&done(&house, &come).await));
    let mut before = house.guest(come.allocation);
    let (_, first) = boots(&done(&house, &Order::new(come.allocation, 2, restart(&[2, 3]))).await);
    let (again, second) =
        boots(&done(&house, &Order::new(come.allocation, 3, restart(&[2, 3]))).await);
    assert_eq!(first, again);
    assert_ne!(first, second);
    let mut after = house.guest(come.allocation);
    assert_eq!(after["boot_id"], second.to_string());
    for what in ["boot_id", "restart"] {
        before[what].take();
        after[what].take();
    }
    assert_eq!(before, after, "slots, image and keys are what they were");
    assert_eq!(after["ssh_keys"].as_array().map(Vec::len), Some(1));
    // The machine itself has not rebooted.
    let log = house.gateway.heartbeats(1).await;
    let same = log.heartbeats.iter().all(|one| Some(one.boot_id) == boot_id(&log));
    assert!(same && house.residue() == 2);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_not_restarted() {
    for (work, first) in [(restart(&[0]), Phase::ShutDown), (reboot(), Phase::Acknowledged)] {
        let house = House::new();
        let agent = house.start();
        let outcome = done(&house, &Order::new(id(), 1, work.clone())).await;
        assert_eq!(reason(&outcome), Some(FailureReason::GuestMissing), "{work}");
        assert_eq!(failed_in(&outcome), Some(first));
        agent.stopped().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reboot_is_acknowledged_before_the_machine_goes_and_proven_by_its_new_boot() {
    let mut house = House::new();
    let allocation = taken(&house).await;
    house.machine.speed = 1.0;
    let order = Order::new(allocation, 2, reboot());
    let agent = house.start();
    house.push(&order);
    agent.went_down().await;
    let log = house.gateway.log();
    let before = boot_id(&log).expect("it was heard of");
    assert!(log.heard(order.task, Phase::Acknowledged, PhaseStatus::Succeeded));
    assert!(log.heard(order.task, Phase::Rebooted, PhaseStatus::Running));
    assert!(log.outcome(order.task).is_none());
    let heard = log.heartbeats.len();

    let agent = house.start();
    let outcome = house.gateway.outcome(order.task).await;
    agent.stopped().await;
    let log = house.gateway.log();
    let after = log.heartbeats[heard].boot_id;
    assert_eq!(boots(&outcome), (before, after));
    let spans = log.reports(order.task, 1);
    let at = |status| {
        let is = |report: &&wire::node::PhaseReport| {
            (report.phase, report.status) == (Coded(Phase::Rebooted), Coded(status))
        };
        spans.iter().find(is).expect("it was told").at
    };
    // The phase lasts as long as the machine was away, and not only as long as the second agent looked.
    let away = at(PhaseStatus::Succeeded).duration_since(at(PhaseStatus::Running));
    assert!(away > SignedDuration::from_secs(140), "{away}");
    assert_eq!(house.guests(), 1, "accounts survive");
    // The result says the same to whoever asks again.
    let agent = house.start();
    house.push(&order.dispatched(2));
    let again = |log: &Log| log.results_of(order.task).len() == 2;
    let log = house.gateway.until("the outcome again", again).await;
    assert_eq!(log.outcome(order.task), Some(&outcome));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_cut_off_reboots_all_the_same() {
    let house = House::new();
    let allocation = taken(&house).await;
    let loss = Fault { seconds: Some(3600), ..Fault::new(FaultKind::NetworkLoss).times(1) };
    house.faults(&[loss.at(Phase::Acknowledged)]);
    let order = Order::new(allocation, 2, reboot());
    let agent = house.start();
    house.push(&order);
    agent.went_down().await;
    let log = house.gateway.log();
    assert!(!log.heard(order.task, Phase::Acknowledged, PhaseStatus::Succeeded));
    let agent = house.start();
    assert!(succeeded(&house.gateway.outcome(order.task).await));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_comes_back_as_it_was_is_told_again_but_not_for_ever() {
    for (times, ends_well) in [(Some(2), true), (None, false)] {
        let house = House::new();
        let allocation = taken(&house).await;
        let before = boot_id(&house.gateway.log()).expect("it was heard of");
        house.faults(&[Fault { times, ..Fault::new(FaultKind::SameBoot) }]);
        let order = Order::new(allocation, 2, reboot());
        house.push(&order);
        for _ in 0..agent::tasks::REBOOTS_MAX {
            house.start().went_down().await;
        }
        let agent = house.start();
        let outcome = house.gateway.outcome(order.task).await;
        if ends_well {
            assert_eq!(boots(&outcome).0, before);
        } else {
            assert_eq!(reason(&outcome), Some(FailureReason::RebootFailed));
            assert_eq!(failed_in(&outcome), Some(Phase::Rebooted));
            assert_eq!(boot_id(&house.gateway.heartbeats(1).await), Some(before));
        }
        // Either way the machine does what it is told next.
        assert!(succeeded(&done(&house, &Order::new(allocation, 3, farewell())).await));
        agent.stopped().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_does_not_come_back_is_silent_until_somebody_switches_it_on() {
    let house = House::new();
    let allocation = taken(&house).await;
    house.faults(&[Fault::new(FaultKind::NoReturn).times(1)]);
    let order = Order::new(allocation, 2, reboot());
    house.push(&order);
    house.start().went_down().await;
    let before = house.gateway.log();
    let heard = before.heartbeats.len();
    let agent = house.start_supervised();
    let silence = house.gateway.until("a heartbeat", |log| log.heartbeats.len() > heard);
    let silence = tokio::time::timeout(Duration::from_secs(3600), silence).await;
    assert!(silence.is_err(), "a machine that is down says nothing");
    assert!(simulated::power_on(house.path()).expect("it is there"));
    assert!(!simulated::power_on(house.path()).expect("it is there"), "it is on");
    let outcome = house.gateway.outcome(order.task).await;
    assert_eq!(Some(boots(&outcome).0), boot_id(&before));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn newer_work_ends_a_restart_wherever_it_is() {
    for phase in agent::tasks::phases(wire::node::TaskKind::NodeReboot) {
        let house = House::new();
        let allocation = taken(&house).await;
        house.faults(&[Fault::new(FaultKind::Hang).at(*phase)]);
        let order = Order::new(allocation, 2, reboot());
        let agent = house.start_supervised();
        house.push(&order);
        let hangs = |log: &Log| log.heard(order.task, *phase, PhaseStatus::Running);
        house.gateway.until("the phase that hangs", hangs).await;
        house.faults(&[]);
        assert!(succeeded(&done(&house, &Order::new(allocation, 3, farewell())).await), "{phase}");
        let outcome = house.gateway.outcome(order.task).await;
        assert_eq!(reason(&outcome), Some(FailureReason::Interrupted), "{phase}");
        assert_eq!((house.guests(), house.residue()), (0, 0));
        agent.stopped().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_failed_half_way_is_done_again_by_the_next() {
    for phase in agent::tasks::phases(wire::node::TaskKind::SliceRestart) {
        let house = House::new();
        let agent = house.start();
        let come = Order::new(id(), 1, provision(&[0]));
        assert!(succeeded(&done(&house, &come).await));
        let fail = Fault::new(FaultKind::Fail).at(*phase).times(1);
        house.faults(&[fail]);
        let first = done(&house, &Order::new(come.allocation, 2, restart(&[0]))).await;
        assert_eq!(failed_in(&first), Some(*phase));
        let between = house.guest(come.allocation)["boot_id"].clone();
        let second = done(&house, &Order::new(come.allocation, 3, restart(&[0]))).await;
        assert_eq!(boots(&second).0.to_string(), between.as_str().unwrap_or_default(), "{phase}");
        agent.stopped().await;
    }
}
