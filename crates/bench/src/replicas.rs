//! Two replicas that share nothing but the database: how long a task that is queued through one takes to reach an agent that
//! waits at the other.

use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::product::{Product, free_port, pause};
use crate::stories::{Line, come_and_go, line, quantile};

/// What must be met, in milliseconds.
const P99_MAX: f64 = 50.0;

/// A process of `berth serve`. It is gone when this is dropped.
struct Replica {
    child: Child,
    api: String,
    gateway: String,
}

impl Replica {
    /// Starts one on the product's database, and waits until it is ready. Its nodes are sent to `agents_at`, or to itself.
    async fn start(
        product: &Product,
        roles: &str,
        agents_at: Option<&str>,
    ) -> anyhow::Result<Replica> {
        let [api, gateway, health] = [free_port()?, free_port()?, free_port()?];
        let [api, gateway, health] = [api, gateway, health].map(|port| format!("127.0.0.1:{port}"));
        let own = format!("https://{gateway}");
        let log = std::fs::File::create(product.folder.join(format!("serve-{gateway}.log")))?;
        let child = product
            .command()
            .args(["serve", "--roles", roles])
            .env("BERTH_DATABASE_URL", product.database())
            .env("BERTH_LISTEN_API", &api)
            .env("BERTH_LISTEN_GATEWAY", &gateway)
            .env("BERTH_LISTEN_HEALTH", &health)
            .env("BERTH_GATEWAY_URL", agents_at.unwrap_or(&own))
            .env("BERTH_LIMITS_REQUESTS_PER_MINUTE", "0")
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let mut replica = Replica { child, api, gateway: own };
        for _ in 0..600 {
            let ready = product.http.get(format!("http://{health}/readyz")).send().await;
            if ready.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(replica);
            }
            let ended = replica.child.try_wait()?;
            ensure!(ended.is_none(), "berth serve ended: see {}", product.folder.display());
            pause(Duration::from_millis(50)).await;
        }
        anyhow::bail!("berth serve is not ready: see {}", product.folder.display())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// So many allocations are made and given back through one replica; their agents wait at the other, which queues nothing.
pub(crate) async fn run(rounds: usize) -> anyhow::Result<Line> {
    let mut product = Product::start("replicas", 0, "0").await?;
    let waits = Replica::start(&product, "api,gateway", None).await?;
    let queues = Replica::start(&product, "api,gateway,relay,worker", Some(&waits.gateway)).await?;
    product.api = format!("http://{}/api/v1", queues.api);
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    product.fleet("h100.slice", 4, &mut agents, &stop).await?;
    for _ in 0..rounds {
        come_and_go(&product).await?;
    }
    let sql = PgPool::connect(&product.database()).await?;
    let waited_at = open_polls(&product, &waits).await?;
    let [claimed, received] = [CLAIMED, RECEIVED];
    let (claimed, received) = (sorted(&sql, claimed).await?, sorted(&sql, received).await?);
    stop.cancel();
    agents.join_all().await;
    let (claim_p99, receipt_p99) = (quantile(&claimed, 0.99), quantile(&received, 0.99));
    let met = claimed.len() >= rounds * 2
        && waited_at == 4.0
        && claim_p99 < P99_MAX
        && receipt_p99 < P99_MAX;
    Ok(line(
        met,
        json!({ "name": "replicas.wake_ms", "tasks": claimed.len(), "agents_waiting_at_the_other": waited_at,
                "claimed_p50": quantile(&claimed, 0.5), "claimed_p99": claim_p99,
                "at_the_agent_p50": quantile(&received, 0.5), "at_the_agent_p99": receipt_p99,
                "must": { "p99": P99_MAX } }),
    ))
}

/// From the row of a task to its claim, both by the database's clock.
const CLAIMED: &str =
    "SELECT (extract(epoch FROM log.occurred_at - task.created_at) * 1000)::float8
       FROM node_tasks AS task
       JOIN lifecycle_log AS log ON log.entity_id = task.id AND log.machine = 'node_task'
      WHERE log.to_status = 'dispatched'";

/// From there to the first thing that the agent did about it.
const RECEIVED: &str = "SELECT (extract(epoch FROM event.at - task.created_at) * 1000)::float8
       FROM node_tasks AS task
       JOIN node_task_events AS event ON event.task_id = task.id AND event.seq = 1";

async fn sorted(sql: &PgPool, query: &'static str) -> anyhow::Result<Vec<f64>> {
    let mut found: Vec<f64> = sqlx::query_scalar(query).fetch_all(sql).await?;
    found.sort_by(f64::total_cmp);
    Ok(found)
}

/// How many agents wait for work at a replica.
async fn open_polls(product: &Product, at: &Replica) -> anyhow::Result<f64> {
    // Between two waits an agent is not in one for a moment.
    let mut seen = f64::NAN;
    for _ in 0..50 {
        let shown = product.http.get(format!("http://{}/metrics", at.api)).send().await?;
        seen = metric(&shown.text().await?, "berth_long_polls_open");
        if seen == 4.0 {
            break;
        }
        pause(Duration::from_millis(20)).await;
    }
    Ok(seen)
}

/// The sum of all lines of a metric whose name and labels begin so.
pub(crate) fn metric(shown: &str, begin: &str) -> f64 {
    let lines = shown.lines().filter(|line| line.starts_with(begin));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    // The sum of nothing would be shown as less than nothing.
    values.fold(0.0, |sum, value| sum + value)
}
