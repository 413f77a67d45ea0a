//! Killed anywhere and run again: nothing is forgotten, nothing is done twice, one result is told.

use agent::faults::{Fault, FaultKind};
use lifecycle::Code as _;
use uuid::Uuid;
use wire::node::{Phase, PhaseStatus, TaskKind, TaskOutcome, Work};

use crate::gateway::Mood;
use crate::house::{House, Order, farewell, id, provision, reboot, release, restart, user};

/// The work of a kind, and what must have been done before it.
pub(crate) fn work(kind: TaskKind) -> (Option<Work>, Work) {
    match kind {
        TaskKind::SliceProvision => (None, provision(&[0, 1])),
        TaskKind::SliceRestart => (Some(provision(&[0, 1])), restart(&[0, 1])),
        TaskKind::SliceRelease => (Some(provision(&[0, 1])), release(&[0, 1])),
        TaskKind::UserProvision => (None, user()),
        TaskKind::UserDeprovision => (Some(user()), farewell()),
        TaskKind::NodeReboot => (Some(user()), reboot()),
    }
}

/// The effects a kind has on the machine, in order. Returning leases has none: the journal is where they are.
pub(crate) fn effects(kind: TaskKind) -> Vec<Phase> {
    let phases = agent::tasks::phases(kind).iter().copied();
    phases.filter(|phase| *phase != Phase::LeasesReleased).collect()
}

pub(crate) fn succeeded(outcome: &TaskOutcome) -> bool {
    match outcome {
        TaskOutcome::Provisioned { .. } | TaskOutcome::Restarted { .. } => true,
        TaskOutcome::Cleaned { proof } => proof.is_complete(),
        TaskOutcome::Failed { .. } => false,
    }
}

pub(crate) async fn prepared(house: &House, kind: TaskKind) -> (Uuid, Order) {
    let allocation = id();
    let (before, work) = work(kind);
    if let Some(before) = before {
        let order = Order::new(allocation, 1, before);
        let agent = house.start();
        house.push(&order);
        assert!(succeeded(&house.gateway.outcome(order.task).await));
        agent.stopped().await;
    }
    (allocation, Order::new(allocation, 2, work))
}

/// The boot that a restart has to end: of the guest, or of the machine.
fn present_boot(house: &House, kind: TaskKind, allocation: Uuid) -> Option<Uuid> {
    match kind {
        TaskKind::SliceRestart => house.guest(allocation)["boot_id"].as_str()?.parse().ok(),
        TaskKind::NodeReboot => {
            let text = std::fs::read_to_string(house.path().join("world/boot_id")).ok()?;
            text.trim().parse().ok()
        }
        TaskKind::SliceProvision
        | TaskKind::SliceRelease
        | TaskKind::UserProvision
        | TaskKind::UserDeprovision => None,
    }
}

async fn killed_at(kind: TaskKind, phase: Phase, after: bool) {
    let house = House::new();
    let (allocation, order) = prepared(&house, kind).await;
    let done_before = house.effects(allocation).len();
    let boot = present_boot(&house, kind, allocation);
    house.faults(&[Fault { after, ..Fault::new(FaultKind::Crash).at(phase).times(1) }]);
    let agent = house.start();
    house.push(&order);
    // A machine that has rebooted is up before the phases that come after are begun.
    match (kind, phase) {
        (TaskKind::NodeReboot, Phase::Acknowledged | Phase::Rebooted) => agent.crashed().await,
        (TaskKind::NodeReboot, _) => {
            agent.went_down().await;
            house.start().crashed().await;
        }
        (_, _) => agent.crashed().await,
    }
    assert!(house.gateway.log().outcome(order.task).is_none(), "{kind} {phase}");

    let agent = house.start_supervised();
    assert!(succeeded(&house.gateway.outcome(order.task).await), "{kind} {phase}");
    agent.stopped().await;
    let log = house.gateway.log();
    assert_eq!(log.results_of(order.task).len(), 1, "{kind} {phase}");
    if let Some(TaskOutcome::Restarted { boot_id_before, boot_id }) = log.outcome(order.task) {
        assert_eq!(Some(*boot_id_before), boot, "{kind} {phase}");
        assert_eq!(Some(*boot_id), present_boot(&house, kind, allocation), "{kind} {phase}");
    }
    assert_eq!(house.effects(allocation)[done_before..], effects(kind), "{kind} {phase} {after}");
    let reports = log.reports(order.task, 1);
    let seqs: Vec<i32> = reports.iter().map(|report| report.seq).collect();
    assert_eq!(seqs, (1..=i32::try_from(seqs.len()).expect("few")).collect::<Vec<_>>());
    let ended = reports.iter().filter(|report| report.status.0 == PhaseStatus::Succeeded);
    let ended: Vec<Phase> = ended.map(|report| report.phase.0).collect();
    assert_eq!(ended, agent::tasks::phases(kind), "{kind} {phase}");
}

