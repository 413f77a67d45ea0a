//! A consumer. A message in hand is leased: if its consumer dies, somebody else gets it. Those about one row are handled one
//! after the other, those about different rows at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use lifecycle::Code as _;
use store::deliveries::{self, Claim, Claimed, Failed, Heard};
use store::{Ring, Store};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use uuid::Uuid;

use super::line::Line;
use super::{Broker, Handle, Settled, Subscription, Word};
use crate::pump::{self, Work, guarded, pause_after, persist};
use crate::{Clock, Error, Wake};

/// When a message is delivered again if nothing is heard of it.
pub const LEASE: Duration = Duration::from_secs(30);
/// How long a message may be in hand. Twice that, for who gives up in the end, fits into the lease.
const HANDLE_MAX: Duration = Duration::from_secs(14);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// After so many attempts to give a message up that nobody lived to tell of, it is a dead letter unasked.
const GIVE_UP_MAX: i32 = 3;
/// How often a consumer that a broker tells looks for messages that it was not told of.
pub const SWEEP: SignedDuration = SignedDuration::from_secs(5);
/// When a broker tells again of a message that somebody else has, or that another one comes before.
const NOT_NOW: Duration = Duration::from_millis(200);

/// One consumer. Several of the same name, in one process or in many, share its messages.
#[derive(Clone)]
pub struct Consumer {
    store: Store,
    clock: Clock,
    subscription: Subscription,
    /// To the broker, if there is one.
    line: Option<Arc<Line>>,
    in_hand: Arc<AtomicUsize>,
}

/// How an attempt went.
pub(crate) struct Tried {
    event_id: Uuid,
    attempts: i32,
    outcome: Outcome,
    /// What told of it, if a broker did.
    word: Option<Word>,
}

enum Outcome {
    Handled,
    Again(String),
    Dead(String),
}

impl Consumer {
    /// The consumer of one subscription.
    pub fn new(store: Store, clock: Clock, subscription: Subscription) -> Consumer {
        Consumer { store, clock, subscription, line: None, in_hand: Arc::default() }
    }

    /// The same, that is told of its messages by a broker, and looks for those it was not told of once in `sweep`.
    #[must_use]
    pub fn told_by(mut self, broker: Arc<dyn Broker>, sweep: SignedDuration) -> Consumer {
        self.line = Some(Arc::new(Line::new(broker, sweep)));
        self
    }

    /// How many messages it is about to take, handles, or has not written down yet; never none while there is one.
    pub fn in_hand(&self) -> usize {
        self.in_hand.load(Ordering::SeqCst)
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
        let ring = Ring::Consumer(self.subscription.consumer.to_owned());
        let bell = wake.on(ring.clone());
        let pumping = pump::run(self, &bell, stop);
        match &self.line {
            None => pumping.await,
            Some(line) => {
                // A word is for this process alone.
                let rung = || wake.ring_here(&ring);
                tokio::join!(pumping, line.listen(&self.subscription, rung, stop));
            }
        }
    }

