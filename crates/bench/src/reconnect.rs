//! R22: the product is killed under thousands of agents and started again. All of them are back within a minute, one after
//! another, and people do not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::product::{Product, new_id, pause};
use crate::replicas::metric;
use crate::stories::{Line, line, quantile, usage};

/// What must be met.
const BACK_MAX: Duration = Duration::from_secs(60);
const USER_P99_MAX_MS: f64 = 500.0;
const MEMORY_MAX_MB: f64 = 512.0;
/// In one second, with the little that a burst is.
const HANDSHAKES_MAX: f64 = 120.0;

/// How long it is away: long enough for every agent to have noticed, and to wait between its attempts.
const AWAY: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(250);
const PEOPLE: usize = 4;

#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
fn now() -> Instant {
    Instant::now()
}

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
        self.took.push((what, began.elapsed().as_secs_f64() * 1_000.0));
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
    full: f64,
    resumed: f64,
    turned_away: f64,
    memory_mb: f64,
}

/// Looks on until every agent was heard of after `began` and waits for work again, or for twice as long as it may take.
async fn watch(product: &Product, sql: &PgPool, count: usize) -> anyhow::Result<Return> {
    let began: String = sqlx::query_scalar("SELECT clock_timestamp()::text").fetch_one(sql).await?;
    let (mut seen, start, process) =
        (Return::default(), now(), product.process().context("it runs")?);
    let shown = product.api.replace("/api/v1", "/metrics");
    let mut counted = vec![(0.0, 0.0)];
    while start.elapsed() < BACK_MAX * 2 {
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
        (seen.full, seen.resumed, seen.turned_away) =
            (kind("full"), kind("resumed"), kind("turned_away"));
        seen.polls = metric(&text, "berth_long_polls_open");
        seen.memory_mb = seen.memory_mb.max(usage(process)?.0);
        seen.seconds = start.elapsed().as_secs_f64();
        counted.push((seen.seconds, seen.full + seen.resumed));
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

/// So many agents lose everything at once.
pub(crate) async fn run(count: usize) -> anyhow::Result<Line> {
    let mut product = Product::start("reconnect", 0, "0").await?;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    product.fleet("h100.slice", count, &mut agents, &stop).await?;
    pause(Duration::from_secs(15)).await;
    product.kill()?;
    pause(AWAY).await;
    let started = now();
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
    let took = times(&asked, None);
    let failed: usize = asked.iter().map(|asked| asked.failed).sum();
    let lost: i64 =
        sqlx::query_scalar("SELECT count(*) FROM lifecycle_log WHERE event = 'heartbeat.lost'")
            .fetch_one(&sql)
            .await?;
    stop.cancel();
    agents.join_all().await;
    ensure!(!took.is_empty(), "nobody has asked for anything");
    let p99 = quantile(&took, 0.99);
    let everybody = usize::try_from(back.heard)? >= count && back.polls >= count as f64;
    let met = everybody
        && ready_after + back.seconds <= BACK_MAX.as_secs_f64()
        && p99 <= USER_P99_MAX_MS
        && failed == 0
        && back.memory_mb <= MEMORY_MAX_MB
        && back.handshakes_in_a_second <= HANDSHAKES_MAX
        && lost == 0;
    Ok(line(
        met,
        json!({ "name": "r22.reconnect", "agents": count, "heard_again": back.heard, "waiting_again": back.polls,
                "ready_after_s": ready_after, "all_back_after_s": ready_after + back.seconds,
                "user_requests": took.len(), "user_failures": failed,
                "user_p50_ms": quantile(&took, 0.5), "user_p99_ms": p99,
                "create_p99_ms": quantile(&times(&asked, Some("create")), 0.99),
                "list_p99_ms": quantile(&times(&asked, Some("list")), 0.99),
                "release_p99_ms": quantile(&times(&asked, Some("release")), 0.99), "rss_mb_most": back.memory_mb,
                "handshakes_full": back.full, "handshakes_resumed": back.resumed, "turned_away": back.turned_away,
                "handshakes_per_second_most": back.handshakes_in_a_second, "nodes_declared_lost": lost,
                "must": { "back_s": 60, "user_p99_ms": 500, "rss_mb": 512, "handshakes_per_second": HANDSHAKES_MAX } }),
    ))
}
