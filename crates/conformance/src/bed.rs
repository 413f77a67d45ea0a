//! What the suites stand on: a database, a clock that can be moved, consumers that write down what they hear.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ids::{AllocationId, OperationId};
use domain::machines::allocation::Event;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use spine::bus::{Consumer, Handle, HandleError, Subscription};
use spine::workflow::embedded::Embedded;
use spine::workflow::{Definition, Happened, Next, Run, Step, StepError, Stepped, Workflows};
use spine::{Clock, Error, relay};
use store::{Options, Store};
use testkit::{Database, new_id};
use uuid::Uuid;
use wire::bus::{Message, Subject};

/// Longer than anything that is still alive.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What the allocations of the tests say.
pub const HEARD: &[Subject] = &[
    Subject::ProvisioningRequested,
    Subject::ProvisioningActive,
    Subject::RestartRequested,
    Subject::RestartCompleted,
];

/// A database and a clock.
pub struct Bed {
    /// As somebody with a terminal sees it.
    pub database: Database,
    /// As the product sees it.
    pub store: Store,
    /// What time it is; tests move it.
    pub clock: Clock,
}

impl Bed {
    /// One of each.
    pub async fn new() -> Bed {
        let database = Database::new().await;
        Bed { store: database.store.clone(), database, clock: Clock::system() }
    }

    /// With one connection: whoever held it while something else runs would make that wait in vain.
    pub async fn narrow() -> Bed {
        let database = Database::new().await;
        let options = Options { connections_max: 1, ..Options::default() };
        let store = Store::open(&database.url(), options).await.expect("the store opens");
        Bed { store, database, clock: Clock::system() }
    }

    /// Says four things about one allocation, and two more for each further restart.
    pub async fn history(&self, restarts: usize) -> AllocationId {
        let id = self.database.active_allocation().await.allocation;
        for _ in 0..restarts {
            self.restart(id).await;
        }
        id
    }

    /// Says two things more.
    pub async fn restart(&self, id: AllocationId) {
        let restart = OperationId(new_id());
        for event in [Event::RestartRequested, Event::RestartCompleted] {
            assert!(self.database.report(id, event, restart).await.is_applied());
        }
    }

    /// Removes it.
    pub async fn end(self) {
        self.store.close().await;
        self.database.remove().await;
    }
}

/// A bus that a suite is run on.
pub trait Bus: Send + Sync {
    /// Moves and handles what is due now; answers how much that was.
    fn step(&self) -> BoxFuture<'_, Result<usize, Error>>;

    /// When a message is delivered again if nothing is heard of it.
    fn lease(&self) -> Duration;

