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
    workflows: &'static [&'static str],
    happened: &Value,
) -> Result<(), Error> {
    let told = tx.ask(TellAll { entity, workflows, word: happened.clone() }).await?;
    if told {
        tx.rings(Ring::Workflows);
    }
    Ok(())
}

/// See [`tell_all_in`].
struct TellAll {
    entity: Uuid,
    workflows: &'static [&'static str],
    word: Value,
}

impl Question for TellAll {
    /// Whether there was any.
    type Answer = bool;
    const WRITES: bool = true;

    async fn answer(
        connection: &mut PgConnection,
        words: Vec<TellAll>,
    ) -> Result<Vec<bool>, Error> {
        let mut answers = Vec::with_capacity(words.len());
        // What is said about one row is said word by word.
        for (places, words) in rounds(words, |one| one.entity) {
            answers.extend(places.into_iter().zip(append_to_all(connection, &words).await?));
        }
        Ok(in_order(answers))
    }
}

async fn append_to_all(
    connection: &mut PgConnection,
    words: &[TellAll],
) -> Result<Vec<bool>, Error> {
    let each = || words.iter().flat_map(|one| one.workflows.iter().map(move |name| (one, *name)));
    // No index of what is under way can take the place of that of the row, while hardly anything is.
    let rows = sqlx::query(
        "UPDATE workflow_runs AS run
            SET announced_until = NULL,
                wake_at = 'epoch'::timestamptz,
                due_since = clock_timestamp(),
                pending = CASE WHEN run.pending -> -1 = wish.word THEN run.pending ELSE run.pending || jsonb_build_array(wish.word) END
           FROM unnest($1::uuid[], $2::text[], $3::jsonb[]) AS wish (entity_id, workflow, word)
          WHERE run.entity_id = wish.entity_id
            AND (run.workflow = wish.workflow) IS TRUE
            AND (run.done_at IS NULL) IS TRUE
      RETURNING run.entity_id",
    )
    .bind(each().map(|(one, _)| one.entity).collect::<Vec<_>>())
    .bind(each().map(|(_, name)| name).collect::<Vec<_>>())
    .bind(each().map(|(one, _)| &one.word).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    let told: Vec<Uuid> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    Ok(words.iter().map(|one| told.contains(&one.entity)).collect())
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
