//! A machine compiled into a dense matrix of plain values. The evaluator, the laws, the documents, the explorer
//! and the mutations all read this one form, so a changed copy behaves as a changed machine would.

use crate::code::Code;
use crate::fact::{Check, Column, Guard};
use crate::machine::Machine;
use crate::rule::{Rest, Rule, Set, Source, Stamp, Why};

/// What one event does in one status. Statuses are numbers: positions in [`Table::statuses`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// It leads to a status.
    To(usize),
    /// It leads to `yes` when the check holds, else to `no`.
    ByFact {
        /// The check that decides.
        check: Check,
        /// The target when it holds.
        yes: usize,
        /// The target when it does not.
        no: usize,
    },
    /// It leads nowhere.
    Absent(Why),
    /// Nobody has decided. A lawful machine has no such cell.
    Undecided,
}

impl Cell {
    /// Every status it can lead to.
    pub fn targets(self) -> Vec<usize> {
        match self {
            Cell::To(to) => vec![to],
            Cell::ByFact { yes, no, .. } => vec![yes, no],
            Cell::Absent(_) | Cell::Undecided => vec![],
        }
    }
}

/// A remark on one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// What there is to say.
    pub text: &'static str,
    /// Kept although it looks wrong.
    pub observed: bool,
}

/// A stamp, with its sources as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StampEntry {
    /// The column.
    pub column: Column,
    /// What it gets.
    pub set: Set,
    /// Only from these statuses; empty means from anywhere.
    pub from: Vec<usize>,
    /// Only when this holds.
    pub when: Option<Check>,
}

/// A status and what goes with it.
#[derive(Clone, Debug)]
pub struct StatusEntry {
    /// Its name.
    pub code: &'static str,
    /// What sort it is; a time-out is the number of an event.
    pub rest: Rest<usize>,
    /// What it means.
    pub meaning: &'static str,
    /// What reaching it writes.
    pub stamps: Vec<StampEntry>,
}

/// An event and what goes with it.
#[derive(Clone, Debug)]
pub struct EventEntry {
    /// Its name.
    pub code: &'static str,
    /// Who may report it; empty means anybody.
    pub reporters: Vec<Source>,
    /// The fields its reports carry.
    pub carries: Vec<Column>,
    /// Its predicates, in order.
    pub checks: Vec<Check>,
    /// Its conditions on other rows.
    pub guards: Vec<Guard>,
    /// What it writes beside the status.
    pub stamps: Vec<StampEntry>,
    /// Its topics.
    pub publishes: Vec<&'static str>,
    /// Whether it reports the result of an operation.
    pub settles: bool,
}

impl EventEntry {
    /// Whether somebody in this role may report it.
    pub fn may_be_reported_by(&self, source: Source) -> bool {
        self.reporters.is_empty() || self.reporters.contains(&source)
    }
}

/// A whole machine, without types.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The number of the status in which a row is born.
    pub initial: usize,
    /// The topics of a birth.
    pub born: &'static [&'static str],
    /// Its statuses, in order of declaration.
    pub statuses: Vec<StatusEntry>,
    /// Its events, in order of declaration.
    pub events: Vec<EventEntry>,
    /// `cells[event][status]`.
    pub cells: Vec<Vec<Cell>>,
    /// `notes[event][status]`.
    pub notes: Vec<Vec<Option<Note>>>,
}

fn stamp_entry<S: Code>(stamp: Stamp<S>) -> StampEntry {
    let from = stamp.from.iter().map(|status| status.index()).collect();
    StampEntry { column: stamp.column, set: stamp.set, from, when: stamp.when }
}

fn event_entry<S: Code, E: Code>(rule: &Rule<S, E>) -> EventEntry {
    EventEntry {
        code: rule.event.code(),
        reporters: rule.reporters.to_vec(),
        carries: rule.carries.iter().collect(),
        checks: rule.checks.iter().collect(),
        guards: rule.guards.iter().collect(),
        stamps: rule.stamps.iter().map(stamp_entry).collect(),
        publishes: rule.publishes.iter().collect(),
        settles: rule.settles,
    }
}

