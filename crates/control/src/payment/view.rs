//! Who sees what of payments: people their own sessions and what is going on, operators what was asked for beside what was paid.
//! Doors: GET /payments/sessions, GET /admin/payments/sessions and …/events.

use domain::ids::PaymentSessionId;
use domain::machines::payment_session::Status;
use domain::policy::Permission;
use jiff::{SignedDuration, Timestamp};
use lifecycle::Code as _;
use store::payment_events::{self, Event, Place};
use store::payment_sessions::{self, Session, Which};
use uuid::Uuid;
use wire::Coded;
use wire::http::Page;
use wire::http::payments::{
    PaymentCase, PaymentCases, PaymentEvent, PaymentEventOutcome, PaymentProgress, PaymentSession,
};

use crate::billing;
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

/// Nobody stays at a checkout for longer than this.
const STUCK_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// One session of the caller.
///
/// # Errors
/// [`Error::NotFound`] when there is none, or it is somebody else's: nobody learns which.
pub async fn show(ctx: &Ctx, caller: &Caller, id: Uuid) -> Result<PaymentSession, Error> {
    caller.needs(Permission::PaymentRead)?;
    let id = PaymentSessionId(id);
    let found = payment_sessions::find(&ctx.store, id, Some(caller.user_id)).await?;
    Ok(shown(&found.ok_or(Error::NotFound("payment session"))?))
}

/// The sessions of the caller, the newest first.
///
/// # Errors
/// [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<PaymentSession>, Error> {
    caller.needs(Permission::PaymentRead)?;
    let paging = Paging::read(ctx, &("payment-sessions", caller.user_id), limit, cursor)?;
    let which = Which::Of(caller.user_id);
    let rows = payment_sessions::list(&ctx.store, which, paging.rows(), paging.after()).await?;
    Ok(paging.page(ctx, rows.iter().map(shown).collect(), |session| session.id))
}

/// Everybody's sessions, or only those that an operator should look at, the newest first.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator, [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list_all(
    ctx: &Ctx,
    caller: &Caller,
    stuck: bool,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<PaymentCases, Error> {
    caller.needs(Permission::PaymentReview)?;
    let paging = Paging::read(ctx, &("admin/payment-sessions", stuck), limit, cursor)?;
    let since = ctx.clock.now().checked_sub(STUCK_AFTER).unwrap_or(Timestamp::MIN);
    let which = if stuck { Which::Stuck(since) } else { Which::All };
    let rows = payment_sessions::list(&ctx.store, which, paging.rows(), paging.after()).await?;
    let unmatched_events = payment_events::count_open(&ctx.store).await?;
    let page = paging.page(ctx, rows.iter().map(case).collect(), |case| case.session.id);
    let Page { items, next_cursor } = page;
    Ok(PaymentCases { items, next_cursor, unmatched_events })
}

/// What the provider has told us, the newest first; with `unmatched`, only what nothing came of.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator, [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list_events(
    ctx: &Ctx,
    caller: &Caller,
    unmatched: bool,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<PaymentEvent>, Error> {
    caller.needs(Permission::PaymentReview)?;
    let of = ("admin/payment-events", unmatched);
    let paging = Paging::<Place>::read(ctx, &of, limit, cursor)?;
    let rows = payment_events::list(&ctx.store, unmatched, paging.after(), paging.rows()).await?;
    let place = |event: &PaymentEvent| (event.received_at, event.id.clone());
    Ok(paging.page(ctx, rows.into_iter().map(told).collect(), place))
}

fn told(event: Event) -> PaymentEvent {
    let outcome = event.outcome.as_deref().and_then(PaymentEventOutcome::parse).map(Coded);
    PaymentEvent {
        id: event.id,
        kind: event.kind,
        received_at: event.received_at,
        session_id: event.session_id,
        outcome,
        attempts: event.attempts,
        due_at: event.due_at,
        reason: event.reason,
        facts: event.payload,
    }
}

