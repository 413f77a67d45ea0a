//! What a weaker compare-and-set lets through, found by looking at every interleaving, and what closes it.

use std::collections::BTreeSet;

use lifecycle::explore::{Finding, Scenario, Told, walk_edges};
use lifecycle::{
    Check, Code, Facts, Fence, Interleaved, Lawful, Memory, OPERATION_ID, Outcome, Reason, Report,
};
use lifecycle::{Source, Table, Test, Value, apply};

use crate::job::{Event, GOOD, Job, STOPPED, Status};

fn told(event: Event, operation: u128) -> Told {
    let source = if event == Event::Judged { Source::User } else { Source::Worker };
    let payload = Facts::NONE.with(OPERATION_ID, Value::Id(operation));
    Told { event: event.index(), source, payload }
}

fn on_a_row(
    status: Status,
    operation: u128,
    fence: Fence,
    reports: Vec<Told>,
) -> Scenario<'static> {
    let facts = Facts::NONE.with(OPERATION_ID, Value::Id(operation));
    let start = (status.index(), facts);
    Scenario { table: Job::table(), fence, start, reports, deliveries: 1, intruders: vec![] }
}

/// A result is on its way while somebody sets the flag that forbids it.
fn stopped_meanwhile(fence: Fence) -> Finding {
    let mut scenario = on_a_row(Status::Working, 1, fence, vec![told(Event::Ended, 1)]);
    scenario.intruders = vec![(STOPPED, Value::Bool(true))];
    scenario.explore()
}

/// A result is on its way while the row leaves its status and comes back to it with another operation.
fn come_back_meanwhile(fence: Fence) -> Finding {
    let reports = vec![told(Event::Ended, 1), told(Event::Failed, 1), told(Event::Began, 2)];
    on_a_row(Status::Working, 1, fence, reports).explore()
}

/// Two deliveries of one report are both loaded before the first is written, and the row comes back.
fn told_twice(fence: Fence) -> Finding {
    let reports = vec![told(Event::Began, 2), told(Event::Failed, 2)];
    let mut scenario = on_a_row(Status::Idle, 1, fence, reports);
    scenario.deliveries = 2;
    scenario.explore()
}

#[track_caller]
fn trace_of(finding: Finding) -> Vec<String> {
    match finding {
        Finding::Broken(trace) => trace,
        Finding::Holds(figures) => panic!("no counterexample: {figures:?}"),
    }
}

#[track_caller]
fn holds(finding: &Finding) {
    assert!(matches!(finding, Finding::Holds(_)), "{finding:?}");
}

#[test]
fn comparing_the_status_alone_overlooks_a_stop_between_load_and_write() {
    let trace = trace_of(stopped_meanwhile(Fence::StatusOnly));
    assert_eq!(
        trace,
        [
            "delivery 1 of report 0 (work.ended) loads the row: working, seq 1",
            "somebody sets stopped to Bool(true)",
            "delivery 1 of report 0 (work.ended) writes, finding working, seq 1",
            "but by now the row gives a refusal: superseded (not_stopped)",
        ]
    );
}

#[test]
fn comparing_the_status_alone_lets_an_old_answer_finish_a_new_operation() {
    let trace = trace_of(come_back_meanwhile(Fence::StatusOnly));
    assert_eq!(trace[0], "delivery 1 of report 0 (work.ended) loads the row: working, seq 1");
    let end = &trace[trace.len() - 2..];
    assert_eq!(end[0], "delivery 1 of report 0 (work.ended) writes, finding working, seq 3");
    assert_eq!(end[1], "but by now the row gives a refusal: superseded (same_operation)");
}

#[test]
fn comparing_the_status_alone_applies_one_report_twice() {
    let trace = trace_of(told_twice(Fence::StatusOnly));
    assert_eq!(trace.last().map(String::as_str), Some("this very report was applied before"));
}

#[test]
fn status_sequence_and_checks_together_close_every_hole() {
    for fence in [Fence::Checked, Fence::Locked] {
        holds(&stopped_meanwhile(fence));
        holds(&come_back_meanwhile(fence));
        holds(&told_twice(fence));
    }
}

fn report(event: Event, event_id: u128, operation: u128) -> Report<Event> {
    Report::new(event, event_id, Source::Worker).with(OPERATION_ID, Value::Id(operation))
}

