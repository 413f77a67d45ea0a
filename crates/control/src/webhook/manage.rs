//! What people do with their webhooks: add, list, rotate, remove, try, look at what became of deliveries and have one made again.

use std::time::Duration;

use domain::policy::Permission;
use lifecycle::Code as _;
use store::notifications::{self, News};
use store::webhooks::deliveries;
use store::{Tx, webhooks};
use uuid::Uuid;
use wire::http::Page;
use wire::http::webhooks::{
    Delivery, DeliveryFault, DeliveryStatus, FreshWebhook, NewWebhook, Webhook,
};

use super::signature;
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish, finish_secret};
use crate::notification::view::kind;
use crate::notification::words;
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

/// How many somebody may have.
pub const WEBHOOKS_MAX: i64 = 10;
/// For how long the secret before the present one signs, too.
pub const ROTATION: Duration = Duration::from_secs(24 * 3_600);

/// Adds a webhook of the caller. Its secret is shown this once.
///
/// # Errors
/// [`Error::Invalid`] for a URL that nothing may be sent to, [`Error::Conflict`] when they have too many.
pub async fn create(
    ctx: &Ctx,
    caller: &Caller,
    new: &NewWebhook,
    key: Option<&Key>,
) -> Result<Answer<FreshWebhook>, Error> {
    caller.needs(Permission::AccountWrite)?;
    let courier = ctx.post.courier().ok_or_else(|| {
        Error::Conflict("nothing leaves this installation: webhooks are not set up".to_owned())
    })?;
    let url = courier.judge(&new.url).await.map_err(|wrong| Error::invalid("/url", wrong))?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let (id, secret) = (tx.new_id(), signature::fresh()?);
    let row = webhooks::NewWebhook { id, user: caller.user_id, url: &url, secret: &secret };
    let Some(webhook) = webhooks::insert(&mut tx, &row, WEBHOOKS_MAX).await? else {
        return Err(Error::Conflict(format!(
            "you have {WEBHOOKS_MAX} webhooks, which is as many as there may be: remove one first"
        )));
    };
    let deed = Deed::new(caller, Action::WebhookCreate, "webhook", id);
    finish_secret(tx, &deed, key, 201, FreshWebhook { webhook: shown(webhook), secret }).await
}

/// The caller's webhooks, in the order in which they were added.
///
/// # Errors
/// [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<Webhook>, Error> {
    caller.needs(Permission::AccountRead)?;
    let paging = Paging::read(ctx, &("webhooks", caller.user_id), limit, cursor)?;
    let (rows, after) = (paging.rows(), paging.after());
    let rows = webhooks::list(&ctx.store, caller.user_id, rows, after).await?;
    Ok(paging.page(ctx, rows.into_iter().map(shown).collect(), |webhook| webhook.id))
}

/// Gives a webhook of the caller another secret, which is shown this once. The one it had signs, too, for a day; the one before
/// that does not any more.
///
/// # Errors
/// [`Error::NotFound`] when the caller has no such webhook.
pub async fn rotate(
    ctx: &Ctx,
    caller: &Caller,
    id: Uuid,
    key: Option<&Key>,
) -> Result<Answer<FreshWebhook>, Error> {
    caller.needs(Permission::AccountWrite)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let (secret, until) = (signature::fresh()?, ctx.clock.after(ROTATION));
    let webhook = webhooks::rotate(&mut tx, (caller.user_id, id), &secret, until).await?;
    let webhook = shown(webhook.ok_or(Error::NotFound("webhook"))?);
    let deed = Deed::new(caller, Action::WebhookRotate, "webhook", id);
    finish_secret(tx, &deed, key, 200, FreshWebhook { webhook, secret }).await
}

/// Removes a webhook of the caller. What was still to be delivered to it is given up.
///
/// # Errors
/// [`Error::NotFound`] when the caller has no such webhook.
pub async fn delete(
    ctx: &Ctx,
    caller: &Caller,
    id: Uuid,
    key: Option<&Key>,
) -> Result<Answer<()>, Error> {
    caller.needs(Permission::AccountWrite)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let (why, now) = (DeliveryFault::WebhookRemoved.code(), ctx.clock.now());
    if !webhooks::delete(&mut tx, (caller.user_id, id), why, now).await? {
        return Err(Error::NotFound("webhook"));
    }
    let deed = Deed::new(caller, Action::WebhookDelete, "webhook", id);
    finish(tx, &deed, key, 204, ()).await
}