impl Table {
    /// Compiles the constants of `M`. Where they break a law, the last entry wins and [`laws`](crate::laws) tells.
    pub fn of<M: Machine>() -> Table {
        let width = M::Status::ALL.len();
        let mut table = Table {
            name: M::NAME,
            initial: M::INITIAL.index(),
            born: M::BORN,
            statuses: M::Status::ALL
                .iter()
                .map(|status| Self::status_entry::<M>(*status))
                .collect(),
            events: Vec::new(),
            cells: vec![vec![Cell::Undecided; width]; M::Event::ALL.len()],
            notes: vec![vec![None; width]; M::Event::ALL.len()],
        };
        for event in M::Event::ALL {
            let rule = M::RULES.iter().find(|rule| rule.event == *event);
            table.events.push(event_entry(rule.unwrap_or(&crate::on(*event))));
        }
        for rule in M::RULES {
            table.fill(rule);
        }
        table
    }

    fn status_entry<M: Machine>(status: M::Status) -> StatusEntry {
        let spec = M::STATUSES.iter().find(|spec| spec.status == status);
        let rest = spec.map_or(Rest::Restful, |spec| match spec.rest {
            Rest::Terminal => Rest::Terminal,
            Rest::Restful => Rest::Restful,
            Rest::Derived => Rest::Derived,
            Rest::Parked { owner, seconds } => Rest::Parked { owner, seconds },
            Rest::Transient { owner, seconds, time_out } => {
                Rest::Transient { owner, seconds, time_out: time_out.index() }
            }
        });
        StatusEntry {
            code: status.code(),
            rest,
            meaning: spec.map_or("", |spec| spec.meaning),
            stamps: spec.into_iter().flat_map(|spec| spec.stamps.iter()).map(stamp_entry).collect(),
        }
    }

    fn fill<S: Code, E: Code>(&mut self, rule: &Rule<S, E>) {
        let row = rule.event.index();
        for arm in rule.arms.iter() {
            for from in arm.from {
                self.cells[row][from.index()] = match arm.otherwise {
                    None => Cell::To(arm.to.index()),
                    Some((check, no)) => {
                        Cell::ByFact { check, yes: arm.to.index(), no: no.index() }
                    }
                };
            }
        }
        for absence in rule.absences.iter() {
            for status in absence.statuses {
                self.cells[row][status.index()] = Cell::Absent(absence.why);
            }
        }
        for remark in rule.remarks.iter() {
            for status in remark.statuses {
                let note = Note { text: remark.text, observed: remark.observed };
                self.notes[row][status.index()] = Some(note);
            }
        }
    }

    /// The number of the status called `code`.
    pub fn status(&self, code: &str) -> Option<usize> {
        self.statuses.iter().position(|status| status.code == code)
    }

    /// The number of the event called `code`.
    pub fn event(&self, code: &str) -> Option<usize> {
        self.events.iter().position(|event| event.code == code)
    }

    /// Every way from status to status: (event, from, to), a cell with two targets giving two.
    pub fn edges(&self) -> Vec<(usize, usize, usize)> {
        let mut edges = Vec::new();
        for (event, row) in self.cells.iter().enumerate() {
            for (from, cell) in row.iter().enumerate() {
                edges.extend(cell.targets().into_iter().map(|to| (event, from, to)));
            }
        }
        edges
    }

    /// Every pair of statuses with an edge between them, once, in order.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        let mut pairs: Vec<_> = self.edges().into_iter().map(|(_, from, to)| (from, to)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }

    /// Whether nothing leads out of the status, by declaration.
    pub fn is_terminal(&self, status: usize) -> bool {
        matches!(self.statuses[status].rest, Rest::Terminal)
    }

    /// The columns a store must read before it can ask the evaluator, in order of first use.
    pub fn columns_read(&self) -> Vec<Column> {
        let by_fact = self.cells.iter().flatten().filter_map(|cell| match cell {
            Cell::ByFact { check, .. } => Some(*check),
            Cell::To(_) | Cell::Absent(_) | Cell::Undecided => None,
        });
        let checks = self.events.iter().flat_map(|event| event.checks.iter().copied());
        let conditions = self.all_stamps().filter_map(|stamp| stamp.when);
        let counted = self.all_stamps().filter(|stamp| stamp.set == Set::Raise).map(|s| s.column);
        let mut columns = Vec::new();
        let read = checks.chain(by_fact).chain(conditions).flat_map(|check| check.columns());
        for column in read.chain(counted) {
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
        columns
    }

    /// Every stamp of the machine, of its events first.
    pub fn all_stamps(&self) -> impl Iterator<Item = &StampEntry> {
        let of_events = self.events.iter().flat_map(|event| &event.stamps);
        of_events.chain(self.statuses.iter().flat_map(|status| &status.stamps))
    }
}
