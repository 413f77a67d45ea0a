//! Runs that an engine outside Postgres brings to those who step them: it is told which are due, and asks for them one by one.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{Claim, Claimed, claimed};
use crate::{Error, Store};

/// A run that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Its identity.
    pub id: String,
    /// Which workflow.
    pub workflow: String,
    /// The row it is about.
    pub entity_id: Uuid,
}

/// Up to `limit` runs that are due, that nobody has and that no engine was told of; from now on one was, until
/// `lease_until`.
///
/// # Errors
/// When the database fails.
pub async fn announce(store: &Store, claim: &Claim<'_>) -> Result<Vec<Due>, Error> {
    let rows = sqlx::query(
        // Picked once, apart from the update: see the deliveries.
        "WITH due AS MATERIALIZED (
             SELECT due.id
               FROM workflow_runs AS due
              WHERE due.done_at IS NULL
                AND due.wake_at <= $2
                AND (due.lease_until IS NULL OR due.lease_until <= $2)
                AND (due.announced_until IS NULL OR due.announced_until <= $2)
                AND due.workflow = ANY ($1)
              ORDER BY due.wake_at
              LIMIT $4
                FOR UPDATE SKIP LOCKED
         )
         UPDATE workflow_runs AS run
            SET announced_until = $3
           FROM due
          WHERE run.id = due.id
      RETURNING run.id, run.workflow, run.entity_id",
    )
    .bind(claim.workflows)
    .bind(claim.now.to_sqlx())
    .bind(claim.lease_until.to_sqlx())
    .bind(claim.limit)
    .fetch_all(store.pool())
    .await?;
    let due = |row: &PgRow| {
        Ok(Due { id: row.try_get(0)?, workflow: row.try_get(1)?, entity_id: row.try_get(2)? })
    };
    rows.iter().map(due).collect()
}

/// These could not be told of after all: whoever looks next tells of them.
///
/// # Errors
/// When the database fails; they are told of when their time is over.
pub async fn unannounce(store: &Store, runs: &[String]) -> Result<(), Error> {
    sqlx::query("UPDATE workflow_runs SET announced_until = NULL WHERE id = ANY ($1)")
        .bind(runs)
        .execute(store.pool())
        .await?;
    Ok(())
}

/// How it stands with a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Stands {
    /// It was due, and is the asker's now.
    Taken(Claimed),
    /// It is not due before this time, or somebody has it until then.
    Rests(Timestamp),
    /// It is over, or there never was such a run.
    Over,
}

/// Takes one run if it is due and nobody has it.
///
/// # Errors
/// When the database fails.
pub async fn take(
    store: &Store,
    id: &str,
    now: Timestamp,
    lease_until: Timestamp,
) -> Result<Stands, Error> {
    let taken = sqlx::query(
        "UPDATE workflow_runs AS run
            SET lease = run.lease + 1,
                lease_until = $3,
                attempts = run.attempts + 1
          WHERE run.id = $1
            AND run.done_at IS NULL
            AND run.wake_at <= $2
            AND (run.lease_until IS NULL OR run.lease_until <= $2)
      RETURNING run.id, run.workflow, run.entity_id, run.state, run.pending -> 0, run.attempts, run.lease, run.traceparent",
    )
    .bind(id)
    .bind(now.to_sqlx())
    .bind(lease_until.to_sqlx())
    .fetch_optional(store.pool())
    .await?;
    if let Some(row) = taken {
        return Ok(Stands::Taken(claimed(&row)?));
    }
    let row = sqlx::query(
        "SELECT greatest(wake_at, lease_until)
           FROM workflow_runs
          WHERE id = $1
            AND done_at IS NULL",
    )
    .bind(id)
    .fetch_optional(store.pool())
    .await?;
    let Some(row) = row else {
        return Ok(Stands::Over);
    };
    let until: Option<jiff_sqlx::Timestamp> = row.try_get(0)?;
    // Without a time it waits for a word alone, and is told of it.
    Ok(Stands::Rests(until.map_or(Timestamp::MAX, jiff_sqlx::Timestamp::to_jiff)))
}

/// How many runs of these workflows are due, and in nobody's hand.
///
/// # Errors
/// When the database fails.
pub async fn count_due(store: &Store, workflows: &[&str], now: Timestamp) -> Result<i64, Error> {
    let row = sqlx::query(
        "SELECT count(*)
           FROM workflow_runs
          WHERE done_at IS NULL
            AND wake_at <= $1
            AND (lease_until IS NULL OR lease_until <= $1)
            AND workflow = ANY ($2)",
    )
    .bind(now.to_sqlx())
    .bind(workflows)
    .fetch_one(store.pool())
    .await?;
    Ok(row.try_get(0)?)
}
