//! Allocations. Events reach them through [`report`] alone, which keeps the lock order and the group's fold.

use domain::ids::{AllocationGroupId, AllocationId, OperationId};
use domain::machines::Allocation;
use lifecycle::{Machine, Outcome};
use sqlx::Row as _;
use uuid::Uuid;

use crate::allocation_groups;
use crate::lifecycle::{Birth, Report, born, lost_race, stored, write, write_locked};
use crate::{Error, Tx};

/// An allocation to be.
#[derive(Clone, Debug)]
pub struct NewAllocation {
    /// Its identity.
    pub id: AllocationId,
    /// Whose it is.
    pub project_id: Uuid,
    /// The group it belongs to, and whether the group is nothing without it.
    pub member_of: Option<(AllocationGroupId, bool)>,
    /// The provision that its creation begins.
    pub provision: OperationId,
    /// What it is sold as.
    pub sku: String,
    /// How many GPUs.
    pub gpus: i16,
}

/// Adds an allocation.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, allocation: &NewAllocation, birth: Birth) -> Result<(), Error> {
    let (group, required) =
        allocation.member_of.map_or((None, true), |(group, r)| (Some(group.uuid()), r));
    sqlx::query(
        "INSERT INTO allocations (id, project_id, group_id, required, operation_id, sku, gpus)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(allocation.id.uuid())
    .bind(allocation.project_id)
    .bind(group)
    .bind(required)
    .bind(allocation.provision.uuid())
    .bind(&allocation.sku)
    .bind(allocation.gpus)
    .execute(tx.connection())
    .await?;
    born::<Allocation>(tx, allocation.id, &birth.beginning(allocation.provision)).await?;
    Ok(())
}

/// Reports an event to an allocation. If it is a member of a group, the group is locked first and follows in the same
/// transaction.
///
/// # Errors
/// Only what is broken; see [`apply`](crate::lifecycle::apply).
pub async fn report(
    tx: &mut Tx,
    id: AllocationId,
    report: &Report<<Allocation as Machine>::Event>,
) -> Result<Outcome<<Allocation as Machine>::Status>, Error> {
    match try_report(tx, id, report).await {
        Err(Error::Conflict) => Ok(lost_race::<Allocation>(tx, id.uuid(), report)),
        answer => answer,
    }
}

async fn try_report(
    tx: &mut Tx,
    id: AllocationId,
    report: &Report<<Allocation as Machine>::Event>,
) -> Result<Outcome<<Allocation as Machine>::Status>, Error> {
    // Most allocations have no group: one statement finds that out and locks them.
    let alone = stored::lock_if::<Allocation>(tx, id.uuid(), "group_id IS NULL").await?;
    if alone.is_some() {
        return write_locked::<Allocation>(tx, id.uuid(), report, alone).await;
    }
    // Read without a lock: an allocation never changes its group.
    let group = group_of(tx, id).await?;
    if let Some(group) = group {
        allocation_groups::lock(tx, group).await?;
    }
    let outcome = write::<Allocation>(tx, id.uuid(), report).await?;
    if let (Some(group), true) = (group, outcome.is_applied()) {
        let cause = format!("allocation {id}, event {}", report.event_id);
        let followed = allocation_groups::refold(tx, group, &cause).await?;
        // The member has moved only if its group could follow.
        if followed.is_some_and(|followed| followed.is_retryable()) {
            return Err(Error::Conflict);
        }
    }
    Ok(outcome)
}

async fn group_of(tx: &mut Tx, id: AllocationId) -> Result<Option<AllocationGroupId>, Error> {
    let row = sqlx::query("SELECT group_id FROM allocations WHERE id = $1")
        .bind(id.uuid())
        .fetch_optional(tx.connection())
        .await?;
    let group: Option<Uuid> = row.map(|row| row.try_get(0)).transpose()?.flatten();
    Ok(group.map(AllocationGroupId))
}
