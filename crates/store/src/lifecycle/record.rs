//! What is kept of reports: whether one was applied before, what was refused, and a line and a counter for each.

use domain::ids::EventId;
use lifecycle::{Code, Outcome, Reason, Refusal, Why};
use uuid::Uuid;

use super::{Report, Stored};
use crate::{Error, Tx};

/// Whether this report was applied to this row before. Asked under the row's lock, or two deliveries both miss.
pub(crate) async fn knows(
    tx: &mut Tx,
    machine: &str,
    id: Uuid,
    event_id: EventId,
) -> Result<bool, Error> {
    let known = sqlx::query(
        "SELECT 1 FROM lifecycle_log WHERE entity_id = $1 AND event_id = $2 AND machine = $3",
    )
    .bind(id)
    .bind(event_id.uuid())
    .bind(machine)
    .fetch_optional(tx.connection())
    .await?;
    Ok(known.is_some())
}

/// Keeps a refusal where `explain` can read it. A report that is delivered again and again is kept once.
pub(crate) async fn refused<M: Stored>(
    tx: &mut Tx,
    id: Uuid,
    report: &Report<M::Event>,
    refusal: &Refusal<M::Status>,
) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO lifecycle_refusals
            (machine, entity_id, event_id, event, status, reason, name, source, actor, cause)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         ON CONFLICT (entity_id, event_id, machine) DO NOTHING",
    )
    .bind(M::NAME)
    .bind(id)
    .bind(report.event_id.uuid())
    .bind(refusal.event)
    .bind(refusal.status.map(Code::code))
    .bind(refusal.reason.code())
    .bind(refusal.reason.name())
    .bind(report.actor.source.code())
    .bind(&report.actor.name)
    .bind(&report.cause)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// A counter for every report, and a line for every one that changed nothing.
pub(crate) fn observe<M: Stored>(
    id: Uuid,
    report: &Report<M::Event>,
    outcome: &Outcome<M::Status>,
) {
    let (event, event_id) = (report.event.code(), report.event_id);
    let result = match outcome {
        Outcome::Applied { .. } => "applied",
        Outcome::Duplicate(_) => "duplicate",
        Outcome::Refused(refusal) => refusal.reason.code(),
    };
    metrics::counter!("berth_lifecycle_reports_total", "machine" => M::NAME, "event" => event, "outcome" => result)
        .increment(1);
    let Outcome::Refused(refusal) = outcome else {
        return;
    };
    let (status, reason, name) = (refusal.status.map(Code::code), result, refusal.reason.name());
    let machine = M::NAME;
    match refusal.reason {
        // Under the lock a conflict means that somebody went round the writer; a bug is one by definition.
        Reason::Conflict | Reason::Illegal(Why::Bug) => {
            tracing::warn!(machine, %id, event, %event_id, status, reason, name, actor = report.actor.name, "{refusal}");
        }
        Reason::NotFound | Reason::Superseded(_) | Reason::Illegal(_) | Reason::Guard(_) => {
            tracing::info!(machine, %id, event, %event_id, status, reason, name, actor = report.actor.name, "{refusal}");
        }
    }
}
