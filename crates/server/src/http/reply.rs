//! Answers: the status that a story decided, where a thing is to be found, and its version.

use axum::Json;
use axum::http::header::{ETAG, IF_NONE_MATCH, LOCATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use control::idempotency::Answer;
use serde::Serialize;
use wire::http::Page;
use wire::http::allocations::Allocation;

/// Says that an answer was given before.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// What a mutation answers.
pub fn answer<T: Serialize>(answer: Answer<T>) -> Response {
    let (status, replayed) = (status(answer.status), answer.replayed);
    let mut response = match status {
        StatusCode::NO_CONTENT => status.into_response(),
        _ => (status, Json(answer.body)).into_response(),
    };
    if replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// The same, with where the thing is to be found.
pub fn answer_at<T: Serialize>(place: &str, given: Answer<T>) -> Response {
    let mut response = answer(given);
    if let Ok(place) = HeaderValue::from_str(place) {
        response.headers_mut().insert(LOCATION, place);
    }
    response
}

/// A status of a story, which is always one of HTTP's.
fn status(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::OK)
}

/// A list that fits on one page.
pub fn all<T>(items: Vec<T>) -> Json<Page<T>> {
    Json(Page { items, next_cursor: None })
}

/// An allocation with its version.
pub fn allocation(asked: &HeaderMap, allocation: Allocation) -> Response {
    versioned(asked, allocation.seq, allocation)
}

/// Something with its version; nothing but the version when the caller has it already.
pub fn versioned<T: Serialize>(asked: &HeaderMap, version: i64, body: T) -> Response {
    let tag = format!("\"{version}\"");
    let known = asked.get_all(IF_NONE_MATCH).iter().any(|given| matches(given, &tag));
    let mut response = match known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => Json(body).into_response(),
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// Whether a header names the tag. Weak and strong are the same here, as RFC 9110 has it for `If-None-Match`.
fn matches(given: &HeaderValue, tag: &str) -> bool {
    let texts = given.to_str().unwrap_or_default().split(',').map(str::trim);
    texts.map(|text| text.strip_prefix("W/").unwrap_or(text)).any(|text| text == "*" || text == tag)
}
