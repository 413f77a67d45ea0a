//! Whatever goes wrong leaves as an RFC 9457 problem with the request's id, and as nothing else: what a fault was made of
//! goes to the log, once, and never to the caller.

use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lifecycle::Code as _;
use uuid::Uuid;
use wire::problem::{Fault, Problem, ProblemCode};

/// The media type of problems.
pub const MEDIA_TYPE: &str = "application/problem+json";
/// When somebody who lost a race should ask again.
const RACE_RETRY_SECONDS: u64 = 1;
/// When somebody should ask again for what is not to be had at all.
const OUTAGE_RETRY_SECONDS: u64 = 5;

/// An answer that is a problem. It gets its text in [`finish`], where the request's id is known.
#[derive(Clone, Debug)]
pub struct Refusal(Box<Inside>);

#[derive(Clone, Debug)]
struct Inside {
    problem: Problem,
    retry_after_seconds: Option<u64>,
    /// What is behind it, for the log alone.
    cause: Option<String>,
}

impl Refusal {
    /// A problem of that sort, with a sentence for people.
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Refusal {
        let problem = Problem::new(code, detail);
        Refusal(Box::new(Inside { problem, retry_after_seconds: None, cause: None }))
    }

    /// A fault of ours. The caller learns the request's id, the log learns the cause.
    pub fn fault(cause: impl Into<String>) -> Refusal {
        let mut refusal = Refusal::new(
            ProblemCode::Internal,
            "Something failed on our side. Whether anything was changed is not certain.",
        );
        refusal.0.cause = Some(cause.into());
        refusal
    }

    /// The same, pointing at what is wrong in the body.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>, detail: impl Into<String>) -> Refusal {
        self.0.problem.errors.push(Fault { pointer: pointer.into(), detail: detail.into() });
        self
    }

    /// The same, with when to ask again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Refusal {
        self.0.retry_after_seconds = Some(seconds);
        self
    }

    /// What the caller will read, but for the request's id.
    pub fn problem(&self) -> &Problem {
        &self.0.problem
    }

    fn because(mut self, cause: String) -> Refusal {
        self.0.cause = Some(cause);
        self
    }
}

impl From<control::Error> for Refusal {
    fn from(error: control::Error) -> Refusal {
        use control::Error;
        let text = error.to_string();
        match error {
            Error::NotFound(_) | Error::NoSuch(_) => {
                Refusal::new(ProblemCode::NotFound, sentence(&text))
            }
            Error::Forbidden(_) => Refusal::new(ProblemCode::Forbidden, sentence(&text)),
            Error::Unauthenticated(_) => {
                Refusal::new(ProblemCode::Unauthenticated, sentence(&text))
            }
            Error::Invalid(faults) => {
                let mut refusal = Refusal::new(ProblemCode::Invalid, said(&faults, &text));
                refusal.0.problem.errors = faults;
                refusal
            }
            Error::Conflict(_) => Refusal::new(ProblemCode::Conflict, sentence(&text)),
            Error::SkuUnavailable { would_fit, narrowed, .. } => {
                let mut refusal = Refusal::new(ProblemCode::SkuUnavailable, sentence(&text));
                refusal.0.problem.would_fit = would_fit;
                refusal.0.problem.narrowed = narrowed;
                refusal
            }
            Error::BalanceDepleted(_) => {
                Refusal::new(ProblemCode::BalanceDepleted, sentence(&text))
            }
            Error::SpendingCapReached(_) => {
                Refusal::new(ProblemCode::SpendingCapReached, sentence(&text))
            }
            Error::Unavailable { retry_after_seconds, .. } => {
                Refusal::new(ProblemCode::Unavailable, sentence(&text))
                    .retry_after(u64::from(retry_after_seconds))
            }
            Error::Unproven(_) => Refusal::new(ProblemCode::BadRequest, sentence(&text)),
            Error::IdempotencyMismatch => {
                Refusal::new(ProblemCode::IdempotencyMismatch, sentence(&text))
            }
            Error::IdempotencyInFlight => {
                Refusal::new(ProblemCode::IdempotencyInFlight, sentence(&text))
                    .retry_after(RACE_RETRY_SECONDS)
            }
            Error::Store(store::Error::Conflict)
            | Error::Spine(spine::Error::Store(store::Error::Conflict)) => {
                Refusal::new(ProblemCode::Unavailable, "Others were faster. Nothing was changed.")
                    .retry_after(RACE_RETRY_SECONDS)
            }
            Error::Store(store::Error::Database(_))
            | Error::Spine(spine::Error::Store(store::Error::Database(_))) => Refusal::new(
                ProblemCode::Unavailable,
                "The database can't be asked. Whether anything was changed is not certain.",
            )
            .retry_after(OUTAGE_RETRY_SECONDS)
            .because(error.chain()),
            Error::Store(_) | Error::Spine(_) | Error::Broken(_) => Refusal::fault(error.chain()),
        }
    }
}

