//! A claim that was given up: `quarantine` sets it aside, and when somebody has seen to the machine, `clear` gives it back.
//! Doors: POST /admin/claims/{id}/quarantine and …/clear.

use domain::ids::{AllocationId, ClaimId};
use domain::machines::claim::Event;
use domain::machines::{Claim as Machine, REASON, allocation, claim};
use domain::policy::Permission;
use jiff::Timestamp;
use lifecycle::{Outcome, Value};
use store::claims::{self, Place};
use store::lifecycle::{Report, apply};
use store::{Tx, allocations};
use wire::http::admin::Because;
use wire::http::claims::Claim;

use super::view;
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish, refuse};
use crate::ids::new_event;
use crate::node::{heartbeat, task};
use crate::{Caller, Ctx, Error};

/// An operator sets aside what could not be cleaned, so that nobody gets it until it is cleared. Work on it that is still
/// under way is called off: it must not reach a slot that was cleared meanwhile.
///
/// # Errors
/// [`Error::Conflict`] when it is not stuck, or its allocation has not ended.
pub async fn quarantine(
    ctx: &Ctx,
    caller: &Caller,
    id: ClaimId,
    because: &Because,
    key: Option<&Key>,
) -> Result<Answer<Claim>, Error> {
    caller.needs(Permission::FleetManage)?;
    let reason = because_of(because)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let deed = Deed::new(caller, Action::ClaimQuarantine, "claim", id).because(reason);
    let place = place_of(&mut tx, id, heartbeat::silent_before(ctx)).await?;
    let deed = deed.with(serde_json::json!({ "allocation_id": place.allocation.uuid() }));
    let held = allocations::hold(&mut tx, place.allocation).await?;
    let held = held.ok_or(Error::NotFound("allocation"))?;
    if let Some(why) = not_yet(held.status) {
        return refuse(tx, &deed, why).await;
    }
    match report(&mut tx, id, Event::Quarantining, &deed).await? {
        Outcome::Applied { .. } | Outcome::Duplicate(_) => {}
        Outcome::Refused(refusal) => {
            let status = refusal.status.ok_or(Error::NotFound("claim"))?;
            return refuse(tx, &deed, format!("the claim is {status}: {}", when_stuck(status)))
                .await;
        }
    }
    call_off(&mut tx, place.allocation, &deed).await?;
    let shown = view::in_transaction(&mut tx, id).await?;
    finish(tx, &deed, key, 200, shown).await
}

/// An operator has seen to the machine: what was set aside is anybody's. Refused while the node says that something of the
/// allocation is still there, or has said nothing since; a node that is silent is told when it is heard of again.
///
/// # Errors
/// [`Error::Conflict`] when it is not set aside, or something is left there.
pub async fn clear(
    ctx: &Ctx,
    caller: &Caller,
    id: ClaimId,
    because: &Because,
    key: Option<&Key>,
) -> Result<Answer<Claim>, Error> {
    caller.needs(Permission::FleetManage)?;
    let reason = because_of(because)?;
    let gone_before = gone_before(ctx).await?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let place = place_of(&mut tx, id, gone_before).await?;
    let deed = Deed::new(caller, Action::ClaimClear, "claim", id)
        .because(reason)
        .with(serde_json::json!({ "allocation_id": place.allocation.uuid() }));
    allocations::hold(&mut tx, place.allocation).await?;
    // Read again under the lock: it may have been set aside just now, and what was said of it before does not count.
    let place = place_of(&mut tx, id, gone_before).await?;
    let standing = view::in_transaction(&mut tx, id).await?.status.0;
    if let Some(why) = in_the_way(&place, standing) {
        let silence = ctx.policies().node_offline_after_seconds;
        let why = format!(
            "{why} after its next heartbeat; if the machine is gone, when it has not been heard of for {silence} s"
        );
        return refuse(tx, &deed, why).await;
    }
    match report(&mut tx, id, Event::Cleared, &deed).await? {
        Outcome::Applied { .. } | Outcome::Duplicate(_) => {
            let shown = view::in_transaction(&mut tx, id).await?;
            finish(tx, &deed, key, 200, shown).await
        }
        Outcome::Refused(refusal) => {
            let status = refusal.status.ok_or(Error::NotFound("claim"))?;
            let why = format!("the claim is {status}: only one that was set aside is cleared");
            refuse(tx, &deed, why).await
        }
    }
}

