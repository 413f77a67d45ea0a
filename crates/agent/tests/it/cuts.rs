//! A line that is cut at any phase of any task, whole or in one direction, for a second or an hour: the work is done
//! once, and its end arrives when the line is back, under the newest dispatch there is.

use std::time::Duration;

use agent::faults::{Direction, Fault, FaultKind};
use lifecycle::Code as _;
use wire::Coded;
use wire::node::{Phase, PhaseStatus, TaskKind};

use crate::crashes::{effects, prepared, succeeded};
use crate::gateway::Log;
use crate::house::House;

const DIRECTIONS: [Option<Direction>; 3] = [None, Some(Direction::Out), Some(Direction::In)];
const SECONDS: [u32; 3] = [1, 30, 3600];

/// Lets time pass.
async fn pass(seconds: u32) {
    let nothing = std::future::pending::<()>();
    let _ = tokio::time::timeout(Duration::from_secs(seconds.into()), nothing).await;
}

async fn cut_at(kind: TaskKind, phase: Phase, direction: Option<Direction>, seconds: u32) {
    let what = format!("{kind} {phase} {direction:?} {seconds}");
    let house = House::new();
    let (allocation, order) = prepared(&house, kind).await;
    let before = house.effects(allocation).len();
    let direction = direction.map(Coded);
    let loss = Fault::new(FaultKind::NetworkLoss).at(phase).of(kind).times(1);
    house.faults(&[Fault { seconds: Some(seconds), direction, ..loss }]);
    let agent = house.start_supervised();
    house.push(&order);
    pass(seconds.div_ceil(2)).await;
    // It does not need anybody to finish what it has begun.
    assert_eq!(house.effects(allocation)[before..], effects(kind), "{what}");
    // Nobody has heard of it, so it is handed out again; and once more when the line is back.
    house.push(&order.dispatched(2));
    pass(seconds).await;
    house.push(&order.dispatched(3));
    let newest = |log: &Log| log.results_of(order.task).iter().any(|result| result.dispatch == 3);
    house.gateway.until(&what, newest).await;
    house.gateway.heartbeats(2).await;
    agent.stopped().await;

    assert_eq!(house.effects(allocation)[before..], effects(kind), "{what}");
    let log = house.gateway.log();
    let results = log.results_of(order.task);
    assert!(succeeded(&results[0].outcome), "{what}: {results:#?}");
    assert!(results.iter().all(|result| result.outcome == results[0].outcome), "{what}");
    let dispatches: Vec<i64> = results.iter().map(|result| result.dispatch).collect();
    let mut once = dispatches.clone();
    once.dedup();
    assert!(dispatches.is_sorted(), "{what}: {dispatches:?}");
    // Only an answer that was lost makes the agent say it twice.
    assert!(
        direction == Some(Coded(Direction::In)) || once == dispatches,
        "{what}: {dispatches:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn whatever_is_cut_nothing_is_done_twice_and_the_end_arrives() {
    let mut seconds = SECONDS.iter().cycle();
    for kind in TaskKind::ALL {
        for phase in agent::tasks::phases(*kind) {
            for direction in DIRECTIONS {
                let seconds = *seconds.next().expect("it goes on for ever");
                cut_at(*kind, *phase, direction, seconds).await;
            }
            // So that every phase meets every duration in another direction.
            seconds.next();
        }
    }
}

/// The lease of a task expires while the agent is at work, and the task is given to the same node twice.
#[tokio::test(start_paused = true)]
async fn a_task_that_is_rescued_while_it_runs_is_done_once_and_told_to_the_newest() {
    for kind in TaskKind::ALL {
        for crash in [false, true] {
            let mut house = House::new();
            let (allocation, order) = prepared(&house, *kind).await;
            let before = house.effects(allocation).len();
            house.machine.speed = 1.0;
            let last = *agent::tasks::phases(*kind).last().expect("it has some");
            if crash {
                house.faults(&[
                    Fault { after: true, ..Fault::new(FaultKind::Crash).at(last) }.times(1)
                ]);
            }
            let agent = house.start_supervised();
            house.push(&order);
            let middle = agent::tasks::phases(*kind)[2];
            let begun = |log: &Log| log.heard(order.task, middle, PhaseStatus::Running);
            house.gateway.until("the middle of it", begun).await;
            house.push(&order.dispatched(2));
            house.push(&order.dispatched(3));
            assert!(succeeded(&house.gateway.outcome(order.task).await), "{kind}");
            house.gateway.heartbeats(2).await;
            agent.stopped().await;
            let log = house.gateway.log();
            let told: Vec<i64> =
                log.results_of(order.task).iter().map(|result| result.dispatch).collect();
            assert_eq!(told, [3], "{kind} {crash}");
            assert_eq!(house.effects(allocation)[before..], effects(*kind), "{kind} {crash}");
        }
    }
}
