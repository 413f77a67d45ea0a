//! Errors as RFC 9457 problems, with a closed set of stable codes.

use lifecycle::{Code, codes};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Coded;

codes! {
    /// What went wrong, in a word that clients may rely on.
    pub enum ProblemCode {
        BadRequest = "bad_request",
        IdempotencyKeyMissing = "idempotency_key_missing",
        Unauthenticated = "unauthenticated",
        BalanceDepleted = "balance_depleted",
        SpendingCapReached = "spending_cap_reached",
        Forbidden = "forbidden",
        NotFound = "not_found",
        MethodNotAllowed = "method_not_allowed",
        RequestTimeout = "request_timeout",
        Conflict = "conflict",
        SkuUnavailable = "sku_unavailable",
        IdempotencyInFlight = "idempotency_in_flight",
        PreconditionFailed = "precondition_failed",
        BodyTooLarge = "body_too_large",
        UnsupportedMediaType = "unsupported_media_type",
        Invalid = "invalid",
        IdempotencyMismatch = "idempotency_mismatch",
        HeadersTooLarge = "headers_too_large",
        TooManyRequests = "too_many_requests",
        Internal = "internal",
        Unavailable = "unavailable",
    }
}

/// [`ProblemCode`], as it travels.
pub type ProblemCodeWord = Coded<ProblemCode>;

impl ProblemCode {
    /// The HTTP status it travels with.
    pub const fn status(self) -> u16 {
        match self {
            ProblemCode::BadRequest | ProblemCode::IdempotencyKeyMissing => 400,
            ProblemCode::Unauthenticated => 401,
            ProblemCode::BalanceDepleted | ProblemCode::SpendingCapReached => 402,
            ProblemCode::Forbidden => 403,
            ProblemCode::NotFound => 404,
            ProblemCode::MethodNotAllowed => 405,
            ProblemCode::RequestTimeout => 408,
            ProblemCode::Conflict
            | ProblemCode::SkuUnavailable
            | ProblemCode::IdempotencyInFlight => 409,
            ProblemCode::PreconditionFailed => 412,
            ProblemCode::BodyTooLarge => 413,
            ProblemCode::UnsupportedMediaType => 415,
            ProblemCode::Invalid | ProblemCode::IdempotencyMismatch => 422,
            ProblemCode::TooManyRequests => 429,
            ProblemCode::HeadersTooLarge => 431,
            ProblemCode::Internal => 500,
            ProblemCode::Unavailable => 503,
        }
    }

