//! A node task, in order of time: `issue` → [`dispatch`](super::dispatch) to the agent → `phases` → `finish`; `sweep` for those nobody hears of.
//! Doors: workflows, the node gateway, timers.

use domain::ids::{AllocationId, EventId, NodeId, NodeTaskId, OperationId};
use domain::machines::NodeTask;
use domain::machines::REASON;
use domain::machines::node_task::{AGENT_ID, CLEANUP_COMPLETE, DISPATCH, Event, Status};
use jiff::{SignedDuration, Timestamp};
use lifecycle::{Code as _, Outcome, Source, Value};
use spine::workflow::Happened;
use store::lifecycle::{Actor, Birth, Report, apply};
use store::node_tasks::{self, InHand, NewTask, PhaseRow, Task};
use store::{Company, Ring, Tx};
use tracing::Instrument as _;
use uuid::Uuid;
use wire::node::{Acknowledged, PhaseBatch, PhaseReport, TaskOutcome, TaskResult, Work};

use super::enrol::AgentIdentity;
use super::heartbeat;
use crate::doors::subscriptions;
use crate::ids::{derived, new_event};
use crate::{Ctx, Error};

/// The longest sentence of a node that is kept.
const MESSAGE_CHARS_MAX: usize = 512;
/// The most phases that are taken at a time.
const PHASES_MAX: usize = 256;

/// What is queued for so long was not fetched by whoever was rung for.
const UNFETCHED_SECONDS: f64 = 2.0;

/// What is told of a task whose node has no agent any more.
pub const AGENT_REVOKED: &str = "agent_revoked";

/// How a task went in its node's words; nothing, while there are none.
///
/// # Errors
/// [`Error::Broken`] when this binary is too old to read them.
pub fn outcome_of(task: &Task) -> Result<Option<TaskOutcome>, Error> {
    let read = task.result.clone().map(serde_json::from_value).transpose();
    read.map_err(|error| Error::Broken(format!("the result of {} can't be read: {error}", task.id)))
}

/// Work for a node, about an operation of an allocation.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    /// The workflow that waits for it.
    pub run: &'a str,
    /// What tells it from the other tasks of the run: the same words are the same task.
    pub label: String,
    /// The node.
    pub node: NodeId,
    /// The allocation.
    pub allocation: AllocationId,
    /// Its operation.
    pub operation: OperationId,
    /// After this nobody need do it any more.
    pub deadline: Timestamp,
}

/// Queues a task in the transaction of the step that wants it. Asked twice, it is queued once.
///
/// # Errors
/// When the database fails.
pub async fn issue(tx: &mut Tx, order: &Order<'_>, work: &Work) -> Result<NodeTaskId, Error> {
    let id = NodeTaskId(derived(order.run, &order.label));
    let params = work.params().map_err(|error| Error::Broken(error.to_string()))?;
    let task = NewTask {
        id,
        node: order.node,
        allocation: order.allocation,
        operation: order.operation,
        kind: work.kind().code(),
        params,
        run: Some(order.run.to_owned()),
        deadline: Some(order.deadline),
    };
    let actor = Actor::new(Source::Worker, order.run);
    let birth = Birth::new(EventId(derived(order.run, &format!("{} queued", order.label))), actor);
    trace::note("task_id", id);
    node_tasks::insert(tx, &task, birth).await?;
    Ok(id)
}

/// What is done about a task, in the trace of the request that it is for. What an agent says without a place in any is
/// told there too: it may be an older agent, or one that was started since.
pub(super) fn traced(name: &'static str, task: &Task) -> tracing::Span {
    let Task { id, allocation, node, kind, .. } = task;
    if task.traceparent.is_none() {
        return tracing::Span::none();
    }
    let span = tracing::trace_span!(
        target: trace::TARGET, "task", otel.name = format!("{name}: {kind}"),
        task_id = %id, allocation_id = %allocation, node_id = %node, run = task.run.as_deref(),
    );
    if trace::current().is_none() {
        trace::follow(&span, task.traceparent.as_deref());
    }
    span
}

