//! The oracle: every difference between a table and its reference, in what is declared and in what every report does to
//! every row. It is exhaustive where it matters: all statuses, events and sources, and a few values of every fact asked.

use lifecycle::writer::assign;
use lifecycle::{
    Cell, Check, Column, Facts, Kind, Reason, Rest, Said, Set, StampEntry, Table, Test,
};
use lifecycle::{Verdict, Why, decide, stamps_of};

use super::bridge::{Bridge, kind_word};
use super::{FACTS_MAX, Judged, NOTHING, Reference, Tale, Values};

/// How many differences are told at the most. One is enough to know; a few help to understand.
const DIFFERENCES_MAX: usize = 20;

/// The moment at which everything happens here.
const NOW: i64 = 1_000;

/// The differences between `table` and `reference`, up to a handful.
pub fn differences(table: &Table, reference: &Reference) -> Vec<String> {
    Oracle::ask(table, reference, DIFFERENCES_MAX)
}

/// The first difference between `table` and `reference`, if there is one.
pub fn first_difference(table: &Table, reference: &Reference) -> Option<String> {
    Oracle::ask(table, reference, 1).into_iter().next()
}

struct Oracle<'a> {
    table: &'a Table,
    reference: &'a Reference,
    bridge: Bridge,
    limit: usize,
    found: Vec<String>,
}

/// A row and a report in both spellings.
struct Case {
    row: Values,
    fields: Values,
    row_facts: Facts,
    payload: Facts,
}

impl<'a> Oracle<'a> {
    fn ask(table: &'a Table, reference: &'a Reference, limit: usize) -> Vec<String> {
        let bridge = match Bridge::of(reference) {
            Ok(bridge) => bridge,
            Err(problem) => return vec![problem],
        };
        let mut oracle = Oracle { table, reference, bridge, limit, found: Vec::new() };
        oracle.compare_names();
        // Where the names differ, numbers mean nothing.
        if oracle.found.is_empty() {
            oracle.compare_declarations();
            for event in 0..table.events.len() {
                oracle.compare_event(event);
            }
        }
        oracle.found
    }

    fn is_full(&self) -> bool {
        self.found.len() >= self.limit
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        if !self.is_full() {
            self.found.push(format!("{}: {}", self.reference.name, what()));
        }
    }

    fn expect(&mut self, what: &str, is: &str, meant: &str) {
        if is != meant {
            self.tell(|| format!("{what} is [{is}], meant is [{meant}]"));
        }
    }

    fn compare_names(&mut self) {
        let (table, reference) = (self.table, self.reference);
        let join = |names: Vec<&str>| names.join(" ");
        self.expect("the name", table.name, reference.name);
        let meant = join(reference.statuses.iter().map(|status| status.name).collect());
        self.expect(
            "the list of statuses",
            &join(table.statuses.iter().map(|s| s.code).collect()),
            &meant,
        );
        let meant = join(reference.events.iter().map(|event| event.name).collect());
        self.expect(
            "the list of events",
            &join(table.events.iter().map(|e| e.code).collect()),
            &meant,
        );
        for column in columns_of(table) {
            match self.bridge.number(column.name) {
                Some(fact) => {
                    self.expect(column.name, kind_word(column.kind), reference.facts[fact].kind);
                }
                None => self.tell(|| format!("{} is unknown", column.name)),
            }
        }
    }

    fn compare_declarations(&mut self) {
        let (table, reference) = (self.table, self.reference);
        let initial = reference.statuses[reference.initial].name;
        self.expect("the initial status", table.statuses[table.initial].code, initial);
        self.expect("birth's topics", &table.born.join(" "), &reference.born.join(" "));
        for (is, meant) in table.statuses.iter().zip(&reference.statuses) {
            self.expect(
                &format!("the end of {}", is.code),
                &rest_words(table, is.rest),
                &meant.rest,
            );
        }
        for (is, meant) in table.events.iter().zip(&reference.events) {
            let mut carried: Vec<_> = is.carries.iter().map(|field| field.name).collect();
            let mut wanted: Vec<_> =
                meant.carries.iter().map(|f| reference.facts[*f].name).collect();
            carried.sort_unstable();
            wanted.sort_unstable();
            self.expect(
                &format!("what {} carries", is.code),
                &carried.join(" "),
                &wanted.join(" "),
            );
            let word = |settles| {
                if settles { "settles" } else { "settles nothing" }
            };
            self.expect(is.code, word(is.settles), word(meant.settles));
        }
    }

