//! Reading what happened: the transitions of a row and the reports it refused, oldest first.

use sqlx::Row as _;
use uuid::Uuid;

use crate::prune::{Prune, pruning};
use crate::{Error, Store};

/// One transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Its number; a birth is 1.
    pub seq: i64,
    /// The identity of the report behind it.
    pub event_id: Uuid,
    /// What happened.
    pub event: String,
    /// The status before; none for a birth.
    pub from: Option<String>,
    /// The status after.
    pub to: String,
    /// The operation it belongs to.
    pub operation_id: Option<Uuid>,
    /// Who reported it, in which role.
    pub source: String,
    /// Who reported it.
    pub actor: String,
    /// What led to it.
    pub cause: Option<String>,
    /// Why: a stable word.
    pub reason: Option<String>,
    /// When, in microseconds since 1970.
    pub occurred_at_micros: i64,
}

/// A report that changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The identity of the report.
    pub event_id: Uuid,
    /// What was reported.
    pub event: String,
    /// The status at the time; none when there was no row.
    pub status: Option<String>,
    /// Why nothing changed.
    pub reason: String,
    /// The check or guard behind it.
    pub name: Option<String>,
    /// Who reported it.
    pub actor: String,
    /// When, in microseconds since 1970.
    pub occurred_at_micros: i64,
}

impl Store {
    /// Every transition of one row.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn transitions(&self, machine: &str, id: Uuid) -> Result<Vec<Transition>, Error> {
        let rows = sqlx::query(
            "SELECT seq, event_id, event, from_status, to_status, operation_id, source, actor, cause, reason,
                    (extract(epoch FROM occurred_at) * 1000000)::bigint
               FROM lifecycle_log
              WHERE entity_id = $1 AND machine = $2
              ORDER BY seq",
        )
        .bind(id)
        .bind(machine)
        .fetch_all(self.pool())
        .await?;
        let transition = |row: &sqlx::postgres::PgRow| {
            Ok(Transition {
                seq: row.try_get(0)?,
                event_id: row.try_get(1)?,
                event: row.try_get(2)?,
                from: row.try_get(3)?,
                to: row.try_get(4)?,
                operation_id: row.try_get(5)?,
                source: row.try_get(6)?,
                actor: row.try_get(7)?,
                cause: row.try_get(8)?,
                reason: row.try_get(9)?,
                occurred_at_micros: row.try_get(10)?,
            })
        };
        rows.iter().map(transition).collect()
    }

    /// Every report that one row refused.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn refusals(&self, machine: &str, id: Uuid) -> Result<Vec<Refused>, Error> {
        let rows = sqlx::query(
            "SELECT event_id, event, status, reason, name, actor,
                    (extract(epoch FROM occurred_at) * 1000000)::bigint
               FROM lifecycle_refusals
              WHERE entity_id = $1 AND machine = $2
              ORDER BY occurred_at, event_id",
        )
        .bind(id)
        .bind(machine)
        .fetch_all(self.pool())
        .await?;
        let refused = |row: &sqlx::postgres::PgRow| {
            Ok(Refused {
                event_id: row.try_get(0)?,
                event: row.try_get(1)?,
                status: row.try_get(2)?,
                reason: row.try_get(3)?,
                name: row.try_get(4)?,
                actor: row.try_get(5)?,
                occurred_at_micros: row.try_get(6)?,
            })
        };
        rows.iter().map(refused).collect()
    }
}

/// What was refused long ago. The log itself is for ever.
pub const PRUNE_REFUSALS: Prune =
    Prune::new("lifecycle_refusals", pruning!("lifecycle_refusals", "occurred_at", "", "true"));
