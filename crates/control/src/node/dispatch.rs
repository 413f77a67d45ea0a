//! Tasks are handed out: those that wait for a node to its agent, each signed for this very time.
//! Door: the node gateway.

use domain::machines::node_task::{AGENT_ID, Event, NODE_ID};
use lifecycle::Value;
use serde_json::value::RawValue;
use store::lifecycle::Report;
use store::node_tasks::{self, Sealed, Task};
use store::{Company, Tx};
use wire::node::{Envelope, SignedTask};
use wire::seal::Purpose;

use super::enrol::AgentIdentity;
use super::task::{took, traced};
use crate::ids::new_event;
use crate::{Ctx, Error};

/// No more is handed out at once when the envelopes are longer than this together: an agent reads only so much.
const ENVELOPES_BYTES: usize = 1 << 20;

/// Hands the tasks that have waited longest to their node's agent, at most `most` of them, each signed for this dispatch.
///
/// # Errors
/// When the database fails.
pub async fn claim(ctx: &Ctx, agent: &AgentIdentity, most: u16) -> Result<Vec<SignedTask>, Error> {
    let company = Company::Same { doing: ("tasks", "claim"), about: agent.node_id.uuid() };
    match claim_in(ctx, agent, most, company).await {
        Err(error) if error.is_company() => claim_in(ctx, agent, most, Company::Alone).await,
        handed_out => handed_out,
    }
}

async fn claim_in(
    ctx: &Ctx,
    agent: &AgentIdentity,
    most: u16,
    company: Company,
) -> Result<Vec<SignedTask>, Error> {
    let mut tx = ctx.store.begin_in(company).await?;
    let queued = node_tasks::lock_queued(&mut tx, agent.node_id, ctx.clock.now(), most).await?;
    if queued.is_empty() {
        tx.rollback().await?;
        return Ok(Vec::new());
    }
    let (mut sealed, mut reports, mut bytes) = (Vec::new(), Vec::new(), 0);
    for queued in queued {
        let task = queued.task.clone();
        let span = traced("dispatch", &task);
        let (signed, report) = span.in_scope(|| seal(ctx, agent, &tx, &task))?;
        bytes += signed.envelope.len();
        sealed.push((task, signed, span));
        reports.push((queued, report));
        // What is left stays queued, and is handed out next.
        if bytes > ENVELOPES_BYTES {
            break;
        }
    }
    let outcomes = node_tasks::report_all(&mut tx, reports).await?;
    tx.commit().await?;
    let mut handed_out = Vec::with_capacity(sealed.len());
    for ((task, signed, _), outcome) in sealed.into_iter().zip(outcomes) {
        if !outcome.is_applied() {
            continue;
        }
        if signed.dispatch == 1 {
            took(task.kind, "queued", task.age_seconds);
        }
        handed_out.push(signed);
    }
    Ok(handed_out)
}

/// A task as it is handed out now, and the report of it.
fn seal(
    ctx: &Ctx,
    agent: &AgentIdentity,
    tx: &Tx,
    task: &Task,
) -> Result<(SignedTask, Report<Event>), Error> {
    let dispatch = task.dispatch + 1;
    let envelope = envelope(ctx, agent, task, dispatch);
    let envelope =
        serde_json::to_string(&envelope).map_err(|error| Error::Broken(error.to_string()))?;
    let signature = ctx.keys.sign(Purpose::Task, envelope.as_bytes());
    let lease_until = ctx.after_seconds(ctx.policies().task_lease_seconds);
    let sealed = Sealed { envelope: &envelope, signature: &signature, lease_until };
    let report = Report::new(Event::Dispatching, new_event(tx), agent.actor())
        .with(NODE_ID, Value::Id(agent.node_id.uuid().as_u128()))
        .with(AGENT_ID, Value::Id(agent.agent_id.as_u128()));
    let report = sealed.with(report);
    trace::note("dispatch", dispatch);
    // An agent goes on where it was handed the task, or where the task was queued; in version 1 it knows nothing of traces.
    let from = trace::current().or_else(|| task.traceparent.clone());
    let traceparent = from.filter(|_| agent.protocol > 1);
    let task_id = task.id.uuid();
    Ok((SignedTask { task_id, dispatch, envelope, signature, traceparent }, report))
}

fn envelope<'a>(
    ctx: &Ctx,
    agent: &AgentIdentity,
    task: &'a Task,
    dispatch: i64,
) -> Envelope<&'a RawValue> {
    let now = ctx.clock.now();
    let lasts = ctx.after_seconds(ctx.policies().task_envelope_ttl_seconds);
    Envelope {
        v: agent.protocol,
        key_id: ctx.keys.verifying(Purpose::Task).id(),
        task_id: task.id.uuid(),
        node_id: task.node.uuid(),
        allocation_id: task.allocation.uuid(),
        operation_id: task.operation.uuid(),
        fence: task.fence,
        dispatch,
        kind: task.kind.clone(),
        params: &task.params,
        issued_at: now,
        not_before: now,
        // What an agent may still begin is what somebody still waits for.
        expires_at: task.deadline.map_or(lasts, |deadline| deadline.min(lasts)),
    }
}
