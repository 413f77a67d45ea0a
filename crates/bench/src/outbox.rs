//! How what was decided becomes known: from the commit of a fact to the consumer that has acted on it, and how fast an outbox that has
//! filled up is emptied.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Plan;
use crate::create::{Until, ask};
use crate::figure::Figure;
use crate::fleet::Agents;
use crate::machine::{Mood, median, quantile};
use crate::open;
use crate::product::pause;
use crate::raw::{self, FLOOR, Length, RELAY_BATCH};
use crate::release::until_counted;
use crate::replicas::Replica;
use crate::stage::{ALL_ROLES, Setting, Stage};

/// The goal is said for 1,000 facts a second; these are about as many stories as two cores do beside those who ask for them.
const STORIES_PER_SECOND: f64 = 50.0;
const CLIENTS: usize = 32;
const NODES: usize = 12_500;
/// From what became true to what its owner is told of it.
const TOLD: &str = "SELECT (extract(epoch FROM told.created_at - fact.occurred_at) * 1000)::float8
       FROM outbox_events AS fact
       JOIN notifications AS told ON told.cause = fact.machine || '/' || fact.entity_id || '/' || fact.seq
      WHERE fact.subject = 'provisioning.active' AND fact.occurred_at > $1::timestamptz";
/// How many facts there were in a second, from the first to the last.
const FACTS: &str =
    "SELECT (count(*) / extract(epoch FROM max(occurred_at) - min(occurred_at)))::float8
       FROM outbox_events
      WHERE occurred_at > $1::timestamptz";
/// Who would start the runs of these has heard of them already. As an older binary writes them, nobody has, and all of them have to leave.
const UNHEARD: &str = "UPDATE outbox_events
        SET published_at = NULL, heard = NULL
      WHERE subject = 'provisioning.requested' AND occurred_at > $1::timestamptz";
/// How long an outbox may take to be emptied without anything leaving it.
const STILL_MAX: Duration = Duration::from_secs(60);

/// Both figures, each on a stage of its own.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let mut all = reached(plan).await?;
    all.push(drain(plan).await?);
    Ok(all)
}

/// From the fact that an allocation is active to what its owner is told of it, by the database's clock, while requests come steadily.
async fn reached(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let setting = Setting { name: "reached", nodes: 0, floor_nodes: 1, roles: ALL_ROLES };
    let stage = Stage::set(setting).await?;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    let (rounds, time) = (plan.rounds.min(3), plan.round * 2);
    let asked = STORIES_PER_SECOND * time.as_secs_f64() * rounds as f64;
    let nodes = (asked / 8.0) as usize + 8;
    stage.product.fleet("h100.slice", (Agents::Null, nodes), &mut agents, &stop).await?;
    let sql = stage.sql().await?;
    let (mut took_in_all, mut facts) = (0, Vec::new());
    let mut p50 = Figure::less("P13", "outbox.commit_to_consumer_p50", "ms");
    let mut p99 = Figure::less("P13", "outbox.commit_to_consumer_p99", "ms").goal(20.0, 5.0);
    for round in 1..=rounds {
        let mood = Mood::look().await;
        let since: String =
            sqlx::query_scalar("SELECT clock_timestamp()::text").fetch_one(&sql).await?;
        let seen = open::ask(&stage.product, &sql, (STORIES_PER_SECOND, 1), time).await?;
        took_in_all += seen.took.len();
        let active = "SELECT count(*) FROM allocations WHERE active_at IS NOT NULL";
        until_counted(&sql, active, took_in_all).await?;
        drained(&sql).await?;
        fallen_to_none(&sql, "SELECT count(*) FROM bus_deliveries WHERE dead_at IS NULL").await?;
        let mut took: Vec<f64> = sqlx::query_scalar(TOLD).bind(&since).fetch_all(&sql).await?;
        took.sort_by(f64::total_cmp);
        ensure!(
            took.len() == seen.took.len(),
            "{} became active, {} owners were told",
            seen.took.len(),
            took.len()
        );
        facts.push(sqlx::query_scalar(FACTS).bind(&since).fetch_one(&sql).await?);
        eprintln!(
            "outbox, round {round}: {STORIES_PER_SECOND}/s meant, {:.0}/s made, {:.0} facts/s, told p50 {:.2} ms, p99 {:.2} ms",
            seen.rate,
            median(&facts),
            quantile(&took, 0.5),
            quantile(&took, 0.99)
        );
        let mood = mood.asking(seen.client_cpu);
        p50.push(quantile(&took, 0.5), None, mood);
        p99.push(quantile(&took, 0.99), None, mood);
    }
    sql.close().await;
    stage.product.check().await?;
    stop.cancel();
    agents.join_all().await;
    let note = format!(
        "{STORIES_PER_SECOND} allocations/s become active, {:.0} facts/s; with every role in one process",
        median(&facts)
    );
    Ok(vec![p50.note(&note), p99.note(&note)])
}

