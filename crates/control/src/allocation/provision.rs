//! Provision, in order of time: `begin` → the node prepares → `settle`, or `give_up` and the node cleans up.
//! Doors: the workflow `provision`, started by `provisioning.requested`; the bus when a message is exhausted.

use std::time::Duration;

use domain::ids::{AllocationId, EventId, NodeTaskId, OperationId};
use domain::machines::REASON;
use domain::machines::allocation::{Event, Status};
use domain::machines::{claim, node_task};
use jiff::Timestamp;
use lifecycle::{Outcome, Source, Value};
use serde::{Deserialize, Serialize};
use spine::workflow::{Happened, NewRun, Next, Run, Stepped};
use store::Tx;
use store::allocations::{self, Held};
use store::claims::{self, Live};
use store::lifecycle::{Actor, Report};
use store::node_tasks::{self, Task};
use uuid::Uuid;
use wire::node::{FailureReason, Provision, SlotRef, TaskOutcome, Work};

use super::cleanup;
use crate::ids::derived;
use crate::node::task::{self, AGENT_REVOKED, Order};
use crate::{Ctx, Error, run_state};

/// What the workflow is called.
pub const WORKFLOW: &str = "provision";

/// What is told when the deadline of the SKU has passed.
pub const TIMEOUT: &str = "timeout";
/// What is told when the deadline has passed and the node is silent.
pub const NODE_LOST: &str = "node_lost";

/// What a run waits for while it pauses because of a lease.
pub const LEASE_IN_THE_WAY: &str = "a lease to be given back";

/// What the workflow keeps between its steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    operation: Uuid,
    /// When the provision must be done.
    deadline: Timestamp,
    attempt: u32,
    at: At,
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "at", rename_all = "snake_case")]
enum At {
    /// Not begun.
    Start,
    /// The node prepares.
    Preparing { task: Uuid },
    /// A lease was in the way; it is tried again later.
    Pausing,
    /// It has failed, and the node cleans up.
    Cleaning { cleanup: cleanup::State },
}

/// The run that a request starts, named after it: however often it is started, it is one.
///
/// # Errors
/// Never; serde's signature.
pub(crate) fn run_of(
    id: AllocationId,
    request: EventId,
    operation: OperationId,
) -> Result<NewRun, Error> {
    let state = start_state(operation)?;
    let name = format!("provisioning-{request}");
    Ok(NewRun { id: name, workflow: WORKFLOW, entity_id: id.uuid(), state })
}

/// What a run is started with.
///
/// # Errors
/// Never for this type; serde's signature.
pub fn start_state(operation: OperationId) -> Result<serde_json::Value, Error> {
    run_state::write(&State {
        operation: operation.uuid(),
        deadline: Timestamp::UNIX_EPOCH,
        attempt: 1,
        at: At::Start,
    })
}

/// One step of the workflow: one short transaction.
///
/// # Errors
/// What is to be tried again.
pub async fn step(ctx: &Ctx, run: &Run, happened: &Happened) -> Result<Stepped, Error> {
    let state: State = run_state::read(run)?;
    let mut tx = ctx.store.begin_in(run.company).await?;
    trace::note("allocation_id", run.entity_id);
    let story = Story { ctx, run, id: AllocationId(run.entity_id), state };
    let next = match (&story.state.at, happened) {
        (At::Start, _) => story.begin(&mut tx).await?,
        (At::Preparing { task }, Happened::TaskFinished { task_id }) if task == task_id => {
            story.settle(&mut tx, *task_id).await?
        }
        (At::Preparing { task }, Happened::TimeOut) => {
            // The answer may be there, and only the word of it on its way: whoever holds the task now decides.
            let task = *task;
            task::expire(&mut tx, &run.id, NodeTaskId(task)).await?;
            story.settle(&mut tx, task).await?
        }
        (At::Pausing, Happened::TimeOut) => story.prepare(&mut tx).await?,
        (At::Cleaning { cleanup }, _) => {
            let cleanup = cleanup.clone();
            story.clean(&mut tx, cleanup, happened).await?
        }
        // The release that called it off cleans up.
        (At::Preparing { .. } | At::Pausing, Happened::Cancelled) => Next::Done,
        // An older task's end: nobody waits for it.
        (At::Preparing { .. } | At::Pausing, Happened::Started | Happened::TaskFinished { .. }) => {
            story.wait_on()?
        }
    };
    Ok(next.within(tx))
}

