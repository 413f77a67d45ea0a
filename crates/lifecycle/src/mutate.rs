//! Mutations: every small way in which a table could be wrong, as a changed copy of it.
//! A set of tests is good enough when each of these copies fails one of them.

use crate::code::Code;
use crate::fact::{Check, Test};
use crate::rule::{Rest, Set, Source, Why};
use crate::table::{Cell, EventEntry, StampEntry, StatusEntry, Table};

crate::codes! {
    /// What sort of change a mutant is.
    pub enum Sort {
        EdgeRemoved = "edge_removed",
        EdgeInvented = "edge_invented",
        TargetChanged = "target_changed",
        AbsenceChanged = "absence_changed",
        CheckRemoved = "check_removed",
        CheckChanged = "check_changed",
        CheckOrder = "check_order",
        GuardRemoved = "guard_removed",
        StampRemoved = "stamp_removed",
        StampChanged = "stamp_changed",
        TopicRemoved = "topic_removed",
        ReporterRemoved = "reporter_removed",
        ReporterAdded = "reporter_added",
        FieldRemoved = "field_removed",
        SettlesChanged = "settles_changed",
        RestChanged = "rest_changed",
        BirthChanged = "birth_changed",
    }
}

/// A table that differs from the true one in one place.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What sort of change it is.
    pub sort: Sort,
    /// The change, as a sentence.
    pub what: String,
    /// The changed table.
    pub table: Table,
}

/// Every mutant of `table`, in the order of its declaration.
pub fn mutants(table: &Table) -> Vec<Mutant> {
    let mut all = Vec::new();
    let mut brood = Brood { table, all: &mut all };
    for event in 0..table.events.len() {
        for status in 0..table.statuses.len() {
            brood.cell(event, status);
        }
        brood.checks(event);
        brood.lists(event);
        brood.reporters(event);
        brood.stamps(
            &format!("{}'s", table.events[event].code),
            &table.events[event].stamps,
            |t| &mut t.events[event].stamps,
        );
    }
    for status in 0..table.statuses.len() {
        let info = &table.statuses[status];
        brood.stamps(&format!("entering {}'s", info.code), &info.stamps, |t| {
            &mut t.statuses[status].stamps
        });
        brood.rest(status);
    }
    brood.birth();
    all
}

struct Brood<'a> {
    table: &'a Table,
    all: &'a mut Vec<Mutant>,
}

