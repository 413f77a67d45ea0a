//! Wake-ups: who waits for something is told at once. Within a process directly; between processes by a coalesced NOTIFY,
//! never one a transaction, because that would make all commits queue up.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use store::notify::{Line, Rung};
use store::{Bell, Ring, Store, fall};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::pump::{around, tell};

/// At most one notification is sent in this time.
const COALESCED: Duration = Duration::from_millis(20);
/// How long a broken bridge waits before it is built again.
const BROKEN: Duration = Duration::from_secs(1);
/// So many rings may have nobody who waits for them before they are looked through for the first time.
const IDLE_MAX: usize = 64;

/// The hub of one process. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Wake {
    hub: Arc<Hub>,
}

#[derive(Debug, Default)]
struct Hub {
    ropes: Mutex<Ropes>,
    /// Whether there is somebody who tells other processes.
    bridged: AtomicBool,
    outgoing: Mutex<HashSet<Ring>>,
    outgoing_rung: Notify,
}

#[derive(Debug, Default)]
struct Ropes {
    by_ring: HashMap<Ring, Arc<Rope>>,
    /// How many there may be until those that nobody holds are dropped again.
    enough: usize,
}

/// What is pulled for one ring: a count, so that a ring is never missed, and however many wait, all of them hear it.
#[derive(Debug, Default)]
struct Rope {
    count: AtomicU64,
    rung: Notify,
}

impl Rope {
    fn pull(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.rung.notify_waiters();
    }
}

/// Somebody who waits for a ring. Each of several waiters for the same ring hears it.
#[derive(Debug)]
pub struct Waiter {
    rope: Arc<Rope>,
    heard: AtomicU64,
}

impl Waiter {
    /// Waits until it was rung since the last wait, or since the waiter was made. Cancelled, it has heard nothing.
    pub async fn notified(&self) {
        loop {
            // Made before the count is read: a ring after the reading finds it.
            let rung = self.rope.rung.notified();
            let count = self.rope.count.load(Ordering::Acquire);
            if self.heard.swap(count, Ordering::AcqRel) != count {
                return;
            }
            rung.await;
        }
    }
}

impl Wake {
    /// A hub at which nobody waits yet.
    pub fn new() -> Wake {
        Wake::default()
    }

    /// The bell that a store rings after its commits.
    pub fn bell(&self) -> Bell {
        let wake = self.clone();
        Bell::new(move |ring| {
            wake.ring_here(&ring);
            wake.send(ring);
        })
    }

    /// Somebody who waits for `ring`. What was rung between two waits is remembered, so wait like this: get a waiter, look
    /// for work, and only when there is none, `notified().await`.
    pub fn on(&self, ring: Ring) -> Waiter {
        let mut ropes = self.ropes();
        let rope = Arc::clone(ropes.by_ring.entry(ring).or_default());
        if ropes.by_ring.len() > ropes.enough.max(IDLE_MAX) {
            // Under the lock nobody gets hold of a rope that only the hub still has.
            ropes.by_ring.retain(|_, rope| Arc::strong_count(rope) > 1);
            ropes.enough = 2 * ropes.by_ring.len();
        }
        drop(ropes);
        let heard = AtomicU64::new(rope.count.load(Ordering::Acquire));
        Waiter { rope, heard }
    }

    /// Wakes who waits for `ring`, here and in the processes that a [`bridge`] leads to.
    pub fn ring(&self, ring: &Ring) {
        self.ring_here(ring);
        if self.hub.bridged.load(Ordering::Acquire) {
            self.send(ring.clone());
        }
    }

    /// Rings in this process alone: for what only somebody here has missed.
    pub fn ring_here(&self, ring: &Ring) {
        let rope = self.ropes().by_ring.get(ring).map(Arc::clone);
        if let Some(rope) = rope {
            rope.pull();
        }
    }

    fn ring_everybody_here(&self) {
        self.ropes().by_ring.values().for_each(|rope| rope.pull());
    }

    fn send(&self, ring: Ring) {
        if self.hub.bridged.load(Ordering::Acquire) {
            let mut outgoing = self.hub.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
            outgoing.insert(ring);
            drop(outgoing);
            self.hub.outgoing_rung.notify_one();
        }
    }

    fn take_outgoing(&self) -> HashSet<Ring> {
        let mut outgoing = self.hub.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *outgoing)
    }

    fn ropes(&self) -> MutexGuard<'_, Ropes> {
        self.hub.ropes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many rings are remembered, whether or not somebody waits for them.
    #[cfg(test)]
    fn remembered(&self) -> usize {
        self.ropes().by_ring.len()
    }
}

