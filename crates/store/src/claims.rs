//! Claims: what an allocation holds. A slot is free exactly when it has no claim outside `freed`. How much of a node is
//! free is counted by the database whenever a claim comes or goes.

use std::collections::HashMap;

use domain::ids::{AllocationId, ClaimId, NodeId, OperationId, SlotId};
use domain::machines::Claim;
use domain::machines::claim::{Event, Status};
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::Outcome;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::company::Question;
use crate::lifecycle::stored::{self, Locked};
use crate::lifecycle::{Birth, Report, ToRow, born, born_all, write_all};
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
#[derive(Clone, Debug)]
pub struct Live {
    /// The claim.
    pub id: ClaimId,
    /// Where it stands.
    pub status: Status,
    /// The node.
    pub node: NodeId,
    /// The slot: its identity, its number, its NUMA node; none for the whole node.
    pub slot: Option<(SlotId, i16, i16)>,
    /// As it was read under its lock; nothing after it has moved.
    row: Option<Locked<Status>>,
}

/// The live claims of an allocation, in a stable order, locked.
///
/// # Errors
/// When the database fails.
pub async fn lock_live(tx: &mut Tx, allocation: AllocationId) -> Result<Vec<Live>, Error> {
    tx.ask(LockLive(allocation)).await
}

/// See [`lock_live`].
struct LockLive(AllocationId);

impl Question for LockLive {
    type Answer = Vec<Live>;
    const WRITES: bool = false;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<LockLive>,
    ) -> Result<Vec<Vec<Live>>, Error> {
        let allocations: Vec<Uuid> = questions.iter().map(|question| question.0.uuid()).collect();
        let statement = format!(
            "SELECT claims.id, claims.node_id, slots.id, slots.slot_index, slots.numa_node, claims.allocation_id, {}
               FROM claims
               LEFT JOIN slots ON slots.id = claims.slot_id
              WHERE claims.allocation_id = ANY ($1) AND claims.status <> 'freed'
              ORDER BY claims.id
                FOR UPDATE OF claims",
            stored::columns::<Claim>("claims.")
        );
        let query = sqlx::query(AssertSqlSafe(statement)).bind(&allocations);
        let mut of: HashMap<Uuid, Vec<Live>> = HashMap::with_capacity(allocations.len());
        for row in &query.fetch_all(connection).await? {
            of.entry(row.try_get(5)?).or_default().push(live(row)?);
        }
        Ok(allocations.iter().map(|id| of.get(id).cloned().unwrap_or_default()).collect())
    }
}

fn live(row: &PgRow) -> Result<Live, Error> {
    let id: Uuid = row.try_get(0)?;
    let slot: Option<Uuid> = row.try_get(2)?;
    let slot = match slot {
        None => None,
        Some(slot) => Some((SlotId(slot), row.try_get(3)?, row.try_get(4)?)),
    };
    let locked = stored::locked::<Claim>(row, id, 6)?;
    let (status, node) = (locked.status, NodeId(row.try_get(1)?));
    Ok(Live { id: ClaimId(id), status, node, slot, row: Some(locked) })
}

