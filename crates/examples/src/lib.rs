//! Two worked examples of the `lifecycle` library: the machines of agent threads and of their
//! environments, as they first were and redesigned, on a store in memory and on SQLite.
//! `LIFECYCLES.md` shows all four.
//!
//! # What does not compile
//!
//! Each pair differs in one line. A forgotten event, or a forgotten status of an event:
//!
//! ```
//! use lifecycle::{Machine, Rule, StatusSpec, codes, lawful, on, restful, terminal};
//! codes! { pub enum Status { Open = "open", Shut = "shut", Gone = "gone" } }
//! codes! { pub enum Event { Closing = "door.closed", Opening = "door.opened", Removal = "door.removed" } }
//! #[derive(Clone, Copy)]
//! struct Door;
//! impl Machine for Door {
//!     type Status = Status;
//!     type Event = Event;
//!     const NAME: &'static str = "door";
//!     const INITIAL: Status = Status::Open;
//!     const STATUSES: &'static [StatusSpec<Status, Event>] =
//!         &[restful(Status::Open, ""), restful(Status::Shut, ""), terminal(Status::Gone, "")];
//!     const RULES: &'static [Rule<Status, Event>] = &[
//!         on(Event::Closing).moves(&[Status::Open], Status::Shut).duplicate_in(&[Status::Shut]).late_in(&[Status::Gone]),
//!         on(Event::Opening).moves(&[Status::Shut], Status::Open).duplicate_in(&[Status::Open]).late_in(&[Status::Gone]),
//!         on(Event::Removal).moves(&[Status::Open, Status::Shut], Status::Gone).duplicate_in(&[Status::Gone]),
//!     ];
//! }
//! lawful!(Door);
//! ```
//!
//! ```compile_fail,E0080
//! use lifecycle::{Machine, Rule, StatusSpec, codes, lawful, on, restful, terminal};
//! codes! { pub enum Status { Open = "open", Shut = "shut", Gone = "gone" } }
//! codes! { pub enum Event { Closing = "door.closed", Opening = "door.opened", Removal = "door.removed" } }
//! #[derive(Clone, Copy)]
//! struct Door;
//! impl Machine for Door {
//!     type Status = Status;
//!     type Event = Event;
//!     const NAME: &'static str = "door";
//!     const INITIAL: Status = Status::Open;
//!     const STATUSES: &'static [StatusSpec<Status, Event>] =
//!         &[restful(Status::Open, ""), restful(Status::Shut, ""), terminal(Status::Gone, "")];
//!     const RULES: &'static [Rule<Status, Event>] = &[
//!         on(Event::Closing).moves(&[Status::Open], Status::Shut).duplicate_in(&[Status::Shut]).late_in(&[Status::Gone]),
//!         on(Event::Removal).moves(&[Status::Open, Status::Shut], Status::Gone).duplicate_in(&[Status::Gone]),
//!     ];
//! }
//! lawful!(Door);
//! ```
//!
//! ```compile_fail,E0080
//! use lifecycle::{Machine, Rule, StatusSpec, codes, lawful, on, restful, terminal};
//! codes! { pub enum Status { Open = "open", Shut = "shut", Gone = "gone" } }
//! codes! { pub enum Event { Closing = "door.closed", Opening = "door.opened", Removal = "door.removed" } }
//! #[derive(Clone, Copy)]
//! struct Door;
//! impl Machine for Door {
//!     type Status = Status;
//!     type Event = Event;
//!     const NAME: &'static str = "door";
//!     const INITIAL: Status = Status::Open;
//!     const STATUSES: &'static [StatusSpec<Status, Event>] =
//!         &[restful(Status::Open, ""), restful(Status::Shut, ""), terminal(Status::Gone, "")];
//!     const RULES: &'static [Rule<Status, Event>] = &[
//!         on(Event::Closing).moves(&[Status::Open], Status::Shut).duplicate_in(&[Status::Shut]),
//!         on(Event::Opening).moves(&[Status::Shut], Status::Open).duplicate_in(&[Status::Open]).late_in(&[Status::Gone]),
//!         on(Event::Removal).moves(&[Status::Open, Status::Shut], Status::Gone).duplicate_in(&[Status::Gone]),
//!     ];
//! }
//! lawful!(Door);
//! ```
//!
//! A terminal status with an exit:
//!
//! ```compile_fail,E0080
//! use lifecycle::{Machine, Rule, StatusSpec, codes, lawful, on, restful, terminal};
//! codes! { pub enum Status { Open = "open", Shut = "shut", Gone = "gone" } }
//! codes! { pub enum Event { Closing = "door.closed", Opening = "door.opened", Removal = "door.removed" } }
//! #[derive(Clone, Copy)]
//! struct Door;
//! impl Machine for Door {
//!     type Status = Status;
//!     type Event = Event;
//!     const NAME: &'static str = "door";
//!     const INITIAL: Status = Status::Open;
//!     const STATUSES: &'static [StatusSpec<Status, Event>] =
//!         &[restful(Status::Open, ""), restful(Status::Shut, ""), terminal(Status::Gone, "")];
//!     const RULES: &'static [Rule<Status, Event>] = &[
//!         on(Event::Closing).moves(&[Status::Open], Status::Shut).duplicate_in(&[Status::Shut]).late_in(&[Status::Gone]),
//!         on(Event::Opening).moves(&[Status::Shut, Status::Gone], Status::Open).duplicate_in(&[Status::Open]),
//!         on(Event::Removal).moves(&[Status::Open, Status::Shut], Status::Gone).duplicate_in(&[Status::Gone]),
//!     ];
//! }
//! lawful!(Door);
//! ```
//!
//! A result that does not say which operation it answers, and its twin that does:
//!
//! ```compile_fail,E0080
//! use lifecycle::{Check, Machine, OPERATION_ID, Rule, StatusSpec, Test, codes, lawful, on, restful};
//! codes! { pub enum Status { Idle = "idle", Busy = "busy" } }
//! codes! { pub enum Event { Begun = "work.begun", Done = "work.done" } }
//! #[derive(Clone, Copy)]
//! struct Work;
//! impl Machine for Work {
//!     type Status = Status;
//!     type Event = Event;
//!     const NAME: &'static str = "work";
//!     const INITIAL: Status = Status::Idle;
//!     const STATUSES: &'static [StatusSpec<Status, Event>] =
//!         &[restful(Status::Idle, ""), restful(Status::Busy, "")];
//!     const RULES: &'static [Rule<Status, Event>] = &[
//!         on(Event::Begun).opens_operation().moves(&[Status::Idle], Status::Busy).duplicate_in(&[Status::Busy]),
//!         on(Event::Done).settles_by(Check::new("busy", Test::Present(OPERATION_ID)))
//!             .moves(&[Status::Busy], Status::Idle).duplicate_in(&[Status::Idle]),
//!     ];
//! }
//! lawful!(Work);
//! ```
//!
//! ```
//! use lifecycle::{Check, Machine, OPERATION_ID, Rule, StatusSpec, Test, codes, lawful, on, restful};
//! codes! { pub enum Status { Idle = "idle", Busy = "busy" } }
//! codes! { pub enum Event { Begun = "work.begun", Done = "work.done" } }
//! #[derive(Clone, Copy)]
//! struct Work;
//! impl Machine for Work {
//!     type Status = Status;
//!     type Event = Event;
//!     const NAME: &'static str = "work";
//!     const INITIAL: Status = Status::Idle;
//!     const STATUSES: &'static [StatusSpec<Status, Event>] =
//!         &[restful(Status::Idle, ""), restful(Status::Busy, "")];
//!     const RULES: &'static [Rule<Status, Event>] = &[
//!         on(Event::Begun).opens_operation().moves(&[Status::Idle], Status::Busy).duplicate_in(&[Status::Busy]),
//!         on(Event::Done).same_operation()
//!             .moves(&[Status::Busy], Status::Idle).duplicate_in(&[Status::Idle]),
//!     ];
//! }
//! lawful!(Work);
//! ```

pub mod columns;
pub mod environment_v1;
pub mod environment_v2;
pub mod home;
pub mod schema;
pub mod service;
pub mod shelf;
pub mod sqlite;
pub mod thread_v1;
pub mod thread_v2;

use lifecycle::{Lawful, Table};

/// The tables of the four machines, the first generation first.
pub fn tables() -> [&'static Table; 4] {
    [
        thread_v1::Thread::table(),
        environment_v1::Environment::table(),
        thread_v2::Thread::table(),
        environment_v2::Environment::table(),
    ]
}
