//! The doors of operators: every allocation, the fleet, dead letters, invariants.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use control::allocation::{release, timeline, view};
use control::node::admin;
use control::operations;
use domain::ids::AllocationId;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;
use wire::http::Page;
use wire::http::admin::{Because, DeadLetter, FreshNode, Invariants, NewNode, Node};
use wire::http::allocations::{Allocation, AllocationStatus, ForceRelease};
use wire::http::timeline::Timeline;

use super::allocations::place_of;
use crate::http::Front;
use crate::http::body::{Body, NoBody};
use crate::http::caller::Known;
use crate::http::idempotency::{MayHaveKey, NeedsKey, Once};
use crate::http::params::{Asked, Id, Paged, Parted};
use crate::http::problem::Refusal;
use crate::http::reply::{answer, answer_at};

/// Which allocations.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// Only those in this status: `release_failed` is what waits for an operator.
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

/// The allocations of everybody.
#[utoipa::path(
    get, path = "/api/v1/admin/allocations", tag = "admin", params(Which),
    responses((status = 200, description = "One page of them", body = Page<Allocation>))
)]
pub(super) async fn list_all_allocations(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<Which>,
) -> Result<Json<Page<Allocation>>, Refusal> {
    let (status, group_id) = (which.status.map(|status| status.0), which.group);
    let filter = view::Filter { project_id: None, status, group_id };
    let cursor = which.cursor.as_deref();
    Ok(Json(view::admin_list(&front.ctx, &caller, &filter, which.limit, cursor).await?))
}

/// Releases somebody's allocation, for a reason that they are told.
#[utoipa::path(
    post, path = "/api/v1/admin/allocations/{id}/force-release", tag = "admin",
    params(("id" = Uuid, Path, description = "The allocation"), NeedsKey),
    request_body(content = ForceRelease, example = json!({"reason": "the machine has to be repaired"})),
    responses(
        (status = 202, description = "It is being released", body = Allocation,
            headers(("Location" = String, description = "Where it is"))),
        (status = 409, description = "Not in its present status; or the same request is still running"),
    )
)]
pub(super) async fn force_release_allocation(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<ForceRelease>,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "force_release_allocation", &body.raw)?;
    let id = AllocationId(id);
    let made = release::force(&front.ctx, &caller, id, &body.value, Some(&key)).await?;
    Ok(answer_at(&place_of(&made.body), made))
}

/// What happened to an allocation, with who did it and on which machine.
#[utoipa::path(
    get, path = "/api/v1/admin/allocations/{id}/timeline", tag = "admin",
    params(("id" = Uuid, Path, description = "The allocation")),
    responses((status = 200, description = "Its timeline", body = Timeline))
)]
pub(super) async fn show_operator_timeline(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<Timeline>, Refusal> {
    Ok(Json(timeline::for_operator(&front.ctx, &caller, AllocationId(id)).await?))
}

/// The fleet, with who holds what.
#[utoipa::path(
    get, path = "/api/v1/admin/nodes", tag = "admin", params(Paged),
    responses((status = 200, description = "One page of it", body = Page<Node>))
)]
pub(super) async fn list_nodes(
    State(front): State<Front>,
    caller: Known,
    Asked(page): Asked<Paged>,
) -> Result<Json<Page<Node>>, Refusal> {
    let (limit, cursor) = page.parts();
    Ok(Json(admin::list(&front.ctx, &caller, limit, cursor).await?))
}

/// Adds a machine, which waits for its agent. The join token is shown this once.
#[utoipa::path(
    post, path = "/api/v1/admin/nodes", tag = "admin", params(NeedsKey),
    request_body(content = NewNode, example = json!({
        "name": "rack1-node1", "region": "eu-1", "sku": "h100.slice", "slots": [0, 0, 0, 0, 1, 1, 1, 1]
    })),
    responses(
        (status = 201, description = "The node, with its join token", body = FreshNode,
            headers(("Location" = String, description = "Where it is"))),
        (status = 409, description = "There is one of that name; or the same request is still running"),
    )
)]
pub(super) async fn create_node(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<NewNode>,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "create_node", &body.raw)?;
    let made = admin::create(&front.ctx, &caller, &body.value, Some(&key)).await?;
    Ok(answer_at(&format!("/api/v1/admin/nodes/{}", made.body.node.id), made))
}

/// One machine.
#[utoipa::path(
    get, path = "/api/v1/admin/nodes/{id}", tag = "admin",
    params(("id" = Uuid, Path, description = "The node")),
    responses((status = 200, description = "The node", body = Node))
)]
pub(super) async fn show_node(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<Node>, Refusal> {
    Ok(Json(admin::show(&front.ctx, &caller, id).await?))
}

/// Makes a new join token for a machine; older ones are good for nothing from then on.
#[utoipa::path(
    post, path = "/api/v1/admin/nodes/{id}/join-token", tag = "admin",
    params(("id" = Uuid, Path, description = "The node"), MayHaveKey),
    responses((status = 201, description = "The node, with its join token", body = FreshNode))
)]
pub(super) async fn reissue_join_token(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "reissue_join_token", &[]);
    Ok(answer(admin::reissue(&front.ctx, &caller, id, key.as_ref()).await?))
}

/// Takes a machine's identity away: its agent is cut off at once, and nothing is placed on it.
#[utoipa::path(
    post, path = "/api/v1/admin/nodes/{id}/revoke", tag = "admin",
    params(("id" = Uuid, Path, description = "The node"), MayHaveKey),
    request_body(content = Because, example = json!({"reason": "the machine was stolen"})),
    responses((status = 200, description = "The node", body = Node))
)]
pub(super) async fn revoke_node(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<Because>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "revoke_node", &body.raw);
    Ok(answer(admin::revoke(&front.ctx, &caller, id, &body.value, key.as_ref()).await?))
}

/// Messages that could not be handled.
#[utoipa::path(
    get, path = "/api/v1/admin/dead-letters", tag = "admin", params(Paged),
    responses((status = 200, description = "One page of them", body = Page<DeadLetter>))
)]
pub(super) async fn list_dead_letters(
    State(front): State<Front>,
    caller: Known,
    Asked(page): Asked<Paged>,
) -> Result<Json<Page<DeadLetter>>, Refusal> {
    let (limit, cursor) = page.parts();
    Ok(Json(operations::dead_letters(&front.ctx, &caller, limit, cursor).await?))
}

/// Hands a dead letter out once more.
#[utoipa::path(
    post, path = "/api/v1/admin/dead-letters/{consumer}/{event_id}/redrive", tag = "admin",
    params(
        ("consumer" = String, Path, description = "Who could not handle it", max_length = 64),
        ("event_id" = Uuid, Path, description = "The message"),
        MayHaveKey,
    ),
    responses((status = 202, description = "It is on its way again"))
)]
pub(super) async fn redrive_dead_letter(
    State(front): State<Front>,
    caller: Known,
    Parted((consumer, event_id)): Parted<(String, Uuid)>,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "redrive_dead_letter", &[]);
    let done = operations::redrive(&front.ctx, &caller, &consumer, event_id, key.as_ref()).await?;
    Ok(answer(done))
}

/// Looks for what must never be, now. Every invariant is named, also when it holds.
#[utoipa::path(
    get, path = "/api/v1/admin/invariants", tag = "admin",
    responses((status = 200, description = "All of them", body = Invariants))
)]
pub(super) async fn check_invariants(
    State(front): State<Front>,
    caller: Known,
) -> Result<Json<Invariants>, Refusal> {
    Ok(Json(operations::invariants(&front.ctx, &caller).await?))
}
