//! Runs of workflows. What is said to a run is appended, and taken off by the very statement that saves the step which heard
//! it, from the row as it is then: a word is never lost. Who takes a run raises its lease; only the newest may save.

pub mod driven;
mod saved;
mod started;
mod words;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use serde_json::{Value, json};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::deliveries::shortened;
use crate::prune::Prune;
use crate::{Error, Store};
pub use saved::{finish, finish_in, save, save_in};
pub use started::{start, start_in};
pub use words::{tell, tell_all_in, tell_in};

/// A run to be.
#[derive(Clone, Copy, Debug)]
pub struct NewRun<'a> {
    /// Its identity.
    pub id: &'a str,
    /// Which workflow.
    pub workflow: &'a str,
    /// The row it is about.
    pub entity_id: Uuid,
    /// What it starts with.
    pub state: &'a Value,
}

/// The first word that every run hears.
pub fn started() -> Value {
    json!({ "happened": "started" })
}

/// The runs of these workflows about a row that are not over.
///
/// # Errors
/// When the database fails.
pub async fn open_of(
    store: &Store,
    entity: Uuid,
    workflows: &[&str],
) -> Result<Vec<String>, Error> {
    let rows = sqlx::query(
        "SELECT id
           FROM workflow_runs
          WHERE entity_id = $1
            AND workflow = ANY ($2::text[])
            AND done_at IS NULL
          ORDER BY id",
    )
    .bind(entity)
    .bind(workflows)
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Which runs somebody wants to take.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The workflows they know.
    pub workflows: &'a [&'a str],
    /// What time it is.
    pub now: Timestamp,
    /// When somebody else may take them, if nothing is heard until then.
    pub lease_until: Timestamp,
    /// How many at most.
    pub limit: i64,
}

/// A run that was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// Its identity.
    pub id: String,
    /// Which workflow.
    pub workflow: String,
    /// The row it is about.
    pub entity_id: Uuid,
    /// What the last step left.
    pub state: Value,
    /// The first word that it has not heard. None, if its time is over.
    pub word: Option<Value>,
    /// How often the step to come was begun, this time included.
    pub attempts: i32,
    /// What its taker must show to save it.
    pub lease: i64,
    /// Where what started it stood in its trace.
    pub traceparent: Option<String>,
}

/// Takes up to `limit` runs that are due and that nobody has.
///
/// # Errors
/// When the database fails.
pub async fn claim(store: &Store, claim: &Claim<'_>) -> Result<Vec<Claimed>, Error> {
    let rows = sqlx::query(
        // Picked once, apart from the update: see the deliveries. Nor is the disk waited for here: if the database falls and forgets who has
        // a run, somebody else takes it with the same lease. Of a step that is kept with its work only the first to save has done anything;
        // any other can be done twice, as when whoever does it dies before it is kept.
        "WITH due AS MATERIALIZED (
             SELECT due.id
               FROM workflow_runs AS due
              WHERE due.done_at IS NULL
                AND due.wake_at <= $2
                AND (due.lease_until IS NULL OR due.lease_until <= $2)
                AND due.workflow = ANY ($1)
              ORDER BY due.wake_at
              LIMIT $4
                FOR UPDATE SKIP LOCKED
         ), soon AS MATERIALIZED (
             SELECT set_config('synchronous_commit', 'off', true)
         )
         UPDATE workflow_runs AS run
            SET lease = run.lease + 1,
                lease_until = $3,
                attempts = run.attempts + 1
           FROM due, soon
          WHERE run.id = due.id
      RETURNING run.id, run.workflow, run.entity_id, run.state, run.pending -> 0, run.attempts, run.lease, run.traceparent",
    )
    .bind(claim.workflows)
    .bind(claim.now.to_sqlx())
    .bind(claim.lease_until.to_sqlx())
    .bind(claim.limit)
    .fetch_all(store.pool())
    .await?;
    let mut runs: Vec<Claimed> = rows.iter().map(claimed).collect::<Result<_, Error>>()?;
    // What is due at once has no order of its own, and else begins as it happens to lie in the table.
    runs.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(runs)
}

fn claimed(row: &PgRow) -> Result<Claimed, Error> {
    Ok(Claimed {
        id: row.try_get(0)?,
        workflow: row.try_get(1)?,
        entity_id: row.try_get(2)?,
        state: row.try_get(3)?,
        word: row.try_get(4)?,
        attempts: row.try_get(5)?,
        lease: row.try_get(6)?,
        traceparent: row.try_get(7)?,
    })
}

/// Whose step is saved.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a> {
    /// The run.
    pub id: &'a str,
    /// See [`Claimed::lease`].
    pub lease: i64,
    /// Whether the step heard the first word; else it heard that its time was over.
    pub heard: bool,
}

/// What a run waits for.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    /// What the next step will see.
    pub state: &'a Value,
    /// When the waiting is over.
    pub until: Timestamp,
    /// For people.
    pub waits_for: &'a str,
    /// If it has been told more, the lease is kept, until then.
    pub lease_until: Timestamp,
}

