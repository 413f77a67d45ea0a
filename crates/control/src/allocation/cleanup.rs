//! The node cleans up: attempt after attempt, until there is a complete proof or the policy's attempts are used up. Shared
//! by the release and by a provision that failed, because a slot is freed on proof alone.

use std::time::Duration;

use domain::ids::{AllocationId, EventId, NodeTaskId, OperationId};
use domain::machines::REASON;
use domain::machines::claim::{Event, Status as Stands};
use domain::machines::node_task::Status;
use jiff::Timestamp;
use lifecycle::{Source, Value};
use serde::{Deserialize, Serialize};
use spine::workflow::Happened;
use store::Tx;
use store::claims::{self, Live};
use store::lifecycle::{Actor, Report};
use store::node_tasks::{self, Task};
use uuid::Uuid;
use wire::node::{Cleanup, CleanupProof, FailureReason, TaskOutcome, Work};

use super::provision::{NODE_LOST, TIMEOUT, slot_refs};
use crate::ids::derived;
use crate::node::task::{self, AGENT_REVOKED, Order};
use crate::{Ctx, Error};

/// How much longer than its attempt a task may live: an answer that is on its way is worth more than a new attempt.
const GRACE_SECONDS: u64 = 900;

/// What a run waits for while it pauses between two attempts.
pub const NEXT_ATTEMPT: &str = "the next attempt";

/// What is kept between two steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    attempt: u32,
    /// The task of this attempt; none while it pauses.
    task: Option<Uuid>,
    /// When this attempt, or the pause, is over.
    until: Timestamp,
}

impl State {
    /// What is waited for, in words.
    pub fn waits_for(&self) -> &'static str {
        if self.task.is_some() { "the node to clean up" } else { NEXT_ATTEMPT }
    }

    /// The task of this attempt; none while it pauses.
    pub fn task(&self) -> Option<Uuid> {
        self.task
    }
}

/// What a step comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait for the node, or for the next attempt.
    Wait(State, Timestamp),
    /// Nothing was left behind.
    Proven(Option<CleanupProof>),
    /// The attempts are used up.
    GivenUp {
        /// Why the last one failed.
        reason: String,
        /// A task that may still bring the proof.
        open: Option<Uuid>,
    },
}

/// The clean-up of one operation of an allocation.
#[derive(Clone, Debug)]
pub struct Cleaning {
    /// The workflow that waits for it.
    pub run: String,
    /// The allocation.
    pub allocation: AllocationId,
    /// The operation whose clean-up it is.
    pub operation: OperationId,
}

impl Cleaning {
    fn report(&self, event: Event, label: &str) -> Report<Event> {
        let actor = Actor::new(Source::Worker, self.run.as_str());
        Report::new(event, EventId(derived(&self.run, label)), actor).about(self.operation)
    }

    /// What it holds, locked, but for what an operator has set aside: that is cleared by hand.
    async fn in_hand(&self, tx: &mut Tx) -> Result<Vec<Live>, Error> {
        let live = claims::lock_live(tx, self.allocation).await?;
        Ok(live.into_iter().filter(|claim| claim.status != Stands::Quarantined).collect())
    }

    /// The claims are being cleaned from now on, and the node is told. `None` when nothing was ever handed to it: then
    /// everything is free already. The allocation is leaving, and locked.
    ///
    /// # Errors
    /// What is to be tried again.
    pub async fn begin(&self, ctx: &Ctx, tx: &mut Tx) -> Result<Option<(State, Timestamp)>, Error> {
        let mut claims = self.in_hand(tx).await?;
        claims::report_all(tx, &mut claims, &self.report(Event::CleaningBegan, "cleaning")).await?;
        if !node_tasks::touched_a_node(tx, self.allocation).await? {
            self.free(tx).await?;
            return Ok(None);
        }
        let state = self.attempt(ctx, tx, &claims, 1).await?;
        let until = state.until;
        Ok(Some((state, until)))
    }

    async fn attempt(
        &self,
        ctx: &Ctx,
        tx: &mut Tx,
        claims: &[Live],
        attempt: u32,
    ) -> Result<State, Error> {
        let seconds = u64::from(ctx.policies().release_attempt_seconds);
        let until = ctx.clock.after(Duration::from_secs(seconds));
        let Some(first) = claims.first() else {
            return Ok(State { attempt, task: None, until });
        };
        let slots = slot_refs(claims);
        let whole = slots.is_empty();
        let cleanup = Cleanup { slots };
        let work = if whole { Work::UserDeprovision(cleanup) } else { Work::SliceRelease(cleanup) };
        let order = Order {
            run: &self.run,
            label: format!("clean up {attempt}"),
            node: first.node,
            allocation: self.allocation,
            operation: self.operation,
            deadline: ctx.clock.after(Duration::from_secs(seconds + GRACE_SECONDS)),
        };
        let task = task::issue(tx, &order, &work).await?;
        Ok(State { attempt, task: Some(task.uuid()), until })
    }

