//! What an explanation needs beside the timeline: the machine, and what the tasks of an allocation refused.

use domain::ids::AllocationId;
use jiff::Timestamp;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Store};

/// How many refusals are shown.
const REFUSALS_MAX: i64 = 20;

/// The machine an allocation holds something of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub status: String,
    /// Since when.
    pub since: Timestamp,
}

/// The machine an allocation holds something of, if it still does.
///
/// # Errors
/// When the database fails.
pub async fn machine(store: &Store, id: AllocationId) -> Result<Option<Machine>, Error> {
    let row = sqlx::query(
        "SELECT nodes.name, nodes.status, nodes.status_at
           FROM claims
           JOIN nodes ON nodes.id = claims.node_id
          WHERE claims.allocation_id = $1 AND claims.status <> 'freed'
          LIMIT 1",
    )
    .bind(id.uuid())
    .fetch_optional(store.pool())
    .await?;
    let machine = |row: PgRow| {
        Ok(Machine {
            name: row.try_get(0)?,
            status: row.try_get(1)?,
            since: row.try_get::<jiff_sqlx::Timestamp, _>(2)?.to_jiff(),
        })
    };
    row.map(machine).transpose()
}

/// How long a provision of such an allocation may take; the SKU's own limit.
///
/// # Errors
/// When the database fails.
pub async fn provision_seconds(store: &Store, sku: &str) -> Result<Option<i32>, Error> {
    let row = sqlx::query("SELECT provision_timeout_seconds FROM skus WHERE code = $1")
        .bind(sku)
        .fetch_optional(store.pool())
        .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// A report that an allocation or one of its tasks refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The task; none for the allocation itself.
    pub task: Option<Uuid>,
    /// What was reported.
    pub event: String,
    /// The status at the time.
    pub status: Option<String>,
    /// Why nothing changed.
    pub reason: String,
    /// The check or guard behind it.
    pub name: Option<String>,
    /// Who reported it.
    pub actor: String,
    /// When.
    pub at: Timestamp,
}

/// The last reports that an allocation or its tasks refused, newest first.
///
/// # Errors
/// When the database fails.
pub async fn refusals(store: &Store, id: AllocationId) -> Result<Vec<Refused>, Error> {
    let rows = sqlx::query(
        "SELECT NULL::uuid, event, status, reason, name, actor, occurred_at
           FROM lifecycle_refusals
          WHERE entity_id = $1 AND machine = 'allocation'
         UNION ALL
         SELECT task.id, refused.event, refused.status, refused.reason, refused.name, refused.actor, refused.occurred_at
           FROM node_tasks AS task
           JOIN lifecycle_refusals AS refused ON refused.entity_id = task.id AND refused.machine = 'node_task'
          WHERE task.allocation_id = $1
          ORDER BY occurred_at DESC
          LIMIT $2",
    )
    .bind(id.uuid())
    .bind(REFUSALS_MAX)
    .fetch_all(store.pool())
    .await?;
    let refused = |row: &PgRow| {
        Ok(Refused {
            task: row.try_get(0)?,
            event: row.try_get(1)?,
            status: row.try_get(2)?,
            reason: row.try_get(3)?,
            name: row.try_get(4)?,
            actor: row.try_get(5)?,
            at: row.try_get::<jiff_sqlx::Timestamp, _>(6)?.to_jiff(),
        })
    };
    rows.iter().map(refused).collect()
}
