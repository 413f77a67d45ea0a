//! What a machine is, and the door through which it becomes usable: [`lawful!`](crate::lawful).

use crate::code::Code;
use crate::rule::{Rule, StatusSpec};
use crate::table::Table;

/// A state machine as data. It has no behaviour of its own: everything reads these constants.
pub trait Machine: Copy + Send + Sync + 'static {
    /// Its statuses.
    type Status: Code;
    /// Its events.
    type Event: Code;
    /// Its name, in logs, documents and stores.
    const NAME: &'static str;
    /// The one status in which a row is born.
    const INITIAL: Self::Status;
    /// The topics on which a birth is made known.
    const BORN: &'static [&'static str] = &[];
    /// One entry a status.
    const STATUSES: &'static [StatusSpec<Self::Status, Self::Event>];
    /// One entry an event.
    const RULES: &'static [Rule<Self::Status, Self::Event>];
}

/// A machine that has passed the laws Rust can check. Writers take no other.
/// Implemented by [`lawful!`](crate::lawful) alone.
pub trait Lawful: Machine {
    /// The machine's table, compiled once.
    fn table() -> &'static Table;
}

/// Checks a machine while it is compiled and makes it [`Lawful`].
///
/// It does not compile when an event has no rule or two, a cell is undecided or decided twice, an event stands
/// still or leads nowhere, a terminal status has an exit, a status has no entry or can't be reached, or the
/// result of an operation does not check which operation it answers.
///
/// ```
/// use lifecycle::{Machine, Rule, StatusSpec, codes, lawful, on, restful, terminal};
/// codes! { pub enum Status { Open = "open", Closed = "closed" } }
/// codes! { pub enum Event { Closing = "door.closed" } }
///
/// #[derive(Clone, Copy)]
/// struct Door;
/// impl Machine for Door {
///     type Status = Status;
///     type Event = Event;
///     const NAME: &'static str = "door";
///     const INITIAL: Status = Status::Open;
///     const STATUSES: &'static [StatusSpec<Status, Event>] =
///         &[restful(Status::Open, "people walk in"), terminal(Status::Closed, "for good")];
///     const RULES: &'static [Rule<Status, Event>] =
///         &[on(Event::Closing).moves(&[Status::Open], Status::Closed).duplicate_in(&[Status::Closed])];
/// }
/// lawful!(Door);
/// ```
#[macro_export]
macro_rules! lawful {
    ($machine:ty) => {
        const _: () = {
            use $crate::shape::Shape;
            type Status = <$machine as $crate::Machine>::Status;
            type Event = <$machine as $crate::Machine>::Event;

            // Casting an enum to its number is the one thing only code that knows the concrete type can do.
            const SHAPE: Shape = {
                let mut shape = Shape::new(
                    <Status as $crate::Code>::ALL.len(),
                    <Event as $crate::Code>::ALL.len(),
                    <$machine as $crate::Machine>::INITIAL as usize,
                );
                let mut s = 0;
                while s < <$machine as $crate::Machine>::STATUSES.len() {
                    let spec = &<$machine as $crate::Machine>::STATUSES[s];
                    shape = shape.status(
                        spec.status as usize,
                        ::core::matches!(spec.rest, $crate::Rest::Terminal),
                    );
                    s += 1;
                }
                let mut r = 0;
                while r < <$machine as $crate::Machine>::RULES.len() {
                    let rule = &<$machine as $crate::Machine>::RULES[r];
                    let event = rule.event as usize;
                    shape =
                        shape.rule(event, rule.settles, $crate::shape::recognises(&rule.checks));
                    let mut i = 0;
                    while i < rule.arms.len() {
                        let arm = rule.arms.at(i);
                        let mut f = 0;
                        while f < arm.from.len() {
                            let from = arm.from[f] as usize;
                            shape = shape.edge(event, from, arm.to as usize);
                            if let Some((_, other)) = arm.otherwise {
                                shape = shape.second_edge(event, from, other as usize);
                            }
                            f += 1;
                        }
                        i += 1;
                    }
                    let mut i = 0;
                    while i < rule.absences.len() {
                        let absence = rule.absences.at(i);
                        let mut f = 0;
                        while f < absence.statuses.len() {
                            shape = shape.absence(event, absence.statuses[f] as usize);
                            f += 1;
                        }
                        i += 1;
                    }
                    let mut i = 0;
                    while i < rule.remarks.len() {
                        let remark = rule.remarks.at(i);
                        let mut f = 0;
                        while remark.observed && f < remark.statuses.len() {
                            shape = shape.observed(event, remark.statuses[f] as usize);
                            f += 1;
                        }
                        i += 1;
                    }
                    r += 1;
                }
                shape
            };
            const _: () = SHAPE.assert_lawful();

            impl $crate::Lawful for $machine {
                fn table() -> &'static $crate::Table {
                    static TABLE: ::std::sync::OnceLock<$crate::Table> =
                        ::std::sync::OnceLock::new();
                    TABLE.get_or_init($crate::Table::of::<$machine>)
                }
            }
        };
    };
}
