//! The writer, for stores that answer at once: [`born`] and [`apply`] over the [`Store`] trait. A store that must
//! be awaited writes the same steps in its own way; the steps and their order are the contract.

use crate::code::Code;
use crate::decide::{Said, Verdict, decide, grounds_of, stamps_of};
use crate::fact::{Check, Column, Facts, Guard, Value};
use crate::machine::Lawful;
use crate::outcome::{Outcome, Reason, Refusal, Standing};
use crate::rule::{Set, Source};

/// A row as the evaluator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row<S> {
    /// Its status.
    pub status: S,
    /// The number of its last transition.
    pub seq: i64,
    /// Its other columns.
    pub facts: Facts,
}

/// What somebody reports. A caller never chooses a status.
#[derive(Clone, Debug)]
pub struct Report<E> {
    /// What happened.
    pub event: E,
    /// The identity of this fact: the same id reported twice is one report.
    pub event_id: u128,
    /// Who says so.
    pub source: Source,
    /// What comes with it.
    pub payload: Facts,
}

impl<E> Report<E> {
    /// A report without payload.
    pub fn new(event: E, event_id: u128, source: Source) -> Self {
        Self { event, event_id, source, payload: Facts::NONE }
    }

    /// The same with one more field.
    #[must_use]
    pub fn with(mut self, field: Column, value: Value) -> Self {
        self.payload.set(field, value);
        self
    }
}

/// One column a write sets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Assign {
    /// To this value.
    Value(Column, Value),
    /// To the moment of the write.
    Now(Column),
    /// To one more than it is.
    Raise(Column),
}

/// What a move writes to its row, and under which conditions.
#[derive(Clone, Debug)]
pub struct Change<'a, S> {
    /// The row must still be in this status,
    pub from: S,
    /// still be at this transition,
    pub seq: i64,
    /// and these checks must still hold, or still not,
    pub grounds: Vec<(Check, bool)>,
    /// with this payload.
    pub payload: &'a Facts,
    /// Then it moves here,
    pub to: S,
    /// its number rises by one, and these are set.
    pub assigns: Vec<Assign>,
}

impl<S: Code> Change<'_, S> {
    /// Whether a row still is what this change was judged by.
    pub fn still_fits(&self, row: &Row<S>) -> bool {
        let as_judged =
            |(check, held): &(Check, bool)| check.holds(&row.facts, self.payload) == *held;
        row.status == self.from && row.seq == self.seq && self.grounds.iter().all(as_judged)
    }
}

/// One applied transition, for the log and the outbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry<I> {
    /// The machine.
    pub machine: &'static str,
    /// The row.
    pub id: I,
    /// The number of the transition; a birth is 1.
    pub seq: i64,
    /// The identity of the report behind it.
    pub event_id: u128,
    /// The event; `born` for a birth.
    pub event: &'static str,
    /// The status before; none for a birth.
    pub from: Option<&'static str>,
    /// The status after.
    pub to: &'static str,
    /// Who reported it.
    pub source: Source,
    /// The operation it belongs to.
    pub operation: Option<u128>,
    /// The topics it is made known on.
    pub topics: Vec<&'static str>,
}

/// The name under which a birth is logged.
pub const BORN: &str = "born";

/// Where rows of machine `M` rest. All calls of one [`apply`] happen in one transaction of the store.
pub trait Store<M: Lawful> {
    /// What names a row.
    type Id: Clone;
    /// What can break.
    type Error;

    /// Reads a row and, where the store can, keeps others from changing it until the transaction ends.
    fn load(&mut self, id: &Self::Id) -> Result<Option<Row<M::Status>>, Self::Error>;
    /// Whether the log of this row has the event id. Asked after [`Store::load`], or two deliveries both miss.
    fn knows(&mut self, id: &Self::Id, event_id: u128) -> Result<bool, Self::Error>;
    /// Answers a condition on other rows, with what is true now, not at the time of the load.
    fn guard(&mut self, id: &Self::Id, guard: Guard) -> Result<bool, Self::Error>;
    /// Writes if the row still is what the change expects; says whether it did.
    fn compare_and_set(
        &mut self,
        id: &Self::Id,
        change: &Change<'_, M::Status>,
    ) -> Result<bool, Self::Error>;
    /// Adds to the log and to the outbox.
    fn append(&mut self, entry: Entry<Self::Id>) -> Result<(), Self::Error>;
    /// Keeps a record of a refusal.
    fn refused(
        &mut self,
        id: &Self::Id,
        event_id: u128,
        refusal: &Refusal<M::Status>,
    ) -> Result<(), Self::Error>;
}

