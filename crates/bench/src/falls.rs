//! `berth up` under load while its Postgres falls, again and again, at moments that follow from a seed; in between all its
//! connections are ended. Everything that was accepted settles, nothing is lost, nothing is done twice, nobody is told anything but
//! to ask again, and it goes on as soon as Postgres does.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::crashes::{Settled, Tally, settle};
use crate::load::{Dice, Pace, audit, client, doubled, unasked_restarts};
use crate::machine::now;
use crate::product::{Product, pause};
use crate::stories::Line;

/// How many people ask at a time: bounded, because two cores also carry what is measured.
const CLIENTS: u64 = 12;
/// So quick that something is always being written.
const PACE: Pace = Pace { least_ms: 0, spread_ms: 200 };
/// How long Postgres may take to accept connections again, recovery included.
const BACK: Duration = Duration::from_secs(60);
/// How long it may then take until somebody is answered well.
const RECOVERY_MAX: Duration = Duration::from_secs(30);

/// What happened to Postgres.
#[derive(Default)]
struct Falls {
    /// How many connections were ended one by one.
    ended: i64,
    /// From each fall until Postgres took connections, in milliseconds.
    down: Vec<u64>,
    /// From then until somebody was answered well.
    recovered: Vec<u64>,
}

/// So many falls, at moments that follow from `seed`.
pub(crate) async fn run(falls: u32, seed: u64) -> anyhow::Result<Line> {
    eprintln!("falls: {falls} of them, SEED={seed}");
    let product = Product::start("falls", 12, "0.002").await?;
    // Whoever is still setting it up may be told that it failed.
    product.until_announced().await?;
    let product = Arc::new(RwLock::new(product));
    let tally = Arc::new(Tally::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(client(number, PACE, Arc::clone(&product), Arc::clone(&tally)));
    }
    let (folder, url) = {
        let product = product.read().await;
        (product.folder.join("berth/postgres"), product.database())
    };
    let (mut dice, mut fallen) = (Dice(seed), Falls::default());
    for _ in 0..falls {
        pause(Duration::from_millis(300 + dice.roll(1_700))).await;
        fallen.ended += end_connections(&url, &mut dice).await?;
        pause(Duration::from_millis(300 + dice.roll(1_700))).await;
        fall(&folder, &url, &product, &mut fallen).await?;
    }
    tally.over.store(true, Ordering::Relaxed);
    let (mut accepted, mut restarts) = (Vec::new(), 0);
    for (promised, restarted) in clients.join_all().await {
        accepted.extend(promised);
        restarts += restarted;
    }
    let mut product =
        Arc::into_inner(product).context("somebody still has the product")?.into_inner();
    let settled = settle(&product, &accepted).await?;
    let doubled = doubled(&product).await? + unasked_restarts(&product, restarts).await?;
    let audit = audit(&product).await?;
    let line = told(seed, &fallen, (&tally, restarts), (&settled, doubled), &audit);
    // Whatever comes of the end: this is what was measured.
    product.stop()?;
    Ok(line)
}

fn told(
    seed: u64,
    fallen: &Falls,
    (tally, restarts): (&Tally, i64),
    (settled, doubled): (&Settled, i64),
    audit: &Value,
) -> Line {
    let clean = audit["clean"] == true;
    let Settled { unsettled, lost, orphans, by_status } = settled;
    let [wrong, unanswered] =
        [&tally.wrong, &tally.unanswered].map(|count| count.load(Ordering::Relaxed));
    let most = |times: &[u64]| times.iter().copied().max().unwrap_or_default();
    let recovered = u128::from(most(&fallen.recovered)) <= RECOVERY_MAX.as_millis();
    let exact = doubled == 0 && (*unsettled, *lost, *orphans) == (0, 0, 0);
    let met = clean && exact && recovered && (wrong, unanswered) == (0, 0);
    let broken = audit["invariants"].as_array().into_iter().flatten();
    let broken: Vec<&Value> = broken.filter(|invariant| invariant["count"] != 0).collect();
    Line {
        text: json!({ "name": "falls", "falls": fallen.down.len(), "connections_ended": fallen.ended, "seed": seed,
            "accepted": tally.accepted.load(Ordering::Relaxed), "restarts": restarts,
            "retried_requests": tally.retried.load(Ordering::Relaxed), "wrong_answers": wrong, "unanswered": unanswered,
            "postgres_back_ms_max": most(&fallen.down), "recovery_ms_max": most(&fallen.recovered),
            "recovery_ms_mean": fallen.recovered.iter().sum::<u64>() / fallen.recovered.len().max(1) as u64,
            "must": { "recovery_ms_max": RECOVERY_MAX.as_millis() as u64, "wrong_answers": 0 },
            "unsettled": unsettled, "lost": lost, "doubled": doubled, "guests_without_allocation": orphans,
            "by_status": by_status, "audit_clean": clean, "violations": broken, "findings": audit["findings"], "ok": met }),
        met,
    }
}

/// Ends every connection of the product, three times in quick succession; answers how many there were.
async fn end_connections(url: &str, dice: &mut Dice) -> anyhow::Result<i64> {
    let mut sql = PgConnection::connect(url).await?;
    let mut ended = 0;
    for _ in 0..3 {
        let count: i64 = sqlx::query_scalar(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'berth'",
        )
        .fetch_one(&mut sql)
        .await?;
        ended += count;
        pause(Duration::from_millis(dice.roll(100))).await;
    }
    sql.close().await?;
    Ok(ended)
}

/// Postgres falls, as `pg_ctl stop -m immediate` does it: no connection is ended in order, nothing is written that was not. The
/// product starts it again; it is timed from when it accepts connections to when somebody is answered well.
async fn fall(
    folder: &Path,
    url: &str,
    product: &RwLock<Product>,
    fallen: &mut Falls,
) -> anyhow::Result<()> {
    let server = postmaster(folder).context("Postgres does not run")?;
    let stopped = Command::new("kill").args(["-QUIT", &server.to_string()]).status()?;
    ensure!(stopped.success(), "Postgres ({server}) can't be stopped");
    let fell = now();
    let back = async {
        loop {
            // Until the file names another, it is the fallen one who would answer.
            let another = postmaster(folder).is_some_and(|process| process != server);
            if another && PgConnection::connect(url).await.is_ok() {
                return;
            }
            pause(Duration::from_millis(10)).await;
        }
    };
    if timeout(BACK, back).await.is_err() {
        bail!("Postgres does not come back");
    }
    fallen.down.push(milliseconds(fell));
    let accepts = now();
    let product = product.read().await;
    while product.get(&product.token, "/allocations?limit=1").await.is_err()
        && accepts.elapsed() < 2 * RECOVERY_MAX
    {
        pause(Duration::from_millis(5)).await;
    }
    fallen.recovered.push(milliseconds(accepts));
    Ok(())
}

/// The server of the cluster in that folder.
fn postmaster(folder: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(folder.join("data/postmaster.pid")).ok()?;
    text.lines().next()?.trim().parse().ok()
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