#[tokio::test(start_paused = true)]
async fn killed_before_any_phase_every_phase_is_done_once_and_one_result_is_told() {
    for kind in TaskKind::ALL {
        for phase in agent::tasks::phases(*kind) {
            killed_at(*kind, *phase, false).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn killed_after_a_phase_that_nobody_wrote_down_its_effect_is_not_repeated() {
    for kind in TaskKind::ALL {
        for phase in agent::tasks::phases(*kind) {
            killed_at(*kind, *phase, true).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_was_not_acknowledged_is_told_again_and_not_earned_again() {
    let house = House::new();
    let order = Order::new(id(), 1, provision(&[0]));
    house.gateway.set_mood(Mood::Deaf);
    let agent = house.start();
    house.push(&order);
    let first = house.gateway.outcome(order.task).await;
    agent.killed().await;
    let effects = house.effects(order.allocation);
    let told = house.gateway.log().results_of(order.task).len();

    house.gateway.set_mood(Mood::Well);
    let agent = house.start();
    let log = house.gateway.until("it again", |log| log.results_of(order.task).len() > told).await;
    assert_eq!(log.outcome(order.task), Some(&first));
    // Every dispatch hears all phases from the first.
    assert_eq!(log.reports(order.task, 1).len(), 12);
    agent.stopped().await;
    assert_eq!(house.effects(order.allocation), effects);

    // Once acknowledged it is not told again.
    let told = house.gateway.log().results_of(order.task).len();
    let agent = house.start();
    let other = Order::new(id(), 1, provision(&[1]));
    house.push(&other);
    house.gateway.outcome(other.task).await;
    agent.stopped().await;
    assert_eq!(house.gateway.log().results_of(order.task).len(), told);
}

#[tokio::test(start_paused = true)]
async fn a_stop_leaves_work_for_the_next_run() {
    let mut house = House::new();
    house.machine.speed = 1.0;
    let order = Order::new(id(), 1, provision(&[0]));
    let agent = house.start();
    house.push(&order);
    let begun =
        |log: &crate::gateway::Log| log.heard(order.task, Phase::VmStarted, PhaseStatus::Running);
    house.gateway.until("the machine starting", begun).await;
    agent.stopped().await;
    assert!(house.gateway.log().outcome(order.task).is_none());
    let agent = house.start();
    assert!(succeeded(&house.gateway.outcome(order.task).await));
    agent.stopped().await;
    assert_eq!(house.effects(order.allocation), effects(TaskKind::SliceProvision));
}

#[tokio::test(start_paused = true)]
async fn two_agents_do_not_share_a_directory() {
    let house = House::new();
    let agent = house.start();
    house.gateway.until("a heartbeat", |log| !log.heartbeats.is_empty()).await;
    let second = house.start().ended().await;
    assert!(matches!(second, Err(agent::Error::Busy { .. })), "{second:?}");
    agent.stopped().await;
}
