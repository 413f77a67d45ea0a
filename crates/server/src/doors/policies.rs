//! The doors of policies: what operators may turn.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use control::policies::turn;
use wire::http::Page;
use wire::http::policies::{NewPolicy, Policy};

use crate::http::Front;
use crate::http::body::{Body, NoBody};
use crate::http::caller::Known;
use crate::http::idempotency::{MayHaveKey, Once};
use crate::http::params::Parted;
use crate::http::problem::Refusal;
use crate::http::reply::{all, answer};

/// Every policy with what it means, what it stands at and how far it may be turned.
#[utoipa::path(
    get, path = "/api/v1/admin/policies", tag = "admin",
    responses((status = 200, description = "All of them", body = Page<Policy>))
)]
pub(super) async fn list_policies(
    State(front): State<Front>,
    caller: Known,
) -> Result<Json<Page<Policy>>, Refusal> {
    Ok(all(turn::list(&front.ctx, &caller).await?))
}

/// Turns a policy. It stands like that at once here, and within moments in other processes.
#[utoipa::path(
    put, path = "/api/v1/admin/policies/{key}", tag = "admin",
    params(("key" = String, Path, description = "The policy", max_length = 64), MayHaveKey),
    request_body(content = NewPolicy, example = json!({"value": 1200, "reason": "large machines take long to boot"})),
    responses((status = 200, description = "The policy", body = Policy))
)]
pub(super) async fn set_policy(
    State(front): State<Front>,
    caller: Known,
    Parted(key): Parted<String>,
    once: Once,
    body: Body<NewPolicy>,
) -> Result<Response, Refusal> {
    let once = once.key(&caller, "set_policy", &body.raw);
    Ok(answer(turn::set(&front.ctx, &caller, &key, &body.value, once.as_ref()).await?))
}

/// Turns a policy back to its default.
#[utoipa::path(
    delete, path = "/api/v1/admin/policies/{key}", tag = "admin",
    params(("key" = String, Path, description = "The policy", max_length = 64), MayHaveKey),
    responses((status = 200, description = "The policy", body = Policy))
)]
pub(super) async fn reset_policy(
    State(front): State<Front>,
    caller: Known,
    Parted(key): Parted<String>,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let once = once.key(&caller, "reset_policy", &[]);
    Ok(answer(turn::reset(&front.ctx, &caller, &key, once.as_ref()).await?))
}