/// Sends something to a webhook of the caller, and to no other: it goes the way of everything else, and so is a notification.
///
/// # Errors
/// [`Error::NotFound`] when the caller has no such webhook.
pub async fn test(
    ctx: &Ctx,
    caller: &Caller,
    id: Uuid,
    key: Option<&Key>,
) -> Result<Answer<Delivery>, Error> {
    caller.needs(Permission::AccountWrite)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let to = notifications::address(&mut tx, &[caller.user_id]).await?;
    let (words, cause) = (words::webhook_test(), format!("webhook/{id}/{}", tx.new_id()));
    let news = News {
        kind: words.kind.code(),
        cause: &cause,
        title: &words.title,
        body: &words.body,
        project_id: None,
        allocation_id: None,
        payment_session_id: None,
        webhook_id: Some(id),
        now: ctx.clock.now(),
    };
    let told = notifications::tell(&mut tx, &to, &news).await?;
    let notification = told.first().copied().ok_or(Error::NotFound("webhook"))?;
    // Without such a webhook there is no delivery, and nothing has happened.
    let delivery = found(&mut tx, id, notification).await?;
    // Who asked for it has not to be told of it.
    notifications::read(&mut tx, caller.user_id, notification, ctx.clock.now()).await?;
    let deed = Deed::new(caller, Action::WebhookTest, "webhook", id);
    finish(tx, &deed, key, 202, delivery).await
}

/// What is or was delivered to a webhook of the caller, newest first.
///
/// # Errors
/// [`Error::NotFound`] when the caller has no such webhook.
pub async fn deliveries(
    ctx: &Ctx,
    caller: &Caller,
    id: Uuid,
    (limit, cursor): (Option<u16>, Option<&str>),
) -> Result<Page<Delivery>, Error> {
    caller.needs(Permission::AccountRead)?;
    if !webhooks::is_of(&ctx.store, caller.user_id, id).await? {
        return Err(Error::NotFound("webhook"));
    }
    let paging = Paging::read(ctx, &("deliveries", caller.user_id, id), limit, cursor)?;
    let rows = deliveries::list(&ctx.store, id, paging.rows(), paging.after()).await?;
    let shown: Vec<Delivery> = rows.into_iter().map(delivery).collect();
    Ok(paging.page(ctx, shown, |delivery| delivery.notification_id))
}

/// Has a delivery to a webhook of the caller made once more, with three days of attempts before it.
///
/// # Errors
/// [`Error::NotFound`] when there was no such delivery to a webhook of the caller.
pub async fn redeliver(
    ctx: &Ctx,
    caller: &Caller,
    (id, notification): (Uuid, Uuid),
    key: Option<&Key>,
) -> Result<Answer<Delivery>, Error> {
    caller.needs(Permission::AccountWrite)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let (whose, now) = ((caller.user_id, id), ctx.clock.now());
    if !deliveries::again(&mut tx, whose, notification, now).await? {
        return Err(Error::NotFound("delivery"));
    }
    let delivery = found(&mut tx, id, notification).await?;
    let deed = Deed::new(caller, Action::WebhookRedeliver, "webhook", id)
        .with(serde_json::json!({ "notification_id": notification }));
    finish(tx, &deed, key, 202, delivery).await
}

async fn found(tx: &mut Tx, webhook: Uuid, notification: Uuid) -> Result<Delivery, Error> {
    let found = deliveries::find(tx, webhook, notification).await?;
    found.map(delivery).ok_or(Error::NotFound("webhook"))
}

fn shown(row: webhooks::Webhook) -> Webhook {
    let webhooks::Webhook { id, url, created_at, previous_secret_until } = row;
    Webhook { id, url, created_at, previous_secret_until }
}

fn delivery(row: deliveries::Delivery) -> Delivery {
    let status = match (row.delivered_at, row.given_up_at) {
        (Some(_), _) => DeliveryStatus::Delivered,
        (None, Some(_)) => DeliveryStatus::GivenUp,
        (None, None) => DeliveryStatus::Pending,
    };
    Delivery {
        notification_id: row.notification_id,
        kind: kind(&row.kind).into(),
        status: status.into(),
        queued_at: row.queued_at,
        attempts: row.attempts,
        next_attempt_at: row.due_at,
        attempted_at: row.attempted_at,
        delivered_at: row.delivered_at,
        given_up_at: row.given_up_at,
        http_status: row.http_status.and_then(|status| u16::try_from(status).ok()),
        fault: row
            .error
            .map(|word| DeliveryFault::parse(&word).unwrap_or(DeliveryFault::Broken).into()),
    }
}
