//! The doors of the three-way audit: what does not agree, and a look at it now.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use control::findings;
use serde::Deserialize;
use utoipa::IntoParams;
use wire::http::Page;
use wire::http::findings::{Finding, Look};

use crate::http::Front;
use crate::http::body::NoBody;
use crate::http::caller::Known;
use crate::http::idempotency::{MayHaveKey, Once};
use crate::http::params::Asked;
use crate::http::problem::Refusal;
use crate::http::reply::answer;

/// Which findings.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichFindings {
    /// Also those that are seen no more, behind the others.
    #[param(default = false)]
    all: Option<bool>,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

/// What does not agree between the database, the nodes and the bill; with who sees to it, and what they do.
#[utoipa::path(
    get, path = "/api/v1/admin/findings", tag = "admin", params(WhichFindings),
    responses((status = 200, description = "One page of it, the open ones first", body = Page<Finding>))
)]
pub(super) async fn list_findings(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<WhichFindings>,
) -> Result<Json<Page<Finding>>, Refusal> {
    let (all, cursor) = (which.all.unwrap_or_default(), which.cursor.as_deref());
    Ok(Json(findings::list(&front.ctx, &caller, all, which.limit, cursor).await?))
}

/// Compares the database with the nodes and the bill, now. Nothing is changed but the list of findings.
#[utoipa::path(
    post, path = "/api/v1/admin/findings/look", tag = "admin", params(MayHaveKey),
    responses((status = 200, description = "How much does not agree", body = Look))
)]
pub(super) async fn look_for_findings(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "look_for_findings", &[]);
    Ok(answer(findings::look(&front.ctx, &caller, key.as_ref()).await?))
}
