//! What callers say to the writer: what happened, who says so, and why.

use domain::ids::{EventId, OperationId};
use domain::machines::REASON;
use jiff::Timestamp;
use lifecycle::{Column, Facts, OPERATION_ID, Source, Value};
use uuid::Uuid;

/// Who reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// In which role.
    pub source: Source,
    /// Which one: a user, a node, a workflow. Never a secret: it is shown.
    pub name: String,
}

impl Actor {
    /// An actor of that role and name.
    pub fn new(source: Source, name: impl Into<String>) -> Self {
        Self { source, name: name.into() }
    }
}

/// A report: what happened. A caller never chooses a status.
#[derive(Clone, Debug)]
pub struct Report<E> {
    /// What happened.
    pub event: E,
    /// The identity of this fact: reported twice, it is one report.
    pub event_id: EventId,
    /// Who says so.
    pub actor: Actor,
    /// What led to it: a request, another event.
    pub cause: Option<String>,
    /// What comes with it.
    pub payload: Facts,
    /// Who has heard of it when it is true.
    pub heard: Option<Heard>,
    /// What is kept in the row if it moves it, column by column: nothing that a rule looks at.
    pub(crate) keeps: Vec<(&'static str, Kept)>,
}

/// A value that is kept with a move.
#[derive(Clone, Debug)]
pub(crate) enum Kept {
    Text(String),
    Json(serde_json::Value),
    Time(Timestamp),
}

impl Kept {
    /// As what it is bound.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Kept::Text(_) => "text",
            Kept::Json(_) => "jsonb",
            Kept::Time(_) => "timestamptz",
        }
    }
}

/// A consumer that need not be told of a fact: what it would do is done in the transaction that makes the fact true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heard {
    /// Which.
    pub by: &'static str,
    /// Whether nobody else hears it: then nobody has to be told at all.
    pub alone: bool,
}

impl<E> Report<E> {
    /// A report of `event`.
    pub fn new(event: E, event_id: EventId, actor: Actor) -> Self {
        Self {
            event,
            event_id,
            actor,
            cause: None,
            payload: Facts::NONE,
            heard: None,
            keeps: Vec::new(),
        }
    }

    /// The same, about this operation: the one it begins, or the one whose result it brings.
    #[must_use]
    pub fn about(self, operation: OperationId) -> Self {
        self.with(OPERATION_ID, Value::Id(operation.uuid().as_u128()))
    }

    /// The same with one more field.
    #[must_use]
    pub fn with(mut self, field: Column, value: Value) -> Self {
        self.payload.set(field, value);
        self
    }

    /// The same, with what led to it.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// The same, of which a consumer has heard when it is true.
    #[must_use]
    pub fn heard(mut self, heard: Heard) -> Self {
        self.heard = Some(heard);
        self
    }

    /// The same, that keeps a value in the row it moves.
    pub(crate) fn keeping(mut self, column: &'static str, value: Kept) -> Self {
        self.keeps.push((column, value));
        self
    }

    pub(crate) fn operation(&self) -> Option<Uuid> {
        if let Value::Id(id) = self.payload.get(OPERATION_ID) {
            Some(Uuid::from_u128(*id))
        } else {
            None
        }
    }

    /// Why, as a stable word: the log keeps it with the step.
    pub(crate) fn reason(&self) -> Option<&str> {
        if let Value::Text(text) = self.payload.get(REASON) { Some(text) } else { None }
    }
}

/// The creation of a row.
#[derive(Clone, Debug)]
pub struct Birth {
    /// The identity of this fact.
    pub event_id: EventId,
    /// Who created it.
    pub actor: Actor,
    /// What led to it.
    pub cause: Option<String>,
    /// The operation that its creation begins.
    pub operation: Option<OperationId>,
}

impl Birth {
    /// A creation by `actor`.
    pub fn new(event_id: EventId, actor: Actor) -> Self {
        Self { event_id, actor, cause: None, operation: None }
    }

    /// The same, beginning this operation.
    #[must_use]
    pub fn beginning(mut self, operation: OperationId) -> Self {
        self.operation = Some(operation);
        self
    }
}
