//! Each law is broken once, on a machine that is otherwise lawful, and found.

use lifecycle::laws::{Breach, breaches, waivers};
use lifecycle::{Cell, Code, Lawful, Rest, Set, Source, Table, Why};

use crate::job::{ENDED_AT, Event, Job, Status};

fn table() -> Table {
    Job::table().clone()
}

/// The laws that the job breaks when it is changed in this way.
fn broken_by(change: impl FnOnce(&mut Table)) -> Vec<&'static str> {
    let mut table = table();
    change(&mut table);
    let mut laws: Vec<_> = breaches(&table).iter().map(|breach| breach.law).collect();
    laws.dedup();
    laws
}

fn cell(table: &mut Table, event: Event, status: Status) -> &mut Cell {
    &mut table.cells[event.index()][status.index()]
}

#[test]
fn a_lawful_machine_breaks_nothing() {
    assert_eq!(breaches(Job::table()), []);
    assert_eq!(waivers(Job::table()), []);
}

#[test]
fn a_cell_that_nobody_decided_is_found() {
    let found = broken_by(|table| *cell(table, Event::Began, Status::Done) = Cell::Undecided);
    assert_eq!(found, ["every cell is decided"]);
}

#[test]
fn an_event_that_stands_still_is_found() {
    let still = Cell::To(Status::Idle.index());
    let found = broken_by(|table| *cell(table, Event::Failed, Status::Idle) = still);
    assert_eq!(found, ["nothing stands still"]);
}

#[test]
fn two_targets_that_are_one_are_found() {
    let found = broken_by(|table| {
        let Cell::ByFact { yes, no, .. } = cell(table, Event::Judged, Status::Done) else {
            panic!("it has two targets")
        };
        *no = *yes;
    });
    assert!(found.contains(&"two targets are two"), "{found:?}");
    assert!(
        found.contains(&"everything is reachable"),
        "nothing leads to dropped any more: {found:?}"
    );
}

#[test]
fn an_exit_of_a_terminal_status_is_found_unless_it_was_observed() {
    let exit = Cell::To(Status::Working.index());
    let found = broken_by(|table| *cell(table, Event::Began, Status::Kept) = exit);
    assert_eq!(found, ["terminal means terminal"]);

    let mut table = table();
    *cell(&mut table, Event::Began, Status::Kept) = exit;
    let note = lifecycle::table::Note { text: "it happens", observed: true };
    table.notes[Event::Began.index()][Status::Kept.index()] = Some(note);
    assert_eq!(breaches(&table), []);
    let what = "work.began leads from kept to working".to_owned();
    assert_eq!(waivers(&table), [Breach { law: "terminal means terminal", what }]);
}

#[test]
fn an_event_that_leads_nowhere_is_found() {
    let found =
        broken_by(|table| *cell(table, Event::Judged, Status::Done) = Cell::Absent(Why::Late));
    assert!(found.contains(&"every event leads somewhere"), "{found:?}");
}

#[test]
fn a_wait_without_deadline_owner_time_out_or_exit_is_found() {
    let working = Status::Working.index();
    let rest = |owner, seconds, time_out: Event| Rest::Transient {
        owner,
        seconds,
        time_out: time_out.index(),
    };
    let found = broken_by(|t| t.statuses[working].rest = rest(Source::Worker, 0, Event::Failed));
    assert_eq!(found, ["every wait has a deadline"]);
    let found = broken_by(|t| t.statuses[working].rest = rest(Source::Outside, 60, Event::Failed));
    assert_eq!(found, ["who owns a wait can end it"]);
    let found = broken_by(|t| t.statuses[working].rest = rest(Source::Worker, 60, Event::Judged));
    assert_eq!(found, ["every wait times out"], "judged does not leave working");
    let found = broken_by(|t| t.statuses[working].rest = rest(Source::Worker, 60, Event::Ended));
    assert_eq!(found, ["every wait times out"], "a timer may not say that it ended");
    let found = broken_by(|table| {
        table.events[Event::Failed.index()].reporters = vec![Source::Worker, Source::Timer];
    });
    assert_eq!(found, ["every wait has an exit for people", "people alone can bring it to rest"]);
}

#[test]
fn a_status_without_a_way_to_rest_is_found() {
    let found = broken_by(|table| {
        table.statuses[Status::Idle.index()].rest =
            Rest::Parked { owner: Source::User, seconds: 60 };
        table.statuses[Status::Kept.index()].rest =
            Rest::Parked { owner: Source::User, seconds: 60 };
        table.statuses[Status::Dropped.index()].rest =
            Rest::Parked { owner: Source::User, seconds: 60 };
    });
    assert!(found.contains(&"from everywhere there is a way to rest"), "{found:?}");
}

#[test]
fn a_result_that_does_not_name_its_operation_is_found() {
    let found = broken_by(|table| table.events[Event::Ended.index()].checks.clear());
    assert_eq!(found, ["results name their operation"]);
    let found = broken_by(|table| table.events[Event::Began.index()].stamps.clear());
    assert_eq!(found, ["results name their operation"], "an operation that nobody begins");
    let found = broken_by(|table| {
        let ended = &mut table.events[Event::Ended.index()];
        ended.reporters = vec![Source::Agent];
        ended.checks.clear();
        ended.settles = false;
    });
    assert!(found.contains(&"agents name their operation"), "{found:?}");
}

#[test]
fn a_field_that_is_read_and_not_carried_is_found() {
    let found = broken_by(|table| table.events[Event::Ended.index()].carries.clear());
    assert_eq!(found, ["fields that are read are carried"]);
    let found = broken_by(|table| table.events[Event::Began.index()].carries.clear());
    assert_eq!(found, ["fields that are read are carried"]);
    let found = broken_by(|table| {
        table.statuses[Status::Kept.index()].stamps[0].set = Set::Field(ENDED_AT);
    });
    assert_eq!(found, ["stamps have their fields"]);
}

#[test]
fn a_derived_status_that_somebody_can_choose_is_found() {
    let found = broken_by(|table| table.statuses[Status::Working.index()].rest = Rest::Derived);
    assert_eq!(found, ["derived is derived"]);
}

#[test]
fn two_events_of_one_name_are_found() {
    let found = broken_by(|table| table.events[Event::Failed.index()].code = "work.ended");
    assert_eq!(found, ["one name, one event"]);
}
