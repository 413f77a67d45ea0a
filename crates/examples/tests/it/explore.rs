//! Every interleaving of a few reports: the weak fence breaks, ours does not.

use examples::columns::{
    CLEANUP_REQUESTED_AT, DESTROY_ATTEMPT_ID, MANAGED, PATH, STOP_REQUESTED_AT,
};
use examples::{environment_v1, environment_v2, tables, thread_v1, thread_v2};
use lifecycle::explore::{Figures, Finding, Scenario, Told, walk_edges};
use lifecycle::{Column, Facts, Fence, Lawful, OPERATION_ID, Table, Value};

use crate::support::reporter;

const A: Value = Value::Id(1);
const B: Value = Value::Id(2);

fn told(table: &Table, event: &str, field: Option<(Column, Value)>) -> Told {
    let event = table.event(event).unwrap();
    let mut payload = Facts::NONE;
    if let Some((column, value)) = field {
        payload.set(column, value);
    }
    Told { event, source: reporter(table, event), payload }
}

#[track_caller]
fn holds(scenario: &Scenario<'_>) -> Figures {
    match scenario.explore() {
        Finding::Holds(figures) => figures,
        Finding::Broken(trace) => panic!("{:?}:\n{}", scenario.fence, trace.join("\n")),
    }
}

#[track_caller]
fn broken(scenario: &Scenario<'_>) -> Vec<String> {
    match scenario.explore() {
        Finding::Broken(trace) => trace,
        Finding::Holds(figures) => panic!("nothing breaks: {figures:?}"),
    }
}

fn start_against_stop(fence: Fence) -> Scenario<'static> {
    let table = thread_v1::Thread::table();
    Scenario {
        table,
        fence,
        start: (table.status("idle").unwrap(), Facts::NONE),
        reports: vec![told(table, "start.succeeded", None), told(table, "turn.completed", None)],
        deliveries: 2,
        intruders: vec![(STOP_REQUESTED_AT, Value::Time(1))],
    }
}

#[test]
fn the_status_alone_lets_a_start_overrun_a_stop_and_our_fences_do_not() {
    let trace = broken(&start_against_stop(Fence::StatusOnly));
    assert_eq!(
        trace.last().unwrap(),
        "but by now the row gives a refusal: superseded (notStopRequested)"
    );
    assert_eq!(trace.len(), 4, "load, stop, write: {trace:#?}");
    for fence in [Fence::Checked, Fence::Locked] {
        let figures = holds(&start_against_stop(fence));
        assert!(figures.writes > 0 && figures.states > 10, "{fence:?} {figures:?}");
    }
}

fn attempt_after_attempt(fence: Fence) -> Scenario<'static> {
    let table = environment_v1::Environment::table();
    let facts = Facts::NONE
        .with(MANAGED, Value::Bool(true))
        .with(PATH, Value::Text("/srv/space".into()))
        .with(CLEANUP_REQUESTED_AT, Value::Time(1))
        .with(DESTROY_ATTEMPT_ID, A);
    Scenario {
        table,
        fence,
        start: (table.status("destroying").unwrap(), facts),
        reports: vec![
            told(table, "destroy.failed", Some((DESTROY_ATTEMPT_ID, A))),
            told(table, "destroy.lost", None),
            told(table, "destroy.dispatched", Some((DESTROY_ATTEMPT_ID, B))),
        ],
        deliveries: 2,
        intruders: vec![],
    }
}

#[test]
fn the_status_alone_lets_an_old_attempt_answer_for_the_next_and_our_fences_do_not() {
    let trace = broken(&attempt_after_attempt(Fence::StatusOnly));
    assert!(trace.len() > 3, "{trace:#?}");
    for fence in [Fence::Checked, Fence::Locked] {
        let figures = holds(&attempt_after_attempt(fence));
        assert_eq!(figures.edges.len(), 3, "each report applies somewhere: {fence:?} {figures:?}");
    }
}

#[test]
fn behind_a_lock_a_path_that_comes_and_goes_never_sends_an_environment_to_the_wrong_end() {
    let scenario = Scenario {
        intruders: vec![(PATH, Value::Null), (CLEANUP_REQUESTED_AT, Value::Null)],
        ..attempt_after_attempt(Fence::Locked)
    };
    holds(&scenario);
}

#[test]
fn the_redesigned_thread_survives_every_order_of_start_success_failure_and_stop() {
    let table = thread_v2::Thread::table();
    let of = |event, operation| told(table, event, Some((OPERATION_ID, operation)));
    for fence in [Fence::Checked, Fence::Locked] {
        let figures = holds(&Scenario {
            table,
            fence,
            start: (table.status("starting").unwrap(), Facts::NONE.with(OPERATION_ID, A)),
            reports: vec![
                of("run.started", A),
                of("run.succeeded", A),
                told(table, "stop.requested", None),
                of("run.preparing", B),
                of("run.started", B),
            ],
            deliveries: 1,
            intruders: vec![],
        });
        let (started, stopping) =
            (table.event("run.started").unwrap(), table.status("stopping").unwrap());
        assert!(
            figures.edges.iter().all(|(event, from, _)| (*event, *from) != (started, stopping))
        );
    }
}

#[test]
fn the_redesigned_environment_survives_every_order_of_two_destroys() {
    let table = environment_v2::Environment::table();
    let of = |event, operation| told(table, event, Some((OPERATION_ID, operation)));
    let facts = Facts::NONE
        .with(MANAGED, Value::Bool(true))
        .with(PATH, Value::Text("/srv/space".into()))
        .with(OPERATION_ID, A);
    for fence in [Fence::Checked, Fence::Locked] {
        let figures = holds(&Scenario {
            table,
            fence,
            start: (table.status("destroying").unwrap(), facts.clone()),
            reports: vec![
                of("destroy.lost", A),
                of("destroy.succeeded", A),
                told(table, "retire.requested", None),
                of("destroy.dispatched", B),
                of("destroy.succeeded", B),
            ],
            deliveries: 1,
            intruders: vec![],
        });
        assert!(figures.writes > 0);
    }
}

#[test]
fn every_edge_of_every_machine_is_taken_by_some_run() {
    for table in tables() {
        let edges = walk_edges(table);
        assert_eq!(edges.out_of_reach, [], "{}", table.name);
        assert_eq!(edges.taken.len(), table.edges().len(), "{}", table.name);
    }
}
