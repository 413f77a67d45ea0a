//! Which consumer has handled which message: written in the transaction of the effect, so that both are true or neither.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use uuid::Uuid;

use crate::{Error, Store, Tx};

/// How many rows one statement prunes.
const BATCH: i64 = 5_000;

/// Whether `consumer` sees this message for the first time. Two deliveries at once wait here for each other, and the
/// second is told what became of the first.
///
/// # Errors
/// When the database fails.
pub async fn first_time(tx: &mut Tx, consumer: &str, event_id: Uuid) -> Result<bool, Error> {
    let done = sqlx::query(
        "INSERT INTO consumed_events (consumer, event_id)
         VALUES ($1, $2)
         ON CONFLICT (consumer, event_id) DO NOTHING",
    )
    .bind(consumer)
    .bind(event_id)
    .execute(tx.connection())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Forgets what was seen before `older_than`, a batch at a time; answers how much. What may still be delivered again, dead
/// letters included, is remembered.
///
/// # Errors
/// When the database fails; what was forgotten by then stays so.
pub async fn prune(store: &Store, older_than: Timestamp) -> Result<u64, Error> {
    let mut pruned = 0;
    loop {
        let done = sqlx::query(
            "DELETE FROM consumed_events
              USING (
                    SELECT old.consumer, old.event_id
                      FROM consumed_events AS old
                     WHERE old.consumed_at < $1
                       AND NOT EXISTS (
                           SELECT 1
                             FROM bus_deliveries
                            WHERE bus_deliveries.consumer = old.consumer
                              AND bus_deliveries.event_id = old.event_id
                       )
                     ORDER BY old.consumed_at
                     LIMIT $2
                    ) AS old
              WHERE consumed_events.consumer = old.consumer
                AND consumed_events.event_id = old.event_id",
        )
        .bind(older_than.to_sqlx())
        .bind(BATCH)
        .execute(store.pool())
        .await?;
        pruned += done.rows_affected();
        if done.rows_affected() < BATCH.unsigned_abs() {
            return Ok(pruned);
        }
    }
}
