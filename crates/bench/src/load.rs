//! People who ask, wait, have some restarted and give back while something happens to the product, and what must be true of
//! it afterwards.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::sync::RwLock;

use crate::crashes::{Tally, insist};
use crate::product::{Product, new_id, pause};

/// How long the audit may take to have nothing to say after everything has settled.
const AUDIT_ATTEMPTS: u32 = 120;

/// Numbers that follow from a seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A number below that one.
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// How long people keep what they have been given, in milliseconds: so long at least, and up to so much more.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) least_ms: u64,
    pub(crate) spread_ms: u64,
}

/// Asks, waits, has some restarted, gives back; says which allocations it was promised, and how often it had one restarted.
pub(crate) async fn client(
    number: u64,
    pace: Pace,
    product: Arc<RwLock<Product>>,
    tally: Arc<Tally>,
) -> (Vec<String>, i64) {
    let (mut promised, mut restarted, mut kept) = (Vec::new(), 0, None);
    let mut turn = number;
    while !tally.over.load(Ordering::Relaxed) {
        turn += 1;
        let (sku, gpus) =
            [("h100.slice", 1), ("h100.slice", 2), ("h100.slice", 4), ("h100.metal", 8)]
                [(turn % 4) as usize];
        let key = new_id();
        let made = insist(&product, &tally, "/allocations", key, move |product| {
            let mut wish = product.request(sku, gpus);
            // By its name it is seen whether one request was ever two.
            wish["name"] = json!(key.to_string());
            wish
        });
        let Some(id) = made.await.and_then(|made| made["id"].as_str().map(str::to_owned)) else {
            pause(Duration::from_millis(50)).await;
            continue;
        };
        tally.accepted.fetch_add(1, Ordering::Relaxed);
        promised.push(id.clone());
        pause(Duration::from_millis(pace.least_ms + turn * 137 % pace.spread_ms)).await;
        if turn.is_multiple_of(3) && active(&product, &tally, &id).await {
            let path = format!("/allocations/{id}/restart");
            let asked = insist(&product, &tally, &path, new_id(), |_| json!({})).await;
            restarted += i64::from(asked.is_some());
            pause(Duration::from_millis(200)).await;
        }
        // Some are given back while they are being prepared, some when they are usable, and some much later.
        if let Some(id) = if turn.is_multiple_of(11) { kept.replace(id) } else { Some(id) } {
            let path = format!("/allocations/{id}/release");
            insist(&product, &tally, &path, new_id(), |_| json!({})).await;
        }
    }
    (promised, restarted)
}

/// Waits a while for it to be usable.
async fn active(product: &RwLock<Product>, tally: &Tally, id: &str) -> bool {
    for _ in 0..200 {
        let asked = {
            let product = product.read().await;
            let url = format!("{}/allocations/{id}", product.api);
            product.http.get(url).bearer_auth(&product.token)
        };
        let answer = asked.send().await;
        tally.judge(&answer);
        if let Ok(answer) = answer
            && answer.json::<Value>().await.is_ok_and(|shown| shown["status"] == "active")
        {
            return true;
        }
        pause(Duration::from_millis(50)).await;
    }
    false
}

/// How many requests have had more than one effect.
pub(crate) async fn doubled(product: &Product) -> anyhow::Result<i64> {
    let sql = PgPool::connect(&product.database()).await?;
    let doubled = sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT name FROM allocations GROUP BY name HAVING count(*) > 1) AS twice",
    )
    .fetch_one(&sql)
    .await?;
    sql.close().await;
    Ok(doubled)
}

/// How many restarts there were that nobody was promised.
pub(crate) async fn unasked_restarts(product: &Product, promised: i64) -> anyhow::Result<i64> {
    let sql = PgPool::connect(&product.database()).await?;
    let done: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM lifecycle_log WHERE machine = 'allocation' AND event = 'restart.requested'",
    )
    .fetch_one(&sql)
    .await?;
    sql.close().await;
    Ok((done - promised).abs())
}

/// What `berth audit` says, once it has nothing more to wait for.
pub(crate) async fn audit(product: &Product) -> anyhow::Result<Value> {
    let mut audited = Value::Null;
    for _ in 0..AUDIT_ATTEMPTS {
        let words = ["--context", "operator", "audit", "--json"];
        let output = product.command().args(words).output()?;
        audited = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if audited["clean"] == true {
            break;
        }
        pause(Duration::from_millis(500)).await;
    }
    Ok(audited)
}
