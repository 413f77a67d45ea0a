//! Random walks: the library and the reference each keep a row of their own, hear the same random reports, and are
//! compared after every one of them, verdict and whole row. From a seed, so that a difference can be seen again.

use std::thread;

use lifecycle::writer::{assign, raised};
use lifecycle::{
    Assign, Facts, Guard, Reason, Said, Table, Value, Verdict, Why, decide, stamps_of,
};

use crate::mutation;
use crate::reference::bridge::Bridge;
use crate::reference::{Cell, FACTS_MAX, Judged, NOTHING, Question, Reference, Tale, Values};

/// How many differences are told at the most.
const DIFFERENCES_MAX: usize = 20;

/// How far to walk.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// How many reports, over all machines.
    pub events: u64,
    /// On how many threads.
    pub threads: usize,
    /// Where the random numbers begin.
    pub seed: u64,
}

/// What was met on the way.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// Reports made.
    pub events: u64,
    /// Reports that moved a row.
    pub applied: u64,
    /// Reports of what was so already.
    pub duplicates: u64,
    /// Refused: a check did not hold.
    pub superseded: u64,
    /// Refused: too late.
    pub late: u64,
    /// Refused: never to be said, or not by this source.
    pub bug: u64,
    /// Refused: a condition on other rows.
    pub guard: u64,
    /// Columns written by somebody beside the writer.
    pub intruders: u64,
    /// How often each edge was taken, machine after machine; zero where there is none.
    pub taken: Vec<u64>,
    /// How many edges there are.
    pub edges: usize,
    /// Where the two disagreed.
    pub differences: Vec<String>,
}

impl Walk {
    /// How many edges were taken at least once.
    pub fn edges_taken(&self) -> usize {
        self.taken.iter().filter(|count| **count > 0).count()
    }

    /// Whether the two always agreed and no edge was left out.
    pub fn is_ok(&self) -> bool {
        self.differences.is_empty() && self.edges_taken() == self.edges && self.events > 0
    }

    /// The figures, as one line of JSON.
    pub fn figures(&self) -> serde_json::Value {
        let refused = serde_json::json!({
            "superseded": self.superseded, "late": self.late, "bug": self.bug, "guard": self.guard,
        });
        serde_json::json!({
            "proof": "walk",
            "events": self.events,
            "applied": self.applied,
            "duplicates": self.duplicates,
            "refused": refused,
            "intruders": self.intruders,
            "edges": self.edges,
            "edges_taken": self.edges_taken(),
            "differences": self.differences,
            "ok": self.is_ok(),
        })
    }

    fn absorb(&mut self, other: Walk) {
        self.events += other.events;
        self.applied += other.applied;
        self.duplicates += other.duplicates;
        self.superseded += other.superseded;
        self.late += other.late;
        self.bug += other.bug;
        self.guard += other.guard;
        self.intruders += other.intruders;
        self.taken.resize(self.taken.len().max(other.taken.len()), 0);
        for (count, more) in self.taken.iter_mut().zip(other.taken) {
            *count += more;
        }
        self.edges = self.edges.max(other.edges);
        self.differences.extend(other.differences);
    }
}

/// Walks over all machines.
///
/// # Errors
/// A reference that can't be read, or machines and references that are not the same ten.
pub fn prove(size: Size) -> Result<Walk, String> {
    let pairs = mutation::pairs()?;
    let share = size.events.div_ceil(size.threads.max(1) as u64 * pairs.len() as u64);
    let on_one_thread = |thread: usize| -> Result<Walk, String> {
        let mut sum = Walk::default();
        for (machine, (table, reference)) in pairs.iter().enumerate() {
            let seed = size.seed ^ (thread as u64) << 32 ^ (machine as u64) << 48;
            let mut walk = over(table, reference, share, seed)?;
            let (mut taken, edges) = (std::mem::take(&mut sum.taken), sum.edges + walk.edges);
            taken.append(&mut walk.taken);
            sum.absorb(walk);
            (sum.taken, sum.edges) = (taken, edges);
        }
        Ok(sum)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..size.threads.max(1))
            .map(|thread| scope.spawn(move || on_one_thread(thread)))
            .collect();
        let mut sum = Walk::default();
        for thread in threads {
            sum.absorb(thread.join().map_err(|_| "a walker has fallen".to_owned())??);
        }
        Ok(sum)
    })
}

