//! Restart, in order of time: `request` → `begin` → the node restarts what the allocation has → `settle`: back in working
//! order, or failed with a reason. What the allocation holds is not touched. Doors: POST …/restart, the workflow `restart`,
//! started by `provisioning.restart.requested`; the bus when that message is exhausted.

use domain::ids::{AllocationId, EventId, NodeTaskId, OperationId};
use domain::machines::REASON;
use domain::machines::allocation::{Event, Status};
use domain::machines::node_task;
use domain::policy::{Permission, ProjectRole};
use jiff::Timestamp;
use lifecycle::{Code as _, Outcome, Source, Value};
use serde::{Deserialize, Serialize};
use spine::workflow::{Happened, NewRun, Next, Run, Stepped};
use store::allocations::{self, Held};
use store::lifecycle::{Actor, Report};
use store::node_tasks::{self, Task};
use store::{Tx, claims, workflow_runs};
use uuid::Uuid;
use wire::http::allocations::Allocation;
use wire::node::{FailureReason, Restart, TaskOutcome, Work};

use super::provision::{reported, slot_refs};
use super::reason::OurReason;
use super::view::{self, Viewer};
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::ids::{derived, new_event};
use crate::node::task::{self, AGENT_REVOKED, Order};
use crate::{Caller, Ctx, Error, run_state};

/// What the workflow is called.
pub const WORKFLOW: &str = "restart";

/// Every reason that a restart can fail for.
pub const REASONS: [OurReason; 4] = [
    OurReason::DispatchFailed,
    OurReason::NodeDidNotReturn,
    OurReason::HealthNotRecovered,
    OurReason::AgentRevoked,
];

/// Whether somebody in this role may restart an allocation as theirs: its owner, or an admin of its project.
pub(super) fn is_theirs(role: Option<ProjectRole>, owner: bool) -> bool {
    let allowed = |role| Permission::AllocationRestart.allows(role);
    role.is_some_and(|role| allowed(role) && (owner || role == ProjectRole::Admin))
}

/// Somebody wants their machine restarted. Asked again while it restarts, it is the same restart; after it has failed, a new
/// one.
///
/// # Errors
/// [`Error::NotFound`] when they have nothing to do with it, [`Error::Forbidden`] when it is another member's,
/// [`Error::Conflict`] when there is nothing to restart.
pub async fn request(
    ctx: &Ctx,
    caller: &Caller,
    id: AllocationId,
    key: Option<&Key>,
) -> Result<Answer<Allocation>, Error> {
    let (actor, viewer) = entitled(ctx, caller, id).await?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let deed = Deed::new(caller, Action::AllocationRestart, "allocation", id);
    let deed = if actor.source == Source::Operator { deed.as_operator() } else { deed };
    let report = Report::new(Event::RestartRequested, new_event(&tx), actor)
        .about(OperationId(tx.new_id()))
        .because(caller.cause());
    match reported(allocations::report(&mut tx, id, &report).await?)? {
        Outcome::Applied { .. } | Outcome::Duplicate(_) => {
            let shown = view::in_transaction(&mut tx, id, viewer).await?;
            let deed = deed.in_project(shown.project_id);
            finish(tx, &deed, key, 202, shown).await
        }
        Outcome::Refused(refusal) => {
            // The refusal stays on record; a key without an answer is free again.
            deed.write(&mut tx, "refused").await?;
            tx.commit().await?;
            match refusal.status {
                None => Err(Error::NotFound("allocation")),
                Some(status) => Err(Error::Conflict(not_now(status))),
            }
        }
    }
}

/// As whom somebody may restart an allocation. An operator is asked for as what they are only where they are nothing else.
async fn entitled(ctx: &Ctx, caller: &Caller, id: AllocationId) -> Result<(Actor, Viewer), Error> {
    caller.needs(Permission::AllocationRestart)?;
    let relation = ctx.desks.relation(id, caller.user_id).await?;
    let role = relation.and_then(|relation| relation.role);
    let viewer = Viewer::of(caller, role);
    if is_theirs(role, relation.is_some_and(|relation| relation.owner)) {
        return Ok((caller.actor(), viewer));
    }
    if caller.needs(Permission::AllocationForceRelease).is_ok() {
        return Ok((caller.operator_actor(), viewer));
    }
    match role {
        None => Err(Error::NotFound("allocation")),
        Some(_) => Err(Error::Forbidden(
            "only its owner, an admin of the project or an operator may restart it".to_owned(),
        )),
    }
}

