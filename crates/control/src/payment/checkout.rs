//! Somebody wants to pay in. The row comes first, so that whatever the provider says later finds it; then exactly one of all
//! who ask with the same key, in whichever process, asks the provider, outside of any transaction; then everybody gets the same
//! page. Door: POST /payments/checkout-session.

use std::time::Duration;

use domain::ids::{EventId, PaymentSessionId};
use domain::machines::payment_session::Status;
use domain::policy::Permission;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::lifecycle::Birth;
use store::payment_sessions::{self, Session};
use store::{Ring, Tx};
use tokio::time::timeout;
use wire::http::payments::{NewCheckoutSession, PaymentSession};

use super::provider::{NewCheckout, Provider, ProviderError};
use super::view;
use crate::audit_log::{Action, DONE, Deed};
use crate::billing::{account, shown};
use crate::idempotency::{Answer, Key};
use crate::{Caller, Ctx, Error};

/// How long somebody may ask the provider before another may. Longer than any answer takes.
const LEASE_SECONDS: u32 = 60;
/// How long those who came second wait for the page.
const PATIENCE: Duration = Duration::from_secs(8);
/// The provider closes its page so long before we call it expired, so that its own word of it comes first.
const MARGIN: SignedDuration = SignedDuration::from_mins(10);
/// The provider makes no page that would close sooner than this.
const OPEN_AT_LEAST: SignedDuration = SignedDuration::from_mins(31);
/// When to ask again for what the provider could not do.
const RETRY_SECONDS: u32 = 5;

/// Somebody asks for a page to pay at. The same key is the same page, for good.
///
/// # Errors
/// [`Error::Invalid`] for an amount that is out of bounds, [`Error::IdempotencyMismatch`] when the key was used for another
/// request, [`Error::IdempotencyInFlight`] when the page is still being made, [`Error::Unavailable`] when the provider can't be
/// asked: the same key may be used again.
pub async fn create(
    ctx: &Ctx,
    caller: &Caller,
    asked: &NewCheckoutSession,
    key: &Key,
) -> Result<Answer<PaymentSession>, Error> {
    caller.needs(Permission::PaymentCreate)?;
    let (mut session, mut lease) = match find(ctx, caller, key).await? {
        Some(known) => (known, None),
        None => open(ctx, caller, asked, key).await?,
    };
    if session.fingerprint.as_deref() != Some(key.fingerprint.as_slice()) {
        return Err(Error::IdempotencyMismatch);
    }
    if session.url.is_none() && session.status == Status::Initiated {
        // Before the lease: who can't ask must not keep others from asking.
        let provider = ctx.payments.load()?;
        let (now, until) = (ctx.clock.now(), ctx.after_seconds(LEASE_SECONDS));
        if lease.is_none() && payment_sessions::lease(&ctx.store, session.id, now, until).await? {
            lease = Some(until);
        }
        session = match lease {
            Some(until) => ask(ctx, provider, session, until).await?,
            None => wait(ctx, session).await?,
        };
    }
    let body = view::shown(&session);
    Ok(Answer { status: 201, body, replayed: lease.is_none() })
}

async fn find(ctx: &Ctx, caller: &Caller, key: &Key) -> Result<Option<Session>, Error> {
    Ok(payment_sessions::find_by_key(&ctx.store, caller.user_id, &key.key).await?)
}

