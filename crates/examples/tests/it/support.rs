//! What every test stands on: the two stores behind one face, rows in any status, reports that fit.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use examples::home::{Home, MemoryHome, SqliteHome};
use examples::schema::Stored;
use examples::shelf::Shelf;
use examples::sqlite::Sqlite;
use lifecycle::{
    Cell, Check, Code, Column, Facts, Fence, Interleaved, Kind, Memory, Outcome, Report, Row,
    Source, Table, Test, Value, apply,
};

/// A shelf on which a race can be made to happen.
pub(crate) trait Race<M: Stored>: Shelf<M> + Sized {
    /// An empty shelf. Every guard holds until rows say otherwise.
    fn fenced(fence: Fence) -> Self;

    /// Reports an event, with `meanwhile` let loose between the load and the write.
    fn interleaved(
        &mut self,
        id: u128,
        report: &Report<M::Event>,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Outcome<M::Status>;

    /// Runs `work` in one transaction, which `Err` undoes.
    fn transacted<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Abort>,
    ) -> Result<T, Abort>;
}

/// The caller changed its mind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Abort;

impl<M: Stored> Race<M> for Memory<M> {
    fn fenced(fence: Fence) -> Self {
        let mut memory = Memory::fenced(fence);
        for guard in M::table().events.iter().flat_map(|event| &event.guards) {
            memory.answer(*guard, |_| true);
        }
        memory
    }

    fn interleaved(
        &mut self,
        id: u128,
        report: &Report<M::Event>,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Outcome<M::Status> {
        let Ok(outcome) = apply::<M, _>(&mut Interleaved::new(self, meanwhile), &id, report);
        self.release();
        outcome
    }

    fn transacted<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        self.transact(work)
    }
}

impl<M: Stored> Race<M> for Sqlite<M> {
    fn fenced(fence: Fence) -> Self {
        Sqlite::in_memory(fence).unwrap()
    }

    fn interleaved(
        &mut self,
        id: u128,
        report: &Report<M::Event>,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Outcome<M::Status> {
        let race =
            |store: &mut Self| apply::<M, _>(&mut Interleaved::new(store, meanwhile), &id, report);
        self.transact(race).unwrap().unwrap()
    }

    fn transacted<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        self.transact(work).unwrap()
    }
}

/// A kind of store: what a test body is generic over.
pub(crate) trait Kit {
    /// Its shelf for one machine.
    type Shelf<M: Stored>: Race<M>;
    /// Its home for threads and environments.
    type Home: Home;

    fn home() -> Self::Home;
}

pub(crate) struct InMemory;
pub(crate) struct OnSqlite;

impl Kit for InMemory {
    type Shelf<M: Stored> = Memory<M>;
    type Home = MemoryHome;

    fn home() -> MemoryHome {
        MemoryHome::fenced(Fence::Locked)
    }
}

impl Kit for OnSqlite {
    type Shelf<M: Stored> = Sqlite<M>;
    type Home = SqliteHome;

    fn home() -> SqliteHome {
        SqliteHome::fenced(Fence::Locked).unwrap()
    }
}

