//! The laws every machine obeys. The compiler checks what it can (see [`shape`](crate::shape)); this checks all of
//! them, on any [`Table`], and gives names to what it finds.

use crate::fact::Test;
use crate::rule::{Rest, Set, Source};
use crate::table::{Cell, EventEntry, Table};

/// A law that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The law, in a few words.
    pub law: &'static str,
    /// Where, and what would mend it.
    pub what: String,
}

/// Every law that `table` breaks. A cell marked as observed may leave a terminal status: see [`waivers`].
pub fn breaches(table: &Table) -> Vec<Breach> {
    let mut found = Breaches { table, found: Vec::new() };
    found.cells();
    found.statuses();
    found.ways_out();
    found.events();
    found.found
}

/// The breaches that are kept on purpose, because the cell was observed to happen: exits of terminal statuses.
pub fn waivers(table: &Table) -> Vec<Breach> {
    let exits = table.edges().into_iter().filter(|(_, from, _)| table.is_terminal(*from));
    let kept = exits.filter(|(event, from, _)| is_observed(table, *event, *from));
    kept.map(|(event, from, to)| Breach {
        law: "terminal means terminal",
        what: format!(
            "{} leads from {} to {}",
            table.events[event].code, table.statuses[from].code, table.statuses[to].code
        ),
    })
    .collect()
}

fn is_observed(table: &Table, event: usize, status: usize) -> bool {
    table.notes[event][status].is_some_and(|note| note.observed)
}

fn by_people(event: &EventEntry) -> bool {
    event.may_be_reported_by(Source::User) || event.may_be_reported_by(Source::Operator)
}

struct Breaches<'t> {
    table: &'t Table,
    found: Vec<Breach>,
}

