//! What is said to runs. A word is appended to the row of its run, and taken off by the statement that saves the step which heard it.

use serde_json::Value;
use sqlx::PgExecutor;
use uuid::Uuid;

use crate::{Error, Ring, Store, Tx};

/// Tells a run what happened; answers whether there is such a run and it is not over.
///
/// # Errors
/// When the database fails.
pub async fn tell(store: &Store, id: &str, happened: &Value) -> Result<bool, Error> {
    let told = append(store.pool(), id, happened).await?;
    store.bell.ring(Ring::Workflows);
    Ok(told)
}

/// [`tell`], if the caller's transaction is committed. Until then whoever wants to save the run waits.
///
/// # Errors
/// When the database fails.
pub async fn tell_in(tx: &mut Tx, id: &str, happened: &Value) -> Result<bool, Error> {
    tx.rings(Ring::Workflows);
    append(tx.connection(), id, happened).await
}

/// Tells every open run of these workflows about a row, if the caller's transaction is committed.
///
/// # Errors
/// When the database fails.
pub async fn tell_all_in(
    tx: &mut Tx,
    entity: Uuid,
    workflows: &[&str],
    happened: &Value,
) -> Result<(), Error> {
    let told = sqlx::query(
        "UPDATE workflow_runs
            SET pending = CASE WHEN pending -> -1 = $3 THEN pending ELSE pending || jsonb_build_array($3::jsonb) END,
                wake_at = 'epoch'::timestamptz,
                due_since = clock_timestamp(),
                announced_until = NULL
          WHERE entity_id = $1
            AND workflow = ANY ($2)
            AND done_at IS NULL",
    )
    .bind(entity)
    .bind(workflows)
    .bind(happened)
    .execute(tx.connection())
    .await?;
    if told.rows_affected() > 0 {
        tx.rings(Ring::Workflows);
    }
    Ok(())
}

async fn append(at: impl PgExecutor<'_>, id: &str, happened: &Value) -> Result<bool, Error> {
    // A word is a fact with an identity: said twice in a row it says nothing new.
    let done = sqlx::query(
        "UPDATE workflow_runs
            SET pending = CASE WHEN pending -> -1 = $2 THEN pending ELSE pending || jsonb_build_array($2::jsonb) END,
                wake_at = 'epoch'::timestamptz,
                due_since = clock_timestamp(),
                announced_until = NULL
          WHERE id = $1
            AND done_at IS NULL",
    )
    .bind(id)
    .bind(happened)
    .execute(at)
    .await?;
    Ok(done.rows_affected() == 1)
}
