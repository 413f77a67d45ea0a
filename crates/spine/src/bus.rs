//! The bus: durable named consumers, acknowledgement, redelivery with back-off, and a dead-letter path that ends in a
//! state. Deliveries, their order and their attempts are in Postgres, whatever carries the word of them: the wake-ups of
//! Postgres itself, or a [`Broker`].

mod consumer;
mod line;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use store::outbox::Moved;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::bus::{Message, Subject};

pub use consumer::{Consumer, LEASE, SWEEP};

use crate::Error;

/// What handles a message. It is idempotent: the effect and the record that it was seen are one transaction, or the effect
/// is one that can be had twice.
pub type Handle = Arc<dyn Fn(Message) -> BoxFuture<'static, Result<(), HandleError>> + Send + Sync>;

/// A message that could not be handled now. Only faults and lost races are: a refusal is an answer, and handled.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct HandleError {
    /// Why, for operators.
    pub reason: String,
}

/// A consumer: one row of the table of subscriptions.
#[derive(Clone)]
pub struct Subscription {
    /// What it is called; stored with every delivery, so it never changes.
    pub consumer: &'static str,
    /// What it hears.
    pub subjects: &'static [Subject],
    /// What it does.
    pub handle: Handle,
    /// What it does with a message that it has tried `attempts_max` times: makes it a state. Without one, or if that fails
    /// too, the message is a dead letter.
    pub exhausted: Option<Handle>,
    /// How often a message is tried.
    pub attempts_max: i32,
    /// How many are in hand at once. Each may have a connection: those that wait for each other in the database anyway had better wait
    /// here, where they keep nobody from theirs.
    pub at_once: usize,
}

/// Carries word of messages from the relay to the consumers of all processes, and shares it out among those of one name. What it
/// loses, repeats or brings late does no harm: the deliveries are in Postgres, and a sweep finds those that nobody was told of.
pub trait Broker: Send + Sync + 'static {
    /// Tells what has left the outbox. It does not wait: what can't be told now is not told.
    fn announce(&self, moved: Vec<Moved>);

    /// Word for a consumer, until the connection breaks.
    fn listen(
        &self,
        consumer: &'static str,
        subjects: &'static [Subject],
    ) -> BoxFuture<'_, Result<BoxStream<'static, Word>, Error>>;

    /// What it does in the background, until stopped.
    fn run(&self, stop: CancellationToken) -> BoxFuture<'static, ()>;
}

/// Word of one message.
pub struct Word {
    /// The message's identity.
    pub event_id: Uuid,
    /// Tells the broker what became of it.
    pub settle: Settle,
}

/// See [`Word::settle`].
pub type Settle = Box<dyn FnOnce(Settled) -> BoxFuture<'static, ()> + Send>;

/// What became of a message that a broker has told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Nobody need be told of it any more.
    Over,
    /// Somebody is to be told again after this time.
    Again(Duration),
}
