//! The explorer: every interleaving of a few writers and bystanders on one row, breadth first. A writer is two steps,
//! load and write, and may die between them; reports come twice, late and in any order. Guards are taken to hold.

use std::collections::{BTreeSet, HashSet, VecDeque};

use crate::decide::{Said, Verdict, decide, grounds_of, stamps_of};
use crate::fact::{Check, Column, Facts, OPERATION_ID, Test, Value};
use crate::memory::Fence;
use crate::rule::Source;
use crate::table::{Cell, Table};
use crate::writer::{Assign, assign, raised};

/// An edge: (event, from, to).
pub type Edge = (usize, usize, usize);

/// A report that will be delivered. Its place in the list is the identity of the fact.
#[derive(Clone, Debug)]
pub struct Told {
    /// The number of the event.
    pub event: usize,
    /// Who says so.
    pub source: Source,
    /// What comes with it.
    pub payload: Facts,
}

/// What is explored.
#[derive(Clone, Debug)]
pub struct Scenario<'t> {
    /// The machine.
    pub table: &'t Table,
    /// What a write is compared with.
    pub fence: Fence,
    /// The status and the facts of the row at the beginning.
    pub start: (usize, Facts),
    /// The reports.
    pub reports: Vec<Told>,
    /// How often each report may be delivered.
    pub deliveries: usize,
    /// Plain column writes beside the writer, each at any moment, once.
    pub intruders: Vec<(Column, Value)>,
}

/// What was seen on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Different situations.
    pub states: usize,
    /// Writes that were applied, counted once a situation.
    pub writes: usize,
    /// The edges they took.
    pub edges: BTreeSet<Edge>,
}

/// What an exploration finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Every applied write was justified at the moment it happened.
    Holds(Figures),
    /// The shortest way to a write that was not, step by step.
    Broken(Vec<String>),
}

/// What a writer knows after its load.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Plan {
    from: usize,
    seq: i64,
    to: usize,
    /// How each of the grounds was judged.
    grounds: Vec<bool>,
    assigns: Vec<Assign>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Delivery {
    Waiting,
    Loaded(Plan),
    Over,
}

/// One situation: the row, the deliveries and who has written beside the writer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Situation {
    status: usize,
    seq: i64,
    values: Vec<Value>,
    applied: u64,
    intruded: u64,
    deliveries: Vec<Delivery>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Load(usize),
    Write(usize),
    Crash(usize),
    Intrude(usize),
}

impl Scenario<'_> {
    /// Looks at every interleaving.
    pub fn explore(&self) -> Finding {
        Explorer::new(self).run()
    }
}

struct Explorer<'s> {
    scenario: &'s Scenario<'s>,
    columns: Vec<Column>,
    figures: Figures,
    /// Every situation seen, and the one and the step it was first reached from.
    seen: Vec<(Situation, Option<(usize, Step)>)>,
}

