//! What the product does with requests as they come: how fast one becomes active, how many fit when everybody asks at once,
//! what two thousand waiting agents cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::product::{Product, new_id, pause};

/// One line of the report, and whether what must be met is.
pub(crate) struct Line {
    pub(crate) text: Value,
    pub(crate) met: bool,
}

/// A line that says whether it is met.
pub(crate) fn line(met: bool, mut text: Value) -> Line {
    text["ok"] = met.into();
    Line { text, met }
}

/// The value below which a share of the sorted values lies.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = ((sorted.len() as f64) * share).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// One allocation is made, becomes active, and is given back.
pub(crate) async fn come_and_go(product: &Product) -> anyhow::Result<()> {
    let asked = product.request("h100.slice", 1);
    let (status, made) = product.post(&product.token, "/allocations", new_id(), &asked).await?;
    ensure!(status == 201, "create: {status} {made}");
    let id = made["id"].as_str().context("an id")?.to_owned();
    until(product, &id, "active").await?;
    let path = format!("/allocations/{id}/release");
    let (status, answer) = product.post(&product.token, &path, new_id(), &json!({})).await?;
    ensure!(status == 202, "release: {status} {answer}");
    until(product, &id, "released").await
}

/// From the request to `active`, one after another, with a driver that takes no time: what is measured is all ours. The
/// times are the database's.
pub(crate) async fn to_active(runs: usize) -> anyhow::Result<Line> {
    let product = Product::start("to-active", 0, "0").await?;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    product.fleet("h100.slice", 4, &mut agents, &stop).await?;
    for _ in 0..runs {
        come_and_go(&product).await?;
    }
    let sql = PgPool::connect(&product.database()).await?;
    let mut took: Vec<f64> = sqlx::query_scalar(
        "SELECT (extract(epoch FROM active_at - created_at) * 1000)::float8 FROM allocations WHERE active_at IS NOT NULL",
    )
    .fetch_all(&sql)
    .await?;
    took.sort_by(f64::total_cmp);
    let mut gave_back: Vec<f64> = sqlx::query_scalar(
        "SELECT (extract(epoch FROM ended_at - release_requested_at) * 1000)::float8 FROM allocations WHERE ended_at IS NOT NULL",
    )
    .fetch_all(&sql)
    .await?;
    gave_back.sort_by(f64::total_cmp);
    stop.cancel();
    agents.join_all().await;
    let (p50, p99) = (quantile(&took, 0.5), quantile(&took, 0.99));
    Ok(line(
        took.len() == runs && p50 < 30.0 && p99 < 100.0,
        json!({ "name": "story.create_to_active_ms", "runs": took.len(), "p50": p50, "p99": p99,
                "release_p50": quantile(&gave_back, 0.5), "release_p99": quantile(&gave_back, 0.99),
                "must": { "p50": 30, "p99": 100 } }),
    ))
}

/// Waits until an allocation has that status.
pub(crate) async fn until(product: &Product, id: &str, status: &str) -> anyhow::Result<()> {
    for _ in 0..5_000 {
        let shown = product.get(&product.token, &format!("/allocations/{id}")).await?;
        if shown["status"] == status {
            return Ok(());
        }
        ensure!(shown["status"] != "failed", "it failed: {shown}");
        pause(Duration::from_millis(2)).await;
    }
    anyhow::bail!("{id} never became {status}")
}

