//! One run: events chosen by the dice, stories that meet at the turnstiles, and everything that was said and heard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::bail;
use sqlx::Row as _;
use testkit::{Death, Process, Turnstile};
use uuid::Uuid;

use crate::actions;
use crate::bed::{Bed, Busy};
use crate::books::Books;
use crate::dice::Dice;
use crate::node::Node;
use crate::story::{Fate, Plan};

/// How long a statement may take before it is asked whether it waits for somebody.
const PATIENCE: Duration = Duration::from_millis(2);
/// A story that has not moved after so many looks never will.
const LOOKS_MAX: usize = 10_000;
/// No run takes that long, on any machine.
const RUN_MAX: Duration = Duration::from_secs(90);
/// How often it is looked at how everything stands.
const LOOK_EVERY: usize = 20;

/// What is never so, at any moment. A run has one piece of work under way, and a request one run, but for those by which a
/// sweep takes it up again. What a restart comes to is believed only with another boot than before.
const NEVER: &str = "
    SELECT 'run ' || run_id || ' has ' || count(*) || ' tasks under way'
      FROM node_tasks
     WHERE status IN ('queued', 'dispatched')
     GROUP BY run_id
    HAVING count(*) > 1
     UNION ALL
    SELECT 'operation ' || (state ->> 'operation') || ' has ' || count(*) || ' runs of ' || workflow
      FROM workflow_runs
     WHERE workflow IN ('provision', 'restart', 'release') AND id NOT LIKE '%-again-%'
     GROUP BY workflow, state ->> 'operation'
    HAVING count(*) > 1
     UNION ALL
    SELECT 'task ' || task.id || ' restarted nothing, and ' || said.entity_id || ' is said to be back'
      FROM lifecycle_log AS said
      JOIN node_tasks AS task ON task.allocation_id = said.entity_id AND task.operation_id = said.operation_id
     WHERE said.machine = 'allocation' AND said.event = 'restart.completed'
       AND task.status = 'succeeded' AND task.result ->> 'boot_id' = task.result ->> 'boot_id_before'";

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// What happened, line by line.
    pub trace: Vec<String>,
    /// What must not be; nothing, if all is well.
    pub broken: Vec<String>,
    /// Whether what it ran on can't be used again.
    pub spoilt: bool,
    /// How often what was done to it.
    pub counts: BTreeMap<String, u64>,
    /// The steps that were taken: machine, event, from, to.
    pub steps: BTreeSet<[String; 4]>,
    /// What was refused: machine, event, status, reason.
    pub refusals: BTreeSet<[String; 4]>,
    /// How things stood together at some moment.
    pub states: BTreeSet<String>,
}

/// A run under way.
pub struct Sim<'a> {
    /// What it runs on.
    pub bed: &'a mut Bed,
    /// Its chance.
    pub dice: Dice,
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// What was asked and answered.
    pub books: Books,
    /// What has come of it so far.
    pub report: Report,
    /// Which event this is.
    pub event: usize,
    /// How much time has been let pass.
    pub passed: Duration,
    stories: usize,
}

/// Where a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Asks,
    Ended,
    Blocked,
}

/// Runs a seed.
///
/// # Errors
/// When the simulation itself can't go on; what it finds is in the report.
pub async fn run(bed: &mut Bed, seed: u64, events: usize) -> anyhow::Result<Report> {
    let nodes = bed.put_back().await?;
    let mut sim = Sim {
        bed,
        dice: Dice::new(seed),
        nodes,
        books: Books::default(),
        report: Report { seed, ..Report::default() },
        event: 0,
        passed: Duration::ZERO,
        stories: 0,
    };
    match tokio::time::timeout(RUN_MAX, sim.live(events)).await {
        Ok(lived) => lived?,
        Err(_) => {
            sim.broken("nothing moves any more");
            sim.report.spoilt = true;
        }
    }
    Ok(sim.report)
}

