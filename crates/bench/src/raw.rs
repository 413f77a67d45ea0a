//! What Postgres does by itself: `pgbench` with SQL that a hand would type, on tables that have nothing of ours. Nothing here means
//! anything unless what is committed is on disk, so that is asked first.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use store::cluster::Cluster;

use crate::machine::quantile;

/// The database of the raw tables.
pub(crate) const FLOOR: &str = "floor";
const TABLES: &str = include_str!("sql/floor.sql");
/// One allocation, its slots, their claims and its message in one statement, which is told how many slots: what the goals call
/// `create_one`. Postgres plans it each time, because that number decides how much of an index is read.
pub(crate) const CREATE_ONE: &str = include_str!("sql/floor_create.sql");
/// The same for one slot and no other number, which is planned once: no floor of any goal, and a harder one.
pub(crate) const CREATE_ONE_PLANNED_ONCE: &str = include_str!("sql/floor_create_planned_once.sql");
/// One allocation given back, in one statement.
pub(crate) const RELEASE_ONE: &str = include_str!("sql/floor_release.sql");
/// A compare-and-set, its record and its message, in one statement.
pub(crate) const CAS_ONE: &str = include_str!("sql/floor_cas.sql");
/// A row and a commit.
pub(crate) const COMMIT: &str = "INSERT INTO floor_commits (v) VALUES (1);\n";
/// Five hundred messages marked as published and read, in one statement.
pub(crate) const RELAY: &str = include_str!("sql/floor_relay.sql");
/// What one [`RELAY`] moves.
pub(crate) const RELAY_BATCH: f64 = 500.0;

/// What is to be run.
pub(crate) struct Run<'a> {
    pub(crate) database: &'a str,
    /// Each is as likely as the others.
    pub(crate) scripts: &'a [&'a str],
    pub(crate) clients: usize,
    pub(crate) length: Length,
    pub(crate) defines: &'a [(&'a str, usize)],
}

/// How long.
#[derive(Clone, Copy)]
pub(crate) enum Length {
    Time(Duration),
    /// So many transactions of each client.
    Each(usize),
}

/// What `pgbench` has measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    /// Transactions a second.
    pub(crate) rate: f64,
    pub(crate) transactions: usize,
    /// Of each, in milliseconds.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// These figures would mean nothing if what was committed could be lost.
pub(crate) async fn insist_on_durability(sql: &mut PgConnection) -> anyhow::Result<()> {
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let query = format!("SHOW {setting}");
        let value: String = sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut *sql).await?;
        ensure!(value == "on", "{setting} is {value}: these figures would mean nothing");
    }
    Ok(())
}

/// Makes the raw tables, with so many nodes of eight slots.
pub(crate) async fn furnish(cluster: &Cluster, nodes: usize) -> anyhow::Result<()> {
    let mut admin = PgConnection::connect(&cluster.url("postgres")).await?;
    insist_on_durability(&mut admin).await?;
    sqlx::raw_sql("CREATE DATABASE floor").execute(&mut admin).await?;
    admin.close().await?;
    let mut sql = PgConnection::connect(&cluster.url(FLOOR)).await?;
    each(&mut sql, &TABLES.replace("{nodes}", &nodes.to_string())).await?;
    sql.close().await?;
    Ok(())
}

/// One statement after the other: some may not share a transaction.
pub(crate) async fn each(sql: &mut PgConnection, statements: &str) -> anyhow::Result<()> {
    for statement in statements.split(';').filter(|statement| !statement.trim().is_empty()) {
        let done = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut *sql).await;
        done.with_context(|| statement.to_owned())?;
    }
    Ok(())
}

/// Runs `pgbench`, and reads its rate, and from its log how long each transaction took.
pub(crate) fn pgbench(cluster: &Cluster, run: &Run<'_>) -> anyhow::Result<Raw> {
    let folder = std::env::temp_dir().join(format!("berth-pgbench-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    let measured = measured(cluster, run, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    measured
}

fn measured(cluster: &Cluster, run: &Run<'_>, folder: &Path) -> anyhow::Result<Raw> {
    let mut command = Command::new(cluster.binaries.join("pgbench"));
    command
        .args(["--no-vacuum", "--protocol=prepared", "--username=berth", "--log"])
        .arg(format!("--log-prefix={}", folder.join("log").display()))
        .arg(format!("--jobs={}", run.clients.min(2)))
        .arg(format!("--client={}", run.clients))
        .arg(match run.length {
            Length::Time(time) => format!("--time={}", time.as_secs().max(1)),
            Length::Each(count) => format!("--transactions={count}"),
        })
        .arg("--host")
        .arg(cluster.socket_directory());
    for (name, value) in run.defines {
        command.arg(format!("--define={name}={value}"));
    }
    for (number, script) in run.scripts.iter().enumerate() {
        let file = folder.join(format!("script-{number}.sql"));
        std::fs::write(&file, script)?;
        command.arg("--file").arg(file);
    }
    let output = command.arg(run.database).output().context("could not run pgbench")?;
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let rate =
        said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    let Some(rate) = rate.filter(|_| output.status.success() && !complained.contains("ERROR"))
    else {
        bail!("pgbench failed: {said}{complained}");
    };
    let took = times(folder)?;
    let at = |share| quantile(&took, share);
    Ok(Raw { rate, transactions: took.len(), p50_ms: at(0.5), p99_ms: at(0.99) })
}

/// How long each transaction took, in milliseconds and sorted, from the logs that `pgbench` has left.
fn times(folder: &Path) -> anyhow::Result<Vec<f64>> {
    let mut took = Vec::new();
    for entry in std::fs::read_dir(folder)?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with("log") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path())?;
        let third = |line: &str| line.split(' ').nth(2)?.parse::<f64>().ok();
        took.extend(text.lines().filter_map(third).map(|micros| micros / 1_000.0));
    }
    ensure!(!took.is_empty(), "pgbench has left no log");
    took.sort_by(f64::total_cmp);
    Ok(took)
}
