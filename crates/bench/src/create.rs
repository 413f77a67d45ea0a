//! What it costs to ask for an allocation: through the API, with a token, a key, the money looked at, a place found and everything on
//! disk before the answer, against the one statement that a hand would type. What counts is what is in the database.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use sqlx::PgPool;
use tokio::task::JoinSet;

use crate::Plan;
use crate::client::Client;
use crate::figure::Figure;
use crate::machine::{Mood, milliseconds, now, own_cpu, quantile};
use crate::open;
use crate::product::{Product, new_id};
use crate::raw::{CREATE_ONE, CREATE_ONE_PLANNED_ONCE, Length};
use crate::stage::{Setting, Stage};

/// So many that a fast machine does not fill them in a round of the largest crowd.
const NODES: usize = 25_000;
/// One in so many requests is sent twice, and must be answered as it was.
const AGAIN_EVERY: usize = 20;
/// How many ask at once for the maximum that the open loop goes by.
const MANY: usize = 32;
/// Which share of it that is.
const SHARE: f64 = 0.7;

/// What a figure is beside that is compared with more than its goal asks.
pub(crate) const PLANNED_ONCE: &str = "a floor that is harder than the goal's: planned once";

const ALLOCATIONS: &str = "SELECT count(*) FROM allocations";

/// When people stop asking.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Time(Duration),
    /// So many were asked for, by all of them.
    Asked(usize),
}

/// What people saw in one round.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// How long each request took, in milliseconds, sorted.
    pub(crate) took: Vec<f64>,
    /// Allocations a second, as there are in the database.
    pub(crate) rate: f64,
    /// What asking has cost, in seconds of CPU.
    pub(crate) client_cpu: f64,
}

impl Seen {
    pub(crate) fn p50(&self) -> f64 {
        quantile(&self.took, 0.5)
    }

    pub(crate) fn p99(&self) -> f64 {
        quantile(&self.took, 0.99)
    }
}

/// A round that is being counted: by the database, not by who asks.
pub(crate) struct Tally {
    before: i64,
    cpu: f64,
    pub(crate) began: Instant,
}

impl Tally {
    pub(crate) async fn begin(sql: &PgPool) -> anyhow::Result<Tally> {
        let before = sqlx::query_scalar(ALLOCATIONS).fetch_one(sql).await?;
        Ok(Tally { before, cpu: own_cpu(), began: now() })
    }

    /// What all of them saw. Each request has made one allocation, or something is wrong.
    pub(crate) async fn end(
        self,
        sql: &PgPool,
        people: Vec<anyhow::Result<Vec<f64>>>,
    ) -> anyhow::Result<Seen> {
        let (lasted, client_cpu) = (self.began.elapsed().as_secs_f64(), own_cpu() - self.cpu);
        let mut took = Vec::new();
        for theirs in people {
            took.extend(theirs?);
        }
        let after: i64 = sqlx::query_scalar(ALLOCATIONS).fetch_one(sql).await?;
        let made = usize::try_from(after - self.before)?;
        ensure!(made == took.len(), "{} requests made {made} allocations", took.len());
        took.sort_by(f64::total_cmp);
        Ok(Seen { took, rate: made as f64 / lasted, client_cpu })
    }
}

/// Rates with 8, 32 and 128 at once, how long one who is alone waits, and how long many do who do not wait for each other.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let mut all = Vec::new();
    let counts: &[usize] = if plan.quick { &[1, 8, 32] } else { &[1, 8, 32, 128] };
    let mut stage = set().await?;
    for (number, &clients) in counts.iter().enumerate() {
        // What was made stays, so that a long run needs a new stage before the old one is full.
        if number > 0 && !plan.quick {
            stage.check().await?;
            drop(stage);
            stage = set().await?;
        }
        let taken = rounds(&stage, clients, plan).await?;
        all.extend(taken.figures);
        if clients == MANY {
            all.push(open_loop(&stage, taken.rate, plan).await?);
        }
    }
    stage.check().await?;
    Ok(all)
}

async fn set() -> anyhow::Result<Stage> {
    Stage::set(Setting { name: "create", nodes: NODES, floor_nodes: NODES, roles: "api" }).await
}

/// The figures of one number of clients, and the rate that was reached.
struct Taken {
    figures: Vec<Figure>,
    rate: f64,
}

/// What must be met of the rate is said for 8 at once, and what we aim for there is for more.
fn of(clients: usize) -> Vec<Figure> {
    let name = format!("create.per_second_{clients}");
    let rate = Figure::more("P1", name, "/s");
    match clients {
        1 => vec![
            rate.note("one at a time: P2 is what counts"),
            Figure::less("P2", "create.p50_1", "ms").goal(2.0, 1.5),
            Figure::less("P2", "create.p99_1", "ms").must(5.0),
        ],
        8 => vec![rate.must(0.6)],
        _ => vec![rate.aim(1.5)],
    }
}

/// The same against the harder floor, of which the goals say nothing.
fn against_harder(clients: usize) -> Vec<Figure> {
    let name = format!("create.per_second_{clients}_vs_planned_once");
    let p50 = Figure::less("P2", "create.p50_1_vs_planned_once", "ms");
    let mut all = vec![Figure::more("P1", name, "/s").note(PLANNED_ONCE)];
    all.extend((clients == 1).then(|| p50.note(PLANNED_ONCE)));
    all
}