/// Ten times as many requests as fit, from 200 connections: what fits is granted, nothing twice, nothing else refused.
pub(crate) async fn storm(
    sku: &'static str,
    sizes: &'static [i16],
    requests: usize,
) -> anyhow::Result<Line> {
    let nodes = 125;
    let product = Arc::new(Product::start("storm", 0, "0").await?);
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    product.fleet(sku, nodes, &mut agents, &stop).await?;
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..200 {
        let (product, next) = (Arc::clone(&product), Arc::clone(&next));
        clients.spawn(async move {
            let mut answers: Vec<(i16, u16)> = Vec::new();
            loop {
                let turn = next.fetch_add(1, Ordering::Relaxed);
                if turn >= requests {
                    return answers;
                }
                let gpus = sizes[turn % sizes.len()];
                let asked = product.request(sku, gpus);
                let answer = product.post(&product.token, "/allocations", new_id(), &asked).await;
                answers.push((gpus, answer.map_or(0, |(status, _)| status)));
            }
        });
    }
    let answers: Vec<(i16, u16)> = clients.join_all().await.into_iter().flatten().collect();
    let granted: Vec<i16> =
        answers.iter().filter(|(_, status)| *status == 201).map(|(gpus, _)| *gpus).collect();
    let strange: Vec<u16> = answers
        .iter()
        .map(|(_, status)| *status)
        .filter(|status| ![201, 409].contains(status))
        .collect();
    let mut false_refusals = 0;
    let mut refused: Vec<i16> =
        answers.iter().filter(|(_, status)| *status == 409).map(|(gpus, _)| *gpus).collect();
    refused.sort_unstable();
    refused.dedup();
    // What was refused is asked for once more now that everything has settled.
    for gpus in refused {
        let (status, _) = product
            .post(&product.token, "/allocations", new_id(), &product.request(sku, gpus))
            .await?;
        false_refusals += usize::from(status == 201);
    }
    let used: i64 = granted.iter().map(|gpus| i64::from(*gpus)).sum();
    let violations = product.violations().await?;
    stop.cancel();
    agents.join_all().await;
    let capacity = i64::try_from(nodes * 8)?;
    let full = sizes.len() > 1 || used == capacity;
    Ok(line(
        full && strange.is_empty() && false_refusals == 0 && violations.is_empty(),
        json!({ "name": "r05.storm", "sku": sku, "sizes": sizes, "requests": answers.len(), "granted": granted.len(),
                "gpus_granted": used, "capacity": capacity, "false_refusals": false_refusals,
                "other_answers": strange.len(), "violations": violations }),
    ))
}

/// So many agents wait for work: what that costs when idle, and how fast a task reaches one of them.
pub(crate) async fn agents(count: usize, tasks: usize) -> anyhow::Result<Line> {
    let product = Product::start("agents", 0, "0").await?;
    let process = product.process().context("it runs")?;
    let before = usage(process)?;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    product.fleet("h100.slice", count, &mut agents, &stop).await?;
    pause(Duration::from_secs(15)).await;
    let (settled, seconds) = (usage(process)?, 20_u64);
    pause(Duration::from_secs(seconds)).await;
    let idle = usage(process)?;
    for _ in 0..tasks {
        let asked = product.request("h100.slice", 8);
        let (status, made) = product.post(&product.token, "/allocations", new_id(), &asked).await?;
        ensure!(status == 201, "create: {status} {made}");
        pause(Duration::from_millis(20)).await;
    }
    pause(Duration::from_secs(2)).await;
    let sql = PgPool::connect(&product.database()).await?;
    let mut reached: Vec<f64> = sqlx::query_scalar(
        "SELECT (extract(epoch FROM event.at - task.created_at) * 1000)::float8
           FROM node_tasks AS task
           JOIN node_task_events AS event ON event.task_id = task.id AND event.seq = 1",
    )
    .fetch_all(&sql)
    .await?;
    reached.sort_by(f64::total_cmp);
    stop.cancel();
    agents.join_all().await;
    let p99 = quantile(&reached, 0.99);
    Ok(line(
        reached.len() >= tasks && p99 < 50.0,
        json!({ "name": "agents.waiting", "agents": count, "rss_mb_before": before.0, "rss_mb": idle.0,
                "cpu_percent_idle": (idle.1 - settled.1) * 100.0 / seconds as f64,
                "tasks": reached.len(), "task_reaches_agent_p50_ms": quantile(&reached, 0.5),
                "task_reaches_agent_p99_ms": p99, "must": { "p99": 50 } }),
    ))
}

/// Memory in MB and CPU seconds of a process.
pub(crate) fn usage(process: u32) -> anyhow::Result<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes: f64 =
        resident.and_then(|text| text.split_whitespace().next()).context("VmRSS")?.parse()?;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let after_name = stat.rsplit(')').next().context("stat")?;
    let words: Vec<&str> = after_name.split_whitespace().collect();
    let ticks: f64 = words[11].parse::<f64>()? + words[12].parse::<f64>()?;
    // A tick is a hundredth of a second on every Linux we run on.
    Ok((kilobytes / 1024.0, ticks / 100.0))
}