/// The faults as one sentence, so that who reads only `detail` learns what is wrong.
fn said(faults: &[Fault], otherwise: &str) -> String {
    match faults {
        [fault] if fault.pointer.is_empty() => sentence(&fault.detail),
        [fault] => format!("{}: {}", fault.pointer, fault.detail),
        _ => sentence(otherwise),
    }
}

/// With a capital and a full stop: errors speak without.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().collect::<String>());
    let end = if text.ends_with(['.', '?', '!']) { "" } else { "." };
    format!("{}{}{end}", first.unwrap_or_default(), letters.as_str())
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = status_of(&self.0.problem).into_response();
        response.extensions_mut().insert(self);
        response
    }
}

fn status_of(problem: &Problem) -> StatusCode {
    StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Gives a refusal its text and headers, and the log its cause. Errors that somebody else made, such as the router, become
/// problems too.
pub fn finish(mut response: Response, request_id: Uuid) -> Response {
    let refusal = match response.extensions_mut().remove::<Refusal>() {
        Some(refusal) => refusal,
        None if is_bare_error(&response) => bare(response.status()),
        None => return response,
    };
    let Inside { mut problem, retry_after_seconds, cause } = *refusal.0;
    if let Some(cause) = cause {
        tracing::error!(%request_id, cause, "a request failed on our side");
    }
    metrics::counter!("berth_http_refusals_total", "code" => problem.code.0.code()).increment(1);
    problem.request_id = Some(request_id);
    let mut headers = std::mem::take(response.headers_mut());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    headers.extend(retry_after_seconds.map(|seconds| (RETRY_AFTER, HeaderValue::from(seconds))));
    if problem.status == 401 {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"berth\""));
    }
    headers.remove(CONTENT_LENGTH);
    let status = status_of(&problem);
    // A problem is text and numbers, which JSON can always say.
    let text = serde_json::to_vec(&problem).unwrap_or_default();
    let mut finished = (status, text).into_response();
    *finished.headers_mut() = headers;
    finished
}

fn is_bare_error(response: &Response) -> bool {
    let status = response.status();
    let said = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == MEDIA_TYPE);
    (status.is_client_error() || status.is_server_error()) && !said
}

/// What a status means when nobody said more.
fn bare(status: StatusCode) -> Refusal {
    let found = |code: &&ProblemCode| code.status() == status.as_u16();
    let code = <ProblemCode as lifecycle::Code>::ALL.iter().find(found).copied();
    let code = code.unwrap_or(match status.is_client_error() {
        true => ProblemCode::BadRequest,
        false => ProblemCode::Internal,
    });
    Refusal::new(code, code.title())
}

#[cfg(test)]
mod tests {
    use axum::http::header::ALLOW;

    use super::*;

    #[test]
    fn a_fault_of_ours_tells_the_caller_nothing_of_its_cause() {
        let broken = control::Error::Broken("no key at /etc/berth".to_owned());
        let refusal = Refusal::from(broken);
        let told = serde_json::to_string(refusal.problem()).expect("a problem is JSON");
        assert!(!told.contains("/etc") && !told.contains("key"), "{told}");
        assert_eq!(refusal.0.cause.as_deref(), Some("no key at /etc/berth"));
        assert_eq!(refusal.problem().status, 500);
    }

    #[test]
    fn a_lost_race_says_when_to_ask_again() {
        let refusal = Refusal::from(control::Error::Store(store::Error::Conflict));
        assert_eq!(refusal.problem().status, 503);
        assert_eq!(refusal.0.retry_after_seconds, Some(1));
    }

    #[test]
    fn an_error_that_somebody_else_made_becomes_a_problem() {
        let made = (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET,HEAD")], "no").into_response();
        let finished = finish(made, Uuid::nil());
        assert_eq!(finished.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(finished.headers()[CONTENT_TYPE], MEDIA_TYPE);
        assert_eq!(finished.headers()[ALLOW], "GET,HEAD");
    }
}
