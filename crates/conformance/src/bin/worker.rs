//! A process that moves one house, on the engines that `BERTH_TEST_NATS` and `BERTH_TEST_TEMPORAL` name; on those in Postgres
//! without. A line says how far ahead the clock is; everything that is due then is moved, and the answer is how much that was.
//! In between nothing is ever due here.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use control::policies::{Policies, Policy};
use control::{Assembled, assemble};
use engines::nats::{self, Nats};
use engines::temporal::{self, Temporal};
use jiff::SignedDuration;
use spine::bus::{Broker, Consumer};
use spine::workflow::Driver as _;
use spine::{Clock, Spine, relay};
use store::{Options, Ring, Store, deliveries};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What is not told is found after this time.
const SWEEP: SignedDuration = SignedDuration::from_millis(500);
/// How often it is looked whether something is still due.
const LOOK: Duration = Duration::from_millis(8);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .init();
    let clock = Clock::system();
    clock.set(None);
    let mut worker = Worker::start(clock.clone()).await?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut answers = tokio::io::stdout();
    while let Some(line) = lines.next_line().await? {
        clock.set(Some(line.parse()?));
        let moved = worker.settle().await?;
        clock.set(None);
        answers.write_all(format!("{moved}\n").as_bytes()).await?;
        answers.flush().await?;
    }
    Ok(())
}

struct Worker {
    spine: Spine,
    clock: Clock,
    consumers: Vec<Consumer>,
    broker: Option<Arc<dyn Broker>>,
    parts: JoinSet<()>,
}

impl Worker {
    async fn start(clock: Clock) -> anyhow::Result<Worker> {
        let url = std::env::var(testkit::DATABASE_VARIABLE).context("which database?")?;
        let store = Store::open(&url, Options { connections_max: 6, ..Options::default() }).await?;
        let Assembled { spine, .. } = assemble(store, clock.clone(), policies()?).await?;
        let place = url.split('?').next().unwrap_or_default();
        let name = place.rsplit('/').next().unwrap_or_default().to_owned();
        let broker = broker(&name).await?;
        let mut worker =
            Worker { spine, clock, consumers: Vec::new(), broker, parts: JoinSet::new() };
        worker.begin(&name);
        Ok(worker)
    }

    fn begin(&mut self, name: &str) {
        if let Some(broker) = &self.broker {
            self.parts.spawn(broker.run(CancellationToken::new()));
        }
        for subscription in &self.spine.subscriptions {
            let store = self.spine.store.clone();
            let mut consumer = Consumer::new(store, self.clock.clone(), subscription.clone());
            if let Some(broker) = &self.broker {
                consumer = consumer.told_by(Arc::clone(broker), SWEEP);
            }
            self.consumers.push(consumer.clone());
            let wake = self.spine.wake.clone();
            self.parts.spawn(async move { consumer.run(&wake, &CancellationToken::new()).await });
        }
        let (runs, wake) = (Arc::clone(&self.spine.workflows), self.spine.wake.clone());
        match std::env::var("BERTH_TEST_TEMPORAL") {
            Ok(address) => {
                let driver = Temporal::new(temporal::Options {
                    address,
                    namespace: "default".to_owned(),
                    queue: name.to_owned(),
                    prefix: format!("{name}:"),
                });
                self.parts.spawn(driver.run((*runs).clone(), wake, CancellationToken::new()));
            }
            Err(_) => {
                self.parts.spawn(async move { runs.run(&wake, &CancellationToken::new()).await });
            }
        }
    }

    /// Moves what is due, until nothing is; how much that was.
    async fn settle(&mut self) -> anyhow::Result<usize> {
        let policies = self.spine.timers.iter().find(|timer| timer.name == "policies");
        policies.context("policies are read by a timer")?.step().await?;
        let mut total = 0;
        loop {
            let (store, subscriptions) = (&self.spine.store, &self.spine.subscriptions);
            let moved = match &self.broker {
                Some(broker) => relay::step_telling(store, subscriptions, &**broker).await?,
                None => relay::step(store, subscriptions).await?,
            };
            let due = self.due().await?;
            if moved + due == 0 {
                return Ok(total);
            }
            total += moved + due;
            for subscription in subscriptions {
                self.spine.wake.ring(&Ring::Consumer(subscription.consumer.to_owned()));
            }
            self.spine.wake.ring(&Ring::Workflows);
            while self.due().await? > 0 || self.in_hand() || self.due().await? > 0 {
                tokio::select! {
                    Some(ended) = self.parts.join_next() => anyhow::bail!("a part has ended: {ended:?}"),
                    () = look() => {}
                }
            }
        }
    }

    fn in_hand(&self) -> bool {
        self.spine.workflows.in_hand() > 0 || self.consumers.iter().any(|each| each.in_hand() > 0)
    }

    async fn due(&self) -> anyhow::Result<usize> {
        let mut due = self.spine.workflows.count_due().await?;
        for subscription in &self.spine.subscriptions {
            let store = &self.spine.store;
            let count =
                deliveries::count_due(store, subscription.consumer, self.clock.now()).await?;
            due += usize::try_from(count)?;
        }
        Ok(due)
    }
}

async fn look() {
    let _ = tokio::time::timeout(LOOK, std::future::pending::<()>()).await;
}

fn policies() -> anyhow::Result<Policies> {
    let mut policies = Policies::default();
    let told = std::env::var(testkit::POLICIES_VARIABLE).unwrap_or_default();
    for (key, value) in told.split(',').filter_map(|each| each.split_once('=')) {
        let policy = Policy::find(key).with_context(|| format!("there is no policy {key}"))?;
        (policy.write)(&mut policies, value.parse()?);
    }
    Ok(policies)
}

async fn broker(name: &str) -> anyhow::Result<Option<Arc<dyn Broker>>> {
    let Ok(servers) = std::env::var("BERTH_TEST_NATS") else {
        return Ok(None);
    };
    // Little: there is a stream a house, and a server sets aside what each of them may keep.
    let (name, bytes_max) = (name.to_owned(), 1 << 20);
    let options = nats::Options { servers, credentials: None, name, replicas: 1, bytes_max };
    Ok(Some(Arc::new(Nats::connect(options).await?)))
}
