//! The doors of operators for what did not end well: abandoned releases, clean-ups, claims that are stuck or set aside.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use control::allocation::{abandon, clean};
use control::claim::{aside, view};
use domain::ids::{AllocationId, ClaimId};
use serde::Deserialize;
use utoipa::IntoParams;
use wire::http::Page;
use wire::http::admin::{Because, ClaimStatus};
use wire::http::allocations::Allocation;
use wire::http::claims::Claim;

use super::allocations::place_of;
use crate::http::Front;
use crate::http::body::Body;
use crate::http::caller::Known;
use crate::http::idempotency::{NeedsKey, Once};
use crate::http::params::{Asked, Id};
use crate::http::problem::Refusal;
use crate::http::reply::{answer, answer_at};

/// Ends a release that gave up, on an operator's word. What it held is set aside until it is cleared, and there is no
/// receipt.
#[utoipa::path(
    post, path = "/api/v1/admin/allocations/{id}/abandon", tag = "admin",
    params(("id" = Uuid, Path, description = "The allocation"), NeedsKey),
    request_body(content = Because, example = json!({"reason": "the disk was shredded"})),
    responses(
        (status = 200, description = "It is released, and what it held is set aside", body = Allocation,
            headers(("Location" = String, description = "Where it is"))),
        (status = 409, description = "Its release was not given up; or the same request is still running"),
    )
)]
pub(super) async fn abandon_allocation(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<Because>,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "abandon_allocation", &body.raw)?;
    let id = AllocationId(id);
    let made = abandon::request(&front.ctx, &caller, id, &body.value, Some(&key)).await?;
    Ok(answer_at(&place_of(&made.body), made))
}

/// Has a node clean up once more after an allocation that failed.
#[utoipa::path(
    post, path = "/api/v1/admin/allocations/{id}/clean", tag = "admin",
    params(("id" = Uuid, Path, description = "The allocation"), NeedsKey),
    request_body(content = Because, example = json!({"reason": "the machine answers again"})),
    responses(
        (status = 202, description = "The node is told to clean up", body = Allocation,
            headers(("Location" = String, description = "Where it is"))),
        (status = 409, description = "Nothing of it is stuck; or the same request is still running"),
    )
)]
pub(super) async fn clean_allocation(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<Because>,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "clean_allocation", &body.raw)?;
    let id = AllocationId(id);
    let made = clean::request(&front.ctx, &caller, id, &body.value, Some(&key)).await?;
    Ok(answer_at(&place_of(&made.body), made))
}

/// Which claims.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Waiting {
    /// Only those in this status: `stuck` or `quarantined`.
    #[param(value_type = Option<ClaimStatus>, inline)]
    status: Option<ClaimStatus>,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

/// What is stuck or set aside, with what to do about it.
#[utoipa::path(
    get, path = "/api/v1/admin/claims", tag = "admin", params(Waiting),
    responses((status = 200, description = "One page of them", body = Page<Claim>))
)]
pub(super) async fn list_claims(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<Waiting>,
) -> Result<Json<Page<Claim>>, Refusal> {
    let status = which.status.map(|status| status.0);
    let cursor = which.cursor.as_deref();
    Ok(Json(view::list(&front.ctx, &caller, status, which.limit, cursor).await?))
}

/// Sets aside what could not be cleaned, until it is cleared.
#[utoipa::path(
    post, path = "/api/v1/admin/claims/{id}/quarantine", tag = "admin",
    params(("id" = Uuid, Path, description = "The claim"), NeedsKey),
    request_body(content = Because, example = json!({"reason": "the GPU fell off the bus"})),
    responses(
        (status = 200, description = "It is set aside", body = Claim),
        (status = 409, description = "It is not stuck, or its allocation has not ended; or the same request is still running"),
    )
)]
pub(super) async fn quarantine_claim(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<Because>,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "quarantine_claim", &body.raw)?;
    let id = ClaimId(id);
    Ok(answer(aside::quarantine(&front.ctx, &caller, id, &body.value, Some(&key)).await?))
}

/// Gives back what was set aside: somebody has seen to the machine.
#[utoipa::path(
    post, path = "/api/v1/admin/claims/{id}/clear", tag = "admin",
    params(("id" = Uuid, Path, description = "The claim"), NeedsKey),
    request_body(content = Because, example = json!({"reason": "wiped by hand, and tested"})),
    responses(
        (status = 200, description = "It is free", body = Claim),
        (status = 409, description = "It is not set aside, or something is left there; or the same request is still running"),
    )
)]
pub(super) async fn clear_claim(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<Because>,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "clear_claim", &body.raw)?;
    let id = ClaimId(id);
    Ok(answer(aside::clear(&front.ctx, &caller, id, &body.value, Some(&key)).await?))
}
