//! Deliveries, in order of time: `sweep` claims what is due → each is signed and carried, outside any transaction → how it went is
//! written down. At least once: who dies between the two leaves it to be sent again, with the same identity. What is not taken is
//! tried again for three days, later and later. Doors: the timer `webhook_deliveries`, woken when something is due.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lifecycle::Code as _;
use store::webhooks::deliveries::{self, Claim, Ended, Parcel};
use tokio::task::JoinSet;
use wire::http::webhooks::{DELIVERY, DeliveryFault, SIGNATURE, VERSION, WebhookMessage};

use super::courier::{Courier, Letter, Outcome};
use super::signature;
use crate::notification::view::kind;
use crate::{Ctx, Error};

/// How many are under way at once.
const AT_ONCE: i64 = 16;
/// How many of them to one webhook, so that a slow one does not keep the others waiting.
const AT_ONCE_EACH: i64 = 4;
/// How often a sweep claims again before it lets others have their turn.
const ROUNDS_MAX: u32 = 40;
/// Nobody else sends what was claimed for so long: longer than an attempt takes.
const LEASE: Duration = Duration::from_secs(60);
/// For how long it is tried.
const PATIENCE: SignedDuration = SignedDuration::from_hours(72);
/// The shortest and the longest pause between two attempts.
const PAUSE: SignedDuration = SignedDuration::from_secs(15);
const PAUSE_MAX: SignedDuration = SignedDuration::from_hours(8);
/// More attempts than three days have room for. What was tried so often has ended everybody who tried.
const ATTEMPTS_MAX: i32 = 100;

/// Delivers what is due; how much that was. A process that has nobody to carry it leaves it to the others.
///
/// # Errors
/// When the store fails; what was claimed is sent again when its lease is over.
pub async fn sweep(ctx: &Ctx) -> Result<u64, Error> {
    let Some(courier) = ctx.post.courier() else {
        return Ok(0);
    };
    let now = ctx.clock.now();
    let broken = DeliveryFault::Broken.code();
    let mut done = deliveries::give_up(&ctx.store, now, ATTEMPTS_MAX, broken).await?;
    for _ in 0..ROUNDS_MAX {
        let sent = step(ctx, &courier).await?;
        done += sent;
        if sent == 0 {
            break;
        }
    }
    Ok(done)
}

/// Claims once, and waits until all of it has ended.
async fn step(ctx: &Ctx, courier: &Arc<dyn Courier>) -> Result<u64, Error> {
    let claim = Claim {
        now: ctx.clock.now(),
        until: ctx.clock.after(LEASE),
        most: AT_ONCE,
        most_each: AT_ONCE_EACH,
        attempts_max: ATTEMPTS_MAX,
    };
    let claimed = deliveries::claim(&ctx.store, &claim).await?;
    let sent = claimed.len() as u64;
    let mut under_way = JoinSet::new();
    for parcel in claimed {
        let (ctx, courier) = (ctx.clone(), Arc::clone(courier));
        // In a task of its own: one that ends badly takes none of the others along.
        under_way.spawn(async move { attempt(&ctx, courier.as_ref(), &parcel).await });
    }
    let mut result = Ok(sent);
    while let Some(ended) = under_way.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => result = Err(error),
            Err(error) => tracing::error!(%error, "a delivery has ended badly"),
        }
    }
    result
}

async fn attempt(ctx: &Ctx, courier: &dyn Courier, parcel: &Parcel) -> Result<(), Error> {
    let outcome = match letter(ctx, parcel) {
        Some(letter) => courier.carry(letter).await,
        None => Outcome { http_status: None, fault: Some(DeliveryFault::Broken) },
    };
    let (at, taken) = (ctx.clock.now(), outcome.fault.is_none());
    let again_at = if taken { None } else { again_at(parcel, at) };
    let http_status = outcome.http_status.and_then(|status| i16::try_from(status).ok());
    let error = outcome.fault.map(|fault| fault.code());
    let ended = Ended { at, taken, again_at, http_status, error };
    deliveries::record(&ctx.store, parcel, &ended).await?;
    let result = match (taken, again_at) {
        (true, _) => "taken",
        (false, Some(_)) => "failed",
        (false, None) => "given_up",
    };
    metrics::counter!("berth_webhook_attempts_total", "result" => result).increment(1);
    Ok(())
}

