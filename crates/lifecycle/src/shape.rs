//! The laws that hold while a machine is compiled. [`lawful!`](crate::lawful) fills a [`Shape`] from the rules;
//! what it finds wrong stops the build. The other laws need names and graphs: see [`laws`](crate::laws).

use crate::fact::{Check, Test};
use crate::rule::List;

/// The largest number of statuses of one machine.
pub const STATUSES_MAX: usize = 16;
/// The largest number of events of one machine.
pub const EVENTS_MAX: usize = 24;

const UNDECIDED: u8 = 0;
const ABSENT: u8 = 254;
const TWICE: u8 = 255;

/// Whether one of `checks` compares the row with the report, and so recognises the operation.
pub const fn recognises<const N: usize>(checks: &List<Check, N>) -> bool {
    let mut i = 0;
    while i < checks.len() {
        if let Test::Same(..) = checks.at(i).test {
            return true;
        }
        i += 1;
    }
    false
}

/// A machine without its names: what is left when only the laws matter.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    statuses: usize,
    events: usize,
    initial: usize,
    /// 0 undecided, 254 absent, 255 decided twice, otherwise the target plus one.
    cells: [[u8; STATUSES_MAX]; EVENTS_MAX],
    /// The other target of a cell that has two, plus one.
    seconds: [[u8; STATUSES_MAX]; EVENTS_MAX],
    observed: [[bool; STATUSES_MAX]; EVENTS_MAX],
    rules: [u8; EVENTS_MAX],
    specs: [u8; STATUSES_MAX],
    terminal: [bool; STATUSES_MAX],
    unrecognised_result: bool,
}

impl Shape {
    /// A machine of which nothing is decided yet.
    pub const fn new(statuses: usize, events: usize, initial: usize) -> Self {
        assert!(statuses <= STATUSES_MAX, "more statuses than a machine takes");
        assert!(events <= EVENTS_MAX, "more events than a machine takes");
        Self {
            statuses,
            events,
            initial,
            cells: [[UNDECIDED; STATUSES_MAX]; EVENTS_MAX],
            seconds: [[UNDECIDED; STATUSES_MAX]; EVENTS_MAX],
            observed: [[false; STATUSES_MAX]; EVENTS_MAX],
            rules: [0; EVENTS_MAX],
            specs: [0; STATUSES_MAX],
            terminal: [false; STATUSES_MAX],
            unrecognised_result: false,
        }
    }

    /// A status has an entry.
    #[must_use]
    pub const fn status(mut self, status: usize, terminal: bool) -> Self {
        self.specs[status] += 1;
        self.terminal[status] = terminal;
        self
    }

    /// An event has a rule.
    #[must_use]
    pub const fn rule(mut self, event: usize, settles: bool, recognises: bool) -> Self {
        self.rules[event] += 1;
        self.unrecognised_result |= settles && !recognises;
        self
    }

    const fn decide(mut self, event: usize, status: usize, cell: u8) -> Self {
        let undecided = self.cells[event][status] == UNDECIDED;
        self.cells[event][status] = if undecided { cell } else { TWICE };
        self
    }

    /// A cell leads somewhere.
    #[must_use]
    pub const fn edge(self, event: usize, from: usize, to: usize) -> Self {
        self.decide(event, from, to as u8 + 1)
    }

    /// The cell leads somewhere else under a condition.
    #[must_use]
    pub const fn second_edge(mut self, event: usize, from: usize, to: usize) -> Self {
        self.seconds[event][from] = to as u8 + 1;
        self
    }

    /// A cell leads nowhere, for a reason.
    #[must_use]
    pub const fn absence(self, event: usize, status: usize) -> Self {
        self.decide(event, status, ABSENT)
    }

    /// A cell is kept although it looks wrong; it may leave a terminal status.
    #[must_use]
    pub const fn observed(mut self, event: usize, status: usize) -> Self {
        self.observed[event][status] = true;
        self
    }

    /// The first law that is broken, if one is.
    pub const fn breach(&self) -> Option<&'static str> {
        if self.unrecognised_result {
            return Some("the result of an operation does not check which operation it answers");
        }
        let mut status = 0;
        while status < self.statuses {
            match self.specs[status] {
                0 => return Some("a status has no entry in STATUSES"),
                1 => {}
                _ => return Some("a status has two entries in STATUSES"),
            }
            status += 1;
        }
        let mut event = 0;
        while event < self.events {
            match self.rules[event] {
                0 => return Some("an event has no rule"),
                1 => {}
                _ => return Some("an event has two rules"),
            }
            if let Some(breach) = self.breach_of_event(event) {
                return Some(breach);
            }
            event += 1;
        }
        if self.all_reached() { None } else { Some("a status can't be reached") }
    }

    const fn breach_of_event(&self, event: usize) -> Option<&'static str> {
        let mut leads_somewhere = false;
        let mut status = 0;
        while status < self.statuses {
            let cell = self.cells[event][status];
            if cell == UNDECIDED {
                return Some(
                    "a cell is undecided: say where the event leads, or duplicate, late or bug",
                );
            }
            if cell == TWICE {
                return Some("a cell is decided twice");
            }
            if cell != ABSENT {
                leads_somewhere = true;
                if cell as usize == status + 1 || self.seconds[event][status] as usize == status + 1
                {
                    return Some("an event leads from a status to itself");
                }
                if self.terminal[status] && !self.observed[event][status] {
                    return Some("a terminal status has an exit");
                }
            }
            status += 1;
        }
        if leads_somewhere { None } else { Some("an event leads nowhere") }
    }

    const fn all_reached(&self) -> bool {
        let mut reached = [false; STATUSES_MAX];
        reached[self.initial] = true;
        let mut round = 0;
        while round < self.statuses {
            let mut event = 0;
            while event < self.events {
                let mut status = 0;
                while status < self.statuses {
                    let cell = self.cells[event][status];
                    if reached[status] && cell != UNDECIDED && cell < ABSENT {
                        reached[cell as usize - 1] = true;
                        if self.seconds[event][status] != UNDECIDED {
                            reached[self.seconds[event][status] as usize - 1] = true;
                        }
                    }
                    status += 1;
                }
                event += 1;
            }
            round += 1;
        }
        let mut status = 0;
        while status < self.statuses {
            if !reached[status] {
                return false;
            }
            status += 1;
        }
        true
    }

    /// Stops the build when a law is broken, naming it.
    pub const fn assert_lawful(&self) {
        if let Some(breach) = self.breach() {
            panic!("{}", breach);
        }
    }
}