/// Waits until every fact has left the outbox.
pub(crate) async fn drained(sql: &PgPool) -> anyhow::Result<()> {
    fallen_to_none(sql, "SELECT count(*) FROM outbox_events WHERE published_at IS NULL").await
}

/// Waits until nothing is left of what a query counts; not longer than as it becomes less.
pub(crate) async fn fallen_to_none(sql: &PgPool, count: &'static str) -> anyhow::Result<()> {
    let every = Duration::from_millis(100);
    let (mut least, mut still) = (i64::MAX, Duration::ZERO);
    while still < STILL_MAX {
        let left: i64 = sqlx::query_scalar(count).fetch_one(sql).await?;
        if left == 0 {
            return Ok(());
        }
        still = if left < least { Duration::ZERO } else { still + every };
        least = least.min(left);
        pause(every).await;
    }
    anyhow::bail!("{least} are left of {count}, and nothing moves")
}

/// Facts pile up while there is no relay; then one comes. The floor is the statement that marks and reads as many of its own.
async fn drain(plan: Plan) -> anyhow::Result<Figure> {
    let setting = Setting { name: "drain", nodes: NODES, floor_nodes: 1, roles: "api" };
    let stage = Stage::set(setting).await?;
    let sql = stage.sql().await?;
    let count = if plan.quick { 3_000 } else { 20_000 };
    let mut figure = Figure::more("P13", "outbox.drain_per_second", "/s").must(0.5);
    for round in 1..=plan.rounds.min(3) {
        let now = "SELECT clock_timestamp()::text";
        let since: String = sqlx::query_scalar(now).fetch_one(&sql).await?;
        ask(&stage.product, &sql, CLIENTS, Until::Asked(count)).await?;
        sqlx::query(UNHEARD).bind(&since).execute(&sql).await?;
        let mood = Mood::look().await;
        let before = raw_relay(&stage, count).await?;
        let since: String = sqlx::query_scalar(now).fetch_one(&sql).await?;
        let relay = Replica::start(&stage.product, "relay", None).await?;
        drained(&sql).await?;
        drop(relay);
        let after = raw_relay(&stage, count).await?;
        // The first batch is written before its moment.
        let rate: f64 = sqlx::query_scalar(
            "SELECT ((count(*) - count(*) FILTER (WHERE published_at = first)) / extract(epoch FROM max(published_at) - first))::float8
               FROM (SELECT published_at, min(published_at) OVER () AS first
                       FROM outbox_events
                      WHERE published_at > $1::timestamptz) AS batch
              GROUP BY first",
        )
        .bind(&since)
        .fetch_one(&sql)
        .await
        .context("the rate at which the outbox was emptied")?;
        eprintln!("outbox, drain {round}: {rate:.0}/s; by hand {before:.0} and {after:.0}/s");
        figure.push(rate, Some((before + after) / 2.0), mood);
    }
    sql.close().await;
    stage.check().await?;
    Ok(figure.note(format!("{count} facts, one relay")))
}

async fn raw_relay(stage: &Stage, count: usize) -> anyhow::Result<f64> {
    let mut sql = PgConnection::connect(&stage.cluster.url(FLOOR)).await?;
    let fill = format!(
        "TRUNCATE floor_outbox;
         INSERT INTO floor_outbox (subject, key, payload)
         SELECT 'provisioning.active', gen_random_uuid(), jsonb_build_object('n', n, 'event', 'touch', 'region', 'eu-1')
           FROM generate_series(1, {count}) AS n;
         VACUUM ANALYZE floor_outbox"
    );
    raw::each(&mut sql, &fill).await?;
    sql.close().await?;
    let batches = count / (RELAY_BATCH as usize);
    let raw = stage.raw(&[raw::RELAY], 1, Length::Each(batches.max(1)))?;
    Ok(raw.rate * RELAY_BATCH)
}
