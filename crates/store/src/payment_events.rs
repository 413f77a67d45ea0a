//! The inbox of the payment provider: what it has told us, kept before we say that we heard it. An event counts once, is tried
//! until it is settled or given up, and every attempt is counted before it is made.

use domain::ids::PaymentSessionId;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::prune::{Prune, pruning};
use crate::{Error, Ring, Store, Tx};

/// An event that was told.
#[derive(Clone, Debug)]
pub struct NewEvent<'a> {
    /// What the provider calls it.
    pub id: &'a str,
    /// What it is about, in the provider's words.
    pub kind: &'a str,
    /// What matters of it.
    pub payload: &'a Value,
    /// When it is tried again, if whoever heard it does not settle it; none when there is nothing to do about it.
    pub due_at: Option<Timestamp>,
    /// What came of it, when there is nothing to do about it.
    pub outcome: Option<&'a str>,
}

/// Writes down an event; answers whether it is new. Whoever wrote it down has the first attempt.
///
/// # Errors
/// When the database fails.
pub async fn hear(tx: &mut Tx, event: &NewEvent<'_>) -> Result<bool, Error> {
    let heard = sqlx::query(
        "INSERT INTO payment_events (id, kind, payload, attempts, due_at, outcome, done_at)
         VALUES ($1, $2, $3, 1, $4, $5, CASE WHEN $5::text IS NOT NULL THEN clock_timestamp() END)
             ON CONFLICT DO NOTHING",
    )
    .bind(event.id)
    .bind(event.kind)
    .bind(event.payload)
    .bind(event.due_at.map(|at| at.to_sqlx()))
    .bind(event.outcome)
    .execute(tx.connection())
    .await?;
    Ok(heard.rows_affected() == 1)
}

/// How long an event waits between two attempts: twice as long each time, up to a bound.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// The first.
    pub first_seconds: u32,
    /// The longest.
    pub longest_seconds: u32,
}

/// Takes some events that are due, each for one attempt: it is counted now, so that one that ends the process is counted too.
/// Two who take at once get different ones.
///
/// # Errors
/// When the database fails.
pub async fn take_due(
    store: &Store,
    now: Timestamp,
    pauses: Pauses,
    limit: i64,
) -> Result<Vec<String>, Error> {
    let rows = sqlx::query(
        "UPDATE payment_events
            SET attempts = attempts + 1,
                due_at = $1 + least($3, $2 * power(2, least(attempts, 20))) * interval '1 second'
          WHERE id = ANY (ARRAY(
                SELECT id
                  FROM payment_events
                 WHERE due_at <= $1
                 ORDER BY due_at
                 LIMIT $4
                   FOR UPDATE SKIP LOCKED))
         RETURNING id",
    )
    .bind(now.to_sqlx())
    .bind(f64::from(pauses.first_seconds))
    .bind(f64::from(pauses.longest_seconds))
    .bind(limit)
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// One event, as it was written down.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What the provider calls it.
    pub id: String,
    /// What it is about.
    pub kind: String,
    /// What matters of it.
    pub payload: Value,
    /// When it was heard.
    pub received_at: Timestamp,
    /// The session it turned out to be about.
    pub session_id: Option<Uuid>,
    /// How often it was tried.
    pub attempts: i32,
    /// When it is tried again.
    pub due_at: Option<Timestamp>,
    /// When it was done with.
    pub done_at: Option<Timestamp>,
    /// What came of it.
    pub outcome: Option<String>,
    /// What was in the way the last time.
    pub reason: Option<String>,
}

/// The columns of [`Event`], in the order in which [`read`] reads them.
const COLUMNS: &str =
    "event.id, event.kind, event.payload, event.received_at, event.session_id, event.attempts,
        event.due_at, event.done_at, event.outcome, event.reason";

/// An event that is not done with, locked; none when it is, or there is none.
///
/// # Errors
/// When the database fails.
pub async fn lock(tx: &mut Tx, id: &str) -> Result<Option<Event>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}
           FROM payment_events AS event
          WHERE event.id = $1 AND event.due_at IS NOT NULL
            FOR UPDATE"
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(id);
    query.fetch_optional(tx.connection()).await?.as_ref().map(read).transpose()
}

