//! The product is killed under thousands of agents and started again. All of them are back soon, one after another, and people do
//! not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Plan;
use crate::figure::Figure;
use crate::fleet::Agents;
use crate::machine::{Mood, milliseconds, now, own_cpu, quantile, usage};
use crate::product::{Product, new_id, pause};
use crate::replicas::metric;

/// For how long it is looked on.
const BACK_MAX: Duration = Duration::from_secs(300);
/// How long it is away: long enough for every agent to have noticed, and to wait between its attempts.
const AWAY: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(250);
const PEOPLE: usize = 4;

/// What one person asked meanwhile: how long each answer took in milliseconds, and how often it was none.
#[derive(Default)]
struct Asked {
    took: Vec<(&'static str, f64)>,
    failed: usize,
}

impl Asked {
    /// Waits for an answer; gives it if it is good.
    async fn of<T>(
        &mut self,
        what: &'static str,
        answer: impl Future<Output = anyhow::Result<T>>,
    ) -> Option<T> {
        let began = now();
        let answer = answer.await;
        self.took.push((what, milliseconds(began)));
        self.failed += usize::from(answer.is_err());
        answer.inspect_err(|error| eprintln!("{what}: {error:#}")).ok()
    }
}

/// Asks for something, looks at it and gives it back, again and again.
async fn person(product: Arc<Product>, over: Arc<AtomicBool>) -> Asked {
    let mut asked = Asked::default();
    while !over.load(Ordering::Relaxed) {
        let created = asked.of("create", async {
            let wish = product.request("h100.slice", 1);
            let (status, made) =
                product.post(&product.token, "/allocations", new_id(), &wish).await?;
            ensure!(status == 201, "{status} {made}");
            Ok(made["id"].as_str().context("an id")?.to_owned())
        });
        let id = created.await;
        asked.of("list", product.get(&product.token, "/allocations?limit=20")).await;
        if let Some(id) = id {
            let path = format!("/allocations/{id}/release");
            let released = asked.of("release", async {
                let (status, answer) =
                    product.post(&product.token, &path, new_id(), &json!({})).await?;
                ensure!(status == 202, "{status} {answer}");
                Ok(())
            });
            released.await;
        }
        pause(Duration::from_millis(50)).await;
    }
    asked
}

/// The sorted times of one kind of request, or of all.
fn times(asked: &[Asked], what: Option<&str>) -> Vec<f64> {
    let all = asked.iter().flat_map(|asked| &asked.took);
    let of = all.filter(|(kind, _)| what.is_none_or(|what| what == *kind));
    let mut times: Vec<f64> = of.map(|(_, took)| *took).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// How the fleet came back.
#[derive(Default)]
struct Return {
    seconds: f64,
    heard: i64,
    polls: f64,
    handshakes_in_a_second: f64,
    memory_mb: f64,
}

/// Looks on until every agent was heard of after `began` and waits for work again, or for as long as anybody would wait.
async fn watch(product: &Product, sql: &PgPool, count: usize) -> anyhow::Result<Return> {
    let began: String = sqlx::query_scalar("SELECT clock_timestamp()::text").fetch_one(sql).await?;
    let (mut seen, start, process) =
        (Return::default(), now(), product.process().context("it runs")?);
    let shown = product.api.replace("/api/v1", "/metrics");
    let mut counted = vec![(0.0, 0.0)];
    while start.elapsed() < BACK_MAX {
        pause(LOOK_EVERY).await;
        seen.heard =
            sqlx::query_scalar("SELECT count(*) FROM nodes WHERE heartbeat_at > $1::timestamptz")
                .bind(&began)
                .fetch_one(sql)
                .await?;
        let text = product.http.get(&shown).send().await?.text().await?;
        let kind = |kind: &str| {
            metric(&text, &format!("berth_gateway_handshakes_total{{kind=\"{kind}\"}}"))
        };
        let handshakes = kind("full") + kind("resumed");
        seen.polls = metric(&text, "berth_long_polls_open");
        seen.memory_mb = seen.memory_mb.max(usage(process)?.0);
        seen.seconds = start.elapsed().as_secs_f64();
        counted.push((seen.seconds, handshakes));
        if usize::try_from(seen.heard)? >= count && seen.polls >= count as f64 {
            break;
        }
    }
    seen.handshakes_in_a_second = busiest(&counted);
    Ok(seen)
}

/// The most that was counted in any second or a little more, as so many a second.
fn busiest(counted: &[(f64, f64)]) -> f64 {
    let rate = |from: &(f64, f64)| {
        let to = counted.iter().find(|(at, _)| *at >= from.0 + 1.0)?;
        Some((to.1 - from.1) / (to.0 - from.0))
    };
    counted.iter().filter_map(rate).fold(0.0, f64::max)
}

/// How many were given up so far.
const LOST: &str = "SELECT count(*) FROM lifecycle_log WHERE event = 'heartbeat.lost'";

/// All agents lose everything at once.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let count = plan.agents;
    eprintln!("reconnect: {count} agents are let in, and then lose everything");
    let mut product = Product::start("reconnect", 0, "0").await?;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    product.fleet("h100.slice", (Agents::Whole, count), &mut agents, &stop).await?;
    pause(Duration::from_secs(15)).await;
    let mood = Mood::look().await;
    let sql = PgPool::connect(&product.database()).await?;
    let lost_before: i64 = sqlx::query_scalar(LOST).fetch_one(&sql).await?;
    sql.close().await;
    product.kill()?;
    pause(AWAY).await;
    let (started, cpu) = (now(), own_cpu());
    product.begin().await?;
    let ready_after = started.elapsed().as_secs_f64();
    let sql = PgPool::connect(&product.database()).await?;
    let (product, over) = (Arc::new(product), Arc::new(AtomicBool::new(false)));
    let mut people = JoinSet::new();
    for _ in 0..PEOPLE {
        people.spawn(person(Arc::clone(&product), Arc::clone(&over)));
    }
    let back = watch(&product, &sql, count).await?;
    over.store(true, Ordering::Relaxed);
    let asked = people.join_all().await;
    let mood = mood.asking(own_cpu() - cpu);
    let lost: i64 = sqlx::query_scalar(LOST).fetch_one(&sql).await?;
    // While ten thousand are being let in for the first time some may be late; what counts is who is lost by the outage.
    let lost = lost - lost_before;
    sql.close().await;
    product.check().await?;
    stop.cancel();
    agents.join_all().await;
    let failed: usize = asked.iter().map(|asked| asked.failed).sum();
    ensure!(failed == 0, "{failed} requests failed");
    ensure!(lost == 0, "{lost} nodes were declared lost");
    ensure!(
        usize::try_from(back.heard)? >= count && back.polls >= count as f64,
        "only {} of {count} were heard of again, and {} wait",
        back.heard,
        back.polls
    );
    let of = |what: &str, unit| {
        let note = format!("{count} agents, ready after {ready_after:.1} s");
        Figure::less("P19", format!("reconnect.{what}"), unit).note(note)
    };
    let p99 = |what| quantile(&times(&asked, what), 0.99);
    Ok(vec![
        of("all_back", "s").goal(30.0, 10.0).once(ready_after + back.seconds, None, mood),
        of("people_p99", "ms").must(500.0).once(p99(None), None, mood),
        of("create_p99", "ms").once(p99(Some("create")), None, mood),
        of("memory_most", "MB").goal(600.0, 300.0).once(back.memory_mb, None, mood),
        // They take their turns: so many a second are let in, with the little that a burst is.
        of("handshakes_most", "/s").must(480.0).once(back.handshakes_in_a_second, None, mood),
    ])
}
