//! Ours against what somebody would run instead, in one run on one machine: ours, theirs and ours again in every round. The floor of
//! these figures is what the peer does.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use store::cluster::Cluster;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Plan;
use crate::agents::{SELDOM_PER_SECOND, dispatch};
use crate::create::{Seen, Until, ask};
use crate::figure::Figure;
use crate::fleet::Agents;
use crate::machine::{Mood, quantile};
use crate::peer::{Pace, Peer};
use crate::raw;
use crate::stage::{ALL_ROLES, Setting, Stage};
use crate::stories::{Flown, IN_FLIGHT, fly};

/// Of eight GPUs each, for us and for them.
const NODES: usize = 1_000;
/// Of Slurm's when nobody has time.
const FEW_NODES: usize = 100;
/// How many of ours are made at a time: what all rounds make must fit.
const ASKED: usize = 1_000;

/// What of a pace a figure is about.
#[derive(Clone, Copy)]
enum What {
    Rate,
    P50,
    P99,
}

impl What {
    const fn of(self, pace: Pace) -> f64 {
        match self {
            What::Rate => pace.rate,
            What::P50 => pace.p50_ms,
            What::P99 => pace.p99_ms,
        }
    }
}

/// A figure that compares.
struct Compared {
    what: What,
    figure: Figure,
}

impl Compared {
    fn push(&mut self, ours: Pace, theirs: Pace, mood: Mood) {
        self.figure.push(self.what.of(ours), Some(self.what.of(theirs)), mood);
    }
}

const fn compared(what: What, figure: Figure) -> Compared {
    Compared { what, figure }
}

const fn rounds(plan: Plan) -> usize {
    if plan.quick { 1 } else { 3 }
}

impl From<&Seen> for Pace {
    fn from(seen: &Seen) -> Pace {
        Pace { rate: seen.rate, p50_ms: seen.p50(), p99_ms: seen.p99() }
    }
}

/// P4: an allocation of ours against a claim of Placement's, which has a Postgres like ours to itself.
pub(crate) async fn placement(theirs: &Cluster, plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let settings = [("DATABASE_URL", database(theirs).await?), ("NODES", NODES.to_string())];
    let mut peer = Peer::start("placement", &settings).await?;
    let contest = Contest {
        name: "placement",
        clients: &[8, 32],
        theirs: Duration::from_secs(if plan.quick { 4 } else { 10 }),
        figures: |clients| {
            let rate = format!("placement.claims_per_second_{clients}");
            let p99 = format!("placement.claim_p99_{clients}");
            vec![
                compared(What::Rate, Figure::more("P4", rate, "/s").goal(50.0, 150.0)),
                compared(What::P99, Figure::less("P4", p99, "ms").must(0.05)),
            ]
        },
    };
    let figures = contest.run(&mut peer, plan).await?;
    peer.end().await?;
    Ok(figures)
}

/// P5: an allocation of ours, which is on disk, against one of Slurm's, which is not.
pub(crate) async fn slurm(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let nodes = if plan.quick { FEW_NODES } else { NODES };
    let mut peer = Peer::start("slurm", &[("NODES", nodes.to_string())]).await?;
    let contest = Contest {
        name: "slurm",
        clients: &[1, 8, 32],
        theirs: Duration::from_secs(if plan.quick { 3 } else { 5 }),
        // Slurm is the slower the more nodes it has, so that with few of them nothing is met or missed.
        figures: if plan.quick { slurm_figures } else { slurm_goals },
    };
    if plan.quick {
        peer.described.push_str(", too few for the goal");
    }
    let figures = contest.run(&mut peer, plan).await?;
    peer.end().await?;
    Ok(figures)
}

fn slurm_figures(clients: usize) -> Vec<Compared> {
    if clients == 1 {
        return vec![compared(What::P50, Figure::less("P5", "slurm.allocation_p50_1", "ms"))];
    }
    let rate = format!("slurm.allocations_per_second_{clients}");
    vec![compared(What::Rate, Figure::more("P5", rate, "/s"))]
}

fn slurm_goals(clients: usize) -> Vec<Compared> {
    let judged = |Compared { what, figure }| match what {
        What::Rate => compared(what, figure.goal(5.0, 12.0)),
        What::P50 | What::P99 => compared(what, figure.must(1.0)),
    };
    slurm_figures(clients).into_iter().map(judged).collect()
}

/// P9: from the row of a task to its agent's first word, against a job of graphile-worker's from its call to its start.
pub(crate) async fn queue(theirs: &Cluster, plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let count = plan.agents.min(1_000);
    // Each task goes to a node that has had none.
    let tasks = (count / (2 * rounds(plan))).min(150);
    let every_ms = 1_000.0 / SELDOM_PER_SECOND;
    let settings = [("DATABASE_URL", database(theirs).await?), ("EVERY_MS", every_ms.to_string())];
    let mut peer = Peer::start("queue", &settings).await?;
    let setting = Setting { name: "queue", nodes: 0, floor_nodes: 1, roles: ALL_ROLES };
    let stage = Stage::set(setting).await?;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    stage.product.fleet("h100.slice", (Agents::NullThatTells, count), &mut agents, &stop).await?;
    let note = format!("{count} agents, {SELDOM_PER_SECOND}/s; {}", peer.described);
    let of = |name: &str| Figure::less("P9", name, "ms").note(&note);
    let (mut p50, mut p99) =
        (of("queue.task_reaches_agent_p50").must(1.0), of("queue.task_reaches_agent_p99"));
    for round in 1..=rounds(plan) {
        let before = dispatch(&stage, SELDOM_PER_SECOND, tasks).await?;
        let time = Duration::from_secs_f64(tasks as f64 / SELDOM_PER_SECOND);
        let theirs = peer.measure(1, time).await?;
        let after = dispatch(&stage, SELDOM_PER_SECOND, tasks).await?;
        // Theirs are all of theirs.
        let (mood, before, after) = (before.mood, before.all_received(), after.all_received());
        let ours = |share| f64::midpoint(quantile(&before, share), quantile(&after, share));
        eprintln!("queue, round {round}: p50 {:.2} ms; they {theirs:?}", ours(0.5));
        p50.push(ours(0.5), Some(theirs.p50_ms), mood);
        p99.push(ours(0.99), Some(theirs.p99_ms), mood);
    }
    stage.product.check().await?;
    stop.cancel();
    agents.join_all().await;
    peer.end().await?;
    Ok(vec![p50, p99])
}