impl Sim<'_> {
    async fn live(&mut self, events: usize) -> anyhow::Result<()> {
        self.beat_all().await?;
        let mut looked = 0;
        while self.event < events && self.report.broken.is_empty() {
            let before = self.event;
            self.step().await?;
            for node in &mut self.nodes {
                node.silent = node.silent.saturating_sub(self.event - before);
            }
            if self.event >= looked + LOOK_EVERY {
                looked = self.event;
                self.look().await?;
            }
        }
        if self.report.broken.is_empty() {
            self.come_to_rest().await?;
        }
        self.gather().await
    }

    /// A line for the trace.
    pub fn say(&mut self, line: impl Into<String>) {
        let line = format!("{:>3} {}", self.event, line.into());
        self.report.trace.push(line);
    }

    /// Something that must not be.
    pub fn broken(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.say(format!("BROKEN: {what}"));
        self.report.broken.push(what);
    }

    /// Counts what was done.
    pub fn count(&mut self, what: &str) {
        *self.report.counts.entry(what.to_owned()).or_default() += 1;
    }

    /// One event, or some that happen together.
    async fn step(&mut self) -> anyhow::Result<()> {
        let due = |lane: &crate::bed::Lane, event| {
            lane.busy.as_ref().and_then(|busy| busy.hangs_until).is_some_and(|until| until <= event)
        };
        let back = self.bed.lanes.iter().any(|lane| due(lane, self.event));
        let free = self.bed.lanes.iter().filter(|lane| lane.busy.is_none()).count();
        let together = if self.dice.chance(30) { 2 + self.dice.below(2) } else { 1 };
        let mut plans = Vec::new();
        let mut last = None;
        for _ in 0..together.min(free) {
            // The same twice at once is what races are made of.
            let chosen = match last {
                Some(action) if self.dice.chance(35) => action,
                _ => actions::choose(&mut self.dice),
            };
            let (plan, was_something) = actions::plan(self, chosen).await?;
            if was_something {
                last = Some(chosen);
                self.event += 1;
            }
            if let Some(plan) = plan {
                let fate = self.fate();
                plans.push((plan, fate));
            }
        }
        match plans.len() {
            0 if !back => Ok(()),
            1 if !back && plans[0].1 == Fate::Lives => {
                let (plan, _) = plans.remove(0);
                self.alone(plan).await;
                Ok(())
            }
            _ => self.meet(plans).await,
        }
    }

    fn fate(&mut self) -> Fate {
        // As many as the longest step has.
        let longest = if self.dice.chance(50) { 6 } else { 24 };
        let at = 1 + self.dice.below(longest);
        match self.dice.weighted(&[78, 10, 7, 4, 1]) {
            1 => Fate::Dies(at),
            2 => Fate::Unheard,
            3 => Fate::Hangs(at, 3 + self.dice.below(25)),
            4 => Fate::Cut(at),
            _ => Fate::Lives,
        }
    }

    /// A story that nothing happens to.
    pub async fn alone(&mut self, plan: Plan) {
        self.stories += 1;
        let number = self.stories;
        self.say(format!("#{number} {}", plan.what));
        let heard = (plan.begin)(&self.bed.calm).await;
        self.hear(number, heard, Fate::Lives);
    }

    /// Stories at once, a statement at a time, and those that have hung long enough with them.
    async fn meet(&mut self, plans: Vec<(Plan, Fate)>) -> anyhow::Result<()> {
        let mut here: Vec<usize> = Vec::new();
        for (lane, place) in self.bed.lanes.iter_mut().zip(0..) {
            if let Some(busy) = &mut lane.busy
                && busy.hangs_until.is_some_and(|until| until <= self.event)
            {
                busy.hangs_until = None;
                busy.fate = Fate::Lives;
                here.push(place);
            }
        }
        for (plan, fate) in plans {
            here.extend(self.begin(plan, fate));
        }
        if here.len() > 1 {
            self.count("meetings");
        }
        let mut blocked: Vec<usize> = Vec::new();
        let mut moved = None;
        while !here.is_empty() {
            let mut ready = Vec::new();
            // Who has just moved comes first: until it stands still, nobody can tell whether others wait for it.
            let others = here.iter().copied().filter(|lane| Some(*lane) != moved);
            let order: Vec<usize> =
                here.iter().copied().filter(|lane| Some(*lane) == moved).chain(others).collect();
            for lane in order {
                match self.stand(lane).await? {
                    Stand::Asks => ready.push(lane),
                    Stand::Ended => {
                        here.retain(|other| *other != lane);
                        self.end(lane).await?;
                    }
                    Stand::Blocked => {
                        if !blocked.contains(&lane) {
                            self.count("waits for a lock");
                        }
                    }
                }
            }
            blocked = here.iter().copied().filter(|lane| !ready.contains(lane)).collect();
            ready.sort_unstable();
            moved = self.dice.pick(&ready).copied();
            if let Some(lane) = moved
                && !self.turn(lane).await?
            {
                here.retain(|other| *other != lane);
            }
        }
        Ok(())
    }

    fn begin(&mut self, plan: Plan, fate: Fate) -> Option<usize> {
        let hung = self.bed.lanes.iter().filter(|lane| lane.busy.is_some()).count();
        let place = self.bed.lanes.iter().position(|lane| lane.busy.is_none())?;
        self.stories += 1;
        let number = self.stories;
        // There is always a process left.
        let fate = if hung > 0 && matches!(fate, Fate::Hangs(..)) { Fate::Lives } else { fate };
        self.say(format!("#{number} {} {fate:?}", plan.what));
        let lane = &mut self.bed.lanes[place];
        lane.turnstile.hold();
        let story = (plan.begin)(&lane.assembled);
        let process = Process::begin(story, &self.bed.news);
        lane.busy = Some(Busy { number, process, statements: 0, fate, hangs_until: None });
        Some(place)
    }

    /// Waits until it is known where a process stands.
    async fn stand(&mut self, lane: usize) -> anyhow::Result<Stand> {
        for _ in 0..LOOKS_MAX {
            let Bed { lanes, news, sql, .. } = &mut *self.bed;
            let (turnstile, Some(busy)) = (&lanes[lane].turnstile, &lanes[lane].busy) else {
                return Ok(Stand::Ended);
            };
            if busy.process.has_ended() {
                return Ok(Stand::Ended);
            }
            if turnstile.asks().is_some() {
                return Ok(Stand::Asks);
            }
            let heard = tokio::time::timeout(PATIENCE, news.notified()).await;
            if heard.is_err() && turnstile.is_at_work() {
                let waits: bool = sqlx::query_scalar(
                    "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE pid = $1 AND NOT granted)",
                )
                .bind(turnstile.backend().unwrap_or_default())
                .fetch_one(sql)
                .await?;
                if waits && turnstile.is_at_work() {
                    return Ok(Stand::Blocked);
                }
            }
        }
        bail!("a process neither asks nor ends")
    }

    /// One statement of a process, or what becomes of it instead. Whether it goes on.
    async fn turn(&mut self, place: usize) -> anyhow::Result<bool> {
        let lane = &mut self.bed.lanes[place];
        let Some(busy) = &mut lane.busy else { return Ok(false) };
        busy.statements += 1;
        let (number, statement, fate) = (busy.number, busy.statements, busy.fate);
        let asks = lane.turnstile.asks().unwrap_or_default();
        let words: Vec<&str> = asks.split_whitespace().take(8).collect();
        let line = format!("    #{number}.{statement} {}", words.join(" "));
        match fate {
            Fate::Dies(at) if at == statement => {
                let mut busy = lane.busy.take();
                if let Some(busy) = &mut busy {
                    lane.turnstile.kill(&mut busy.process, Death::Before).await;
                }
                lane.outlive().await?;
                self.say(format!("{line} †"));
                self.count("deaths");
                return Ok(false);
            }
            Fate::Hangs(at, events) if at <= statement && !lane.turnstile.is_in_transaction() => {
                busy.statements -= 1;
                busy.hangs_until = Some(self.event + events);
                self.say(format!("{line} …"));
                self.count("hangs");
                return Ok(false);
            }
            Fate::Cut(at) if at == statement => {
                let backend = lane.turnstile.backend();
                lane.turnstile.cut();
                self.say(format!("{line} ✂"));
                self.count("broken connections");
                self.until_gone(backend).await?;
            }
            Fate::Lives | Fate::Dies(_) | Fate::Unheard | Fate::Hangs(..) | Fate::Cut(_) => {
                lane.turnstile.let_through();
                self.say(line);
            }
        }
        Ok(true)
    }

    /// Waits until a process of the database has seen that nobody talks to it any more, and has undone what it had begun.
    async fn until_gone(&mut self, backend: Option<i32>) -> anyhow::Result<()> {
        for _ in 0..LOOKS_MAX {
            let there: bool =
                sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = $1)")
                    .bind(backend.unwrap_or_default())
                    .fetch_one(&mut self.bed.sql)
                    .await?;
            if !there {
                return Ok(());
            }
        }
        bail!("a connection that was cut is still there")
    }

    async fn end(&mut self, place: usize) -> anyhow::Result<()> {
        let lane = &mut self.bed.lanes[place];
        let Some(mut busy) = lane.busy.take() else { return Ok(()) };
        lane.turnstile.open();
        lane.turnstile.until(Turnstile::rests).await;
        let Some(heard) = busy.process.answer().await else { return Ok(()) };
        if busy.fate == Fate::Unheard {
            self.say(format!("#{} is not heard", busy.number));
            self.count("answers lost");
        } else {
            self.hear(busy.number, heard, busy.fate);
        }
        Ok(())
    }

    /// Those that hang go on, or die.
    pub async fn wake_all(&mut self) -> anyhow::Result<()> {
        self.event += 1_000_000;
        let woken = self.meet(Vec::new()).await;
        self.event -= 1_000_000;
        woken
    }

    /// How things stand together, allocation by allocation.
    pub(crate) async fn look(&mut self) -> anyhow::Result<()> {
        let rows = sqlx::query(
            "SELECT allocations.status || ' ' || coalesce((
                        SELECT string_agg(claims.status, ',' ORDER BY claims.status)
                          FROM claims WHERE claims.allocation_id = allocations.id), '') || ' ' || coalesce((
                        SELECT string_agg(task.kind || ':' || task.status, ',' ORDER BY task.kind, task.status)
                          FROM node_tasks AS task WHERE task.allocation_id = allocations.id), '') || ' ' || coalesce((
                        SELECT string_agg(run.workflow || ':' || (run.done_at IS NULL)::text, ',' ORDER BY run.workflow)
                          FROM workflow_runs AS run WHERE run.entity_id = allocations.id), '')
               FROM allocations",
        )
        .fetch_all(&mut self.bed.sql)
        .await?;
        for row in rows {
            self.report.states.insert(row.try_get(0)?);
        }
        let never: Vec<String> = sqlx::query_scalar(NEVER).fetch_all(&mut self.bed.sql).await?;
        for what in never {
            self.broken(what);
        }
        Ok(())
    }

    /// What the records of the run say was exercised.
    async fn gather(&mut self) -> anyhow::Result<()> {
        let steps = sqlx::query_as::<_, (String, String, String, String)>(
            "SELECT DISTINCT machine, event, coalesce(from_status, ''), to_status FROM lifecycle_log",
        )
        .fetch_all(&mut self.bed.sql)
        .await?;
        self.report.steps.extend(steps.into_iter().map(|(a, b, c, d)| [a, b, c, d]));
        let refusals = sqlx::query_as::<_, (String, String, String, String)>(
            "SELECT DISTINCT machine, event, coalesce(status, ''), reason FROM lifecycle_refusals",
        )
        .fetch_all(&mut self.bed.sql)
        .await?;
        self.report.refusals.extend(refusals.into_iter().map(|(a, b, c, d)| [a, b, c, d]));
        Ok(())
    }
}

/// The end of an identity, which tells it from the others of a run.
pub fn short(id: &Uuid) -> String {
    let text = id.simple().to_string();
    text[text.len() - 4..].to_owned()
}
