//! The doors of payments: a checkout, what became of it, what the provider tells, and what operators do when it does not add up.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use control::payment::{checkout, resolve, view, webhook};
use domain::ids::PaymentSessionId;
use serde::Deserialize;
use utoipa::IntoParams;
use wire::http::Page;
use wire::http::payments::{
    NewCheckoutSession, PaymentCase, PaymentCases, PaymentEvent, PaymentSession, ResolvePayment,
};

use crate::http::Front;
use crate::http::body::{Body, Raw};
use crate::http::caller::Known;
use crate::http::idempotency::{MayHaveKey, NeedsKey, Once};
use crate::http::params::{Asked, Id, Paged};
use crate::http::problem::Refusal;
use crate::http::reply::{answer, answer_at};
use crate::outside::stripe::SIGNATURE;

/// Makes a checkout and says where to pay. The same key is the same checkout, for good.
#[utoipa::path(
    post, path = "/api/v1/payments/checkout-session", tag = "payments", params(NeedsKey),
    request_body(content = NewCheckoutSession, example = json!({"amount_minor": 2500})),
    responses(
        (status = 201, description = "The checkout, with the address to pay at", body = PaymentSession,
            headers(("Location" = String, description = "Where it is"))),
        (status = 409, description = "The same request is still running; or it was never opened, and it is too late to"),
        (status = 503, description = "The payment provider can't be asked, or payments are not set up; the same key may be used again"),
    )
)]
pub(super) async fn create_checkout_session(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<NewCheckoutSession>,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "create_checkout_session", &body.raw)?;
    let made = checkout::create(&front.ctx, &caller, &body.value, &key).await?;
    Ok(answer_at(&format!("/api/v1/payments/sessions/{}", made.body.id), made))
}

/// Your checkouts, the newest first.
#[utoipa::path(
    get, path = "/api/v1/payments/sessions", tag = "payments", params(Paged),
    responses((status = 200, description = "One page of them", body = Page<PaymentSession>))
)]
pub(super) async fn list_payment_sessions(
    State(front): State<Front>,
    caller: Known,
    Asked(page): Asked<Paged>,
) -> Result<Json<Page<PaymentSession>>, Refusal> {
    let (limit, cursor) = page.parts();
    Ok(Json(view::list(&front.ctx, &caller, limit, cursor).await?))
}

/// One of your checkouts: where it stands, what that means, and what to do.
#[utoipa::path(
    get, path = "/api/v1/payments/sessions/{id}", tag = "payments",
    params(("id" = Uuid, Path, description = "The payment session")),
    responses((status = 200, description = "The checkout", body = PaymentSession))
)]
pub(super) async fn show_payment_session(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<PaymentSession>, Refusal> {
    Ok(Json(view::show(&front.ctx, &caller, id).await?))
}

/// Where Stripe tells what became of a checkout. The body is an event of Stripe, signed in the header `Stripe-Signature`; when
/// this answers, it is written down.
#[utoipa::path(
    post, path = "/api/v1/payments/stripe/webhook", tag = "payments",
    responses(
        (status = 200, description = "It is written down, or was before"),
        (status = 400, description = "It is not signed as it should be; nothing was written down"),
        (status = 408, description = "It did not arrive in time"),
        (status = 413, description = "It is too large"),
        (status = 415, description = "It is compressed"),
    )
)]
pub(super) async fn hear_stripe(
    State(front): State<Front>,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Result<StatusCode, Refusal> {
    let mut proofs = headers.get_all(SIGNATURE).iter();
    let proof = match (proofs.next(), proofs.next()) {
        (Some(proof), None) => proof.to_str().ok(),
        (_, _) => None,
    };
    webhook::receive(&front.ctx, proof, &body).await?;
    Ok(StatusCode::OK)
}

/// Which sessions of everybody.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichSessions {
    /// Only those that somebody should look at: not paid for over an hour, or not to be reconciled.
    #[param(default = false)]
    stuck: Option<bool>,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

/// Everybody's checkouts: what was asked for beside what was paid.
#[utoipa::path(
    get, path = "/api/v1/admin/payments/sessions", tag = "admin", params(WhichSessions),
    responses((status = 200, description = "One page of them, the newest first", body = PaymentCases))
)]
pub(super) async fn list_payment_cases(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<WhichSessions>,
) -> Result<Json<PaymentCases>, Refusal> {
    let (stuck, cursor) = (which.stuck.unwrap_or_default(), which.cursor.as_deref());
    Ok(Json(view::list_all(&front.ctx, &caller, stuck, which.limit, cursor).await?))
}

/// Credits what an operator says was paid, for a checkout that could not be reconciled.
#[utoipa::path(
    post, path = "/api/v1/admin/payments/sessions/{id}/resolve", tag = "admin",
    params(("id" = Uuid, Path, description = "The payment session"), MayHaveKey),
    request_body(content = ResolvePayment, example = json!({"amount_minor": 2499, "reason": "the bank took a cent"})),
    responses(
        (status = 200, description = "It is credited", body = PaymentCase),
        (status = 409, description = "It does not wait for an operator; or the same request is still running"),
    )
)]
pub(super) async fn resolve_payment(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<ResolvePayment>,
) -> Result<Response, Refusal> {
    let key = once.key(&caller, "resolve_payment", &body.raw);
    let (id, asked) = (PaymentSessionId(id), &body.value);
    Ok(answer(resolve::resolve(&front.ctx, &caller, id, asked, key.as_ref()).await?))
}

/// Which events.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichEvents {
    /// Only those that nothing came of.
    #[param(default = false)]
    unmatched: Option<bool>,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

/// What the payment provider has told us, and what came of it.
#[utoipa::path(
    get, path = "/api/v1/admin/payments/events", tag = "admin", params(WhichEvents),
    responses((status = 200, description = "One page of it, the newest first", body = Page<PaymentEvent>))
)]
pub(super) async fn list_payment_events(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<WhichEvents>,
) -> Result<Json<Page<PaymentEvent>>, Refusal> {
    let (unmatched, cursor) = (which.unmatched.unwrap_or_default(), which.cursor.as_deref());
    Ok(Json(view::list_events(&front.ctx, &caller, unmatched, which.limit, cursor).await?))
}