    /// Every combination of a few values of every fact that either side asks about, in every status, by every source.
    fn compare_event(&mut self, event: usize) {
        let (row_mask, field_mask) = self.asked(event);
        let mut case = self.plain_case();
        let mut wheels: Vec<(bool, usize, &[i64])> = Vec::new();
        for fact in 0..self.bridge.columns.len() {
            let domain = domain_of(self.bridge.columns[fact].kind);
            let asked = [(true, row_mask), (false, field_mask)];
            wheels.extend(
                asked.iter().filter(|(_, m)| m >> fact & 1 == 1).map(|(r, _)| (*r, fact, domain)),
            );
        }
        let combinations: usize = wheels.iter().map(|(_, _, domain)| domain.len()).product();
        for combination in 0..combinations {
            let mut left = combination;
            for (of_row, fact, domain) in &wheels {
                let values = if *of_row { &mut case.row } else { &mut case.fields };
                values[*fact] = domain[left % domain.len()];
                left /= domain.len();
            }
            self.bridge.fill(&mut case.row_facts, &case.row);
            self.bridge.fill(&mut case.payload, &case.fields);
            for status in 0..self.table.statuses.len() {
                for source in 0..self.bridge.sources.len() {
                    if self.is_full() {
                        return;
                    }
                    if let Some(difference) = self.compare(&case, status, (event, source)) {
                        self.tell(|| difference);
                    }
                }
            }
        }
    }

    /// A row and a report whose values are all there and all different, so that no stamp goes unseen.
    fn plain_case(&self) -> Case {
        let (mut row, mut fields) = ([NOTHING; FACTS_MAX], [NOTHING; FACTS_MAX]);
        for (fact, column) in self.bridge.columns.iter().enumerate() {
            let (old, new) = match column.kind {
                Kind::Bool => (0, 1),
                Kind::Int | Kind::Id | Kind::Text | Kind::Time => {
                    (8 + fact as i64, 20 + fact as i64)
                }
            };
            (row[fact], fields[fact]) = (old, new);
        }
        Case { row, fields, row_facts: Facts::NONE, payload: Facts::NONE }
    }

    fn asked(&self, event: usize) -> (u32, u32) {
        let (mut row, mut fields) = self.reference.asked(event);
        let bit = |column: Column| self.bridge.number(column.name).map_or(0, |fact| 1_u32 << fact);
        let entry = &self.table.events[event];
        let stamps =
            || entry.stamps.iter().chain(self.table.statuses.iter().flat_map(|s| &s.stamps));
        let by_fact = self.table.cells[event].iter().filter_map(|cell| match cell {
            Cell::ByFact { check, .. } => Some(*check),
            Cell::To(_) | Cell::Absent(_) | Cell::Undecided => None,
        });
        let conditions = stamps().filter_map(|stamp| stamp.when);
        for check in entry.checks.iter().copied().chain(by_fact).chain(conditions) {
            row = check_columns(&check).into_iter().fold(row, |mask, column| mask | bit(column));
            fields |= check_field(&check).map_or(0, bit);
        }
        let counted = stamps().filter(|stamp| stamp.set == Set::Raise);
        (counted.fold(row, |mask, stamp| mask | bit(stamp.column)), fields)
    }

    fn compare(
        &self,
        case: &Case,
        status: usize,
        (event, source): (usize, usize),
    ) -> Option<String> {
        let tale = Tale { event, source, fields: &case.fields, now: NOW };
        let meant = self.reference.judge(status, &case.row, tale);
        let said = Said { event, source: self.bridge.sources[source], payload: &case.payload };
        let is = decide(self.table, status, &case.row_facts, &said);
        let problem = match (&is, meant) {
            (Verdict::Move(to), Judged::Moves { to: meant_to, written, row })
                if *to == meant_to =>
            {
                self.compare_move(case, (status, *to), &said, (written, &row))?
            }
            (Verdict::Duplicate, Judged::Duplicate) => return None,
            (Verdict::Refuse(Reason::Superseded(is)), Judged::Superseded(meant))
                if *is == meant =>
            {
                return None;
            }
            (Verdict::Refuse(Reason::Illegal(Why::Late)), Judged::Late) => return None,
            (Verdict::Refuse(Reason::Illegal(Why::Bug)), Judged::Bug) => return None,
            _ => format!("gives {is:?}, meant is: {meant}"),
        };
        let (event, status) = (self.table.events[event].code, self.table.statuses[status].code);
        Some(format!("{event} by {} in {status} {problem}", said.source))
    }

