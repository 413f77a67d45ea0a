//! Every machine of the list obeys every law, and the absences that are guarantees are named.

use domain::machines::{self, Allocation, Claim, NodeTask};
use lifecycle::{Cell, Lawful, Table, Why, laws};

#[test]
fn every_machine_obeys_the_laws() {
    let broken: Vec<_> = machines::tables()
        .into_iter()
        .flat_map(|table| laws::breaches(table).into_iter().map(move |breach| (table.name, breach)))
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn no_machine_needs_a_waiver() {
    for table in machines::tables() {
        assert_eq!(laws::waivers(table), [], "{}", table.name);
    }
}

#[test]
fn machines_have_names_of_their_own() {
    let mut names: Vec<_> = machines::tables().iter().map(|table| table.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), machines::tables().len());
    assert_eq!(names.len(), 10);
}

fn cell(table: &Table, event: &str, status: &str) -> Cell {
    let event = table.event(event).unwrap_or_else(|| panic!("no event {event}"));
    table.cells[event][table.status(status).unwrap_or_else(|| panic!("no status {status}"))]
}

/// Absences that other parts of the product rely on. Whoever fills one of these cells breaks a promise.
#[test]
fn absences_that_are_guarantees_stay_absent() {
    let allocation = Allocation::table();
    for status in ["releasing", "release_failed", "released", "failed"] {
        let late = Cell::Absent(Why::Late);
        assert_eq!(
            cell(allocation, "provision.succeeded", status),
            late,
            "a late success revives nothing"
        );
        assert_eq!(
            cell(allocation, "restart.completed", status),
            late,
            "a late reboot revives nothing"
        );
        assert_eq!(
            cell(allocation, "restart.requested", status),
            late,
            "what is given back stays given back"
        );
    }
    let claim = Claim::table();
    for status in ["reserved", "held"] {
        let bug = Cell::Absent(Why::Bug);
        assert_eq!(cell(claim, "claim.freed", status), bug, "nothing is freed without clean-up");
    }
    assert_eq!(cell(claim, "claim.freed", "quarantined"), Cell::Absent(Why::Late));
    let task = NodeTask::table();
    let late = Cell::Absent(Why::Late);
    assert_eq!(cell(task, "task.dispatched", "dispatched"), late, "one agent holds a task");
    assert_eq!(cell(task, "task.succeeded", "queued"), late, "a lost lease loses its result");
}
