//! What the product does with requests as they come: how fast one becomes active, alone and beside others, and how many fit when
//! everybody asks at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Plan;
use crate::agents::sorted;
use crate::client::Client;
use crate::figure::Figure;
use crate::fleet::Agents;
use crate::machine::{Mood, own_cpu, quantile};
use crate::product::{Product, new_id, pause};

/// One line of a long run, and whether what must be met is.
pub(crate) struct Line {
    pub(crate) text: Value,
    pub(crate) met: bool,
}

/// A line that says whether it is met.
pub(crate) fn line(met: bool, mut text: Value) -> Line {
    text["ok"] = met.into();
    Line { text, met }
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

const TO_ACTIVE: &str = "SELECT (extract(epoch FROM active_at - created_at) * 1000)::float8 FROM allocations WHERE active_at IS NOT NULL";
const TO_RELEASED: &str = "SELECT (extract(epoch FROM ended_at - release_requested_at) * 1000)::float8 FROM allocations WHERE ended_at IS NOT NULL";
/// How many are on their way at once for the rate.
pub(crate) const IN_FLIGHT: usize = 32;

/// From the request to `active` with a driver that takes no time: what is measured is all ours. The times are the database's.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let mut all = one_after_another(plan.runs, Agents::Null).await?;
    all.extend(one_after_another(plan.runs, Agents::Whole).await?);
    all.push(many_in_flight(plan).await?);
    Ok(all)
}

async fn one_after_another(runs: usize, which: Agents) -> anyhow::Result<Vec<Figure>> {
    eprintln!("to_active: {runs} one after another");
    let product = Product::start("to-active", 0, "0").await?;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    product.fleet("h100.slice", (which, 4), &mut agents, &stop).await?;
    let (mood, cpu) = (Mood::look().await, own_cpu());
    for _ in 0..runs {
        come_and_go(&product).await?;
    }
    let mood = mood.asking(own_cpu() - cpu);
    let sql = PgPool::connect(&product.database()).await?;
    let (took, gave_back) = (sorted(&sql, TO_ACTIVE).await?, sorted(&sql, TO_RELEASED).await?);
    sql.close().await;
    ensure!(took.len() == runs && gave_back.len() == runs, "{} of {runs} came", took.len());
    product.check().await?;
    stop.cancel();
    agents.join_all().await;
    let of =
        |goal, name: &str| Figure::less(goal, name, "ms").note(format!("{runs} one after another"));
    let once =
        |figure: Figure, times: &[f64], share| figure.once(quantile(times, share), None, mood);
    if which == Agents::Whole {
        return Ok(vec![
            once(of("P12", "story.with_whole_agents_to_active_p50"), &took, 0.5),
            once(of("P12", "story.with_whole_agents_to_active_p99"), &took, 0.99),
        ]);
    }
    Ok(vec![
        once(of("P12", "story.create_to_active_p50").goal(25.0, 10.0), &took, 0.5),
        once(of("P12", "story.create_to_active_p99").must(100.0), &took, 0.99),
        once(of("P7", "story.release_to_released_p50"), &gave_back, 0.5),
        once(of("P7", "story.release_to_released_p99"), &gave_back, 0.99),
    ])
}

async fn many_in_flight(plan: Plan) -> anyhow::Result<Figure> {
    let nodes = if plan.quick { 32 } else { 256 };
    let flown = fly(nodes).await?;
    // Two fifths of what Restate does, and four fifths: 624 a second on the machine that the goals were set on.
    let figure = Figure::more("P12", "story.to_active_per_second_32", "/s").goal(250.0, 500.0);
    Ok(figure
        .note(format!(
            "{} in all; the limits are shares of Restate's 624/s; `ONLY=restate` compares in one run",
            nodes * 8
        ))
        .once(flown.rate, None, flown.mood))
}

/// How many a second became active.
pub(crate) struct Flown {
    pub(crate) rate: f64,
    pub(crate) mood: Mood,
}