impl Brood<'_> {
    fn add<R>(&mut self, sort: Sort, what: String, change: impl FnOnce(&mut Table) -> R) {
        let mut table = self.table.clone();
        change(&mut table);
        self.all.push(Mutant { sort, what: format!("{}: {what}", self.table.name), table });
    }

    fn replace(&mut self, sort: Sort, (event, status): (usize, usize), cell: Cell) {
        let (e, s) = (self.table.events[event].code, self.table.statuses[status].code);
        let (is, was) = (self.spell(cell), self.spell(self.table.cells[event][status]));
        let what = format!("{e} in {s} {is}, though in truth it {was}");
        self.add(sort, what, |t| t.cells[event][status] = cell);
    }

    fn spell(&self, cell: Cell) -> String {
        let name = |status: usize| self.table.statuses[status].code;
        match cell {
            Cell::To(to) => format!("leads to {}", name(to)),
            Cell::ByFact { check, yes, no } => {
                format!("leads to {} if {}, else to {}", name(yes), check.name, name(no))
            }
            Cell::Absent(why) => format!("is {why}"),
            Cell::Undecided => "is undecided".to_owned(),
        }
    }

    fn cell(&mut self, event: usize, status: usize) {
        let cell = self.table.cells[event][status];
        for (sort, other) in other_cells(cell, status, self.table.statuses.len()) {
            self.replace(sort, (event, status), other);
        }
    }

    fn checks(&mut self, event: usize) {
        let EventEntry { code, checks, .. } = &self.table.events[event];
        for (i, check) in checks.iter().enumerate() {
            let what = format!("{code} does not check {}", check.name);
            self.add(Sort::CheckRemoved, what, |t| t.events[event].checks.remove(i));
            let what = format!("{code} checks {} the wrong way", check.name);
            let wrong = Check { test: distorted(check.test), ..*check };
            self.add(Sort::CheckChanged, what, |t| t.events[event].checks[i] = wrong);
        }
        for i in 1..checks.len() {
            let (first, second) = (checks[i - 1].name, checks[i].name);
            let what = format!("{code} checks {second} before {first}");
            self.add(Sort::CheckOrder, what, |t| t.events[event].checks.swap(i - 1, i));
        }
    }

    fn lists(&mut self, event: usize) {
        let EventEntry { code, guards, publishes, carries, settles, .. } =
            &self.table.events[event];
        for (i, guard) in guards.iter().enumerate() {
            let what = format!("{code} does not ask for {}", guard.0);
            self.add(Sort::GuardRemoved, what, |t| t.events[event].guards.remove(i));
        }
        for (i, topic) in publishes.iter().enumerate() {
            let what = format!("{code} is not made known on {topic}");
            self.add(Sort::TopicRemoved, what, |t| t.events[event].publishes.remove(i));
        }
        for (i, field) in carries.iter().enumerate() {
            let what = format!("{code} does not carry {}", field.name);
            self.add(Sort::FieldRemoved, what, |t| t.events[event].carries.remove(i));
        }
        let what = format!(
            "{code} {} an operation",
            if *settles { "no longer settles" } else { "settles" }
        );
        self.add(Sort::SettlesChanged, what, |t| t.events[event].settles = !settles);
    }

    fn reporters(&mut self, event: usize) {
        let EventEntry { code, reporters, .. } = &self.table.events[event];
        if reporters.is_empty() {
            return;
        }
        let what = format!("anybody may report {code}");
        self.add(Sort::ReporterRemoved, what, |t| t.events[event].reporters.clear());
        for source in Source::ALL {
            match reporters.iter().position(|reporter| reporter == source) {
                // Without its only reporter an event is anybody's, and that mutant is there already.
                Some(_) if reporters.len() == 1 => {}
                Some(i) => {
                    let what = format!("the {source} may not report {code}");
                    self.add(Sort::ReporterRemoved, what, |t| t.events[event].reporters.remove(i));
                }
                None => {
                    let what = format!("the {source} may report {code}");
                    self.add(Sort::ReporterAdded, what, |t| {
                        t.events[event].reporters.push(*source)
                    });
                }
            }
        }
    }

    fn stamps(
        &mut self,
        whose: &str,
        stamps: &[StampEntry],
        of: impl Fn(&mut Table) -> &mut Vec<StampEntry>,
    ) {
        for (i, stamp) in stamps.iter().enumerate() {
            let name = stamp.column.name;
            let what = format!("{whose} stamp of {name} is missing");
            self.add(Sort::StampRemoved, what, |t| of(t).remove(i));
            let what = format!("{whose} stamp of {name} writes something else");
            let set = if stamp.set == Set::Clear { Set::Now } else { Set::Clear };
            self.add(Sort::StampChanged, what, |t| of(t)[i].set = set);
            if !stamp.from.is_empty() {
                let what = format!("{whose} stamp of {name} is made wherever the row comes from");
                self.add(Sort::StampChanged, what, |t| of(t)[i].from.clear());
            }
            for (f, from) in stamp.from.iter().enumerate().filter(|_| stamp.from.len() > 1) {
                let from = self.table.statuses[*from].code;
                let what = format!("{whose} stamp of {name} is not made coming from {from}");
                self.add(Sort::StampChanged, what, |t| of(t)[i].from.remove(f));
            }
            if let Some(check) = stamp.when {
                let what = format!("{whose} stamp of {name} is made without {}", check.name);
                self.add(Sort::StampChanged, what, |t| of(t)[i].when = None);
            }
        }
    }

    fn rest(&mut self, status: usize) {
        let StatusEntry { code, rest, .. } = &self.table.statuses[status];
        for (what, changed) in other_rests(*rest, self.table.events.len()) {
            let what = format!("{code} {what}");
            self.add(Sort::RestChanged, what, |t| t.statuses[status].rest = changed);
        }
    }

    fn birth(&mut self) {
        let Table { initial, born, .. } = self.table;
        for other in (0..self.table.statuses.len()).filter(|status| status != initial) {
            let what = format!("a row is born in {}", self.table.statuses[other].code);
            self.add(Sort::BirthChanged, what, |t| t.initial = other);
        }
        if let [first, rest @ ..] = born {
            let what = format!("a birth is not made known on {first}");
            self.add(Sort::BirthChanged, what, |t| t.born = rest);
        }
        if let [rest @ .., last] = born
            && !rest.is_empty()
        {
            let what = format!("a birth is not made known on {last}");
            self.add(Sort::BirthChanged, what, |t| t.born = rest);
        }
    }
}