/// The agent tells how far it is.
///
/// # Errors
/// [`Error::Invalid`] when it tells too much at once.
pub async fn phases(
    ctx: &Ctx,
    agent: &AgentIdentity,
    task: NodeTaskId,
    batch: &PhaseBatch,
) -> Result<Acknowledged, Error> {
    if batch.phases.len() > PHASES_MAX {
        return Err(Error::invalid("/phases", format!("at most {PHASES_MAX} at a time")));
    }
    let company = Company::Same { doing: ("tasks", "phases"), about: task.uuid() };
    let added = match phases_in(ctx, agent, (task, batch), company).await {
        Err(error) if error.is_company() => {
            phases_in(ctx, agent, (task, batch), Company::Alone).await?
        }
        added => added?,
    };
    let answer = if added > 0 { "applied" } else { "duplicate" };
    Ok(Acknowledged { applied: added > 0, answer: answer.to_owned() })
}

async fn phases_in(
    ctx: &Ctx,
    agent: &AgentIdentity,
    (task, batch): (NodeTaskId, &PhaseBatch),
    company: Company,
) -> Result<u64, Error> {
    let mut tx = ctx.store.begin_in(company).await?;
    let added = add_phases(ctx, &mut tx, agent, (task, batch.dispatch), &batch.phases).await?;
    tx.commit().await?;
    Ok(added)
}

async fn add_phases(
    ctx: &Ctx,
    tx: &mut Tx,
    agent: &AgentIdentity,
    dispatch: (NodeTaskId, i64),
    phases: &[PhaseReport],
) -> Result<u64, Error> {
    if phases.is_empty() {
        return Ok(0);
    }
    let row = |phase: &PhaseReport| PhaseRow {
        seq: phase.seq,
        phase: phase.phase.0.code(),
        status: phase.status.0.code(),
        at: phase.at,
    };
    let rows: Vec<PhaseRow> = phases.iter().map(row).collect();
    let lease_until = ctx.after_seconds(ctx.policies().task_lease_seconds);
    Ok(node_tasks::add_phases(tx, dispatch, agent.agent_id, &rows, lease_until).await?)
}

/// The agent tells how a task ended. Said twice, it counts once; from another agent or an older dispatch, never.
///
/// # Errors
/// When the database fails.
pub async fn finish(
    ctx: &Ctx,
    agent: &AgentIdentity,
    id: NodeTaskId,
    result: &TaskResult,
) -> Result<Acknowledged, Error> {
    if result.phases.len() > PHASES_MAX {
        return Err(Error::invalid("/phases", format!("at most {PHASES_MAX} at a time")));
    }
    let company = Company::Same { doing: ("tasks", "result"), about: id.uuid() };
    match finish_in(ctx, agent, (id, result), company).await {
        Err(error) if error.is_company() => {
            finish_in(ctx, agent, (id, result), Company::Alone).await
        }
        ended => ended,
    }
}

async fn finish_in(
    ctx: &Ctx,
    agent: &AgentIdentity,
    (id, result): (NodeTaskId, &TaskResult),
    company: Company,
) -> Result<Acknowledged, Error> {
    let mut tx = ctx.store.begin_in(company).await?;
    let known = node_tasks::lock(&mut tx, id).await?;
    let Some(held) = known.filter(|held| held.task.node == agent.node_id) else {
        return Err(Error::NotFound("task"));
    };
    let span = traced("result", &held.task);
    let (kind, dispatched) = (held.task.kind.clone(), held.task.dispatched_seconds);
    let ended = end(ctx, agent, tx, (held, result)).instrument(span).await?;
    if let Some(seconds) = dispatched.filter(|_| ended.applied) {
        took(kind, "running", seconds);
    }
    Ok(ended)
}

/// How long a task has been in a stage of its life.
pub(super) fn took(kind: String, stage: &'static str, seconds: f64) {
    metrics::histogram!("berth_node_task_seconds", "kind" => kind, "stage" => stage)
        .record(seconds.max(0.0));
}