/// A session as whoever pays sees it.
pub(super) fn shown(session: &Session) -> PaymentSession {
    let progress = progress(session);
    let (status_text, advice) = words(session, progress);
    PaymentSession {
        id: session.id.uuid(),
        status: Coded(session.status),
        status_at: session.status_at,
        progress: Coded(progress),
        status_text,
        advice: advice.to_owned(),
        amount_minor: session.amount_minor,
        currency: session.currency.clone(),
        url: session.url.clone().filter(|_| progress == PaymentProgress::AwaitingPayment),
        credited_amount_minor: session.credited_amount_minor,
        refunded_minor: session.refunded_minor,
        created_at: session.created_at,
        expires_at: session.expires_at,
        completed_at: session.completed_at,
        ended_at: session.ended_at,
    }
}

fn progress(session: &Session) -> PaymentProgress {
    match session.status {
        Status::Initiated if session.processing => PaymentProgress::Processing,
        Status::Initiated => PaymentProgress::AwaitingPayment,
        Status::CheckoutCompleted => PaymentProgress::Processing,
        Status::Credited => PaymentProgress::Credited,
        Status::Expired => PaymentProgress::Expired,
        Status::FailedReconcile => PaymentProgress::UnderReview,
    }
}

fn words(session: &Session, progress: PaymentProgress) -> (String, &'static str) {
    let money = |minor: i64| billing::shown(&session.currency, minor);
    let asked = money(session.amount_minor);
    match progress {
        PaymentProgress::AwaitingPayment => (
            format!("{asked} can be paid at the address; nothing was paid yet."),
            "Open the address and pay there. It is in the balance moments later.",
        ),
        PaymentProgress::Processing => (
            format!("{asked} are being processed. They are not in the balance yet."),
            "Nothing: it comes by itself, with some ways to pay only after days.",
        ),
        PaymentProgress::Credited => {
            let credited = money(session.credited_amount_minor.unwrap_or_default());
            let text = match session.refunded_minor {
                0 => format!("{credited} are in the balance."),
                back => format!("{credited} were credited; {} were given back since.", money(back)),
            };
            (text, "Nothing: it is done.")
        }
        PaymentProgress::Expired => (
            format!("Nobody has paid the {asked} in time. Nothing was charged."),
            "Ask for a new checkout. If it was paid after all, it is credited when we hear of it.",
        ),
        PaymentProgress::UnderReview => (
            "What was paid does not agree with what was asked for, or could not be credited."
                .to_owned(),
            "An operator looks at it; nothing is lost. If it takes long, tell them the id.",
        ),
    }
}

/// A session as operators see it.
pub(super) fn case(session: &Session) -> PaymentCase {
    PaymentCase {
        session: shown(session),
        user_id: session.user_id,
        account_id: session.account.uuid(),
        stripe_checkout_session_id: session.provider_id.clone(),
        stripe_payment_intent_id: session.payment_intent.clone(),
        paid_amount_minor: session.paid_amount_minor,
        paid_currency: session.paid_currency.clone(),
        reason: session.reason.clone(),
        posting_id: session.posting_id,
        operator_advice: advice(session),
    }
}

fn advice(session: &Session) -> Option<String> {
    let id = session.id;
    match session.status {
        Status::Initiated if session.url.is_none() => Some(
            "The provider was never reached for it. It expires by itself; whoever asked can ask again."
                .to_owned(),
        ),
        Status::Initiated => Some(
            "Look at the session at the provider. If it was paid there, see why its webhook does not come through; it is looked up by itself before it expires."
                .to_owned(),
        ),
        Status::CheckoutCompleted => {
            Some("Nothing: it is credited, or given up, by itself.".to_owned())
        }
        Status::FailedReconcile => Some(format!(
            "See at the provider what was paid, and credit that: berth admin payments resolve {id} --amount-minor AMOUNT --reason WHY; 0 if the payer has it back."
        )),
        Status::Credited | Status::Expired => None,
    }
}
