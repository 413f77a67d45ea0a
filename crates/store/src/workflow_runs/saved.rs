//! Steps that were done are saved: in a transaction of their own, or in the one of what they did.

use std::collections::HashMap;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::{Saved, Taken, Wait};
use crate::company::Question;
use crate::{Error, Store, Tx};

/// Saves a step after which the run waits.
///
/// # Errors
/// When the database fails.
pub async fn save(store: &Store, taken: Taken<'_>, wait: &Wait<'_>) -> Result<Saved, Error> {
    store.ask(PutDown::new(taken, wait)).await
}

/// [`save`], if the caller's transaction is committed: what the step did, and that it was done, are then one.
///
/// # Errors
/// When the database fails.
pub async fn save_in(tx: &mut Tx, taken: Taken<'_>, wait: &Wait<'_>) -> Result<Saved, Error> {
    tx.ask(PutDown::new(taken, wait)).await
}

/// Saves the last step of a run.
///
/// # Errors
/// When the database fails.
pub async fn finish(store: &Store, taken: Taken<'_>, now: Timestamp) -> Result<Saved, Error> {
    store.ask(End::new(taken, now)).await
}

/// [`finish`], if the caller's transaction is committed.
///
/// # Errors
/// When the database fails.
pub async fn finish_in(tx: &mut Tx, taken: Taken<'_>, now: Timestamp) -> Result<Saved, Error> {
    tx.ask(End::new(taken, now)).await
}

/// A run is put down until something happens.
struct PutDown {
    id: String,
    lease: i64,
    heard: bool,
    state: Value,
    until: Timestamp,
    waits_for: String,
    lease_until: Timestamp,
}

impl PutDown {
    fn new(taken: Taken<'_>, wait: &Wait<'_>) -> PutDown {
        PutDown {
            id: taken.id.to_owned(),
            lease: taken.lease,
            heard: taken.heard,
            state: wait.state.clone(),
            until: wait.until,
            waits_for: wait.waits_for.to_owned(),
            lease_until: wait.lease_until,
        }
    }
}

impl Question for PutDown {
    type Answer = Saved;
    const WRITES: bool = true;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<PutDown>,
    ) -> Result<Vec<Saved>, Error> {
        // Every `pending` is the row's own at the moment of the write, whatever was said since the run was taken. The lease is
        // raised, so that a save whose answer was lost can be tried again: it takes no second word off.
        let mut query = sqlx::query(
            "UPDATE workflow_runs AS run
                SET lease = run.lease + 1,
                    state = wish.state,
                    pending = CASE WHEN wish.heard THEN run.pending - 0 ELSE run.pending END,
                    wake_at = CASE WHEN jsonb_array_length(run.pending) > wish.heard::int THEN 'epoch'::timestamptz ELSE wish.until END,
                    lease_until = CASE WHEN jsonb_array_length(run.pending) > wish.heard::int THEN wish.lease_until END,
                    waits_for = wish.waits_for,
                    attempts = 0,
                    reason = NULL
               FROM unnest($1::text[], $2::bigint[], $3::boolean[], $4::jsonb[], $5::timestamptz[], $6::text[], $7::timestamptz[])
                 AS wish (id, lease, heard, state, until, waits_for, lease_until)
              WHERE run.id = wish.id
                AND run.lease = wish.lease
          RETURNING run.id, run.pending -> 0, run.lease",
        );
        macro_rules! each {
            ($($value:expr),+ $(,)?) => {
                $(query = query.bind(questions.iter().map($value).collect::<Vec<_>>());)+
            };
        }
        each!(
            |one| one.id.as_str(),
            |one| one.lease,
            |one| one.heard,
            |one| &one.state,
            |one| one.until.to_sqlx(),
            |one| one.waits_for.as_str(),
            |one| one.lease_until.to_sqlx(),
        );
        let mut saved: HashMap<String, Saved> = HashMap::with_capacity(questions.len());
        for row in query.fetch_all(connection).await? {
            let (told, lease): (Option<Value>, i64) = (row.try_get(1)?, row.try_get(2)?);
            let stands = told.map_or(Saved::Rests, |word| Saved::Told { word, lease });
            saved.insert(row.try_get(0)?, stands);
        }
        Ok(questions.iter().map(|one| saved.remove(&one.id).unwrap_or(Saved::Lost)).collect())
    }
}

/// A run is over.
struct End {
    id: String,
    lease: i64,
    now: Timestamp,
}

impl End {
    fn new(taken: Taken<'_>, now: Timestamp) -> End {
        End { id: taken.id.to_owned(), lease: taken.lease, now }
    }
}

impl Question for End {
    type Answer = Saved;
    const WRITES: bool = true;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<End>,
    ) -> Result<Vec<Saved>, Error> {
        let ids: Vec<&str> = questions.iter().map(|one| one.id.as_str()).collect();
        let leases: Vec<i64> = questions.iter().map(|one| one.lease).collect();
        let times: Vec<_> = questions.iter().map(|one| one.now.to_sqlx()).collect();
        let rows = sqlx::query(
            "UPDATE workflow_runs AS run
                SET done_at = wish.now,
                    pending = '[]',
                    wake_at = NULL,
                    waits_for = NULL,
                    lease_until = NULL,
                    attempts = 0,
                    reason = NULL
               FROM unnest($1::text[], $2::bigint[], $3::timestamptz[]) AS wish (id, lease, now)
              WHERE run.id = wish.id
                AND run.lease = wish.lease
          RETURNING run.id",
        )
        .bind(ids)
        .bind(leases)
        .bind(times)
        .fetch_all(connection)
        .await?;
        let over: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let saved = |one: &End| if over.contains(&one.id) { Saved::Over } else { Saved::Lost };
        Ok(questions.iter().map(saved).collect())
    }
}
