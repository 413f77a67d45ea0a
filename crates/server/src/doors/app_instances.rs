//! The doors of app instances: bind an application to an allocation or a group, give its parts roles, end it.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use control::app_instance;
use domain::ids::AppInstanceId;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;
use wire::http::Page;
use wire::http::app_instances::{AppInstance, AppMembers, NewAppInstance};

use crate::http::Front;
use crate::http::body::{Body, NoBody};
use crate::http::caller::Known;
use crate::http::idempotency::{MayHaveKey, Once};
use crate::http::params::{Asked, Id};
use crate::http::problem::Refusal;
use crate::http::reply::{answer, answer_at};

/// Which app instances.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// Only those of this project.
    project_id: Option<Uuid>,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

/// The app instances of the caller's projects, newest first.
#[utoipa::path(
    get, path = "/api/v1/app-instances", tag = "apps", params(Which),
    responses((status = 200, description = "One page of them", body = Page<AppInstance>))
)]
pub(super) async fn list_app_instances(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<Which>,
) -> Result<Json<Page<AppInstance>>, Refusal> {
    let cursor = which.cursor.as_deref();
    let (project, limit) = (which.project_id, which.limit);
    Ok(Json(app_instance::list(&front.ctx, &caller, project, limit, cursor).await?))
}

/// Binds an application to an allocation or to a group. What it is bound to is not touched by it.
#[utoipa::path(
    post, path = "/api/v1/app-instances", tag = "apps", params(MayHaveKey),
    request_body(content = NewAppInstance, example = json!({
        "project_id": "0198c0de-0000-7000-8000-000000000001",
        "name": "my-cluster",
        "app": "ray",
        "group_id": "0198c0de-0000-7000-8000-000000000003",
        "members": [{ "allocation_id": "0198c0de-0000-7000-8000-000000000004", "role": "head" }]
    })),
    responses(
        (status = 201, description = "The app instance", body = AppInstance,
            headers(("Location" = String, description = "Where it is"))),
        (status = 409, description = "What it is to be bound to has ended; or the same request is still running"),
    )
)]
pub(super) async fn create_app_instance(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<NewAppInstance>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "create_app_instance", &body.raw);
    let made = app_instance::create(&front.ctx, &caller, &body.value, key.as_ref()).await?;
    Ok(answer_at(&format!("/api/v1/app-instances/{}", made.body.id), made))
}

/// One app instance, with who plays which role and where what it is bound to stands.
#[utoipa::path(
    get, path = "/api/v1/app-instances/{id}", tag = "apps",
    params(("id" = Uuid, Path, description = "The app instance")),
    responses((status = 200, description = "The app instance", body = AppInstance))
)]
pub(super) async fn show_app_instance(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<AppInstance>, Refusal> {
    Ok(Json(app_instance::show(&front.ctx, &caller, AppInstanceId(id)).await?))
}

/// Says who plays which role from now on; whoever is not named plays none.
#[utoipa::path(
    put, path = "/api/v1/app-instances/{id}/members", tag = "apps",
    params(("id" = Uuid, Path, description = "The app instance"), MayHaveKey),
    request_body(content = AppMembers, example = json!({
        "members": [{ "allocation_id": "0198c0de-0000-7000-8000-000000000004", "role": "head" }]
    })),
    responses(
        (status = 200, description = "The app instance", body = AppInstance),
        (status = 409, description = "It was ended; or the same request is still running"),
    )
)]
pub(super) async fn put_app_members(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<AppMembers>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "put_app_members", &body.raw);
    let (id, members) = (AppInstanceId(id), &body.value);
    Ok(answer(app_instance::put_members(&front.ctx, &caller, id, members, key.as_ref()).await?))
}

/// Ends an app instance. What it was bound to stays as it is.
#[utoipa::path(
    post, path = "/api/v1/app-instances/{id}/end", tag = "apps",
    params(("id" = Uuid, Path, description = "The app instance"), MayHaveKey),
    responses(
        (status = 200, description = "It has ended", body = AppInstance),
        (status = 409, description = "It was ended before; or the same request is still running"),
    )
)]
pub(super) async fn end_app_instance(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "end_app_instance", &[]);
    Ok(answer(app_instance::end(&front.ctx, &caller, AppInstanceId(id), key.as_ref()).await?))
}
