//! Whoever takes one cell, check, guard, stamp or anything else out of a machine is noticed.

use examples::tables;
use lifecycle::laws::breaches;
use lifecycle::mutate::mutants;
use lifecycle::{Table, render};

use crate::diagrams::committed;

/// What the checks mean. The document gives their names only.
const CHECKS: &str = "
cleanupRequested: Present(cleanup_requested_at)
managed: True(managed)
matchingDestroyAttempt: Same(destroy_attempt_id, destroy_attempt_id)
notArchived: Null(archived_at)
notDeleted: Null(deleted_at)
notStopRequested: Null(stop_requested_at)
rootThread: Null(parent_id)
same_operation: Same(operation_id, operation_id)
workspacePathAbsent: Null(path)
workspacePathPresent: Present(path)
";

fn checks(table: &Table) -> Vec<String> {
    let of_stamps = table.all_stamps().filter_map(|stamp| stamp.when);
    let of_cells = table.cells.iter().flatten().filter_map(|cell| match cell {
        lifecycle::Cell::ByFact { check, .. } => Some(*check),
        lifecycle::Cell::To(_) | lifecycle::Cell::Absent(_) | lifecycle::Cell::Undecided => None,
    });
    let of_events = table.events.iter().flat_map(|event| event.checks.iter().copied());
    let spell = |check: lifecycle::Check| {
        use lifecycle::Test;
        let test = match check.test {
            Test::Null(c) => format!("Null({})", c.name),
            Test::Present(c) => format!("Present({})", c.name),
            Test::True(c) => format!("True({})", c.name),
            Test::NotTrue(c) => format!("NotTrue({})", c.name),
            Test::Same(c, field) => format!("Same({}, {})", c.name, field.name),
            Test::Below(low, high) => format!("Below({}, {})", low.name, high.name),
        };
        format!("{}: {test}", check.name)
    };
    of_events.chain(of_stamps).chain(of_cells).map(spell).collect()
}

/// Which events report the result of an operation: those that compare what they carry with the row.
fn settles_where_it_compares(table: &Table) -> bool {
    table
        .events
        .iter()
        .all(|event| event.settles == event.checks.iter().any(|c| c.field().is_some()))
}

fn is_noticed(table: &Table, document: &str) -> bool {
    let known = |check: &String| CHECKS.lines().any(|line| line == check);
    !document.contains(&render::machine(table))
        || !checks(table).iter().all(known)
        || !settles_where_it_compares(table)
        || !breaches(table).is_empty()
}

#[test]
fn the_machines_as_they_are_raise_no_alarm() {
    let document = committed();
    for table in tables() {
        assert!(!is_noticed(table, &document), "{}", table.name);
    }
}

#[test]
fn every_mutant_of_every_machine_is_noticed() {
    let document = committed();
    for table in tables() {
        let all = mutants(table);
        assert!(all.len() > 100, "{}: {}", table.name, all.len());
        let unnoticed = all.iter().filter(|mutant| !is_noticed(&mutant.table, &document));
        let unnoticed: Vec<_> = unnoticed.map(|mutant| &mutant.what).collect();
        assert!(unnoticed.is_empty(), "{unnoticed:#?}");
    }
}