/// Reports the same event to several claims.
///
/// # Errors
/// [`Error::Conflict`] when one of them lost a race; then none of it can be committed.
pub async fn report_all(
    tx: &mut Tx,
    claims: &mut [Live],
    report: &Report<Event>,
) -> Result<Vec<Outcome<Status>>, Error> {
    let mut reports = Vec::with_capacity(claims.len());
    for claim in claims.iter_mut() {
        let id = claim.id.uuid();
        let row = match claim.row.take() {
            Some(row) => Some(row),
            None => stored::lock::<Claim>(tx, id).await?,
        };
        reports.push(ToRow { id, report, row });
    }
    let outcomes = write_all::<Claim>(tx, reports).await?;
    if outcomes.iter().any(Outcome::is_retryable) {
        return Err(Error::Conflict);
    }
    for (claim, outcome) in claims.iter_mut().zip(&outcomes) {
        if let Outcome::Applied { to, .. } = outcome {
            claim.status = *to;
        }
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

/// What a claim is about: whose it is, and where.
#[derive(Clone, Debug)]
pub struct Place {
    /// The allocation.
    pub allocation: AllocationId,
    /// The node, by name.
    pub node: String,
    /// Whether the node was last heard of before the moment that was asked about, or is offline.
    pub silent: bool,
    /// Whether the node was heard of after the claim got its status: until then it speaks of what was there before.
    pub heard_since: bool,
    /// What the node said, the last time, that it has of the allocation in this place: `a guest`, `a lease`, `a running
    /// task`.
    pub traces: Vec<&'static str>,
}

/// Where a claim is, and what its node says is there. A node that was last heard of before `silent_before` is silent.
///
/// # Errors
/// When the database fails.
pub async fn find_place(
    tx: &mut Tx,
    id: ClaimId,
    silent_before: Timestamp,
) -> Result<Option<Place>, Error> {
    let row = sqlx::query(
        "SELECT claim.allocation_id, node.name,
                node.status = 'offline' OR node.heartbeat_at IS NULL OR node.heartbeat_at < $2,
                coalesce(node.inventory_at > claim.status_at, false),
                EXISTS (
                    SELECT 1
                      FROM jsonb_array_elements(CASE WHEN jsonb_typeof(node.inventory -> 'guests') = 'array'
                                                THEN node.inventory -> 'guests' END) AS told (thing)
                     WHERE told.thing ->> 'allocation_id' = claim.allocation_id::text
                       AND (slot.id IS NULL OR told.thing -> 'slots' = '[]' OR told.thing -> 'slots' @> to_jsonb(slot.slot_index))),
                EXISTS (
                    SELECT 1
                      FROM jsonb_array_elements(CASE WHEN jsonb_typeof(node.inventory -> 'leases') = 'array'
                                                THEN node.inventory -> 'leases' END) AS told (thing)
                     WHERE told.thing ->> 'allocation_id' = claim.allocation_id::text
                       AND (slot.id IS NULL OR told.thing -> 'slots' = '[]' OR told.thing -> 'slots' @> to_jsonb(slot.slot_index))),
                EXISTS (
                    SELECT 1
                      FROM node_tasks AS task
                     WHERE task.allocation_id = claim.allocation_id AND task.node_id = node.id
                       AND node.inventory -> 'running' @> to_jsonb(task.id))
           FROM claims AS claim
           JOIN nodes AS node ON node.id = claim.node_id
           LEFT JOIN slots AS slot ON slot.id = claim.slot_id
          WHERE claim.id = $1",
    )
    .bind(id.uuid())
    .bind(silent_before.to_sqlx())
    .fetch_optional(tx.connection())
    .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let mut traces = Vec::new();
    for (position, trace) in [(4, "a guest"), (5, "a lease"), (6, "a running task")] {
        if row.try_get(position)? {
            traces.push(trace);
        }
    }
    Ok(Some(Place {
        allocation: AllocationId(row.try_get(0)?),
        node: row.try_get(1)?,
        silent: row.try_get(2)?,
        heard_since: row.try_get(3)?,
        traces,
    }))
}

/// An allocation that has failed and is being cleaned up after, while no workflow is at it.
#[derive(Clone, Copy, Debug)]
pub struct Forgotten {
    /// The allocation.
    pub allocation: AllocationId,
    /// Its operation.
    pub operation: OperationId,
    /// The greatest number of a step of one of its claims.
    pub seq: i64,
    /// How many runs there were about the allocation.
    pub runs: i64,
}

/// Finds clean-ups of failed allocations that nobody is at, though they have stood there since before `before`.
///
/// # Errors
/// When the database fails.
pub async fn forgotten(tx: &mut Tx, before: Timestamp) -> Result<Vec<Forgotten>, Error> {
    let rows = sqlx::query(
        "SELECT allocation.id, allocation.operation_id, max(claim.seq),
                (SELECT count(*) FROM workflow_runs WHERE entity_id = allocation.id)
           FROM claims AS claim
           JOIN allocations AS allocation ON allocation.id = claim.allocation_id AND allocation.status = 'failed'
          WHERE claim.status = 'cleaning'
            AND claim.status_at < $1
            AND NOT EXISTS (SELECT 1 FROM workflow_runs WHERE entity_id = allocation.id AND done_at IS NULL)
          GROUP BY allocation.id
          LIMIT 100",
    )
    .bind(before.to_sqlx())
    .fetch_all(tx.connection())
    .await?;
    let forgotten = |row: &PgRow| {
        Ok(Forgotten {
            allocation: AllocationId(row.try_get(0)?),
            operation: OperationId(row.try_get(1)?),
            seq: row.try_get(2)?,
            runs: row.try_get(3)?,
        })
    };
    rows.iter().map(forgotten).collect()
}
