//! The pure layer: what each event does in each status, and which signals stand in its way.

use examples::columns::{
    ARCHIVED_AT, CLEANUP_REQUESTED_AT, DELETED_AT, DESTROY_ATTEMPT_ID, MANAGED, PATH,
    STOP_REQUESTED_AT,
};
use examples::{environment_v1, tables, thread_v1, thread_v2};
use lifecycle::{
    Cell, Check, Facts, Lawful, Reason, Said, Source, Table, Value, Verdict, Why, decide,
};

use crate::support::{bend, clean, reporter, sample};

fn verdict(table: &Table, event: usize, status: usize, facts: &Facts, payload: &Facts) -> Verdict {
    decide(table, status, facts, &Said { event, source: reporter(table, event), payload })
}

fn cells(table: &Table) -> impl Iterator<Item = (usize, usize, Cell)> {
    let row = |(event, row): (usize, &Vec<Cell>)| {
        row.iter().enumerate().map(move |(s, cell)| (event, s, *cell)).collect::<Vec<_>>()
    };
    table.cells.iter().enumerate().flat_map(row)
}

/// Every check of the machine, once.
fn signals(table: &Table) -> Vec<Check> {
    let mut signals: Vec<Check> = Vec::new();
    for check in table.events.iter().flat_map(|event| &event.checks) {
        if !signals.contains(check) {
            signals.push(*check);
        }
    }
    signals
}

#[test]
fn every_cell_applies_to_a_clean_row() {
    for table in tables() {
        for (event, status, cell) in cells(table) {
            let (mut facts, mut payload) = clean(table, event, Facts::NONE);
            match cell {
                Cell::To(to) => {
                    let verdict = verdict(table, event, status, &facts, &payload);
                    assert_eq!(verdict, Verdict::Move(to), "{}", table.events[event].code);
                }
                Cell::ByFact { check, yes, no } => {
                    for (holds, to) in [(true, yes), (false, no)] {
                        bend(&check, holds, &mut facts, &mut payload);
                        let verdict = verdict(table, event, status, &facts, &payload);
                        assert_eq!(verdict, Verdict::Move(to), "{}", table.events[event].code);
                    }
                }
                Cell::Absent(_) | Cell::Undecided => {}
            }
        }
    }
}

#[test]
fn every_absent_cell_changes_nothing_and_says_why() {
    for table in tables() {
        for (event, status, cell) in cells(table) {
            let expected = match cell {
                Cell::Absent(Why::Duplicate) => Verdict::Duplicate,
                Cell::Absent(why) => Verdict::Refuse(Reason::Illegal(why)),
                Cell::To(_) | Cell::ByFact { .. } => continue,
                Cell::Undecided => panic!("undecided"),
            };
            let (facts, payload) = clean(table, event, Facts::NONE);
            let verdict = verdict(table, event, status, &facts, &payload);
            assert_eq!(
                verdict, expected,
                "{} {}",
                table.events[event].code, table.statuses[status].code
            );
        }
    }
}

#[test]
fn each_signal_supersedes_the_events_that_declare_it_and_no_others() {
    for table in tables() {
        for signal in signals(table) {
            for (event, entry) in table.events.iter().enumerate() {
                let declares = entry.checks.contains(&signal);
                for status in 0..table.statuses.len() {
                    let (mut facts, mut payload) = clean(table, event, Facts::NONE);
                    bend(&signal, false, &mut facts, &mut payload);
                    let superseded = Verdict::Refuse(Reason::Superseded(signal.name));
                    let verdict = verdict(table, event, status, &facts, &payload);
                    assert_eq!(verdict == superseded, declares, "{} {}", entry.code, signal.name);
                    let of_any_signal = matches!(verdict, Verdict::Refuse(Reason::Superseded(_)));
                    assert_eq!(of_any_signal, declares, "{} {}", entry.code, signal.name);
                }
            }
        }
    }
}

// The same, by name, for those who read the facts and not the table.
#[test]
fn a_stop_request_a_tombstone_and_an_archive_block_just_these_thread_events() {
    let table = thread_v1::Thread::table();
    let blocked = |column| -> Vec<&str> {
        let facts = Facts::NONE.with(column, sample(column));
        let is_blocked = |event: &usize| {
            let verdict = verdict(table, *event, 0, &facts, &Facts::NONE);
            matches!(verdict, Verdict::Refuse(Reason::Superseded(_)))
        };
        (0..table.events.len()).filter(is_blocked).map(|event| table.events[event].code).collect()
    };
    assert_eq!(
        blocked(STOP_REQUESTED_AT),
        [
            "turn.started",
            "turn.failed",
            "runtime.exited",
            "start.succeeded",
            "runtime.observed-active"
        ]
    );
    assert_eq!(
        blocked(DELETED_AT),
        [
            "start.succeeded",
            "command.failed",
            "provision.failed",
            "workspace.lost",
            "runtime.observed-active"
        ]
    );
    assert_eq!(blocked(ARCHIVED_AT), ["start.succeeded", "workspace.lost"]);
}

