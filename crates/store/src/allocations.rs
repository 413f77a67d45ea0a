//! Allocations. Events reach them through [`report`] alone, which keeps the lock order and the group's fold.

mod relations;

use std::collections::HashMap;

use domain::ids::{AllocationGroupId, AllocationId, OperationId};
use domain::machines::Allocation;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::{Code, Machine, Outcome};
use serde_json::Value;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::allocation_groups;
use crate::company::Question;
use crate::lifecycle::{Birth, Kept, Report, born, lost_race, stored, write_locked};
use crate::{Error, Tx, usage_records};
pub use relations::{Relation, relations};

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
    /// What was agreed.
    pub terms: Terms,
}

/// What was agreed when an allocation was asked for. It does not change with the catalogue.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// What it is called.
    pub name: Option<String>,
    /// Who asked for it.
    pub owner_id: Option<Uuid>,
    /// Where.
    pub region: String,
    /// The image.
    pub image: String,
    /// Whether it is a whole machine.
    pub whole: bool,
    /// The price of one GPU for one second.
    pub price_micros_per_gpu_second: i64,
    /// In which currency.
    pub currency: String,
    /// Who may log in: public keys.
    pub ssh_keys: Vec<String>,
}

impl Terms {
    /// What shape it has, as the database calls it.
    pub(crate) const fn shape(&self) -> &'static str {
        if self.whole { "baremetal" } else { "gpu_slice" }
    }
}

/// Adds an allocation.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, allocation: &NewAllocation, birth: Birth) -> Result<(), Error> {
    let (group, required) =
        allocation.member_of.map_or((None, true), |(group, r)| (Some(group.uuid()), r));
    sqlx::query(
        "INSERT INTO allocations (id, project_id, group_id, required, operation_id, sku, gpus, name, owner_id, region,
                image, shape, price_micros_per_gpu_second, currency, ssh_keys)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
    )
    .bind(allocation.id.uuid())
    .bind(allocation.project_id)
    .bind(group)
    .bind(required)
    .bind(allocation.provision.uuid())
    .bind(&allocation.sku)
    .bind(allocation.gpus)
    .bind(&allocation.terms.name)
    .bind(allocation.terms.owner_id)
    .bind(&allocation.terms.region)
    .bind(&allocation.terms.image)
    .bind(allocation.terms.shape())
    .bind(allocation.terms.price_micros_per_gpu_second)
    .bind(&allocation.terms.currency)
    .bind(&allocation.terms.ssh_keys)
    .execute(tx.connection())
    .await?;
    born::<Allocation>(tx, allocation.id, &birth.beginning(allocation.provision)).await?;
    Ok(())
}

/// An allocation as a workflow needs it, with its group and itself locked, in this order.
#[derive(Clone, Debug)]
pub struct Held {
    /// Where it stands.
    pub status: <Allocation as Machine>::Status,
    /// Its present operation.
    pub operation: OperationId,
    /// Whose it is.
    pub project_id: Uuid,
    /// What it was sold as.
    pub sku: String,
    /// How many GPUs.
    pub gpus: i16,
    /// Where.
    pub region: String,
    /// Whether it is a whole machine.
    pub whole: bool,
    /// The image.
    pub image: String,
    /// The SHA-256 that the image must have; none if it has left the catalogue.
    pub image_sha256: Option<String>,
    /// Who may log in.
    pub ssh_keys: Vec<String>,
    /// How long its provision may take.
    pub provision_timeout_seconds: i32,
    /// When it became usable.
    pub active_at: Option<Timestamp>,
    /// When it was given back.
    pub release_requested_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// Locks an allocation, its group first, and reads it.
///
/// # Errors
/// [`Error::Conflict`] when the lock was lost to another transaction.
pub async fn hold(tx: &mut Tx, id: AllocationId) -> Result<Option<Held>, Error> {
    // Most allocations have no group: one statement finds that out and locks them.
    let held = tx.ask(Hold { id, condition: "allocation.group_id IS NULL" }).await?;
    if held.is_none()
        && let Some(group) = group_of(tx, id).await?
    {
        allocation_groups::lock(tx, group).await?;
        return tx.ask(Hold { id, condition: "true" }).await;
    }
    Ok(held)
}

/// Locks an allocation of which `condition` holds, and reads it.
struct Hold {
    id: AllocationId,
    condition: &'static str,
}

impl Question for Hold {
    type Answer = Option<Held>;
    const WRITES: bool = false;

    fn statement(&self) -> &str {
        self.condition
    }

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<Hold>,
    ) -> Result<Vec<Option<Held>>, Error> {
        let condition = questions.first().map_or("true", |first| first.condition);
        let ids: Vec<Uuid> = questions.iter().map(|question| question.id.uuid()).collect();
        let statement = format!(
            "SELECT allocation.status, allocation.operation_id, allocation.project_id, allocation.sku, allocation.gpus,
                    allocation.region, allocation.shape = 'baremetal', allocation.image,
                    (SELECT sha256 FROM images WHERE images.code = allocation.image), allocation.ssh_keys,
                    coalesce((SELECT provision_timeout_seconds FROM skus WHERE skus.code = allocation.sku), 600),
                    allocation.active_at, allocation.release_requested_at, allocation.ended_at, allocation.id
               FROM allocations AS allocation
              WHERE allocation.id = ANY ($1)
                AND {condition}
              ORDER BY allocation.id
                FOR UPDATE OF allocation"
        );
        let rows = sqlx::query(AssertSqlSafe(statement)).bind(&ids).fetch_all(connection).await?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            let id: Uuid = row.try_get(14)?;
            found.insert(id, held(AllocationId(id), row)?);
        }
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }
}

