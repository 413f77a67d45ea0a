//! Taking a node out of the fleet, for a while or for good: `drain` → nothing is left on it → maintenance → `resume`; or
//! `retire`. Doors: POST /admin/nodes/{id}/drain, …/resume and …/retire; a timer for nodes that have run empty.

use domain::ids::{EventId, NodeId};
use domain::machines::node::{Event, Status};
use domain::machines::{Node as Machine, REASON, claim};
use domain::policy::Permission;
use lifecycle::{Code as _, Outcome, Source, Value};
use store::lifecycle::{Actor, Report, apply};
use store::views::fleet;
use store::{Tx, node_agents, nodes};
use uuid::Uuid;
use wire::http::admin::{Because, Node};

use super::{enrol, heartbeat, task};
use crate::audit_log::{self, Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish, refuse};
use crate::ids::new_event;
use crate::{Caller, Ctx, Error};

/// How many of those that are in the way are named.
const NAMED_MAX: usize = 5;

/// A node takes no placements from now on. What is on it stays until it is given back; when it is empty, the node is in
/// maintenance.
///
/// # Errors
/// [`Error::NotFound`] when there is no such node, [`Error::Conflict`] when it can't be drained.
pub async fn drain(
    ctx: &Ctx,
    caller: &Caller,
    id: Uuid,
    because: &Because,
    key: Option<&Key>,
) -> Result<Answer<Node>, Error> {
    let (node, reason) = (NodeId(id), checked(caller, because)?);
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let deed = Deed::new(caller, Action::NodeDrain, "node", node).because(reason);
    match report(&mut tx, node, Event::DrainRequested, &deed).await? {
        Outcome::Applied { .. } | Outcome::Duplicate(_) => {}
        Outcome::Refused(refusal) => {
            let status = refusal.status.ok_or(Error::NotFound("node"))?;
            let instead = match status {
                Status::Enrolling => "it has no agent yet; retire it if it is not to come",
                Status::Maintenance => "it is empty already",
                Status::Retired => "it is gone for good",
                Status::Ready | Status::Offline | Status::Draining => "try again",
            };
            return refuse(tx, &deed, format!("the node is {status}: {instead}")).await;
        }
    }
    if nodes::live_claims(&mut tx, node).await?.is_empty() {
        // Whoever places locks the node first, so nothing can have come in between.
        report(&mut tx, node, Event::DrainCompleted, &deed).await?.require().map_err(refused)?;
    }
    let shown = fleet::find_in(&mut tx, node).await?.ok_or(Error::NotFound("node"))?;
    finish(tx, &deed, key, 200, shown).await
}

/// A node that was in maintenance takes placements again.
///
/// # Errors
/// [`Error::Conflict`] when it is not in maintenance, or its agent is not heard of.
pub async fn resume(
    ctx: &Ctx,
    caller: &Caller,
    id: Uuid,
    because: &Because,
    key: Option<&Key>,
) -> Result<Answer<Node>, Error> {
    let (node, reason) = (NodeId(id), checked(caller, because)?);
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let deed = Deed::new(caller, Action::NodeResume, "node", node).because(reason);
    let before = fleet::find_in(&mut tx, node).await?.ok_or(Error::NotFound("node"))?;
    let silent = before.heartbeat_at.is_none_or(|at| at < heartbeat::silent_before(ctx));
    if before.status.0 == Status::Maintenance && silent {
        let why = "its agent is not heard of: start it, or enrol the node anew, and resume it then";
        return refuse(tx, &deed, why.to_owned()).await;
    }
    match report(&mut tx, node, Event::MaintenanceEnded, &deed).await? {
        Outcome::Applied { .. } | Outcome::Duplicate(_) => {
            let shown = fleet::find_in(&mut tx, node).await?.ok_or(Error::NotFound("node"))?;
            finish(tx, &deed, key, 200, shown).await
        }
        Outcome::Refused(refusal) => {
            let status = refusal.status.ok_or(Error::NotFound("node"))?;
            let instead = match status {
                Status::Draining => {
                    let left = nodes::live_claims(&mut tx, node).await?;
                    format!("{} left on it; it is resumed when it is empty", on_it(&left))
                }
                Status::Enrolling => "it waits for its agent".to_owned(),
                Status::Offline => "it takes placements when its agent is heard of".to_owned(),
                Status::Retired => "it is gone for good".to_owned(),
                Status::Ready | Status::Maintenance => "try again".to_owned(),
            };
            refuse(tx, &deed, format!("the node is {status}: {instead}")).await
        }
    }
}

