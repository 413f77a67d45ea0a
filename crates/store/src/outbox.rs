//! The outbox on its way out: facts become deliveries, one for each consumer that hears them, in the order in which they
//! were written. What can't be read is put aside, and never in the way of the rest.

use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::Code as _;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;
use wire::bus::{Fact, Subject};

use crate::deliveries::{RELAY, shortened};
use crate::{Error, Ring, Store, Tx};

/// How many facts one transaction moves.
pub const BATCH: i64 = 1_000;
/// What becomes of a delivery that is there already: a fault, which is what it costs least to rule out; and nothing.
const NEVER: &str = "";
const ONCE: &str = "ON CONFLICT (consumer, event_id) DO NOTHING";
/// How many rows one statement prunes.
const PRUNE_BATCH: i64 = 1_000;

/// A consumer, and what it hears.
#[derive(Clone, Copy, Debug)]
pub struct Hearer<'a> {
    /// What it is called.
    pub consumer: &'a str,
    /// Its subjects.
    pub subjects: &'a [Subject],
}

/// A fact that has left the outbox and that somebody hears.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The message's identity.
    pub event_id: Uuid,
    /// What it is about.
    pub subject: Subject,
    /// What it says.
    pub fact: Fact,
    /// Where what was done stood in its trace.
    pub traceparent: Option<String>,
}

/// What one transaction of the relay moved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Relayed {
    /// The facts that somebody hears, in the order in which they were written.
    pub moved: Vec<Moved>,
    /// How many facts have left the outbox.
    pub published: usize,
    /// How many of them could not be read, and are dead letters of the relay.
    pub unreadable: usize,
    /// How long the oldest of them had waited.
    pub lag_seconds: f64,
}