/// Joins this hub to those of the other processes on the same database, until stopped. What is broken is built again; while
/// it is, sweeps find what is due.
pub async fn bridge(store: Store, wake: Wake, stop: CancellationToken) {
    let line = Line::new(&store);
    wake.hub.bridged.store(true, Ordering::Release);
    tokio::select! {
        () = speak(&line, &wake) => {}
        () = listen(&line, &wake) => {}
        () = stop.cancelled() => {}
    }
    wake.hub.bridged.store(false, Ordering::Release);
    wake.take_outgoing();
}

async fn speak(line: &Line, wake: &Wake) {
    loop {
        wake.hub.outgoing_rung.notified().await;
        let rings = wake.take_outgoing();
        if rings.is_empty() {
            continue;
        }
        if let Err(error) = line.send(&rings).await {
            tell(&error, "other processes could not be woken");
        }
        // The next one is sent at once if the last one is long enough ago, and else takes along all that came meanwhile.
        pause(COALESCED).await;
    }
}

async fn listen(line: &Line, wake: &Wake) {
    loop {
        let error = match line.listen().await {
            Ok(mut ear) => {
                fall::over();
                // What was rung before somebody listened was missed.
                wake.ring_everybody_here();
                loop {
                    match ear.hear().await {
                        Ok(Rung::These(rings)) => {
                            rings.iter().for_each(|ring| wake.ring_here(ring));
                        }
                        Ok(Rung::Everything) => wake.ring_everybody_here(),
                        Err(error) => break error,
                    }
                }
            }
            Err(error) => error,
        };
        tell(&error, "wake-ups from other processes are not heard");
        pause(around(BROKEN)).await;
    }
}

/// A wait that nothing but its being cancelled ends sooner.
async fn pause(duration: Duration) {
    let _ = tokio::time::timeout(duration, std::future::pending::<()>()).await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use store::Ring;
    use tokio::time::timeout;
    use uuid::Uuid;

    use super::{IDLE_MAX, Wake};

    const SOON: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_ring_between_two_waits_is_remembered_and_heard_once() {
        let wake = Wake::new();
        let waiter = wake.on(Ring::Outbox);
        wake.ring(&Ring::Outbox);
        wake.ring(&Ring::Outbox);
        timeout(SOON, waiter.notified()).await.expect("it was rung");
        assert!(timeout(Duration::from_millis(1), waiter.notified()).await.is_err(), "once");
        wake.ring(&Ring::Workflows);
        assert!(timeout(Duration::from_millis(1), waiter.notified()).await.is_err(), "not for it");
    }

    #[tokio::test]
    async fn all_who_wait_for_one_ring_hear_it() {
        let wake = Wake::new();
        let node = Ring::Node(Uuid::from_u128(1));
        let waiters = [wake.on(node.clone()), wake.on(node.clone()), wake.on(node.clone())];
        let waits = async { tokio::join!(waiters[0].notified(), waiters[1].notified()) };
        let rings = async { wake.ring(&node) };
        timeout(SOON, async { tokio::join!(waits, rings) }).await.expect("both waited");
        timeout(SOON, waiters[2].notified()).await.expect("and who came later hears it too");
    }

    #[tokio::test]
    async fn a_wait_that_was_given_up_has_heard_nothing() {
        let wake = Wake::new();
        let waiter = wake.on(Ring::Outbox);
        assert!(timeout(Duration::from_millis(1), waiter.notified()).await.is_err());
        wake.ring(&Ring::Outbox);
        timeout(SOON, waiter.notified()).await.expect("the ring is still there");
    }

    #[test]
    fn rings_that_nobody_waits_for_any_more_are_forgotten() {
        let wake = Wake::new();
        let held: Vec<_> =
            (0..10).map(|number| wake.on(Ring::Node(Uuid::from_u128(number)))).collect();
        for number in 0..100_000 {
            drop(wake.on(Ring::Node(Uuid::from_u128(number))));
        }
        assert!(wake.remembered() <= 2 * IDLE_MAX, "{} are remembered", wake.remembered());
        wake.ring(&Ring::Node(Uuid::from_u128(9)));
        assert!(futures::FutureExt::now_or_never(held[9].notified()).is_some(), "it is held");
    }
}
