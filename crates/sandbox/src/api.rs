//! The API that clients speak: forms in, JSON out, errors in the shape that Stripe gives them.

use std::collections::HashMap;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use crate::book::{Answered, Session, Status};
use crate::{Sandbox, Trouble, form};

/// The least and the most that is taken, as Stripe has it.
const AMOUNTS: std::ops::RangeInclusive<i64> = 50..=99_999_999;
/// How long a session may be open, in seconds.
const OPEN: std::ops::RangeInclusive<i64> = 1_800..=86_400;

type Fields = HashMap<String, String>;

/// An error, as Stripe tells it.
fn error(status: StatusCode, kind: &str, message: &str, param: Option<&str>) -> Response {
    let said = json!({"error": {"type": kind, "message": message, "param": param}});
    (status, Json(said)).into_response()
}

fn invalid(param: &str, message: &str) -> Box<Response> {
    let (status, kind) = (StatusCode::BAD_REQUEST, "invalid_request_error");
    Box::new(error(status, kind, message, Some(param)))
}

fn missing() -> Response {
    error(
        StatusCode::NOT_FOUND,
        "invalid_request_error",
        "No such checkout.session",
        Some("session"),
    )
}

/// Whether the client has shown the key.
fn known(sandbox: &Sandbox, headers: &HeaderMap) -> Result<(), Box<Response>> {
    let shown = headers.get("authorization").and_then(|value| value.to_str().ok());
    if shown.and_then(|shown| shown.strip_prefix("Bearer ")) == Some(&sandbox.0.options.key) {
        return Ok(());
    }
    let message = "Invalid API Key provided";
    Err(Box::new(error(StatusCode::UNAUTHORIZED, "invalid_request_error", message, None)))
}

/// `POST /v1/checkout/sessions`
pub(crate) async fn create_session(
    State(sandbox): State<Sandbox>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Err(refused) = known(&sandbox, &headers) {
        return *refused;
    }
    let trouble = {
        let mut book = sandbox.book();
        book.asked += 1;
        book.troubles.pop_front()
    };
    let broken = || error(StatusCode::INTERNAL_SERVER_ERROR, "api_error", "An error", None);
    if trouble == Some(Trouble::FailBefore) {
        return broken();
    }
    let answer = once(&sandbox, &headers, &body);
    match trouble {
        None | Some(Trouble::FailBefore) => answer,
        Some(Trouble::FailAfter) => broken(),
        Some(Trouble::Hang) => std::future::pending().await,
    }
}

/// The answer to a form. The same key gets the same answer; with another form it is refused.
fn once(sandbox: &Sandbox, headers: &HeaderMap, body: &Bytes) -> Response {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).map(str::to_owned);
    let form = String::from_utf8_lossy(body).into_owned();
    let before = key.as_ref().and_then(|key| sandbox.book().answers.get(key).cloned());
    match before {
        Some(answered) if answered.form == form => {
            return ([("idempotent-replayed", "true")], Json(answered.body)).into_response();
        }
        Some(_) => {
            let message = "Keys for idempotent requests can only be used with the same parameters they were first used with.";
            return error(StatusCode::BAD_REQUEST, "idempotency_error", message, None);
        }
        None => {}
    }
    let Some(fields) = form::fields(body) else {
        return *invalid("body", "The form can't be read");
    };
    let session = match session(sandbox, &fields) {
        Ok(session) => session,
        Err(refused) => return *refused,
    };
    let answer = session.told();
    let mut book = sandbox.book();
    // Two at once: the first one counts.
    if let Some(answered) = key.as_ref().and_then(|key| book.answers.get(key)) {
        return Json(answered.body.clone()).into_response();
    }
    if let Some(key) = key {
        book.answers.insert(key, Answered { form, body: answer.clone() });
    }
    book.order.push(session.id.clone());
    book.sessions.insert(session.id.clone(), session);
    Json(answer).into_response()
}

fn needed<'f>(fields: &'f Fields, name: &str) -> Result<&'f str, Box<Response>> {
    let found = fields.get(name).map(String::as_str).filter(|value| !value.is_empty());
    found.ok_or_else(|| invalid(name, &format!("Missing required param: {name}.")))
}

fn number(fields: &Fields, name: &str) -> Result<i64, Box<Response>> {
    needed(fields, name)?.parse().map_err(|_| invalid(name, "Invalid integer"))
}

fn address(fields: &Fields, name: &str) -> Result<String, Box<Response>> {
    let text = needed(fields, name)?;
    let web = text.starts_with("http://") || text.starts_with("https://");
    if web { Ok(text.to_owned()) } else { Err(invalid(name, "Not a valid URL")) }
}

