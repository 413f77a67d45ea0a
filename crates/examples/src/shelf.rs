//! What the examples ask of a store besides the writer's own needs: a place to put rows and a way
//! to look at everything that was written. One body of tests runs on each shelf.

use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error;
use std::rc::Rc;

use lifecycle::{
    Code, Column, Entry, Facts, Lawful, Memory, Outcome, Refusal, Report, Row, Source, Value,
};

/// One applied transition, as the log tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The row.
    pub id: u128,
    /// The number of the transition; a birth is 1.
    pub seq: i64,
    /// The report behind it.
    pub event_id: u128,
    /// The event.
    pub event: String,
    /// The status before; none for a birth.
    pub from: Option<String>,
    /// The status after.
    pub to: String,
    /// Who reported it.
    pub source: String,
    /// The operation it belongs to.
    pub operation: Option<u128>,
}

impl From<&Entry<u128>> for Step {
    fn from(entry: &Entry<u128>) -> Self {
        Self {
            id: entry.id,
            seq: entry.seq,
            event_id: entry.event_id,
            event: entry.event.to_owned(),
            from: entry.from.map(str::to_owned),
            to: entry.to.to_owned(),
            source: entry.source.code().to_owned(),
            operation: entry.operation,
        }
    }
}

/// One message to the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it is about.
    pub topic: String,
    /// The row.
    pub id: u128,
    /// The transition.
    pub seq: i64,
}

/// One report that changed nothing, as a log line would give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The row that the report was about.
    pub id: u128,
    /// The report.
    pub event_id: u128,
    /// The event.
    pub event: String,
    /// The status the row was in, where there was one.
    pub status: Option<String>,
    /// One word for counting.
    pub reason: String,
    /// The check or guard behind it.
    pub name: Option<String>,
    /// A sentence for people.
    pub detail: String,
}

impl Remark {
    /// What is kept of `refusal`.
    pub fn of<S: Code>(id: u128, event_id: u128, refusal: &Refusal<S>) -> Self {
        Self {
            id,
            event_id,
            event: refusal.event.to_owned(),
            status: refusal.status.map(|status| status.code().to_owned()),
            reason: refusal.reason.code().to_owned(),
            name: refusal.reason.name().map(str::to_owned),
            detail: refusal.to_string(),
        }
    }
}

/// Rows of one machine, with all that was recorded of them.
pub trait Shelf<M: Lawful> {
    /// What can break.
    type Fault: Error + 'static;

    /// Puts a row there in its initial status and records its birth.
    fn insert(&mut self, id: u128, facts: Facts, event_id: u128) -> Result<(), Self::Fault>;
    /// Reports an event, in the transaction that is open or else in its own.
    fn report(
        &mut self,
        id: u128,
        report: &Report<M::Event>,
    ) -> Result<Outcome<M::Status>, Self::Fault>;
    /// The row, if there is one.
    fn find(&mut self, id: u128) -> Result<Option<Row<M::Status>>, Self::Fault>;
    /// The ids of all rows, in order.
    fn ids(&mut self) -> Result<Vec<u128>, Self::Fault>;
    /// Writes a column that is not the status: the metadata writer.
    fn write_aside(&mut self, id: u128, column: Column, value: Value) -> Result<(), Self::Fault>;
    /// Every transition of this machine, in order.
    fn steps(&mut self) -> Result<Vec<Step>, Self::Fault>;
    /// Everything made known of this machine, in order.
    fn notices(&mut self) -> Result<Vec<Notice>, Self::Fault>;
    /// Every refusal of this machine, in order.
    fn remarks(&mut self) -> Result<Vec<Remark>, Self::Fault>;
}

impl<M: Lawful> Shelf<M> for Memory<M> {
    type Fault = Infallible;

    fn insert(&mut self, id: u128, facts: Facts, event_id: u128) -> Result<(), Infallible> {
        Memory::insert(self, id, facts, event_id, Source::User);
        Ok(())
    }

    fn report(
        &mut self,
        id: u128,
        report: &Report<M::Event>,
    ) -> Result<Outcome<M::Status>, Infallible> {
        Ok(self.apply(id, report))
    }

    fn find(&mut self, id: u128) -> Result<Option<Row<M::Status>>, Infallible> {
        Ok(self.row(id).cloned())
    }

    fn ids(&mut self) -> Result<Vec<u128>, Infallible> {
        Ok(self.rows().map(|(id, _)| id).collect())
    }

    fn write_aside(&mut self, id: u128, column: Column, value: Value) -> Result<(), Infallible> {
        Memory::write_aside(self, id, column, value);
        Ok(())
    }

    fn steps(&mut self) -> Result<Vec<Step>, Infallible> {
        Ok(self.log().iter().map(Step::from).collect())
    }

    fn notices(&mut self) -> Result<Vec<Notice>, Infallible> {
        let notice = |(topic, id, seq): (&str, _, _)| Notice { topic: topic.to_owned(), id, seq };
        Ok(self.outbox().into_iter().map(notice).collect())
    }

    fn remarks(&mut self) -> Result<Vec<Remark>, Infallible> {
        let remark =
            |r: &lifecycle::memory::Refused<M::Status>| Remark::of(r.id, r.event_id, &r.refusal);
        Ok(self.refusals().iter().map(remark).collect())
    }
}

/// A shelf that others look into as well, as a guard on another machine must.
impl<M: Lawful, T: Shelf<M>> Shelf<M> for Rc<RefCell<T>> {
    type Fault = T::Fault;

    fn insert(&mut self, id: u128, facts: Facts, event_id: u128) -> Result<(), T::Fault> {
        self.borrow_mut().insert(id, facts, event_id)
    }

    fn report(
        &mut self,
        id: u128,
        report: &Report<M::Event>,
    ) -> Result<Outcome<M::Status>, T::Fault> {
        self.borrow_mut().report(id, report)
    }

    fn find(&mut self, id: u128) -> Result<Option<Row<M::Status>>, T::Fault> {
        self.borrow_mut().find(id)
    }

    fn ids(&mut self) -> Result<Vec<u128>, T::Fault> {
        self.borrow_mut().ids()
    }

    fn write_aside(&mut self, id: u128, column: Column, value: Value) -> Result<(), T::Fault> {
        self.borrow_mut().write_aside(id, column, value)
    }

    fn steps(&mut self) -> Result<Vec<Step>, T::Fault> {
        self.borrow_mut().steps()
    }

    fn notices(&mut self) -> Result<Vec<Notice>, T::Fault> {
        self.borrow_mut().notices()
    }

    fn remarks(&mut self) -> Result<Vec<Remark>, T::Fault> {
        self.borrow_mut().remarks()
    }
}
