//! Messages on their way to consumers. Those about one row reach a consumer one after the other; attempts are counted
//! here; what can't be handled is kept as a dead letter with its reason, and can be driven again.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use uuid::Uuid;
use wire::bus::Message;

use crate::{Error, Ring, Store, Tx};

/// The consumer whose dead letters are facts that the relay could not read.
pub const RELAY: &str = "relay";
/// How much of a reason is kept.
pub const REASON_CHARS_MAX: usize = 500;

/// Of a `head`: what comes before it, which is about the same row. An expression that is never made a join: a join that is planned while
/// nothing is on its way compares everything that is with everything else.
macro_rules! earlier {
    () => {
        "(SELECT earlier.event_id
            FROM bus_deliveries AS earlier
           WHERE earlier.consumer = $1
             AND earlier.dead_at IS NULL
             AND earlier.entity_id = head.entity_id
             AND (earlier.seq, earlier.event_id) < (head.seq, head.event_id)
           ORDER BY earlier.seq, earlier.event_id
           LIMIT 1)"
    };
}

/// Which deliveries somebody wants to begin.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The consumer.
    pub consumer: &'a str,
    /// What time it is.
    pub now: Timestamp,
    /// When somebody else may try, if nothing is heard until then.
    pub lease_until: Timestamp,
    /// How many at most.
    pub limit: i64,
}

/// A delivery whose attempt has begun.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The message's identity.
    pub event_id: Uuid,
    /// Which attempt this is, from 1.
    pub attempts: i32,
    /// The message, or why it can't be read.
    pub message: Result<Message, String>,
}

/// Begins an attempt of up to `limit` deliveries that are due, no two of them about the same row, and none that another
/// one about its row comes before.
///
/// # Errors
/// When the database fails.
pub async fn claim(store: &Store, claim: &Claim<'_>) -> Result<Vec<Claimed>, Error> {
    // One statement, a transaction of its own: nothing is held while a message is handled. A delivery that somebody has
    // in hand is still there, so the one behind it is not begun by anybody; and who waited for a row finds it not due. The disk is not
    // waited for: if the database falls and forgets it, the message is delivered once more, as it is when its consumer dies.
    let rows = sqlx::query(concat!(
        // They are picked apart from the update, once: a plan that looked for them again for every row of it would pass by those it
        // has changed, and begin more than was asked for.
        "WITH due AS MATERIALIZED (
             SELECT head.consumer, head.event_id
               FROM bus_deliveries AS head
              WHERE head.consumer = $1
                AND head.dead_at IS NULL
                AND head.due_at <= $2
                AND ",
        earlier!(),
        " IS NULL
              ORDER BY head.due_at, head.event_id
              LIMIT $4
                FOR UPDATE SKIP LOCKED
         ), soon AS MATERIALIZED (
             SELECT set_config('synchronous_commit', 'off', true)
         )
         UPDATE bus_deliveries AS delivery
            SET attempts = delivery.attempts + 1,
                due_at = $3
           FROM due, soon
          WHERE delivery.consumer = due.consumer
            AND delivery.event_id = due.event_id
      RETURNING delivery.event_id, delivery.attempts, delivery.message",
    ))
    .bind(claim.consumer)
    .bind(claim.now.to_sqlx())
    .bind(claim.lease_until.to_sqlx())
    .bind(claim.limit)
    .fetch_all(store.pool())
    .await?;
    let mut begun: Vec<Claimed> = rows.iter().map(claimed).collect::<Result<_, Error>>()?;
    // In the order in which they were written, not as they happen to lie in the table.
    begun.sort_by_key(|each| each.event_id);
    Ok(begun)
}

/// How it stands with a delivery that somebody has heard of.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// Its attempt has begun.
    Begun(Box<Claimed>),
    /// It is in somebody's hand, it pauses, or another one about its row comes before it.
    NotNow(Uuid),
    /// It was handled or given up, or it never was one of this consumer's.
    Over(Uuid),
}

impl Heard {
    /// The message's identity.
    pub fn event_id(&self) -> Uuid {
        match self {
            Heard::Begun(claimed) => claimed.event_id,
            Heard::NotNow(event_id) | Heard::Over(event_id) => *event_id,
        }
    }
}

