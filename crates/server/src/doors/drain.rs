//! The doors of operators who take nodes out of the fleet, for a while or for good.

use axum::extract::State;
use axum::response::Response;
use control::node::drain;
use wire::http::admin::{Because, Node};

use crate::http::Front;
use crate::http::body::Body;
use crate::http::caller::Known;
use crate::http::idempotency::{MayHaveKey, Once};
use crate::http::params::Id;
use crate::http::problem::Refusal;
use crate::http::reply::answer;

/// Lets a machine run empty: it takes no placements, and is in maintenance when nothing is left on it.
#[utoipa::path(
    post, path = "/api/v1/admin/nodes/{id}/drain", tag = "admin",
    params(("id" = Uuid, Path, description = "The node"), MayHaveKey),
    request_body(content = Because, example = json!({"reason": "a fan is failing"})),
    responses(
        (status = 200, description = "The node", body = Node),
        (status = 409, description = "Not in its present status; or the same request is still running"),
    )
)]
pub(super) async fn drain_node(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<Because>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "drain_node", &body.raw);
    Ok(answer(drain::drain(&front.ctx, &caller, id, &body.value, key.as_ref()).await?))
}

/// Lets a machine that was in maintenance take placements again.
#[utoipa::path(
    post, path = "/api/v1/admin/nodes/{id}/resume", tag = "admin",
    params(("id" = Uuid, Path, description = "The node"), MayHaveKey),
    request_body(content = Because, example = json!({"reason": "the fan was replaced"})),
    responses(
        (status = 200, description = "The node", body = Node),
        (status = 409, description = "Not in its present status; or the same request is still running"),
    )
)]
pub(super) async fn resume_node(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<Because>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "resume_node", &body.raw);
    Ok(answer(drain::resume(&front.ctx, &caller, id, &body.value, key.as_ref()).await?))
}

/// Takes a machine out of the fleet for good. Refused while anything is left on it, and its agent is cut off.
#[utoipa::path(
    post, path = "/api/v1/admin/nodes/{id}/retire", tag = "admin",
    params(("id" = Uuid, Path, description = "The node"), MayHaveKey),
    request_body(content = Because, example = json!({"reason": "sold"})),
    responses(
        (status = 200, description = "The node", body = Node),
        (status = 409, description = "Something is left on it; or the same request is still running"),
    )
)]
pub(super) async fn retire_node(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<Because>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "retire_node", &body.raw);
    Ok(answer(drain::retire(&front.ctx, &caller, id, &body.value, key.as_ref()).await?))
}
