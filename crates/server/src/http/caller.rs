//! Who asks: the bearer token, and the caller it belongs to. The guard of a door puts them into the request before the
//! story behind it is called.

use std::ops::Deref;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap};
use control::Caller;
use control::account::Request;
use wire::problem::ProblemCode;

use super::problem::Refusal;
use super::{Front, frame::RequestId};
use crate::listen::Remote;

/// Somebody whose token was checked. Only doors that are not public know them.
pub struct Known(pub Caller);

impl Deref for Known {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.0
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Known {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let caller = parts.extensions.get::<Caller>().cloned();
        caller.map(Known).ok_or_else(|| Refusal::fault("a public door asks for a caller"))
    }
}

/// Checks the token of a request.
///
/// # Errors
/// 401 when there is none, or it is not good.
pub async fn authenticate(
    front: &Front,
    headers: &HeaderMap,
    request: Request,
) -> Result<Caller, Refusal> {
    let secret = bearer(headers)?;
    Ok(control::account::authenticate(&front.ctx, secret, request).await?)
}

/// The request as the audit log will know it. Where it came from is the other end of the connection: a header could say
/// anything.
///
/// # Errors
/// A fault of ours, when the request did not come through the frame.
pub fn asked(extensions: &Extensions) -> Result<Request, Refusal> {
    let id = extensions.get::<RequestId>().copied();
    let RequestId(id) = id.ok_or_else(|| Refusal::fault("a door stands outside of the frame"))?;
    let source = extensions.get::<Remote>().map(|remote| remote.0.ip().to_canonical().to_string());
    Ok(Request { id, source })
}

fn bearer(headers: &HeaderMap) -> Result<&str, Refusal> {
    let refused = |detail: &str| Refusal::new(ProblemCode::Unauthenticated, detail);
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let Some(first) = given.next() else {
        return Err(refused("There is no token in this request."));
    };
    if given.next().is_some() {
        return Err(refused("There are two Authorization headers."));
    }
    let words = first.to_str().ok().and_then(|text| text.trim().split_once(' '));
    match words {
        Some((scheme, secret))
            if scheme.eq_ignore_ascii_case("bearer") && !secret.trim().is_empty() =>
        {
            Ok(secret.trim())
        }
        _ => Err(refused("The Authorization header is not of the form `Bearer …`.")),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header::AUTHORIZATION;
    use axum::http::{HeaderMap, HeaderValue};

    use super::bearer;

    fn given(texts: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for text in texts {
            headers.append(AUTHORIZATION, HeaderValue::from_static(text));
        }
        headers
    }

    #[test]
    fn the_scheme_is_read_in_any_case() {
        for text in ["Bearer abc", "bearer abc", "BEARER  abc "] {
            assert_eq!(bearer(&given(&[text])).expect("it is a token"), "abc");
        }
    }

    #[test]
    fn anything_else_is_nobody() {
        for texts in [
            &[][..],
            &["Basic abc"],
            &["Bearer"],
            &["Bearer "],
            &["abc"],
            &["Bearer a", "Bearer b"],
        ] {
            let refusal = bearer(&given(texts)).expect_err("it is no token");
            assert_eq!(refusal.problem().status, 401, "{texts:?}");
        }
    }
}
