//! Claims that wait for an operator, with what is to be done about each.

use domain::ids::{AllocationId, ClaimId};
use domain::machines::claim;
use domain::policy::Permission;
use jiff::Timestamp;
use lifecycle::Code as _;
use store::Tx;
use store::views::claims::{self, Row};
use uuid::Uuid;
use wire::http::Page;
use wire::http::claims::Claim;

use crate::page::Paging;
use crate::stuck::advice::{Names, of_claim};
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

/// What an allocation holds that is stuck or set aside. The caller may see it.
pub(crate) async fn waiting_of(ctx: &Ctx, id: AllocationId) -> Result<Vec<Claim>, Error> {
    Ok(claims::waiting_of(&ctx.store, id).await?.into_iter().map(shown).collect())
}

/// The claim as this transaction leaves it.
pub(super) async fn in_transaction(tx: &mut Tx, id: ClaimId) -> Result<Claim, Error> {
    let row = claims::find_in(tx, id).await?;
    Ok(shown(row.ok_or(Error::NotFound("claim"))?))
}

fn shown(row: Row) -> Claim {
    let names = Names {
        id: row.id,
        name: None,
        node: Some(&row.node),
        allocation: Some(row.allocation_id),
    };
    let told = names.tell(&of_claim(row.status, row.allocation_status));
    Claim {
        id: row.id,
        status: row.status.into(),
        status_at: row.status_at,
        reason: row.reason,
        allocation_id: row.allocation_id,
        allocation_status: row.allocation_status.into(),
        node_id: row.node_id,
        node: row.node.clone(),
        slot: row.slot,
        advice: told.action,
        commands: std::iter::once(told.command).chain(told.otherwise).collect(),
    }
}
