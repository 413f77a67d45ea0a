//! Runs are started once: by themselves, or in the transaction that makes the fact true from which they follow.

use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::NewRun;
use crate::company::Question;
use crate::{Error, Ring, Store, Tx};

/// Starts a run; answers whether it is new. One that has ended is not started again.
///
/// # Errors
/// When the database fails.
pub async fn start(store: &Store, run: &NewRun<'_>) -> Result<bool, Error> {
    let new = store.ask(Start::new(run)).await?;
    store.bell.ring(Ring::Workflows);
    Ok(new)
}

/// [`start`], if the caller's transaction is committed.
///
/// # Errors
/// When the database fails.
pub async fn start_in(tx: &mut Tx, run: &NewRun<'_>) -> Result<bool, Error> {
    tx.rings(Ring::Workflows);
    tx.ask(Start::new(run)).await
}

/// See [`start`].
struct Start {
    id: String,
    workflow: String,
    entity_id: Uuid,
    state: Value,
    /// Where whoever starts it is in a trace.
    traceparent: Option<String>,
}

impl Start {
    fn new(run: &NewRun<'_>) -> Start {
        Start {
            id: run.id.to_owned(),
            workflow: run.workflow.to_owned(),
            entity_id: run.entity_id,
            state: run.state.clone(),
            traceparent: trace::current(),
        }
    }
}

impl Question for Start {
    /// Whether it is new.
    type Answer = bool;
    const WRITES: bool = true;

    async fn answer(connection: &mut PgConnection, runs: Vec<Start>) -> Result<Vec<bool>, Error> {
        // Due since ever: no clock is asked, so none can be behind and hold it up.
        let mut query = sqlx::query(
            "INSERT INTO workflow_runs (id, workflow, entity_id, state, pending, wake_at, due_since, traceparent)
             SELECT id, workflow, entity_id, state, jsonb_build_array($6::jsonb), 'epoch'::timestamptz, clock_timestamp(), traceparent
               FROM unnest($1::text[], $2::text[], $3::uuid[], $4::jsonb[], $5::text[])
                 AS wish (id, workflow, entity_id, state, traceparent)
             ON CONFLICT (id) DO NOTHING
             RETURNING id",
        );
        macro_rules! each {
            ($($value:expr),+ $(,)?) => {
                $(query = query.bind(runs.iter().map($value).collect::<Vec<_>>());)+
            };
        }
        each!(
            |one| one.id.as_str(),
            |one| one.workflow.as_str(),
            |one| one.entity_id,
            |one| &one.state,
            |one| one.traceparent.as_deref(),
        );
        let rows = query.bind(super::started()).fetch_all(connection).await?;
        let new: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok(runs.iter().map(|one| new.contains(&one.id)).collect())
    }
}
