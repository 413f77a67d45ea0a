//! How much waits, and how long it has: for the gauges. Every answer comes from an index, and nothing is counted past
//! [`COUNTED_MAX`], so that a backlog is not made worse by being looked at.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Store};

/// No count is higher than this: it means so many, or more.
pub const COUNTED_MAX: i64 = 10_000;

/// What waits, of everything that is only counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waiting {
    /// Facts in the outbox.
    pub outbox: i64,
    /// How long the oldest of them has waited.
    pub outbox_seconds: f64,
    /// Runs that are due and in nobody's hand.
    pub runs_due: i64,
    /// How long the longest of them has been due.
    pub runs_due_seconds: f64,
    /// Runs that are not over.
    pub runs_open: i64,
    /// Tasks that no agent has.
    pub tasks_queued: i64,
    /// Tasks that an agent has.
    pub tasks_dispatched: i64,
    /// Nodes that are ready and were heard of lately.
    pub nodes_heard: i64,
}

/// What waits at `now`; a node that was last heard of before `silent_before` is not heard of.
///
/// # Errors
/// When the database fails.
pub async fn waiting(
    store: &Store,
    now: Timestamp,
    silent_before: Timestamp,
) -> Result<Waiting, Error> {
    // A run that is due at once has the beginning of all time as its time; since when, it says beside it.
    let row = sqlx::query(
        "SELECT (SELECT count(*) FROM (SELECT 1 FROM outbox_events WHERE published_at IS NULL LIMIT $1) AS facts),
                (SELECT extract(epoch FROM clock_timestamp() - occurred_at)::float8
                   FROM outbox_events
                  WHERE published_at IS NULL
                  ORDER BY position
                  LIMIT 1),
                due.count,
                due.seconds,
                (SELECT count(*) FROM (SELECT 1 FROM workflow_runs WHERE done_at IS NULL LIMIT $1) AS runs),
                (SELECT count(*) FROM (SELECT 1 FROM node_tasks WHERE status = 'queued' LIMIT $1) AS tasks),
                (SELECT count(*) FROM (SELECT 1 FROM node_tasks WHERE status = 'dispatched' LIMIT $1) AS tasks),
                (SELECT count(*) FROM nodes WHERE status = 'ready' AND heartbeat_at >= $3)
           FROM (
                SELECT count(*),
                       max(extract(epoch FROM CASE WHEN runs.wake_at = 'epoch'::timestamptz
                                                   THEN clock_timestamp() - coalesce(runs.due_since, runs.created_at)
                                                   ELSE $2 - runs.wake_at END))::float8 AS seconds
                  FROM (
                       SELECT wake_at, due_since, created_at
                         FROM workflow_runs
                        WHERE done_at IS NULL
                          AND wake_at <= $2
                          AND (lease_until IS NULL OR lease_until <= $2)
                        ORDER BY wake_at
                        LIMIT $1
                       ) AS runs
                ) AS due",
    )
    .bind(COUNTED_MAX)
    .bind(now.to_sqlx())
    .bind(silent_before.to_sqlx())
    .fetch_one(store.pool())
    .await?;
    let seconds = |position: usize| -> Result<f64, sqlx::Error> {
        Ok(row.try_get::<Option<f64>, _>(position)?.unwrap_or_default().max(0.0))
    };
    Ok(Waiting {
        outbox: row.try_get(0)?,
        outbox_seconds: seconds(1)?,
        runs_due: row.try_get(2)?,
        runs_due_seconds: seconds(3)?,
        runs_open: row.try_get(4)?,
        tasks_queued: row.try_get(5)?,
        tasks_dispatched: row.try_get(6)?,
        nodes_heard: row.try_get(7)?,
    })
}

/// The messages of one consumer.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// Whose.
    pub consumer: String,
    /// How many it has not handled.
    pub depth: i64,
    /// How long the oldest of them has waited.
    pub seconds: f64,
    /// How many were given up.
    pub dead: i64,
}

/// The messages of these consumers.
///
/// # Errors
/// When the database fails.
pub async fn queues(store: &Store, consumers: &[&str]) -> Result<Vec<Queue>, Error> {
    // An identity begins with the time at which it was made, so the least of them is the oldest.
    let rows = sqlx::query(
        "WITH dead AS MATERIALIZED (
             SELECT letters.consumer, count(*)
               FROM (SELECT consumer FROM bus_deliveries WHERE dead_at IS NOT NULL LIMIT $2) AS letters
              GROUP BY letters.consumer
         )
         SELECT heard.consumer, queue.depth, queue.oldest, extract(epoch FROM clock_timestamp())::float8,
                coalesce((SELECT dead.count FROM dead WHERE dead.consumer = heard.consumer), 0)
           FROM unnest($1::text[]) AS heard (consumer)
          CROSS JOIN LATERAL (
                SELECT count(*) AS depth, min(messages.event_id::text)::uuid AS oldest
                  FROM (
                       SELECT event_id
                         FROM bus_deliveries
                        WHERE consumer = heard.consumer
                          AND dead_at IS NULL
                        ORDER BY due_at, event_id
                        LIMIT $2
                       ) AS messages
                ) AS queue",
    )
    .bind(consumers)
    .bind(COUNTED_MAX)
    .fetch_all(store.pool())
    .await?;
    let queue = |row: &PgRow| {
        let (oldest, now): (Option<Uuid>, f64) = (row.try_get(2)?, row.try_get(3)?);
        let since = oldest.map_or(now, |id| (id.as_u128() >> 80) as f64 / 1_000.0);
        Ok(Queue {
            consumer: row.try_get(0)?,
            depth: row.try_get(1)?,
            seconds: (now - since).max(0.0),
            dead: row.try_get(4)?,
        })
    };
    rows.iter().map(queue).collect()
}
