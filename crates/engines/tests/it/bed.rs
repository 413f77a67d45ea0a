//! A bus on NATS and an engine on Temporal that run by themselves; to step one is to wait until it has nothing to do.

use std::sync::Arc;
use std::time::Duration;

use conformance::bed::{Bed, Bus, Engine, PATIENCE};
use engines::nats::{Nats, Options};
use engines::temporal::Temporal;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use spine::bus::{Broker, Consumer, LEASE, Subscription};
use spine::workflow::embedded::Embedded;
use spine::workflow::{Definition, Driver as _, Workflows};
use spine::{Clock, Error, Wake, relay};
use store::{Ring, Store, deliveries};
use testkit::{NatsServer, TemporalServer};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// One server for all tests of a process.
static SERVER: OnceCell<NatsServer> = OnceCell::const_new();

struct Running {
    broker: Nats,
    consumers: Vec<Consumer>,
    parts: JoinSet<()>,
}

/// See the module.
struct OnNats {
    store: Store,
    clock: Clock,
    name: String,
    subscriptions: Vec<Subscription>,
    wake: Wake,
    running: tokio::sync::Mutex<Option<Running>>,
}

pub(crate) fn nats(bed: &Bed, subscriptions: Vec<Subscription>) -> Arc<dyn Bus> {
    Arc::new(OnNats {
        store: bed.store.clone(),
        clock: bed.clock.clone(),
        name: name_of(bed),
        subscriptions,
        wake: Wake::new(),
        running: tokio::sync::Mutex::default(),
    })
}

/// A name that no other test has.
fn name_of(bed: &Bed) -> String {
    let url = bed.database.url();
    let place = url.split('?').next().unwrap_or_default();
    place.rsplit('/').next().unwrap_or_default().to_owned()
}

pub(crate) fn options(url: String, name: &str) -> Options {
    Options {
        servers: url,
        credentials: None,
        name: name.to_owned(),
        replicas: 1,
        bytes_max: 1 << 20,
    }
}

impl OnNats {
    async fn start(&self) -> Running {
        let server = SERVER.get_or_init(NatsServer::start).await;
        let broker = Nats::connect(options(server.url(), &self.name)).await.expect("it connects");
        let mut parts = JoinSet::new();
        parts.spawn(broker.run(CancellationToken::new()));
        let mut consumers = Vec::new();
        for subscription in &self.subscriptions {
            let consumer =
                Consumer::new(self.store.clone(), self.clock.clone(), subscription.clone())
                    .told_by(Arc::new(broker.clone()), SignedDuration::from_millis(50));
            consumers.push(consumer.clone());
            let wake = self.wake.clone();
            parts.spawn(async move { consumer.run(&wake, &CancellationToken::new()).await });
        }
        Running { broker, consumers, parts }
    }

    /// How much can be begun now.
    async fn due(&self) -> usize {
        let mut due = 0;
        for subscription in &self.subscriptions {
            let consumer = subscription.consumer;
            let count = deliveries::count_due(&self.store, consumer, self.clock.now()).await;
            due += usize::try_from(count.expect("it counts")).unwrap_or_default();
        }
        due
    }

    /// Waits until nothing can be begun and nothing is in hand here.
    async fn quiet(&self, consumers: &[Consumer]) {
        let in_hand = || consumers.iter().any(|consumer| consumer.in_hand() > 0);
        // Asked once more: what was in hand may have been put back.
        while self.due().await > 0 || in_hand() || self.due().await > 0 {
            moment().await;
        }
    }
}

impl Bus for OnNats {
    fn step(&self) -> BoxFuture<'_, Result<usize, Error>> {
        async {
            let (broker, consumers) = {
                let mut running = self.running.lock().await;
                if running.is_none() {
                    *running = Some(self.start().await);
                }
                let running = running.as_ref().expect("it was started");
                (running.broker.clone(), running.consumers.clone())
            };
            let moved = relay::step_telling(&self.store, &self.subscriptions, &broker).await?;
            let due = self.due().await;
            for subscription in &self.subscriptions {
                self.wake.ring(&Ring::Consumer(subscription.consumer.to_owned()));
            }
            let quiet = tokio::time::timeout(PATIENCE, self.quiet(&consumers));
            quiet.await.expect("it settles");
            Ok(moved + due)
        }
        .boxed()
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    fn kill(&self) -> BoxFuture<'_, ()> {
        async {
            if let Some(mut running) = self.running.lock().await.take() {
                running.parts.shutdown().await;
            }
        }
        .boxed()
    }
}

/// One server for all tests of a process.
static TEMPORAL: OnceCell<TemporalServer> = OnceCell::const_new();

/// An engine whose runs Temporal brings.
struct OnTemporal {
    runs: Embedded,
    name: String,
    wake: Wake,
    running: tokio::sync::Mutex<Option<JoinSet<()>>>,
}

/// Every engine has a queue of its own, as other installations have.
pub(crate) fn temporal(bed: &Bed, definitions: Vec<Definition>) -> Arc<dyn Engine> {
    let wake = Wake::new();
    let store = bed.store.clone().ringing(wake.bell());
    Arc::new(OnTemporal {
        runs: Embedded::new(store, bed.clock.clone(), definitions),
        name: format!("{}-{}", name_of(bed), testkit::new_id().simple()),
        wake,
        running: tokio::sync::Mutex::default(),
    })
}

impl OnTemporal {
    async fn due(&self) -> usize {
        self.runs.count_due().await.expect("it counts")
    }
}

impl Engine for OnTemporal {
    fn workflows(&self) -> &dyn Workflows {
        &self.runs
    }

    fn step(&self) -> BoxFuture<'_, Result<usize, Error>> {
        async {
            {
                let mut running = self.running.lock().await;
                if running.is_none() {
                    let server = TEMPORAL.get_or_init(TemporalServer::start).await;
                    let driver = Temporal::new(temporal_options(server.url(), &self.name));
                    let mut parts = JoinSet::new();
                    let stop = CancellationToken::new();
                    parts.spawn(driver.run(self.runs.clone(), self.wake.clone(), stop));
                    *running = Some(parts);
                }
            }
            let due = self.due().await;
            self.wake.ring(&Ring::Workflows);
            let quiet = async {
                while self.due().await > 0 || self.runs.in_hand() > 0 || self.due().await > 0 {
                    moment().await;
                }
            };
            tokio::time::timeout(2 * PATIENCE, quiet).await.expect("it settles");
            Ok(due)
        }
        .boxed()
    }

    fn lease(&self) -> Duration {
        spine::workflow::embedded::LEASE
    }

    fn kill(&self) -> BoxFuture<'_, ()> {
        async {
            if let Some(mut running) = self.running.lock().await.take() {
                running.shutdown().await;
            }
        }
        .boxed()
    }
}

pub(crate) fn temporal_options(address: String, queue: &str) -> engines::temporal::Options {
    engines::temporal::Options {
        address,
        namespace: "default".to_owned(),
        queue: queue.to_owned(),
        prefix: format!("{queue}:"),
    }
}

pub(crate) async fn moment() {
    let _ = tokio::time::timeout(Duration::from_millis(2), std::future::pending::<()>()).await;
}
