//! An operator decides about a payment that does not add up: so much is credited, for this reason.
//! Door: POST /admin/payments/sessions/{id}/resolve.

use domain::ids::PaymentSessionId;
use domain::ledger::PostingKind;
use domain::machines::payment_session::{CREDITED_AMOUNT_MINOR, Event, LEDGER_ENTRY_ID, Status};
use domain::machines::{PaymentSession, REASON};
use domain::policy::Permission;
use lifecycle::Value;
use serde_json::json;
use store::ledger::{self, NewPosting};
use store::lifecycle::{Report, apply};
use store::{payment_events, payment_sessions};
use wire::http::payments::{PaymentCase, ResolvePayment};

use super::{credit_key, view};
use crate::audit_log::{Action, Deed, because};
use crate::idempotency::{Answer, Begun, Key, begin, finish, refuse};
use crate::ids::new_event;
use crate::{Caller, Ctx, Error};

/// Credits what the operator says, once, whatever was paid.
///
/// # Errors
/// [`Error::Conflict`] when it does not wait for an operator, [`Error::Invalid`] for an amount or a reason that is none.
pub async fn resolve(
    ctx: &Ctx,
    caller: &Caller,
    id: PaymentSessionId,
    asked: &ResolvePayment,
    key: Option<&Key>,
) -> Result<Answer<PaymentCase>, Error> {
    caller.needs(Permission::PaymentReconcile)?;
    let reason = because(&asked.reason)?;
    let most = i64::from(ctx.policies().payments_amount_max);
    if !(0..=most).contains(&asked.amount_minor) {
        return Err(Error::invalid("/amount_minor", format!("must be between 0 and {most}")));
    }
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let session = payment_sessions::lock(&mut tx, id).await?;
    let session = session.ok_or(Error::NotFound("payment session"))?;
    let deed = Deed::new(caller, Action::PaymentResolve, "payment_session", id)
        .because(reason)
        .with(json!({ "amount_minor": asked.amount_minor, "asked_minor": session.amount_minor }));
    if session.status != Status::FailedReconcile {
        let why =
            format!("it is {}: only one that failed to reconcile is resolved", session.status);
        return refuse(tx, &deed, why).await;
    }
    let actor = caller.operator_actor();
    let posting = NewPosting {
        key: &credit_key(id.uuid()),
        kind: PostingKind::Payment,
        account: session.account,
        amount_minor: asked.amount_minor,
        source_id: Some(id.uuid()),
        actor: &actor.name,
        reason: Some(reason),
    };
    let posted = ledger::post(&mut tx, &posting).await?.ok_or(Error::NotFound("account"))?;
    let report = Report::new(Event::Resolved, new_event(&tx), actor.clone())
        .because(caller.cause())
        .with(REASON, Value::Text(reason.to_owned().into()))
        .with(LEDGER_ENTRY_ID, Value::Id(posted.id.as_u128()))
        .with(CREDITED_AMOUNT_MINOR, Value::Int(asked.amount_minor));
    let outcome = apply::<PaymentSession>(&mut tx, id, &report).await?;
    if !outcome.landed_on(Status::Credited) {
        return Err(Error::Store(store::Error::Conflict));
    }
    payment_events::hurry(&mut tx, id, ctx.clock.now()).await?;
    let resolved = payment_sessions::lock(&mut tx, id).await?;
    let resolved = resolved.ok_or(Error::NotFound("payment session"))?;
    finish(tx, &deed, key, 200, view::case(&resolved)).await
}