/// What to say to who can't have a restart in this status.
fn not_now(status: Status) -> String {
    match status {
        Status::Requested | Status::Provisioning => format!(
            "it is {status}: it can be restarted once it is active; release it if you need it no longer"
        ),
        Status::Releasing => {
            format!("it is {status}: what was given back can't be restarted; ask for another one")
        }
        Status::ReleaseFailed => format!(
            "it is {status}: what was given back can't be restarted; release it again, and ask for another one"
        ),
        Status::Released | Status::Failed => {
            format!("it is {status}: there is nothing to restart; ask for another one")
        }
        Status::Active | Status::Restarting | Status::RestartFailed => {
            format!("it is {status}: ask again")
        }
    }
}

/// What the workflow keeps between its steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    operation: Uuid,
    /// When it must be back.
    deadline: Timestamp,
    /// The task; none before it has begun.
    task: Option<Uuid>,
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
    let name = format!("restart-{request}");
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
        task: None,
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
    // A release that overtook it has called off its task, and cleans up.
    let next = match allocations::hold(&mut tx, story.id).await? {
        Some(held) if story.is_about(&held) => match (story.state.task, happened) {
            (None, _) => story.begin(&mut tx, &held).await?,
            (Some(task), Happened::TaskFinished { task_id }) if task == *task_id => {
                story.settle(&mut tx, task).await?
            }
            (Some(task), Happened::TimeOut) => {
                // The answer may have come in this very moment: whoever holds the task now decides.
                task::expire(&mut tx, &run.id, NodeTaskId(task)).await?;
                story.settle(&mut tx, task).await?
            }
            (Some(_), Happened::Started | Happened::TaskFinished { .. } | Happened::Cancelled) => {
                story.wait()?
            }
        },
        Some(_) | None => Next::Done,
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

    fn is_about(&self, held: &Held) -> bool {
        held.operation == self.operation() && held.status == Status::Restarting
    }

    fn report(&self, event: Event, label: &str) -> Report<Event> {
        let actor = Actor::new(Source::Worker, self.run.id.as_str());
        Report::new(event, EventId(derived(&self.run.id, label)), actor).about(self.operation())
    }

    fn wait(&self) -> Result<Next, Error> {
        let (state, until) = (run_state::write(&self.state)?, self.state.deadline);
        Ok(Next::Wait { state, until, waits_for: "the machine to come back" })
    }

    /// The node is told what to restart: the guest on the allocation's slots, or itself.
    async fn begin(mut self, tx: &mut Tx, held: &Held) -> Result<Next, Error> {
        // A run that took over from another calls off what that one had begun.
        for live in node_tasks::live_of(tx, self.id).await? {
            if live.run.as_deref() != Some(self.run.id.as_str()) {
                task::cancel(tx, &self.run.id, &live, "taken_over").await?;
            }
        }
        let claims = claims::lock_live(tx, self.id).await?;
        let Some(node) = claims.first().map(|claim| claim.node) else {
            return self.fail(tx, OurReason::DispatchFailed).await;
        };
        let restart = Restart { slots: slot_refs(&claims) };
        let work = if held.whole { Work::NodeReboot(restart) } else { Work::SliceRestart(restart) };
        self.state.deadline = self.ctx.after_seconds(self.ctx.policies().restart_timeout_seconds);
        let order = Order {
            run: &self.run.id,
            label: "restart".to_owned(),
            node,
            allocation: self.id,
            operation: self.operation(),
            deadline: self.state.deadline,
        };
        self.state.task = Some(task::issue(tx, &order, &work).await?.uuid());
        self.wait()
    }

    /// The task has ended, one way or another: no other answer to it can count any more.
    async fn settle(self, tx: &mut Tx, task: Uuid) -> Result<Next, Error> {
        let task = task::load(tx, task).await?;
        let reason = match task.status {
            node_task::Status::Succeeded if proves_a_new_boot(&task)? => {
                let report = self.report(Event::RestartCompleted, "completed");
                return self.end(tx, &report).await;
            }
            node_task::Status::Succeeded => OurReason::NodeDidNotReturn,
            node_task::Status::Failed => self.failure(tx, &task).await?,
            node_task::Status::Expired if task.dispatch == 0 => OurReason::DispatchFailed,
            node_task::Status::Expired => self.unless_up(tx, &task).await?,
            node_task::Status::Cancelled if task.reason.as_deref() == Some(AGENT_REVOKED) => {
                OurReason::AgentRevoked
            }
            // Somebody has called it off, and knows why.
            node_task::Status::Cancelled => return Ok(Next::Done),
            node_task::Status::Queued | node_task::Status::Dispatched => return self.wait(),
        };
        self.fail(tx, reason).await
    }

    /// What a node's own reason comes to.
    async fn failure(&self, tx: &mut Tx, task: &Task) -> Result<OurReason, Error> {
        let reason = task.reason.as_deref().and_then(FailureReason::parse);
        match reason.map_or(Failed::Midway, stage_of) {
            Failed::Before => Ok(OurReason::DispatchFailed),
            Failed::Midway => self.unless_up(tx, task).await,
            Failed::Afterwards => Ok(OurReason::HealthNotRecovered),
        }
    }

    /// It did not return; unless it did, and then it is not well.
    async fn unless_up(&self, tx: &mut Tx, task: &Task) -> Result<OurReason, Error> {
        let up = node_tasks::came_up(tx, task.id).await?;
        Ok(if up { OurReason::HealthNotRecovered } else { OurReason::NodeDidNotReturn })
    }

    async fn fail(self, tx: &mut Tx, reason: OurReason) -> Result<Next, Error> {
        debug_assert!(REASONS.contains(&reason), "{reason} is not in the list");
        let report = self
            .report(Event::RestartFailedToReturn, "failed")
            .with(REASON, Value::Text(reason.code().into()));
        self.end(tx, &report).await
    }

    async fn end(self, tx: &mut Tx, report: &Report<Event>) -> Result<Next, Error> {
        let outcome = reported(allocations::report(tx, self.id, report).await?)?;
        if !outcome.is_applied() {
            tracing::debug!(allocation_id = %self.id, run = self.run.id, "it had been settled before");
        }
        Ok(Next::Done)
    }
}