async fn end(
    ctx: &Ctx,
    agent: &AgentIdentity,
    mut tx: Tx,
    (held, result): (InHand, &TaskResult),
) -> Result<Acknowledged, Error> {
    let (id, run, outcome) = (held.task.id, held.task.run.clone(), trimmed(&result.outcome));
    add_phases(ctx, &mut tx, agent, (id, result.dispatch), &result.phases).await?;
    let event =
        if matches!(outcome, TaskOutcome::Failed { .. }) { Event::Failure } else { Event::Success };
    let mut report = Report::new(event, new_event(&tx), agent.actor())
        .with(AGENT_ID, Value::Id(agent.agent_id.as_u128()))
        .with(DISPATCH, Value::Int(result.dispatch))
        .heard(subscriptions::workflows());
    match &outcome {
        TaskOutcome::Provisioned { .. } | TaskOutcome::Restarted { .. } => {}
        TaskOutcome::Cleaned { proof } => {
            report = report.with(CLEANUP_COMPLETE, Value::Bool(proof.is_complete()));
        }
        TaskOutcome::Failed { reason, .. } => {
            report = report.with(REASON, Value::Text(reason.0.code().into()));
        }
    }
    let kept = serde_json::to_value(&outcome).map_err(|error| Error::Broken(error.to_string()))?;
    let report = node_tasks::keeping_result(report, kept);
    let answer = node_tasks::report(&mut tx, held, &report).await?;
    if let Some(run) = run.filter(|_| answer.is_applied()) {
        let happened = Happened::TaskFinished { task_id: id.uuid() };
        ctx.workflows.tell_in(&mut tx, &run, &happened).await?;
    }
    tx.commit().await?;
    trace::note("outcome", if event == Event::Failure { "failed" } else { "succeeded" });
    Ok(acknowledged(&answer))
}

/// What a node says in its own words is cut to size and freed of control characters before it is kept.
fn trimmed(outcome: &TaskOutcome) -> TaskOutcome {
    match outcome {
        TaskOutcome::Failed { reason, phase, message } => {
            let shown = message.chars().filter(|c| !c.is_control()).take(MESSAGE_CHARS_MAX);
            TaskOutcome::Failed { reason: *reason, phase: *phase, message: shown.collect() }
        }
        TaskOutcome::Provisioned { .. }
        | TaskOutcome::Restarted { .. }
        | TaskOutcome::Cleaned { .. } => outcome.clone(),
    }
}

fn acknowledged(outcome: &Outcome<Status>) -> Acknowledged {
    let answer = match outcome {
        Outcome::Applied { .. } => "applied".to_owned(),
        Outcome::Duplicate(_) => "duplicate".to_owned(),
        Outcome::Refused(refusal) => refusal.to_string(),
    };
    Acknowledged { applied: outcome.is_applied(), answer }
}

/// Calls a task off.
///
/// # Errors
/// [`store::Error::Conflict`] when a race was lost.
pub async fn cancel(tx: &mut Tx, run: &str, task: &Task, why: &'static str) -> Result<(), Error> {
    let event = EventId(derived(run, &format!("cancel {}", task.id)));
    let report = Report::new(Event::Cancelling, event, Actor::new(Source::Worker, run))
        .with(REASON, Value::Text(why.into()));
    settled(apply::<NodeTask>(tx, task.id, &report).await?)
}

/// Calls off everything that is still under way for an allocation, which the caller has locked.
///
/// # Errors
/// [`store::Error::Conflict`] when a race was lost.
pub async fn call_off_all(
    tx: &mut Tx,
    allocation: AllocationId,
    actor: &Actor,
    why: &'static str,
) -> Result<(), Error> {
    for live in node_tasks::live_of(tx, allocation).await? {
        let report = Report::new(Event::Cancelling, new_event(tx), actor.clone())
            .with(REASON, Value::Text(why.into()));
        settled(apply::<NodeTask>(tx, live.id, &report).await?)?;
    }
    Ok(())
}

/// What was called off, and the workflow that waits for it.
pub type CalledOff = Vec<(String, NodeTaskId)>;

/// Calls off everything that a node was given: nobody there may do it any more. Whoever waits is told by
/// [`tell_called_off`] when this is committed.
///
/// # Errors
/// [`store::Error::Conflict`] when a race was lost.
pub async fn call_off_node(tx: &mut Tx, node: NodeId, actor: &Actor) -> Result<CalledOff, Error> {
    let mut called_off = Vec::new();
    for live in node_tasks::live_on(tx, node).await? {
        let report = Report::new(Event::Cancelling, new_event(tx), actor.clone())
            .with(REASON, Value::Text(AGENT_REVOKED.into()));
        let outcome = apply::<NodeTask>(tx, live.id, &report).await?;
        if outcome.is_applied() {
            called_off.extend(live.run.map(|run| (run, live.id)));
        }
        settled(outcome)?;
    }
    Ok(called_off)
}