/// The floor, ours, the floor again, and the harder one; so often.
async fn rounds(stage: &Stage, clients: usize, plan: Plan) -> anyhow::Result<Taken> {
    let sql = stage.sql().await?;
    let (mut figures, mut beside, mut rates) = (of(clients), against_harder(clients), Vec::new());
    for round in 1..=plan.rounds {
        let mood = Mood::look().await;
        let length = Length::Time(plan.round);
        let before = stage.raw_creates(CREATE_ONE, clients, length).await?;
        let seen = ask(&stage.product, &sql, clients, Until::Time(plan.round)).await?;
        let after = stage.raw_creates(CREATE_ONE, clients, length).await?;
        // Who is in a hurry is told of the goals.
        let harder = match plan.quick {
            true => None,
            false => Some(stage.raw_creates(CREATE_ONE_PLANNED_ONCE, clients, length).await?),
        };
        let floor = (before.rate + after.rate) / 2.0;
        eprintln!(
            "create, {clients} at once, round {round}: {:.0}/s, p50 {:.2} ms, p99 {:.2} ms, the client {:.2} s; by hand {:.0} and {:.0}/s, p50 {:.2} ms, p99 {:.2} ms, planned once {:.0?}/s",
            seen.rate,
            seen.p50(),
            seen.p99(),
            seen.client_cpu,
            before.rate,
            after.rate,
            before.p50_ms,
            before.p99_ms,
            harder.map(|harder| harder.rate)
        );
        let mood = mood.asking(seen.client_cpu);
        rates.push(seen.rate);
        let alone = clients == 1;
        figures[0].push(seen.rate, Some(floor), mood);
        if alone {
            figures[1].push(seen.p50(), Some((before.p50_ms + after.p50_ms) / 2.0), mood);
            figures[2].push(seen.p99(), None, mood);
        }
        if let Some(harder) = harder {
            beside[0].push(seen.rate, Some(harder.rate), mood);
            if alone {
                beside[1].push(seen.p50(), Some(harder.p50_ms), mood);
            }
        }
    }
    sql.close().await;
    if !plan.quick {
        figures.extend(beside);
    }
    Ok(Taken { figures, rate: crate::machine::median(&rates) })
}

/// So many ask, each again as soon as they are answered. A missing or a wrong answer is an error.
pub(crate) async fn ask(
    product: &Product,
    sql: &PgPool,
    clients: usize,
    until: Until,
) -> anyhow::Result<Seen> {
    let wish: Arc<str> = product.request("h100.slice", 1).to_string().into();
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(Client::connect(product).await?);
    }
    let (asked, tally) = (Arc::new(AtomicUsize::new(0)), Tally::begin(sql).await?);
    let began = tally.began;
    let mut people = JoinSet::new();
    for client in connected {
        people.spawn(person(client, Arc::clone(&wish), Arc::clone(&asked), (began, until)));
    }
    tally.end(sql, people.join_all().await).await
}

async fn person(
    mut client: Client,
    wish: Arc<str>,
    asked: Arc<AtomicUsize>,
    (began, until): (Instant, Until),
) -> anyhow::Result<Vec<f64>> {
    let mut took = Vec::new();
    loop {
        let turn = asked.fetch_add(1, Ordering::Relaxed);
        let over = match until {
            Until::Time(time) => began.elapsed() >= time,
            Until::Asked(most) => turn >= most,
        };
        if over {
            return Ok(took);
        }
        took.push(create(&mut client, &wish, turn.is_multiple_of(AGAIN_EVERY)).await?);
    }
}

/// One request, and once more with the same key if that is to be; how long the first took, in milliseconds.
pub(crate) async fn create(client: &mut Client, wish: &str, again: bool) -> anyhow::Result<f64> {
    let (key, sent) = (new_id(), now());
    let first = client.post("/allocations", key, wish).await.context("no answer")?;
    let took = milliseconds(sent);
    ensure!(first.status == 201, "a wrong answer: {}", first.words());
    if again {
        let second = client.post("/allocations", key, wish).await.context("no second answer")?;
        ensure!(
            second.status == 201 && second.json()? == first.json()?,
            "a request that was repeated was answered otherwise: {}; at first: {}",
            second.words(),
            first.words()
        );
    }
    Ok(took)
}

/// P3: requests come at a steady rate, whether or not those before have their answers.
async fn open_loop(stage: &Stage, most: f64, plan: Plan) -> anyhow::Result<Figure> {
    let sql = stage.sql().await?;
    let mut figure = Figure::less("P3", "create.p99_open_loop", "ms").goal(20.0, 10.0);
    let rate = most * SHARE;
    for round in 1..=plan.rounds.min(3) {
        let mood = Mood::look().await;
        let seen = open::ask(&stage.product, &sql, (rate, 1), plan.round * 2).await?;
        eprintln!(
            "create, open loop, round {round}: {rate:.0}/s meant, {:.0}/s made, p50 {:.2} ms, p99 {:.2} ms, most {:.2} ms",
            seen.rate,
            seen.p50(),
            seen.p99(),
            quantile(&seen.took, 1.0)
        );
        figure.push(seen.p99(), None, mood.asking(seen.client_cpu));
    }
    sql.close().await;
    Ok(figure.note(format!("{rate:.0}/s, 70 % of {most:.0}/s")))
}
