//! The bus: durable named consumers, acknowledgement, redelivery with back-off, and a dead-letter path that ends in a
//! state. One trait, several engines; attempts are counted in Postgres whatever the engine.

pub mod postgres;

use std::sync::Arc;

use futures::future::BoxFuture;
use wire::bus::{Message, Subject};

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
}