/// Lets `meanwhile` happen in the real writer, between the load and the write of the end of operation 1.
fn really(fence: Fence, meanwhile: impl FnOnce(&mut Memory<Job>)) -> Outcome<Status> {
    let mut memory = Memory::<Job>::fenced(fence);
    memory.insert(1, Facts::NONE, 10, Source::User);
    assert!(memory.apply(1, &report(Event::Began, 11, 1)).is_applied());
    let mut store = Interleaved::new(&mut memory, meanwhile);
    let Ok(outcome) = apply::<Job, _>(&mut store, &1, &report(Event::Ended, 12, 1));
    outcome
}

#[test]
fn what_the_explorer_finds_happens_to_the_real_writer_too() {
    let stop = |memory: &mut Memory<Job>| memory.write_aside(1, STOPPED, Value::Bool(true));
    let come_back = |memory: &mut Memory<Job>| {
        assert!(memory.apply(1, &report(Event::Failed, 13, 1)).is_applied());
        assert!(memory.apply(1, &report(Event::Began, 14, 2)).is_applied());
    };
    assert!(really(Fence::StatusOnly, stop).landed_on(Status::Done));
    assert!(really(Fence::StatusOnly, come_back).landed_on(Status::Done));
    assert_eq!(really(Fence::Checked, stop).reason(), Some(&Reason::Conflict));
    assert_eq!(really(Fence::Checked, come_back).reason(), Some(&Reason::Conflict));
}

#[test]
fn everything_at_once_is_closed_too_and_takes_every_edge() {
    for fence in [Fence::Checked, Fence::Locked] {
        let mut scenario = on_a_row(
            Status::Idle,
            1,
            fence,
            vec![
                told(Event::Began, 2),
                told(Event::Failed, 2),
                told(Event::Began, 3),
                told(Event::Ended, 3),
            ],
        );
        scenario.deliveries = 2;
        scenario.intruders = vec![(STOPPED, Value::Bool(true)), (STOPPED, Value::Bool(false))];
        let Finding::Holds(figures) = scenario.explore() else {
            panic!("not closed under {fence:?}")
        };
        let expected = [
            (Event::Began, Status::Idle, Status::Working),
            (Event::Ended, Status::Working, Status::Done),
            (Event::Failed, Status::Working, Status::Idle),
        ];
        let expected: BTreeSet<_> =
            expected.map(|(event, from, to)| (event.index(), from.index(), to.index())).into();
        assert_eq!(figures.edges, expected);
        assert!(figures.states > 1_000, "{figures:?}");
    }
}

/// Which way a judgement goes is a fact of the row, and somebody changes it between load and write.
fn judged_otherwise_meanwhile(fence: Fence) -> Finding {
    let mut scenario = on_a_row(Status::Done, 1, fence, vec![told(Event::Judged, 1)]);
    scenario.intruders = vec![(GOOD, Value::Bool(true))];
    scenario.explore()
}

#[test]
fn a_cell_with_two_targets_is_judged_again_when_it_is_written() {
    let trace = trace_of(judged_otherwise_meanwhile(Fence::StatusOnly));
    assert_eq!(trace.last().map(String::as_str), Some("but by now the row gives a move to kept"));
    holds(&judged_otherwise_meanwhile(Fence::Checked));
    holds(&judged_otherwise_meanwhile(Fence::Locked));
}

#[test]
fn a_writer_that_dies_behind_its_lock_does_not_keep_others_out() {
    let reports = vec![told(Event::Ended, 1), told(Event::Failed, 1)];
    let Finding::Holds(figures) = on_a_row(Status::Working, 1, Fence::Locked, reports).explore()
    else {
        panic!("not closed")
    };
    let failed = (Event::Failed.index(), Status::Working.index(), Status::Idle.index());
    assert!(figures.edges.contains(&failed), "{figures:?}");
}

#[test]
fn every_edge_can_be_taken_from_birth() {
    let edges = walk_edges(Job::table());
    assert_eq!(edges.out_of_reach, []);
    let (mut taken, mut all) = (edges.taken, Job::table().edges());
    taken.sort_unstable();
    all.sort_unstable();
    assert_eq!(taken, all);
}

#[test]
fn an_edge_behind_contradictory_checks_is_out_of_reach_with_all_that_follows() {
    let mut table: Table = Job::table().clone();
    let began = &mut table.events[Event::Began.index()];
    began.checks = vec![
        Check::new("is_good", Test::True(GOOD)),
        Check::new("is_not_good", Test::NotTrue(GOOD)),
    ];
    assert_eq!(walk_edges(&table).taken, []);
}
