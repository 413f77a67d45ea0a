//! Why an allocation is as it is, in one answer: what it is doing, what it waits for and since when, who takes the next step
//! and by when, what was refused, and what the caller may do. Every sentence is ours; what others wrote chooses one.

pub(crate) mod words;

use domain::ids::AllocationId;
use domain::machines::allocation::{Event, Status};
use domain::machines::{Allocation as Machine, node_task};
use domain::policy::Permission;
use jiff::{SignedDuration, Timestamp};
use lifecycle::{Code as _, Machine as _, Rest};
use store::views::allocations::{self, Row};
use store::views::{explain as stored, timeline};
use store::workflow_runs::{self, RunRow};
use wire::http::allocations::{ActionWord, Allocation};
use wire::http::explain::{
    Awaited, Explanation, MachineState, MayDo, NextStep, Owner, RefusedReport, RunAtIt, StepTaken,
};

use self::words::{owner_of, sentence_of_action, sentence_of_refusal, sentence_of_time_out};
use super::reason::word;
use super::timeline::Reader;
use super::timeline::words::{of_step, of_task, shortened};
use super::view::{self, Viewer};
use crate::claim::view as claims;
use crate::stuck::advice::{Names, of_action};
use crate::{Caller, Ctx, Error};

/// How many of the last steps are shown.
const STEPS_MAX: usize = 10;

/// Why an allocation of the caller's projects is as it is.
///
/// # Errors
/// [`Error::NotFound`] when there is none, or it is somebody else's: nobody learns which.
pub async fn for_tenant(
    ctx: &Ctx,
    caller: &Caller,
    id: AllocationId,
) -> Result<Explanation, Error> {
    caller.needs(Permission::AllocationRead)?;
    let row = allocations::find_for(&ctx.store, id, caller.user_id).await?;
    made(ctx, caller, Reader::Tenant, row).await
}

/// Why any allocation is as it is, with runs, machine and names, for operators.
///
/// # Errors
/// [`Error::Forbidden`] for anybody else, [`Error::NotFound`] when there is none.
pub async fn for_operator(
    ctx: &Ctx,
    caller: &Caller,
    id: AllocationId,
) -> Result<Explanation, Error> {
    caller.needs(Permission::FleetRead)?;
    let row = allocations::find(&ctx.store, id).await?;
    made(ctx, caller, Reader::Operator, row).await
}

async fn made(
    ctx: &Ctx,
    caller: &Caller,
    reader: Reader,
    row: Option<Row>,
) -> Result<Explanation, Error> {
    let row = row.ok_or(Error::NotFound("allocation"))?;
    let id = AllocationId(row.id);
    let operator = reader == Reader::Operator;
    let runs = workflow_runs::open_about(&ctx.store, row.id).await?;
    let machine = stored::machine(&ctx.store, id).await?;
    let waits_for = awaited(ctx, &row, &runs, machine.as_ref()).await?;
    let next_step = next_step(ctx, &row, reader).await?;
    let steps = steps(ctx, reader, row.id).await?;
    let refused = stored::refusals(&ctx.store, id).await?;
    let viewer = Viewer::of(caller, row.role);
    let shown = view::shown(row, viewer);
    let claims = if operator { claims::waiting_of(ctx, id).await? } else { Vec::new() };
    Ok(Explanation {
        allocation_id: shown.id,
        status: shown.status,
        since: shown.status_at,
        may_do: may_do(&shown, reader),
        reason: shown.status_reason,
        doing: shown.status_text,
        waits_for,
        next_step,
        steps,
        refused: refused.iter().map(|report| refusal(reader, report)).collect(),
        runs: runs.into_iter().filter(|_| operator).map(run).collect(),
        machine: machine.filter(|_| operator).map(|machine| MachineState {
            name: machine.name,
            status: machine.status,
            since: machine.since,
        }),
        claims,
    })
}

/// What an allocation waits for, and its next step: what a group says of each of its members.
pub(crate) async fn standing(
    ctx: &Ctx,
    row: &Row,
    reader: Reader,
) -> Result<(Vec<Awaited>, Option<NextStep>), Error> {
    let next_step = next_step(ctx, row, reader).await?;
    // Nothing goes on in what is used or gone.
    if matches!(row.status, Status::Active | Status::Released) {
        return Ok((Vec::new(), next_step));
    }
    let runs = workflow_runs::open_about(&ctx.store, row.id).await?;
    let machine = stored::machine(&ctx.store, AllocationId(row.id)).await?;
    Ok((awaited(ctx, row, &runs, machine.as_ref()).await?, next_step))
}

/// What may be done with it, and what comes of that.
pub(crate) fn may_do(shown: &Allocation, reader: Reader) -> Vec<MayDo> {
    let names = Names { id: shown.id, name: None, node: None, allocation: None };
    let may = |action: &ActionWord| MayDo {
        action: *action,
        sentence: sentence_of_action(action.0).to_owned(),
        command: Some(names.fill(of_action(action.0, reader == Reader::Operator))),
    };
    shown.allowed_actions.iter().map(may).collect()
}