/// [`claim`], for those that somebody has heard of: says how it stands with each of them. Of several about one row the first is
/// begun.
///
/// # Errors
/// When the database fails.
pub async fn claim_heard(
    store: &Store,
    claim: &Claim<'_>,
    heard: &[Uuid],
) -> Result<Vec<Heard>, Error> {
    let rows = sqlx::query(concat!(
        "WITH due AS (
             SELECT head.consumer, head.event_id
               FROM bus_deliveries AS head
              WHERE head.consumer = $1
                AND head.event_id = ANY ($4::uuid[])
                AND head.dead_at IS NULL
                AND head.due_at <= $2
                AND ",
        earlier!(),
        " IS NULL
              LIMIT $5
                FOR UPDATE SKIP LOCKED
         ), begun AS (
             UPDATE bus_deliveries AS delivery
                SET attempts = delivery.attempts + 1,
                    due_at = $3
               FROM due
              WHERE delivery.consumer = due.consumer
                AND delivery.event_id = due.event_id
          RETURNING delivery.event_id, delivery.attempts, delivery.message
         )
         SELECT heard.event_id, begun.attempts, begun.message, live.event_id IS NOT NULL
           FROM (SELECT DISTINCT unnest($4::uuid[])) AS heard (event_id)
           LEFT JOIN begun ON begun.event_id = heard.event_id
           LEFT JOIN bus_deliveries AS live
                  ON live.consumer = $1
                 AND live.event_id = heard.event_id
                 AND live.dead_at IS NULL",
    ))
    .bind(claim.consumer)
    .bind(claim.now.to_sqlx())
    .bind(claim.lease_until.to_sqlx())
    .bind(heard)
    .bind(claim.limit)
    .fetch_all(store.pool())
    .await?;
    let stands = |row: &PgRow| {
        let begun = row.try_get::<Option<i32>, _>(1)?.is_some();
        Ok(match (begun, row.try_get(3)?) {
            (true, _) => Heard::Begun(Box::new(claimed(row)?)),
            (false, true) => Heard::NotNow(row.try_get(0)?),
            (false, false) => Heard::Over(row.try_get(0)?),
        })
    };
    rows.iter().map(stands).collect()
}

fn claimed(row: &PgRow) -> Result<Claimed, Error> {
    let message = match row.try_get::<Json<Message>, _>(2) {
        Ok(Json(message)) => Ok(message),
        Err(sqlx::Error::ColumnDecode { source, .. }) => {
            Err(format!("the message can't be read: {source}"))
        }
        Err(fault) => return Err(fault.into()),
    };
    Ok(Claimed { event_id: row.try_get(0)?, attempts: row.try_get(1)?, message })
}

/// These were handled, and are gone. It does not matter whose attempt it was.
///
/// # Errors
/// When the database fails; they will be delivered again.
pub async fn handled(store: &Store, consumer: &str, events: &[Uuid]) -> Result<(), Error> {
    // The disk is not waited for: what the database forgets when it falls is delivered once more, and changes nothing.
    sqlx::query(
        "WITH soon AS MATERIALIZED (
             SELECT set_config('synchronous_commit', 'off', true)
         )
         DELETE FROM bus_deliveries
          USING soon
          WHERE consumer = $1
            AND event_id = ANY ($2)",
    )
    .bind(consumer)
    .bind(events)
    .execute(store.pool())
    .await?;
    Ok(())
}

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The message's identity.
    pub event_id: Uuid,
    /// Which attempt it was. If another has begun since, the failure says nothing any more.
    pub attempts: i32,
    /// Why.
    pub reason: String,
    /// When it is tried again; never, if there is no such time: it is a dead letter then.
    pub due_at: Option<Timestamp>,
}

/// Keeps why attempts failed, and when to try again.
///
/// # Errors
/// When the database fails; they will be delivered again when their time is over.
pub async fn failed(
    store: &Store,
    consumer: &str,
    now: Timestamp,
    failures: &[Failed],
) -> Result<(), Error> {
    let events: Vec<Uuid> = failures.iter().map(|failed| failed.event_id).collect();
    let attempts: Vec<i32> = failures.iter().map(|failed| failed.attempts).collect();
    let reasons: Vec<String> = failures.iter().map(|failed| shortened(&failed.reason)).collect();
    let due: Vec<Option<jiff_sqlx::Timestamp>> =
        failures.iter().map(|failed| failed.due_at.map(|at| at.to_sqlx())).collect();
    sqlx::query(
        "UPDATE bus_deliveries AS delivery
            SET reason = failed.reason,
                due_at = coalesce(failed.due_at, delivery.due_at),
                dead_at = CASE WHEN failed.due_at IS NULL THEN $2::timestamptz END
           FROM unnest($3::uuid[], $4::integer[], $5::text[], $6::timestamptz[])
                AS failed (event_id, attempts, reason, due_at)
          WHERE delivery.consumer = $1
            AND delivery.event_id = failed.event_id
            AND delivery.attempts = failed.attempts
            AND delivery.dead_at IS NULL",
    )
    .bind(consumer)
    .bind(now.to_sqlx())
    .bind(events)
    .bind(attempts)
    .bind(reasons)
    .bind(due)
    .execute(store.pool())
    .await?;
    Ok(())
}

/// A reason as it is kept: its beginning.
pub fn shortened(reason: &str) -> String {
    // Postgres has no text with a zero in it.
    reason.chars().filter(|c| *c != '\0').take(REASON_CHARS_MAX).collect()
}

/// How many messages are on their way to a consumer, dead letters not among them.
///
/// # Errors
/// When the database fails.
pub async fn count_live(store: &Store, consumer: &str) -> Result<i64, Error> {
    let row = sqlx::query(
        "SELECT count(*)
           FROM bus_deliveries
          WHERE consumer = $1
            AND dead_at IS NULL",
    )
    .bind(consumer)
    .fetch_one(store.pool())
    .await?;
    Ok(row.try_get(0)?)
}