impl<'s> Explorer<'s> {
    fn new(scenario: &'s Scenario<'s>) -> Self {
        let mut columns = scenario.table.columns_read();
        let stamped = scenario.table.all_stamps().map(|stamp| stamp.column);
        for column in stamped.chain(scenario.intruders.iter().map(|(column, _)| *column)) {
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
        Self { scenario, columns, figures: Figures::default(), seen: Vec::new() }
    }

    fn run(mut self) -> Finding {
        let (status, facts) = &self.scenario.start;
        let start = Situation {
            status: *status,
            seq: 1,
            values: self.columns.iter().map(|column| facts.get(*column).clone()).collect(),
            applied: 0,
            intruded: 0,
            deliveries: vec![
                Delivery::Waiting;
                self.scenario.reports.len() * self.scenario.deliveries
            ],
        };
        let mut known = HashSet::from([start.clone()]);
        let mut queue = VecDeque::from([0]);
        self.seen.push((start, None));
        while let Some(here) = queue.pop_front() {
            for step in self.steps(&self.seen[here].0) {
                let mut next = self.seen[here].0.clone();
                if let Err(problem) = self.take(&mut next, step) {
                    return Finding::Broken(self.trace(here, step, problem));
                }
                if known.insert(next.clone()) {
                    queue.push_back(self.seen.len());
                    self.seen.push((next, Some((here, step))));
                }
            }
        }
        self.figures.states = self.seen.len();
        Finding::Holds(self.figures)
    }

    /// What can happen next. Behind a lock nobody but its holder moves.
    fn steps(&self, now: &Situation) -> Vec<Step> {
        let loaded = |delivery: &Delivery| matches!(delivery, Delivery::Loaded(_));
        let locked = self.scenario.fence == Fence::Locked && now.deliveries.iter().any(loaded);
        let mut steps = Vec::new();
        for (slot, delivery) in now.deliveries.iter().enumerate() {
            // Two deliveries of one report are alike, so it is enough to begin them in order.
            let is_next = slot % self.scenario.deliveries == 0
                || now.deliveries[slot - 1] != Delivery::Waiting;
            match delivery {
                Delivery::Waiting if !locked && is_next => steps.push(Step::Load(slot)),
                Delivery::Loaded(_) => steps.extend([Step::Write(slot), Step::Crash(slot)]),
                Delivery::Waiting | Delivery::Over => {}
            }
        }
        if !locked {
            let left = |intruder: &usize| now.intruded >> intruder & 1 == 0;
            steps.extend((0..self.scenario.intruders.len()).filter(left).map(Step::Intrude));
        }
        steps
    }

    /// Does one step; an unjustified write is the error.
    fn take(&mut self, now: &mut Situation, step: Step) -> Result<(), String> {
        match step {
            Step::Load(slot) => now.deliveries[slot] = self.load(now, slot),
            Step::Crash(slot) => now.deliveries[slot] = Delivery::Over,
            Step::Intrude(intruder) => {
                let (column, value) = &self.scenario.intruders[intruder];
                now.intruded |= 1 << intruder;
                self.set(now, *column, value.clone());
            }
            Step::Write(slot) => {
                let delivery = std::mem::replace(&mut now.deliveries[slot], Delivery::Over);
                if let Delivery::Loaded(plan) = delivery {
                    return self.write(now, self.report(slot), plan);
                }
            }
        }
        Ok(())
    }

    fn report(&self, slot: usize) -> usize {
        slot / self.scenario.deliveries
    }

    fn load(&self, now: &Situation, slot: usize) -> Delivery {
        let report = self.report(slot);
        if now.applied >> report & 1 == 1 {
            return Delivery::Over;
        }
        let (told, facts) = (&self.scenario.reports[report], self.facts(now));
        let Verdict::Move(to) = self.judge(now, report) else {
            return Delivery::Over;
        };
        let said = Said { event: told.event, source: told.source, payload: &told.payload };
        let stamps = stamps_of(self.scenario.table, (now.status, to), &facts, &said);
        let assigns = stamps.iter().map(|stamp| assign(stamp.column, stamp.set, &told.payload));
        let grounds = grounds_of(self.scenario.table, (now.status, to), &facts, &said);
        let grounds = grounds.into_iter().map(|(_, held)| held).collect();
        let assigns = assigns.collect();
        Delivery::Loaded(Plan { from: now.status, seq: now.seq, to, grounds, assigns })
    }

    fn write(&mut self, now: &mut Situation, report: usize, plan: Plan) -> Result<(), String> {
        let told = &self.scenario.reports[report];
        let said = Said { event: told.event, source: told.source, payload: &told.payload };
        let unchanged = match self.scenario.fence {
            Fence::StatusOnly => now.status == plan.from,
            Fence::Checked | Fence::Locked => {
                let (table, facts) = (self.scenario.table, self.facts(now));
                let grounds = grounds_of(table, (plan.from, plan.to), &facts, &said);
                let held = grounds.iter().map(|(check, _)| check.holds(&facts, &told.payload));
                now.status == plan.from && now.seq == plan.seq && held.eq(plan.grounds)
            }
        };
        if !unchanged {
            return Ok(());
        }
        if now.applied >> report & 1 == 1 {
            return Err("this very report was applied before".to_owned());
        }
        let verdict = self.judge(now, report);
        if verdict != Verdict::Move(plan.to) {
            return Err(format!("but by now the row gives {}", self.spell(&verdict)));
        }
        self.figures.writes += 1;
        self.figures.edges.insert((told.event, plan.from, plan.to));
        (now.status, now.seq, now.applied) = (plan.to, now.seq + 1, now.applied | 1 << report);
        for assign in plan.assigns {
            let (Assign::Value(column, _) | Assign::Now(column) | Assign::Raise(column)) = assign;
            let Some(place) = self.columns.iter().position(|known| *known == column) else {
                continue;
            };
            now.values[place] = match assign {
                Assign::Value(_, value) => value,
                // The number of the transition is clock enough, and keeps the situations few.
                Assign::Now(_) => Value::Time(now.seq),
                Assign::Raise(_) => raised(&now.values[place]),
            };
        }
        Ok(())
    }

    fn judge(&self, now: &Situation, report: usize) -> Verdict {
        let told = &self.scenario.reports[report];
        let said = Said { event: told.event, source: told.source, payload: &told.payload };
        decide(self.scenario.table, now.status, &self.facts(now), &said)
    }

    fn facts(&self, now: &Situation) -> Facts {
        let pairs = self.columns.iter().zip(&now.values);
        pairs.fold(Facts::NONE, |facts, (column, value)| facts.with(*column, value.clone()))
    }

    fn set(&self, now: &mut Situation, column: Column, value: Value) {
        if let Some(place) = self.columns.iter().position(|known| *known == column) {
            now.values[place] = value;
        }
    }

    /// The way to the last step, one sentence each.
    fn trace(&self, last: usize, step: Step, problem: String) -> Vec<String> {
        let mut way = vec![(last, step)];
        while let Some((before, step)) = self.seen[way[way.len() - 1].0].1 {
            way.push((before, step));
        }
        way.reverse();
        let mut lines: Vec<String> =
            way.iter().map(|(place, step)| self.tell(*place, *step)).collect();
        lines.push(problem);
        lines
    }

    fn tell(&self, place: usize, step: Step) -> String {
        let now = &self.seen[place].0;
        let status = self.scenario.table.statuses[now.status].code;
        let who = |slot: usize| {
            let report = self.report(slot);
            let event = self.scenario.table.events[self.scenario.reports[report].event].code;
            format!("delivery {} of report {report} ({event})", slot % self.scenario.deliveries + 1)
        };
        match step {
            Step::Load(slot) => format!("{} loads the row: {status}, seq {}", who(slot), now.seq),
            Step::Write(slot) => format!("{} writes, finding {status}, seq {}", who(slot), now.seq),
            Step::Crash(slot) => format!("{} dies", who(slot)),
            Step::Intrude(intruder) => {
                let (column, value) = &self.scenario.intruders[intruder];
                format!("somebody sets {} to {value:?}", column.name)
            }
        }
    }

    fn spell(&self, verdict: &Verdict) -> String {
        match verdict {
            Verdict::Move(to) => format!("a move to {}", self.scenario.table.statuses[*to].code),
            Verdict::Duplicate => "a duplicate".to_owned(),
            Verdict::Refuse(reason) => match reason.name() {
                Some(name) => format!("a refusal: {} ({name})", reason.code()),
                None => format!("a refusal: {}", reason.code()),
            },
        }
    }
}

/// Which edges some sequence of reports takes, beginning at birth, and which none does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edges {
    /// Taken, each by the evaluator's own verdict.
    pub taken: Vec<Edge>,
    /// Out of reach.
    pub out_of_reach: Vec<Edge>,
}