    /// Something happened.
    ///
    /// # Errors
    /// What is to be tried again.
    pub async fn step(
        &self,
        ctx: &Ctx,
        tx: &mut Tx,
        state: State,
        happened: &Happened,
    ) -> Result<Next, Error> {
        match (state.task, happened) {
            (Some(task), Happened::TaskFinished { task_id }) if task == *task_id => {
                let task = task::load(tx, task).await?;
                self.answered(ctx, state, &task)
            }
            (Some(task), Happened::TimeOut) => self.unanswered(ctx, tx, state, task).await,
            (None, Happened::TimeOut) => {
                let claims = self.in_hand(tx).await?;
                let state = self.attempt(ctx, tx, &claims, state.attempt + 1).await?;
                let until = state.until;
                Ok(Next::Wait(state, until))
            }
            (_, Happened::Started | Happened::TaskFinished { .. } | Happened::Cancelled) => {
                let until = state.until;
                Ok(Next::Wait(state, until))
            }
        }
    }

    /// The node has answered.
    fn answered(&self, ctx: &Ctx, state: State, task: &Task) -> Result<Next, Error> {
        let reason = match task.status {
            Status::Succeeded if task.cleanup_complete == Some(true) => {
                return Ok(Next::Proven(proof_of(task)?));
            }
            Status::Succeeded => FailureReason::CleanupIncomplete.to_string(),
            Status::Failed => {
                task.reason.clone().unwrap_or_else(|| FailureReason::DriverFailed.to_string())
            }
            Status::Cancelled if task.reason.as_deref() == Some(AGENT_REVOKED) => {
                AGENT_REVOKED.to_owned()
            }
            Status::Expired | Status::Cancelled => TIMEOUT.to_owned(),
            Status::Queued | Status::Dispatched => {
                let until = state.until;
                return Ok(Next::Wait(state, until));
            }
        };
        if state.attempt >= ctx.policies().release_attempts_max {
            return Ok(Next::GivenUp { reason, open: None });
        }
        let until = ctx.clock.after(ctx.policies().retry_after(state.attempt));
        Ok(Next::Wait(State { attempt: state.attempt, task: None, until }, until))
    }

    /// The attempt took too long. The last task is left to itself: its proof still counts.
    async fn unanswered(
        &self,
        ctx: &Ctx,
        tx: &mut Tx,
        state: State,
        task: Uuid,
    ) -> Result<Next, Error> {
        if state.attempt >= ctx.policies().release_attempts_max {
            let silent = claims::node_is_silent(tx, self.allocation).await?;
            let reason = if silent { NODE_LOST } else { TIMEOUT }.to_owned();
            return Ok(Next::GivenUp { reason, open: Some(task) });
        }
        task::expire(tx, &self.run, NodeTaskId(task)).await?;
        let claims = self.in_hand(tx).await?;
        let state = self.attempt(ctx, tx, &claims, state.attempt + 1).await?;
        let until = state.until;
        Ok(Next::Wait(state, until))
    }

    /// The proof is there: what was held is anybody's. Claims that were given up are cleaned first, in the same breath.
    ///
    /// # Errors
    /// What is to be tried again.
    pub async fn free(&self, tx: &mut Tx) -> Result<(), Error> {
        let mut claims = self.in_hand(tx).await?;
        let begun = |claim: &Live| claim.status == Stands::Cleaning;
        if !claims.iter().all(begun) {
            let proven = self.report(Event::CleaningBegan, "proven");
            claims::report_all(tx, &mut claims, &proven).await?;
        }
        claims::report_all(tx, &mut claims, &self.report(Event::Freeing, "freed")).await?;
        Ok(())
    }

    /// An operator is asked; until then the capacity stays assigned.
    ///
    /// # Errors
    /// What is to be tried again.
    pub async fn get_stuck(&self, tx: &mut Tx, reason: &str) -> Result<(), Error> {
        let mut claims = self.in_hand(tx).await?;
        let report = self
            .report(Event::GotStuck, "stuck")
            .with(REASON, Value::Text(reason.to_owned().into()));
        claims::report_all(tx, &mut claims, &report).await?;
        Ok(())
    }

    /// [`get_stuck`](Cleaning::get_stuck) for claims that nobody has begun to clean.
    ///
    /// # Errors
    /// What is to be tried again.
    pub async fn begin_stuck(&self, tx: &mut Tx, reason: &str) -> Result<(), Error> {
        let mut claims = self.in_hand(tx).await?;
        claims::report_all(tx, &mut claims, &self.report(Event::CleaningBegan, "cleaning")).await?;
        self.get_stuck(tx, reason).await
    }
}

pub(super) fn proof_of(task: &Task) -> Result<Option<CleanupProof>, Error> {
    match task::outcome_of(task)? {
        Some(TaskOutcome::Cleaned { proof }) => Ok(Some(proof)),
        Some(
            TaskOutcome::Provisioned { .. }
            | TaskOutcome::Restarted { .. }
            | TaskOutcome::Failed { .. },
        )
        | None => Ok(None),
    }
}