/// Records the birth of a row that the caller has just inserted in its initial status.
///
/// # Errors
/// Whatever is broken in the store.
pub fn born<M: Lawful, T: Store<M>>(
    store: &mut T,
    id: &T::Id,
    event_id: u128,
    source: Source,
) -> Result<(), T::Error> {
    let operation = store.load(id)?.and_then(|row| operation_of(&row.facts));
    store.append(Entry {
        machine: M::NAME,
        id: id.clone(),
        seq: 1,
        event_id,
        event: BORN,
        from: None,
        to: M::INITIAL.code(),
        source,
        operation,
        topics: M::BORN.to_vec(),
    })
}

/// Reports an event to a row: lock, event-id look-up, evaluate, guards, compare-and-set, log, outbox.
///
/// # Errors
/// Whatever is broken in the store. A report that changes nothing is an [`Outcome`], not an error.
pub fn apply<M: Lawful, T: Store<M>>(
    store: &mut T,
    id: &T::Id,
    report: &Report<M::Event>,
) -> Result<Outcome<M::Status>, T::Error> {
    let Some(row) = store.load(id)? else {
        return refuse::<M, T>(store, id, report, None, Reason::NotFound);
    };
    let standing = Standing { status: row.status, seq: row.seq };
    if store.knows(id, report.event_id)? {
        return Ok(Outcome::Duplicate(standing));
    }

    let table = M::table();
    let said =
        Said { event: report.event.index(), source: report.source, payload: &report.payload };
    let to = match decide(table, row.status.index(), &row.facts, &said) {
        Verdict::Move(to) => M::Status::ALL[to],
        Verdict::Duplicate => return Ok(Outcome::Duplicate(standing)),
        Verdict::Refuse(reason) => {
            return refuse::<M, T>(store, id, report, Some(row.status), reason);
        }
    };
    for guard in &table.events[said.event].guards {
        if !store.guard(id, *guard)? {
            return refuse::<M, T>(store, id, report, Some(row.status), Reason::Guard(guard.0));
        }
    }

    if !move_row::<M, T>(store, id, report, &row, to)? {
        return refuse::<M, T>(store, id, report, Some(row.status), Reason::Conflict);
    }
    Ok(Outcome::Applied { from: row.status, to, seq: row.seq + 1 })
}

/// The move itself: the row if it still is what it was, then its record and its messages. Says whether it was.
fn move_row<M: Lawful, T: Store<M>>(
    store: &mut T,
    id: &T::Id,
    report: &Report<M::Event>,
    row: &Row<M::Status>,
    to: M::Status,
) -> Result<bool, T::Error> {
    let (table, payload) = (M::table(), &report.payload);
    let said = Said { event: report.event.index(), source: report.source, payload };
    let event = &table.events[said.event];
    let stamps = stamps_of(table, (row.status.index(), to.index()), &row.facts, &said);
    let assigns = stamps.iter().map(|stamp| assign(stamp.column, stamp.set, payload));
    let change = Change {
        from: row.status,
        seq: row.seq,
        grounds: grounds_of(table, (row.status.index(), to.index()), &row.facts, &said),
        payload,
        to,
        assigns: assigns.collect(),
    };
    if !store.compare_and_set(id, &change)? {
        return Ok(false);
    }
    store.append(Entry {
        machine: M::NAME,
        id: id.clone(),
        seq: row.seq + 1,
        event_id: report.event_id,
        event: report.event.code(),
        from: Some(row.status.code()),
        to: to.code(),
        source: report.source,
        operation: operation_of(payload).or_else(|| operation_of(&row.facts)),
        topics: event.publishes.clone(),
    })?;
    Ok(true)
}

fn refuse<M: Lawful, T: Store<M>>(
    store: &mut T,
    id: &T::Id,
    report: &Report<M::Event>,
    status: Option<M::Status>,
    reason: Reason,
) -> Result<Outcome<M::Status>, T::Error> {
    let refusal = Refusal::new::<M>(report.event, report.source, status, reason);
    store.refused(id, report.event_id, &refusal)?;
    Ok(Outcome::Refused(refusal))
}

fn operation_of(facts: &Facts) -> Option<u128> {
    match facts.get(crate::fact::OPERATION_ID) {
        Value::Id(id) => Some(*id),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Text(_) | Value::Time(_) => None,
    }
}

/// What a stamp writes, given the report.
pub fn assign(column: Column, set: Set, payload: &Facts) -> Assign {
    match set {
        Set::Now => Assign::Now(column),
        Set::Field(field) => Assign::Value(column, payload.get(field).clone()),
        Set::Clear => Assign::Value(column, Value::Null),
        Set::Raise => Assign::Raise(column),
    }
}

/// One more than a count; nothing counts as none.
pub fn raised(value: &Value) -> Value {
    Value::Int(if let Value::Int(count) = value { count + 1 } else { 1 })
}