/// One run about one allocation.
struct Story<'a> {
    ctx: &'a Ctx,
    run: &'a Run,
    id: AllocationId,
    state: State,
}

impl Story<'_> {
    fn operation(&self) -> OperationId {
        OperationId(self.state.operation)
    }

    fn report(&self, event: Event, label: &str) -> Report<Event> {
        let actor = Actor::new(Source::Worker, self.run.id.as_str());
        Report::new(event, EventId(derived(&self.run.id, label)), actor).about(self.operation())
    }

    fn wait(&self, until: Timestamp, waits_for: &'static str) -> Result<Next, Error> {
        Ok(Next::Wait { state: run_state::write(&self.state)?, until, waits_for })
    }

    fn wait_on(&self) -> Result<Next, Error> {
        self.wait(self.state.deadline, "the node to finish")
    }

    /// The worker has the request.
    async fn begin(mut self, tx: &mut Tx) -> Result<Next, Error> {
        let report = self.report(Event::ProvisionStarted, "started");
        let outcome = reported(allocations::report(tx, self.id, &report).await?)?;
        let on_its_way = match &outcome {
            Outcome::Applied { .. } => true,
            Outcome::Duplicate(standing) => standing.status == Status::Provisioning,
            Outcome::Refused(_) => false,
        };
        if !on_its_way {
            return Ok(Next::Done);
        }
        let Some(held) = allocations::hold(tx, self.id).await? else {
            return Ok(Next::Done);
        };
        let seconds = u64::try_from(held.provision_timeout_seconds).unwrap_or(600);
        self.state.deadline = self.ctx.clock.after(Duration::from_secs(seconds));
        self.issue(tx, &held).await
    }

    /// Another attempt, after a lease was in the way.
    async fn prepare(mut self, tx: &mut Tx) -> Result<Next, Error> {
        if self.ctx.clock.now() >= self.state.deadline {
            return self.out_of_time(tx).await;
        }
        self.state.attempt += 1;
        match allocations::hold(tx, self.id).await? {
            Some(held) => self.issue(tx, &held).await,
            None => Ok(Next::Done),
        }
    }

    async fn issue(mut self, tx: &mut Tx, held: &Held) -> Result<Next, Error> {
        if held.operation != self.operation() || held.status != Status::Provisioning {
            return Ok(Next::Done);
        }
        // A run that took over from another calls off what that one had begun.
        for live in node_tasks::live_of(tx, self.id).await? {
            if live.run.as_deref() != Some(self.run.id.as_str()) {
                task::cancel(tx, &self.run.id, &live, "taken_over").await?;
            }
        }
        let claims = claims::lock_live(tx, self.id).await?;
        let Some(node) = claims.first().map(|claim| claim.node) else {
            return Ok(Next::Done);
        };
        let Some(image_sha256) = held.image_sha256.clone() else {
            return self.give_up(tx, FailureReason::ImageUnavailable.to_string()).await;
        };
        let provision = Provision {
            slots: slot_refs(&claims),
            image: held.image.clone(),
            image_sha256,
            ssh_keys: held.ssh_keys.clone(),
        };
        let work = if held.whole {
            Work::UserProvision(provision)
        } else {
            Work::SliceProvision(provision)
        };
        let order = Order {
            run: &self.run.id,
            label: format!("provision {}", self.state.attempt),
            node,
            allocation: self.id,
            operation: self.operation(),
            deadline: self.state.deadline,
        };
        let task = task::issue(tx, &order, &work).await?;
        self.state.at = At::Preparing { task: task.uuid() };
        self.wait_on()
    }

    /// The node has answered.
    async fn settle(mut self, tx: &mut Tx, task: Uuid) -> Result<Next, Error> {
        let task = task::load(tx, task).await?;
        match task.status {
            node_task::Status::Succeeded => self.succeed(tx, &task).await,
            node_task::Status::Failed => {
                let reason = task.reason.unwrap_or_else(|| FailureReason::DriverFailed.to_string());
                let in_the_way = reason == FailureReason::LeaseConflict.to_string();
                if in_the_way && self.state.attempt < self.ctx.policies().provision_attempts_max {
                    let pause = self.ctx.policies().retry_after(self.state.attempt);
                    self.state.at = At::Pausing;
                    return self.wait(self.ctx.clock.after(pause), LEASE_IN_THE_WAY);
                }
                self.give_up(tx, reason).await
            }
            node_task::Status::Expired => self.out_of_time(tx).await,
            // Its node has no agent any more: nobody else has called it off, and nobody else ends it.
            node_task::Status::Cancelled if task.reason.as_deref() == Some(AGENT_REVOKED) => {
                self.give_up(tx, AGENT_REVOKED.to_owned()).await
            }
            node_task::Status::Cancelled => Ok(Next::Done),
            node_task::Status::Queued | node_task::Status::Dispatched => self.wait_on(),
        }
    }

    async fn succeed(self, tx: &mut Tx, task: &Task) -> Result<Next, Error> {
        let mut report = self.report(Event::ProvisionSucceeded, "succeeded");
        if let Some(access) = access_of(task)? {
            report = allocations::keeping_access(report, access);
        }
        let outcome = reported(allocations::report(tx, self.id, &report).await?)?;
        if outcome.landed_on(Status::Active) {
            let mut claims = claims::lock_live(tx, self.id).await?;
            let actor = Actor::new(Source::Worker, self.run.id.as_str());
            let event = EventId(derived(&self.run.id, "activated"));
            let activated = Report::new(claim::Event::Activated, event, actor);
            claims::report_all(tx, &mut claims, &activated).await?;
        }
        // A success that came too late is cleaned up by the release that overtook it.
        Ok(Next::Done)
    }

    /// No answer within the deadline of the SKU.
    async fn out_of_time(self, tx: &mut Tx) -> Result<Next, Error> {
        let silent = claims::node_is_silent(tx, self.id).await?;
        let reason = if silent { NODE_LOST } else { TIMEOUT };
        self.give_up(tx, reason.to_owned()).await
    }

    async fn give_up(mut self, tx: &mut Tx, reason: String) -> Result<Next, Error> {
        let actor = Actor::new(Source::Worker, self.run.id.as_str());
        let ended = Ended { actor, operation: self.operation(), reason, label: &self.run.id };
        if !fail(tx, self.id, &ended).await? {
            return Ok(Next::Done);
        }
        // A step that was done and never saved has left a task that the state does not know of.
        for live in node_tasks::live_of(tx, self.id).await? {
            task::expire(tx, &self.run.id, live.id).await?;
        }
        let cleaning = self.cleaning();
        match cleaning.begin(self.ctx, tx).await? {
            Some((state, until)) => {
                self.state.at = At::Cleaning { cleanup: state };
                self.wait(until, "the node to clean up")
            }
            None => Ok(Next::Done),
        }
    }

    fn cleaning(&self) -> cleanup::Cleaning {
        cleanup::Cleaning {
            run: self.run.id.clone(),
            allocation: self.id,
            operation: self.operation(),
        }
    }

    /// The clean-up goes on until it is proven or given up.
    async fn clean(
        mut self,
        tx: &mut Tx,
        state: cleanup::State,
        happened: &Happened,
    ) -> Result<Next, Error> {
        let cleaning = self.cleaning();
        match cleaning.step(self.ctx, tx, state, happened).await? {
            cleanup::Next::Wait(state, until) => {
                let waits_for = state.waits_for();
                self.state.at = At::Cleaning { cleanup: state };
                self.wait(until, waits_for)
            }
            cleanup::Next::Proven(_) => {
                cleaning.free(tx).await?;
                Ok(Next::Done)
            }
            cleanup::Next::GivenUp { reason, .. } => {
                cleaning.get_stuck(tx, &reason).await?;
                Ok(Next::Done)
            }
        }
    }
}

