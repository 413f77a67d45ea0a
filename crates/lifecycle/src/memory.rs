//! A store in memory, for tests, examples and models. Its [`Fence`] can be weakened, to show what a weaker
//! compare-and-set lets through.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;

use crate::fact::{Column, Facts, Guard, Value};
use crate::machine::Lawful;
use crate::outcome::{Outcome, Refusal};
use crate::rule::Source;
use crate::writer::{Assign, Change, Entry, Report, Row, Store, apply, born, raised};

/// What a write is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Only the status: what a first attempt at a compare-and-set does. It has holes.
    StatusOnly,
    /// Status, sequence number and the checks of the event.
    Checked,
    /// The same, and nobody else can write between load and write.
    Locked,
}

/// A recorded refusal.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused<S> {
    /// The row.
    pub id: u128,
    /// The report.
    pub event_id: u128,
    /// What was said.
    pub refusal: Refusal<S>,
}

type Condition = Rc<dyn Fn(u128) -> bool>;

/// Rows of one machine, their log, outbox and refusals.
pub struct Memory<M: Lawful> {
    fence: Fence,
    rows: BTreeMap<u128, Row<M::Status>>,
    log: Vec<Entry<u128>>,
    refusals: Vec<Refused<M::Status>>,
    conditions: Vec<(Guard, Condition)>,
    locked: Option<u128>,
    waiting: Vec<(u128, Column, Value)>,
    clock: i64,
}

impl<M: Lawful> Default for Memory<M> {
    fn default() -> Self {
        Self::fenced(Fence::Locked)
    }
}

impl<M: Lawful> Memory<M> {
    /// An empty store with this fence.
    pub fn fenced(fence: Fence) -> Self {
        Self {
            fence,
            rows: BTreeMap::new(),
            log: Vec::new(),
            refusals: Vec::new(),
            conditions: Vec::new(),
            locked: None,
            waiting: Vec::new(),
            clock: 0,
        }
    }

    /// Says how a guard is answered. A guard nobody answers does not hold.
    pub fn answer(&mut self, guard: Guard, condition: impl Fn(u128) -> bool + 'static) {
        self.conditions.push((guard, Rc::new(condition)));
    }

    /// Inserts a row in its initial status and records its birth.
    pub fn insert(&mut self, id: u128, facts: Facts, event_id: u128, source: Source) {
        self.rows.insert(id, Row { status: M::INITIAL, seq: 1, facts });
        let Ok(()) = born::<M, _>(self, &id, event_id, source);
        self.release();
    }

    /// Reports an event; see [`apply`].
    pub fn apply(&mut self, id: u128, report: &Report<M::Event>) -> Outcome<M::Status> {
        let Ok(outcome) = apply::<M, _>(self, &id, report);
        self.release();
        outcome
    }

    /// Writes a column that is not the status, as code beside the writer would. Behind a lock it waits.
    pub fn write_aside(&mut self, id: u128, column: Column, value: Value) {
        if self.locked == Some(id) {
            self.waiting.push((id, column, value));
        } else if let Some(row) = self.rows.get_mut(&id) {
            row.facts.set(column, value);
        }
    }

    /// Runs `work`; if it fails, everything is as it was before.
    ///
    /// # Errors
    /// Whatever `work` fails with.
    pub fn transact<T, E>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        let (rows, logged, refused) = (self.rows.clone(), self.log.len(), self.refusals.len());
        let result = work(self);
        if result.is_err() {
            self.rows = rows;
            self.log.truncate(logged);
            self.refusals.truncate(refused);
        }
        result
    }

    /// The row.
    pub fn row(&self, id: u128) -> Option<&Row<M::Status>> {
        self.rows.get(&id)
    }

    /// Every row, by id.
    pub fn rows(&self) -> impl Iterator<Item = (u128, &Row<M::Status>)> {
        self.rows.iter().map(|(id, row)| (*id, row))
    }

    /// Every transition so far, births included.
    pub fn log(&self) -> &[Entry<u128>] {
        &self.log
    }

    /// What was made known so far: (topic, id, seq).
    pub fn outbox(&self) -> Vec<(&'static str, u128, i64)> {
        let of = |entry: &Entry<u128>| {
            let (id, seq) = (entry.id, entry.seq);
            entry.topics.iter().map(move |topic| (*topic, id, seq)).collect::<Vec<_>>()
        };
        self.log.iter().flat_map(of).collect()
    }

    /// Every refusal so far.
    pub fn refusals(&self) -> &[Refused<M::Status>] {
        &self.refusals
    }

    /// Ends the writer's hold on its row; who waited writes now.
    pub fn release(&mut self) {
        self.locked = None;
        for (id, column, value) in std::mem::take(&mut self.waiting) {
            self.write_aside(id, column, value);
        }
    }
}

impl<M: Lawful> Store<M> for Memory<M> {
    type Id = u128;
    type Error = Infallible;

    fn load(&mut self, id: &u128) -> Result<Option<Row<M::Status>>, Infallible> {
        if self.fence == Fence::Locked {
            self.locked = Some(*id);
        }
        Ok(self.rows.get(id).cloned())
    }

    fn knows(&mut self, id: &u128, event_id: u128) -> Result<bool, Infallible> {
        Ok(self.log.iter().any(|entry| entry.id == *id && entry.event_id == event_id))
    }

    fn guard(&mut self, id: &u128, guard: Guard) -> Result<bool, Infallible> {
        let answer = self.conditions.iter().find(|(known, _)| *known == guard);
        Ok(answer.is_some_and(|(_, condition)| condition(*id)))
    }

    fn compare_and_set(
        &mut self,
        id: &u128,
        change: &Change<'_, M::Status>,
    ) -> Result<bool, Infallible> {
        self.clock += 1;
        let Some(row) = self.rows.get_mut(id) else {
            return Ok(false);
        };
        let unchanged = match self.fence {
            Fence::StatusOnly => row.status == change.from,
            Fence::Checked | Fence::Locked => change.still_fits(row),
        };
        if unchanged {
            row.status = change.to;
            row.seq += 1;
            for assign in &change.assigns {
                match assign {
                    Assign::Value(column, value) => row.facts.set(*column, value.clone()),
                    Assign::Now(column) => row.facts.set(*column, Value::Time(self.clock)),
                    Assign::Raise(column) => row.facts.set(*column, raised(row.facts.get(*column))),
                }
            }
        }
        Ok(unchanged)
    }

    fn append(&mut self, entry: Entry<u128>) -> Result<(), Infallible> {
        self.log.push(entry);
        Ok(())
    }

    fn refused(
        &mut self,
        id: &u128,
        event_id: u128,
        refusal: &Refusal<M::Status>,
    ) -> Result<(), Infallible> {
        self.refusals.push(Refused { id: *id, event_id, refusal: refusal.clone() });
        Ok(())
    }
}
