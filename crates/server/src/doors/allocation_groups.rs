//! The doors of groups: ask for several allocations at once, look at them, give them all back.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use control::allocation_group::{create, release, view};
use domain::ids::AllocationGroupId;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;
use wire::http::Page;
use wire::http::allocation_groups::{AllocationGroup, GroupStatus, NewGroup};

use super::allocations::KnownVersion;
use crate::http::Front;
use crate::http::body::{Body, NoBody};
use crate::http::caller::Known;
use crate::http::idempotency::{NeedsKey, Once};
use crate::http::params::{Asked, Id};
use crate::http::problem::Refusal;
use crate::http::reply::{self, answer_at};

/// Which groups.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// Only those of this project.
    project_id: Option<Uuid>,
    /// Only those in this status.
    #[param(value_type = Option<GroupStatus>, inline)]
    status: Option<GroupStatus>,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

fn place_of(group: &AllocationGroup) -> String {
    format!("/api/v1/allocation-groups/{}", group.id)
}

/// The groups of the caller's projects, newest first.
#[utoipa::path(
    get, path = "/api/v1/allocation-groups", tag = "allocation groups", params(Which),
    responses((status = 200, description = "One page of them", body = Page<AllocationGroup>))
)]
pub(super) async fn list_allocation_groups(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<Which>,
) -> Result<Json<Page<AllocationGroup>>, Refusal> {
    let filter = view::Filter { project_id: which.project_id, status: which.status.map(|s| s.0) };
    let cursor = which.cursor.as_deref();
    Ok(Json(view::list(&front.ctx, &caller, &filter, which.limit, cursor).await?))
}

/// Which groups of everybody's.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichOfAll {
    /// Only those in this status: `release_failed` is what waits for an operator.
    #[param(value_type = Option<GroupStatus>, inline)]
    status: Option<GroupStatus>,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

/// The groups of everybody, newest first.
#[utoipa::path(
    get, path = "/api/v1/admin/allocation-groups", tag = "admin", params(WhichOfAll),
    responses((status = 200, description = "One page of them", body = Page<AllocationGroup>))
)]
pub(super) async fn list_all_allocation_groups(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<WhichOfAll>,
) -> Result<Json<Page<AllocationGroup>>, Refusal> {
    let filter = view::Filter { project_id: None, status: which.status.map(|s| s.0) };
    let cursor = which.cursor.as_deref();
    Ok(Json(view::admin_list(&front.ctx, &caller, &filter, which.limit, cursor).await?))
}

/// Asks for several allocations, all or none. The capacity of all of them is the caller's from the answer on.
#[utoipa::path(
    post, path = "/api/v1/allocation-groups", tag = "allocation groups", params(NeedsKey),
    request_body(content = NewGroup, example = json!({
        "project_id": "0198c0de-0000-7000-8000-000000000001",
        "name": "training",
        "members": [
            { "sku": "h100.slice", "gpus": 4, "region": "eu-1", "count": 2, "name": "worker" },
            { "sku": "h100.slice", "gpus": 1, "region": "eu-1", "name": "notebook", "required": false }
        ],
        "ssh_key_ids": ["0198c0de-0000-7000-8000-000000000002"]
    })),
    responses(
        (status = 201, description = "The group, in `requested`", body = AllocationGroup,
            headers(("Location" = String, description = "Where it is"))),
        (status = 402, description = "The balance is used up"),
        (status = 409, description = "A member can't be had, with what would fit instead; or the same request is still running"),
    )
)]
pub(super) async fn create_allocation_group(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<NewGroup>,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "create_allocation_group", &body.raw)?;
    let made = create::request(&front.ctx, &caller, &body.value, &key).await?;
    Ok(answer_at(&place_of(&made.body), made))
}

/// One group with its members, and what may be done with it now.
#[utoipa::path(
    get, path = "/api/v1/allocation-groups/{id}", tag = "allocation groups",
    params(
        ("id" = Uuid, Path, description = "The group"),
        KnownVersion,
    ),
    responses(
        (status = 200, description = "The group", body = AllocationGroup,
            headers(("ETag" = String, description = "Its version"))),
        (status = 304, description = "It has not changed", headers(("ETag" = String, description = "Its version"))),
    )
)]
pub(super) async fn show_allocation_group(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let found = view::show(&front.ctx, &caller, AllocationGroupId(id)).await?;
    Ok(reply::versioned(&headers, found.version, found))
}

/// Gives a whole group back: every member that is left is released. Also starts a new attempt for the members whose
/// clean-up has failed; those that are gone are left alone.
#[utoipa::path(
    post, path = "/api/v1/allocation-groups/{id}/release", tag = "allocation groups",
    params(("id" = Uuid, Path, description = "The group"), NeedsKey),
    responses(
        (status = 202, description = "It is being released", body = AllocationGroup,
            headers(("Location" = String, description = "Where it is"))),
        (status = 409, description = "Nothing of it is left; or the same request is still running"),
    )
)]
pub(super) async fn release_allocation_group(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "release_allocation_group", &[])?;
    let id = AllocationGroupId(id);
    let made = release::request(&front.ctx, &caller, id, Some(&key)).await?;
    Ok(answer_at(&place_of(&made.body), made))
}
