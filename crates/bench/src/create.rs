//! What it costs to ask for an allocation: through the API, with a token, a key, the money looked at, a place found and everything
//! on disk before the answer, against the one statement that a hand would type.

use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use serde_json::Value;
use sqlx::PgPool;
use tokio::task::JoinSet;

use crate::Plan;
use crate::machine::{Figure, foreign_cpu};
use crate::product::{Product, new_id};
use crate::stage::Stage;
use crate::stories::quantile;

const NODES: usize = 12_500;
const FLOOR_CREATE: &str = include_str!("sql/floor_create.sql");
/// How many ask at once, what share of the floor must be reached then, and what we aim for.
const CLIENTS: [(usize, &str, f64, f64); 4] = [
    (1, "create.per_second_vs_floor_1", 0.0, 0.6),
    (8, "create.per_second_vs_floor_8", 0.6, 1.0),
    (32, "create.per_second_vs_floor_32", 0.6, 1.5),
    (128, "create.per_second_vs_floor_128", 0.6, 1.5),
];
/// One in so many requests is sent twice, and must be answered as it was.
const AGAIN_EVERY: u64 = 20;

/// What people saw in one round.
#[derive(Debug, Default)]
struct Seen {
    /// How long each request took, in milliseconds.
    took: Vec<f64>,
    /// Answers that should not have been.
    wrong: Vec<String>,
}

/// Rates at 1, 8, 32 and 128 at once, and how long one who is alone waits.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let stage = Stage::set("create", NODES, "api").await?;
    let product = &stage.product;
    let sql = PgPool::connect(&stage.database()).await?;
    let mut all = Vec::new();
    for (clients, name, must, aim) in CLIENTS {
        let mut rate = Figure::new(name, must, aim);
        // Half of the time is twice as good.
        let mut alone = Figure::new("create.p50_of_floor_vs_ours_1", 0.5, 0.67);
        for _ in 0..plan.rounds {
            let foreign = foreign_cpu().await;
            let before = stage.raw(FLOOR_CREATE, clients, plan.round)?;
            let (made, mut seen) = ask(product, &sql, clients, plan).await?;
            let after = stage.raw(FLOOR_CREATE, clients, plan.round)?;
            ensure!(
                seen.wrong.is_empty(),
                "{} wrong answers, such as {}",
                seen.wrong.len(),
                seen.wrong[0]
            );
            seen.took.sort_by(f64::total_cmp);
            eprintln!(
                "{clients} at once: {made:.0}/s, p50 {:.2} ms, p99 {:.2} ms; by hand {:.0} and {:.0}/s, p50 {:.2} ms, p99 {:.2} ms",
                quantile(&seen.took, 0.5),
                quantile(&seen.took, 0.99),
                before.rate,
                after.rate,
                before.p50_ms,
                before.p99_ms
            );
            rate.push(made, (before.rate + after.rate) / 2.0, foreign);
            alone.push(
                1.0 / quantile(&seen.took, 0.5),
                2.0 / (before.p50_ms + after.p50_ms),
                foreign,
            );
        }
        all.push(rate);
        if clients == 1 {
            all.push(alone);
        }
    }
    sql.close().await;
    Ok(all)
}

/// So many ask one after the other, each again as soon as they are answered; what counts is what is in the database.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
async fn ask(
    product: &Product,
    sql: &PgPool,
    clients: usize,
    plan: Plan,
) -> anyhow::Result<(f64, Seen)> {
    let count = "SELECT count(*) FROM allocations";
    let before: i64 = sqlx::query_scalar(count).fetch_one(sql).await?;
    let began = Instant::now();
    let until = began + plan.round;
    let asked = Arc::new(product.request("h100.slice", 1));
    let mut people = JoinSet::new();
    for _ in 0..clients {
        let (http, url, token) =
            (product.http.clone(), format!("{}/allocations", product.api), product.token.clone());
        let asked = Arc::clone(&asked);
        people.spawn(async move {
            let (mut seen, mut turn) = (Seen::default(), 0_u64);
            while Instant::now() < until {
                turn += 1;
                let key = new_id().to_string();
                let sent = Instant::now();
                let send = async || -> reqwest::Result<(u16, Value)> {
                    let request =
                        http.post(&url).bearer_auth(&token).header("Idempotency-Key", &key);
                    let answer = request.json(&*asked).send().await?;
                    Ok((answer.status().as_u16(), answer.json().await?))
                };
                let first = send().await;
                seen.took.push(sent.elapsed().as_secs_f64() * 1_000.0);
                match first {
                    Ok((201, made)) if turn.is_multiple_of(AGAIN_EVERY) => match send().await {
                        Ok((201, again)) if again == made => {}
                        other => seen.wrong.push(format!("a request that was repeated: {other:?}")),
                    },
                    Ok((201, _)) => {}
                    other => seen.wrong.push(format!("{other:?}")),
                }
            }
            seen
        });
    }
    let mut all = Seen::default();
    for seen in people.join_all().await {
        all.took.extend(seen.took);
        all.wrong.extend(seen.wrong);
    }
    let lasted = began.elapsed().as_secs_f64();
    let after: i64 = sqlx::query_scalar(count).fetch_one(sql).await?;
    ensure!(
        usize::try_from(after - before)? == all.took.len(),
        "{} requests made {} allocations",
        all.took.len(),
        after - before
    );
    Ok(((after - before) as f64 / lasted, all))
}