/// What the node says that speaks against clearing. A node that was not heard of since the claim was set aside may have been
/// given work by then that it did not know of when it last spoke.
fn in_the_way(place: &Place, standing: claim::Status) -> Option<String> {
    let Place { node, allocation, silent, heard_since, traces } = place;
    if standing != claim::Status::Quarantined || *silent {
        return None;
    }
    if !traces.is_empty() {
        let shown = traces.join(" and ");
        return Some(format!(
            "the node {node} still shows {shown} of allocation {allocation}: remove it on the machine, and clear the claim"
        ));
    }
    if *heard_since {
        return None;
    }
    Some(format!("the node {node} has not been heard of since the claim was set aside: clear it"))
}

async fn place_of(tx: &mut Tx, id: ClaimId, silent_before: Timestamp) -> Result<Place, Error> {
    let place = claims::find_place(tx, id, silent_before).await?;
    place.ok_or(Error::NotFound("claim"))
}

/// Who was last heard of before this is as good as gone. Nobody is, while nobody was there to hear them.
async fn gone_before(ctx: &Ctx) -> Result<Timestamp, Error> {
    let before = heartbeat::silent_before(ctx);
    let listened = heartbeat::was_listened(ctx, before).await?;
    Ok(if listened { before } else { Timestamp::UNIX_EPOCH })
}

async fn report(
    tx: &mut Tx,
    id: ClaimId,
    event: Event,
    deed: &Deed<'_>,
) -> Result<Outcome<claim::Status>, Error> {
    let reason = deed.reason.clone().unwrap_or_default();
    let report = Report::new(event, new_event(tx), deed.caller.operator_actor())
        .because(deed.caller.cause())
        .with(REASON, Value::Text(reason.into()));
    let outcome = apply::<Machine>(tx, id, &report).await?;
    if outcome.is_retryable() { Err(store::Error::Conflict.into()) } else { Ok(outcome) }
}

/// What is still under way for an allocation of which something was set aside. While another of its claims is being
/// cleaned, that clean-up goes on.
async fn call_off(tx: &mut Tx, id: AllocationId, deed: &Deed<'_>) -> Result<(), Error> {
    let claims = claims::lock_live(tx, id).await?;
    if claims.iter().any(|claim| claim.status == claim::Status::Cleaning) {
        return Ok(());
    }
    task::call_off_all(tx, id, &deed.caller.operator_actor(), "set_aside").await
}

/// Why nothing of an allocation in this status can be set aside.
fn not_yet(status: allocation::Status) -> Option<String> {
    use allocation::Status::{
        Active, Failed, Provisioning, ReleaseFailed, Released, Releasing, Requested, RestartFailed,
        Restarting,
    };
    match status {
        Failed | Released => None,
        ReleaseFailed => Some(format!(
            "its allocation is {status}: abandon that, and everything it holds is set aside"
        )),
        Requested | Provisioning | Active | Restarting | RestartFailed => {
            Some(format!("its allocation is {status}: release that first, by force if need be"))
        }
        Releasing => {
            Some(format!("its allocation is {status}: wait until it is released, or given up"))
        }
    }
}

fn when_stuck(status: claim::Status) -> &'static str {
    match status {
        claim::Status::Cleaning => "wait until it is clean, or given up",
        claim::Status::Freed => "it is free, and there is nothing to set aside",
        claim::Status::Reserved
        | claim::Status::Held
        | claim::Status::Stuck
        | claim::Status::Quarantined => "only one whose clean-up was given up is set aside",
    }
}

fn because_of(because: &Because) -> Result<&str, Error> {
    crate::audit_log::because(&because.reason)
}