    fn terms(&self, room: usize) -> Claim<'_> {
        Claim {
            consumer: self.subscription.consumer,
            now: self.clock.now(),
            lease_until: self.clock.after(LEASE),
            limit: i64::try_from(room).unwrap_or(i64::MAX),
        }
    }

    fn begin(&self, claimed: Claimed, word: Option<Word>) -> BoxFuture<'static, Tried> {
        let subscription = self.subscription.clone();
        let (consumer, event_id) = (subscription.consumer, claimed.event_id);
        let span = tracing::info_span!("message", consumer, %event_id);
        let traced = traced(consumer, &claimed);
        let attempt = attempt(subscription, claimed).instrument(traced).instrument(span);
        attempt.map(|tried| Tried { word, ..tried }).boxed()
    }

    /// Begins what is due, or what a broker has told of.
    async fn take(&self, room: usize) -> Result<Vec<BoxFuture<'static, Tried>>, Error> {
        let mut pieces = Vec::new();
        if let Some(line) = &self.line {
            let words = line.take(room);
            if !words.is_empty() {
                pieces = self.begin_heard(line, words).await?;
            }
            if pieces.len() >= room || !line.sweeps(self.clock.now()) {
                return Ok(pieces);
            }
        }
        let claimed = deliveries::claim(&self.store, &self.terms(room - pieces.len())).await?;
        pieces.extend(claimed.into_iter().map(|claimed| self.begin(claimed, None)));
        Ok(pieces)
    }

    /// Writes down how attempts went.
    async fn write_down(&self, done: Vec<Tried>) -> Result<Option<Timestamp>, Error> {
        let consumer = self.subscription.consumer;
        let now = self.clock.now();
        let (mut handled, mut failed, mut words) = (Vec::new(), Vec::new(), Vec::new());
        for Tried { event_id, attempts, outcome, word } in done {
            let pause = pause_after(attempts, PAUSE_MAX);
            let (settled, reason, due_at) = match outcome {
                Outcome::Handled => {
                    words.extend(word.map(|word| (word, Settled::Over)));
                    handled.push(event_id);
                    continue;
                }
                Outcome::Again(reason) => {
                    (Settled::Again(pause), reason, Some(self.clock.after(pause)))
                }
                Outcome::Dead(reason) => (Settled::Over, reason, None),
            };
            words.extend(word.map(|word| (word, settled)));
            failed.push(Failed { event_id, attempts, reason, due_at });
        }
        count(consumer, &handled, &failed);
        if !handled.is_empty() {
            persist(|| deliveries::handled(&self.store, consumer, &handled)).await?;
        }
        if !failed.is_empty() {
            persist(|| deliveries::failed(&self.store, consumer, now, &failed)).await?;
        }
        // Only what is written down is settled with the broker.
        for (word, settled) in words {
            (word.settle)(settled).await;
        }
        if let Some(line) = &self.line {
            line.look_for_what_is_behind();
        }
        Ok(failed.iter().filter_map(|failed| failed.due_at).min())
    }

    /// Begins what a broker has told of, as far as it is to be begun now.
    async fn begin_heard(
        &self,
        line: &Line,
        words: Vec<Word>,
    ) -> Result<Vec<BoxFuture<'static, Tried>>, Error> {
        let heard: Vec<Uuid> = words.iter().map(|word| word.event_id).collect();
        // If that fails nothing is settled, and the broker tells again.
        let stands = deliveries::claim_heard(&self.store, &self.terms(heard.len()), &heard).await?;
        let mut stands: HashMap<Uuid, Heard> =
            stands.into_iter().map(|each| (each.event_id(), each)).collect();
        let mut pieces = Vec::new();
        for word in words {
            match stands.remove(&word.event_id) {
                Some(Heard::Begun(claimed)) => pieces.push(self.begin(*claimed, Some(word))),
                Some(Heard::NotNow(_)) => {
                    line.note_behind();
                    (word.settle)(Settled::Again(NOT_NOW)).await;
                }
                // Told twice in one breath, the second time says nothing.
                Some(Heard::Over(_)) | None => (word.settle)(Settled::Over).await,
            }
        }
        Ok(pieces)
    }
}

impl Work for Consumer {
    type Done = Tried;

    fn room(&self) -> usize {
        self.subscription.at_once
    }

    async fn claim(&self, room: usize) -> Result<Vec<BoxFuture<'static, Tried>>, Error> {
        self.in_hand.fetch_add(1, Ordering::SeqCst);
        let claimed = self.take(room).await;
        let count = claimed.as_ref().map_or(0, Vec::len);
        self.in_hand.fetch_add(count, Ordering::SeqCst);
        self.in_hand.fetch_sub(1, Ordering::SeqCst);
        claimed
    }

    async fn settle(&self, done: Vec<Tried>) -> Result<Option<Timestamp>, Error> {
        let count = done.len();
        let settled = self.write_down(done).await;
        self.in_hand.fetch_sub(count, Ordering::SeqCst);
        settled
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

/// The attempt's place in the trace of what the message tells. What can't be read is in none.
fn traced(consumer: &'static str, claimed: &Claimed) -> tracing::Span {
    let Claimed { event_id, attempts, message } = claimed;
    let Some(message) = message.as_ref().ok().filter(|each| each.traceparent.is_some()) else {
        return tracing::Span::none();
    };
    let subject = message.subject.0.code();
    let span = tracing::trace_span!(
        target: trace::TARGET, "deliver", otel.name = format!("{consumer}: {subject}"), otel.kind = "consumer",
        consumer, subject, %event_id, attempts, machine = message.fact.machine, entity_id = %message.fact.id,
    );
    trace::follow(&span, message.traceparent.as_deref());
    span
}

async fn attempt(subscription: Subscription, claimed: Claimed) -> Tried {
    let Claimed { event_id, attempts, message } = claimed;
    let tried = |outcome| Tried { event_id, attempts, outcome, word: None };
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
