//! Poisoned tasks: one that kills the agent, one too long to be kept, one nobody understands. Each is given up with a
//! reason, and the machine goes on serving everybody else.

use agent::faults::{Fault, FaultKind};
use lifecycle::Code as _;
use wire::node::{FailureReason, Phase, PhaseStatus, TaskKind, TaskOutcome};

use crate::crashes::{prepared, succeeded};
use crate::fences::reason;
use crate::gateway::Log;
use crate::house::{House, Order, farewell, id, provision, release, restart};

fn is_whole(kind: TaskKind) -> bool {
    match kind {
        TaskKind::SliceProvision | TaskKind::SliceRestart | TaskKind::SliceRelease => false,
        TaskKind::UserProvision | TaskKind::NodeReboot | TaskKind::UserDeprovision => true,
    }
}

/// Runs agents one after another until one tells how the task ended; says how many died.
async fn deaths(house: &House, order: &Order) -> (u32, TaskOutcome) {
    let mut dead = 0;
    loop {
        let agent = house.start();
        tokio::select! {
            biased;
            outcome = house.gateway.outcome(order.task) => return (dead, outcome),
            () = agent.fell() => dead += 1,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_kills_every_agent_is_given_up_in_whichever_phase_it_does() {
    for kind in TaskKind::ALL {
        for phase in agent::tasks::phases(*kind) {
            let house = House::new();
            let (allocation, order) = prepared(&house, *kind).await;
            house.faults(&[Fault::new(FaultKind::Crash).at(*phase).of(*kind)]);
            house.push(&order);
            let (dead, outcome) = deaths(&house, &order).await;
            // A machine may go down once before the phase that kills.
            let all = if matches!(kind, TaskKind::NodeReboot) { 3..=4 } else { 3..=3 };
            assert!(all.contains(&dead), "{kind} {phase}: {dead}");
            let TaskOutcome::Failed { phase: failed, .. } = &outcome else {
                panic!("{kind} {phase}: {outcome:?}")
            };
            assert_eq!(failed.map(|failed| failed.0), Some(*phase));
            let expected = if *phase == Phase::Rebooted {
                FailureReason::RebootFailed
            } else {
                FailureReason::AgentDied
            };
            assert_eq!(reason(&outcome), Some(expected), "{kind} {phase}");
            let log = house.gateway.log();
            let last = log.reports(order.task, 1).pop().expect("there are reports");
            assert_eq!((last.phase.0, last.status.0), (*phase, PhaseStatus::Failed));

            // What it left behind is the next clean-up's.
            house.faults(&[]);
            let agent = house.start_supervised();
            let clean = if is_whole(*kind) { farewell() } else { release(&[0, 1]) };
            let clean = Order::new(allocation, 3, clean);
            house.push(&clean);
            assert!(succeeded(&house.gateway.outcome(clean.task).await), "{kind} {phase}");
            assert_eq!((house.guests(), house.residue()), (0, 0), "{kind} {phase}");
            agent.stopped().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_dies_with_the_poisoned_one_is_not_given_up_with_it() {
    for poisoned_first in [true, false] {
        let mut house = House::new();
        let agent = house.start();
        let come = Order::new(id(), 1, provision(&[0]));
        house.push(&come);
        assert!(succeeded(&house.gateway.outcome(come.task).await));
        agent.stopped().await;

        house.machine.speed = 1.0;
        house.faults(&[Fault::new(FaultKind::Crash).of(TaskKind::SliceProvision)]);
        // The journal is gone through in the order of the tasks' ids.
        let (one, other) = (id(), id());
        let (poisoned, innocent) = if poisoned_first { (one, other) } else { (other, one) };
        let innocent = Order { task: innocent, ..Order::new(come.allocation, 2, restart(&[0])) };
        let poisoned = Order { task: poisoned, ..Order::new(id(), 1, provision(&[1])) };
        let agent = house.start_supervised();
        house.push(&innocent);
        let begun = |log: &Log| log.heard(innocent.task, Phase::ShutDown, PhaseStatus::Running);
        house.gateway.until("the innocent at work", begun).await;
        house.push(&poisoned);
        let outcome = house.gateway.outcome(poisoned.task).await;
        assert_eq!(reason(&outcome), Some(FailureReason::AgentDied));
        assert!(succeeded(&house.gateway.outcome(innocent.task).await), "{poisoned_first}");
        agent.stopped().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_by_an_operator_is_no_death() {
    let mut house = House::new();
    house.machine.speed = 1.0;
    house.journal_bytes = 512;
    house.faults(&[Fault::new(FaultKind::Hang).at(Phase::VmStarted).times(8)]);
    let order = Order::new(id(), 1, provision(&[0]));
    house.push(&order);
    for _ in 0..8 {
        let agent = house.start();
        // Two and a half minutes: longer than all that comes before the phase that hangs.
        house.gateway.heartbeats(15).await;
        agent.stopped().await;
    }
    let left = agent::faults::read(house.path()).expect("a list")[0].times;
    assert_eq!(left, Some(0), "it hung in every run");
    let agent = house.start();
    assert!(succeeded(&house.gateway.outcome(order.task).await));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn deaths_are_counted_through_a_journal_that_is_rewritten() {
    let mut house = House::new();
    house.journal_bytes = 1;
    house.faults(&[Fault::new(FaultKind::Crash).at(Phase::SshReachable)]);
    let order = Order::new(id(), 1, provision(&[0]));
    house.push(&order);
    let (dead, outcome) = deaths(&house, &order).await;
    assert_eq!((dead, reason(&outcome)), (3, Some(FailureReason::AgentDied)));
}

#[tokio::test(start_paused = true)]
async fn an_order_of_ten_megabytes_is_refused_and_others_are_served() {
    let house = House::new();
    let agent = house.start();
    let long = Order::new(id(), 1, provision(&[0]));
    let mut envelope = house.envelope(&long);
    envelope.params["image"] = "x".repeat(10 << 20).into();
    house.gateway.push(house.seal(&envelope));
    let strange = Order::new(id(), 1, provision(&[1]));
    let mut envelope = house.envelope(&strange);
    envelope.params["shell"] = "rm".into();
    house.gateway.push(house.seal(&envelope));
    let good = Order::new(id(), 1, provision(&[2]));
    house.push(&good);
    assert!(succeeded(&house.gateway.outcome(good.task).await));
    for order in [&long, &strange] {
        let outcome = house.gateway.outcome(order.task).await;
        assert_eq!(reason(&outcome), Some(FailureReason::Malformed));
        assert!(house.effects(order.allocation).is_empty());
    }
    let journal = std::fs::metadata(house.path().join("journal")).expect("there is one");
    assert!(journal.len() < 10_000, "nothing of it is kept");
    agent.stopped().await;
}
