//! Time and fresh identities, each from one place.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

/// What time it is.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Waits. Only what has no signal to wait for does: another process's answer, a file, an address that is refused.
#[expect(clippy::disallowed_methods, reason = "the one sleep of the program")]
pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// A key that was never used before, for something that shall happen once.
#[expect(
    clippy::disallowed_methods,
    reason = "what a person asks for has no identity before they ask"
)]
pub(crate) fn fresh_id() -> Uuid {
    Uuid::now_v7()
}

/// Measures how long something takes.
pub(crate) struct Stopwatch(std::time::Instant);

impl Stopwatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "a duration is shown to a person, and nothing decided by it"
    )]
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(std::time::Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
