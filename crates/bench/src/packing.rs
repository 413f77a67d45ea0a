//! How well placement packs: traces of two weeks through the product's own SQL on a real Postgres, against what nobody could
//! have exceeded, and what is left over in pieces. The same SEED is the same trace.

use serde_json::json;
use sqlx::{Connection as _, PgConnection, PgPool};
use store::cluster::{Cluster, Durability};
use store::{Options, Store, audit};
use testkit::packing::{Recipe, Score, Trace, replay};

use crate::stories::{Line, line};

/// How much is asked for, of all there is: enough for everybody but at noon; at the edge; and more than there is all day.
const LOADS: [u32; 3] = [90, 110, 140];
/// The least share of what a fleet without walls would have placed. What somebody places who knows the future is told beside
/// it, and is not what must be met: who has to answer at once can't refuse one for a better one that comes tomorrow.
const MUST: f64 = 0.95;
/// Wants messages to be published. There is no relay here, so that all of them wait.
const OF_RELAYS: &str = "I08";

/// A line for each load. What is measured is no time, so that the machine's mood does not matter, and nor does durability.
pub(crate) async fn run(quick: bool, seed: u64) -> anyhow::Result<Vec<Line>> {
    let directory = std::env::temp_dir().join(format!("berth-packing-{}", std::process::id()));
    // What a killed run of the same number left is not ours to replay on.
    let _ = std::fs::remove_dir_all(&directory);
    let cluster = Cluster::start(&directory, Durability::None)?;
    let (machines, days) = if quick { (50, 5) } else { (125, 14) };
    let mut lines = Vec::new();
    for (name, load_percent) in ["light", "full", "overfull"].into_iter().zip(LOADS) {
        let recipe = Recipe { seed, machines, days, load_percent };
        lines.push(scored(&cluster, name, recipe).await?);
    }
    drop(cluster);
    let _ = std::fs::remove_dir_all(&directory);
    Ok(lines)
}

async fn scored(cluster: &Cluster, name: &str, recipe: Recipe) -> anyhow::Result<Line> {
    let mut connection = PgConnection::connect(&cluster.url("postgres")).await?;
    let create = format!("CREATE DATABASE packing_{name}");
    sqlx::query(sqlx::AssertSqlSafe(create)).execute(&mut connection).await?;
    connection.close().await?;
    let url = cluster.url(&format!("packing_{name}"));
    Store::migrate(&url).await?;
    let store = Store::open(&url, Options::default()).await?;
    let sql = PgPool::connect(&url).await?;
    let trace = Trace::new(recipe);
    let score = Score::new(&trace, replay(&store, &sql, &trace).await?);
    let broken = audit::run(&store).await?;
    let broken: Vec<&str> = broken
        .iter()
        .filter(|(_, rows, _)| !rows.is_empty())
        .map(|(invariant, _, _)| invariant.name)
        .filter(|name| *name != OF_RELAYS)
        .collect();
    sql.close().await;
    store.close().await;
    Ok(told(&trace, &score, &broken))
}

fn told(trace: &Trace, score: &Score, broken: &[&str]) -> Line {
    let Recipe { seed, machines, days, load_percent } = trace.recipe;
    let replayed = &score.replayed;
    let rounded = |value: f64| (value * 1_000.0).round() / 1_000.0;
    let gpus = |work: u64| rounded(work as f64 / trace.seconds as f64);
    let refused: usize = replayed.refused.values().sum();
    let met = score.of_without_walls() >= MUST && broken.is_empty();
    line(
        met,
        json!({ "name": "packing.placed", "seed": seed, "machines": machines, "days": days, "load_percent": load_percent,
                "requests": trace.asked.len(), "granted": replayed.granted, "refused": refused,
                "refused_by_size": replayed.refused, "refused_with_room_in_all": replayed.refused_with_room,
                "gpus": trace.recipe.capacity(), "placed_gpus_mean": gpus(replayed.placed),
                "of_fleet_without_walls": rounded(score.of_without_walls()), "of_offline_optimum": rounded(score.of_optimum()),
                "must": { "of_fleet_without_walls": MUST },
                "free_gpus_mean": gpus(replayed.pieces.free),
                "free_in_pieces_below_4_mean": gpus(replayed.pieces.below_4),
                "free_in_pieces_below_8_mean": gpus(replayed.pieces.below_8),
                "free_in_pieces_below_8_max": replayed.pieces.below_8_max,
                "numa_torn": replayed.torn, "violations": broken }),
    )
}