/// The session that a form asks for, if it is one that Stripe would make.
fn session(sandbox: &Sandbox, fields: &Fields) -> Result<Session, Box<Response>> {
    const PRICE: &str = "line_items[0][price_data]";
    if needed(fields, "mode")? != "payment" {
        return Err(invalid("mode", "Invalid mode"));
    }
    let (amount, currency) = (format!("{PRICE}[unit_amount]"), format!("{PRICE}[currency]"));
    let product = format!("{PRICE}[product_data][name]");
    let quantity = number(fields, "line_items[0][quantity]")?;
    let total = number(fields, &amount)?.saturating_mul(quantity);
    if !AMOUNTS.contains(&total) {
        return Err(invalid(&amount, "The Checkout Session's total amount is out of bounds"));
    }
    let spelled = needed(fields, &currency)?;
    if spelled.len() != 3 || !spelled.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return Err(invalid(&currency, "Invalid currency"));
    }
    let created = sandbox.now();
    let expires_at = match fields.contains_key("expires_at") {
        true => number(fields, "expires_at")?,
        false => created + OPEN.end(),
    };
    if !OPEN.contains(&(expires_at - created)) {
        let message = "The `expires_at` timestamp must be between 30 minutes and 24 hours from Checkout Session creation.";
        return Err(invalid("expires_at", message));
    }
    let id = sandbox.name("cs_test");
    Ok(Session {
        url: format!("{}/pay/{id}", sandbox.url()),
        id,
        reference: fields.get("client_reference_id").cloned(),
        metadata: form::inside(fields, "metadata"),
        payment_metadata: form::inside(fields, "payment_intent_data[metadata]"),
        product: needed(fields, &product)?.to_owned(),
        amount: total,
        currency: spelled.to_owned(),
        success_url: address(fields, "success_url")?,
        cancel_url: address(fields, "cancel_url")?,
        created,
        expires_at,
        status: Status::Open,
        paid: false,
        payment: None,
        refunded: 0,
    })
}

/// `GET /v1/checkout/sessions/{id}`
pub(crate) async fn show_session(
    State(sandbox): State<Sandbox>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Response {
    if let Err(refused) = known(&sandbox, &headers) {
        return *refused;
    }
    sandbox.sweep();
    shown(&sandbox, &id)
}

/// `POST /v1/checkout/sessions/{id}/expire`
pub(crate) async fn expire_session(
    State(sandbox): State<Sandbox>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Response {
    if let Err(refused) = known(&sandbox, &headers) {
        return *refused;
    }
    if !sandbox.book().sessions.contains_key(&id) {
        return missing();
    }
    if !sandbox.expire(&id) {
        return *invalid(
            "session",
            "Only Checkout Sessions with a status in [\"open\"] can be expired",
        );
    }
    shown(&sandbox, &id)
}

fn shown(sandbox: &Sandbox, id: &str) -> Response {
    match sandbox.book().sessions.get(id) {
        Some(session) => Json(session.told()).into_response(),
        None => missing(),
    }
}

/// `POST /v1/refunds`
pub(crate) async fn create_refund(
    State(sandbox): State<Sandbox>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Err(refused) = known(&sandbox, &headers) {
        return *refused;
    }
    match refund(&sandbox, &body) {
        Ok(answer) => Json(answer).into_response(),
        Err(refused) => *refused,
    }
}

fn refund(sandbox: &Sandbox, body: &Bytes) -> Result<Value, Box<Response>> {
    let fields = form::fields(body).ok_or_else(|| invalid("body", "The form can't be read"))?;
    let payment = needed(&fields, "payment_intent")?.to_owned();
    let found = {
        let book = sandbox.book();
        let of = |session: &&Session| session.payment.as_ref() == Some(&payment);
        book.sessions.values().find(of).map(|each| (each.id.clone(), each.amount - each.refunded))
    };
    let (id, left) = found.ok_or_else(|| invalid("payment_intent", "No such payment_intent"))?;
    let amount = match fields.contains_key("amount") {
        true => number(&fields, "amount")?,
        false => left,
    };
    if !sandbox.refund(&id, amount) {
        return Err(invalid("amount", "Refund amount is greater than unrefunded amount on charge"));
    }
    let name = sandbox.name("re");
    Ok(
        json!({"id": name, "object": "refund", "amount": amount, "payment_intent": payment, "status": "succeeded"}),
    )
}