/// An event is done with, for better or worse: this came of it.
///
/// # Errors
/// When the database fails.
pub async fn settle(
    tx: &mut Tx,
    id: &str,
    session: Option<PaymentSessionId>,
    outcome: &str,
    reason: Option<&str>,
) -> Result<(), Error> {
    sqlx::query(
        "UPDATE payment_events
            SET session_id = coalesce($2, session_id), outcome = $3, reason = $4, due_at = NULL, done_at = clock_timestamp()
          WHERE id = $1",
    )
    .bind(id)
    .bind(session.map(|session| session.uuid()))
    .bind(outcome)
    .bind(reason)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// An event can't be settled yet: it stays due, with what is in the way.
///
/// # Errors
/// When the database fails.
pub async fn postpone(
    tx: &mut Tx,
    id: &str,
    session: Option<PaymentSessionId>,
    reason: &str,
) -> Result<(), Error> {
    sqlx::query(
        "UPDATE payment_events SET session_id = coalesce($2, session_id), reason = $3 WHERE id = $1",
    )
    .bind(id)
    .bind(session.map(|session| session.uuid()))
    .bind(reason)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// What waited for this session is due now, with all its attempts before it: also what was given up, because it came too early.
/// What somebody is at is left alone: they wait for the session, and see it as we leave it.
///
/// # Errors
/// When the database fails.
pub async fn hurry(tx: &mut Tx, session: PaymentSessionId, now: Timestamp) -> Result<(), Error> {
    let hurried = sqlx::query(
        "UPDATE payment_events
            SET due_at = $2, attempts = 0, outcome = NULL, done_at = NULL
          WHERE id = ANY (ARRAY(
                SELECT id
                  FROM payment_events
                 WHERE session_id = $1 AND (due_at IS NOT NULL OR outcome = 'unmatched')
                   FOR UPDATE SKIP LOCKED))",
    )
    .bind(session.uuid())
    .bind(now.to_sqlx())
    .execute(tx.connection())
    .await?;
    if hurried.rows_affected() > 0 {
        tx.rings(Ring::PaymentEvents);
    }
    Ok(())
}

/// The place of an event in the list.
pub type Place = (Timestamp, String);

/// Events, the newest first; with `open` only those that nothing came of, and that somebody has to look at.
///
/// # Errors
/// When the database fails.
pub async fn list(
    store: &Store,
    open: bool,
    before: Option<Place>,
    limit: i64,
) -> Result<Vec<Event>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}
           FROM payment_events AS event
          WHERE (NOT $1 OR event.outcome IN ('unmatched', 'failed', 'exceeds'))
            AND ($2::timestamptz IS NULL OR (event.received_at, event.id) < ($2, $3))
          ORDER BY event.received_at DESC, event.id DESC
          LIMIT $4"
    );
    let (at, id) = before.unzip();
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(open)
        .bind(at.map(|at| at.to_sqlx()))
        .bind(id)
        .bind(limit)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read).collect()
}

/// How many events nothing came of.
///
/// # Errors
/// When the database fails.
pub async fn count_open(store: &Store) -> Result<i64, Error> {
    let row = sqlx::query(
        "SELECT count(*) FROM payment_events WHERE outcome IN ('unmatched', 'failed', 'exceeds')",
    )
    .fetch_one(store.pool())
    .await?;
    Ok(row.try_get(0)?)
}

fn read(row: &PgRow) -> Result<Event, Error> {
    let at = |position: usize| -> Result<Option<Timestamp>, Error> {
        let at: Option<jiff_sqlx::Timestamp> = row.try_get(position)?;
        Ok(at.map(jiff_sqlx::Timestamp::to_jiff))
    };
    Ok(Event {
        id: row.try_get(0)?,
        kind: row.try_get(1)?,
        payload: row.try_get(2)?,
        received_at: row.try_get::<jiff_sqlx::Timestamp, _>(3)?.to_jiff(),
        session_id: row.try_get(4)?,
        attempts: row.try_get(5)?,
        due_at: at(6)?,
        done_at: at(7)?,
        outcome: row.try_get(8)?,
        reason: row.try_get(9)?,
    })
}

/// What the provider told long ago and what something came of. What somebody has yet to look at stays. Told once more it would be
/// settled once more, and the ledger's own key would not let it count twice.
pub const PRUNE: Prune = Prune::new(
    "payment_events",
    pruning!(
        "payment_events",
        "received_at",
        ", due_at, outcome",
        "due_at IS NULL AND outcome NOT IN ('unmatched', 'failed', 'exceeds')"
    ),
);
