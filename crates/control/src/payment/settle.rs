//! What follows from what the provider told: a credit, a session for an operator, an end, a refund. All of it in the transaction
//! that it is given, and the same however often and in whichever order it is told.

use domain::ids::PaymentSessionId;
use domain::ledger::PostingKind;
use domain::machines::payment_session::{
    AMOUNT_MINOR, CREDITED_AMOUNT_MINOR, CURRENCY, Event as Happened, LEDGER_ENTRY_ID, Status,
};
use domain::machines::{PaymentSession, REASON};
use lifecycle::{Outcome as Reported, Source, Value};
use store::Tx;
use store::ledger::{self, NewPosting};
use store::lifecycle::{Actor, Report, apply};
use store::payment_events::{self, Event};
use store::payment_sessions::{self, Paid, Session};
use wire::http::payments::PaymentEventOutcome as Outcome;

use super::provider::{About, CheckoutFacts, RefundFacts};
use super::{PROVIDER, credit_key, refund_key, webhook};
use crate::{Ctx, Error};

/// What came of an event.
pub(super) enum Settled {
    /// It is settled.
    Done(Option<PaymentSessionId>, Outcome),
    /// It has to wait for something.
    NotYet(Option<PaymentSessionId>, &'static str),
}

/// Does what follows from an event.
pub(super) async fn settle(
    ctx: &Ctx,
    tx: &mut Tx,
    event: &Event,
    about: &About,
) -> Result<Settled, Error> {
    match about {
        About::Paid(facts) => match matched(tx, facts).await? {
            Matched::Ours(session) => paid(ctx, tx, event, facts, &session).await,
            Matched::Others => Ok(Settled::Done(None, Outcome::Unmatched)),
            Matched::Unknown => Ok(Settled::NotYet(None, "no_such_session")),
        },
        About::Awaiting(facts) => match matched(tx, facts).await? {
            Matched::Ours(session) => awaiting(&session),
            Matched::Others => Ok(Settled::Done(None, Outcome::Unmatched)),
            Matched::Unknown => Ok(Settled::NotYet(None, "no_such_session")),
        },
        About::Ended(facts) => match matched(tx, facts).await? {
            Matched::Ours(session) => ended(tx, event, &session).await,
            Matched::Others => Ok(Settled::Done(None, Outcome::Unmatched)),
            Matched::Unknown => Ok(Settled::NotYet(None, "no_such_session")),
        },
        About::Refunded(facts) => refunded(tx, event, facts).await,
        About::Nothing => Ok(Settled::Done(None, Outcome::Ignored)),
    }
}

/// Whose page it is.
enum Matched {
    /// The page of this session, which is locked.
    Ours(Box<Session>),
    /// A page that says it is a session's which has another page.
    Others,
    /// Nobody's that we know.
    Unknown,
}

/// The session of a page. One that has no page yet, because the provider was faster than our second transaction, gets it now.
async fn matched(tx: &mut Tx, facts: &CheckoutFacts) -> Result<Matched, Error> {
    if let Some(session) = payment_sessions::lock_by_provider_id(tx, &facts.provider_id).await? {
        return Ok(Matched::Ours(Box::new(session)));
    }
    let Some(id) = facts.session.map(PaymentSessionId) else { return Ok(Matched::Unknown) };
    let Some(session) = payment_sessions::lock(tx, id).await? else {
        return Ok(Matched::Unknown);
    };
    match &session.provider_id {
        None => {
            payment_sessions::bind(tx, id, &facts.provider_id).await?;
            Ok(Matched::Ours(Box::new(session)))
        }
        // The second transaction was committed between our two looks.
        Some(page) if *page == facts.provider_id => Ok(Matched::Ours(Box::new(session))),
        Some(_) => Ok(Matched::Others),
    }
}

async fn paid(
    ctx: &Ctx,
    tx: &mut Tx,
    event: &Event,
    facts: &CheckoutFacts,
    session: &Session,
) -> Result<Settled, Error> {
    let id = session.id;
    let completed = outside(event, Happened::Completed, "completed");
    let standing = reported(apply::<PaymentSession>(tx, id, &completed).await?, session.status)?;
    match standing {
        Status::CheckoutCompleted => {}
        Status::Credited | Status::FailedReconcile => {
            return Ok(Settled::Done(Some(id), Outcome::Repeated));
        }
        Status::Initiated | Status::Expired => {
            return Err(Error::Broken(format!(
                "payment session {id} is paid and still {standing}"
            )));
        }
    }
    let amount_minor = facts.amount_minor.unwrap_or_default();
    let currency = facts.currency.as_deref().unwrap_or_default();
    let payment_intent = facts.payment.as_deref();
    payment_sessions::note_paid(tx, id, Paid { amount_minor, currency, payment_intent }).await?;
    let differs = match () {
        () if currency != session.currency => Some("currency_mismatch"),
        () if amount_minor != session.amount_minor => Some("amount_mismatch"),
        () => None,
    };
    if let Some(reason) = differs {
        give_to_operator(tx, event, id, reason).await?;
        return Ok(Settled::Done(Some(id), Outcome::Mismatched));
    }
    credit(ctx, tx, event, session).await?;
    Ok(Settled::Done(Some(id), Outcome::Credited))
}

/// The credit and the step that says so.
async fn credit(ctx: &Ctx, tx: &mut Tx, event: &Event, session: &Session) -> Result<(), Error> {
    let (id, amount) = (session.id, session.amount_minor);
    let posting = NewPosting {
        key: &credit_key(id.uuid()),
        kind: PostingKind::Payment,
        account: session.account,
        amount_minor: amount,
        source_id: Some(id.uuid()),
        actor: PROVIDER,
        reason: None,
    };
    let posted = ledger::post(tx, &posting).await?;
    let posted =
        posted.ok_or_else(|| Error::Broken(format!("there is no account {}", session.account)))?;
    let report = worker(event, Happened::CreditPosted, "credited")
        .with(AMOUNT_MINOR, Value::Int(amount))
        .with(CURRENCY, Value::Text(session.currency.clone().into()))
        .with(LEDGER_ENTRY_ID, Value::Id(posted.id.as_u128()))
        .with(CREDITED_AMOUNT_MINOR, Value::Int(amount));
    let outcome = apply::<PaymentSession>(tx, id, &report).await?;
    if reported(outcome, Status::CheckoutCompleted)? != Status::Credited {
        return Err(Error::Broken(format!("payment session {id} can't be credited")));
    }
    // What was given back before it was here can be posted now.
    payment_events::hurry(tx, id, ctx.clock.now()).await?;
    Ok(())
}

async fn give_to_operator(
    tx: &mut Tx,
    event: &Event,
    id: PaymentSessionId,
    reason: &'static str,
) -> Result<(), Error> {
    let report =
        worker(event, Happened::CreditFailed, "failed").with(REASON, Value::Text(reason.into()));
    let outcome = apply::<PaymentSession>(tx, id, &report).await?;
    reported(outcome, Status::CheckoutCompleted)?;
    Ok(())
}

/// Nothing is certain yet: another event says whether the money came.
fn awaiting(session: &Session) -> Result<Settled, Error> {
    let outcome = match session.status {
        Status::Initiated | Status::Expired => Outcome::AwaitingPayment,
        Status::CheckoutCompleted | Status::Credited | Status::FailedReconcile => Outcome::Late,
    };
    Ok(Settled::Done(Some(session.id), outcome))
}

async fn ended(tx: &mut Tx, event: &Event, session: &Session) -> Result<Settled, Error> {
    let expired = outside(event, Happened::Expiring, "expired");
    let outcome = match apply::<PaymentSession>(tx, session.id, &expired).await? {
        Reported::Applied { .. } => Outcome::Expired,
        Reported::Duplicate(_) => Outcome::Repeated,
        Reported::Refused(refusal) if refusal.reason == lifecycle::Reason::Conflict => {
            return Err(Error::Store(store::Error::Conflict));
        }
        Reported::Refused(_) => Outcome::Late,
    };
    Ok(Settled::Done(Some(session.id), outcome))
}

/// Money was given back: what of it has not left the balance yet leaves it now. The provider says how much it is in all, so that
/// an older word after a newer one changes nothing.
async fn refunded(tx: &mut Tx, event: &Event, facts: &RefundFacts) -> Result<Settled, Error> {
    let Some(session) = payer_of(tx, facts).await? else {
        return Ok(Settled::NotYet(None, "no_such_payment"));
    };
    let id = session.id;
    let credited = match (session.status, session.credited_amount_minor) {
        (Status::Credited, Some(credited)) => credited,
        (_, _) => return Ok(Settled::NotYet(Some(id), "not_credited_yet")),
    };
    if facts.currency != session.currency {
        return Ok(Settled::Done(Some(id), Outcome::Exceeds));
    }
    let total = facts.total_minor.min(credited);
    let more = total - session.refunded_minor;
    if more > 0 {
        let posting = NewPosting {
            key: &refund_key(id.uuid(), total),
            kind: PostingKind::Refund,
            account: session.account,
            amount_minor: -more,
            source_id: Some(id.uuid()),
            actor: PROVIDER,
            reason: None,
        };
        let posted = ledger::post(tx, &posting).await?;
        posted.ok_or_else(|| Error::Broken(format!("there is no account {}", session.account)))?;
        payment_sessions::note_refunded(tx, id, total).await?;
    }
    let outcome = match () {
        () if facts.total_minor > credited => Outcome::Exceeds,
        () if more > 0 => Outcome::Refunded,
        () => Outcome::Repeated,
    };
    tracing::info!(event = event.id, payment_session_id = %id, total, "money was given back");
    Ok(Settled::Done(Some(id), outcome))
}

/// The session that a payment was for. Before it is heard that it was paid, only what we gave the provider along says so.
async fn payer_of(tx: &mut Tx, facts: &RefundFacts) -> Result<Option<Session>, Error> {
    if let Some(payment) = &facts.payment
        && let Some(session) = payment_sessions::lock_by_payment(tx, payment).await?
    {
        return Ok(Some(session));
    }
    let Some(id) = facts.session.map(PaymentSessionId) else { return Ok(None) };
    let session = payment_sessions::lock(tx, id).await?;
    Ok(session.filter(|session| session.payment_intent.is_none() || facts.payment.is_none()))
}

/// Whose it is, as far as that is known.
pub(super) async fn find(tx: &mut Tx, about: &About) -> Result<Option<PaymentSessionId>, Error> {
    let session = match about {
        About::Paid(facts) | About::Awaiting(facts) | About::Ended(facts) => {
            payment_sessions::lock_by_provider_id(tx, &facts.provider_id).await?
        }
        About::Refunded(facts) => payer_of(tx, facts).await?,
        About::Nothing => None,
    };
    Ok(session.map(|session| session.id))
}

/// An event that could not be settled, however often it was tried: a payment waits for an operator. Answers whose it is.
pub(super) async fn give_up(
    tx: &mut Tx,
    event: &Event,
    about: &About,
) -> Result<Option<PaymentSessionId>, Error> {
    let facts = match about {
        About::Paid(facts) => facts,
        About::Awaiting(_) | About::Ended(_) | About::Refunded(_) | About::Nothing => {
            return Ok(event.session_id.map(PaymentSessionId));
        }
    };
    let Matched::Ours(session) = matched(tx, facts).await? else { return Ok(None) };
    let completed = outside(event, Happened::Completed, "completed");
    let standing = apply::<PaymentSession>(tx, session.id, &completed).await?;
    if reported(standing, session.status)? == Status::CheckoutCompleted {
        let amount_minor = facts.amount_minor.unwrap_or_default();
        let currency = facts.currency.as_deref().unwrap_or_default();
        // Without the payment: that it belongs to another session may be what is wrong.
        let paid = Paid { amount_minor, currency, payment_intent: None };
        payment_sessions::note_paid(tx, session.id, paid).await?;
        give_to_operator(tx, event, session.id, "credit_failed").await?;
    }
    Ok(Some(session.id))
}

fn outside(event: &Event, happened: Happened, label: &str) -> Report<Happened> {
    let actor = Actor::new(Source::Outside, PROVIDER);
    Report::new(happened, webhook::fact(&event.id, label), actor).because(cause(event))
}

fn worker(event: &Event, happened: Happened, label: &str) -> Report<Happened> {
    let actor = Actor::new(Source::Worker, "payments");
    Report::new(happened, webhook::fact(&event.id, label), actor).because(cause(event))
}

fn cause(event: &Event) -> String {
    format!("payment event {}", event.id)
}

/// Where a session stands after a report; a lost race is run again.
fn reported(outcome: Reported<Status>, before: Status) -> Result<Status, Error> {
    match outcome {
        Reported::Applied { to, .. } => Ok(to),
        Reported::Duplicate(standing) => Ok(standing.status),
        Reported::Refused(refusal) if refusal.reason == lifecycle::Reason::Conflict => {
            Err(Error::Store(store::Error::Conflict))
        }
        Reported::Refused(refusal) => Ok(refusal.status.unwrap_or(before)),
    }
}
