//! The words in which a machine is written down: one [`Rule`] an event, one [`StatusSpec`] a status.
//! Everything here is `const`, so a table is data that the compiler can look through.

use crate::fact::{Check, Column, Guard, SAME_OPERATION};

crate::codes! {
    /// Who reports an event, or owns the next step of a status.
    pub enum Source {
        /// A person who uses the product.
        User = "user",
        /// A person who runs the product.
        Operator = "operator",
        /// The product's own background work.
        Worker = "worker",
        /// The remote party that carries work out.
        Agent = "agent",
        /// A deadline that passed.
        Timer = "timer",
        /// A comparison of what is recorded with what is there.
        Reconciler = "reconciler",
        /// A third party outside the product.
        Outside = "outside",
        /// A status computed from other statuses.
        Derived = "derived",
    }
}

crate::codes! {
    /// Why a cell of the matrix leads nowhere.
    pub enum Why {
        /// Already so.
        Duplicate = "duplicate",
        /// The world moved on.
        Late = "late",
        /// Nobody should have said this.
        Bug = "bug",
    }
}

/// A short list that can be built in a `const`.
#[derive(Clone, Copy, Debug)]
pub struct List<T, const N: usize> {
    items: [Option<T>; N],
    len: usize,
}

impl<T: Copy, const N: usize> List<T, N> {
    pub(crate) const EMPTY: Self = Self { items: [None; N], len: 0 };

    pub(crate) const fn push(mut self, item: T) -> Self {
        assert!(self.len < N, "more entries than a list of this kind takes");
        self.items[self.len] = Some(item);
        self.len += 1;
        self
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The one at `index`, which must be below [`List::len`].
    pub const fn at(&self, index: usize) -> T {
        match self.items[index] {
            Some(item) => item,
            None => panic!("past the end of the list"),
        }
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        self.items.into_iter().flatten()
    }
}

/// What a stamp writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// The moment of the write, by the store's clock.
    Now,
    /// The field of that name of the report.
    Field(Column),
    /// Nothing: the column becomes empty.
    Clear,
    /// One more than before.
    Raise,
}

/// A column written together with the status.
#[derive(Clone, Copy, Debug)]
pub struct Stamp<S: 'static> {
    /// The column.
    pub column: Column,
    /// What it gets.
    pub set: Set,
    /// Only when the row comes from one of these; empty means from anywhere.
    pub from: &'static [S],
    /// Only when this holds.
    pub when: Option<Check>,
}

impl<S: Copy> Stamp<S> {
    const fn new(column: Column, set: Set) -> Self {
        Self { column, set, from: &[], when: None }
    }

    /// Stamps the moment.
    pub const fn now(column: Column) -> Self {
        Self::new(column, Set::Now)
    }

    /// Stamps the report's field of the same name.
    pub const fn field(column: Column) -> Self {
        Self::new(column, Set::Field(column))
    }

    /// Empties the column.
    pub const fn clear(column: Column) -> Self {
        Self::new(column, Set::Clear)
    }

    /// Counts the column up.
    pub const fn raise(column: Column) -> Self {
        Self::new(column, Set::Raise)
    }

    /// Restricts the stamp to rows that come from one of `statuses`.
    #[must_use]
    pub const fn coming_from(mut self, statuses: &'static [S]) -> Self {
        self.from = statuses;
        self
    }

    /// Restricts the stamp to rows for which `check` holds.
    #[must_use]
    pub const fn when(mut self, check: Check) -> Self {
        self.when = Some(check);
        self
    }
}

/// One set of sources with one target.
#[derive(Clone, Copy, Debug)]
pub struct Arm<S: 'static> {
    /// The statuses it leaves.
    pub from: &'static [S],
    /// The status it leads to.
    pub to: S,
    /// Where it leads instead when the check does not hold.
    pub otherwise: Option<(Check, S)>,
}

/// Statuses in which an event leads nowhere, and why.
#[derive(Clone, Copy, Debug)]
pub struct Absence<S: 'static> {
    /// The statuses.
    pub statuses: &'static [S],
    /// The reason.
    pub why: Why,
}

