//! Clean: the clean-up after a failed provision was given up, and an operator has it tried once more. `request` → `begin` →
//! the node cleans up → freed, or stuck again. Doors: POST /admin/allocations/{id}/clean, the workflow `clean`; a timer for
//! clean-ups that nobody is at.

use domain::ids::{AllocationId, OperationId};
use domain::machines::allocation::Status;
use domain::machines::claim;
use domain::policy::Permission;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use spine::workflow::{Happened, NewRun, Next, Run, Stepped};
use store::claims::{self, Forgotten, Live};
use store::lifecycle::Report;
use store::{Tx, allocations, node_tasks};
use uuid::Uuid;
use wire::http::admin::Because;
use wire::http::allocations::Allocation;

use super::cleanup::{self, Cleaning};
use super::view::{self, Viewer};
use crate::audit_log::{self, Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish, refuse};
use crate::ids::new_event;
use crate::node::task;
use crate::{Caller, Ctx, Error, run_state};

/// What the workflow is called.
pub const WORKFLOW: &str = "clean";
/// How long a clean-up may stand there before the sweep looks after it.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// An operator wants what a failed allocation still holds to be cleaned up once more.
///
/// # Errors
/// [`Error::NotFound`] when there is no such allocation, [`Error::Conflict`] when nothing of it is stuck, or it has not
/// failed.
pub async fn request(
    ctx: &Ctx,
    caller: &Caller,
    id: AllocationId,
    because: &Because,
    key: Option<&Key>,
) -> Result<Answer<Allocation>, Error> {
    caller.needs(Permission::FleetManage)?;
    let reason = audit_log::because(&because.reason)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let held = allocations::hold(&mut tx, id).await?.ok_or(Error::NotFound("allocation"))?;
    let deed = Deed::new(caller, Action::AllocationClean, "allocation", id)
        .in_project(held.project_id)
        .because(reason);
    let live = claims::lock_live(&mut tx, id).await?;
    if let Some(why) = cannot(held.status, &live) {
        return refuse(tx, &deed, why).await;
    }
    let began = new_event(&tx);
    let report = Report::new(claim::Event::CleaningBegan, began, caller.operator_actor())
        .because(caller.cause())
        .about(held.operation);
    claims::report_all(&mut tx, &mut stuck(live), &report).await?;
    let run = run(format!("clean-{began}"), id, held.operation)?;
    let viewer = Viewer::of(caller, None);
    let shown = view::in_transaction(&mut tx, id, viewer).await?;
    let answer = finish(tx, &deed, key, 202, shown).await?;
    // What is not begun now is found by the sweep: the claims say that they are being cleaned.
    if let Err(error) = ctx.workflows.start(run).await {
        tracing::warn!(allocation_id = %id, %error, "a clean-up was not begun at once");
    }
    Ok(answer)
}

fn stuck(live: Vec<Live>) -> Vec<Live> {
    live.into_iter().filter(|claim| claim.status == claim::Status::Stuck).collect()
}

/// Why there is nothing to clean up, and what to do instead.
fn cannot(status: Status, live: &[Live]) -> Option<String> {
    let has = |status| live.iter().any(|claim| claim.status == status);
    let set_aside = has(claim::Status::Quarantined);
    let instead = match status {
        Status::Failed if has(claim::Status::Stuck) => return None,
        Status::Failed if has(claim::Status::Cleaning) => {
            "it is being cleaned up; wait until that is done, or given up"
        }
        Status::Failed | Status::Released if set_aside => {
            "what it holds was set aside; see to the machine, and clear its claims"
        }
        Status::Failed => "it holds nothing any more",
        Status::ReleaseFailed => "release it once more, by force if need be",
        Status::Requested
        | Status::Provisioning
        | Status::Active
        | Status::Restarting
        | Status::RestartFailed => "it is in use; release it, by force if need be",
        Status::Releasing => "its release is cleaning up",
        Status::Released => "it is over",
    };
    Some(format!("it is {status}: {instead}"))
}

/// What the workflow keeps between its steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    operation: Uuid,
    /// The clean-up, once it has begun.
    cleanup: Option<cleanup::State>,
}

fn run(id: String, allocation: AllocationId, operation: OperationId) -> Result<NewRun, Error> {
    let state = run_state::write(&State { operation: operation.uuid(), cleanup: None })?;
    Ok(NewRun { id, workflow: WORKFLOW, entity_id: allocation.uuid(), state })
}

/// One step of the workflow: one short transaction.
///
/// # Errors
/// What is to be tried again.
pub async fn step(ctx: &Ctx, run: &Run, happened: &Happened) -> Result<Stepped, Error> {
    let state: State = run_state::read(run)?;
    let operation = OperationId(state.operation);
    let allocation = AllocationId(run.entity_id);
    trace::note("allocation_id", allocation);
    let cleaning = Cleaning { run: run.id.clone(), allocation, operation };
    let mut tx = ctx.store.begin().await?;
    let next = match state.cleanup {
        None => begin_cleaning(ctx, &mut tx, &cleaning).await?,
        Some(cleanup) => cleaning.step(ctx, &mut tx, cleanup, happened).await?,
    };
    let next = match next {
        cleanup::Next::Wait(cleanup, until) => {
            let waits_for = cleanup.waits_for();
            wait(&state_of(operation, cleanup), until, waits_for)?
        }
        cleanup::Next::Proven(_) => {
            cleaning.free(&mut tx).await?;
            Next::Done
        }
        cleanup::Next::GivenUp { reason, .. } => {
            cleaning.get_stuck(&mut tx, &reason).await?;
            Next::Done
        }
    };
    Ok(next.within(tx))
}

fn state_of(operation: OperationId, cleanup: cleanup::State) -> State {
    State { operation: operation.uuid(), cleanup: Some(cleanup) }
}

fn wait(state: &State, until: Timestamp, waits_for: &'static str) -> Result<Next, Error> {
    Ok(Next::Wait { state: run_state::write(state)?, until, waits_for })
}

/// What an earlier clean-up had under way is called off, and the node is told to clean up.
async fn begin_cleaning(
    ctx: &Ctx,
    tx: &mut Tx,
    cleaning: &Cleaning,
) -> Result<cleanup::Next, Error> {
    allocations::hold(tx, cleaning.allocation).await?;
    for live in node_tasks::live_of(tx, cleaning.allocation).await? {
        if live.run.as_deref() != Some(cleaning.run.as_str()) {
            task::cancel(tx, &cleaning.run, &live, "taken_over").await?;
        }
    }
    Ok(match cleaning.begin(ctx, tx).await? {
        Some((state, until)) => cleanup::Next::Wait(state, until),
        None => cleanup::Next::Proven(None),
    })
}

/// A clean-up after a failed provision that nobody is at gets a new run: the steps find out how far it is.
///
/// # Errors
/// When the store fails.
pub async fn take_up(ctx: &Ctx) -> Result<u64, Error> {
    let before = ctx.clock.now().checked_sub(FORGOTTEN_AFTER).unwrap_or_default();
    let mut tx = ctx.store.begin().await?;
    let forgotten = claims::forgotten(&mut tx, before).await?;
    tx.rollback().await?;
    let mut taken_up = 0;
    for Forgotten { allocation, operation, seq, runs } in forgotten {
        tracing::warn!(allocation_id = %allocation, "nobody was at its clean-up: taken up again");
        let id = format!("{WORKFLOW}-again-{operation}-{seq}-{runs}");
        let run = run(id, allocation, operation)?;
        taken_up += u64::from(ctx.workflows.start(run).await?);
    }
    Ok(taken_up)
}