/// Tells workflows that what they wait for was called off. One that is not told finds out at its deadline.
pub async fn tell_called_off(ctx: &Ctx, called_off: CalledOff) {
    for (run, task) in called_off {
        let happened = Happened::TaskFinished { task_id: task.uuid() };
        if let Err(error) = ctx.workflows.tell(&run, happened).await {
            tracing::warn!(run, %task, %error, "nobody was told that a task was called off");
        }
    }
}

/// Nobody waits for a task any more.
///
/// # Errors
/// [`store::Error::Conflict`] when a race was lost.
pub async fn expire(tx: &mut Tx, run: &str, task: NodeTaskId) -> Result<(), Error> {
    let event = EventId(derived(run, &format!("expire {task}")));
    let report = Report::new(Event::Expiring, event, Actor::new(Source::Worker, run));
    settled(apply::<NodeTask>(tx, task, &report).await?)
}

/// Whether it ended this way or another is all the same, unless it must be tried again.
fn settled(outcome: Outcome<Status>) -> Result<(), Error> {
    if outcome.is_retryable() { Err(store::Error::Conflict.into()) } else { Ok(()) }
}

/// Tasks whose agent has fallen silent are queued again, as long as they may be; those that nobody need do any more, or
/// that have been handed out often enough, have expired. A lease that ran out while no gateway was there to renew it is not
/// lost: its agent may be at work, and has the whole time again to say so.
///
/// # Errors
/// When the database fails.
pub async fn sweep(ctx: &Ctx) -> Result<u64, Error> {
    let now = ctx.clock.now();
    let lease = SignedDuration::from_secs(i64::from(ctx.policies().task_lease_seconds));
    let granted = now.saturating_sub(lease).unwrap_or(Timestamp::MIN);
    let listened = heartbeat::was_listened(ctx, granted).await?;
    let mut tx = ctx.store.begin().await?;
    let lost = if listened { node_tasks::lost_leases(&mut tx, now).await? } else { Vec::new() };
    let overdue = node_tasks::overdue(&mut tx, now).await?;
    tx.rollback().await?;
    let mut swept = 0;
    for (task, dispatch, again) in lost {
        swept += u64::from(sweep_one(ctx, task, again.then_some(dispatch)).await?);
    }
    for task in overdue {
        swept += u64::from(sweep_one(ctx, task, None).await?);
    }
    Ok(swept)
}

/// Wakes agents of this process for whom something is queued that they have not fetched at once: what rang for it was missed, or somebody
/// else held it while they looked. Called every few seconds, it bounds how long that goes unnoticed.
///
/// # Errors
/// When the database fails.
pub async fn ring_again(ctx: &Ctx) -> Result<(), Error> {
    for node in node_tasks::nodes_with_queued(&ctx.store, UNFETCHED_SECONDS).await? {
        ctx.wake.ring_here(&Ring::Node(node.uuid()));
    }
    Ok(())
}

/// One task in a transaction of its own: one that is contended does not hold the others up.
async fn sweep_one(ctx: &Ctx, id: NodeTaskId, dispatch: Option<i64>) -> Result<bool, Error> {
    let mut tx = ctx.store.begin().await?;
    let timer = Actor::new(Source::Timer, "sweep of tasks");
    let event = if dispatch.is_some() { Event::LeaseExpired } else { Event::Expiring };
    let mut report = Report::new(event, new_event(&tx), timer);
    if let Some(dispatch) = dispatch {
        report = report.with(DISPATCH, Value::Int(dispatch));
    }
    let outcome = apply::<NodeTask>(&mut tx, id, &report).await?;
    if outcome.landed_on(Status::Queued)
        && let Some(task) = node_tasks::find(&mut tx, id).await?
    {
        node_tasks::ring_node(&mut tx, task.node);
    }
    tx.commit().await?;
    Ok(outcome.is_applied())
}

/// A task that a workflow waited for, if it has ended.
///
/// # Errors
/// When there is no such task.
pub async fn load(tx: &mut Tx, id: Uuid) -> Result<Task, Error> {
    let task = node_tasks::find(tx, NodeTaskId(id)).await?;
    task.ok_or_else(|| Error::Broken(format!("task {id} is not there")))
}
