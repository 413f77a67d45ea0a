//! Checkouts that nobody has paid in time. The provider is asked first: what was paid there and never told is credited, not
//! expired. When it can't be asked for long, the session expires all the same; money that is heard of later is honoured.

use domain::machines::PaymentSession;
use domain::machines::payment_session::Event;
use jiff::SignedDuration;
use lifecycle::Source;
use store::lifecycle::{Actor, Report, apply};
use store::payment_sessions::{self, Session};

use super::provider::{About, Told};
use super::{inbox, webhook};
use crate::ids::new_event;
use crate::{Ctx, Error};

/// How many are looked at in one round: each may take a question to the provider.
const BATCH: i64 = 50;
/// For how long a provider that does not answer is asked again.
const ASKED_FOR: SignedDuration = SignedDuration::from_hours(1);

/// Expires what nobody has paid in time; answers how much that was.
///
/// # Errors
/// When the store fails.
pub async fn sweep(ctx: &Ctx) -> Result<u64, Error> {
    let mut moved = 0;
    let overdue = payment_sessions::list_overdue(&ctx.store, ctx.clock.now(), BATCH).await?;
    for session in overdue {
        let paid = match learn(ctx, &session).await {
            Learnt::Paid(told) => told,
            Learnt::Unknown => continue,
            Learnt::Unpaid => {
                moved += u64::from(expire(ctx, &session).await?);
                continue;
            }
        };
        tracing::warn!(payment_session_id = %session.id, "it was paid, and nobody told us");
        if webhook::keep(ctx, &paid).await? {
            inbox::work(ctx, &paid.id).await;
            moved += 1;
        }
    }
    Ok(moved)
}

enum Learnt {
    /// It was paid, as if we had been told.
    Paid(Told),
    /// It was not.
    Unpaid,
    /// The provider can't be asked now.
    Unknown,
}

/// How the provider says that a session stands.
async fn learn(ctx: &Ctx, session: &Session) -> Learnt {
    let (Some(page), Some(provider)) = (&session.provider_id, ctx.payments.find()) else {
        return Learnt::Unpaid;
    };
    match provider.retrieve_session(page).await {
        Ok(about @ About::Paid(_)) => {
            // Named after the page: asked again, it is the same.
            let (id, kind) = (format!("retrieved/{page}"), "checkout.session.retrieved".to_owned());
            Learnt::Paid(Told { id, kind, about })
        }
        Ok(About::Awaiting(_)) if within_patience(ctx, session) => Learnt::Unknown,
        Ok(About::Awaiting(_) | About::Ended(_) | About::Refunded(_) | About::Nothing) => {
            Learnt::Unpaid
        }
        Err(error) => {
            tracing::warn!(payment_session_id = %session.id, why = %error, "whether it was paid can't be asked");
            if within_patience(ctx, session) { Learnt::Unknown } else { Learnt::Unpaid }
        }
    }
}

fn within_patience(ctx: &Ctx, session: &Session) -> bool {
    let up = session.expires_at.unwrap_or(session.created_at);
    ctx.clock.now() < up.checked_add(ASKED_FOR).unwrap_or(up)
}

async fn expire(ctx: &Ctx, session: &Session) -> Result<bool, Error> {
    let mut tx = ctx.store.begin().await?;
    let actor = Actor::new(Source::Timer, "payment_sessions");
    let report = Report::new(Event::Expiring, new_event(&tx), actor).because("nobody paid in time");
    let outcome = apply::<PaymentSession>(&mut tx, session.id, &report).await?;
    let applied = outcome.is_applied();
    if outcome.is_retryable() {
        // Somebody was faster; the next round sees how it stands.
        tx.rollback().await?;
        return Ok(false);
    }
    tx.commit().await?;
    Ok(applied)
}
