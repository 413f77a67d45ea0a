//! Falls of the database. Whoever goes on after a failure asks here first, so that a fall is one line in the log of a process and
//! its end another, and not one a second from everybody who noticed.

use std::error::Error as Fault;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::Error;

/// A process tells of one fall in this time: connections that broke in it come to light one by one.
const QUIET: Duration = Duration::from_secs(5);

/// Whether the database is away, as far as anybody has noticed.
static AWAY: AtomicBool = AtomicBool::new(false);
/// When a fall was last told of, and whether its end was.
static TOLD: Mutex<Option<Told>> = Mutex::new(None);

#[derive(Clone, Copy)]
struct Told {
    at: Instant,
    over: bool,
}

/// When this process last met a connection that was broken, in milliseconds of its own clock, from 1.
static BROKEN: AtomicU64 = AtomicU64::new(0);
static BEGAN: OnceLock<Instant> = OnceLock::new();

fn clock() -> u64 {
    let lived = now().duration_since(*BEGAN.get_or_init(now));
    u64::try_from(lived.as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

/// A connection is broken: those that were at rest at the time are asked before they are used.
pub(crate) fn met(error: &sqlx::Error) {
    if is_broken(error) {
        BROKEN.store(clock(), Ordering::Release);
    }
}

/// Whether a connection that has been at rest for so long was there when another one broke.
pub(crate) fn is_suspect(idle: Duration) -> bool {
    let broken = BROKEN.load(Ordering::Acquire);
    let since = Duration::from_millis(clock().saturating_sub(broken));
    broken > 0 && idle + Duration::from_millis(1) >= since
}

/// Whether the database has ended the connection, or nothing is heard of it.
fn is_broken(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(error) = error {
        let code = error.code().unwrap_or_default();
        return code.starts_with("08") || code.starts_with("57P0");
    }
    matches!(error, sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_))
}

/// Whether `error`, or what is behind it, is that the database is away or has no connection to spare: then it is told of here, and
/// need not be told again. Anything else is the caller's to tell.
pub fn noticed(error: &(dyn Fault + 'static)) -> bool {
    let Some(fall) = behind(error) else {
        return false;
    };
    if !AWAY.swap(true, Ordering::AcqRel) {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now();
        if told.is_none_or(|told| now.duration_since(told.at) > QUIET) {
            *told = Some(Told { at: now, over: false });
            let cause = fall.source().map(ToString::to_string);
            tracing::warn!(cause, "the database can't be asked: everything waits for it");
        }
    }
    true
}

/// The fall that is behind an error, if one is.
fn behind<'a>(error: &'a (dyn Fault + 'static)) -> Option<&'a Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(fall) = error.downcast_ref::<Error>().filter(|error| error.is_fall()) {
            return Some(fall);
        }
        cause = error.source();
    }
    None
}

/// The database has answered.
pub fn over() {
    if AWAY.load(Ordering::Acquire) && AWAY.swap(false, Ordering::AcqRel) {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = told.as_mut().filter(|told| !told.over) {
            told.over = true;
            let seconds = now().duration_since(told.at).as_secs_f64();
            tracing::warn!(seconds, "the database answers again");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "only what a log says depends on it")]
fn now() -> Instant {
    Instant::now()
}

impl Error {
    /// Whether the database is away, or has no connection to spare; nothing is wrong with what it was asked. What was asked may
    /// have been done nevertheless.
    pub fn is_fall(&self) -> bool {
        let Error::Database(error) = self else {
            return false;
        };
        let many =
            error.as_database_error().is_some_and(|error| error.code() == Some("53300".into()));
        let none = matches!(error, sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed);
        many || none || is_broken(error)
    }
}

#[cfg(test)]
mod tests {
    use crate::Error;

    #[test]
    fn a_lost_connection_is_a_fall_and_a_lost_race_is_none() {
        let lost = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        for error in [sqlx::Error::Io(lost), sqlx::Error::PoolTimedOut] {
            assert!(Error::from(error).is_fall());
        }
        for error in [Error::Conflict, Error::Database(sqlx::Error::RowNotFound)] {
            assert!(!error.is_fall() && !super::noticed(&error), "{error:?}");
        }
    }
}
