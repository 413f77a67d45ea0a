//! The whole product is killed without warning, again and again, while requests come in: everything that was answered
//! settles, nothing is held twice, and no guest of the fleet is left without an allocation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::sync::RwLock;
use tokio::task::JoinSet;

use crate::product::{Product, new_id, pause};
use crate::stories::Line;

/// How many people ask at a time.
const CLIENTS: u64 = 16;
const SETTLE_ATTEMPTS: u32 = 1_800;

/// What the requests came to, and whether it is enough.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) accepted: AtomicU64,
    pub(crate) retried: AtomicU64,
    /// How often somebody was answered well.
    pub(crate) answered: AtomicU64,
    /// How often nobody answered.
    pub(crate) unanswered: AtomicU64,
    /// How often an answer was neither good, nor a refusal, nor that one should ask again later.
    pub(crate) wrong: AtomicU64,
    pub(crate) over: AtomicBool,
}

impl Tally {
    /// Counts what became of a request.
    pub(crate) fn judge(&self, answer: &reqwest::Result<reqwest::Response>) {
        let count = match answer {
            Ok(answer) if answer.status().is_success() => &self.answered,
            Ok(answer) if answer.status().is_client_error() => return,
            Ok(answer)
                if answer.status() == 503 && answer.headers().contains_key("retry-after") =>
            {
                return;
            }
            Ok(answer) => {
                eprintln!("a wrong answer: {answer:?}");
                &self.wrong
            }
            Err(_) => &self.unanswered,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Kills it so often.
pub(crate) async fn run(kills: u32) -> anyhow::Result<Line> {
    let product = Arc::new(RwLock::new(Product::start("crashes", 12, "0.002").await?));
    let tally = Arc::new(Tally::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(client(number, Arc::clone(&product), Arc::clone(&tally)));
    }
    let mut moment = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..kills {
        // From a tenth of a second to two: any step of a story can be under way.
        moment =
            moment.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        pause(Duration::from_millis(100 + (moment >> 33) % 1_900)).await;
        let mut product = product.write().await;
        product.kill()?;
        product.begin().await?;
    }
    tally.over.store(true, Ordering::Relaxed);
    let accepted: Vec<String> = clients.join_all().await.into_iter().flatten().collect();
    let product = product.read().await;
    let settled = settle(&product, &accepted).await?;
    let violations = product.violations().await?;
    let met = violations.is_empty()
        && settled.unsettled == 0
        && settled.lost == 0
        && settled.orphans == 0;
    Ok(Line {
        text: json!({ "name": "crashes", "kills": kills, "accepted": tally.accepted.load(Ordering::Relaxed),
            "retried_requests": tally.retried.load(Ordering::Relaxed), "unsettled": settled.unsettled, "lost": settled.lost,
            "guests_without_allocation": settled.orphans, "by_status": settled.by_status, "violations": violations, "ok": met }),
        met,
    })
}

/// Asks, waits a little, gives back, and says which allocations it was promised.
async fn client(number: u64, product: Arc<RwLock<Product>>, tally: Arc<Tally>) -> Vec<String> {
    let mut promised = Vec::new();
    let mut turn = number;
    while !tally.over.load(Ordering::Relaxed) {
        turn += 1;
        let (sku, gpus) =
            [("h100.slice", 1), ("h100.slice", 2), ("h100.slice", 4), ("h100.metal", 8)]
                [(turn % 4) as usize];
        let key = new_id();
        let Some(made) = insist(&product, &tally, "/allocations", key, move |product| {
            product.request(sku, gpus)
        })
        .await
        else {
            continue;
        };
        let Some(id) = made["id"].as_str().map(str::to_owned) else {
            continue;
        };
        tally.accepted.fetch_add(1, Ordering::Relaxed);
        promised.push(id.clone());
        pause(Duration::from_millis(50 + turn * 37 % 300)).await;
        // Some are given back while they are being prepared, some when they are usable, some much later.
        if turn.is_multiple_of(5) {
            pause(Duration::from_secs(2)).await;
        }
        let path = format!("/allocations/{id}/release");
        insist(&product, &tally, &path, new_id(), |_| json!({})).await;
    }
    promised
}

/// Sends a request, with the same key as often as it takes to get an answer. `None` when it was refused, or time is over.
pub(crate) async fn insist(
    product: &RwLock<Product>,
    tally: &Tally,
    path: &str,
    key: uuid::Uuid,
    body: impl Fn(&Product) -> Value,
) -> Option<Value> {
    for _ in 0..2_000 {
        let answer = {
            // Read only for a moment: whoever kills must get in while a request is under way.
            let (http, api, token, body) = {
                let product = product.read().await;
                (product.http.clone(), product.api.clone(), product.token.clone(), body(&product))
            };
            http.post(format!("{api}{path}"))
                .bearer_auth(token)
                .header("Idempotency-Key", key.to_string())
                .json(&body)
                .send()
                .await
        };
        tally.judge(&answer);
        match answer {
            Ok(answer) if [201, 202].contains(&answer.status().as_u16()) => {
                // The head is the answer; a body that is cut off is asked for again.
                if let Ok(body) = answer.json().await {
                    return Some(body);
                }
            }
            Ok(answer) if [409, 404, 422].contains(&answer.status().as_u16()) => {
                let told: Value = answer.json().await.unwrap_or_default();
                if told["code"] != "idempotency_in_flight" {
                    return None;
                }
            }
            Ok(_) | Err(_) => {}
        }
        tally.retried.fetch_add(1, Ordering::Relaxed);
        if tally.over.load(Ordering::Relaxed) && path == "/allocations" {
            return None;
        }
        pause(Duration::from_millis(20)).await;
    }
    None
}

pub(crate) struct Settled {
    pub(crate) unsettled: i64,
    pub(crate) lost: usize,
    pub(crate) orphans: i64,
    pub(crate) by_status: Value,
}

/// Waits until nothing is on its way any more, then gives everything back and waits again.
pub(crate) async fn settle(product: &Product, promised: &[String]) -> anyhow::Result<Settled> {
    let sql = PgPool::connect(&product.database()).await?;
    quiet(&sql).await?;
    let lost = missing(&sql, promised).await?;
    let active: Vec<uuid::Uuid> = sqlx::query_scalar(
        "SELECT id FROM allocations WHERE status IN ('active', 'restart_failed', 'release_failed')",
    )
    .fetch_all(&sql)
    .await?;
    for id in active {
        let path = format!("/allocations/{id}/release");
        product.post(&product.token, &path, new_id(), &json!({})).await?;
    }
    quiet(&sql).await?;
    let unsettled: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM allocations WHERE status NOT IN ('released', 'failed')",
    )
    .fetch_one(&sql)
    .await?;
    let by_status: Vec<(String, i64)> =
        sqlx::query_as("SELECT status, count(*) FROM allocations GROUP BY status ORDER BY status")
            .fetch_all(&sql)
            .await?;
    Ok(Settled { unsettled, lost, orphans: guests(product)?, by_status: json!(by_status) })
}

async fn quiet(sql: &PgPool) -> anyhow::Result<()> {
    for _ in 0..SETTLE_ATTEMPTS {
        let moving: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM allocations WHERE status IN ('requested', 'provisioning', 'releasing', 'restarting')",
        )
        .fetch_one(sql)
        .await?;
        let cleaning: i64 =
            sqlx::query_scalar("SELECT count(*) FROM claims WHERE status = 'cleaning'")
                .fetch_one(sql)
                .await?;
        if moving + cleaning == 0 {
            return Ok(());
        }
        pause(Duration::from_millis(100)).await;
    }
    bail!("it never settles")
}

/// How many of those that were promised are not there.
async fn missing(sql: &PgPool, promised: &[String]) -> anyhow::Result<usize> {
    let ids: Vec<uuid::Uuid> = promised.iter().map(|id| id.parse()).collect::<Result<_, _>>()?;
    let there: i64 = sqlx::query_scalar("SELECT count(*) FROM allocations WHERE id = ANY($1)")
        .bind(&ids)
        .fetch_one(sql)
        .await?;
    Ok(ids.len().saturating_sub(usize::try_from(there)?))
}

/// The guests that are left in the simulated worlds of the fleet.
fn guests(product: &Product) -> anyhow::Result<i64> {
    let mut left = 0;
    let nodes = std::fs::read_dir(product.folder.join("berth/nodes")).context("the fleet")?;
    for node in nodes.flatten() {
        let guests = node.path().join("world/guests");
        left += i64::try_from(std::fs::read_dir(guests).into_iter().flatten().count())?;
    }
    Ok(left)
}