/// Walks over one machine, on this thread.
///
/// # Errors
/// A reference with a word that the library does not have.
pub fn over(table: &Table, reference: &Reference, events: u64, seed: u64) -> Result<Walk, String> {
    let bridge = Bridge::of(reference)?;
    let mut walker = Walker::new(table, reference, &bridge, seed);
    for _ in 0..events {
        walker.step();
    }
    Ok(walker.walk)
}

/// Random numbers (splitmix64): small, fast, and the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The upper half of the product: as even as a bound this small needs.
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// Both rows of one machine, and who walks them.
struct Walker<'a> {
    table: &'a Table,
    reference: &'a Reference,
    bridge: &'a Bridge,
    random: Random,
    now: i64,
    /// The library's row and report.
    status: usize,
    facts: Facts,
    payload: Facts,
    /// The reference's row and report.
    meant_status: usize,
    values: Values,
    fields: Values,
    /// By status: the events that lead somewhere, and whether there are none.
    leading: Vec<Vec<usize>>,
    walk: Walk,
}

impl<'a> Walker<'a> {
    fn new(table: &'a Table, reference: &'a Reference, bridge: &'a Bridge, seed: u64) -> Self {
        let (statuses, events) = (reference.statuses.len(), reference.events.len());
        let leads = |event: usize, status: usize| {
            matches!(reference.matrix[event * statuses + status], Cell::Status(_) | Cell::Fork(..))
        };
        let edges = reference.matrix.iter().map(|cell| match cell {
            Cell::Status(_) => 1,
            Cell::Fork(..) => 2,
            Cell::Duplicate | Cell::Late | Cell::Bug => 0,
        });
        let leading = |status| (0..events).filter(|event| leads(*event, status)).collect();
        let walk = Walk {
            taken: vec![0; events * statuses * statuses],
            edges: edges.sum(),
            ..Walk::default()
        };
        let mut walker = Walker {
            table,
            reference,
            bridge,
            random: Random(seed),
            now: 0,
            status: 0,
            facts: Facts::NONE,
            payload: Facts::NONE,
            meant_status: 0,
            values: [NOTHING; FACTS_MAX],
            fields: [NOTHING; FACTS_MAX],
            leading: (0..statuses).map(leading).collect(),
            walk,
        };
        walker.bear();
        walker
    }

    /// Begins a new row, with whatever its creation may have put into it.
    fn bear(&mut self) {
        (self.status, self.meant_status) = (self.table.initial, self.reference.initial);
        for fact in 0..self.bridge.columns.len() {
            self.values[fact] = self.draw(fact);
        }
        self.bridge.fill(&mut self.facts, &self.values);
    }

    /// A value out of a few, so that two draws are often the same.
    fn draw(&mut self, fact: usize) -> i64 {
        let few = if self.reference.facts[fact].kind == "bool" { 2 } else { 4 };
        if self.random.one_in(8) { NOTHING } else { self.random.below(few) as i64 }
    }

    fn step(&mut self) {
        self.now += 1;
        self.walk.events += 1;
        let is_over = self.leading[self.meant_status].is_empty();
        if self.random.one_in(if is_over { 4 } else { 512 }) {
            self.bear();
        }
        if !self.bridge.columns.is_empty() && self.random.one_in(32) {
            let fact = self.random.below(self.bridge.columns.len());
            self.values[fact] = self.draw(fact);
            self.facts.set(self.bridge.columns[fact], self.bridge.value(fact, self.values[fact]));
            self.walk.intruders += 1;
        }
        let (event, source) = self.choose();
        self.write_report(event);
        if let Err(problem) = self.report(event, source) {
            let (event, status) = (
                self.reference.events[event].name,
                self.reference.statuses[self.meant_status].name,
            );
            if self.walk.differences.len() < DIFFERENCES_MAX {
                let name = self.reference.name;
                self.walk
                    .differences
                    .push(format!("{name}, step {}: {event} in {status}: {problem}", self.now));
            }
            self.bear();
        }
    }

