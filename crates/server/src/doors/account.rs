//! The doors of one's own: login, who am I, projects and their members, SSH keys, tokens.

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::Response;
use control::account::{self, members, projects, ssh_keys, tokens};
use control::idempotency::Answer;
use uuid::Uuid;
use wire::http::Page;
use wire::http::account::{
    FreshToken, Login, Me, Member, NewMember, NewProject, NewSshKey, NewToken, Project, SshKey,
    Token,
};

use crate::http::Front;
use crate::http::body::{Body, NoBody};
use crate::http::caller::Known;
use crate::http::frame::RequestId;
use crate::http::idempotency::{MayHaveKey, Once};
use crate::http::params::{Asked, Id, Paged, Parted};
use crate::http::problem::Refusal;
use crate::http::reply::{answer, answer_at};
use crate::listen::Remote;

/// Trades the password of an account for a token, whose secret is shown this once.
#[utoipa::path(
    post, path = "/api/v1/login", tag = "account",
    request_body(content = Login, example = json!({"email": "ada@example.org", "password": "correct horse battery staple", "token_name": "laptop"})),
    responses((status = 201, description = "The token", body = FreshToken, headers(("Location" = String, description = "Where the token can be revoked"))))
)]
pub(super) async fn login(
    State(front): State<Front>,
    Extension(Remote(from)): Extension<Remote>,
    Extension(RequestId(id)): Extension<RequestId>,
    body: Body<Login>,
) -> Result<Response, Refusal> {
    let rate = front.rates.login(&body.value.email, from.ip())?;
    let request = account::Request { id, source: Some(from.ip().to_canonical().to_string()) };
    let fresh = account::login(&front.ctx, &body.value, &request).await?;
    let place = format!("/api/v1/tokens/{}", fresh.token.id);
    let mut response = answer_at(&place, Answer { status: 201, body: fresh, replayed: false });
    rate.write(response.headers_mut());
    Ok(response)
}

/// Who the caller is, and what the token in use may be used for.
#[utoipa::path(get, path = "/api/v1/me", tag = "account", responses((status = 200, description = "The caller", body = Me)))]
pub(super) async fn me(State(front): State<Front>, caller: Known) -> Result<Json<Me>, Refusal> {
    Ok(Json(account::me(&front.ctx, &caller).await?))
}

/// The projects that the caller is a member of.
#[utoipa::path(
    get, path = "/api/v1/projects", tag = "projects", params(Paged),
    responses((status = 200, description = "One page of them", body = Page<Project>))
)]
pub(super) async fn list_projects(
    State(front): State<Front>,
    caller: Known,
    Asked(page): Asked<Paged>,
) -> Result<Json<Page<Project>>, Refusal> {
    let (limit, cursor) = page.parts();
    Ok(Json(projects::list(&front.ctx, &caller, limit, cursor).await?))
}

/// Makes a project, with the caller as its admin.
#[utoipa::path(
    post, path = "/api/v1/projects", tag = "projects", params(MayHaveKey),
    request_body(content = NewProject, example = json!({"name": "protein folding"})),
    responses((status = 201, description = "The project", body = Project))
)]
pub(super) async fn create_project(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<NewProject>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "create_project", &body.raw);
    Ok(answer(projects::create(&front.ctx, &caller, &body.value, key.as_ref()).await?))
}

/// The members of a project.
#[utoipa::path(
    get, path = "/api/v1/projects/{id}/members", tag = "projects",
    params(("id" = Uuid, Path, description = "The project"), Paged),
    responses((status = 200, description = "One page of them", body = Page<Member>))
)]
pub(super) async fn list_members(
    State(front): State<Front>,
    caller: Known,
    Id(project): Id,
    Asked(page): Asked<Paged>,
) -> Result<Json<Page<Member>>, Refusal> {
    let (limit, cursor) = page.parts();
    Ok(Json(members::list(&front.ctx, &caller, project, limit, cursor).await?))
}

/// Adds a member to a project, or changes their role.
#[utoipa::path(
    put, path = "/api/v1/projects/{id}/members", tag = "projects",
    params(("id" = Uuid, Path, description = "The project"), MayHaveKey),
    request_body(content = NewMember, example = json!({"email": "grace@example.org", "role": "member"})),
    responses((status = 200, description = "The member", body = Member))
)]
pub(super) async fn put_member(
    State(front): State<Front>,
    caller: Known,
    Id(project): Id,
    once: Once,
    body: Body<NewMember>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "put_member", &body.raw);
    Ok(answer(members::put(&front.ctx, &caller, project, &body.value, key.as_ref()).await?))
}

