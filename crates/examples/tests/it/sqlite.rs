//! What only a real database can show: SQL against Rust, two connections, rows that nobody should
//! have written.

use std::path::PathBuf;

use examples::columns::{ENVIRONMENT_ID, MANAGED, PATH, STOP_REQUESTED_AT};
use examples::schema::Stored;
use examples::shelf::Shelf;
use examples::sqlite::{Error, Sqlite};
use examples::thread_v1::{Event, Status, Thread};
use examples::{environment_v1, environment_v2, thread_v2};
use lifecycle::{
    Cell, Check, Facts, Fence, OPERATION_ID, Outcome, Reason, Report, Source, Store, Value, apply,
};

use crate::support::{Race, bend, fresh, place, row, said, sample};

fn checks_of<M: Stored>() -> Vec<Check> {
    let table = M::table();
    let of_cells = table.cells.iter().flatten().filter_map(|cell| match cell {
        Cell::ByFact { check, .. } => Some(*check),
        Cell::To(_) | Cell::Absent(_) | Cell::Undecided => None,
    });
    let of_stamps = table.all_stamps().filter_map(|stamp| stamp.when);
    let of_events = table.events.iter().flat_map(|event| event.checks.iter().copied());
    of_events.chain(of_cells).chain(of_stamps).collect()
}

#[test]
fn every_check_answers_alike_in_rust_and_in_sql() {
    fn of<M: Stored>() -> usize {
        let mut store = Sqlite::<M>::in_memory(Fence::Locked).unwrap();
        let columns = M::COLUMNS;
        let mut asked = 0;
        // Every way of filling or not filling each column, and a report that matches, differs or
        // says nothing.
        for filled in 0..1_u128 << columns.len() {
            let mut facts = Facts::NONE;
            for (at, column) in columns.iter().enumerate().filter(|(at, _)| filled >> at & 1 == 1) {
                // The row's number makes some booleans false rather than empty.
                let value =
                    if filled % 3 == at as u128 % 3 { other(*column) } else { sample(*column) };
                facts.set(*column, value);
            }
            store.insert(filled, facts.clone(), fresh()).unwrap();
            for check in checks_of::<M>() {
                for answered in [Value::Null, Value::Id(7), Value::Id(8)] {
                    let mut payload = Facts::NONE;
                    if let Some(field) = check.field() {
                        payload.set(field, answered);
                    }
                    let in_sql = store.holds(filled, &check, &payload).unwrap();
                    assert_eq!(
                        in_sql,
                        Some(check.holds(&facts, &payload)),
                        "{} {facts:?}",
                        check.name
                    );
                    asked += 1;
                }
            }
        }
        asked
    }
    let asked = of::<Thread>()
        + of::<environment_v1::Environment>()
        + of::<thread_v2::Thread>()
        + of::<environment_v2::Environment>();
    assert!(asked > 1_000);
}

fn other(column: lifecycle::Column) -> Value {
    match sample(column) {
        Value::Bool(yes) => Value::Bool(!yes),
        Value::Id(id) => Value::Id(id + 1),
        same @ (Value::Null | Value::Int(_) | Value::Text(_) | Value::Time(_)) => same,
    }
}

#[test]
fn every_column_that_a_machine_reads_or_writes_is_in_its_table() {
    fn of<M: Stored>() {
        let table = M::table();
        let stamped = table.all_stamps().map(|stamp| stamp.column);
        for column in table.columns_read().into_iter().chain(stamped) {
            assert!(M::COLUMNS.contains(&column), "{}: {}", M::NAME, column.name);
        }
        for guard in table.events.iter().flat_map(|event| &event.guards) {
            assert!(M::guard_sql(*guard).is_some(), "{}: {}", M::NAME, guard.0);
        }
        assert_eq!(M::guard_sql(lifecycle::Guard("nobody knows it")), None);
    }
    of::<Thread>();
    of::<environment_v1::Environment>();
    of::<thread_v2::Thread>();
    of::<environment_v2::Environment>();
}

/// A database file that is gone when the test is.
struct File(PathBuf);

