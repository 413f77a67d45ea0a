//! Bodies: JSON of one type, whole, in time and not too large, with the bytes kept for the fingerprint of an
//! idempotency key.

use axum::body::{Body as Arriving, Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::LengthLimitError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use wire::problem::ProblemCode;

use super::problem::Refusal;
use super::{Front, json};
use crate::Limits;

/// A body that was sent as JSON.
pub struct Body<T> {
    /// What it says.
    pub value: T,
    /// How it was said.
    pub raw: Bytes,
}

impl<T: DeserializeOwned> FromRequest<Front> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, front: &Front) -> Result<Self, Refusal> {
        read(request, &front.limits).await
    }
}

/// Reads a body, for doors that stand on something else than [`Front`].
///
/// # Errors
/// A problem: 400, 408, 413, 415 or 422.
pub async fn read<T: DeserializeOwned>(
    request: Request,
    limits: &Limits,
) -> Result<Body<T>, Refusal> {
    let (parts, body) = request.into_parts();
    must_be_json(&parts.headers)?;
    let raw = whole(&parts.headers, body, limits).await?;
    let value = json::read(&raw, limits.json_depth_max)?;
    Ok(Body { value, raw })
}

/// A body as it came, for who reads it otherwise: what it is said to be is not looked at.
pub struct Raw(pub Bytes);

impl FromRequest<Front> for Raw {
    type Rejection = Refusal;

    async fn from_request(request: Request, front: &Front) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        Ok(Raw(whole(&parts.headers, body, &front.limits).await?))
    }
}

/// No body where there is nothing to say: nothing at all, or an empty object.
pub struct NoBody;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl FromRequest<Front> for NoBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, front: &Front) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        let raw = whole(&parts.headers, body, &front.limits).await?;
        if !raw.is_empty() {
            must_be_json(&parts.headers)?;
            let Nothing {} = json::read(&raw, front.limits.json_depth_max)?;
        }
        Ok(NoBody)
    }
}

fn must_be_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Refusal::new(
        ProblemCode::UnsupportedMediaType,
        "The body must be JSON, and say so: `Content-Type: application/json`.",
    ))
}

async fn whole(headers: &HeaderMap, body: Arriving, limits: &Limits) -> Result<Bytes, Refusal> {
    let plain =
        |coding: &axum::http::HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        return Err(Refusal::new(
            ProblemCode::UnsupportedMediaType,
            "A body that is compressed is not read.",
        ));
    }
    let too_large = || {
        let detail = format!("A body may have {} bytes.", limits.body_bytes_max);
        Refusal::new(ProblemCode::BodyTooLarge, detail)
    };
    let claimed = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if claimed.is_some_and(|claimed: u64| claimed > limits.body_bytes_max as u64) {
        return Err(too_large());
    }
    match timeout(limits.body, to_bytes(body, limits.body_bytes_max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_of_length(&error) => Err(too_large()),
        Ok(Err(_)) => Err(Refusal::new(ProblemCode::BadRequest, "The body broke off.")),
        Err(_) => {
            let detail = format!("The body did not arrive within {} s.", limits.body.as_secs());
            Err(Refusal::new(ProblemCode::RequestTimeout, detail))
        }
    }
}

fn is_of_length(error: &axum::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<LengthLimitError>())
}