/// P12: allocations that become active, against workflows of one step.
pub(crate) async fn temporal(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let figure = Figure::more("P12", "temporal.to_active_per_second_32", "/s").must(10.0);
    in_flight("temporal", figure, plan).await
}

/// P12: allocations that become active, against handlers of one step.
pub(crate) async fn restate(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let figure = Figure::more("P12", "restate.to_active_per_second_32", "/s").goal(0.4, 0.8);
    in_flight("restate", figure, plan).await
}

/// Ours are half a dozen transitions and a way to an agent and back each, and start with an empty process every time.
async fn in_flight(
    script: &'static str,
    mut figure: Figure,
    plan: Plan,
) -> anyhow::Result<Vec<Figure>> {
    let (nodes, seconds) = if plan.quick { (32, 4) } else { (128, 10) };
    let mut peer = Peer::start(script, &[]).await?;
    for round in 1..=rounds(plan) {
        let before = fly(nodes).await?;
        let theirs = peer.measure(IN_FLIGHT, Duration::from_secs(seconds)).await?;
        let Flown { rate, .. } = fly(nodes).await?;
        let ours = f64::midpoint(before.rate, rate);
        eprintln!("{script}, round {round}: {ours:.0}/s; they {theirs:?}");
        figure.push(ours, Some(theirs.rate), before.mood);
    }
    let note = format!("{}; ours are whole allocations, {} at a time", peer.described, nodes * 8);
    peer.end().await?;
    Ok(vec![figure.note(note)])
}

/// An empty database for a peer, of which every commit is on disk.
async fn database(cluster: &Cluster) -> anyhow::Result<String> {
    let mut admin = PgConnection::connect(&cluster.url("postgres")).await?;
    raw::insist_on_durability(&mut admin).await?;
    sqlx::raw_sql("CREATE DATABASE peer").execute(&mut admin).await?;
    admin.close().await?;
    Ok(cluster.url("peer"))
}

/// One GPU at a time, from us and from somebody else.
struct Contest {
    name: &'static str,
    clients: &'static [usize],
    /// How long they are asked in a round.
    theirs: Duration,
    /// What is said of so many clients.
    figures: fn(usize) -> Vec<Compared>,
}

impl Contest {
    async fn run(&self, peer: &mut Peer, plan: Plan) -> anyhow::Result<Vec<Figure>> {
        let mut all = Vec::new();
        let mut stage = self.stage().await?;
        for (number, &clients) in self.clients.iter().enumerate() {
            // What was made stays, and a thousand nodes are full after a few rounds.
            if number > 0 && !plan.quick {
                stage.check().await?;
                drop(stage);
                stage = self.stage().await?;
            }
            all.extend(self.rounds(&stage, peer, clients, plan).await?);
        }
        stage.check().await?;
        Ok(all)
    }

    async fn stage(&self) -> anyhow::Result<Stage> {
        let setting = Setting { name: self.name, nodes: NODES, floor_nodes: 1, roles: "api" };
        let stage = Stage::set(setting).await?;
        let sql = stage.sql().await?;
        // The first requests of a process fill its caches; theirs has had some too.
        ask(&stage.product, &sql, 8, Until::Asked(ASKED / 4)).await?;
        sql.close().await;
        Ok(stage)
    }

    async fn rounds(
        &self,
        stage: &Stage,
        peer: &mut Peer,
        clients: usize,
        plan: Plan,
    ) -> anyhow::Result<Vec<Figure>> {
        let (sql, name) = (stage.sql().await?, self.name);
        let mut compared = (self.figures)(clients);
        for round in 1..=rounds(plan) {
            let mood = Mood::look().await;
            let before = ask(&stage.product, &sql, clients, Until::Asked(ASKED)).await?;
            let theirs = peer.measure(clients, self.theirs).await?;
            let after = ask(&stage.product, &sql, clients, Until::Asked(ASKED)).await?;
            let mood = mood.asking(before.client_cpu + after.client_cpu);
            let ours = Pace::from(&before).mean(Pace::from(&after));
            eprintln!("{name}, {clients} at once, round {round}: {ours:?}; they {theirs:?}");
            for one in &mut compared {
                one.push(ours, theirs, mood);
            }
        }
        sql.close().await;
        let note = format!("{}; {NODES} nodes of ours", peer.described);
        Ok(compared.into_iter().map(|one| one.figure.note(&note)).collect())
    }
}