impl File {
    fn new() -> Self {
        let name = format!("examples-{}-{}.sqlite", std::process::id(), fresh());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn another_connection_can_not_write_between_load_and_write() {
    let file = File::new();
    let mut here = Sqlite::<Thread>::in_file(&file.0, Fence::Locked).unwrap();
    let mut there = Sqlite::<Thread>::in_file(&file.0, Fence::Locked).unwrap();
    place(&mut here, 1, Status::Idle, Facts::NONE);

    let outcome = here.interleaved(1, &said(Event::StartSucceeded), |_| {
        let began = there.transact(|_| Ok::<_, Error>(()));
        assert!(matches!(began, Err(Error::Busy)), "the lock is there since the load");
        let aside = there.write_aside(1, STOP_REQUESTED_AT, Value::Time(1));
        assert!(matches!(aside, Err(Error::Busy)));
        let reported = there.report(1, &said(Event::SessionLost));
        assert!(matches!(reported, Err(Error::Busy)));
    });

    assert!(outcome.landed_on(Status::Active));
    there.write_aside(1, STOP_REQUESTED_AT, Value::Time(1)).unwrap();
    assert!(there.report(1, &said(Event::StopCompleted)).unwrap().landed_on(Status::Idle));
    assert_eq!(row(&mut here, 1).status, Status::Idle);
}

#[test]
fn a_report_that_breaks_half_way_leaves_nothing() {
    let mut store = Sqlite::<Thread>::in_memory(Fence::Locked).unwrap();
    place(&mut store, 1, Status::Idle, Facts::NONE);
    store.connection().execute_batch("DROP TABLE outbox").unwrap();
    assert!(matches!(store.report(1, &said(Event::TurnDispatched)), Err(Error::Sqlite(_))));
    assert_eq!(row(&mut store, 1).status, Status::Idle);
    assert_eq!(store.steps().unwrap().pop().unwrap().to, "idle");
    assert!(store.connection().is_autocommit(), "the transaction is over");
}

#[test]
fn a_status_that_the_machine_does_not_know_is_refused_or_an_error_and_never_a_default() {
    let mut store = Sqlite::<Thread>::in_memory(Fence::Locked).unwrap();
    place(&mut store, 1, Status::Idle, Facts::NONE);
    let stranger = "UPDATE thread_v1 SET status = 'paused'";
    assert!(store.connection().execute_batch(stranger).is_err());
    store.connection().execute_batch("PRAGMA ignore_check_constraints = TRUE").unwrap();
    store.connection().execute_batch(stranger).unwrap();
    let outcome = store.report(1, &said(Event::TurnStarted));
    assert!(matches!(outcome, Err(Error::UnknownStatus(status)) if status == "paused"));
}

#[test]
fn an_id_of_the_wrong_length_is_an_error_and_not_some_other_id() {
    let mut store = Sqlite::<Thread>::in_memory(Fence::Locked).unwrap();
    place(&mut store, 1, Status::Idle, Facts::NONE);
    store.connection().execute_batch("UPDATE thread_v1 SET parent_id = x'0102'").unwrap();
    assert!(matches!(store.find(1), Err(Error::WrongKind("parent_id"))));
}

#[test]
fn one_step_of_a_row_can_not_be_recorded_twice() {
    let mut store = Sqlite::<Thread>::in_memory(Fence::Locked).unwrap();
    place(&mut store, 1, Status::Idle, Facts::NONE);
    let step = store.steps().unwrap().pop().unwrap();
    let forged = |event_id, seq| lifecycle::Entry {
        machine: "thread_v1",
        id: 1,
        seq,
        event_id,
        event: "turn.started",
        from: Some("idle"),
        to: "active",
        source: Source::Agent,
        operation: None,
        topics: vec![],
    };
    let append = |store: &mut Sqlite<Thread>, entry| Store::<Thread>::append(store, entry);
    assert!(append(&mut store, forged(fresh(), step.seq)).is_err(), "the same step");
    assert!(append(&mut store, forged(step.event_id, step.seq + 1)).is_err(), "the same report");
    assert!(append(&mut store, forged(fresh(), step.seq + 1)).is_ok());
}

#[test]
fn an_inner_transaction_that_fails_does_not_undo_the_outer_one() {
    let mut store = Sqlite::<Thread>::in_memory(Fence::Locked).unwrap();
    place(&mut store, 1, Status::Active, Facts::NONE);
    let outer = store.transacted(|store| {
        assert!(store.report(1, &said(Event::TurnCompleted)).unwrap().is_applied());
        let inner = store.transacted(|store| {
            assert!(store.report(1, &said(Event::TurnDispatched)).unwrap().is_applied());
            Err::<(), _>(crate::support::Abort)
        });
        assert!(inner.is_err());
        Ok(())
    });
    assert!(outer.is_ok());
    assert_eq!(row(&mut store, 1).status, Status::Idle);
}

#[test]
fn two_machines_change_together_or_not_at_all() {
    let mut threads = Sqlite::<Thread>::in_memory(Fence::Locked).unwrap();
    let mut environments = threads.beside::<environment_v1::Environment>();
    place(&mut threads, 1, Status::Active, Facts::NONE);
    place(&mut environments, 2, environment_v1::Status::Provisioning, Facts::NONE);
    let undone = threads.transacted(|threads| {
        let failed = said(environment_v1::Event::ProvisionFailed);
        assert!(environments.report(2, &failed).unwrap().is_applied());
        assert!(threads.report(1, &said(Event::ProvisionFailed)).unwrap().is_applied());
        Err::<(), _>(crate::support::Abort)
    });
    assert!(undone.is_err());
    assert_eq!(row(&mut threads, 1).status, Status::Active);
    assert_eq!(row(&mut environments, 2).status, environment_v1::Status::Provisioning);
}

// The redesigned claim asks for the same in other words: a stop under way is a status there.
#[test]
fn the_redesigned_claim_waits_for_live_and_for_stopping_threads() {
    use environment_v2::{Environment, Event, Status};
    let mut environments = Sqlite::<Environment>::in_memory(Fence::Locked).unwrap();
    let mut threads = environments.beside::<thread_v2::Thread>();
    let facts = Facts::NONE.with(MANAGED, Value::Bool(true)).with(PATH, Value::Text("/w".into()));
    place(&mut environments, 1, Status::Retiring, facts);
    let inside = Facts::NONE.with(ENVIRONMENT_ID, Value::Id(1)).with(OPERATION_ID, Value::Id(9));
    place(&mut threads, 2, thread_v2::Status::Stopping, inside);
    let claim = |environments: &mut Sqlite<Environment>| -> Outcome<Status> {
        let claim = Report::new(Event::DestroyDispatched, fresh(), Source::Worker)
            .with(OPERATION_ID, Value::Id(5));
        apply::<Environment, _>(environments, &1, &claim).unwrap()
    };
    assert_eq!(claim(&mut environments).reason(), Some(&Reason::Guard("noLiveThread")));
    threads.write_aside(2, examples::columns::DELETED_AT, Value::Time(1)).unwrap();
    assert_eq!(claim(&mut environments).reason(), Some(&Reason::Guard("noStoppingThread")));
    let settled = Report::new(thread_v2::Event::StopSettled, fresh(), Source::Agent)
        .with(OPERATION_ID, Value::Id(9));
    assert!(threads.report(2, &settled).unwrap().is_applied());
    assert!(claim(&mut environments).landed_on(Status::Destroying));
}

#[test]
fn bending_a_check_bends_it_in_sql_too() {
    let mut store = Sqlite::<environment_v1::Environment>::in_memory(Fence::Locked).unwrap();
    store.insert(1, Facts::NONE, fresh()).unwrap();
    for check in checks_of::<environment_v1::Environment>() {
        for holds in [true, false] {
            let (mut facts, mut payload) = (row(&mut store, 1).facts, Facts::NONE);
            bend(&check, holds, &mut facts, &mut payload);
            crate::support::dress::<environment_v1::Environment>(&mut store, 1, &facts);
            assert_eq!(store.holds(1, &check, &payload).unwrap(), Some(holds), "{}", check.name);
        }
    }
}
