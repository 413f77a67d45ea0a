//! The reference: every machine written down a second time, from the contract, as text made for reading beside it, with
//! a parser and an evaluator of its own. It shares no code with the library's evaluator; the two must agree.

use std::fmt;

pub mod bridge;
pub mod oracle;
mod parse;

/// The most facts a machine may have.
pub const FACTS_MAX: usize = 12;

/// No value at all.
pub const NOTHING: i64 = i64::MIN;

/// The values of all facts of a machine, by their numbers. What a number stands for is the kind's business.
pub type Values = [i64; FACTS_MAX];

/// Who may report, in the order of the bits of [`Event::by`].
pub const SOURCES: [&str; 8] =
    ["user", "operator", "worker", "agent", "timer", "reconciler", "outside", "derived"];

/// A column of the row, and the field of a report that has its name.
#[derive(Clone, Copy, Debug)]
pub struct Fact {
    /// Its name.
    pub name: &'static str,
    /// What it holds: `bool`, `int`, `id`, `text` or `time`.
    pub kind: &'static str,
}

/// What can be asked of a row (by the number of a fact) and of a report.
#[derive(Clone, Copy, Debug)]
pub enum Question {
    /// Is it empty?
    Empty(usize),
    /// Is it there?
    There(usize),
    /// Is it true?
    Yes(usize),
    /// Is it anything but true?
    NotYes(usize),
    /// Is the row's fact what the report says?
    Told(usize, usize),
    /// Is the first number smaller than the second?
    Less(usize, usize),
}

/// A question with a name.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// Its name.
    pub name: &'static str,
    /// What it asks.
    pub question: Question,
}

/// What is written into a column.
#[derive(Clone, Copy, Debug)]
pub enum Ink {
    /// The moment.
    Now,
    /// A field of the report.
    Told(usize),
    /// Nothing: it becomes empty.
    Nothing,
    /// One more than there was.
    OneMore,
}

/// A column that is written with the status.
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    /// Which column.
    pub fact: usize,
    /// With what.
    pub ink: Ink,
    /// Coming from which statuses, a bit each.
    pub from: u32,
    /// Under which condition.
    pub when: Option<Condition>,
}

/// A status.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its name.
    pub name: &'static str,
    /// Everything declared about its end: kind, owner, seconds, time-out event, in these words.
    pub rest: String,
    /// What reaching it writes.
    pub enter: Vec<Writing>,
}

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// Who may report it, a bit for each of [`SOURCES`].
    pub by: u32,
    /// Whether it is the result of an operation.
    pub settles: bool,
    /// The fields it carries.
    pub carries: Vec<usize>,
    /// Its checks, in order.
    pub checks: Vec<Condition>,
    /// Which way a forked cell goes.
    pub fork: Option<Condition>,
    /// Its guards.
    pub guards: Vec<&'static str>,
    /// What it writes.
    pub stamps: Vec<Writing>,
    /// Its topics.
    pub topics: Vec<&'static str>,
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug)]
pub enum Cell {
    /// To this status.
    Status(usize),
    /// To the first if the event's fork holds, else to the second.
    Fork(usize, usize),
    /// Already so.
    Duplicate,
    /// Too late.
    Late,
    /// Never to be said.
    Bug,
}

/// A machine, as the contract has it.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Its name.
    pub name: &'static str,
    /// The status of a newborn row.
    pub initial: usize,
    /// The topics of a birth.
    pub born: Vec<&'static str>,
    /// Its facts.
    pub facts: Vec<Fact>,
    /// Its statuses.
    pub statuses: Vec<Status>,
    /// Its events.
    pub events: Vec<Event>,
    /// Cells, one event's row after the other.
    pub matrix: Vec<Cell>,
}

/// Something told about a row.
#[derive(Clone, Copy, Debug)]
pub struct Tale<'a> {
    /// The number of the event.
    pub event: usize,
    /// The number of the source.
    pub source: usize,
    /// The fields.
    pub fields: &'a Values,
    /// The moment.
    pub now: i64,
}

/// What follows from a tale, guards left aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The row moves.
    Moves {
        /// To this status.
        to: usize,
        /// With these columns written, a bit each.
        written: u32,
        /// So that it reads like this.
        row: Values,
    },
    /// It is so already.
    Duplicate,
    /// The named check fails.
    Superseded(&'static str),
    /// Too late.
    Late,
    /// Never to be said.
    Bug,
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Judged::Moves { to, .. } => write!(f, "moves to status {to}"),
            Judged::Duplicate => f.write_str("duplicate"),
            Judged::Superseded(check) => write!(f, "superseded by {check}"),
            Judged::Late => f.write_str("late"),
            Judged::Bug => f.write_str("bug"),
        }
    }
}