/// A remark on the cells of some statuses.
#[derive(Clone, Copy, Debug)]
pub struct Remark<S: 'static> {
    /// The statuses.
    pub statuses: &'static [S],
    /// What there is to say.
    pub text: &'static str,
    /// Kept although it looks wrong, because it was observed to happen.
    pub observed: bool,
}

/// Everything there is to say about one event.
#[derive(Clone, Copy, Debug)]
pub struct Rule<S: 'static, E> {
    /// The event.
    pub event: E,
    /// Where it leads.
    pub arms: List<Arm<S>, 6>,
    /// Where it does not lead anywhere.
    pub absences: List<Absence<S>, 6>,
    /// Who may report it; empty means anybody.
    pub reporters: &'static [Source],
    /// The fields its reports carry.
    pub carries: List<Column, 6>,
    /// The predicates under which it is superseded, in the order in which they are tried.
    pub checks: List<Check, 4>,
    /// The conditions on other rows.
    pub guards: List<Guard, 2>,
    /// What it writes beside the status.
    pub stamps: List<Stamp<S>, 6>,
    /// The topics on which it is made known.
    pub publishes: List<&'static str, 2>,
    /// Whether it reports the result of an asynchronous operation.
    pub settles: bool,
    /// Remarks on single cells.
    pub remarks: List<Remark<S>, 4>,
}

/// Begins the rule of `event`.
pub const fn on<S: Copy, E: Copy>(event: E) -> Rule<S, E> {
    Rule {
        event,
        arms: List::EMPTY,
        absences: List::EMPTY,
        reporters: &[],
        carries: List::EMPTY,
        checks: List::EMPTY,
        guards: List::EMPTY,
        stamps: List::EMPTY,
        publishes: List::EMPTY,
        settles: false,
        remarks: List::EMPTY,
    }
}

impl<S: Copy, E: Copy> Rule<S, E> {
    /// From each of `from`, the event leads to `to`.
    #[must_use]
    pub const fn moves(mut self, from: &'static [S], to: S) -> Self {
        self.arms = self.arms.push(Arm { from, to, otherwise: None });
        self
    }

    /// From each of `from`, the event leads to `yes` when `check` holds, else to `no`.
    #[must_use]
    pub const fn moves_by(mut self, from: &'static [S], check: Check, yes: S, no: S) -> Self {
        self.arms = self.arms.push(Arm { from, to: yes, otherwise: Some((check, no)) });
        self
    }

    /// In these statuses it is already so.
    #[must_use]
    pub const fn duplicate_in(self, statuses: &'static [S]) -> Self {
        self.absent(statuses, Why::Duplicate)
    }

    /// In these statuses the world has moved on.
    #[must_use]
    pub const fn late_in(self, statuses: &'static [S]) -> Self {
        self.absent(statuses, Why::Late)
    }

    /// In these statuses nobody should have said it.
    #[must_use]
    pub const fn bug_in(self, statuses: &'static [S]) -> Self {
        self.absent(statuses, Why::Bug)
    }

    const fn absent(mut self, statuses: &'static [S], why: Why) -> Self {
        self.absences = self.absences.push(Absence { statuses, why });
        self
    }

    /// Only these may report it.
    #[must_use]
    pub const fn by(mut self, reporters: &'static [Source]) -> Self {
        self.reporters = reporters;
        self
    }

    /// Its reports carry this field.
    #[must_use]
    pub const fn carries(mut self, field: Column) -> Self {
        self.carries = self.carries.push(field);
        self
    }

    /// It is superseded unless `check` holds.
    #[must_use]
    pub const fn needs(mut self, check: Check) -> Self {
        self.checks = self.checks.push(check);
        self
    }

    /// It reports the result of an operation: it names the operation, and an answer to another one is superseded.
    #[must_use]
    pub const fn same_operation(self) -> Self {
        self.carries(crate::fact::OPERATION_ID).settles_by(SAME_OPERATION)
    }

    /// It reports the result of an operation that `check` recognises.
    #[must_use]
    pub const fn settles_by(mut self, check: Check) -> Self {
        self.settles = true;
        self.needs(check)
    }

    /// It begins an operation, whose id its reports carry and the row then keeps.
    #[must_use]
    pub const fn opens_operation(self) -> Self {
        self.takes(crate::fact::OPERATION_ID)
    }

