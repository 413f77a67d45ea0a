//! The provider tells us something. It is proved, written down, and only then acknowledged; whatever fails after that is ours to
//! try again. Door: POST /payments/stripe/webhook.

use domain::ids::EventId;
use store::payment_events::{self, NewEvent};
use wire::http::payments::PaymentEventOutcome;

use super::inbox::{self, PAUSES};
use super::provider::{About, Told};
use crate::{Ctx, Error, ids};
use lifecycle::Code as _;

/// Hears what the provider, or somebody who says so, tells. When this answers, it is written down.
///
/// # Errors
/// [`Error::Unproven`] when it is not the provider's, with nothing written down; [`Error::Unavailable`] when payments are not
/// set up; what the store fails with, and then the provider tells it again.
pub async fn receive(ctx: &Ctx, proof: Option<&str>, body: &[u8]) -> Result<(), Error> {
    let provider = ctx.payments.load()?;
    let told = match provider.hear(proof, body, ctx.clock.now()) {
        Ok(told) => told,
        Err(error) => {
            counted("unproven");
            return Err(error);
        }
    };
    if !keep(ctx, &told).await? {
        counted("repeated");
        return Ok(());
    }
    counted("heard");
    if told.about != About::Nothing {
        // What can't be settled now stays due.
        inbox::work(ctx, &told.id).await;
    }
    Ok(())
}

/// Writes it down, with the first attempt begun; answers whether it is new.
pub(super) async fn keep(ctx: &Ctx, told: &Told) -> Result<bool, Error> {
    let unwritable = |_| Error::Broken("what the provider told can't be written".to_owned());
    let payload = serde_json::to_value(&told.about).map_err(unwritable)?;
    let ignored = told.about == About::Nothing;
    let new = NewEvent {
        id: &told.id,
        kind: &told.kind,
        payload: &payload,
        due_at: (!ignored).then(|| ctx.after_seconds(PAUSES.first_seconds)),
        outcome: ignored.then(|| PaymentEventOutcome::Ignored.code()),
    };
    let mut tx = ctx.store.begin().await?;
    let fresh = payment_events::hear(&mut tx, &new).await?;
    tx.commit().await?;
    Ok(fresh)
}

/// The identity of a fact that follows from something that was told: the same each time.
pub(super) fn fact(told: &str, label: &str) -> EventId {
    EventId(ids::derived(told, label))
}

fn counted(result: &'static str) {
    metrics::counter!("berth_payment_webhooks_total", "result" => result).increment(1);
}