impl Condition {
    /// 1 when the answer is no, so that answers can be added up to a mask.
    fn fails(&self, row: &Values, fields: &Values) -> u32 {
        let holds = match self.question {
            Question::Empty(fact) => row[fact] == NOTHING,
            Question::There(fact) => row[fact] != NOTHING,
            Question::Yes(fact) => row[fact] == 1,
            Question::NotYes(fact) => row[fact] != 1,
            Question::Told(fact, field) => row[fact] == fields[field],
            Question::Less(low, high) => {
                row[low] != NOTHING && row[high] != NOTHING && row[low] < row[high]
            }
        };
        u32::from(!holds)
    }
}

impl Reference {
    /// What `tale` does to a row in `status` that reads `row`.
    pub fn judge(&self, status: usize, row: &Values, tale: Tale<'_>) -> Judged {
        let event = &self.events[tale.event];
        if event.by >> tale.source & 1 == 0 {
            return Judged::Bug;
        }
        // All checks are asked, and the lowest bit is the first that fails.
        let fold =
            |mask, (bit, check): (usize, &Condition)| mask | check.fails(row, tale.fields) << bit;
        let failed = event.checks.iter().enumerate().fold(0_u32, fold);
        if failed != 0 {
            return Judged::Superseded(event.checks[failed.trailing_zeros() as usize].name);
        }
        let to = match self.matrix[tale.event * self.statuses.len() + status] {
            Cell::Status(to) => to,
            Cell::Fork(yes, no) => {
                let astray = event.fork.map_or(0, |fork| fork.fails(row, tale.fields));
                [yes, no][astray as usize]
            }
            Cell::Duplicate => return Judged::Duplicate,
            Cell::Late => return Judged::Late,
            Cell::Bug => return Judged::Bug,
        };
        let (written, row) = self.written(status, to, row, tale);
        Judged::Moves { to, written, row }
    }

    /// Which columns a move writes, and how the row reads then. The status's own writings come last.
    fn written(&self, from: usize, to: usize, before: &Values, tale: Tale<'_>) -> (u32, Values) {
        let (mut mask, mut after) = (0, *before);
        for list in [&self.events[tale.event].stamps, &self.statuses[to].enter] {
            for writing in list {
                let unmet = writing.when.map_or(0, |when| when.fails(before, tale.fields));
                if writing.from >> from & 1 == 0 || unmet == 1 {
                    continue;
                }
                mask |= 1 << writing.fact;
                after[writing.fact] = match writing.ink {
                    Ink::Now => tale.now,
                    Ink::Told(field) => tale.fields[field],
                    Ink::Nothing => NOTHING,
                    Ink::OneMore => before[writing.fact].max(0) + 1,
                };
            }
        }
        (mask, after)
    }

    /// The facts that an answer about `event` can depend on: those of the row first, then those of the report.
    pub fn asked(&self, event: usize) -> (u32, u32) {
        let Event { checks, fork, stamps, .. } = &self.events[event];
        let writings =
            || stamps.iter().chain(self.statuses.iter().flat_map(|status| &status.enter));
        let conditions =
            checks.iter().chain(fork).copied().chain(writings().filter_map(|w| w.when));
        let (mut of_row, mut of_report) = (0, 0);
        for condition in conditions {
            match condition.question {
                Question::Empty(fact) | Question::There(fact) => of_row |= 1 << fact,
                Question::Yes(fact) | Question::NotYes(fact) => of_row |= 1 << fact,
                Question::Told(fact, field) => {
                    of_row |= 1 << fact;
                    of_report |= 1 << field;
                }
                Question::Less(low, high) => of_row |= 1 << low | 1 << high,
            }
        }
        let counted = writings().filter(|w| matches!(w.ink, Ink::OneMore)).map(|w| 1 << w.fact);
        (of_row | counted.fold(0, |mask, bit: u32| mask | bit), of_report)
    }

    /// Reads a reference from its text.
    ///
    /// # Errors
    /// The line that can't be read, and why.
    pub fn read(text: &'static str) -> Result<Reference, String> {
        parse::read(text)
    }
}

/// The references of all machines, in the order of the contract.
///
/// # Errors
/// The first line of a text that can't be read, and why.
pub fn all() -> Result<Vec<Reference>, String> {
    let texts = [
        include_str!("reference/allocation.txt"),
        include_str!("reference/allocation_group.txt"),
        include_str!("reference/claim.txt"),
        include_str!("reference/node.txt"),
        include_str!("reference/node_task.txt"),
        include_str!("reference/payment_session.txt"),
        include_str!("reference/terminal_session.txt"),
        include_str!("reference/storage_attachment.txt"),
        include_str!("reference/usage_record.txt"),
        include_str!("reference/balance.txt"),
    ];
    texts.into_iter().map(Reference::read).collect()
}
