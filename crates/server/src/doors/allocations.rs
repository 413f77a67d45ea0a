//! The doors of tenants: ask for an allocation, look at it, restart it, give it back.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use control::allocation::{create, receipt, release, restart, timeline, view};
use domain::ids::AllocationId;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;
use wire::http::Page;
use wire::http::allocations::{Allocation, AllocationStatus, NewAllocation};
use wire::http::timeline::Timeline;
use wire::receipt::SignedReceipt;

use crate::http::Front;
use crate::http::body::{Body, NoBody};
use crate::http::caller::Known;
use crate::http::idempotency::{NeedsKey, Once};
use crate::http::params::{Asked, Id};
use crate::http::problem::Refusal;
use crate::http::reply::{self, answer_at};

/// Which allocations.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// Only those of this project.
    project_id: Option<Uuid>,
    /// Only those in this status.
    #[param(value_type = Option<AllocationStatus>, inline)]
    status: Option<AllocationStatus>,
    /// Only the members of this group.
    group: Option<Uuid>,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

/// The header with which a version that is known is not sent again.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it is the description of a header, and never made")]
pub(super) struct KnownVersion {
    /// The version that is known already, as `ETag` told it.
    #[param(rename = "If-None-Match", required = false, value_type = String)]
    if_none_match: Option<String>,
}

/// The place of an allocation.
pub(super) fn place_of(allocation: &Allocation) -> String {
    format!("/api/v1/allocations/{}", allocation.id)
}

/// The allocations of the caller's projects, newest first.
#[utoipa::path(
    get, path = "/api/v1/allocations", tag = "allocations", params(Which),
    responses((status = 200, description = "One page of them", body = Page<Allocation>))
)]
pub(super) async fn list_allocations(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<Which>,
) -> Result<Json<Page<Allocation>>, Refusal> {
    let (project_id, group_id) = (which.project_id, which.group);
    let filter = view::Filter { project_id, status: which.status.map(|s| s.0), group_id };
    let cursor = which.cursor.as_deref();
    Ok(Json(view::list(&front.ctx, &caller, &filter, which.limit, cursor).await?))
}

/// Asks for GPUs. The capacity is the caller's from the answer on; the machine is prepared afterwards, and its timeline
/// tells how far it is.
#[utoipa::path(
    post, path = "/api/v1/allocations", tag = "allocations", params(NeedsKey),
    request_body(content = NewAllocation, example = json!({
        "project_id": "0198c0de-0000-7000-8000-000000000001",
        "sku": "h100.slice",
        "gpus": 2,
        "region": "eu-1",
        "ssh_key_ids": ["0198c0de-0000-7000-8000-000000000002"],
        "image": "ubuntu-24.04-cuda",
        "name": "training"
    })),
    responses(
        (status = 201, description = "The allocation, in `requested`", body = Allocation,
            headers(("Location" = String, description = "Where it is"))),
        (status = 402, description = "The balance is used up"),
        (status = 409, description = "It can't be had, with what would fit instead; or the same request is still running"),
    )
)]
pub(super) async fn create_allocation(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<NewAllocation>,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "create_allocation", &body.raw)?;
    let made = create::request(&front.ctx, &caller, &body.value, &key).await?;
    Ok(answer_at(&place_of(&made.body), made))
}

/// One allocation, with what may be done with it now.
#[utoipa::path(
    get, path = "/api/v1/allocations/{id}", tag = "allocations",
    params(
        ("id" = Uuid, Path, description = "The allocation"),
        KnownVersion,
    ),
    responses(
        (status = 200, description = "The allocation", body = Allocation,
            headers(("ETag" = String, description = "Its version"))),
        (status = 304, description = "It has not changed", headers(("ETag" = String, description = "Its version"))),
    )
)]
pub(super) async fn show_allocation(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let found = view::show(&front.ctx, &caller, AllocationId(id)).await?;
    Ok(reply::allocation(&headers, found))
}

/// Restarts an allocation: the guest on its GPUs, or the whole machine. SSH and terminals disconnect and what runs is
/// interrupted; it stays the caller's, with its storage attached. For its owner, admins of its project and operators.
#[utoipa::path(
    post, path = "/api/v1/allocations/{id}/restart", tag = "allocations",
    params(("id" = Uuid, Path, description = "The allocation"), NeedsKey),
    responses(
        (status = 202, description = "It restarts", body = Allocation,
            headers(("Location" = String, description = "Where it is"))),
        (status = 409, description = "Not in its present status; or the same request is still running"),
    )
)]
pub(super) async fn restart_allocation(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "restart_allocation", &[])?;
    let made = restart::request(&front.ctx, &caller, AllocationId(id), Some(&key)).await?;
    Ok(answer_at(&place_of(&made.body), made))
}

/// Gives an allocation back. Billing stops now; the machine is stopped and wiped afterwards. Also starts a new attempt
/// when a clean-up has failed.
#[utoipa::path(
    post, path = "/api/v1/allocations/{id}/release", tag = "allocations",
    params(("id" = Uuid, Path, description = "The allocation"), NeedsKey),
    responses(
        (status = 202, description = "It is being released", body = Allocation,
            headers(("Location" = String, description = "Where it is"))),
        (status = 409, description = "Not in its present status; or the same request is still running"),
    )
)]
pub(super) async fn release_allocation(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "release_allocation", &[])?;
    let made = release::request(&front.ctx, &caller, AllocationId(id), Some(&key)).await?;
    Ok(answer_at(&place_of(&made.body), made))
}

/// What happened to an allocation, step by step, and how long its steps usually take.
#[utoipa::path(
    get, path = "/api/v1/allocations/{id}/timeline", tag = "allocations",
    params(("id" = Uuid, Path, description = "The allocation")),
    responses((status = 200, description = "Its timeline", body = Timeline))
)]
pub(super) async fn show_timeline(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<Timeline>, Refusal> {
    Ok(Json(timeline::for_tenant(&front.ctx, &caller, AllocationId(id)).await?))
}

/// The signed proof that an allocation was cleaned up: what was stopped, wiped and returned, and the last billed second.
#[utoipa::path(
    get, path = "/api/v1/allocations/{id}/receipt", tag = "allocations",
    params(("id" = Uuid, Path, description = "The allocation")),
    responses(
        (status = 200, description = "The receipt", body = SignedReceipt),
        (status = 409, description = "It is not released yet"),
    )
)]
pub(super) async fn show_receipt(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<SignedReceipt>, Refusal> {
    Ok(Json(receipt::show(&front.ctx, &caller, AllocationId(id)).await?))
}
