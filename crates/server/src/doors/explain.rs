//! The doors that say why: why an allocation or a group is as it is, and what would become of a request.

use axum::Json;
use axum::extract::State;
use control::allocation::{capacity, explain};
use control::allocation_group::explain as of_group;
use domain::ids::{AllocationGroupId, AllocationId};
use wire::http::catalogue::{CapacityExplained, CapacityQuestion};
use wire::http::explain::{Explanation, GroupExplanation};

use crate::http::Front;
use crate::http::caller::Known;
use crate::http::params::{Asked, Id};
use crate::http::problem::Refusal;

/// Why an allocation is as it is: what it is doing, what it waits for and since when, who takes the next step and by when,
/// what was reported and changed nothing, and what the caller may do.
#[utoipa::path(
    get, path = "/api/v1/allocations/{id}/explain", tag = "allocations",
    params(("id" = Uuid, Path, description = "The allocation")),
    responses((status = 200, description = "Why it is as it is", body = Explanation))
)]
pub(super) async fn explain_allocation(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<Explanation>, Refusal> {
    Ok(Json(explain::for_tenant(&front.ctx, &caller, AllocationId(id)).await?))
}

/// Why any allocation is as it is, with its workflows, its machine and who did what, for operators.
#[utoipa::path(
    get, path = "/api/v1/admin/allocations/{id}/explain", tag = "admin",
    params(("id" = Uuid, Path, description = "The allocation")),
    responses((status = 200, description = "Why it is as it is", body = Explanation))
)]
pub(super) async fn explain_as_operator(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<Explanation>, Refusal> {
    Ok(Json(explain::for_operator(&front.ctx, &caller, AllocationId(id)).await?))
}

/// Why a group is as it is: which members it waits for, what each of them is at, who takes the next step and by when, and
/// what the caller may do.
#[utoipa::path(
    get, path = "/api/v1/allocation-groups/{id}/explain", tag = "allocation groups",
    params(("id" = Uuid, Path, description = "The group")),
    responses((status = 200, description = "Why it is as it is", body = GroupExplanation))
)]
pub(super) async fn explain_allocation_group(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<GroupExplanation>, Refusal> {
    Ok(Json(of_group::for_tenant(&front.ctx, &caller, AllocationGroupId(id)).await?))
}

/// Why any group is as it is, with the workflow that is at it, for operators.
#[utoipa::path(
    get, path = "/api/v1/admin/allocation-groups/{id}/explain", tag = "admin",
    params(("id" = Uuid, Path, description = "The group")),
    responses((status = 200, description = "Why it is as it is", body = GroupExplanation))
)]
pub(super) async fn explain_group_as_operator(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<GroupExplanation>, Refusal> {
    Ok(Json(of_group::for_operator(&front.ctx, &caller, AllocationGroupId(id)).await?))
}

/// What would become of a request now: whether it would be granted, how many machines each filter of the placement takes
/// away, and what would fit instead. Nothing is asked for.
#[utoipa::path(
    get, path = "/api/v1/availability/explain", tag = "catalogue", params(CapacityQuestion),
    responses((status = 200, description = "What would become of it", body = CapacityExplained))
)]
pub(super) async fn explain_availability(
    State(front): State<Front>,
    caller: Known,
    Asked(question): Asked<CapacityQuestion>,
) -> Result<Json<CapacityExplained>, Refusal> {
    Ok(Json(capacity::explain(&front.ctx, &caller, &question).await?))
}
