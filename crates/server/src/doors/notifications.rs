//! The doors of what the caller is told.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use control::notification::view;
use serde::Deserialize;
use utoipa::IntoParams;
use wire::http::notifications::{HaveRead, Notification, Notifications, ReadAll};

use crate::http::Front;
use crate::http::body::{Body, NoBody};
use crate::http::caller::Known;
use crate::http::idempotency::{MayHaveKey, Once};
use crate::http::params::{Asked, Id};
use crate::http::problem::Refusal;
use crate::http::reply::answer;

/// Which of what the caller was told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// Only what was not read.
    #[serde(default)]
    unread: bool,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

/// What the caller was told, newest first, and how much of it they have not read.
#[utoipa::path(
    get, path = "/api/v1/notifications", tag = "notifications", params(Wanted),
    responses((status = 200, description = "One page of it", body = Notifications))
)]
pub(super) async fn list_notifications(
    State(front): State<Front>,
    caller: Known,
    Asked(wanted): Asked<Wanted>,
) -> Result<Json<Notifications>, Refusal> {
    let page = (wanted.limit, wanted.cursor.as_deref());
    Ok(Json(view::list(&front.ctx, &caller, wanted.unread, page).await?))
}

/// The caller has read something that they were told.
#[utoipa::path(
    post, path = "/api/v1/notifications/{id}/read", tag = "notifications",
    params(("id" = Uuid, Path, description = "The notification"), MayHaveKey),
    responses((status = 200, description = "It, as read", body = Notification))
)]
pub(super) async fn read_notification(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "read_notification", &[]);
    Ok(answer(view::read(&front.ctx, &caller, id, key.as_ref()).await?))
}

/// The caller has read everything that they were told, or everything up to what they have seen.
#[utoipa::path(
    post, path = "/api/v1/notifications/read-all", tag = "notifications", params(MayHaveKey),
    request_body(content = ReadAll, example = json!({"up_to": 17})),
    responses((status = 200, description = "How many that were", body = HaveRead))
)]
pub(super) async fn read_all_notifications(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<ReadAll>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "read_all_notifications", &body.raw);
    Ok(answer(view::read_all(&front.ctx, &caller, &body.value, key.as_ref()).await?))
}
