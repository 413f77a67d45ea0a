//! Where things are measured that need many nodes and few roles: the database of a product that was set up as its users do, on a
//! Postgres of ours, with nodes that were never there, and the product's own processes in the roles that are asked for.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use store::cluster::{Cluster, Durability};

use crate::product::Product;
use crate::replicas::Replica;

const FLOOR: &str = include_str!("sql/floor.sql");

/// A database with a fleet in it, and what runs on it.
pub(crate) struct Stage {
    /// Its tokens, its project and its folder; it does not run any more.
    pub(crate) product: Product,
    /// What runs, in the roles that were asked for; it ends before its database does.
    _replica: Replica,
    cluster: Cluster,
    /// How many nodes of eight slots there are.
    nodes: usize,
}

/// What `pgbench` has measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    /// Transactions a second.
    pub(crate) rate: f64,
    /// Of each, in milliseconds.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Stage {
    /// Sets one up with so many nodes of eight GPUs.
    pub(crate) async fn set(name: &str, nodes: usize, roles: &str) -> anyhow::Result<Stage> {
        let mut product = Product::start(name, 0, "0").await?;
        product.until_announced().await?;
        product.stop()?;
        let cluster = Cluster::start(&product.folder.join("berth/postgres"), Durability::Full)?;
        let mut sql = PgConnection::connect(&cluster.url("berth")).await?;
        durable(&mut sql).await?;
        for statement in fleet(nodes) {
            let done = sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut sql).await;
            done.with_context(|| statement)?;
        }
        sqlx::raw_sql("CREATE DATABASE floor").execute(&mut sql).await?;
        sql.close().await?;
        let mut sql = PgConnection::connect(&cluster.url("floor")).await?;
        for statement in FLOOR.replace("{nodes}", &nodes.to_string()).split(';') {
            sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut sql).await?;
        }
        sql.close().await?;
        let replica = Replica::start(&product, roles, None).await?;
        product.api = format!("http://{}/api/v1", replica.api);
        Ok(Stage { product, _replica: replica, cluster, nodes })
    }

    /// The address of the product's database.
    pub(crate) fn database(&self) -> String {
        self.cluster.url("berth")
    }

    /// What the database does with this by itself, at so many clients.
    pub(crate) fn raw(&self, script: &str, clients: usize, time: Duration) -> anyhow::Result<Raw> {
        let folder = self.product.folder.join("pgbench");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("script.sql");
        std::fs::write(&file, script)?;
        let output = Command::new(self.cluster.binaries.join("pgbench"))
            .args(["--no-vacuum", "--protocol=prepared", "--username=berth", "--log"])
            .arg(format!("--log-prefix={}", folder.join("log").display()))
            .arg(format!("--jobs={}", clients.min(2)))
            .arg(format!("--client={clients}"))
            .arg(format!("--time={}", time.as_secs()))
            .arg(format!("--define=slots={}", 8 * self.nodes))
            .arg("--host")
            .arg(self.cluster.socket_directory())
            .arg("--file")
            .arg(&file)
            .arg("floor")
            .output()
            .context("could not run pgbench")?;
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        let rate = said
            .lines()
            .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        let Some(rate) = rate.filter(|_| output.status.success() && !complained.contains("ERROR"))
        else {
            bail!("pgbench failed: {said}{complained}");
        };
        let mut took = times(&folder)?;
        took.sort_by(f64::total_cmp);
        let at = |share| crate::stories::quantile(&took, share);
        Ok(Raw { rate, p50_ms: at(0.5), p99_ms: at(0.99) })
    }
}

/// How long each transaction took, in milliseconds, from the logs that `pgbench` has left.
fn times(folder: &std::path::Path) -> anyhow::Result<Vec<f64>> {
    let logs: Vec<PathBuf> = std::fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log"))
        })
        .collect();
    let mut took = Vec::new();
    for log in logs {
        let text = std::fs::read_to_string(log)?;
        let third = |line: &str| line.split(' ').nth(2)?.parse::<f64>().ok();
        took.extend(text.lines().filter_map(third).map(|micros| micros / 1_000.0));
    }
    ensure!(!took.is_empty(), "pgbench has left no log");
    Ok(took)
}

/// These figures would mean nothing if what was committed could be lost.
async fn durable(sql: &mut PgConnection) -> anyhow::Result<()> {
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let query = format!("SHOW {setting}");
        let value: String = sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut *sql).await?;
        ensure!(value == "on", "{setting} is {value}: these figures would mean nothing");
    }
    Ok(())
}

/// Nodes that are ready, have the image, and are heard of for a year to come.
fn fleet(nodes: usize) -> Vec<String> {
    let series = format!("generate_series(1, {nodes}) AS n");
    vec![
        "SET session_replication_role = replica".to_owned(),
        format!(
            "INSERT INTO nodes (id, name, region, sku, status, seq, heartbeat_at, free_slots, free_numa_max)
             SELECT md5('node ' || n)::uuid, 'node-' || n, 'eu-1', 'h100.slice', 'ready', 2, clock_timestamp() + interval '1 year', 8, 4 FROM {series}"
        ),
        format!(
            "INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, source, actor, occurred_at)
             SELECT 'node', md5('node ' || n)::uuid, step, gen_random_uuid(), said, was, became, 'worker', 'bench', clock_timestamp()
               FROM {series}, (VALUES (1, 'born', NULL, 'enrolling'), (2, 'node.enrolled', 'enrolling', 'ready')) AS steps (step, said, was, became)"
        ),
        format!(
            "INSERT INTO slots (id, node_id, slot_index, numa_node)
             SELECT md5('slot ' || n || '/' || slot)::uuid, md5('node ' || n)::uuid, slot, slot / 4 FROM {series}, generate_series(0, 7) AS slot"
        ),
        format!("INSERT INTO node_images (node_id, image) SELECT md5('node ' || n)::uuid, 'ubuntu-24.04-cuda' FROM {series}"),
        "SET session_replication_role = origin".to_owned(),
        "VACUUM ANALYZE".to_owned(),
    ]
}
