//! The bus in Postgres itself. A message in hand is leased: if its consumer dies, somebody else gets it. Those about one row
//! are handled one after the other, those about different rows at once.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use store::deliveries::{self, Claim, Claimed, Failed};
use store::{Ring, Store};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use uuid::Uuid;

use super::{Handle, Subscription};
use crate::pump::{self, Work, guarded, pause_after, twice};
use crate::{Clock, Error, Wake};

/// When a message is delivered again if nothing is heard of it.
pub const LEASE: Duration = Duration::from_secs(30);
/// How long a message may be in hand. Twice that, for who gives up in the end, fits into the lease.
const HANDLE_MAX: Duration = Duration::from_secs(14);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// After so many attempts to give a message up that nobody lived to tell of, it is a dead letter unasked.
const GIVE_UP_MAX: i32 = 3;

/// One consumer. Several of the same name, in one process or in many, share its messages.
#[derive(Clone)]
pub struct Consumer {
    store: Store,
    clock: Clock,
    subscription: Subscription,
}

/// How an attempt went.
pub(crate) struct Tried {
    event_id: Uuid,
    attempts: i32,
    outcome: Outcome,
}

enum Outcome {
    Handled,
    Again(String),
    Dead(String),
}

impl Consumer {
    /// The consumer of one subscription.
    pub fn new(store: Store, clock: Clock, subscription: Subscription) -> Consumer {
        Consumer { store, clock, subscription }
    }

    /// Handles what is due now, at most one message a row; answers how many attempts that were.
    ///
    /// # Errors
    /// When the store fails. What was in hand is delivered again after [`LEASE`].
    pub async fn step(&self) -> Result<usize, Error> {
        pump::step(self).await
    }

    /// Handles messages as they come, until stopped.
    pub async fn run(&self, wake: &Wake, stop: &CancellationToken) {
        let bell = wake.on(Ring::Consumer(self.subscription.consumer.to_owned()));
        pump::run(self, &bell, stop).await;
    }
}

impl Work for Consumer {
    type Done = Tried;
    const ROOM: usize = 64;

    async fn claim(&self, room: usize) -> Result<Vec<BoxFuture<'static, Tried>>, Error> {
        let claim = Claim {
            consumer: self.subscription.consumer,
            now: self.clock.now(),
            lease_until: self.clock.after(LEASE),
            limit: i64::try_from(room).unwrap_or(i64::MAX),
        };
        let claimed = deliveries::claim(&self.store, &claim).await?;
        let begin = |claimed: Claimed| {
            let subscription = self.subscription.clone();
            let (consumer, event_id) = (subscription.consumer, claimed.event_id);
            let span = tracing::info_span!("message", consumer, %event_id);
            attempt(subscription, claimed).instrument(span).boxed()
        };
        Ok(claimed.into_iter().map(begin).collect())
    }

    async fn settle(&self, done: Vec<Tried>) -> Result<Option<Timestamp>, Error> {
        let consumer = self.subscription.consumer;
        let now = self.clock.now();
        let mut handled = Vec::new();
        let mut failed = Vec::new();
        for Tried { event_id, attempts, outcome } in done {
            let (reason, due_at) = match outcome {
                Outcome::Handled => {
                    handled.push(event_id);
                    continue;
                }
                Outcome::Again(reason) => {
                    (reason, Some(self.clock.after(pause_after(attempts, PAUSE_MAX))))
                }
                Outcome::Dead(reason) => (reason, None),
            };
            failed.push(Failed { event_id, attempts, reason, due_at });
        }
        count(consumer, &handled, &failed);
        if !handled.is_empty() {
            twice(|| deliveries::handled(&self.store, consumer, &handled)).await?;
        }
        if !failed.is_empty() {
            twice(|| deliveries::failed(&self.store, consumer, now, &failed)).await?;
        }
        Ok(failed.iter().filter_map(|failed| failed.due_at).min())
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }
}

fn count(consumer: &'static str, handled: &[Uuid], failed: &[Failed]) {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    metrics::counter!("berth_bus_delivered_total", "consumer" => consumer)
        .increment(number(handled.len()));
    metrics::counter!("berth_bus_failed_total", "consumer" => consumer)
        .increment(number(failed.len()));
    let dead = failed.iter().filter(|failed| failed.due_at.is_none());
    metrics::counter!("berth_bus_dead_total", "consumer" => consumer)
        .increment(number(dead.clone().count()));
    for letter in dead {
        let (event_id, reason) = (letter.event_id, &letter.reason);
        tracing::error!(consumer, %event_id, reason, "a message is given up: it is a dead letter");
    }
}

async fn attempt(subscription: Subscription, claimed: Claimed) -> Tried {
    let Claimed { event_id, attempts, message } = claimed;
    let tried = |outcome| Tried { event_id, attempts, outcome };
    let last = attempts >= subscription.attempts_max;
    let message = match message {
        Ok(message) => message,
        Err(reason) if last => return tried(Outcome::Dead(reason)),
        Err(reason) => return tried(Outcome::Again(reason)),
    };
    let reason = if attempts > subscription.attempts_max {
        "nothing was heard of its last attempt".to_owned()
    } else {
        match call(&subscription.handle, message.clone()).await {
            Ok(()) => return tried(Outcome::Handled),
            Err(reason) => reason,
        }
    };
    tracing::warn!(attempts, reason, "a message could not be handled");
    if !last {
        return tried(Outcome::Again(reason));
    }
    match subscription.exhausted {
        Some(exhausted) if attempts <= subscription.attempts_max + GIVE_UP_MAX => {
            match call(&exhausted, message).await {
                Ok(()) => tried(Outcome::Handled),
                Err(also) => {
                    tried(Outcome::Dead(format!("{reason}; to give it up failed: {also}")))
                }
            }
        }
        Some(_) | None => tried(Outcome::Dead(reason)),
    }
}

async fn call(handle: &Handle, message: wire::bus::Message) -> Result<(), String> {
    // Called inside, because it may panic before there is anything to await.
    let handled = guarded(HANDLE_MAX, async { handle(message).await }).await?;
    handled.map_err(|error| error.reason)
}