    /// Ends what goes on although nobody steps it, in the middle of whatever it does.
    fn kill(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

/// Makes the bus that a suite is run on.
pub type MakeBus = fn(&Bed, Vec<Subscription>) -> Arc<dyn Bus>;

struct Postgres {
    store: Store,
    subscriptions: Vec<Subscription>,
    consumers: Vec<Consumer>,
}

impl Bus for Postgres {
    fn step(&self) -> BoxFuture<'_, Result<usize, Error>> {
        async {
            let mut done = relay::step(&self.store, &self.subscriptions).await?;
            for consumer in &self.consumers {
                done += consumer.step().await?;
            }
            Ok(done)
        }
        .boxed()
    }

    fn lease(&self) -> Duration {
        spine::bus::LEASE
    }
}

/// The bus in Postgres.
pub fn postgres(bed: &Bed, subscriptions: Vec<Subscription>) -> Arc<dyn Bus> {
    let consumer =
        |each: &Subscription| Consumer::new(bed.store.clone(), bed.clock.clone(), each.clone());
    let consumers = subscriptions.iter().map(consumer).collect();
    Arc::new(Postgres { store: bed.store.clone(), subscriptions, consumers })
}

/// Steps until there is nothing to do now.
pub async fn settle(bus: &dyn Bus) {
    while bus.step().await.expect("the bus steps") > 0 {}
}

/// Steps, and lets the pauses between attempts pass, until they are over.
pub async fn settle_in_time(bed: &Bed, bus: &dyn Bus) {
    for _ in 0..12 {
        settle(bus).await;
        // Less than a lease, so that what is in hand stays there.
        bed.clock.advance(Duration::from_secs(20));
    }
}

/// A handler that does what a story says.
pub fn handle<F>(story: impl Fn(Message) -> F + Send + Sync + 'static) -> Handle
where
    F: Future<Output = Result<(), HandleError>> + Send + 'static,
{
    Arc::new(move |message| story(message).boxed())
}

/// What a handler answers that can't.
pub fn failure(reason: &str) -> Result<(), HandleError> {
    Err(HandleError { reason: reason.to_owned() })
}

/// The consumer of the tests.
pub fn subscription(handle: Handle) -> Subscription {
    Subscription {
        consumer: "c",
        subjects: HEARD,
        handle,
        exhausted: None,
        attempts_max: 3,
        at_once: 64,
    }
}

/// What happened, in order, and what is under way.
#[derive(Clone, Default)]
pub struct Journal {
    inner: Arc<Mutex<Entries>>,
}

#[derive(Default)]
struct Entries {
    done: HashMap<Uuid, Vec<i64>>,
    under_way: HashSet<Uuid>,
    overlaps: usize,
}

impl Journal {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody begins with `entity`; nobody else may be at it. A panic would only be one more failure to the engine, so it is
    /// written down.
    pub fn begin(&self, entity: Uuid) {
        let mut entries = self.entries();
        entries.overlaps += usize::from(!entries.under_way.insert(entity));
    }

    /// How often two were at the same thing at once.
    pub fn overlaps(&self) -> usize {
        self.entries().overlaps
    }

    /// Somebody is done with `entity`.
    pub fn end(&self, entity: Uuid) {
        self.entries().under_way.remove(&entity);
    }

    /// Writes down that `number` happened to `entity`.
    pub fn write(&self, entity: Uuid, number: i64) {
        self.entries().done.entry(entity).or_default().push(number);
    }

    /// What happened to it, in order.
    pub fn of(&self, entity: Uuid) -> Vec<i64> {
        self.entries().done.get(&entity).cloned().unwrap_or_default()
    }

    /// How much happened.
    pub fn total(&self) -> usize {
        self.entries().done.values().map(Vec::len).sum()
    }
}

/// An engine that a suite is run on.
pub trait Engine: Send + Sync {
    /// How runs are started and told.
    fn workflows(&self) -> &dyn Workflows;

    /// Steps what is due now; answers how many runs that were.
    fn step(&self) -> BoxFuture<'_, Result<usize, Error>>;

    /// When a run is taken over if nothing is heard of it.
    fn lease(&self) -> Duration;

    /// Ends what goes on although nobody steps it, in the middle of whatever it does.
    fn kill(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

/// Makes the engine that a suite is run on.
pub type MakeEngine = fn(&Bed, Vec<Definition>) -> Arc<dyn Engine>;

impl Engine for Embedded {
    fn workflows(&self) -> &dyn Workflows {
        self
    }

    fn step(&self) -> BoxFuture<'_, Result<usize, Error>> {
        Embedded::step(self).boxed()
    }

    fn lease(&self) -> Duration {
        spine::workflow::embedded::LEASE
    }
}

/// The engine in Postgres.
pub fn embedded(bed: &Bed, definitions: Vec<Definition>) -> Arc<dyn Engine> {
    Arc::new(Embedded::new(bed.store.clone(), bed.clock.clone(), definitions))
}

/// The one workflow of the tests, called `w`.
pub fn workflow<F>(story: impl Fn(Run, Happened) -> F + Send + Sync + 'static) -> Vec<Definition>
where
    F: Future<Output = Result<Next, StepError>> + Send + 'static,
{
    working(move |run, happened| story(run, happened).map(|next| next.map(Stepped::from)))
}

/// The same, of a story that leaves its transaction to the engine.
pub fn working<F>(story: impl Fn(Run, Happened) -> F + Send + Sync + 'static) -> Vec<Definition>
where
    F: Future<Output = Result<Stepped, StepError>> + Send + 'static,
{
    let step: Step = Arc::new(move |run, happened| story(run, happened).boxed());
    vec![Definition { name: "w", step }]
}

/// Makes every case of a suite a test of one engine.
#[macro_export]
macro_rules! held_to {
    ($engine:ident by $make:path: $suite:ident: $($case:ident),+ $(,)?) => {
        mod $engine {
            $(
                #[tokio::test]
                async fn $case() {
                    $crate::$suite::$case($make).await;
                }
            )+
        }
    };
}