    fn compare_move(
        &self,
        case: &Case,
        way: (usize, usize),
        said: &Said<'_>,
        (meant_written, meant_row): (u32, &Values),
    ) -> Option<String> {
        let (mut written, mut row) = (0_u32, case.row);
        for stamp in stamps_of(self.table, way, &case.row_facts, said) {
            let set = assign(stamp.column, stamp.set, &case.payload);
            match self.bridge.assigned(&set, &case.row_facts, NOW) {
                (Some(fact), number) => {
                    written |= 1 << fact;
                    row[fact] = number;
                }
                (None, _) => {
                    return Some(format!("writes {}, which is unknown", stamp.column.name));
                }
            }
        }
        if (written, &row) != (meant_written, meant_row) {
            return Some(format!("leaves {row:?} behind, meant is {meant_row:?}"));
        }
        let (is, meant) = (&self.table.events[said.event], &self.reference.events[said.event]);
        let guards: Vec<_> = is.guards.iter().map(|guard| guard.0).collect();
        if guards != meant.guards {
            return Some(format!("asks {guards:?}, meant is {:?}", meant.guards));
        }
        if is.publishes != meant.topics {
            return Some(format!(
                "is made known on {:?}, meant is {:?}",
                is.publishes, meant.topics
            ));
        }
        None
    }
}

/// A few values of a kind: none, and enough to be equal, different, smaller and larger.
fn domain_of(kind: Kind) -> &'static [i64] {
    match kind {
        Kind::Bool => &[NOTHING, 0, 1],
        Kind::Int => &[NOTHING, 1, 2, 3],
        Kind::Id | Kind::Text | Kind::Time => &[NOTHING, 1, 2],
    }
}

fn check_columns(check: &Check) -> Vec<Column> {
    match check.test {
        Test::Null(c) | Test::Present(c) | Test::True(c) | Test::NotTrue(c) | Test::Same(c, _) => {
            vec![c]
        }
        Test::Below(low, high) => vec![low, high],
    }
}

fn check_field(check: &Check) -> Option<Column> {
    match check.test {
        Test::Same(_, field) => Some(field),
        Test::Null(_) | Test::Present(_) | Test::True(_) | Test::NotTrue(_) | Test::Below(..) => {
            None
        }
    }
}

/// Every column and field that a table speaks of.
fn columns_of(table: &Table) -> Vec<Column> {
    let mut columns = Vec::new();
    let of_check = |check: &Check| {
        check_columns(check).into_iter().chain(check_field(check)).collect::<Vec<_>>()
    };
    let of_stamp = |stamp: &StampEntry| {
        let field = if let Set::Field(field) = stamp.set { Some(field) } else { None };
        let when = stamp.when.iter().flat_map(of_check);
        [stamp.column].into_iter().chain(field).chain(when).collect::<Vec<_>>()
    };
    for event in &table.events {
        columns.extend(event.carries.iter().copied());
        columns.extend(event.checks.iter().flat_map(of_check));
        columns.extend(event.stamps.iter().flat_map(of_stamp));
    }
    columns.extend(table.statuses.iter().flat_map(|status| &status.stamps).flat_map(of_stamp));
    for cell in table.cells.iter().flatten() {
        if let Cell::ByFact { check, .. } = cell {
            columns.extend(of_check(check));
        }
    }
    columns
}

fn rest_words(table: &Table, rest: Rest<usize>) -> String {
    match rest {
        Rest::Terminal => "terminal".to_owned(),
        Rest::Restful => "restful".to_owned(),
        Rest::Derived => "derived".to_owned(),
        Rest::Parked { owner, seconds } => format!("parked {owner} {seconds}"),
        Rest::Transient { owner, seconds, time_out } => {
            format!("transient {owner} {seconds} {}", table.events[time_out].code)
        }
    }
}
