//! The header that makes a mutation happen once. What the key stands for is the path and the body together, so that one
//! key can't be used for two things.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use control::Caller;
use control::idempotency::Key;
use utoipa::IntoParams;
use wire::problem::ProblemCode;

use super::problem::Refusal;

/// The longest key.
const LENGTH_MAX: usize = 255;
const NAMES: [&str; 2] = ["idempotency-key", "x-idempotency-key"];

/// The header, where a request may have it.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it is the description of a header, and never made")]
pub struct MayHaveKey {
    /// Makes the request happen once: the same key with the same request gets the first answer again, for 24 hours.
    /// `X-Idempotency-Key` is the same.
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$",
        required = false,
        value_type = String
    )]
    idempotency_key: Option<String>,
}

/// The header, where a request must have it.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it is the description of a header, and never made")]
pub struct NeedsKey {
    /// Makes the request happen once: the same key with the same request gets the first answer again, for 24 hours.
    /// `X-Idempotency-Key` is the same.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 255, pattern = "^[!-~]+$")]
    idempotency_key: String,
}

/// The key of a request that may have one.
pub struct Once {
    given: Option<String>,
    path: String,
}

impl Once {
    /// The key of `caller` for the door called `route`, if they sent one.
    pub fn key(&self, caller: &Caller, route: &'static str, body: &[u8]) -> Option<Key> {
        let given = self.given.as_ref()?;
        let mut said = self.path.clone().into_bytes();
        said.push(b'\n');
        said.extend_from_slice(body);
        Some(Key::of(caller.user_id, route, given, &said))
    }

    /// The same for doors that need one.
    ///
    /// # Errors
    /// 400 when there is none.
    pub fn needed(
        &self,
        caller: &Caller,
        route: &'static str,
        body: &[u8],
    ) -> Result<Key, Refusal> {
        self.key(caller, route, body).ok_or_else(|| {
            Refusal::new(
                ProblemCode::IdempotencyKeyMissing,
                "This request needs an Idempotency-Key, so that it can be repeated without harm.",
            )
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Once {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        Ok(Once { given: given(&parts.headers)?, path: parts.uri.path().to_owned() })
    }
}

fn given(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let refused = |detail: &str| Refusal::new(ProblemCode::BadRequest, detail);
    let mut key: Option<&str> = None;
    for value in NAMES.iter().flat_map(|name| headers.get_all(*name)) {
        let text = value.to_str().unwrap_or_default();
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > LENGTH_MAX || !visible {
            return Err(refused(
                "An Idempotency-Key has 1 to 255 characters: visible ASCII, and no space.",
            ));
        }
        if key.is_some_and(|key| key != text) {
            return Err(refused("There are two Idempotency-Keys, and they differ."));
        }
        key = Some(text);
    }
    Ok(key.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue};

    use super::{LENGTH_MAX, given};

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, text) in pairs {
            headers.append(*name, HeaderValue::from_str(text).expect("it is a header"));
        }
        headers
    }

    #[test]
    fn both_spellings_are_one_header() {
        assert_eq!(given(&headers(&[])).expect("none is fine"), None);
        for name in ["idempotency-key", "x-idempotency-key"] {
            assert_eq!(given(&headers(&[(name, "a")])).expect("it is a key").as_deref(), Some("a"));
        }
        let same = headers(&[("idempotency-key", "a"), ("x-idempotency-key", "a")]);
        assert_eq!(given(&same).expect("they agree").as_deref(), Some("a"));
        let other = headers(&[("idempotency-key", "a"), ("x-idempotency-key", "b")]);
        assert_eq!(given(&other).expect_err("they differ").problem().status, 400);
    }

    #[test]
    fn a_key_is_short_and_visible() {
        let long = "k".repeat(LENGTH_MAX + 1);
        assert!(given(&headers(&[("idempotency-key", &long[1..])])).is_ok());
        for text in ["", "a b", "a\tb", long.as_str()] {
            assert!(given(&headers(&[("idempotency-key", text)])).is_err(), "{text:?}");
        }
    }
}
