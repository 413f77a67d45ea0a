//! State machines as data, one pure evaluator, one compare-and-set writer, and the proofs that go with them.
//!
//! # Why
//!
//! The commonest bug of a system that asks others to do things is a late answer, applied after the world has moved on: a
//! stopped machine is revived, a released one billed. It lives wherever code reads a status, thinks, and writes one.
//! Here nobody writes a status. Callers **report what happened**; a table says what follows; one writer writes it, if
//! the row still is what it was; and a stale report is a value with a reason, not an exception and not an accident.
//!
//! # A machine
//!
//! Two enums and two lists. Every event says where it leads, and for every other status why it leads nowhere: it is
//! already so (`duplicate`), the world moved on (`late`), or nobody should have said it (`bug`). [`lawful!`] checks while
//! it compiles that nothing was forgotten.
//!
//! ```
//! use lifecycle::{
//!     Facts, Machine, Memory, OPERATION_ID, Outcome, Reason, Report, Rule, Source, StatusSpec, Value, codes, lawful,
//!     on, restful, terminal, transient,
//! };
//!
//! codes! { pub enum Status { Ordered = "ordered", Baking = "baking", Served = "served", Thrown = "thrown" } }
//! codes! { pub enum Event { Started = "baking.started", Baked = "baking.done", Burnt = "baking.failed" } }
//! use Event::*;
//! use Status::*;
//!
//! #[derive(Clone, Copy)]
//! struct Pizza;
//!
//! impl Machine for Pizza {
//!     type Status = Status;
//!     type Event = Event;
//!     const NAME: &'static str = "pizza";
//!     const INITIAL: Status = Ordered;
//!     const STATUSES: &'static [StatusSpec<Status, Event>] = &[
//!         restful(Ordered, "somebody is hungry"),
//!         // Whoever waits has a deadline, somebody who owns the next step, and an event for when it has passed.
//!         transient(Baking, Source::Agent, 900, Burnt, "in the oven"),
//!         terminal(Served, "eaten"),
//!         terminal(Thrown, "not eaten"),
//!     ];
//!     const RULES: &'static [Rule<Status, Event>] = &[
//!         on(Started).by(&[Source::User]).opens_operation()
//!             .moves(&[Ordered], Baking)
//!             .duplicate_in(&[Baking]).late_in(&[Served, Thrown]),
//!         // A result names the operation it answers; the answer to another one is superseded.
//!         on(Baked).by(&[Source::Agent]).same_operation()
//!             .moves(&[Baking], Served)
//!             .publishes("pizza.served")
//!             .duplicate_in(&[Served]).late_in(&[Thrown]).bug_in(&[Ordered]),
//!         on(Burnt).by(&[Source::Agent, Source::Timer, Source::Operator]).same_operation()
//!             .moves(&[Baking], Thrown)
//!             .duplicate_in(&[Thrown]).late_in(&[Served]).bug_in(&[Ordered]),
//!     ];
//! }
//! lawful!(Pizza);
//!
//! // The laws that need a graph are a test of one line.
//! assert_eq!(lifecycle::laws::breaches(&lifecycle::Table::of::<Pizza>()), []);
//!
//! let mut kitchen = Memory::<Pizza>::default();
//! kitchen.insert(1, Facts::NONE, 100, Source::User);
//! let started = Report::new(Started, 101, Source::User).with(OPERATION_ID, Value::Id(7));
//! assert!(kitchen.apply(1, &started).landed_on(Baking));
//! // The same fact told twice is one fact.
//! assert!(matches!(kitchen.apply(1, &started), Outcome::Duplicate(_)));
//!
//! // The oven answers for a pizza it was given another time.
//! let stale = Report::new(Baked, 102, Source::Agent).with(OPERATION_ID, Value::Id(6));
//! assert_eq!(kitchen.apply(1, &stale).reason(), Some(&Reason::Superseded("same_operation")));
//! let fresh = Report::new(Baked, 103, Source::Agent).with(OPERATION_ID, Value::Id(7));
//! assert!(kitchen.apply(1, &fresh).landed_on(Served));
//! assert_eq!(kitchen.outbox(), [("pizza.served", 1, 3)]);
//! assert_eq!(kitchen.log().len(), 3, "its birth and two transitions");
//! ```
//!
//! # What is where
//!
//! | to | see |
//! |---|---|
//! | write a machine down | [`codes!`], [`rule`], [`lawful!`] |
//! | ask what an event does | [`decide()`] |
//! | keep rows somewhere | the [`Store`] trait with [`born`] and [`apply`]; [`Memory`] is one |
//! | understand an answer | [`Outcome`]: applied, duplicate, or refused with a [`Reason`] |
//! | check a machine | [`laws`], at compile time [`shape`] |
//! | make races happen | [`Interleaved`], [`explore`] |
//! | check the tests | [`mutate`]: every table with one thing taken away |
//! | draw it | [`render`] |
//! | not start a thing twice in one process | [`InFlight`] |
//!
//! No async, no I/O, no dependencies.

pub mod code;
pub mod decide;
pub mod explore;
pub mod fact;
pub mod in_flight;
pub mod interleave;
pub mod laws;
pub mod machine;
pub mod memory;
pub mod mutate;
pub mod outcome;
pub mod render;
pub mod rule;
pub mod shape;
pub mod table;
pub mod writer;

pub use code::Code;
pub use decide::{Said, Verdict, decide, grounds_of, stamps_of};
pub use fact::{Check, Column, Facts, Guard, Kind, OPERATION_ID, SAME_OPERATION, Test, Value};
pub use in_flight::{InFlight, Permit};
pub use interleave::Interleaved;
pub use machine::{Lawful, Machine};
pub use memory::{Fence, Memory};
pub use outcome::{Outcome, Reason, Refusal, Standing};
pub use rule::{
    Rest, Rule, Set, Source, Stamp, StatusSpec, Why, derived, on, parked, restful, terminal,
    transient,
};
pub use table::{Cell, EventEntry, StampEntry, StatusEntry, Table};
pub use writer::{Assign, Change, Entry, Report, Row, Store, apply, born};
