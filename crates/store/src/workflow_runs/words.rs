//! What is said to runs. A word is appended to the row of its run, and taken off by the statement that saves the step which heard it.

use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::company::{Question, in_order, rounds};
use crate::{Error, Ring, Store, Tx};

/// Tells a run what happened; answers whether there is such a run and it is not over.
///
/// # Errors
/// When the database fails.
pub async fn tell(store: &Store, id: &str, happened: &Value) -> Result<bool, Error> {
    let told = store.ask(Tell { id: id.to_owned(), word: happened.clone() }).await?;
    store.bell.ring(Ring::Workflows);
    Ok(told)
}

/// [`tell`], if the caller's transaction is committed. Until then whoever wants to save the run waits.
///
/// # Errors
/// When the database fails.
pub async fn tell_in(tx: &mut Tx, id: &str, happened: &Value) -> Result<bool, Error> {
    tx.rings(Ring::Workflows);
    tx.ask(Tell { id: id.to_owned(), word: happened.clone() }).await
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

/// A run is told something.
struct Tell {
    id: String,
    word: Value,
}

impl Question for Tell {
    /// Whether there is such a run and it is not over.
    type Answer = bool;
    const WRITES: bool = true;

    async fn answer(connection: &mut PgConnection, words: Vec<Tell>) -> Result<Vec<bool>, Error> {
        let mut answers = Vec::with_capacity(words.len());
        // What is said to one run is appended word by word.
        for (places, words) in rounds(words, |one| one.id.clone()) {
            answers.extend(places.into_iter().zip(append(connection, &words).await?));
        }
        Ok(in_order(answers))
    }
}

async fn append(connection: &mut PgConnection, words: &[Tell]) -> Result<Vec<bool>, Error> {
    let ids: Vec<&str> = words.iter().map(|one| one.id.as_str()).collect();
    let said: Vec<&Value> = words.iter().map(|one| &one.word).collect();
    // A word is a fact with an identity: said twice in a row it says nothing new.
    let rows = sqlx::query(
        "UPDATE workflow_runs AS run
            SET pending = CASE WHEN run.pending -> -1 = wish.word THEN run.pending ELSE run.pending || jsonb_build_array(wish.word) END,
                wake_at = 'epoch'::timestamptz,
                due_since = clock_timestamp(),
                announced_until = NULL
           FROM unnest($1::text[], $2::jsonb[]) AS wish (id, word)
          WHERE run.id = wish.id
            -- So that no index of what is under way can take the place of the key, while hardly anything is.
            AND (run.done_at IS NULL) IS TRUE
      RETURNING run.id",
    )
    .bind(&ids)
    .bind(said)
    .fetch_all(connection)
    .await?;
    let told: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    Ok(words.iter().map(|one| told.contains(&one.id)).collect())
}