/// The row, with who asked for it, and with the lease on asking the provider; or the row that somebody else has made
/// meanwhile, without.
async fn open(
    ctx: &Ctx,
    caller: &Caller,
    asked: &NewCheckoutSession,
    key: &Key,
) -> Result<(Session, Option<Timestamp>), Error> {
    ctx.payments.load()?;
    let mut tx = ctx.store.begin().await?;
    let account = account::ensure(ctx, &mut tx, caller.user_id).await?;
    let id = PaymentSessionId(tx.new_id());
    let until = ctx.after_seconds(LEASE_SECONDS);
    let new = payment_sessions::NewCheckout {
        id,
        account,
        user: caller.user_id,
        key: &key.key,
        fingerprint: &key.fingerprint,
        amount_minor: within_bounds(ctx, &mut tx, caller, asked.amount_minor).await?,
        created_at: ctx.clock.now(),
        expires_at: ctx.after_seconds(ctx.policies().payments_session_ttl_seconds),
        asked_until: until,
    };
    let mut birth = Birth::new(EventId(tx.new_id()), caller.actor());
    birth.cause = Some(caller.cause());
    let opened = payment_sessions::open(&mut tx, &new, &birth).await?;
    if opened {
        let deed = Deed::new(caller, Action::CheckoutCreate, "payment_session", id)
            .with(json!({ "amount_minor": asked.amount_minor }));
        deed.write(&mut tx, DONE).await?;
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    // Who lost has waited at the unique index until the other one was committed.
    let found = find(ctx, caller, key).await?.ok_or(Error::Store(store::Error::Conflict))?;
    Ok((found, opened.then_some(until)))
}

async fn within_bounds(
    ctx: &Ctx,
    tx: &mut Tx,
    caller: &Caller,
    amount_minor: i64,
) -> Result<i64, Error> {
    let policies = ctx.policies();
    let (least, most) =
        (i64::from(policies.payments_amount_min), i64::from(policies.payments_amount_max));
    if (least..=most).contains(&amount_minor) {
        return Ok(amount_minor);
    }
    let currency = store::accounts::currency_of(tx, caller.user_id).await?.unwrap_or_default();
    let (least, most) = (shown(&currency, least), shown(&currency, most));
    Err(Error::invalid("/amount_minor", format!("must be between {least} and {most}")))
}

/// Asks the provider for the page, and keeps it. What can't be had now is given back to whoever asks next.
async fn ask(
    ctx: &Ctx,
    provider: &dyn Provider,
    session: Session,
    until: Timestamp,
) -> Result<Session, Error> {
    let id = session.id;
    let closes = session.expires_at.unwrap_or(until).checked_sub(MARGIN).unwrap_or(until);
    let made = if ctx.clock.now() > closes.checked_sub(OPEN_AT_LEAST).unwrap_or(closes) {
        Err(Error::Conflict(
            "this checkout was never opened, and it is too late to: use a new Idempotency-Key"
                .to_owned(),
        ))
    } else {
        let new = NewCheckout {
            session: id.uuid(),
            amount_minor: session.amount_minor,
            currency: session.currency,
            expires_at: closes,
        };
        provider.create_session(&new).await.map_err(|error| refused(id, &error))
    };
    let mut tx = ctx.store.begin().await?;
    let checkout = match made {
        Ok(checkout) => checkout,
        Err(error) => {
            payment_sessions::give_back(&mut tx, id, until).await?;
            tx.commit().await?;
            return Err(error);
        }
    };
    if !payment_sessions::keep(&mut tx, id, &checkout.id, &checkout.url).await? {
        return Err(Error::Broken(format!("payment session {id} has another page already")));
    }
    tx.commit().await?;
    counted("made");
    payment_sessions::find(&ctx.store, id, None).await?.ok_or(Error::NotFound("payment session"))
}

fn refused(id: PaymentSessionId, error: &ProviderError) -> Error {
    let (result, detail, retry_after_seconds) = match error {
        ProviderError::Unavailable(_) => (
            "unavailable",
            "the payment provider can't be asked now; nothing was charged. Ask again with the same Idempotency-Key",
            RETRY_SECONDS,
        ),
        ProviderError::Refused(_) | ProviderError::Nonsense(_) => (
            "refused",
            "the payment provider does not make the checkout; nothing was charged. An operator has to look at it",
            12 * RETRY_SECONDS,
        ),
    };
    counted(result);
    tracing::warn!(payment_session_id = %id, why = %error, "a checkout could not be made");
    Error::Unavailable { detail: detail.to_owned(), retry_after_seconds }
}

fn counted(result: &'static str) {
    metrics::counter!("berth_payment_checkouts_total", "result" => result).increment(1);
}

/// Waits for the page that somebody else is asking for. When they fail, this fails like them: whoever asks again, asks.
async fn wait(ctx: &Ctx, session: Session) -> Result<Session, Error> {
    let id = session.id;
    // Got before the first look, so that nothing that happens in between is missed.
    let bell = ctx.wake.on(Ring::Payment(id.uuid()));
    let waited = timeout(PATIENCE, async {
        loop {
            let seen = payment_sessions::find(&ctx.store, id, None).await?;
            let seen = seen.ok_or(Error::NotFound("payment session"))?;
            if seen.url.is_some() || seen.status != Status::Initiated {
                return Ok(seen);
            }
            if seen.asked_until.is_none() {
                return Err(Error::Unavailable {
                    detail: "the payment provider can't be asked now; nothing was charged. Ask again with the same Idempotency-Key".to_owned(),
                    retry_after_seconds: RETRY_SECONDS,
                });
            }
            bell.notified().await;
        }
    });
    waited.await.unwrap_or(Err(Error::IdempotencyInFlight))
}