/// A node is gone for good. Only one on which nothing is left; its agent is cut off, and its tasks are called off.
///
/// # Errors
/// [`Error::Conflict`] while something is left on it, naming it.
pub async fn retire(
    ctx: &Ctx,
    caller: &Caller,
    id: Uuid,
    because: &Because,
    key: Option<&Key>,
) -> Result<Answer<Node>, Error> {
    let (node, reason) = (NodeId(id), checked(caller, because)?);
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let deed = Deed::new(caller, Action::NodeRetire, "node", node).because(reason);
    match report(&mut tx, node, Event::Retiring, &deed).await? {
        Outcome::Applied { .. } => {}
        Outcome::Duplicate(_) => {
            let shown = fleet::find_in(&mut tx, node).await?.ok_or(Error::NotFound("node"))?;
            return finish(tx, &deed, key, 200, shown).await;
        }
        Outcome::Refused(refusal) => {
            let status = refusal.status.ok_or(Error::NotFound("node"))?;
            let left = nodes::live_claims(&mut tx, node).await?;
            let why = format!(
                "the node is {status}, with {} on it: {}",
                on_it(&left),
                before_retiring(status, &left)
            );
            return refuse(tx, &deed, why).await;
        }
    }
    enrol::revoke(&mut tx, node).await?;
    node_agents::withdraw_tokens(&mut tx, node, ctx.clock.now()).await?;
    let told = task::call_off_node(&mut tx, node, &caller.operator_actor()).await?;
    let shown = fleet::find_in(&mut tx, node).await?.ok_or(Error::NotFound("node"))?;
    let answer = finish(tx, &deed, key, 200, shown).await?;
    task::tell_called_off(ctx, told).await;
    Ok(answer)
}

fn checked<'a>(caller: &Caller, because: &'a Because) -> Result<&'a str, Error> {
    caller.needs(Permission::FleetManage)?;
    audit_log::because(&because.reason)
}

async fn report(
    tx: &mut Tx,
    node: NodeId,
    event: Event,
    deed: &Deed<'_>,
) -> Result<Outcome<Status>, Error> {
    let reason = deed.reason.clone().unwrap_or_default();
    let report = Report::new(event, new_event(tx), deed.caller.operator_actor())
        .because(deed.caller.cause())
        .with(REASON, Value::Text(reason.into()));
    let outcome = apply::<Machine>(tx, node, &report).await?;
    if outcome.is_retryable() { Err(store::Error::Conflict.into()) } else { Ok(outcome) }
}

fn refused(refusal: lifecycle::Refusal<Status>) -> Error {
    Error::Conflict(refusal.to_string())
}

/// What is in the way, in words: each allocation once, however many slots it holds.
fn on_it(claims: &[(Uuid, String)]) -> String {
    let mut each: Vec<&(Uuid, String)> = claims.iter().collect();
    each.sort_unstable();
    each.dedup();
    let named: Vec<String> = each
        .iter()
        .take(NAMED_MAX)
        .map(|(allocation, status)| format!("allocation {allocation} ({status})"))
        .collect();
    match each.len() {
        0 => "nothing".to_owned(),
        count if count > NAMED_MAX => {
            format!("{} and {} more", named.join(", "), count - NAMED_MAX)
        }
        _ => named.join(", "),
    }
}

/// What has to be done before a node with this on it can be retired.
fn before_retiring(status: Status, claims: &[(Uuid, String)]) -> &'static str {
    let waits = [claim::Status::Stuck.code(), claim::Status::Quarantined.code()];
    if claims.iter().all(|(_, status)| waits.contains(&status.as_str())) {
        "have that cleaned up, or see to it by hand and clear its claims, and retire the node then"
    } else if status == Status::Draining {
        "retire it when it is empty"
    } else {
        "drain it, and retire it when it is empty"
    }
}

/// Nodes that were drained and are empty by now are in maintenance; says how many.
///
/// # Errors
/// When the store fails.
pub async fn sweep(ctx: &Ctx) -> Result<u64, Error> {
    let mut emptied = 0;
    for node in nodes::list_drained(&ctx.store).await? {
        let mut tx = ctx.store.begin().await?;
        let actor = Actor::new(Source::Reconciler, "sweep of drained nodes");
        let report = Report::new(Event::DrainCompleted, EventId(tx.new_id()), actor);
        let outcome = apply::<Machine>(&mut tx, node, &report).await?;
        if outcome.is_retryable() {
            continue;
        }
        tx.commit().await?;
        emptied += u64::from(outcome.is_applied());
    }
    Ok(emptied)
}