/// How a provision ended badly.
pub(super) struct Ended<'a> {
    pub(super) actor: Actor,
    pub(super) operation: OperationId,
    pub(super) reason: String,
    /// What makes the identities of its facts.
    pub(super) label: &'a str,
}

/// The provision has failed; its claims are being cleaned from now on. Answers whether it has: also when it had before, because
/// a step that is done again must go on to the clean-up, or nobody waits for it.
pub(super) async fn fail(tx: &mut Tx, id: AllocationId, ended: &Ended<'_>) -> Result<bool, Error> {
    let event = EventId(derived(ended.label, "failed"));
    let report = Report::new(Event::ProvisionFailed, event, ended.actor.clone())
        .about(ended.operation)
        .with(REASON, Value::Text(ended.reason.clone().into()));
    let outcome = reported(allocations::report(tx, id, &report).await?)?;
    Ok(match outcome {
        Outcome::Applied { to, .. } => to == Status::Failed,
        Outcome::Duplicate(standing) => standing.status == Status::Failed,
        Outcome::Refused(_) => false,
    })
}

/// A request that no worker could take: it fails, and as nothing was handed to a node its capacity is free at once.
/// Door: the bus, when `provisioning.requested` is exhausted.
///
/// # Errors
/// When the database fails.
pub async fn exhausted(ctx: &Ctx, id: AllocationId, operation: OperationId) -> Result<(), Error> {
    let mut tx = ctx.store.begin().await?;
    if node_tasks::touched_a_node(&mut tx, id).await? {
        // Somebody has taken it up after all: it ends as that run says.
        return Ok(tx.rollback().await?);
    }
    let label = format!("exhausted-{operation}");
    let actor = Actor::new(Source::Worker, "bus");
    let reason = "no_worker".to_owned();
    let ended = Ended { actor, operation, reason, label: &label };
    if fail(&mut tx, id, &ended).await? {
        let cleaning = cleanup::Cleaning { run: label.clone(), allocation: id, operation };
        cleaning.begin(ctx, &mut tx).await?;
    }
    Ok(tx.commit().await?)
}

/// A lost race is a fault of the transaction; everything else is an answer.
pub(crate) fn reported(outcome: Outcome<Status>) -> Result<Outcome<Status>, Error> {
    if outcome.is_retryable() { Err(store::Error::Conflict.into()) } else { Ok(outcome) }
}

/// The slots of claims, as the node knows them.
pub(super) fn slot_refs(claims: &[Live]) -> Vec<SlotRef> {
    let slots = claims.iter().filter_map(|claim| claim.slot);
    slots.map(|(id, index, numa)| SlotRef { id: id.uuid(), index, numa }).collect()
}

fn access_of(task: &Task) -> Result<Option<serde_json::Value>, Error> {
    match task::outcome_of(task)? {
        Some(TaskOutcome::Provisioned { access }) => Ok(Some(
            serde_json::to_value(access).map_err(|error| Error::Broken(error.to_string()))?,
        )),
        Some(
            TaskOutcome::Restarted { .. }
            | TaskOutcome::Cleaned { .. }
            | TaskOutcome::Failed { .. },
        )
        | None => Ok(None),
    }
}
