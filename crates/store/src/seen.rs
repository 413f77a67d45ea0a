//! Which consumer has handled which message: written in the transaction of the effect, so that both are true or neither.

use uuid::Uuid;

use crate::prune::{Prune, pruning};
use crate::{Error, Tx};

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

/// What was seen long ago. What may still be delivered again, dead letters included, is remembered.
pub const PRUNE: Prune = Prune::new(
    "consumed_events",
    pruning!(
        "consumed_events",
        "consumed_at",
        ", consumer, event_id",
        "(SELECT 1
                         FROM bus_deliveries AS waiting
                        WHERE waiting.consumer = page.consumer AND waiting.event_id = page.event_id
                        LIMIT 1) IS NULL"
    ),
);
