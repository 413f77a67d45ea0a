//! The clock that stories, timers and tokens are judged by. It is the machine's, moved by what a test has added to it; or it
//! stands still and is only moved, so that nothing depends on how fast the machine is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// A clock. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// None for a clock that goes.
    stands_at: Option<Timestamp>,
    ahead_micros: Arc<AtomicI64>,
    held: Arc<AtomicBool>,
}

/// Before anything is ever due.
const BEFORE_EVERYTHING: Timestamp = Timestamp::constant(-1, 0);

impl Clock {
    /// The machine's clock.
    pub fn system() -> Clock {
        Clock::default()
    }

    /// A clock that stands at what time it is on the machine, for tests.
    pub fn standing() -> Clock {
        Clock { stands_at: Some(Timestamp::now()), ..Clock::default() }
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        if self.held.load(Ordering::SeqCst) {
            return BEFORE_EVERYTHING;
        }
        let ahead = SignedDuration::from_micros(self.ahead_micros.load(Ordering::SeqCst));
        // Adding fails only at the end of time.
        let now = self.stands_at.unwrap_or_else(Timestamp::now);
        now.checked_add(ahead).unwrap_or(Timestamp::MAX)
    }

    /// What time it will be after `duration`.
    pub fn after(&self, duration: Duration) -> Timestamp {
        self.now().checked_add(duration).unwrap_or(Timestamp::MAX)
    }

    /// Moves the clock ahead, for tests.
    pub fn advance(&self, duration: Duration) {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        self.ahead_micros.fetch_add(micros, Ordering::SeqCst);
    }

    /// How far it was moved ahead, in microseconds.
    pub fn ahead(&self) -> i64 {
        self.ahead_micros.load(Ordering::SeqCst)
    }

    /// Makes it as far ahead as another clock is, in microseconds; or holds it before everything, so that nothing is due. For
    /// tests.
    pub fn set(&self, ahead: Option<i64>) {
        self.ahead_micros.store(ahead.unwrap_or_default(), Ordering::SeqCst);
        self.held.store(ahead.is_none(), Ordering::SeqCst);
    }
}