/// How many messages of a consumer can be begun now.
///
/// # Errors
/// When the database fails.
pub async fn count_due(store: &Store, consumer: &str, now: Timestamp) -> Result<i64, Error> {
    let row = sqlx::query(concat!(
        "SELECT count(*)
           FROM bus_deliveries AS head
          WHERE head.consumer = $1
            AND head.dead_at IS NULL
            AND head.due_at <= $2
            AND ",
        earlier!(),
        " IS NULL",
    ))
    .bind(consumer)
    .bind(now.to_sqlx())
    .fetch_one(store.pool())
    .await?;
    Ok(row.try_get(0)?)
}

/// A message that could not be handled.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadRow {
    /// Who could not.
    pub consumer: String,
    /// The message's identity.
    pub event_id: Uuid,
    /// The row it is about.
    pub entity_id: Uuid,
    /// The message as it was written, readable or not.
    pub message: Value,
    /// How often it was tried.
    pub attempts: i32,
    /// Why it failed the last time.
    pub reason: String,
    /// When it was given up.
    pub dead_at: Timestamp,
}

/// A place in the list of dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadCursor {
    /// See [`DeadRow::dead_at`].
    pub dead_at: Timestamp,
    /// See [`DeadRow::event_id`].
    pub event_id: Uuid,
    /// See [`DeadRow::consumer`].
    pub consumer: String,
}

impl DeadRow {
    /// Where the next page begins, if this is the last row of one.
    pub fn cursor(&self) -> DeadCursor {
        DeadCursor {
            dead_at: self.dead_at,
            event_id: self.event_id,
            consumer: self.consumer.clone(),
        }
    }
}

/// Dead letters, those given up first before those given up later.
///
/// # Errors
/// When the database fails.
pub async fn list_dead(
    store: &Store,
    limit: i64,
    after: Option<&DeadCursor>,
) -> Result<Vec<DeadRow>, Error> {
    let rows = sqlx::query(
        "SELECT consumer, event_id, entity_id, message, attempts, coalesce(reason, ''), dead_at
           FROM bus_deliveries
          WHERE dead_at IS NOT NULL
            AND ($1::timestamptz IS NULL OR (dead_at, event_id, consumer) > ($1, $2, $3))
          ORDER BY dead_at, event_id, consumer
          LIMIT $4",
    )
    .bind(after.map(|after| after.dead_at.to_sqlx()))
    .bind(after.map(|after| after.event_id))
    .bind(after.map(|after| after.consumer.as_str()))
    .bind(limit)
    .fetch_all(store.pool())
    .await?;
    let dead = |row: &PgRow| {
        Ok(DeadRow {
            consumer: row.try_get(0)?,
            event_id: row.try_get(1)?,
            entity_id: row.try_get(2)?,
            message: row.try_get(3)?,
            attempts: row.try_get(4)?,
            reason: row.try_get(5)?,
            dead_at: row.try_get::<jiff_sqlx::Timestamp, _>(6)?.to_jiff(),
        })
    };
    rows.iter().map(dead).collect()
}

/// Gives a dead letter all its attempts again, from now on; answers whether there is such a letter. One of the relay's goes
/// back to the outbox.
///
/// # Errors
/// When the database fails.
pub async fn redrive(tx: &mut Tx, consumer: &str, event_id: Uuid) -> Result<bool, Error> {
    if consumer == RELAY {
        return republish(tx, event_id).await;
    }
    let done = sqlx::query(
        "UPDATE bus_deliveries
            SET attempts = 0,
                due_at = 'epoch'::timestamptz,
                dead_at = NULL
          WHERE consumer = $1
            AND event_id = $2
            AND dead_at IS NOT NULL",
    )
    .bind(consumer)
    .bind(event_id)
    .execute(tx.connection())
    .await?;
    tx.rings(Ring::Consumer(consumer.to_owned()));
    Ok(done.rows_affected() == 1)
}

async fn republish(tx: &mut Tx, event_id: Uuid) -> Result<bool, Error> {
    let done = sqlx::query(
        "WITH letter AS (
             DELETE FROM bus_deliveries
              WHERE consumer = $1
                AND event_id = $2
                AND dead_at IS NOT NULL
          RETURNING event_id
         )
         UPDATE outbox_events
            SET published_at = NULL
          WHERE id IN (SELECT event_id FROM letter)",
    )
    .bind(RELAY)
    .bind(event_id)
    .execute(tx.connection())
    .await?;
    tx.rings(Ring::Outbox);
    Ok(done.rows_affected() == 1)
}

/// Makes every message due that somebody has in hand, or that waits to be tried again. For a process that knows it is the
/// only one: whoever had them is dead. If it was wrong, a message is handled twice, which does no harm.
///
/// # Errors
/// When the database fails.
pub async fn free_leases(store: &Store) -> Result<u64, Error> {
    let freed = sqlx::query(
        "UPDATE bus_deliveries
            SET due_at = 'epoch'
          WHERE dead_at IS NULL
            AND attempts > 0",
    )
    .execute(store.pool())
    .await?;
    Ok(freed.rows_affected())
}
