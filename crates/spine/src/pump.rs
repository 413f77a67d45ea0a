//! What the consumers and the workflow engine have in common: work is claimed under a lease and done by many at once, outside
//! any transaction; how it went is written down as it comes in, so that nobody waits for the slowest.

use std::future::Future;
use std::hash::BuildHasher as _;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use store::fall;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::error::chain;
use crate::wake::Waiter;
use crate::{Clock, Error};

/// What was missed by every wake-up is found after this time at the latest.
pub(crate) const SWEEP: Duration = Duration::from_secs(1);
/// How long work that is under way may still take after the stop.
const GRACE: Duration = Duration::from_secs(5);
/// The first pause after a failure. It doubles.
const PAUSE: Duration = Duration::from_millis(200);
/// How often it is tried to write something down while the database is away: for some ten seconds, and so within every lease.
const PERSIST_MAX: i32 = 12;

/// Work that can be claimed.
pub(crate) trait Work: Send + Sync {
    /// How a piece of it went.
    type Done: Send + 'static;
    /// How many pieces are under way at once.
    fn room(&self) -> usize;

    /// Claims up to `room` pieces.
    fn claim(
        &self,
        room: usize,
    ) -> impl Future<Output = Result<Vec<BoxFuture<'static, Self::Done>>, Error>> + Send;

    /// Writes down how pieces went. Answers when the first of them is due again, if any is.
    fn settle(
        &self,
        done: Vec<Self::Done>,
    ) -> impl Future<Output = Result<Option<Timestamp>, Error>> + Send;

    /// By which it is judged what is due.
    fn clock(&self) -> &Clock;
}

/// Claims once, and waits until all of it is done; answers how much it was.
pub(crate) async fn step<W: Work>(work: &W) -> Result<usize, Error> {
    let mut under_way = JoinSet::new();
    for piece in work.claim(work.room()).await? {
        under_way.spawn(piece);
    }
    let claimed = under_way.len();
    let mut result = Ok(claimed);
    while let Some(first) = under_way.join_next().await {
        let done = gather(first, &mut under_way).await;
        // The rest goes on, whatever became of these.
        if let Err(error) = work.settle(done).await {
            result = Err(error);
        }
    }
    result
}

/// Does what is due, as soon as it is, until stopped. Faults are logged and come to an end.
pub(crate) async fn run<W: Work>(work: &W, bell: &Waiter, stop: &CancellationToken) {
    let mut under_way = JoinSet::new();
    let mut again_at: Option<Timestamp> = None;
    let mut sweep = SWEEP;
    loop {
        let room = work.room().saturating_sub(under_way.len());
        if room > 0 {
            match work.claim(room).await {
                Ok(claimed) => {
                    fall::over();
                    sweep = SWEEP;
                    for piece in claimed {
                        under_way.spawn(piece);
                    }
                }
                Err(error) => {
                    sweep = around(SWEEP);
                    tell(&error, "nothing could be claimed");
                }
            }
        }
        let now = work.clock().now();
        again_at = again_at.filter(|at| *at > now);
        let wait = again_at.map_or(sweep, |at| until(now, at).min(sweep));
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(first) = under_way.join_next() => {
                let due = settle(work, gather(first, &mut under_way).await).await;
                again_at = again_at.into_iter().chain(due).min();
            }
            _ = tokio::time::timeout(wait, bell.notified()) => {}
        }
    }
    let rest = async {
        while let Some(first) = under_way.join_next().await {
            settle(work, gather(first, &mut under_way).await).await;
        }
    };
    // What is not done by then is done by somebody else when its lease is over.
    let _ = tokio::time::timeout(GRACE, rest).await;
}

async fn settle<W: Work>(work: &W, done: Vec<W::Done>) -> Option<Timestamp> {
    match work.settle(done).await {
        Ok(due) => due,
        Err(error) => {
            tell(&error, "it could not be written down what was done");
            None
        }
    }
}

/// What is done by now, so that it is written down together.
async fn gather<T: 'static>(first: Result<T, JoinError>, under_way: &mut JoinSet<T>) -> Vec<T> {
    tokio::task::yield_now().await;
    let mut done: Vec<T> = first.into_iter().collect();
    while let Some(next) = under_way.try_join_next() {
        done.extend(next);
    }
    done
}

fn until(now: Timestamp, at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

/// The pause after the last of `failures` failures in a row.
pub(crate) fn pause_after(failures: i32, most: Duration) -> Duration {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(0).min(20);
    PAUSE.saturating_mul(1 << doublings).min(most)
}

/// What `work` answers, unless it panics or takes too long: then why it is to be counted as failed. What a panic says stays
/// in the log of the process, because it may say anything.
pub(crate) async fn guarded<T>(
    limit: Duration,
    work: impl Future<Output = T> + Send,
) -> Result<T, String> {
    match tokio::time::timeout(limit, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err("panicked".to_owned()),
        Err(_) => Err(format!("it took longer than {} s", limit.as_secs())),
    }
}

/// Writes down what was done, and tries again what the database did not answer: the next connection may be a better one. In a fall
/// it goes on trying for a while, because what is not written down is done once more, and not before its lease is over.
pub(crate) async fn persist<T, F>(attempt: impl Fn() -> F) -> Result<T, store::Error>
where
    F: Future<Output = Result<T, store::Error>>,
{
    for failures in 1..=PERSIST_MAX {
        match attempt().await {
            Err(error) if fall::noticed(&error) => {
                let pause = around(pause_after(failures, SWEEP));
                let _ = tokio::time::timeout(pause, std::future::pending::<()>()).await;
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "trying once more");
                break;
            }
            answer => return answer,
        }
    }
    attempt().await
}

/// Says what failed, unless it is only that the database is away, which is told once for all.
pub(crate) fn tell(error: &(dyn std::error::Error + 'static), what: &'static str) {
    if !fall::noticed(error) {
        tracing::warn!(error = chain(error), "{what}");
    }
}

/// That time, a half more or less, so that those who fail together do not come back together.
pub(crate) fn around(time: Duration) -> Duration {
    // Every one of these has keys of its own.
    let dice = std::hash::RandomState::new().hash_one(0) % 1_000;
    time / 2 + time.mul_f64(dice as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{around, pause_after};

    #[test]
    fn pauses_double_up_to_the_longest() {
        let most = Duration::from_secs(60);
        let pauses = [1, 2, 3, 9, 10, i32::MAX].map(|n| pause_after(n, most).as_millis());
        assert_eq!(pauses, [200, 400, 800, 51_200, 60_000, 60_000]);
        assert_eq!(pause_after(0, most).as_millis(), 200);
    }

    #[test]
    fn those_who_fail_together_do_not_come_back_together() {
        let second = Duration::from_secs(1);
        let pauses: Vec<Duration> = (0..100).map(|_| around(second)).collect();
        assert!(pauses.iter().all(|pause| (second / 2..=second * 3 / 2).contains(pause)));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
