//! The door of the stuck list.

use axum::Json;
use axum::extract::State;
use control::stuck;
use wire::http::stuck::Stuck;

use crate::http::Front;
use crate::http::caller::Known;
use crate::http::problem::Refusal;

/// Everything that stands longer than it may, with why, who owns the next step, and what can be done.
#[utoipa::path(
    get, path = "/api/v1/admin/stuck", tag = "admin",
    responses((status = 200, description = "The most overdue first", body = Stuck))
)]
pub(super) async fn list_stuck(
    State(front): State<Front>,
    caller: Known,
) -> Result<Json<Stuck>, Refusal> {
    Ok(Json(stuck::list(&front.ctx, &caller).await?))
}
