//! The doors of the audit log: for operators all of it, for the admins of a project what was done there.

use axum::Json;
use axum::extract::State;
use control::audit_log::read::{self, Part};
use jiff::Timestamp;
use serde::Deserialize;
use store::audit_log::list::Filter;
use utoipa::IntoParams;
use uuid::Uuid;
use wire::http::Page;
use wire::http::audit::{AuditEntry, AuditVerdict};

use crate::http::Front;
use crate::http::caller::Known;
use crate::http::params::{Asked, Id, Paged};
use crate::http::problem::Refusal;

/// Which entries.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// Only what this user did.
    user: Option<Uuid>,
    /// Only this action, such as `allocation.release`.
    #[param(max_length = 64)]
    action: Option<String>,
    /// Only what was done to this: an identity, or a name.
    #[param(max_length = 256)]
    target: Option<String>,
    /// Only what was done in this project.
    project: Option<Uuid>,
    /// Only what was done at this moment or later.
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Only what was done before this moment.
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

/// Everything that was done, newest first.
#[utoipa::path(
    get, path = "/api/v1/admin/audit", tag = "admin", params(Which),
    responses((status = 200, description = "One page of it", body = Page<AuditEntry>))
)]
pub(super) async fn list_audit_entries(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<Which>,
) -> Result<Json<Page<AuditEntry>>, Refusal> {
    let Which { user, action, target, project, from, to, limit, cursor } = which;
    let filter = Filter { user_id: user, action, target, project_id: project, from, to };
    let part = Part { limit, cursor: cursor.as_deref() };
    Ok(Json(read::all(&front.ctx, &caller, &filter, part).await?))
}

/// A head that was kept.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// `POSITION:HASH` of an earlier verification, kept elsewhere: proves that nothing was cut off since.
    #[param(max_length = 96)]
    head: Option<String>,
}

/// Walks the whole chain of the audit log and says whether anything was changed, left out or put in between.
#[utoipa::path(
    get, path = "/api/v1/admin/audit/verify", tag = "admin", params(Kept),
    responses((status = 200, description = "What was found", body = AuditVerdict))
)]
pub(super) async fn verify_audit_log(
    State(front): State<Front>,
    caller: Known,
    Asked(kept): Asked<Kept>,
) -> Result<Json<AuditVerdict>, Refusal> {
    Ok(Json(read::verify(&front.ctx, &caller, kept.head.as_deref()).await?))
}

/// What was done in a project, newest first. Operators are shown as operators, and not by name.
#[utoipa::path(
    get, path = "/api/v1/projects/{id}/audit", tag = "projects",
    params(("id" = Uuid, Path, description = "The project"), Paged),
    responses((status = 200, description = "One page of it", body = Page<AuditEntry>))
)]
pub(super) async fn list_project_audit_entries(
    State(front): State<Front>,
    caller: Known,
    Id(project): Id,
    Asked(page): Asked<Paged>,
) -> Result<Json<Page<AuditEntry>>, Refusal> {
    let (limit, cursor) = page.parts();
    Ok(Json(read::of_project(&front.ctx, &caller, project, Part { limit, cursor }).await?))
}