    /// Any event by any source, but more often one that leads somewhere, by one who may say so.
    fn choose(&mut self) -> (usize, usize) {
        let leading = &self.leading[self.meant_status];
        let event = if leading.is_empty() || self.random.one_in(2) {
            self.random.below(self.reference.events.len())
        } else {
            leading[self.random.below(leading.len())]
        };
        if self.random.one_in(16) {
            return (event, self.random.below(self.bridge.sources.len()));
        }
        let by = self.reference.events[event].by;
        let nth = self.random.below(by.count_ones() as usize);
        let rest = (0..nth).fold(by, |mask, _| mask & (mask - 1));
        (event, rest.trailing_zeros() as usize)
    }

    /// Fills the fields the event carries, mostly so that its checks hold. The others keep what they were.
    fn write_report(&mut self, event: usize) {
        let reference = self.reference;
        let event = &reference.events[event];
        for field in &event.carries {
            self.fields[*field] = self.draw(*field);
        }
        for check in &event.checks {
            if let Question::Told(fact, field) = check.question
                && !self.random.one_in(8)
            {
                self.fields[field] = self.values[fact];
            }
        }
        for field in &event.carries {
            self.payload
                .set(self.bridge.columns[*field], self.bridge.value(*field, self.fields[*field]));
        }
    }

    /// Tells both sides, and compares what they say and what their rows are then.
    fn report(&mut self, event: usize, source: usize) -> Result<(), String> {
        let said = Said { event, source: self.bridge.sources[source], payload: &self.payload };
        let is = decide(self.table, self.status, &self.facts, &said);
        let tale = Tale { event, source, fields: &self.fields, now: self.now };
        let meant = self.reference.judge(self.meant_status, &self.values, tale);
        let count = match (&is, meant) {
            (Verdict::Move(to), Judged::Moves { to: meant_to, row, .. }) if *to == meant_to => {
                let applied = self.go_on(event, source, (*to, &row))?;
                if applied { &mut self.walk.applied } else { &mut self.walk.guard }
            }
            (Verdict::Duplicate, Judged::Duplicate) => &mut self.walk.duplicates,
            (Verdict::Refuse(Reason::Superseded(is)), Judged::Superseded(meant))
                if *is == meant =>
            {
                &mut self.walk.superseded
            }
            (Verdict::Refuse(Reason::Illegal(Why::Late)), Judged::Late) => &mut self.walk.late,
            (Verdict::Refuse(Reason::Illegal(Why::Bug)), Judged::Bug) => &mut self.walk.bug,
            _ => return Err(format!("the verdict is {is:?}, meant is: {meant}")),
        };
        *count += 1;
        if self.status != self.meant_status || !self.bridge.reads(&self.facts, &self.values) {
            return Err(format!("the row is {:?}, meant is {:?}", self.facts, self.values));
        }
        Ok(())
    }

    /// Asks the guards of both sides and moves both rows; whether the guards held.
    fn go_on(
        &mut self,
        event: usize,
        source: usize,
        (to, row): (usize, &Values),
    ) -> Result<bool, String> {
        let (is, meant) = (&self.table.events[event], &self.reference.events[event]);
        // One answer a name, the same for both sides.
        let mood = self.random.next();
        let refuses = |name: &&str| mood >> (name.len() % 32) & 3 == 0;
        let refused = is.guards.iter().map(|Guard(name)| *name).find(|name| refuses(name));
        let meant_refused = meant.guards.iter().copied().find(|name| refuses(name));
        if refused != meant_refused || is.publishes != meant.topics {
            return Err(format!(
                "{refused:?} refuses, meant is {meant_refused:?}, or topics differ"
            ));
        }
        if refused.is_some() {
            return Ok(false);
        }
        let said = Said { event, source: self.bridge.sources[source], payload: &self.payload };
        // A raised column is counted from the row as it was, so nothing is written before all is known.
        let stamps = stamps_of(self.table, (self.status, to), &self.facts, &said);
        let sets: Vec<Assign> =
            stamps.iter().map(|stamp| assign(stamp.column, stamp.set, &self.payload)).collect();
        for set in sets {
            match set {
                Assign::Value(column, value) => self.facts.set(column, value),
                Assign::Now(column) => self.facts.set(column, Value::Time(self.now)),
                Assign::Raise(column) => self.facts.set(column, raised(self.facts.get(column))),
            }
        }
        let width = self.reference.statuses.len();
        self.walk.taken[(event * width + self.meant_status) * width + to] += 1;
        (self.status, self.meant_status, self.values) = (to, to, *row);
        Ok(true)
    }
}