/// Every other thing that could be decided for a cell of `status`, one change at a time.
fn other_cells(cell: Cell, status: usize, statuses: usize) -> Vec<(Sort, Cell)> {
    let others = |taken: usize| (0..statuses).filter(move |other| *other != taken);
    let gone = (Sort::EdgeRemoved, Cell::Absent(Why::Late));
    let to = |to: usize| (Sort::TargetChanged, Cell::To(to));
    match cell {
        Cell::To(target) => [gone].into_iter().chain(others(target).map(to)).collect(),
        Cell::ByFact { check, yes, no } => {
            let by = |yes, no| (Sort::TargetChanged, Cell::ByFact { check, yes, no });
            let (test, name) = (distorted(check.test), "some other fact");
            let wrong = Cell::ByFact { check: Check { test, name }, yes, no };
            let mut all = vec![gone, (Sort::CheckChanged, wrong), to(yes), to(no), by(no, yes)];
            // Both targets alike, or both exchanged, is there already.
            all.extend(others(yes).filter(|other| *other != no).map(|other| by(other, no)));
            all.extend(others(no).filter(|other| *other != yes).map(|other| by(yes, other)));
            all
        }
        Cell::Absent(why) => {
            let classes = Why::ALL.iter().filter(|other| **other != why);
            let classes = classes.map(|other| (Sort::AbsenceChanged, Cell::Absent(*other)));
            classes.chain(others(status).map(|to| (Sort::EdgeInvented, Cell::To(to)))).collect()
        }
        Cell::Undecided => vec![(Sort::AbsenceChanged, Cell::Absent(Why::Late))],
    }
}

/// A test that gives another answer to some row.
fn distorted(test: Test) -> Test {
    match test {
        Test::Null(column) => Test::Present(column),
        Test::Present(column) | Test::Same(column, _) => Test::Null(column),
        Test::True(column) => Test::NotTrue(column),
        Test::NotTrue(column) => Test::True(column),
        Test::Below(low, high) => Test::Below(high, low),
    }
}

fn other_owner(owner: Source) -> Source {
    Source::ALL[(owner.index() + 1) % Source::ALL.len()]
}

/// Every other thing a status could be said to be, one change at a time.
fn other_rests(rest: Rest<usize>, events: usize) -> Vec<(&'static str, Rest<usize>)> {
    match rest {
        Rest::Terminal => vec![("is not terminal", Rest::Restful)],
        Rest::Restful => vec![("is terminal", Rest::Terminal)],
        Rest::Derived => vec![("is not derived", Rest::Restful)],
        Rest::Parked { owner, seconds } => vec![
            ("may last", Rest::Restful),
            ("waits for somebody else", Rest::Parked { owner: other_owner(owner), seconds }),
            ("is noticed later", Rest::Parked { owner, seconds: seconds.saturating_add(1) }),
        ],
        Rest::Transient { owner, seconds, time_out } => {
            let other = (time_out + 1) % events;
            let mut all = vec![
                ("may last", Rest::Restful),
                ("has no time-out", Rest::Parked { owner, seconds }),
                (
                    "is somebody else's to leave",
                    Rest::Transient { owner: other_owner(owner), seconds, time_out },
                ),
                (
                    "may take longer",
                    Rest::Transient { owner, seconds: seconds.saturating_add(1), time_out },
                ),
            ];
            if other != time_out {
                all.push((
                    "times out differently",
                    Rest::Transient { owner, seconds, time_out: other },
                ));
            }
            all
        }
    }
}
