//! The doors behind which somebody stays: what happens to an allocation, and what the caller is told, as it happens.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use control::allocation::stream::{self, Cursor};
use control::notification::view;
use domain::ids::AllocationId;
use serde::Deserialize;
use store::views::events::Watcher;
use utoipa::IntoParams;
use wire::http::notifications::Notification;
use wire::http::timeline::{StreamEnd, TimelineEvent};
use wire::problem::ProblemCode;

use crate::http::Front;
use crate::http::caller::Known;
use crate::http::params::{Asked, Id};
use crate::http::problem::Refusal;
use crate::http::streams::{Source, answer};

const LAST_EVENT_ID: &str = "last-event-id";

/// The header with which a stream goes on where it was left.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it is the description of a header, and never made")]
pub(super) struct LastSeen {
    /// The id of the last event that was seen; without it the stream begins with the first.
    #[param(rename = "Last-Event-ID", required = false, value_type = String)]
    last_event_id: Option<String>,
}

/// What happens to an allocation, as it happens: server-sent events, one for each step of the allocation (`state`), of its
/// tasks (`task`) and for each phase they tell (`phase`), and `end` when nothing will happen any more. Each has an id; with
/// `Last-Event-ID` the stream goes on after it, and nothing is lost or told twice.
#[utoipa::path(
    get, path = "/api/v1/allocations/{id}/events", tag = "allocations",
    params(("id" = Uuid, Path, description = "The allocation"), LastSeen),
    responses(
        (status = 200, description = "The events, as `text/event-stream`; the data of each is this", body = TimelineEvent, content_type = "text/event-stream"),
        (status = 400, description = "The `Last-Event-ID` is none of this stream"),
        (status = 429, description = "Too many streams are open"),
    )
)]
pub(super) async fn watch_allocation(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let watcher = stream::for_tenant(&front.ctx, &caller, AllocationId(id)).await?;
    watch(front, watcher, AllocationId(id), &headers)
}

/// What happens to any allocation, as it happens, for operators.
#[utoipa::path(
    get, path = "/api/v1/admin/allocations/{id}/events", tag = "admin",
    params(("id" = Uuid, Path, description = "The allocation"), LastSeen),
    responses(
        (status = 200, description = "The events, as `text/event-stream`; the data of the last is this", body = StreamEnd, content_type = "text/event-stream"),
        (status = 400, description = "The `Last-Event-ID` is none of this stream"),
        (status = 429, description = "Too many streams are open"),
    )
)]
pub(super) async fn watch_as_operator(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let watcher = stream::for_operator(&front.ctx, &caller, AllocationId(id)).await?;
    watch(front, watcher, AllocationId(id), &headers)
}

fn watch(
    front: Front,
    watcher: Watcher,
    id: AllocationId,
    headers: &HeaderMap,
) -> Result<Response, Refusal> {
    let cursor = match headers.get(LAST_EVENT_ID) {
        None => Cursor::start(id),
        Some(text) => {
            let read = text.to_str().ok().and_then(|text| Cursor::read(&front.ctx, id, text));
            read.ok_or_else(not_given)?
        }
    };
    let seat = front.streams.take(watcher, &front.limits)?;
    Ok(answer(front, seat, Source::Allocation(id.uuid(), cursor)))
}

/// From where on the caller wants to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Begin {
    /// The number of the last notification that was seen, for who can't send `Last-Event-ID` the first time; 0 is before the
    /// first. The header wins.
    #[param(minimum = 0)]
    after: Option<i64>,
}

/// What the caller is told, as it comes: server-sent events called `notification`, each with its number as its id. With
/// `Last-Event-ID` the stream goes on after that number, and nothing is lost or told twice; without it, it begins with what comes
/// next.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "notifications",
    params(Begin, LastSeen),
    responses(
        (status = 200, description = "The events, as `text/event-stream`; the data of each is this", body = Notification, content_type = "text/event-stream"),
        (status = 400, description = "The `Last-Event-ID` is no number"),
        (status = 429, description = "Too many streams are open"),
    )
)]
pub(super) async fn watch_own(
    State(front): State<Front>,
    caller: Known,
    Asked(begin): Asked<Begin>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let watcher = view::watcher(&caller)?;
    let last = headers.get(LAST_EVENT_ID).map(|text| {
        let number = text.to_str().ok().and_then(|text| text.parse::<i64>().ok());
        number.filter(|number| *number >= 0).ok_or_else(not_given)
    });
    let seat = front.streams.take(watcher, &front.limits)?;
    let user = caller.user_id;
    let after = match last.transpose()?.or(begin.after) {
        Some(number) => number.max(0),
        None => view::latest(&front.ctx, user).await?,
    };
    Ok(answer(front, seat, Source::Notifications { user, after }))
}

fn not_given() -> Refusal {
    Refusal::new(
        ProblemCode::BadRequest,
        "The Last-Event-ID is none that this stream has given. Leave it out to begin anew.",
    )
}