/// What it waits for: its tasks, the pause before the next one, or somebody who begins; and the machine, when that is away.
async fn awaited(
    ctx: &Ctx,
    row: &Row,
    runs: &[RunRow],
    machine: Option<&stored::Machine>,
) -> Result<Vec<Awaited>, Error> {
    let mut waits = Vec::new();
    let id = AllocationId(row.id);
    let phases = timeline::phases(&ctx.store, id).await?;
    for task in timeline::tasks(&ctx.store, id).await? {
        let status = node_task::Status::parse(&task.status);
        let what = uncapitalized(of_task(&task.kind).1);
        let (what, since) = match status {
            Some(node_task::Status::Queued) => {
                (format!("The machine has not taken its task yet: {what}."), task.created_at)
            }
            Some(node_task::Status::Dispatched) => {
                let since = task.dispatched_at.unwrap_or(task.created_at);
                let told = phases.iter().rfind(|phase| phase.task_id == task.id);
                let known = told.and_then(|told| wire::node::Phase::parse(&told.phase));
                let phase = known.map_or_else(
                    || "nothing was told yet".to_owned(),
                    |phase| format!("last told: {}", phase.code().replace('_', " ")),
                );
                (format!("The machine is at its task: {what} ({phase})."), since)
            }
            Some(
                node_task::Status::Succeeded
                | node_task::Status::Failed
                | node_task::Status::Cancelled
                | node_task::Status::Expired,
            )
            | None => continue,
        };
        waits.push(Awaited { what, since, until: None });
    }
    let next_at = runs.iter().filter_map(|run| run.wake_at).max();
    if is_moving(row.status) && waits.is_empty() {
        let untouched = |run: &RunRow| run.waits_for.is_none() && run.attempts == 0;
        let what = if runs.iter().all(untouched) {
            "A worker has not begun yet."
        } else {
            "The next attempt has not begun yet."
        };
        let until = next_at.filter(|at| *at > ctx.clock.now());
        waits.push(Awaited { what: what.to_owned(), since: row.status_at, until });
    }
    if let Some(machine) =
        machine.filter(|machine| machine.status == "offline" && !waits.is_empty())
    {
        let what = "The machine does not answer; what it was given waits for it.".to_owned();
        waits.push(Awaited { what, since: machine.since, until: None });
    }
    Ok(waits)
}

/// A text that goes on in the middle of a sentence.
fn uncapitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

/// Whether something goes on by itself in this status.
fn is_moving(status: Status) -> bool {
    matches!(rest_of(status), Rest::Transient { .. })
}

fn rest_of(status: Status) -> Rest<Event> {
    let spec = Machine::STATUSES.iter().find(|spec| spec.status == status);
    spec.map_or(Rest::Restful, |spec| spec.rest)
}

/// Who takes the next step and by when, as the table of the machine has it, and policy and SKU where they say more.
async fn next_step(ctx: &Ctx, row: &Row, reader: Reader) -> Result<Option<NextStep>, Error> {
    let (owner, seconds, then) = match rest_of(row.status) {
        Rest::Terminal => return Ok(None),
        Rest::Restful | Rest::Derived => {
            let then = "Nothing is to be done: it stays like this until somebody wants otherwise.";
            return Ok(Some(NextStep {
                owner: Owner::Nobody.into(),
                by: None,
                overdue: false,
                then: then.to_owned(),
            }));
        }
        Rest::Parked { owner, seconds } => {
            (owner, i64::from(seconds), "After that it is on the operators' list.")
        }
        Rest::Transient { owner, seconds, time_out } => {
            (owner, i64::from(seconds), sentence_of_time_out(time_out))
        }
    };
    let seconds = match row.status {
        Status::Provisioning => {
            let limit = stored::provision_seconds(&ctx.store, &row.sku).await?;
            limit.map_or(seconds, i64::from)
        }
        Status::Restarting => i64::from(ctx.policies().restart_timeout_seconds),
        Status::Requested
        | Status::Active
        | Status::RestartFailed
        | Status::Releasing
        | Status::ReleaseFailed
        | Status::Released
        | Status::Failed => seconds,
    };
    let by = row.status_at.saturating_add(SignedDuration::from_secs(seconds)).ok();
    Ok(Some(NextStep {
        owner: owner_of(owner, reader).into(),
        by,
        overdue: by.is_some_and(|by| by < ctx.clock.now()),
        then: then.to_owned(),
    }))
}

async fn steps(ctx: &Ctx, reader: Reader, id: uuid::Uuid) -> Result<Vec<StepTaken>, Error> {
    let steps = ctx.store.transitions(Machine::NAME, id).await?;
    let step = |step: &store::log::Transition| {
        let told = of_step(step);
        StepTaken {
            seq: step.seq,
            name: told.name.to_owned(),
            at: Timestamp::from_microsecond(step.occurred_at_micros).unwrap_or_default(),
            summary: told.sentence.to_owned(),
            reason: step.reason.as_deref().map(|reason| word(reason).to_owned()),
            actor: (reader == Reader::Operator).then(|| shortened(&step.actor)),
        }
    };
    Ok(steps.iter().rev().take(STEPS_MAX).map(step).collect())
}

fn refusal(reader: Reader, refused: &stored::Refused) -> RefusedReport {
    let event = match refused.task {
        None => Event::parse(&refused.event).map(|event| event.code()),
        Some(_) => node_task::Event::parse(&refused.event).map(|event| event.code()),
    };
    RefusedReport {
        about: refused.task.map_or_else(|| "allocation".to_owned(), |task| format!("task:{task}")),
        event: event.unwrap_or("other").to_owned(),
        why: word(&refused.reason).to_owned(),
        sentence: sentence_of_refusal(refused),
        at: refused.at,
        actor: (reader == Reader::Operator).then(|| shortened(&refused.actor)),
    }
}

/// A run, as operators are told of it.
pub(crate) fn run(row: RunRow) -> RunAtIt {
    RunAtIt {
        id: row.id,
        workflow: row.workflow,
        waits_for: row.waits_for,
        // What is due since ever is due now.
        wakes_at: row.wake_at.filter(|at| *at > Timestamp::UNIX_EPOCH),
        attempts: row.attempts,
        reason: row.reason.as_deref().map(shortened),
    }
}
