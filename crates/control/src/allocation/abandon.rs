//! Abandon: an operator who sees to the machine by hand ends a release that gave up. Nothing is proven by that, so there is
//! no receipt, and what it held is set aside until it is cleared. Door: POST /admin/allocations/{id}/abandon.

use domain::ids::{AllocationId, OperationId};
use domain::machines::allocation::{Event, Status};
use domain::machines::{REASON, claim};
use domain::policy::Permission;
use lifecycle::{Code as _, Outcome, Value};
use store::claims::{self, Live};
use store::lifecycle::Report;
use store::{Tx, allocations};
use wire::http::admin::Because;
use wire::http::allocations::Allocation;

use super::provision::reported;
use super::reason::OurReason;
use super::view::{self, Viewer};
use crate::audit_log::{self, Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish, refuse};
use crate::ids::new_event;
use crate::node::task;
use crate::{Caller, Ctx, Error};

/// Ends a release that gave up, on an operator's word. Work that is still under way is called off first: its proof would
/// come too late to be believed.
///
/// # Errors
/// [`Error::NotFound`] when there is no such allocation, [`Error::Conflict`] when its release was not given up.
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
    let deed = Deed::new(caller, Action::AllocationAbandon, "allocation", id)
        .in_project(held.project_id)
        .because(reason);
    // Under the lock it stays in this status, so nothing is called off for a report that is then refused.
    if held.status == Status::ReleaseFailed {
        let why = OurReason::Abandoned.code();
        task::call_off_all(&mut tx, id, &caller.operator_actor(), why).await?;
    }
    let report = Report::new(Event::ReleaseAbandoned, new_event(&tx), caller.operator_actor())
        .because(caller.cause())
        .with(REASON, Value::Text(OurReason::Abandoned.code().into()));
    match reported(allocations::report(&mut tx, id, &report).await?)? {
        Outcome::Applied { .. } => set_aside(&mut tx, id, held.operation, &deed).await?,
        Outcome::Duplicate(_) => {}
        Outcome::Refused(refusal) => {
            let status = refusal.status.ok_or(Error::NotFound("allocation"))?;
            return refuse(tx, &deed, format!("it is {status}: {}", instead(status))).await;
        }
    }
    let viewer = Viewer::of(caller, None);
    let shown = view::in_transaction(&mut tx, id, viewer).await?;
    finish(tx, &deed, key, 200, shown).await
}

/// Everything it holds is set aside, also what nobody has begun to clean.
async fn set_aside(
    tx: &mut Tx,
    id: AllocationId,
    operation: OperationId,
    deed: &Deed<'_>,
) -> Result<(), Error> {
    use claim::Event::{CleaningBegan, GotStuck, Quarantining};
    let live = claims::lock_live(tx, id).await?;
    let (mut given_up, mut untouched): (Vec<Live>, Vec<Live>) =
        live.into_iter().partition(|claim| claim.status == claim::Status::Stuck);
    let reason = deed.reason.clone().unwrap_or_default();
    let report = |tx: &Tx, event| {
        Report::new(event, new_event(tx), deed.caller.operator_actor())
            .because(deed.caller.cause())
            .about(operation)
            .with(REASON, Value::Text(reason.clone().into()))
    };
    for event in [CleaningBegan, GotStuck] {
        let report = report(tx, event);
        claims::report_all(tx, &mut untouched, &report).await?;
    }
    let report = report(tx, Quarantining);
    claims::report_all(tx, &mut given_up, &report).await?;
    claims::report_all(tx, &mut untouched, &report).await?;
    Ok(())
}

/// What an operator does with an allocation whose release was not given up.
const fn instead(status: Status) -> &'static str {
    match status {
        Status::Requested
        | Status::Provisioning
        | Status::Active
        | Status::Restarting
        | Status::RestartFailed => "release it by force; only a release that gave up is abandoned",
        Status::Releasing => "wait until its clean-up is proven, or given up",
        Status::ReleaseFailed => "what works on it could not be called off; try again",
        Status::Released => "it is over",
        Status::Failed => "have it cleaned up once more, or set its claims aside",
    }
}