#[test]
fn superseded_wins_over_illegal() {
    for table in tables() {
        for (event, status, cell) in cells(table) {
            let Some(check) = table.events[event].checks.first() else {
                continue;
            };
            if matches!(cell, Cell::Absent(_)) {
                let (mut facts, mut payload) = clean(table, event, Facts::NONE);
                bend(check, false, &mut facts, &mut payload);
                let verdict = verdict(table, event, status, &facts, &payload);
                assert_eq!(verdict, Verdict::Refuse(Reason::Superseded(check.name)));
            }
        }
    }
}

#[test]
fn of_several_failing_checks_the_first_in_order_is_named() {
    for table in tables() {
        for (event, entry) in table.events.iter().enumerate() {
            for first in 0..entry.checks.len() {
                let (mut facts, mut payload) = clean(table, event, Facts::NONE);
                for check in &entry.checks[first..] {
                    bend(check, false, &mut facts, &mut payload);
                }
                let verdict = verdict(table, event, 0, &facts, &payload);
                let named = Verdict::Refuse(Reason::Superseded(entry.checks[first].name));
                assert_eq!(verdict, named, "{}", entry.code);
            }
        }
    }
}

#[test]
fn a_completion_applies_to_an_active_thread_that_is_asked_to_stop() {
    let table = thread_v1::Thread::table();
    let facts = Facts::NONE.with(STOP_REQUESTED_AT, Value::Time(1));
    let (completed, active) =
        (table.event("turn.completed").unwrap(), table.status("active").unwrap());
    let verdict = verdict(table, completed, active, &facts, &Facts::NONE);
    assert_eq!(verdict, Verdict::Move(table.status("idle").unwrap()));
}

fn environment_verdict(event: &str, status: &str, facts: &Facts, payload: &Facts) -> String {
    let table = environment_v1::Environment::table();
    let (event, status) = (table.event(event).unwrap(), table.status(status).unwrap());
    match verdict(table, event, status, facts, payload) {
        Verdict::Move(to) => table.statuses[to].code.to_owned(),
        Verdict::Duplicate => "duplicate".to_owned(),
        Verdict::Refuse(reason) => reason.name().unwrap_or(reason.code()).to_owned(),
    }
}

#[test]
fn a_cancelled_provision_and_a_lost_destroy_end_where_the_workspace_says() {
    let bare = Facts::NONE.with(CLEANUP_REQUESTED_AT, Value::Time(1));
    let on_disk = bare.clone().with(PATH, Value::Text("/srv/space".into()));
    let ends = |event, status, facts| environment_verdict(event, status, facts, &Facts::NONE);
    assert_eq!(ends("provision.cancelled", "provisioning", &on_disk), "ready");
    assert_eq!(ends("provision.cancelled", "provisioning", &bare), "error");
    assert_eq!(ends("destroy.lost", "destroying", &on_disk), "ready");
    assert_eq!(ends("destroy.lost", "destroying", &bare), "destroyed");
    assert_eq!(ends("destroy.failed", "destroying", &on_disk), "ready");
    assert_eq!(ends("destroy.failed", "destroying", &bare), "error");
}

#[test]
fn a_failed_destroy_applies_for_the_attempt_that_is_under_way_and_for_no_other() {
    let busy = Facts::NONE.with(DESTROY_ATTEMPT_ID, Value::Id(1));
    let answer = |attempt| Facts::NONE.with(DESTROY_ATTEMPT_ID, attempt);
    let ends = |payload| environment_verdict("destroy.failed", "destroying", &busy, &payload);
    assert_eq!(ends(answer(Value::Id(1))), "error");
    assert_eq!(ends(answer(Value::Id(2))), "matchingDestroyAttempt");
    assert_eq!(ends(Facts::NONE), "matchingDestroyAttempt");
}

#[test]
fn environment_checks_are_tried_managed_first_then_intent_then_path() {
    let asked = Facts::NONE.with(CLEANUP_REQUESTED_AT, Value::Time(1));
    let managed = Facts::NONE.with(MANAGED, Value::Bool(true));
    let both = asked.clone().with(MANAGED, Value::Bool(true));
    let first =
        |facts: &Facts| environment_verdict("destroy.dispatched", "ready", facts, &Facts::NONE);
    assert_eq!(first(&Facts::NONE), "managed");
    assert_eq!(first(&asked), "managed");
    assert_eq!(first(&managed), "cleanupRequested");
    assert_eq!(first(&both), "workspacePathPresent");
    assert_eq!(first(&both.with(PATH, Value::Text("/srv/space".into()))), "destroying");
}

#[test]
fn a_stranger_can_not_report_what_only_the_agent_knows() {
    let table = thread_v2::Thread::table();
    let event = table.event("run.succeeded").unwrap();
    let (facts, payload) = clean(table, event, Facts::NONE);
    let said = Said { event, source: Source::User, payload: &payload };
    let verdict = decide(table, table.status("active").unwrap(), &facts, &said);
    assert_eq!(verdict, Verdict::Refuse(Reason::Illegal(Why::Bug)));
}
