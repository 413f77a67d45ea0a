//! `berth up --scaled` under load, with a process of each role killed every few seconds; NATS or Temporal is killed now and then,
//! or hangs and then loses all it has: everything that was accepted settles, nothing is lost, nothing is done twice, and the audit is clean.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::crashes::{Settled, Tally, settle};
use crate::load::{Dice, Pace, audit, client, doubled, unasked_restarts};
use crate::product::{Product, pause};
use crate::stories::Line;

/// How many people ask at a time: bounded, because two cores also carry what is measured.
const CLIENTS: u64 = 12;
/// Slow enough for a process of each role to be killed meanwhile.
const PACE: Pace = Pace { least_ms: 200, spread_ms: 1_500 };
const ROLES: [&str; 4] = ["api", "gateway", "relay", "worker"];
/// Something happens to NATS or Temporal every so many rounds, if nothing does already.
const ENGINE_EVERY: u64 = 6;
/// How many rounds one hangs: half a minute or so.
const HANGS: u64 = 5;

/// For so many minutes, with kills that follow from `seed`.
pub(crate) async fn run(minutes: u64, seed: u64) -> anyhow::Result<Line> {
    eprintln!("scaled: {minutes} minutes, SEED={seed}");
    let product = Product::start_scaled("scaled", 12, "0.002").await?;
    let product = Arc::new(RwLock::new(product));
    let tally = Arc::new(Tally::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(client(number, PACE, Arc::clone(&product), Arc::clone(&tally)));
    }
    let mut kills = BTreeMap::new();
    let killing = kill(&product, Dice(seed), &mut kills);
    // It never ends by itself.
    if let Ok(ended) = timeout(Duration::from_secs(minutes * 60), killing).await {
        ended?;
    }
    tally.over.store(true, Ordering::Relaxed);
    let mut accepted = Vec::new();
    let mut restarts = 0;
    for (promised, restarted) in clients.join_all().await {
        accepted.extend(promised);
        restarts += restarted;
    }
    let mut product =
        Arc::into_inner(product).context("somebody still has the product")?.into_inner();
    let settled = settle(&product, &accepted).await?;
    let doubled = doubled(&product).await? + unasked_restarts(&product, restarts).await?;
    let audit = audit(&product).await?;
    let line = told(minutes, seed, (&kills, &tally, restarts), (&settled, doubled), &audit);
    // Whatever comes of the end: this is what was measured.
    product.stop()?;
    Ok(line)
}

fn told(
    minutes: u64,
    seed: u64,
    (kills, tally, restarts): (&BTreeMap<String, u64>, &Tally, i64),
    (settled, doubled): (&Settled, i64),
    audit: &Value,
) -> Line {
    let clean = audit["clean"] == true;
    let Settled { unsettled, lost, orphans, by_status } = settled;
    let met = clean && doubled == 0 && (*unsettled, *lost, *orphans) == (0, 0, 0);
    let broken = audit["invariants"].as_array().into_iter().flatten();
    let broken: Vec<&Value> = broken.filter(|invariant| invariant["count"] != 0).collect();
    Line {
        text: json!({ "name": "scaled", "minutes": minutes, "seed": seed, "kills": kills,
            "accepted": tally.accepted.load(Ordering::Relaxed), "restarts": restarts,
            "retried_requests": tally.retried.load(Ordering::Relaxed), "unsettled": unsettled, "lost": lost,
            "doubled": doubled, "guests_without_allocation": orphans, "by_status": by_status, "audit_clean": clean,
            "violations": broken, "findings": audit["findings"], "ok": met }),
        met,
    }
}

/// Kills one of each role at once, again and again. Engines are killed too, or hang for a while and then lose all they have.
async fn kill(
    product: &RwLock<Product>,
    mut dice: Dice,
    kills: &mut BTreeMap<String, u64>,
) -> anyhow::Result<()> {
    let mut count = |what: &str| *kills.entry(what.to_owned()).or_default() += 1;
    let mut hanging: Option<(&str, u64)> = None;
    for round in 1_u64.. {
        pause(Duration::from_millis(3_000 + dice.roll(4_000))).await;
        let product = product.read().await;
        let living = product.processes()?;
        for role in ROLES {
            // One that is being started again right now can't be killed.
            let victim = living.get(&format!("{role}-{}", 1 + dice.roll(2)));
            if victim.is_some_and(|process| signal("-9", *process)) {
                count(role);
            }
        }
        if let Some((name, _)) = hanging.take_if(|(_, until)| *until <= round) {
            lose(&product, name, living.get(name).copied())?;
            count(&format!("{name}_lost"));
        }
        if hanging.is_none() && round.is_multiple_of(ENGINE_EVERY) {
            let name = ["nats", "temporal"][dice.roll(2) as usize];
            let hangs = dice.roll(2) == 0;
            let Some(process) = living.get(name) else { continue };
            if signal(if hangs { "-STOP" } else { "-9" }, *process) {
                count(&format!("{name}_{}", if hangs { "hung" } else { "killed" }));
                hanging = hangs.then_some((name, round + HANGS));
            }
        }
    }
    Ok(())
}

fn signal(name: &str, process: u32) -> bool {
    let sent = Command::new("kill").args([name, &process.to_string()]).status();
    sent.is_ok_and(|sent| sent.success())
}

/// Ends an engine, and deletes everything that it kept.
fn lose(product: &Product, name: &str, process: Option<u32>) -> anyhow::Result<()> {
    let kept = product.folder.join("berth/scaled");
    // It may have ended by itself.
    let _ = process.map(|process| signal("-9", process));
    for entry in std::fs::read_dir(&kept)?.flatten() {
        // A store is a folder, or some files that begin with its name.
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(name) {
            continue;
        }
        let _ =
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
    Ok(())
}
