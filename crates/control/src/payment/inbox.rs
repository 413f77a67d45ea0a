//! What the provider told us, worked off: each event in one transaction with all that follows from it. What can't be settled is
//! tried again, with pauses and so often; then it ends in a state that an operator sees. A timer, woken by a ring.

use lifecycle::Code as _;
use store::Tx;
use store::payment_events::{self, Event, Pauses};
use wire::http::payments::PaymentEventOutcome as Outcome;

use super::provider::About;
use super::settle::{self, Settled};
use crate::{Ctx, Error};

/// How long an event waits between two attempts.
pub(super) const PAUSES: Pauses = Pauses { first_seconds: 5, longest_seconds: 600 };
/// How many are worked off in one round.
const BATCH: i64 = 100;
/// How often a transaction that lost a race is run again at once.
const RACES_MAX: usize = 5;

/// Works off what is due; answers how much that was.
///
/// # Errors
/// When the store fails.
pub async fn sweep(ctx: &Ctx) -> Result<u64, Error> {
    let due = payment_events::take_due(&ctx.store, ctx.clock.now(), PAUSES, BATCH).await?;
    for id in &due {
        work(ctx, id).await;
    }
    Ok(due.len() as u64)
}

/// Works off one event, whose attempt was counted already. What goes wrong is noted with it, and it stays due; when this was the
/// last attempt, it ends in a state.
pub(super) async fn work(ctx: &Ctx, id: &str) {
    let Err(error) = raced(ctx, id).await else { return };
    if !store::fall::noticed(&error) {
        tracing::warn!(event = id, cause = error.chain(), "a payment event can't be settled");
    }
    let noted = failed(ctx, id, &error).await;
    if let Err(worse) = noted
        && !store::fall::noticed(&worse)
    {
        tracing::error!(event = id, cause = worse.chain(), "nor can that be written down");
    }
}

async fn raced(ctx: &Ctx, id: &str) -> Result<(), Error> {
    let mut races = 0;
    loop {
        match attempt(ctx, id).await {
            Err(Error::Store(store::Error::Conflict)) if races < RACES_MAX => races += 1,
            ended => return ended,
        }
    }
}

/// One attempt, in one transaction.
async fn attempt(ctx: &Ctx, id: &str) -> Result<(), Error> {
    let mut tx = ctx.store.begin().await?;
    let Some(event) = payment_events::lock(&mut tx, id).await? else {
        return Ok(tx.rollback().await?);
    };
    match settle::settle(ctx, &mut tx, &event, &about(&event)?).await? {
        Settled::Done(session, outcome) => done(&mut tx, &event, session, outcome).await?,
        Settled::NotYet(session, why) if is_last(ctx, &event) => {
            let outcome = Outcome::Unmatched.code();
            payment_events::settle(&mut tx, id, session, outcome, Some(why)).await?;
            counted(Outcome::Unmatched);
        }
        Settled::NotYet(session, why) => {
            payment_events::postpone(&mut tx, id, session, why).await?;
        }
    }
    Ok(tx.commit().await?)
}

async fn done(
    tx: &mut Tx,
    event: &Event,
    session: Option<domain::ids::PaymentSessionId>,
    outcome: Outcome,
) -> Result<(), Error> {
    payment_events::settle(tx, &event.id, session, outcome.code(), None).await?;
    counted(outcome);
    Ok(())
}

/// An attempt ended in a fault, which its transaction has forgotten: it is noted in another. After the last one the session
/// waits for an operator, if there is one.
async fn failed(ctx: &Ctx, id: &str, error: &Error) -> Result<(), Error> {
    let mut tx = ctx.store.begin().await?;
    let Some(event) = payment_events::lock(&mut tx, id).await? else {
        return Ok(tx.rollback().await?);
    };
    let why = error.chain();
    if is_last(ctx, &event) {
        let session = settle::give_up(&mut tx, &event, &about(&event)?).await?;
        let outcome = Outcome::Failed;
        payment_events::settle(&mut tx, id, session, outcome.code(), Some(&why)).await?;
        counted(outcome);
    } else {
        let session = settle::find(&mut tx, &about(&event)?).await?;
        payment_events::postpone(&mut tx, id, session, &why).await?;
    }
    Ok(tx.commit().await?)
}

fn is_last(ctx: &Ctx, event: &Event) -> bool {
    let most = ctx.policies().payments_event_attempts_max;
    u32::try_from(event.attempts).is_ok_and(|attempts| attempts >= most)
}

fn about(event: &Event) -> Result<About, Error> {
    let unreadable = |_| Error::Broken(format!("the payment event {} can't be read", event.id));
    serde_json::from_value(event.payload.clone()).map_err(unreadable)
}

fn counted(outcome: Outcome) {
    metrics::counter!("berth_payment_events_total", "outcome" => outcome.code()).increment(1);
}