impl Breaches<'_> {
    fn report(&mut self, law: &'static str, what: String) {
        self.found.push(Breach { law, what });
    }

    fn cells(&mut self) {
        let table = self.table;
        for (event, row) in table.cells.iter().enumerate() {
            let name = table.events[event].code;
            for (from, cell) in row.iter().enumerate() {
                let status = table.statuses[from].code;
                let targets = cell.targets();
                if *cell == Cell::Undecided {
                    self.report("every cell is decided", format!("{name} in {status}"));
                }
                if targets.contains(&from) {
                    self.report("nothing stands still", format!("{name} in {status}"));
                }
                if let Cell::ByFact { yes, no, .. } = cell
                    && yes == no
                {
                    self.report("two targets are two", format!("{name} in {status}"));
                }
                if !targets.is_empty()
                    && table.is_terminal(from)
                    && !is_observed(table, event, from)
                {
                    self.report("terminal means terminal", format!("{name} leaves {status}"));
                }
            }
            if row.iter().all(|cell| cell.targets().is_empty()) {
                self.report("every event leads somewhere", name.to_owned());
            }
        }
    }

    fn statuses(&mut self) {
        let table = self.table;
        let reached = reachable(table, table.initial, |_| true);
        for (status, entry) in table.statuses.iter().enumerate() {
            if !reached[status] {
                self.report("everything is reachable", entry.code.to_owned());
            }
            match entry.rest {
                Rest::Terminal | Rest::Restful => {}
                Rest::Derived => {
                    if table.events.iter().any(|event| event.reporters != [Source::Derived]) {
                        self.report("derived is derived", format!("{} can be chosen", entry.code));
                    }
                }
                Rest::Parked { owner, seconds } => self.waits(status, owner, seconds),
                Rest::Transient { owner, seconds, time_out } => {
                    self.waits(status, owner, seconds);
                    self.times_out(status, time_out);
                }
            }
            if entry.stamps.iter().any(|stamp| matches!(stamp.set, Set::Field(_))) {
                let what =
                    format!("{}: not every event that leads there carries the field", entry.code);
                self.report("stamps have their fields", what);
            }
        }
    }

    fn waits(&mut self, status: usize, owner: Source, seconds: u32) {
        let code = self.table.statuses[status].code;
        let exits = |source| self.exits(status).any(|event| event.may_be_reported_by(source));
        let (owned, for_people) = (exits(owner), self.exits(status).any(by_people));
        if seconds == 0 {
            self.report("every wait has a deadline", code.to_owned());
        }
        if !owned {
            self.report(
                "who owns a wait can end it",
                format!("{owner} has no event that leaves {code}"),
            );
        }
        if !for_people {
            let what = format!("no user or operator can leave {code}");
            self.report("every wait has an exit for people", what);
        }
    }

    fn times_out(&mut self, status: usize, time_out: usize) {
        let event = &self.table.events[time_out];
        let leads = !self.table.cells[time_out][status].targets().is_empty();
        if !leads || !event.may_be_reported_by(Source::Timer) {
            let what = format!("{} does not end {}", event.code, self.table.statuses[status].code);
            self.report("every wait times out", what);
        }
    }

    fn exits(&self, status: usize) -> impl Iterator<Item = &EventEntry> {
        let table = self.table;
        let leads = move |event: &usize| !table.cells[*event][status].targets().is_empty();
        (0..table.events.len()).filter(leads).map(|event| &table.events[event])
    }

    fn ways_out(&mut self) {
        let table = self.table;
        let at_rest =
            |status: usize| matches!(table.statuses[status].rest, Rest::Terminal | Rest::Restful);
        let settles = |status: usize, permitted: fn(&EventEntry) -> bool| {
            let reached = reachable(table, status, permitted);
            (0..table.statuses.len()).any(|there| reached[there] && at_rest(there))
        };
        for (status, entry) in table.statuses.iter().enumerate() {
            if !settles(status, |_| true) {
                self.report("from everywhere there is a way to rest", entry.code.to_owned());
            }
            // People do not steer a derived status; they steer what it follows.
            if entry.rest != Rest::Derived && !settles(status, by_people) {
                self.report("people alone can bring it to rest", entry.code.to_owned());
            }
        }
    }

    fn events(&mut self) {
        for event in &self.table.events {
            let compared = event.checks.iter().find_map(|check| match check.test {
                Test::Same(column, _) => Some(column),
                Test::Null(_)
                | Test::Present(_)
                | Test::True(_)
                | Test::NotTrue(_)
                | Test::Below(..) => None,
            });
            let recognised = compared
                .is_some_and(|column| self.table.all_stamps().any(|stamp| stamp.column == column));
            if event.settles && !recognised {
                let what = format!("{} accepts the answer to any operation", event.code);
                self.report("results name their operation", what);
            }
            let from_stamps = event.stamps.iter().filter_map(|stamp| match stamp.set {
                Set::Field(field) => Some(field),
                Set::Now | Set::Clear | Set::Raise => None,
            });
            let from_checks = event.checks.iter().filter_map(|check| check.field());
            for field in from_stamps.chain(from_checks).collect::<Vec<_>>() {
                if !event.carries.contains(&field) {
                    let what = format!("{} does not carry {}", event.code, field.name);
                    self.report("fields that are read are carried", what);
                }
            }
        }
        self.agents();
        let mut names: Vec<_> = self.table.events.iter().map(|event| event.code).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            self.report("one name, one event", self.table.name.to_owned());
        }
    }
}

impl Breaches<'_> {
    /// What an agent says of a wait is an answer, and answers can be late: it must say to which operation, or begin one.
    fn agents(&mut self) {
        let table = self.table;
        let compared: Vec<_> = table
            .events
            .iter()
            .filter(|event| event.settles)
            .flat_map(|event| event.checks.iter().flat_map(|check| check.columns()))
            .collect();
        for (number, event) in table.events.iter().enumerate() {
            let ends_a_wait = (0..table.statuses.len()).any(|status| {
                matches!(table.statuses[status].rest, Rest::Transient { .. })
                    && !table.cells[number][status].targets().is_empty()
            });
            let begins = event.stamps.iter().any(|stamp| compared.contains(&stamp.column));
            let by_agent = event.reporters.contains(&Source::Agent);
            if by_agent && ends_a_wait && !event.settles && !begins {
                let what = format!("{} does not say which operation it answers", event.code);
                self.report("agents name their operation", what);
            }
        }
    }
}

/// Which statuses can be reached from `start` (which counts) by events that are permitted.
pub fn reachable(table: &Table, start: usize, permitted: fn(&EventEntry) -> bool) -> Vec<bool> {
    let mut reached = vec![false; table.statuses.len()];
    let mut open = vec![start];
    reached[start] = true;
    while let Some(status) = open.pop() {
        for (event, row) in table.cells.iter().enumerate() {
            for to in row[status].targets() {
                if permitted(&table.events[event]) && !reached[to] {
                    reached[to] = true;
                    open.push(to);
                }
            }
        }
    }
    reached
}
