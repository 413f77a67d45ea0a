//! Workflows: a typed state and one function. Given the state and what just happened, a step does one short idempotent
//! transaction and says what to wait for. Nothing is held while it waits. One definition, several engines.

pub mod embedded;

use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{Company, Tx};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{Error, Wake};

/// What just happened to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "happened", rename_all = "snake_case")]
pub enum Happened {
    /// It was started.
    Started,
    /// A task that it waited for has ended.
    TaskFinished {
        /// Which.
        task_id: Uuid,
    },
    /// What it does is not wanted any more.
    Cancelled,
    /// The time it wanted to wait is over.
    TimeOut,
}

impl Happened {
    /// What happened, in a word.
    pub const fn word(&self) -> &'static str {
        match self {
            Happened::Started => "started",
            Happened::TaskFinished { .. } => "task_finished",
            Happened::Cancelled => "cancelled",
            Happened::TimeOut => "time_out",
        }
    }
}

/// One run, as a step sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Its identity: also what makes the identities of the step's facts, so that a step done twice is one step.
    pub id: String,
    /// The row it is about.
    pub entity_id: Uuid,
    /// What the last step left; at the start what the starter gave.
    pub state: Value,
    /// With whom the step may share its transaction.
    pub company: Company,
}

/// What a step says.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Wait for a word, at most until then.
    Wait {
        /// What the next step will see.
        state: Value,
        /// When the waiting is over.
        until: Timestamp,
        /// What it waits for, in a few words for people.
        waits_for: &'static str,
    },
    /// It is over.
    Done,
}

impl Next {
    /// The same, of a step that has done its work in that transaction and not committed it.
    pub fn within(self, work: Tx) -> Stepped {
        Stepped { next: self, work: Some(work) }
    }
}

/// A step that was done: what it says, and the transaction it was done in. The engine notes in that transaction that it was done, and
/// commits both. So whoever has lost the run to somebody else meanwhile has done nothing.
#[derive(Debug)]
#[must_use = "a step that is not written down is done again"]
pub struct Stepped {
    /// What it says.
    pub next: Next,
    /// What it did; nothing when it had nothing to write, or wrote in transactions of its own, which are then had again when it is
    /// done again.
    pub work: Option<Tx>,
}

impl From<Next> for Stepped {
    fn from(next: Next) -> Stepped {
        Stepped { next, work: None }
    }
}

/// A step that could not be done, and is to be tried again.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct StepError {
    /// Why, for operators.
    pub reason: String,
    /// Whether others of its transaction were why: then nothing was done, and it is done again at once, alone.
    pub in_company: bool,
}

impl StepError {
    /// A step that could not be done because of that.
    pub fn new(reason: impl Into<String>) -> StepError {
        StepError { reason: reason.into(), in_company: false }
    }
}

/// The function of a workflow.
pub type Step =
    Arc<dyn Fn(Run, Happened) -> BoxFuture<'static, Result<Stepped, StepError>> + Send + Sync>;

/// A workflow: one row of the table of workflows.
#[derive(Clone)]
pub struct Definition {
    /// What it is called; stored with every run, so it never changes.
    pub name: &'static str,
    /// What it does.
    pub step: Step,
}

/// A run to be.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// Its identity: a second start of the same is recognised and harmless, also after the run has ended.
    pub id: String,
    /// Which workflow.
    pub workflow: &'static str,
    /// The row it is about.
    pub entity_id: Uuid,
    /// What it starts with.
    pub state: Value,
}

impl NewRun {
    /// The same, as the store takes it.
    pub fn stored(&self) -> store::workflow_runs::NewRun<'_> {
        store::workflow_runs::NewRun {
            id: &self.id,
            workflow: self.workflow,
            entity_id: self.entity_id,
            state: &self.state,
        }
    }
}

/// Starts runs and tells them what happened. Both are written down in Postgres, whatever brings them to those who step them.
pub trait Workflows: Send + Sync + 'static {
    /// Starts a run; answers whether it is new.
    fn start(&self, run: NewRun) -> BoxFuture<'_, Result<bool, Error>>;

    /// Tells a run what happened; answers whether there is such a run and it is not over.
    fn tell(&self, id: &str, happened: Happened) -> BoxFuture<'_, Result<bool, Error>>;

    /// [`Workflows::start`], if the caller's transaction is committed.
    fn start_in<'a>(
        &'a self,
        tx: &'a mut Tx,
        run: &'a NewRun,
    ) -> BoxFuture<'a, Result<bool, Error>>;

    /// [`Workflows::tell`], if the caller's transaction is committed.
    fn tell_in<'a>(
        &'a self,
        tx: &'a mut Tx,
        id: &'a str,
        happened: &'a Happened,
    ) -> BoxFuture<'a, Result<bool, Error>>;
}

/// What brings runs to those who step them: the engine in Postgres itself does without. Runs rest in Postgres, so what it loses
/// or repeats does no harm: whoever asks for a run is told whether it is due, and a sweep tells it of those that are.
pub trait Driver: Send + Sync + 'static {
    /// Steps runs as they are due, until stopped.
    fn run(
        &self,
        runs: embedded::Embedded,
        wake: Wake,
        stop: CancellationToken,
    ) -> BoxFuture<'static, ()>;
}
