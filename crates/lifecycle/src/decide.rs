//! The only evaluator. Pure and total: no clock, no I/O, an answer for everything.

use crate::fact::{Check, Facts};
use crate::outcome::Reason;
use crate::rule::{Source, Why};
use crate::table::{Cell, StampEntry, Table};

/// What somebody says has happened.
#[derive(Clone, Debug)]
pub struct Said<'a> {
    /// The number of the event.
    pub event: usize,
    /// Who says so.
    pub source: Source,
    /// What comes with it.
    pub payload: &'a Facts,
}

/// What follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The row moves to this status.
    Move(usize),
    /// It was so already.
    Duplicate,
    /// It does not hold.
    Refuse(Reason),
}

/// What `said` does to a row in `status` with `row` facts.
///
/// Staleness is judged before legality, so that a late answer to an old operation is never mistaken for a new
/// fact. Guards are not judged here: they need other rows, and so a store.
pub fn decide(table: &Table, status: usize, row: &Facts, said: &Said<'_>) -> Verdict {
    let event = &table.events[said.event];
    if !event.may_be_reported_by(said.source) {
        return Verdict::Refuse(Reason::Illegal(Why::Bug));
    }
    if let Some(check) = event.checks.iter().find(|check| !check.holds(row, said.payload)) {
        return Verdict::Refuse(Reason::Superseded(check.name));
    }
    match table.cells[said.event][status] {
        Cell::To(to) => Verdict::Move(to),
        Cell::ByFact { check, yes, no } => {
            Verdict::Move(if check.holds(row, said.payload) { yes } else { no })
        }
        Cell::Absent(Why::Duplicate) => Verdict::Duplicate,
        Cell::Absent(why) => Verdict::Refuse(Reason::Illegal(why)),
        Cell::Undecided => Verdict::Refuse(Reason::Illegal(Why::Bug)),
    }
}

/// The stamps of a move: the event's own, then those of the status it reaches, each where its conditions hold.
pub fn stamps_of<'t>(
    table: &'t Table,
    (from, to): (usize, usize),
    row: &Facts,
    said: &Said<'_>,
) -> Vec<&'t StampEntry> {
    let all = table.events[said.event].stamps.iter().chain(&table.statuses[to].stamps);
    all.filter(|stamp| stamp.from.is_empty() || stamp.from.contains(&from))
        .filter(|stamp| stamp.when.is_none_or(|check| check.holds(row, said.payload)))
        .collect()
}

/// Everything a move was judged by, and how: what must still be so at the moment at which it is written. That is the
/// event's checks, the condition of a cell with two targets, and the conditions of stamps, taken or not.
pub fn grounds_of(
    table: &Table,
    (from, to): (usize, usize),
    row: &Facts,
    said: &Said<'_>,
) -> Vec<(Check, bool)> {
    let event = &table.events[said.event];
    let mut grounds: Vec<(Check, bool)> = event.checks.iter().map(|check| (*check, true)).collect();
    let mut judge = |check: Check| grounds.push((check, check.holds(row, said.payload)));
    if let Cell::ByFact { check, .. } = table.cells[said.event][from] {
        judge(check);
    }
    let stamps = event.stamps.iter().chain(&table.statuses[to].stamps);
    stamps.filter_map(|stamp| stamp.when).for_each(&mut judge);
    grounds
}