/// Moves a batch of facts to those who hear them, in one short transaction, and tells the consumers.
///
/// # Errors
/// When the database fails; nothing has moved then.
pub async fn relay(store: &Store, hearers: &[Hearer<'_>]) -> Result<Relayed, Error> {
    let mut tx = store.begin().await?;
    let rows = match deliver(&mut tx, hearers, NEVER).await {
        // Somebody was told of one of them before, and it was not published then: by hand, or by a binary that did the one without the other.
        Err(error) if is_told_twice(&error) => {
            tx.rollback().await?;
            tx = store.begin().await?;
            deliver(&mut tx, hearers, ONCE).await?
        }
        rows => rows?,
    };
    let Some(oldest) = rows.first() else {
        tx.rollback().await?;
        return Ok(Relayed::default());
    };
    let lag_seconds = oldest.try_get(3)?;
    let mut read = Read::default();
    for row in &rows {
        read.add(row, hearers)?;
    }
    for consumer in std::mem::take(&mut read.touched) {
        tx.rings(Ring::Consumer(consumer.to_owned()));
    }
    let unreadable = read.unreadable.len();
    let moved = std::mem::take(&mut read.moved);
    if unreadable > 0 {
        read.put_aside(&mut tx, hearers).await?;
    }
    tx.commit().await?;
    Ok(Relayed { moved, published: rows.len(), unreadable, lag_seconds })
}

/// The oldest unpublished facts, locked, delivered to whoever hears them and has not heard of them, and published: all of it by one
/// statement. What can't be read is delivered too, and taken back and put aside before anybody sees it.
///
/// Relays wait for each other's rows instead of skipping them: with SKIP LOCKED a second relay could deliver the second
/// fact about a row before the first relay has committed the first one. All of them lock in the order of the positions,
/// so they do not wait in a circle; and whoever sees a fact also sees the facts before it about the same row, because
/// those were committed before it could be written.
///
/// What was locked is published by its place. Nobody changes an unpublished fact but a relay; if somebody did while this one waited, the
/// place is an old one, and the fact is relayed once more and told to nobody twice.
async fn deliver(
    tx: &mut Tx,
    hearers: &[Hearer<'_>],
    told_before: &str,
) -> Result<Vec<PgRow>, Error> {
    let (mut consumers, mut subjects) = (Vec::new(), Vec::new());
    for hearer in hearers {
        for subject in hearer.subjects {
            consumers.push(hearer.consumer);
            subjects.push(subject.code());
        }
    }
    let statement = format!(
        "WITH fact AS MATERIALIZED (
             SELECT ctid AS place, id, subject, entity_id, seq, payload, occurred_at, traceparent, heard
               FROM outbox_events
              WHERE published_at IS NULL
              ORDER BY position
              LIMIT $1
                FOR UPDATE
         ), delivered AS (
             INSERT INTO bus_deliveries (consumer, event_id, entity_id, seq, message, due_at)
             SELECT hearer.consumer, fact.id, fact.entity_id, fact.seq,
                    jsonb_build_object('id', fact.id, 'subject', fact.subject, 'fact', fact.payload, 'traceparent', fact.traceparent),
                    -- Due since ever: no clock is asked, so none can be behind and hold it up.
                    'epoch'::timestamptz
               FROM fact
               JOIN unnest($2::text[], $3::text[]) AS hearer (consumer, subject) ON hearer.subject = fact.subject
              WHERE hearer.consumer = ANY (fact.heard) IS NOT TRUE
              {told_before}
         ), published AS (
             UPDATE outbox_events
                SET published_at = clock_timestamp()
              WHERE ctid = ANY (ARRAY(SELECT place FROM fact))
         )
         SELECT id, subject, payload, extract(epoch FROM clock_timestamp() - occurred_at)::float8, traceparent, heard
           FROM fact"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(BATCH)
        .bind(consumers)
        .bind(subjects)
        .fetch_all(tx.connection())
        .await?;
    Ok(rows)
}

/// Whether a fact was delivered to somebody who had it.
fn is_told_twice(error: &Error) -> bool {
    let Error::Database(sqlx::Error::Database(error)) = error else { return false };
    error.constraint() == Some("bus_deliveries_pkey")
}

/// What a batch says.
#[derive(Default)]
struct Read<'a> {
    moved: Vec<Moved>,
    /// Who is told of something.
    touched: BTreeSet<&'a str>,
    unreadable: Vec<Uuid>,
    reasons: Vec<String>,
}

impl<'a> Read<'a> {
    fn add(&mut self, row: &PgRow, hearers: &[Hearer<'a>]) -> Result<(), Error> {
        let id: Uuid = row.try_get(0)?;
        match read(row)? {
            Ok((subject, fact)) => {
                let heard: Option<Vec<String>> = row.try_get(5)?;
                let heard = heard.unwrap_or_default();
                let hears = |hearer: &&Hearer<'_>| {
                    hearer.subjects.contains(&subject)
                        && !heard.iter().any(|by| by == hearer.consumer)
                };
                let mut hearing = hearers.iter().filter(hears).peekable();
                if hearing.peek().is_some() {
                    let traceparent = row.try_get(4)?;
                    self.moved.push(Moved { event_id: id, subject, fact, traceparent });
                }
                self.touched.extend(hearing.map(|hearer| hearer.consumer));
            }
            Err(reason) => {
                tracing::warn!(event_id = %id, reason, "a fact in the outbox can't be read");
                self.unreadable.push(id);
                self.reasons.push(shortened(&reason));
            }
        }
        Ok(())
    }

    /// Those that nobody can read are dead letters of the relay, and nobody else's.
    async fn put_aside(self, tx: &mut Tx, hearers: &[Hearer<'_>]) -> Result<(), Error> {
        let consumers: Vec<&str> = hearers.iter().map(|hearer| hearer.consumer).collect();
        sqlx::query(
            "WITH unreadable AS MATERIALIZED (
                 SELECT * FROM unnest($1::uuid[], $2::text[]) AS unreadable (event_id, reason)
             ), taken_back AS (
                 DELETE FROM bus_deliveries
                  USING unreadable
                  WHERE bus_deliveries.event_id = unreadable.event_id AND consumer = ANY ($4)
             )
             INSERT INTO bus_deliveries (consumer, event_id, entity_id, seq, message, due_at, reason, dead_at)
             SELECT $3, event.id, event.entity_id, event.seq,
                    jsonb_build_object('id', event.id, 'subject', event.subject, 'fact', event.payload,
                                       'traceparent', event.traceparent),
                    'epoch'::timestamptz, unreadable.reason, clock_timestamp()
               FROM unreadable
               JOIN outbox_events AS event ON event.id = unreadable.event_id
                 ON CONFLICT (consumer, event_id) DO NOTHING",
        )
        .bind(self.unreadable)
        .bind(self.reasons)
        .bind(RELAY)
        .bind(consumers)
        .execute(tx.connection())
        .await?;
        Ok(())
    }
}

/// A fact that every consumer could read, and what it is about; or why not.
fn read(row: &PgRow) -> Result<Result<(Subject, Fact), String>, Error> {
    let subject: &str = row.try_get(1)?;
    let Some(subject) = Subject::parse(subject) else {
        return Ok(Err(format!("nobody knows the subject {subject:?}")));
    };
    Ok(match row.try_get::<Json<Fact>, _>(2) {
        Ok(Json(fact)) => Ok((subject, fact)),
        Err(sqlx::Error::ColumnDecode { source, .. }) => {
            Err(format!("its payload is not a fact: {source}"))
        }
        Err(fault) => return Err(fault.into()),
    })
}

/// Removes what was published before `older_than`, a batch at a time; answers how much. The dead letters of the relay stay,
/// so that they can be driven again. Two who prune at once take different facts.
///
/// # Errors
/// When the database fails; what was removed by then stays so.
pub async fn prune(store: &Store, older_than: Timestamp) -> Result<u64, Error> {
    let (mut pruned, mut after) = (0, Uuid::nil());
    loop {
        // What is kept is passed by once, not by every statement anew.
        let row = sqlx::query(
            "WITH page AS MATERIALIZED (
                SELECT ctid AS place, id, published_at
                  FROM outbox_events
                 WHERE id > $1 AND id < $2
                 ORDER BY id
                 LIMIT $3
                   FOR UPDATE SKIP LOCKED
             ), gone AS (
                DELETE FROM outbox_events
                 WHERE ctid = ANY (ARRAY(
                       SELECT place
                         FROM page
                        WHERE published_at < $4
                          AND (SELECT 1
                                 FROM bus_deliveries AS letter
                                WHERE letter.consumer = $5 AND letter.event_id = page.id
                                LIMIT 1) IS NULL))
                RETURNING 1
             )
             SELECT (SELECT count(*) FROM page), (SELECT id FROM page ORDER BY id DESC LIMIT 1), (SELECT count(*) FROM gone)",
        )
        .bind(after)
        .bind(first_id_at(older_than))
        .bind(PRUNE_BATCH)
        .bind(older_than.to_sqlx())
        .bind(RELAY)
        .fetch_one(store.pool())
        .await?;
        pruned += row.try_get::<i64, _>(2)?.unsigned_abs();
        if row.try_get::<i64, _>(0)? < PRUNE_BATCH {
            return Ok(pruned);
        }
        after = row.try_get(1)?;
    }
}

/// Identities begin with the time at which they were made, so their own index finds the old ones.
fn first_id_at(moment: Timestamp) -> Uuid {
    let milliseconds = u128::try_from(moment.as_millisecond()).unwrap_or(0);
    Uuid::from_u128(milliseconds << 80)
}
