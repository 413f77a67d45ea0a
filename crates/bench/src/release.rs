//! What it costs to give an allocation back, from the wish to `released`, with agents that have nothing to do: against the statements
//! that a hand would type to take and give back.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Plan;
use crate::client::Client;
use crate::create::{PLANNED_ONCE, Until, ask};
use crate::figure::Figure;
use crate::fleet::Agents;
use crate::machine::{Mood, own_cpu, quantile};
use crate::product::{Product, new_id, pause};
use crate::raw::{self, Length};
use crate::stage::{ALL_ROLES, Setting, Stage};

const CLIENTS: usize = 32;
const FLOOR_NODES: usize = 2_500;
const RAW_CLIENTS: usize = 8;
/// How long the slowest may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// How many a second come to `released`, and how long each takes.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let nodes = if plan.quick { 8 } else { 250 };
    let setting = Setting { name: "release", nodes: 0, floor_nodes: FLOOR_NODES, roles: ALL_ROLES };
    let stage = Stage::set(setting).await?;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    stage.product.fleet("h100.slice", (Agents::Null, nodes), &mut agents, &stop).await?;
    let sql = stage.sql().await?;
    // Half of the floor is in use.
    let half = Length::Each(FLOOR_NODES * 4 / RAW_CLIENTS);
    stage.raw_creates(raw::CREATE_ONE_PLANNED_ONCE, RAW_CLIENTS, half).await?;
    let note = format!("{nodes} agents that only answer, {CLIENTS} clients");
    let mut rate = Figure::more("P7", "release.per_second", "/s").goal(0.6, 1.0).note(&note);
    let harder = format!("{note}; {PLANNED_ONCE}");
    let mut harder = Figure::more("P7", "release.per_second_vs_planned_once", "/s").note(harder);
    let mut p99 = Figure::less("P7", "release.all_at_once_p99", "ms").note(&note);
    for round in 1..=plan.rounds.min(3) {
        let mood = Mood::look().await;
        let before = mix(&stage, raw::CREATE_ONE, plan)?;
        ask(&stage.product, &sql, CLIENTS, Until::Asked(nodes * 8)).await?;
        let cpu = own_cpu();
        let took = give_all_back(&stage.product, &sql, nodes * 8).await?;
        let client_cpu = own_cpu() - cpu;
        let after = mix(&stage, raw::CREATE_ONE, plan)?;
        let once = mix(&stage, raw::CREATE_ONE_PLANNED_ONCE, plan)?;
        eprintln!(
            "release, round {round}: {:.0}/s, p50 {:.1} ms, p99 {:.1} ms; by hand {before:.0} and {after:.0}/s, planned once {once:.0}/s",
            took.rate,
            quantile(&took.each, 0.5),
            quantile(&took.each, 0.99)
        );
        let mood = mood.asking(client_cpu);
        rate.push(took.rate, Some((before + after) / 2.0), mood);
        harder.push(took.rate, Some(once), mood);
        p99.push(quantile(&took.each, 0.99), None, mood);
    }
    sql.close().await;
    stage.product.check().await?;
    stop.cancel();
    agents.join_all().await;
    Ok(vec![rate, harder, p99])
}

/// As many are taken, by that statement, as are given back; both count.
fn mix(stage: &Stage, create: &str, plan: Plan) -> anyhow::Result<f64> {
    let scripts = [create, raw::RELEASE_ONE];
    Ok(stage.raw(&scripts, RAW_CLIENTS, Length::Time(plan.round))?.rate)
}

/// How it went, by the database's clock.
struct Took {
    rate: f64,
    /// Of each, in milliseconds, sorted.
    each: Vec<f64>,
}

/// Once everything is usable, all of it is given back as fast as people can ask.
async fn give_all_back(product: &Product, sql: &PgPool, count: usize) -> anyhow::Result<Took> {
    until_counted(sql, "SELECT count(*) FROM allocations WHERE status = 'active'", count).await?;
    let ids: Vec<Uuid> = sqlx::query_scalar("SELECT id FROM allocations WHERE status = 'active'")
        .fetch_all(sql)
        .await?;
    let mut people = JoinSet::new();
    for part in ids.chunks(count.div_ceil(CLIENTS)) {
        let (part, mut client) = (part.to_vec(), Client::connect(product).await?);
        people.spawn(async move {
            for id in part {
                let path = format!("/allocations/{id}/release");
                let reply = client.post(&path, new_id(), "{}").await.context("no answer")?;
                ensure!(reply.status == 202, "release: {}", reply.words());
            }
            Ok(())
        });
    }
    for done in people.join_all().await {
        done?;
    }
    let ids = Arc::new(ids);
    let left = "SELECT (SELECT count(*) FROM allocations WHERE status <> 'released')";
    until_counted(sql, left, 0).await?;
    let mut each: Vec<f64> = sqlx::query_scalar(
        "SELECT (extract(epoch FROM ended_at - release_requested_at) * 1000)::float8 FROM allocations WHERE id = ANY($1)",
    )
    .bind(&*ids)
    .fetch_all(sql)
    .await?;
    each.sort_by(f64::total_cmp);
    let seconds: f64 = sqlx::query_scalar(
        "SELECT extract(epoch FROM max(ended_at) - min(release_requested_at))::float8 FROM allocations WHERE id = ANY($1)",
    )
    .bind(&*ids)
    .fetch_one(sql)
    .await?;
    Ok(Took { rate: count as f64 / seconds, each })
}

/// Waits until a count is that one.
pub(crate) async fn until_counted(
    sql: &PgPool,
    count: &'static str,
    wanted: usize,
) -> anyhow::Result<()> {
    let every = Duration::from_millis(20);
    let mut seen = 0_i64;
    for _ in 0..PATIENCE.as_millis() / every.as_millis() {
        seen = sqlx::query_scalar(count).fetch_one(sql).await?;
        if usize::try_from(seen)? == wanted {
            return Ok(());
        }
        pause(every).await;
    }
    anyhow::bail!("{seen} instead of {wanted}: {count}")
}