    /// Its reports carry this field, and the row's column of the same name keeps it.
    #[must_use]
    pub const fn takes(self, column: Column) -> Self {
        self.carries(column).stamps(Stamp::field(column))
    }

    /// It holds only while this condition on other rows does.
    #[must_use]
    pub const fn guarded(mut self, guard: Guard) -> Self {
        self.guards = self.guards.push(guard);
        self
    }

    /// It writes this beside the status.
    #[must_use]
    pub const fn stamps(mut self, stamp: Stamp<S>) -> Self {
        self.stamps = self.stamps.push(stamp);
        self
    }

    /// It is made known on this topic.
    #[must_use]
    pub const fn publishes(mut self, topic: &'static str) -> Self {
        self.publishes = self.publishes.push(topic);
        self
    }

    /// The cells of these statuses look wrong and are kept because they were observed.
    #[must_use]
    pub const fn observed(mut self, statuses: &'static [S], text: &'static str) -> Self {
        self.remarks = self.remarks.push(Remark { statuses, text, observed: true });
        self
    }

    /// A remark on the cells of these statuses, absent ones included.
    #[must_use]
    pub const fn remark(mut self, statuses: &'static [S], text: &'static str) -> Self {
        self.remarks = self.remarks.push(Remark { statuses, text, observed: false });
        self
    }
}

/// What sort of status this is: who leaves it, and by when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest<E> {
    /// Nothing leads out of it.
    Terminal,
    /// It may last as long as it likes.
    Restful,
    /// It waits for a person, and is on the stuck list when it has waited longer than this.
    Parked {
        /// Who must act.
        owner: Source,
        /// For how long it may wait unnoticed.
        seconds: u32,
    },
    /// It is on its way, and does not stay.
    Transient {
        /// Who takes the next step.
        owner: Source,
        /// By when.
        seconds: u32,
        /// What is reported when that moment has passed.
        time_out: E,
    },
    /// It follows other rows, whose own deadlines hold.
    Derived,
}

/// Everything there is to say about one status.
#[derive(Clone, Copy, Debug)]
pub struct StatusSpec<S: 'static, E> {
    /// The status.
    pub status: S,
    /// What sort it is.
    pub rest: Rest<E>,
    /// What it means, for people.
    pub meaning: &'static str,
    /// What reaching it writes, whichever event led there.
    pub stamps: List<Stamp<S>, 4>,
}

impl<S: Copy, E: Copy> StatusSpec<S, E> {
    const fn new(status: S, rest: Rest<E>, meaning: &'static str) -> Self {
        Self { status, rest, meaning, stamps: List::EMPTY }
    }

    /// Reaching this status writes `stamp`, whichever event led there.
    #[must_use]
    pub const fn entering(mut self, stamp: Stamp<S>) -> Self {
        self.stamps = self.stamps.push(stamp);
        self
    }
}

/// A status that nothing leads out of.
pub const fn terminal<S: Copy, E: Copy>(status: S, meaning: &'static str) -> StatusSpec<S, E> {
    StatusSpec::new(status, Rest::Terminal, meaning)
}

/// A status that may last.
pub const fn restful<S: Copy, E: Copy>(status: S, meaning: &'static str) -> StatusSpec<S, E> {
    StatusSpec::new(status, Rest::Restful, meaning)
}

/// A status that waits for a person, unnoticed for `seconds` at the most.
pub const fn parked<S: Copy, E: Copy>(
    status: S,
    owner: Source,
    seconds: u32,
    meaning: &'static str,
) -> StatusSpec<S, E> {
    StatusSpec::new(status, Rest::Parked { owner, seconds }, meaning)
}

/// A status that `owner` leaves within `seconds`, or else `time_out` is reported.
pub const fn transient<S: Copy, E: Copy>(
    status: S,
    owner: Source,
    seconds: u32,
    time_out: E,
    meaning: &'static str,
) -> StatusSpec<S, E> {
    StatusSpec::new(status, Rest::Transient { owner, seconds, time_out }, meaning)
}

/// A status that is computed from other rows.
pub const fn derived<S: Copy, E: Copy>(status: S, meaning: &'static str) -> StatusSpec<S, E> {
    StatusSpec::new(status, Rest::Derived, meaning)
}
