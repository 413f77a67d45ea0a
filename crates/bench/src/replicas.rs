//! Two replicas that share nothing but the database: how long a task that is queued through one takes to reach an agent that
//! waits at the other.

use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::ensure;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Plan;
use crate::agents::{CLAIMED, RECEIVED, sorted};
use crate::figure::Figure;
use crate::fleet::Agents;
use crate::machine::{Mood, own_cpu, quantile};
use crate::product::{Product, free_port, pause};
use crate::stories::come_and_go;

/// A process of `berth serve`. It is gone when this is dropped.
pub(crate) struct Replica {
    child: Child,
    /// Where people come in.
    pub(crate) api: String,
    gateway: String,
    health: String,
}

impl Replica {
    /// Starts one on the product's database, and waits until it is ready. Its nodes are sent to `agents_at`, or to itself.
    pub(crate) async fn start(
        product: &Product,
        roles: &str,
        agents_at: Option<&str>,
    ) -> anyhow::Result<Replica> {
        let mut replica = Replica::spawn(product, roles, agents_at)?;
        replica.until_ready(product).await?;
        Ok(replica)
    }

    /// Starts one, and does not wait.
    pub(crate) fn spawn(
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
            // All agents come from this machine.
            .env("BERTH_LIMITS_ENROLMENTS_PER_MINUTE", "1000000")
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(Replica { child, api, gateway: own, health })
    }

    /// The process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    async fn until_ready(&mut self, product: &Product) -> anyhow::Result<()> {
        for _ in 0..600 {
            let ready = product.http.get(format!("http://{}/readyz", self.health)).send().await;
            if ready.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            let ended = self.child.try_wait()?;
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

/// Allocations are made and given back through one replica; their agents wait at the other, which queues nothing.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let runs = plan.runs / 2;
    eprintln!("replicas: {runs} allocations come and go");
    let mut product = Product::start("replicas", 0, "0").await?;
    let waits = Replica::start(&product, "api,gateway", None).await?;
    let queues = Replica::start(&product, "api,gateway,relay,worker", Some(&waits.gateway)).await?;
    product.api = format!("http://{}/api/v1", queues.api);
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    product.fleet("h100.slice", (Agents::NullThatTells, 4), &mut agents, &stop).await?;
    let (mood, cpu) = (Mood::look().await, own_cpu());
    for _ in 0..runs {
        come_and_go(&product).await?;
    }
    let mood = mood.asking(own_cpu() - cpu);
    let sql = PgPool::connect(&product.database()).await?;
    let waited_at = open_polls(&product, &waits).await?;
    let (claimed, received) = (sorted(&sql, CLAIMED).await?, sorted(&sql, RECEIVED).await?);
    sql.close().await;
    product.check().await?;
    stop.cancel();
    agents.join_all().await;
    ensure!(claimed.len() >= runs * 2, "only {} tasks were claimed", claimed.len());
    ensure!(waited_at == 4.0, "{waited_at} agents wait at the other replica, not 4");
    let of = |name: &str, times: &[f64], share| {
        let figure = Figure::less("P9", name, "ms").must(50.0);
        let note = format!("{} tasks queued at one process, agents at another", claimed.len());
        figure.note(note).once(quantile(times, share), None, mood)
    };
    Ok(vec![
        of("replicas.task_reaches_agent_p50", &received, 0.5),
        of("replicas.task_reaches_agent_p99", &received, 0.99),
        of("replicas.task_claimed_p99", &claimed, 0.99),
    ])
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