/// Takes a member out of a project.
#[utoipa::path(
    delete, path = "/api/v1/projects/{id}/members/{user_id}", tag = "projects",
    params(
        ("id" = Uuid, Path, description = "The project"),
        ("user_id" = Uuid, Path, description = "The member"),
        MayHaveKey,
    ),
    responses((status = 204, description = "They are no member any more"))
)]
pub(super) async fn remove_member(
    State(front): State<Front>,
    caller: Known,
    Parted((project, user)): Parted<(Uuid, Uuid)>,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "remove_member", &[]);
    Ok(answer(members::remove(&front.ctx, &caller, project, user, key.as_ref()).await?))
}

/// The caller's SSH keys.
#[utoipa::path(
    get, path = "/api/v1/ssh-keys", tag = "account", params(Paged),
    responses((status = 200, description = "One page of them", body = Page<SshKey>))
)]
pub(super) async fn list_ssh_keys(
    State(front): State<Front>,
    caller: Known,
    Asked(page): Asked<Paged>,
) -> Result<Json<Page<SshKey>>, Refusal> {
    let (limit, cursor) = page.parts();
    Ok(Json(ssh_keys::list(&front.ctx, &caller, limit, cursor).await?))
}

/// Keeps an SSH key of the caller, to let them into allocations.
#[utoipa::path(
    post, path = "/api/v1/ssh-keys", tag = "account", params(MayHaveKey),
    request_body(content = NewSshKey, example = json!({
        "name": "laptop",
        "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    })),
    responses((status = 201, description = "The key", body = SshKey, headers(("Location" = String, description = "Where it can be deleted"))))
)]
pub(super) async fn create_ssh_key(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<NewSshKey>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "create_ssh_key", &body.raw);
    let made = ssh_keys::create(&front.ctx, &caller, &body.value, key.as_ref()).await?;
    Ok(answer_at(&format!("/api/v1/ssh-keys/{}", made.body.id), made))
}

/// Forgets an SSH key of the caller. Allocations that know it keep it.
#[utoipa::path(
    delete, path = "/api/v1/ssh-keys/{id}", tag = "account",
    params(("id" = Uuid, Path, description = "The key"), MayHaveKey),
    responses((status = 204, description = "It is gone"))
)]
pub(super) async fn delete_ssh_key(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "delete_ssh_key", &[]);
    Ok(answer(ssh_keys::delete(&front.ctx, &caller, id, key.as_ref()).await?))
}

/// The caller's tokens, without their secrets.
#[utoipa::path(
    get, path = "/api/v1/tokens", tag = "account", params(Paged),
    responses((status = 200, description = "One page of them", body = Page<Token>))
)]
pub(super) async fn list_tokens(
    State(front): State<Front>,
    caller: Known,
    Asked(page): Asked<Paged>,
) -> Result<Json<Page<Token>>, Refusal> {
    let (limit, cursor) = page.parts();
    Ok(Json(tokens::list(&front.ctx, &caller, limit, cursor).await?))
}

/// Makes a token that may do no more than the one that asks. Its secret is shown this once.
#[utoipa::path(
    post, path = "/api/v1/tokens", tag = "account", params(MayHaveKey),
    request_body(content = NewToken, example = json!({"name": "ci", "scopes": ["read"], "ttl_seconds": 86400})),
    responses((status = 201, description = "The token", body = FreshToken, headers(("Location" = String, description = "Where it can be revoked"))))
)]
pub(super) async fn create_token(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<NewToken>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "create_token", &body.raw);
    let made = tokens::create(&front.ctx, &caller, &body.value, key.as_ref()).await?;
    Ok(answer_at(&format!("/api/v1/tokens/{}", made.body.token.id), made))
}

/// Revokes a token of the caller, at once.
#[utoipa::path(
    delete, path = "/api/v1/tokens/{id}", tag = "account",
    params(("id" = Uuid, Path, description = "The token"), MayHaveKey),
    responses((status = 204, description = "It is good for nothing any more"))
)]
pub(super) async fn revoke_token(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    _body: NoBody,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "revoke_token", &[]);
    Ok(answer(tokens::revoke(&front.ctx, &caller, id, key.as_ref()).await?))
}
