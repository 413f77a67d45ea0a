//! Claims that wait for an operator, with what is to be done about each.

use domain::ids::ClaimId;
use domain::machines::{allocation, claim};
use domain::policy::Permission;
use jiff::Timestamp;
use lifecycle::Code as _;
use store::Tx;
use store::views::claims::{self, Row};
use uuid::Uuid;
use wire::http::Page;
use wire::http::claims::Claim;

use crate::page::Paging;
use crate::{Caller, Ctx, Error};

/// The place of a claim in the list: since when, which.
type Place = (Timestamp, Uuid);

/// The claims that are stuck or set aside, or those in one of these statuses, the longest waiting first.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator, [`Error::Invalid`] for a status in which no claim waits for one.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    status: Option<claim::Status>,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<Claim>, Error> {
    caller.needs(Permission::FleetRead)?;
    if let Some(status) = status {
        waits_for_an_operator(status)?;
    }
    let of = ("admin/claims", caller.user_id, status.map(|status| status.code()));
    let paging = Paging::<Place>::read(ctx, &of, limit, cursor)?;
    let rows = claims::list_waiting(&ctx.store, status, paging.after(), paging.rows()).await?;
    let place = |claim: &Claim| (claim.status_at, claim.id);
    Ok(paging.page(ctx, rows.into_iter().map(shown).collect(), place))
}

fn waits_for_an_operator(status: claim::Status) -> Result<(), Error> {
    match status {
        claim::Status::Stuck | claim::Status::Quarantined => Ok(()),
        claim::Status::Reserved
        | claim::Status::Held
        | claim::Status::Cleaning
        | claim::Status::Freed => {
            Err(Error::invalid("/status", "claims wait for an operator when stuck or quarantined"))
        }
    }
}

/// The claim as this transaction leaves it.
pub(super) async fn in_transaction(tx: &mut Tx, id: ClaimId) -> Result<Claim, Error> {
    let row = claims::find_in(tx, id).await?;
    Ok(shown(row.ok_or(Error::NotFound("claim"))?))
}

fn shown(row: Row) -> Claim {
    let advice = advice(row.status, row.allocation_status).to_owned();
    Claim {
        id: row.id,
        status: row.status.into(),
        status_at: row.status_at,
        reason: row.reason,
        allocation_id: row.allocation_id,
        allocation_status: row.allocation_status.into(),
        node_id: row.node_id,
        node: row.node,
        slot: row.slot,
        advice,
    }
}

/// What an operator does about a claim.
const fn advice(status: claim::Status, allocation: allocation::Status) -> &'static str {
    use allocation::Status::{
        Active, Failed, Provisioning, ReleaseFailed, Released, Releasing, Requested, RestartFailed,
        Restarting,
    };
    match (status, allocation) {
        (claim::Status::Stuck, ReleaseFailed) => {
            "Release the allocation once more; if the machine can't clean up any more, abandon it."
        }
        (claim::Status::Stuck, Failed) => {
            "Have it cleaned up once more; if the machine can't any more, set the claim aside."
        }
        (
            claim::Status::Stuck,
            Requested | Provisioning | Active | Restarting | RestartFailed | Releasing | Released,
        ) => "Nothing: its allocation is being seen to.",
        (claim::Status::Quarantined, _) => {
            "See to the machine by hand: nothing of the allocation may be left on it. Then clear the claim."
        }
        (claim::Status::Reserved | claim::Status::Held, _) => "Nothing: it is in use.",
        (claim::Status::Cleaning, _) => "Nothing: the node cleans up.",
        (claim::Status::Freed, _) => "Nothing: it is free.",
    }
}