fn held(id: AllocationId, row: &PgRow) -> Result<Held, Error> {
    let text: &str = row.try_get(0)?;
    let status = Code::parse(text).ok_or_else(|| Error::UnknownStatus {
        machine: Allocation::NAME,
        id: id.uuid(),
        status: text.to_owned(),
    })?;
    let time = |position: usize| -> Result<Option<Timestamp>, Error> {
        let at: Option<jiff_sqlx::Timestamp> = row.try_get(position)?;
        Ok(at.map(jiff_sqlx::Timestamp::to_jiff))
    };
    Ok(Held {
        status,
        operation: OperationId(row.try_get(1)?),
        project_id: row.try_get(2)?,
        sku: row.try_get(3)?,
        gpus: row.try_get(4)?,
        region: row.try_get(5)?,
        whole: row.try_get(6)?,
        image: row.try_get(7)?,
        image_sha256: row.try_get(8)?,
        ssh_keys: row.try_get(9)?,
        provision_timeout_seconds: row.try_get(10)?,
        active_at: time(11)?,
        release_requested_at: time(12)?,
        ended_at: time(13)?,
    })
}

/// Of these allocations, those that are over: they have ended, and whatever they held is freed or set aside. One that
/// nobody here knows is not among them.
///
/// # Errors
/// When the database fails.
pub async fn over(tx: &mut Tx, ids: &[Uuid]) -> Result<Vec<Uuid>, Error> {
    let rows = sqlx::query(
        "SELECT allocation.id
           FROM allocations AS allocation
          WHERE allocation.id = ANY ($1::uuid[])
            AND allocation.status IN ('released', 'failed')
            AND NOT EXISTS (
                SELECT 1
                  FROM claims AS claim
                 WHERE claim.allocation_id = allocation.id AND claim.status NOT IN ('freed', 'quarantined'))",
    )
    .bind(ids)
    .fetch_all(tx.connection())
    .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// The step after which an allocation is reached like this.
#[must_use]
pub fn keeping_access(
    step: Report<<Allocation as Machine>::Event>,
    access: Value,
) -> Report<<Allocation as Machine>::Event> {
    step.keeping("access", Kept::Json(access))
}

/// An allocation that waits for a worker while no workflow is at it, nor a message on its way that would start one.
#[derive(Clone, Copy, Debug)]
pub struct Forgotten {
    /// The allocation.
    pub id: AllocationId,
    /// Where it stands.
    pub status: <Allocation as Machine>::Status,
    /// Its present operation.
    pub operation: OperationId,
    /// The number of its last step.
    pub seq: i64,
    /// How many runs there were about it.
    pub runs: i64,
}

/// Finds what nobody is at, though it has stood there since before `before`.
///
/// # Errors
/// When the database fails.
pub async fn forgotten(tx: &mut Tx, before: Timestamp) -> Result<Vec<Forgotten>, Error> {
    let rows = sqlx::query(
        "SELECT id, status, operation_id, seq,
                (SELECT count(*) FROM workflow_runs WHERE entity_id = allocations.id)
           FROM allocations
          WHERE status IN ('requested', 'provisioning', 'releasing', 'restarting')
            AND status_at < $1
            AND NOT EXISTS (SELECT 1 FROM workflow_runs WHERE entity_id = allocations.id AND done_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM bus_deliveries WHERE consumer = 'provisioner' AND entity_id = allocations.id AND dead_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM outbox_events WHERE entity_id = allocations.id AND published_at IS NULL)
          ORDER BY status_at
          LIMIT 100",
    )
    .bind(before.to_sqlx())
    .fetch_all(tx.connection())
    .await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let (id, text): (Uuid, &str) = (row.try_get(0)?, row.try_get(1)?);
        let status = Code::parse(text).ok_or_else(|| Error::UnknownStatus {
            machine: Allocation::NAME,
            id,
            status: text.to_owned(),
        })?;
        found.push(Forgotten {
            id: AllocationId(id),
            status,
            operation: OperationId(row.try_get(2)?),
            seq: row.try_get(3)?,
            runs: row.try_get(4)?,
        });
    }
    Ok(found)
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
        return metered(tx, id, report, alone).await;
    }
    // Read without a lock: an allocation never changes its group.
    let group = group_of(tx, id).await?;
    if let Some(group) = group {
        allocation_groups::lock(tx, group).await?;
    }
    let row = stored::lock::<Allocation>(tx, id.uuid()).await?;
    let outcome = metered(tx, id, report, row).await?;
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

/// The move of a locked allocation, and its meter's.
async fn metered(
    tx: &mut Tx,
    id: AllocationId,
    report: &Report<<Allocation as Machine>::Event>,
    row: Option<stored::Locked<<Allocation as Machine>::Status>>,
) -> Result<Outcome<<Allocation as Machine>::Status>, Error> {
    let running = match &row {
        Some(row) => usage_records::hold(tx, id, row.status, report.event).await?,
        None => None,
    };
    let outcome = write_locked::<Allocation>(tx, id.uuid(), report, row).await?;
    usage_records::follow(tx, id, running, &outcome).await?;
    Ok(outcome)
}

/// The group of an allocation. Its members meet at its row, so nobody shares a transaction with one of them.
async fn group_of(tx: &mut Tx, id: AllocationId) -> Result<Option<AllocationGroupId>, Error> {
    tx.alone()?;
    let row = sqlx::query("SELECT group_id FROM allocations WHERE id = $1")
        .bind(id.uuid())
        .fetch_optional(tx.connection())
        .await?;
    let group: Option<Uuid> = row.map(|row| row.try_get(0)).transpose()?.flatten();
    Ok(group.map(AllocationGroupId))
}