/// What became of a save.
#[derive(Clone, Debug, PartialEq)]
pub enum Saved {
    /// Somebody else has taken the run meanwhile: nothing was saved.
    Lost,
    /// It is over.
    Over,
    /// It rests.
    Rests,
    /// It has been told more. The saver still has it, with another lease.
    Told {
        /// The first word of it.
        word: Value,
        /// See [`Claimed::lease`].
        lease: i64,
    },
}

/// A step that failed.
#[derive(Clone, Copy, Debug)]
pub struct Failed<'a> {
    /// Why.
    pub reason: &'a str,
    /// How often it has, in a row.
    pub attempts: i32,
    /// When it is tried again, with the same word.
    pub again_at: Timestamp,
}

/// Puts a run back whose step failed; answers whether it was still the taker's.
///
/// # Errors
/// When the database fails.
pub async fn fail(store: &Store, taken: Taken<'_>, failed: &Failed<'_>) -> Result<bool, Error> {
    let done = sqlx::query(
        "UPDATE workflow_runs
            SET reason = $3,
                attempts = $4,
                wake_at = $5,
                lease_until = NULL
          WHERE id = $1
            AND lease = $2
            AND done_at IS NULL",
    )
    .bind(taken.id)
    .bind(taken.lease)
    .bind(shortened(failed.reason))
    .bind(failed.attempts)
    .bind(failed.again_at.to_sqlx())
    .execute(store.pool())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A run as it stands, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRow {
    /// Its identity.
    pub id: String,
    /// Which workflow.
    pub workflow: String,
    /// The row it is about.
    pub entity_id: Uuid,
    /// What the last step left.
    pub state: Value,
    /// What it was told and has not heard, oldest first.
    pub pending: Value,
    /// When it is due. Long ago, if it is due at once; none, if it is over.
    pub wake_at: Option<Timestamp>,
    /// What it waits for.
    pub waits_for: Option<String>,
    /// How often its step has failed or was begun, in a row.
    pub attempts: i32,
    /// Why it failed the last time.
    pub reason: Option<String>,
    /// When it was over.
    pub done_at: Option<Timestamp>,
}

/// A run.
///
/// # Errors
/// When the database fails.
pub async fn find(store: &Store, id: &str) -> Result<Option<RunRow>, Error> {
    let row = sqlx::query(
        "SELECT id, workflow, entity_id, state, pending, wake_at, waits_for, attempts, reason, done_at
           FROM workflow_runs
          WHERE id = $1",
    )
    .bind(id)
    .fetch_optional(store.pool())
    .await?;
    row.as_ref().map(run).transpose()
}

/// The runs about one row that are not over, oldest first.
///
/// # Errors
/// When the database fails.
pub async fn open_about(store: &Store, entity: Uuid) -> Result<Vec<RunRow>, Error> {
    let rows = sqlx::query(
        "SELECT id, workflow, entity_id, state, pending, wake_at, waits_for, attempts, reason, done_at
           FROM workflow_runs
          WHERE entity_id = $1 AND done_at IS NULL
          ORDER BY created_at, id",
    )
    .bind(entity)
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(run).collect()
}

fn run(row: &PgRow) -> Result<RunRow, Error> {
    let time = |column: usize| -> Result<Option<Timestamp>, sqlx::Error> {
        let at: Option<jiff_sqlx::Timestamp> = row.try_get(column)?;
        Ok(at.map(jiff_sqlx::Timestamp::to_jiff))
    };
    Ok(RunRow {
        id: row.try_get(0)?,
        workflow: row.try_get(1)?,
        entity_id: row.try_get(2)?,
        state: row.try_get(3)?,
        pending: row.try_get(4)?,
        wake_at: time(5)?,
        waits_for: row.try_get(6)?,
        attempts: row.try_get(7)?,
        reason: row.try_get(8)?,
        done_at: time(9)?,
    })
}

/// Gives back every run that somebody has in hand. For a process that knows it is the only one: whoever had them is dead. If
/// it was wrong, the other can't save what it did, because the run was taken anew.
///
/// # Errors
/// When the database fails.
pub async fn free_leases(store: &Store) -> Result<u64, Error> {
    let freed = sqlx::query(
        "UPDATE workflow_runs
            SET lease_until = NULL
          WHERE done_at IS NULL
            AND lease_until IS NOT NULL",
    )
    .execute(store.pool())
    .await?;
    Ok(freed.rows_affected())
}

/// Runs that were over long ago, all of a row's together: a run that is taken up again is named by how many there were.
pub const PRUNE: Prune = Prune::new(
    "workflow_runs",
    "WITH page AS MATERIALIZED (
        SELECT entity_id, done_at AS at
          FROM workflow_runs
         WHERE done_at < $1 AND done_at > coalesce($2::timestamptz, '-infinity')
         ORDER BY done_at
         LIMIT $3
           FOR UPDATE SKIP LOCKED
     ), gone AS (
        DELETE FROM workflow_runs AS run
         WHERE run.entity_id = ANY (ARRAY(SELECT entity_id FROM page))
           AND run.done_at < $1
           AND (SELECT 1
                  FROM workflow_runs AS other
                 WHERE other.entity_id = run.entity_id AND (other.done_at IS NULL OR other.done_at >= $1)
                 LIMIT 1) IS NULL
        RETURNING 1
     )
     SELECT (SELECT count(*) FROM page), (SELECT max(at) FROM page), (SELECT count(*) FROM gone)",
);
