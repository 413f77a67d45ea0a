//! What operators look after: invariants of the database, and messages that could not be handled.

use domain::policy::Permission;
use jiff::Timestamp;
use serde_json::json;
use store::Store;
use store::deliveries::{DeadCursor, DeadRow};
use uuid::Uuid;
use wire::http::Page;
use wire::http::admin::{DeadLetter, Invariant, Invariants};
use wire::http::money::LedgerAudit;

use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

/// How much is shown of what went wrong with a message.
const REASON_CHARACTERS_MAX: usize = 512;

/// Asks every invariant of the database.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator.
pub async fn invariants(ctx: &Ctx, caller: &Caller) -> Result<Invariants, Error> {
    caller.needs(Permission::FleetRead)?;
    let findings = store::audit::run(&ctx.store).await?;
    let invariants: Vec<Invariant> = findings.into_iter().map(told).collect();
    let clean = invariants.iter().all(|invariant| invariant.count == 0);
    Ok(Invariants { clean, invariants })
}

/// The ledger, computed again from usage and payments.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator.
pub async fn audit_ledger(ctx: &Ctx, caller: &Caller) -> Result<LedgerAudit, Error> {
    caller.needs(Permission::LedgerRead)?;
    Ok(ledger_of(&ctx.store).await?)
}

/// The same for who has the database itself.
///
/// # Errors
/// When the store fails.
pub async fn ledger_of(store: &Store) -> Result<LedgerAudit, store::Error> {
    let sums = store::audit::sums(store).await?;
    let findings = store::audit::ask_all(store, store::audit::MONEY).await?;
    let invariants: Vec<Invariant> = findings.into_iter().map(told).collect();
    let clean = invariants.iter().all(|invariant| invariant.count == 0)
        && sums.iter().all(|sum| sum.ledger_minor == sum.computed_minor);
    Ok(LedgerAudit { clean, sums, invariants })
}

/// An invariant as it is told.
pub fn told((invariant, violations, count): store::audit::Finding) -> Invariant {
    Invariant {
        name: invariant.name.to_owned(),
        holds: invariant.holds.to_owned(),
        violations,
        count,
    }
}

/// The messages that could not be handled, oldest first.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator.
pub async fn dead_letters(
    ctx: &Ctx,
    caller: &Caller,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<DeadLetter>, Error> {
    caller.needs(Permission::FleetRead)?;
    let of = ("admin/dead-letters", caller.user_id);
    let paging = Paging::<Place>::read(ctx, &of, limit, cursor)?;
    let after = paging.after().map(|(dead_at, event_id, consumer)| DeadCursor {
        dead_at,
        event_id,
        consumer,
    });
    let rows = store::deliveries::list_dead(&ctx.store, paging.rows(), after.as_ref()).await?;
    let place = |letter: &DeadLetter| (letter.dead_at, letter.event_id, letter.consumer.clone());
    Ok(paging.page(ctx, rows.into_iter().map(shown).collect(), place))
}

/// The place of a dead letter in the list: since when, which, whose.
type Place = (Timestamp, Uuid, String);

/// Has a message delivered once more, from its first attempt.
///
/// # Errors
/// [`Error::NotFound`] when there is no such dead letter.
pub async fn redrive(
    ctx: &Ctx,
    caller: &Caller,
    consumer: &str,
    event_id: Uuid,
    key: Option<&Key>,
) -> Result<Answer<()>, Error> {
    caller.needs(Permission::FleetManage)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    if !store::deliveries::redrive(&mut tx, consumer, event_id).await? {
        return Err(Error::NotFound("dead letter"));
    }
    tracing::info!(user_id = %caller.user_id, consumer, %event_id, "a dead letter is delivered again");
    let deed = Deed::new(caller, Action::DeadLetterRedrive, "message", event_id)
        .with(json!({ "consumer": consumer }));
    finish(tx, &deed, key, 204, ()).await
}

fn shown(row: DeadRow) -> DeadLetter {
    let subject = row.message.get("subject").and_then(|subject| subject.as_str());
    let reason = row.reason.chars().filter(|c| !c.is_control()).take(REASON_CHARACTERS_MAX);
    DeadLetter {
        event_id: row.event_id,
        subject: subject.unwrap_or("unreadable").to_owned(),
        entity_id: row.entity_id,
        attempts: row.attempts,
        reason: reason.collect(),
        dead_at: row.dead_at,
        consumer: row.consumer,
    }
}