/// Makes one test a store of each body.
macro_rules! on_both_stores {
    ($($body:ident),+ $(,)?) => {
        mod on_memory { $(#[test] fn $body() { super::$body::<crate::support::InMemory>(); })+ }
        mod on_sqlite { $(#[test] fn $body() { super::$body::<crate::support::OnSqlite>(); })+ }
    };
}
pub(crate) use on_both_stores;

/// An id that no other report has.
pub(crate) fn fresh() -> u128 {
    static LAST: AtomicU64 = AtomicU64::new(1_000);
    u128::from(LAST.fetch_add(1, Ordering::Relaxed))
}

/// A value of the kind, different from nothing.
pub(crate) fn sample(column: Column) -> Value {
    match column.kind {
        Kind::Bool => Value::Bool(true),
        Kind::Int => Value::Int(7),
        Kind::Id => Value::Id(7),
        Kind::Text => Value::Text("/srv/space".into()),
        Kind::Time => Value::Time(7),
    }
}

/// Bends facts and payload until `check` holds, or does not.
pub(crate) fn bend(check: &Check, holds: bool, facts: &mut Facts, payload: &mut Facts) {
    match check.test {
        Test::Null(column) if holds => facts.set(column, Value::Null),
        Test::Null(column) => facts.set(column, sample(column)),
        Test::Present(column) if holds => facts.set(column, sample(column)),
        Test::Present(column) => facts.set(column, Value::Null),
        Test::True(column) => facts.set(column, Value::Bool(holds)),
        Test::NotTrue(column) => facts.set(column, Value::Bool(!holds)),
        Test::Same(column, field) => {
            let known = facts.get(column).clone();
            let current = if known.is_null() { sample(column) } else { known };
            facts.set(column, current.clone());
            payload.set(field, if holds { current } else { Value::Id(fresh()) });
        }
        Test::Below(low, high) => {
            facts.set(low, Value::Int(i64::from(!holds)));
            facts.set(high, Value::Int(1));
        }
    }
    assert_eq!(check.holds(facts, payload), holds, "{} can't be bent", check.name);
}

/// Facts and payload with which nothing stands in the way of `event`.
pub(crate) fn clean(table: &Table, event: usize, mut facts: Facts) -> (Facts, Facts) {
    let mut payload = Facts::NONE;
    for field in &table.events[event].carries {
        let value = if field.kind == Kind::Id { Value::Id(fresh()) } else { sample(*field) };
        payload.set(*field, value);
    }
    for check in &table.events[event].checks {
        bend(check, true, &mut facts, &mut payload);
    }
    (facts, payload)
}

/// Somebody who may report `event`.
pub(crate) fn reporter(table: &Table, event: usize) -> Source {
    table.events[event].reporters.first().copied().unwrap_or(Source::User)
}

fn way(table: &Table, to: usize) -> Vec<(usize, usize, usize)> {
    let mut open = VecDeque::from([(table.initial, Vec::new())]);
    let mut seen = vec![table.initial];
    while let Some((at, steps)) = open.pop_front() {
        if at == to {
            return steps;
        }
        for edge in table.edges().into_iter().filter(|(_, from, _)| *from == at) {
            if !seen.contains(&edge.2) {
                seen.push(edge.2);
                let mut longer = steps.clone();
                longer.push(edge);
                open.push_back((edge.2, longer));
            }
        }
    }
    panic!("no way to {}", table.statuses[to].code);
}

/// Reports the event of an edge with everything it needs, and expects it to be taken.
pub(crate) fn take_edge<M: Stored>(
    shelf: &mut impl Shelf<M>,
    id: u128,
    (event, from, to): (usize, usize, usize),
) -> Report<M::Event> {
    let table = M::table();
    let (mut facts, mut payload) = clean(table, event, row(shelf, id).facts);
    if let Cell::ByFact { check, yes, .. } = table.cells[event][from] {
        bend(&check, to == yes, &mut facts, &mut payload);
    }
    dress::<M>(shelf, id, &facts);
    let mut report = Report::new(M::Event::ALL[event], fresh(), reporter(table, event));
    report.payload = payload;
    let outcome = shelf.report(id, &report).unwrap();
    assert!(outcome.landed_on(M::Status::ALL[to]), "{}: {outcome:?}", table.events[event].code);
    report
}

/// Gives every column of the row the value that `facts` has for it.
pub(crate) fn dress<M: Stored>(shelf: &mut impl Shelf<M>, id: u128, facts: &Facts) {
    for column in M::COLUMNS {
        shelf.write_aside(id, *column, facts.get(*column).clone()).unwrap();
    }
}

/// A row that came to `status` by events alone and then got these facts and no others.
pub(crate) fn place<M: Stored>(
    shelf: &mut impl Shelf<M>,
    id: u128,
    status: M::Status,
    facts: Facts,
) {
    shelf.insert(id, Facts::NONE, fresh()).unwrap();
    for edge in way(M::table(), status.index()) {
        take_edge::<M>(shelf, id, edge);
    }
    dress::<M>(shelf, id, &facts);
    assert_eq!(row(shelf, id).status, status);
}

/// The row, which is there.
pub(crate) fn row<M: Stored>(shelf: &mut impl Shelf<M>, id: u128) -> Row<M::Status> {
    shelf.find(id).unwrap().unwrap()
}

/// A report of the system's own, with a new id.
pub(crate) fn said<E>(event: E) -> Report<E> {
    Report::new(event, fresh(), Source::User)
}

/// Everything that was ever written: rows, steps, notices. Refusals are records of nothing and not
/// in it.
pub(crate) fn everything<M: Stored>(shelf: &mut impl Shelf<M>) -> String {
    let ids = shelf.ids().unwrap();
    let rows: Vec<_> = ids.into_iter().map(|id| (id, shelf.find(id).unwrap())).collect();
    format!("{rows:#?}\n{:#?}\n{:#?}", shelf.steps().unwrap(), shelf.notices().unwrap())
}

/// The topics of the row's notices so far.
pub(crate) fn topics<M: Stored>(shelf: &mut impl Shelf<M>, id: u128) -> Vec<String> {
    let notices = shelf.notices().unwrap();
    notices.into_iter().filter(|notice| notice.id == id).map(|notice| notice.topic).collect()
}