fn letter(ctx: &Ctx, parcel: &Parcel) -> Option<Letter> {
    let told = &parcel.notification;
    let message = WebhookMessage {
        version: VERSION,
        id: told.id,
        kind: kind(&told.kind).into(),
        title: told.title.clone(),
        body: told.body.clone(),
        project_id: told.project_id,
        allocation_id: told.allocation_id,
        payment_session_id: told.payment_session_id,
        created_at: told.created_at,
    };
    let body = serde_json::to_vec(&message).ok()?;
    let signature = signature::header(&parcel.secrets, ctx.clock.now().as_second(), &body);
    let headers = vec![(SIGNATURE, signature), (DELIVERY, told.id.to_string())];
    Some(Letter { url: parcel.url.clone(), headers, body })
}

/// When it is tried again after it has failed at `now`: as long after this as it has been tried for, more or less, so that the
/// pauses double; never, when that is more than three days after the beginning.
fn again_at(parcel: &Parcel, now: Timestamp) -> Option<Timestamp> {
    let tried = now.duration_since(parcel.queued_at);
    let pause = tried.clamp(PAUSE, PAUSE_MAX);
    let seconds = pause.as_secs() * i64::from(spread(parcel)) / 100;
    let at = now.checked_add(SignedDuration::from_secs(seconds)).ok()?;
    (at.duration_since(parcel.queued_at) <= PATIENCE).then_some(at)
}

/// Between 80 and 120 percent, another for every delivery and attempt, so that what failed together does not come back together.
fn spread(parcel: &Parcel) -> u8 {
    let named = format!("{} {} {}", parcel.webhook_id, parcel.notification.id, parcel.attempt);
    80 + crate::account::secret::sha256(named.as_bytes())[0] % 41
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use store::notifications::Notification;
    use store::webhooks::deliveries::Parcel;
    use uuid::Uuid;

    use super::{ATTEMPTS_MAX, PATIENCE, again_at};

    fn parcel(id: u128) -> Parcel {
        let notification = Notification {
            id: Uuid::from_u128(id),
            number: 1,
            kind: String::new(),
            title: String::new(),
            body: String::new(),
            project_id: None,
            allocation_id: None,
            payment_session_id: None,
            created_at: Timestamp::UNIX_EPOCH,
            read_at: None,
        };
        Parcel {
            webhook_id: Uuid::nil(),
            url: String::new(),
            secrets: Vec::new(),
            notification,
            queued_at: Timestamp::UNIX_EPOCH,
            attempt: 1,
            leased_until: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn what_is_never_taken_is_tried_later_and_later_for_three_days_and_no_two_keep_in_step() {
        let mut schedules = Vec::new();
        for id in 0..100 {
            let mut parcel = parcel(id);
            let (mut now, mut moments) = (parcel.queued_at, Vec::new());
            while let Some(next) = again_at(&parcel, now) {
                assert!(next > now && next.duration_since(parcel.queued_at) <= PATIENCE);
                moments.push(next.as_second());
                parcel.attempt += 1;
                now = next;
            }
            assert!((15..=30).contains(&moments.len()), "{moments:?}");
            assert!(parcel.attempt < ATTEMPTS_MAX / 2);
            assert!(now.duration_since(parcel.queued_at) > SignedDuration::from_hours(62), "{now}");
            schedules.push(moments);
        }
        schedules.sort_unstable();
        schedules.dedup();
        assert_eq!(schedules.len(), 100);
    }
}