/// How far a restart had got when it failed.
enum Failed {
    /// Nothing was done.
    Before,
    /// On the way down or up: whether it came up is to be asked.
    Midway,
    /// It was up.
    Afterwards,
}

const fn stage_of(reason: FailureReason) -> Failed {
    match reason {
        FailureReason::BadSignature
        | FailureReason::OtherNode
        | FailureReason::TaskExpired
        | FailureReason::UnknownKind
        | FailureReason::Malformed
        | FailureReason::StaleFence
        | FailureReason::LeaseConflict => Failed::Before,
        FailureReason::RebootFailed
        | FailureReason::GuestMissing
        | FailureReason::Interrupted
        | FailureReason::AgentDied
        | FailureReason::DriverFailed
        | FailureReason::ImageUnavailable
        | FailureReason::ImageChecksumMismatch
        | FailureReason::VfioUnavailable
        | FailureReason::DeviceDirty
        | FailureReason::CleanupIncomplete => Failed::Midway,
        FailureReason::SshNotReady
        | FailureReason::GuestNotReady
        | FailureReason::MountsNotReady
        | FailureReason::RuntimesNotReady => Failed::Afterwards,
    }
}

/// Whether a result names another boot than before: than the agent says there was, and for a whole machine also than the node
/// was in, by its own signs of life, when the restart was ordered. Signs of life that come after the result prove nothing more.
fn proves_a_new_boot(task: &Task) -> Result<bool, Error> {
    match task::outcome_of(task)? {
        Some(TaskOutcome::Restarted { boot_id_before, boot_id }) => {
            Ok(boot_id != boot_id_before && Some(boot_id) != task.boot_id)
        }
        Some(
            TaskOutcome::Provisioned { .. }
            | TaskOutcome::Cleaned { .. }
            | TaskOutcome::Failed { .. },
        )
        | None => Ok(false),
    }
}

/// A restart that no worker could take.
/// Door: the bus, when `provisioning.restart.requested` is exhausted.
///
/// # Errors
/// When the database fails.
pub async fn exhausted(ctx: &Ctx, id: AllocationId, operation: OperationId) -> Result<(), Error> {
    let taken_up = workflow_runs::open_of(&ctx.store, id.uuid(), &[WORKFLOW]).await?;
    if !taken_up.is_empty() {
        // Somebody has taken it up after all: it ends as that run says.
        return Ok(());
    }
    let mut tx = ctx.store.begin().await?;
    let event = EventId(derived(&format!("exhausted-{operation}"), "restart"));
    let report =
        Report::new(Event::RestartFailedToReturn, event, Actor::new(Source::Worker, "bus"))
            .about(operation)
            .with(REASON, Value::Text(OurReason::DispatchFailed.code().into()));
    let outcome = reported(allocations::report(&mut tx, id, &report).await?)?;
    tx.commit().await?;
    if outcome.is_applied() {
        tracing::warn!(allocation_id = %id, "no worker could take the restart: it has failed");
    }
    Ok(())
}
