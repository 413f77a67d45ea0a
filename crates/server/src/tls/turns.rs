//! Whose handshake is next. A fleet that comes back all at once takes its turns, in order and at a pace that leaves the
//! machine to those who are inside; whoever would wait for too long is turned away at once, and comes back later.

use std::future::pending;
use std::num::NonZeroU32;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::Limits;

/// A handshake is most of what a newcomer costs, so a burst is a tenth of a second's.
const BURSTS_PER_SECOND: u32 = 10;

/// See the module.
pub(super) struct Turns {
    /// For those who wait.
    places: Semaphore,
    at_once: Semaphore,
    /// The lock is handed over in the order in which it was asked for.
    pace: Mutex<DefaultDirectRateLimiter>,
    clock: DefaultClock,
}

impl Turns {
    /// Nobody has come yet.
    pub(super) fn new(limits: &Limits) -> Turns {
        let each_second = limits.handshakes_per_second;
        let burst = NonZeroU32::new(each_second.get() / BURSTS_PER_SECOND);
        let quota = Quota::per_second(each_second).allow_burst(burst.unwrap_or(NonZeroU32::MIN));
        Turns {
            places: Semaphore::new(limits.handshakes_waiting_max),
            at_once: Semaphore::new(limits.handshakes_max),
            pace: Mutex::new(RateLimiter::direct(quota)),
            clock: DefaultClock::default(),
        }
    }

    /// Waits for a turn, which lasts until it is dropped. None when too many wait already.
    pub(super) async fn take(&self) -> Option<SemaphorePermit<'_>> {
        let _place = self.places.try_acquire().ok()?;
        let pace = self.pace.lock().await;
        let turn = self.at_once.acquire().await.ok()?;
        while let Err(until) = pace.check() {
            let wait = until.wait_time_from(self.clock.now());
            let _ = timeout(wait, pending::<()>()).await;
        }
        Some(turn)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use futures::FutureExt as _;
    use futures::future::join_all;

    use super::Turns;
    use crate::Limits;

    fn turns(per_second: u32, waiting_max: usize, max: usize) -> Turns {
        Turns::new(&Limits {
            handshakes_per_second: NonZeroU32::new(per_second).expect("it is not zero"),
            handshakes_waiting_max: waiting_max,
            handshakes_max: max,
            ..Limits::default()
        })
    }

    #[tokio::test]
    async fn whoever_finds_too_many_waiting_is_turned_away_and_the_others_have_their_turn() {
        let turns = turns(100, 10, 64);
        let taken = join_all((0..50).map(|_| turns.take())).await;
        let had = taken.iter().flatten().count();
        // Some were through before the last came.
        assert!((10..=30).contains(&had), "{had}");
        drop(taken);
        assert!(turns.take().await.is_some(), "there is room again");
    }

    #[tokio::test]
    async fn turns_come_at_a_pace_and_not_too_many_at_once() {
        let turns = turns(10, 10, 2);
        let first = turns.take().await.expect("nobody else is there");
        // The pace: a tenth of a second has not gone by.
        assert!(turns.take().now_or_never().is_none());
        let second = turns.take().await.expect("its turn comes");
        // Both are at it: nobody else is, however long they wait.
        let mut third = Box::pin(turns.take());
        let short = std::time::Duration::from_millis(300);
        assert!(tokio::time::timeout(short, &mut third).await.is_err());
        drop(first);
        assert!(third.await.is_some());
        drop(second);
    }
}
