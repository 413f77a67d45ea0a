//! The doors of the caller's webhooks.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use control::webhook::manage;
use uuid::Uuid;
use wire::http::Page;
use wire::http::webhooks::{Delivery, FreshWebhook, NewWebhook, Webhook};

use crate::http::Front;
use crate::http::body::{Body, NoBody};
use crate::http::caller::Known;
use crate::http::idempotency::{MayHaveKey, Once};
use crate::http::params::{Asked, Id, Paged, Parted};
use crate::http::problem::Refusal;
use crate::http::reply::{answer, answer_at};

/// The caller's webhooks, without their secrets.
#[utoipa::path(
    get, path = "/api/v1/webhooks", tag = "notifications", params(Paged),
    responses((status = 200, description = "One page of them", body = Page<Webhook>))
)]
pub(super) async fn list_webhooks(
    State(front): State<Front>,
    caller: Known,
    Asked(page): Asked<Paged>,
) -> Result<Json<Page<Webhook>>, Refusal> {
    let (limit, cursor) = page.parts();
    Ok(Json(manage::list(&front.ctx, &caller, limit, cursor).await?))
}

/// Adds a webhook: from now on it is told what the caller is told. Its secret is shown this once. The URL must be `https` and lead
/// to public addresses only; that is looked up now, and again before every delivery.
#[utoipa::path(
    post, path = "/api/v1/webhooks", tag = "notifications", params(MayHaveKey),
    request_body(content = NewWebhook, example = json!({"url": "https://hooks.example.org/berth"})),
    responses((status = 201, description = "The webhook, with its secret", body = FreshWebhook, headers(("Location" = String, description = "Where it can be removed"))))
)]
pub(super) async fn create_webhook(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<NewWebhook>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "create_webhook", &body.raw);
    let made = manage::create(&front.ctx, &caller, &body.value, key.as_ref()).await?;
    Ok(answer_at(&format!("/api/v1/webhooks/{}", made.body.webhook.id), made))
}

/// Removes a webhook. What was still to be delivered to it is given up.
#[utoipa::path(
    delete, path = "/api/v1/webhooks/{id}", tag = "notifications",
    params(("id" = Uuid, Path, description = "The webhook"), MayHaveKey),
    responses((status = 204, description = "It is gone"))
)]
pub(super) async fn delete_webhook(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "delete_webhook", &[]);
    Ok(answer(manage::delete(&front.ctx, &caller, id, key.as_ref()).await?))
}

/// Gives a webhook another secret, which is shown this once. The one it had signs, too, for a day.
#[utoipa::path(
    post, path = "/api/v1/webhooks/{id}/rotate", tag = "notifications",
    params(("id" = Uuid, Path, description = "The webhook"), MayHaveKey),
    responses((status = 200, description = "The webhook, with its new secret", body = FreshWebhook))
)]
pub(super) async fn rotate_webhook(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "rotate_webhook", &[]);
    Ok(answer(manage::rotate(&front.ctx, &caller, id, key.as_ref()).await?))
}

/// Sends something to a webhook, to see whether it arrives.
#[utoipa::path(
    post, path = "/api/v1/webhooks/{id}/test", tag = "notifications",
    params(("id" = Uuid, Path, description = "The webhook"), MayHaveKey),
    responses((status = 202, description = "The delivery that is under way", body = Delivery))
)]
pub(super) async fn test_webhook(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "test_webhook", &[]);
    Ok(answer(manage::test(&front.ctx, &caller, id, key.as_ref()).await?))
}

/// What is or was delivered to a webhook, newest first, and how that stands.
#[utoipa::path(
    get, path = "/api/v1/webhooks/{id}/deliveries", tag = "notifications",
    params(("id" = Uuid, Path, description = "The webhook"), Paged),
    responses((status = 200, description = "One page of it", body = Page<Delivery>))
)]
pub(super) async fn list_deliveries(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    Asked(page): Asked<Paged>,
) -> Result<Json<Page<Delivery>>, Refusal> {
    Ok(Json(manage::deliveries(&front.ctx, &caller, id, page.parts()).await?))
}

/// Has something delivered to a webhook once more, whatever became of it.
#[utoipa::path(
    post, path = "/api/v1/webhooks/{id}/deliveries/{notification}/redeliver", tag = "notifications",
    params(
        ("id" = Uuid, Path, description = "The webhook"),
        ("notification" = Uuid, Path, description = "The notification"),
        MayHaveKey,
    ),
    responses((status = 202, description = "The delivery that is under way", body = Delivery))
)]
pub(super) async fn redeliver(
    State(front): State<Front>,
    caller: Known,
    Parted((id, notification)): Parted<(Uuid, Uuid)>,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "redeliver", &[]);
    Ok(answer(manage::redeliver(&front.ctx, &caller, (id, notification), key.as_ref()).await?))
}
