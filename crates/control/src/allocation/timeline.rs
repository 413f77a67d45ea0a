//! What happened to an allocation, step by step. Built from allow-lists: every sentence here is ours, chosen by a word that
//! we know, and nothing is copied from parameters, results or signed texts. Every second between the request and the end
//! belongs to one step.

pub(crate) mod expected;
pub(crate) mod items;
mod tiles;
pub(crate) mod words;

use domain::ids::AllocationId;
use domain::machines::Allocation as Machine;
use domain::policy::Permission;
use lifecycle::Machine as _;
use store::views::allocations::{self, Row};
use store::views::timeline::{self as stored, Phase};
use store::workflow_runs::{self, RunRow};
use wire::http::timeline::{Timeline, TimelineItem};

use super::{cleanup, provision};
use crate::{Caller, Ctx, Error};

/// What runs wait for between two attempts.
const PAUSES: [&str; 2] = [cleanup::NEXT_ATTEMPT, provision::LEASE_IN_THE_WAY];

/// For whom a timeline is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Tenant,
    Operator,
}

/// The timeline of an allocation of the caller's projects.
///
/// # Errors
/// [`Error::NotFound`] when there is none, or it is somebody else's: nobody learns which.
pub async fn for_tenant(ctx: &Ctx, caller: &Caller, id: AllocationId) -> Result<Timeline, Error> {
    caller.needs(Permission::AllocationRead)?;
    let row = allocations::find_for(&ctx.store, id, caller.user_id).await?;
    made(ctx, Reader::Tenant, row).await
}

/// The timeline of any allocation, with who did what where, for operators.
///
/// # Errors
/// [`Error::Forbidden`] for anybody else, [`Error::NotFound`] when there is none.
pub async fn for_operator(ctx: &Ctx, caller: &Caller, id: AllocationId) -> Result<Timeline, Error> {
    caller.needs(Permission::FleetRead)?;
    let row = allocations::find(&ctx.store, id).await?;
    made(ctx, Reader::Operator, row).await
}

async fn made(ctx: &Ctx, reader: Reader, row: Option<Row>) -> Result<Timeline, Error> {
    let row = row.ok_or(Error::NotFound("allocation"))?;
    let (store, id, now) = (&ctx.store, AllocationId(row.id), ctx.clock.now());
    let steps = store.transitions(Machine::NAME, row.id).await?;
    let states = items::states(reader, &steps, row.reason.as_deref(), now);
    let placed = stored::placed(store, id).await?;
    let mut items = Vec::new();
    items.extend(placed.map(|placed| items::placement(reader, &row, placed, &states)));
    let tasks = tasks(ctx, reader, &row, &states).await?;
    let runs = workflow_runs::open_about(store, row.id).await?;
    // A run that still waits for the node has not heard of its answer: when it wakes is no next attempt.
    let pauses =
        |run: &&RunRow| run.waits_for.as_deref().is_some_and(|what| PAUSES.contains(&what));
    let next_at = runs.iter().filter(pauses).filter_map(|run| run.wake_at).max();
    items.extend(items::pauses(&tasks, states.last(), next_at, now));
    items.extend(tasks);
    let timeline = Timeline {
        allocation_id: row.id,
        status: row.status.into(),
        started_at: states.first().map_or(row.created_at, |state| state.started_at),
        ended_at: states.last().and_then(|state| state.completed_at),
        total_seconds: states.iter().map(|state| state.duration_seconds).sum(),
        expected_seconds: expected::of_the_whole(ctx, &row).await?,
        items: in_order(states, items),
    };
    Ok(timeline)
}

async fn tasks(
    ctx: &Ctx,
    reader: Reader,
    row: &Row,
    states: &[TimelineItem],
) -> Result<Vec<TimelineItem>, Error> {
    let (id, now) = (AllocationId(row.id), ctx.clock.now());
    let phases = stored::phases(&ctx.store, id).await?;
    let mut items = Vec::new();
    for task in stored::tasks(&ctx.store, id).await? {
        let of_task: Vec<&Phase> = phases.iter().filter(|phase| phase.task_id == task.id).collect();
        let Some(mut item) = items::task(reader, &task, &of_task, states, now) else {
            continue;
        };
        if item.completed_at.is_none() {
            item.expected_seconds = expected::of_task(ctx, row, &task.kind).await?;
        }
        items.push(item);
    }
    Ok(items)
}

/// The steps in order, each followed by what began in it.
fn in_order(states: Vec<TimelineItem>, mut inside: Vec<TimelineItem>) -> Vec<TimelineItem> {
    inside.sort_by_key(|item| item.started_at);
    let mut items = Vec::with_capacity(states.len() + inside.len());
    for state in states {
        let id = state.id.clone();
        items.push(state);
        items.extend(inside.extract_if(.., |item| item.within.as_ref() == Some(&id)));
    }
    items
}
