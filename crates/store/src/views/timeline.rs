//! What the timeline is made of: what an allocation was promised, its tasks and their phases. Of a task only what is named
//! here is read: neither its parameters nor what was signed.

use domain::ids::AllocationId;
use jiff::Timestamp;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Store};

/// Something was promised to an allocation: the first of its claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// When.
    pub at: Timestamp,
    /// How many claims there are.
    pub claims: i64,
    /// On which machine.
    pub node: String,
}

/// A task, without its parameters and without what was signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its identity.
    pub id: Uuid,
    /// What it asked for.
    pub kind: String,
    /// Where it stands.
    pub status: String,
    /// Why it failed, as it was reported.
    pub reason: Option<String>,
    /// When it was queued.
    pub created_at: Timestamp,
    /// When it was last handed out.
    pub dispatched_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How often it was handed out.
    pub dispatch: i64,
    /// The machine.
    pub node: String,
    /// What the agent said of its failure, for operators.
    pub message: Option<String>,
}

/// One report of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The task.
    pub task_id: Uuid,
    /// The dispatch.
    pub dispatch: i64,
    /// The phase.
    pub phase: String,
    /// How it stood.
    pub status: String,
    /// When, by the node's clock.
    pub at: Timestamp,
}

/// What was promised to an allocation.
///
/// # Errors
/// When the database fails.
pub async fn placed(store: &Store, id: AllocationId) -> Result<Option<Placed>, Error> {
    let row = sqlx::query(
        "SELECT min(born.occurred_at), count(*), min(nodes.name)
           FROM claims
           JOIN nodes ON nodes.id = claims.node_id
           JOIN lifecycle_log AS born
             ON born.entity_id = claims.id AND born.seq = 1 AND born.machine = 'claim'
          WHERE claims.allocation_id = $1
         HAVING count(*) > 0",
    )
    .bind(id.uuid())
    .fetch_optional(store.pool())
    .await?;
    let placed = |row: PgRow| {
        Ok(Placed { at: at(&row, 0)?, claims: row.try_get(1)?, node: row.try_get(2)? })
    };
    row.map(placed).transpose()
}

/// The tasks of an allocation, oldest first.
///
/// # Errors
/// When the database fails.
pub async fn tasks(store: &Store, id: AllocationId) -> Result<Vec<Task>, Error> {
    let rows = sqlx::query(
        // A clean-up that left something behind was answered in good order, but to people it has failed.
        "SELECT task.id, task.kind,
                CASE WHEN task.status = 'succeeded' AND NOT task.cleanup_complete THEN 'failed' ELSE task.status END,
                CASE WHEN task.status = 'succeeded' AND NOT task.cleanup_complete THEN 'cleanup_incomplete' ELSE task.reason END,
                task.created_at, task.dispatched_at, task.ended_at,
                task.dispatch, nodes.name, left(task.result ->> 'message', 2048)
           FROM node_tasks AS task
           JOIN nodes ON nodes.id = task.node_id
          WHERE task.allocation_id = $1
          ORDER BY task.created_at, task.id",
    )
    .bind(id.uuid())
    .fetch_all(store.pool())
    .await?;
    let task = |row: &PgRow| {
        Ok(Task {
            id: row.try_get(0)?,
            kind: row.try_get(1)?,
            status: row.try_get(2)?,
            reason: row.try_get(3)?,
            created_at: at(row, 4)?,
            dispatched_at: maybe_at(row, 5)?,
            ended_at: maybe_at(row, 6)?,
            dispatch: row.try_get(7)?,
            node: row.try_get(8)?,
            message: row.try_get(9)?,
        })
    };
    rows.iter().map(task).collect()
}

/// The phases of all tasks of an allocation, in the order in which they were reported.
///
/// # Errors
/// When the database fails.
pub async fn phases(store: &Store, id: AllocationId) -> Result<Vec<Phase>, Error> {
    let rows = sqlx::query(
        "SELECT event.task_id, event.dispatch, event.phase, event.stands, event.at
           FROM node_tasks AS task
           JOIN node_task_events AS event ON event.task_id = task.id
          WHERE task.allocation_id = $1
          ORDER BY event.task_id, event.dispatch, event.seq",
    )
    .bind(id.uuid())
    .fetch_all(store.pool())
    .await?;
    let phase = |row: &PgRow| {
        Ok(Phase {
            task_id: row.try_get(0)?,
            dispatch: row.try_get(1)?,
            phase: row.try_get(2)?,
            status: row.try_get(3)?,
            at: at(row, 4)?,
        })
    };
    rows.iter().map(phase).collect()
}

fn at(row: &PgRow, column: usize) -> Result<Timestamp, Error> {
    Ok(row.try_get::<jiff_sqlx::Timestamp, _>(column)?.to_jiff())
}

fn maybe_at(row: &PgRow, column: usize) -> Result<Option<Timestamp>, Error> {
    Ok(row.try_get::<Option<jiff_sqlx::Timestamp>, _>(column)?.map(jiff_sqlx::Timestamp::to_jiff))
}