/// Takes every edge that can be taken, the facts of the row and of the report being whatever that needs.
pub fn walk_edges(table: &Table) -> Edges {
    let mut edges = Edges { taken: Vec::new(), out_of_reach: table.edges() };
    let mut reached = vec![false; table.statuses.len()];
    reached[table.initial] = true;
    loop {
        let goes = |edge: &Edge| reached[edge.1] && can_take(table, *edge);
        let (taken, left): (Vec<Edge>, Vec<Edge>) =
            edges.out_of_reach.iter().partition(|e| goes(e));
        taken.iter().for_each(|(_, _, to)| reached[*to] = true);
        edges.out_of_reach = left;
        if taken.is_empty() {
            return edges;
        }
        edges.taken.extend(taken);
    }
}

/// Whether some row and some report take this edge. Checks are simple, so a guess that favours each is enough.
fn can_take(table: &Table, (event, from, to): Edge) -> bool {
    let entry = &table.events[event];
    let mut wanted: Vec<(Check, bool)> = entry.checks.iter().map(|check| (*check, true)).collect();
    if let Cell::ByFact { check, yes, .. } = table.cells[event][from] {
        wanted.push((check, to == yes));
    }
    let (mut row, mut payload) = (Facts::NONE.with(OPERATION_ID, Value::Id(1)), Facts::NONE);
    for (check, holds) in &wanted {
        favour(check.test, *holds, &mut row);
    }
    for (check, holds) in &wanted {
        if let (Test::Same(column, field), true) = (check.test, *holds) {
            payload.set(field, row.get(column).clone());
        }
    }
    let source = entry.reporters.first().copied().unwrap_or(Source::Worker);
    decide(table, from, &row, &Said { event, source, payload: &payload }) == Verdict::Move(to)
}

fn favour(test: Test, holds: bool, row: &mut Facts) {
    match (test, holds) {
        (Test::Null(column), true) | (Test::Present(column), false) => row.set(column, Value::Null),
        (Test::Null(column), false) | (Test::Present(column), true) => {
            row.set(column, Value::Int(1))
        }
        (Test::True(column), yes) => row.set(column, Value::Bool(yes)),
        (Test::NotTrue(column), not) => row.set(column, Value::Bool(!not)),
        (Test::Same(..), true) => {}
        (Test::Same(column, _), false) => row.set(column, Value::Int(1)),
        (Test::Below(low, high), below) => {
            row.set(low, Value::Int(i64::from(!below)));
            row.set(high, Value::Int(1));
        }
    }
}
