//! What a story can't do, and why. Refusals of the lifecycle are outcomes; here they are only what a requester did wrong.

use wire::problem::{Alternative, Fault, Narrowed};

/// Why a story did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such thing, or it is somebody else's: nobody learns which.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// There is nothing of that name, and it is no secret what there is.
    #[error("{0}")]
    NoSuch(String),
    /// The caller is known and may not.
    #[error("{0}")]
    Forbidden(String),
    /// The caller is not known.
    #[error("{0}")]
    Unauthenticated(&'static str),
    /// Some of what was sent is not acceptable.
    #[error("some of it is not acceptable")]
    Invalid(Vec<Fault>),
    /// Not in its present status.
    #[error("{0}")]
    Conflict(String),
    /// It can't be had.
    #[error("{detail}")]
    SkuUnavailable {
        /// Why, precisely.
        detail: String,
        /// What would fit instead.
        would_fit: Vec<Alternative>,
        /// What each filter of the placement took away, when it came to that.
        narrowed: Vec<Narrowed>,
    },
    /// There is nothing left to pay with.
    #[error("{0}")]
    BalanceDepleted(String),
    /// The project may not cost more this month.
    #[error("{0}")]
    SpendingCapReached(String),
    /// Something that we depend on can't be had now; it was not done.
    #[error("{detail}")]
    Unavailable {
        /// What, and what was changed.
        detail: String,
        /// When to ask again.
        retry_after_seconds: u32,
    },
    /// It says that it comes from somebody else, and does not prove it.
    #[error("{0}")]
    Unproven(&'static str),
    /// The key was used for another body.
    #[error("this Idempotency-Key was used for another request")]
    IdempotencyMismatch,
    /// The same request is still running.
    #[error("the same request is still running")]
    IdempotencyInFlight,
    /// The store failed, or a race was lost: try again.
    #[error("the store failed")]
    Store(#[from] store::Error),
    /// A message or a workflow could not be passed on.
    #[error("the spine failed")]
    Spine(#[from] spine::Error),
    /// Something of ours is broken.
    #[error("{0}")]
    Broken(String),
}

impl Error {
    /// One fault of a body.
    pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Error {
        Error::Invalid(vec![Fault { pointer: pointer.into(), detail: detail.into() }])
    }

    /// Whether it failed because of others in its transaction: then nothing was done, and it is to be done again, alone.
    pub const fn is_company(&self) -> bool {
        matches!(self, Error::Store(store::Error::Company))
    }

    /// The whole chain of causes, for a log.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}
