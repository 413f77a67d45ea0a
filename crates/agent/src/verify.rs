//! Whether a task may be done at all. The order is fixed: nothing of a task is believed before its signature holds, and
//! nothing of it is ever logged but its ids.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use lifecycle::Code as _;
use uuid::Uuid;
use wire::node::{
    Envelope, FailureReason, PROTOCOL, PROTOCOL_OLDEST, SignedTask, TaskKind, Work, is_understood,
};
use wire::seal::{Purpose, VerifyingKey};

/// How far the node's clock and the control plane's may be apart.
pub const LEEWAY: Duration = Duration::from_secs(60);

/// No order is longer than this: the journal keeps each of them whole.
pub const ENVELOPE_BYTES_MAX: usize = 256 << 10;

/// A task that is what it says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The task.
    pub task: Uuid,
    /// Its dispatch.
    pub dispatch: i64,
    /// For which allocation.
    pub allocation: Uuid,
    /// For which of its operations.
    pub operation: Uuid,
    /// Older work must not begin after newer.
    pub fence: i64,
    /// What to do.
    pub work: Work,
    /// After this it must not be begun.
    pub expires_at: Timestamp,
    /// The text that was signed.
    pub envelope: String,
    /// Where its dispatch stands in its trace. Nobody has signed that, and nothing is decided by it.
    pub traceparent: Option<String>,
}

impl Accepted {
    /// What an envelope asks for, once it is believed.
    ///
    /// # Errors
    /// A [`Refusal`] when it is no envelope, or asks for something unknown.
    pub fn read(text: &str) -> Result<Accepted, Refusal> {
        Accepted::of(parse(text)?, text)
    }

    fn of(envelope: Envelope, text: &str) -> Result<Accepted, Refusal> {
        let kind = TaskKind::parse(&envelope.kind).ok_or_else(|| {
            Refusal::new(
                FailureReason::UnknownKind,
                format!("this agent knows no kind `{}`", crate::sentence(&envelope.kind)),
            )
        })?;
        // Without serde's words: they might quote a parameter.
        let work = Work::read(kind, envelope.params).map_err(|_| {
            let message = format!("the parameters are not exactly those of `{kind}`");
            Refusal::new(FailureReason::Malformed, message)
        })?;
        Ok(Accepted {
            task: envelope.task_id,
            dispatch: envelope.dispatch,
            allocation: envelope.allocation_id,
            operation: envelope.operation_id,
            fence: envelope.fence,
            work,
            expires_at: envelope.expires_at,
            envelope: text.to_owned(),
            traceparent: None,
        })
    }

    /// Whether it may still be begun.
    ///
    /// # Errors
    /// The [`Refusal`] when it is too late.
    pub fn in_time(&self, now: Timestamp) -> Result<(), Refusal> {
        before_end(self.expires_at, now)
    }
}

/// Why a task is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// In a word.
    pub reason: FailureReason,
    /// In a sentence.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(reason: FailureReason, message: impl Into<String>) -> Refusal {
        Refusal { reason, message: message.into() }
    }
}

/// What one node believes.
#[derive(Debug)]
pub struct Verifier {
    node: Uuid,
    keys: RwLock<Vec<VerifyingKey>>,
}

impl Verifier {
    /// For one node, with the keys it pins.
    pub fn new(node: Uuid, keys: Vec<VerifyingKey>) -> Verifier {
        Verifier { node, keys: RwLock::new(keys) }
    }

    /// Pins other keys from now on.
    pub fn pin(&self, keys: Vec<VerifyingKey>) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// The task, or why not.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn verify(&self, signed: &SignedTask, now: Timestamp) -> Result<Accepted, Refusal> {
        let bytes = signed.envelope.len();
        if bytes > ENVELOPE_BYTES_MAX {
            let message = format!("it has {bytes} bytes, and may have {ENVELOPE_BYTES_MAX}");
            return Err(Refusal::new(FailureReason::Malformed, message));
        }
        self.signature(signed)?;
        let envelope = parse(&signed.envelope)?;
        if (envelope.task_id, envelope.dispatch) != (signed.task_id, signed.dispatch) {
            let message = "what is signed is about another task or dispatch than the message says";
            return Err(Refusal::new(FailureReason::Malformed, message));
        }
        if envelope.node_id != self.node {
            let message = format!("it is for node {}, this is {}", envelope.node_id, self.node);
            return Err(Refusal::new(FailureReason::OtherNode, message));
        }
        if now.saturating_add(LEEWAY).unwrap_or(Timestamp::MAX) < envelope.not_before {
            let message = format!("it begins at {}, and now is {now}", envelope.not_before);
            return Err(Refusal::new(FailureReason::TaskExpired, message));
        }
        before_end(envelope.expires_at, now)?;
        let traceparent = signed.traceparent.clone();
        Ok(Accepted { traceparent, ..Accepted::of(envelope, &signed.envelope)? })
    }

    fn signature(&self, signed: &SignedTask) -> Result<(), Refusal> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let text = signed.envelope.as_bytes();
        if keys.iter().any(|key| key.verifies(Purpose::Task, text, &signed.signature)) {
            return Ok(());
        }
        let message = "none of the task keys this node knows has signed it";
        Err(Refusal::new(FailureReason::BadSignature, message))
    }
}

fn parse(text: &str) -> Result<Envelope, Refusal> {
    let malformed = |message: String| Refusal::new(FailureReason::Malformed, message);
    // Line and column only: serde's sentence might quote a parameter.
    let envelope: Envelope = serde_json::from_str(text).map_err(|error| {
        malformed(format!("the envelope is not as it must be, at column {}", error.column()))
    })?;
    if !is_understood(envelope.v) {
        let message =
            format!("it speaks version {}, this agent {PROTOCOL_OLDEST} to {PROTOCOL}", envelope.v);
        return Err(malformed(message));
    }
    Ok(envelope)
}

fn before_end(expires_at: Timestamp, now: Timestamp) -> Result<(), Refusal> {
    if expires_at.saturating_add(LEEWAY).unwrap_or(Timestamp::MAX) < now {
        let message = format!("it ended at {expires_at}, and now is {now}");
        return Err(Refusal::new(FailureReason::TaskExpired, message));
    }
    Ok(())
}