/// So many are always on their way, until as many as fit on so many nodes have become active.
pub(crate) async fn fly(nodes: usize) -> anyhow::Result<Flown> {
    let all = nodes * 8;
    eprintln!("to_active: {IN_FLIGHT} in flight, {all} in all");
    let product = Product::start("in-flight", 0, "0").await?;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    product.fleet("h100.slice", (Agents::Null, nodes), &mut agents, &stop).await?;
    let sql = PgPool::connect(&product.database()).await?;
    let (mood, cpu) = (Mood::look().await, own_cpu());
    keep_in_flight(&product, &sql, all).await?;
    let mood = mood.asking(own_cpu() - cpu);
    let seconds: f64 = sqlx::query_scalar(
        "SELECT extract(epoch FROM max(active_at) - min(created_at))::float8 FROM allocations",
    )
    .fetch_one(&sql)
    .await?;
    sql.close().await;
    product.check().await?;
    stop.cancel();
    agents.join_all().await;
    Ok(Flown { rate: all as f64 / seconds, mood })
}

async fn keep_in_flight(product: &Product, sql: &PgPool, all: usize) -> anyhow::Result<()> {
    let wish = product.request("h100.slice", 1).to_string();
    let mut clients = Vec::new();
    for _ in 0..IN_FLIGHT {
        clients.push(Client::connect(product).await?);
    }
    let (mut asking, mut asked) = (JoinSet::new(), 0);
    loop {
        let active: i64 =
            sqlx::query_scalar("SELECT count(active_at) FROM allocations").fetch_one(sql).await?;
        let active = usize::try_from(active)?;
        if active == all {
            return Ok(());
        }
        while asked < all && asked - active < IN_FLIGHT {
            let Some(mut client) = clients.pop() else { break };
            let wish = wish.clone();
            asking.spawn(async move {
                let reply = client.post("/allocations", new_id(), &wish).await?;
                ensure!(reply.status == 201, "create: {}", reply.words());
                Ok(client)
            });
            asked += 1;
        }
        pause(Duration::from_millis(2)).await;
        while let Some(done) = asking.try_join_next() {
            clients.push(done??);
        }
    }
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
async fn storm(sku: &'static str, sizes: &'static [i16], requests: usize) -> anyhow::Result<Line> {
    let nodes = 125;
    let product = Arc::new(Product::start("storm", 0, "0").await?);
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    product.fleet(sku, (Agents::Whole, nodes), &mut agents, &stop).await?;
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..200 {
        let (product, next) = (Arc::clone(&product), Arc::clone(&next));
        clients.spawn(async move {
            let (mut answers, mut came_back): (Vec<(i16, u16)>, u64) = (Vec::new(), 0);
            loop {
                let turn = next.fetch_add(1, Ordering::Relaxed);
                if turn >= requests {
                    return (answers, came_back);
                }
                let gpus = sizes[turn % sizes.len()];
                let asked = product.request(sku, gpus);
                let answer = product.post_in_patience("/allocations", new_id(), &asked).await;
                let (status, again) = answer.unwrap_or_default();
                answers.push((gpus, status));
                came_back += again;
            }
        });
    }
    let (answers, came_back): (Vec<_>, Vec<u64>) = clients.join_all().await.into_iter().unzip();
    let answers: Vec<(i16, u16)> = answers.into_iter().flatten().collect();
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
                "came_back": came_back.iter().sum::<u64>(), "other_answers": strange.len(), "violations": violations }),
    ))
}

/// The storms of a run: every size by itself, and all of them.
pub(crate) async fn storms(requests: usize) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for sizes in [&[1][..], &[4], &[8], &[1, 8, 2, 4]] {
        lines.push(storm("h100.slice", sizes, requests).await?);
    }
    lines.push(storm("h100.metal", &[8], requests).await?);
    Ok(lines)
}