    /// A few words for a heading.
    pub const fn title(self) -> &'static str {
        match self {
            ProblemCode::BadRequest => "The request can't be understood",
            ProblemCode::IdempotencyKeyMissing => "An Idempotency-Key is needed",
            ProblemCode::Unauthenticated => "Who are you?",
            ProblemCode::BalanceDepleted => "The balance is used up",
            ProblemCode::SpendingCapReached => "The project has cost what it may this month",
            ProblemCode::Forbidden => "You may not do this",
            ProblemCode::NotFound => "There is no such thing",
            ProblemCode::MethodNotAllowed => "Not this method",
            ProblemCode::RequestTimeout => "The request took too long to arrive",
            ProblemCode::Conflict => "Not in its present status",
            ProblemCode::SkuUnavailable => "Not available",
            ProblemCode::IdempotencyInFlight => "The same request is still running",
            ProblemCode::PreconditionFailed => "It has changed meanwhile",
            ProblemCode::BodyTooLarge => "The body is too large",
            ProblemCode::UnsupportedMediaType => "Not JSON",
            ProblemCode::Invalid => "Some of it is not acceptable",
            ProblemCode::IdempotencyMismatch => "The key was used for something else",
            ProblemCode::HeadersTooLarge => "The headers are too large",
            ProblemCode::TooManyRequests => "Too many requests",
            ProblemCode::Internal => "Something failed on our side",
            ProblemCode::Unavailable => "Not now",
        }
    }

    /// What the caller should do about it.
    pub const fn advice(self) -> &'static str {
        match self {
            ProblemCode::BadRequest => "Send what the OpenAPI document describes.",
            ProblemCode::IdempotencyKeyMissing => {
                "Send an Idempotency-Key header of at most 255 characters, a new one for each thing you want."
            }
            ProblemCode::Unauthenticated => {
                "Send a token that is valid: `Authorization: Bearer …`. `berth login` gets one."
            }
            ProblemCode::BalanceDepleted => {
                "Top up the balance and ask again: `berth topup`, or POST /payments/checkout-session."
            }
            ProblemCode::SpendingCapReached => {
                "Ask a project admin to raise the cap, or wait for the next month."
            }
            ProblemCode::Forbidden => {
                "Ask a project admin or an operator, or use a token with the scope."
            }
            ProblemCode::NotFound => "Check the id; it may also belong to somebody else.",
            ProblemCode::MethodNotAllowed => "See the Allow header.",
            ProblemCode::RequestTimeout => "Send the whole request at once.",
            ProblemCode::Conflict => "Look at its status and at `allowed_actions`.",
            ProblemCode::SkuUnavailable => "Ask for what the answer says would fit, or later.",
            ProblemCode::IdempotencyInFlight => "Ask again after the time in Retry-After.",
            ProblemCode::PreconditionFailed => "Read it again and decide anew.",
            ProblemCode::BodyTooLarge => "Send less.",
            ProblemCode::UnsupportedMediaType => "Send `Content-Type: application/json`.",
            ProblemCode::Invalid => "Mend what `errors` points at.",
            ProblemCode::IdempotencyMismatch => {
                "Use a new key for another request; a key belongs to one body."
            }
            ProblemCode::HeadersTooLarge => "Send fewer or shorter headers.",
            ProblemCode::TooManyRequests => "Wait for the time in Retry-After.",
            ProblemCode::Internal => "Ask again; if it stays, tell an operator the request id.",
            ProblemCode::Unavailable => "Ask again after the time in Retry-After.",
        }
    }
}

/// One thing that is wrong with a body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fault {
    /// Where: a JSON pointer.
    pub pointer: String,
    /// What is wrong, and what would be right.
    pub detail: String,
}

/// What would fit instead of what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Alternative {
    /// What.
    pub sku: String,
    /// Where.
    pub region: String,
    /// How many GPUs.
    pub gpus: i16,
}

codes! {
    /// What a placement sorts machines out by, in its order.
    pub enum Filter {
        Sku = "sku",
        Region = "region",
        Status = "status",
        Image = "image",
        Free = "free",
    }
}

/// [`Filter`], as it travels.
pub type FilterWord = Coded<Filter>;

/// What one filter of the placement took away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Narrowed {
    /// Which.
    pub filter: FilterWord,
    /// How many machines it took away.
    pub removed: i64,
    /// How many it left.
    pub left: i64,
    /// The same as a sentence.
    pub sentence: String,
}

/// An answer that is a problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A name of the sort of problem: stable, and not an address to visit.
    #[serde(rename = "type")]
    pub kind: String,
    /// The same for every problem of the sort.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What went wrong, in a sentence for people.
    pub detail: String,
    /// The stable code.
    pub code: ProblemCodeWord,
    /// What to do about it.
    pub advice: String,
    /// Names the request, for whoever has to look into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Uuid>,
    /// The faults of the body, one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Fault>,
    /// What would fit instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_fit: Vec<Alternative>,
    /// How many machines each filter of the placement took away, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub narrowed: Vec<Narrowed>,
}

impl Problem {
    /// A problem of that sort.
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("urn:berth:problem:{}", code.code()),
            title: code.title().to_owned(),
            status: code.status(),
            detail: detail.into(),
            code: Coded(code),
            advice: code.advice().to_owned(),
            request_id: None,
            errors: Vec::new(),
            would_fit: Vec::new(),
            narrowed: Vec::new(),
        }
    }
}
