//! Claims: what an allocation holds. A slot is free exactly when it has no claim outside `freed`. How much of a node is
//! free is counted by the database whenever a claim comes or goes.

use domain::ids::{AllocationId, ClaimId, NodeId, SlotId};
use domain::machines::Claim;
use domain::machines::claim::{Event, Status};
use lifecycle::{Code as _, Outcome};
use sqlx::Row as _;
use uuid::Uuid;

use crate::lifecycle::{Birth, Report, apply, born, born_all};
use crate::{Error, Tx};

/// A claim to be: on one slot, or on the whole node.
#[derive(Clone, Copy, Debug)]
pub struct NewClaim {
    /// Its identity.
    pub id: ClaimId,
    /// Who holds it.
    pub allocation: AllocationId,
    /// On which node.
    pub node: NodeId,
    /// On which slot; none for the whole node.
    pub slot: Option<SlotId>,
}

/// Claims a slot or a node, if the node takes placements. The node is locked against leaving `ready` meanwhile, because
/// a foreign key alone would let a claim in under a node that is just being drained.
///
/// # Errors
/// When the database fails: also when the slot has a live claim.
pub async fn insert(tx: &mut Tx, claim: &NewClaim, birth: &Birth) -> Result<bool, Error> {
    let inserted = sqlx::query(
        "INSERT INTO claims (id, allocation_id, node_id, slot_id)
         SELECT $1, $2, id, $4 FROM nodes WHERE id = $3 AND status = 'ready' FOR SHARE",
    )
    .bind(claim.id.uuid())
    .bind(claim.allocation.uuid())
    .bind(claim.node.uuid())
    .bind(claim.slot.map(SlotId::uuid))
    .execute(tx.connection())
    .await?
    .rows_affected();
    if inserted == 1 {
        born::<Claim>(tx, claim.id, birth).await?;
    }
    Ok(inserted == 1)
}

/// Claims several slots of a node that the caller has locked and found ready, or the whole of it when there are none.
///
/// # Errors
/// When the database fails: also when a slot has a live claim.
pub async fn insert_all(
    tx: &mut Tx,
    allocation: AllocationId,
    node: NodeId,
    slots: &[SlotId],
    birth: &Birth,
) -> Result<(), Error> {
    let slots: Vec<Option<Uuid>> = if slots.is_empty() {
        vec![None]
    } else {
        slots.iter().map(|slot| Some(slot.uuid())).collect()
    };
    let ids: Vec<Uuid> = slots.iter().map(|_| tx.new_id()).collect();
    sqlx::query(
        "INSERT INTO claims (id, allocation_id, node_id, slot_id)
         SELECT claim.id, $1, $2, claim.slot_id
           FROM unnest($3::uuid[], $4::uuid[]) AS claim (id, slot_id)",
    )
    .bind(allocation.uuid())
    .bind(node.uuid())
    .bind(&ids)
    .bind(&slots)
    .execute(tx.connection())
    .await?;
    born_all::<Claim>(tx, &ids, birth).await
}

/// A claim that is not freed.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// The claim.
    pub id: ClaimId,
    /// Where it stands.
    pub status: Status,
    /// The node.
    pub node: NodeId,
    /// The slot: its identity, its number, its NUMA node; none for the whole node.
    pub slot: Option<(SlotId, i16, i16)>,
}

/// The live claims of an allocation, in a stable order, locked.
///
/// # Errors
/// When the database fails.
pub async fn lock_live(tx: &mut Tx, allocation: AllocationId) -> Result<Vec<Live>, Error> {
    let rows = sqlx::query(
        "SELECT claims.id, claims.status, claims.node_id, slots.id, slots.slot_index, slots.numa_node
           FROM claims
           LEFT JOIN slots ON slots.id = claims.slot_id
          WHERE claims.allocation_id = $1 AND claims.status <> 'freed'
          ORDER BY claims.id
            FOR UPDATE OF claims",
    )
    .bind(allocation.uuid())
    .fetch_all(tx.connection())
    .await?;
    let live = |row: &sqlx::postgres::PgRow| {
        let id: Uuid = row.try_get(0)?;
        let text: &str = row.try_get(1)?;
        let status = Status::parse(text).ok_or_else(|| Error::UnknownStatus {
            machine: "claim",
            id,
            status: text.to_owned(),
        })?;
        let slot: Option<Uuid> = row.try_get(3)?;
        let slot = match slot {
            None => None,
            Some(slot) => Some((SlotId(slot), row.try_get(4)?, row.try_get(5)?)),
        };
        Ok(Live { id: ClaimId(id), status, node: NodeId(row.try_get(2)?), slot })
    };
    rows.iter().map(live).collect()
}

/// Reports the same event to several claims.
///
/// # Errors
/// [`Error::Conflict`] when one of them lost a race; then none of it can be committed.
pub async fn report_all(
    tx: &mut Tx,
    claims: &[Live],
    report: &Report<Event>,
) -> Result<Vec<Outcome<Status>>, Error> {
    let mut outcomes = Vec::with_capacity(claims.len());
    for claim in claims {
        let outcome = apply::<Claim>(tx, claim.id, report).await?;
        if outcome.is_retryable() {
            return Err(Error::Conflict);
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// Whether the node that an allocation is on has fallen silent.
///
/// # Errors
/// When the database fails.
pub async fn node_is_silent(tx: &mut Tx, allocation: AllocationId) -> Result<bool, Error> {
    let row = sqlx::query(
        "SELECT EXISTS (
            SELECT 1
              FROM claims
              JOIN nodes ON nodes.id = claims.node_id
             WHERE claims.allocation_id = $1 AND claims.status <> 'freed' AND nodes.status = 'offline')",
    )
    .bind(allocation.uuid())
    .fetch_one(tx.connection())
    .await?;
    Ok(row.try_get(0)?)
}
