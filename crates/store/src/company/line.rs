//! Where transactions are begun that may be shared. Who comes when nobody does the same begins at once; those who come meanwhile begin
//! together. See `spine::together`, which does the same for what is only asked.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use uuid::Uuid;

use super::drive::{Drive, same};
use super::{Ask, Seat};
use crate::Error;
use crate::pool::{Held, Pool};

/// How many transactions of one kind are under way. Another than the first begins when as many wait as are in it.
const AT_ONCE: usize = 2;
/// How many transactions are under way, of all kinds: at least so many, and one for so many connections. When the database is busy with
/// them, whoever comes waits for company: one more would make all of them slower, and each of them smaller.
const UNDER_WAY_MIN: u32 = 2;
const CONNECTIONS_EACH: u32 = 10;
/// Whoever is under way for longer waits for something else than the processor, and others may begin meanwhile.
const TURN_MAX: Duration = Duration::from_millis(50);
/// How many share one. Only a crowd is ever that many, and what a transaction costs by itself is then less for each.
const SHARE_MAX: usize = 64;

type Doing = (&'static str, &'static str);

/// The lines of a store, one for each thing that is done. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    lines: Arc<Mutex<HashMap<Doing, Line>>>,
    /// How many transactions may be under way, whatever is done in them.
    gate: Arc<Semaphore>,
}

impl Lines {
    /// The lines of a store with so many connections.
    pub(crate) fn of(connections: u32) -> Lines {
        let under_way = (connections / CONNECTIONS_EACH).max(UNDER_WAY_MIN) as usize;
        Lines { lines: Arc::default(), gate: Arc::new(Semaphore::new(under_way)) }
    }
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    /// How many transactions are under way.
    busy: usize,
    /// How many are in them.
    aboard: usize,
}

#[derive(Debug)]
struct Waiting {
    about: Uuid,
    begun: oneshot::Sender<Result<Begun, Error>>,
}

/// A transaction that was begun.
#[derive(Debug)]
pub(crate) enum Begun {
    /// For one alone, who says by [`Shift`] when it is over.
    Alone(Held, Shift),
    /// For several.
    Shared(Seat),
}

/// Whoever has it is under way; dropped, they are not.
#[derive(Debug)]
pub(crate) struct Shift {
    _over: oneshot::Sender<()>,
}

impl Lines {
    /// Begins a transaction, with those who wait for the same.
    pub(crate) async fn begin(
        &self,
        pool: &Pool,
        doing: Doing,
        about: Uuid,
    ) -> Result<Begun, Error> {
        let (begun, told) = oneshot::channel();
        let begins = {
            let mut lines = self.lines();
            let line = lines.entry(doing).or_default();
            line.waiting.push_back(Waiting { about, begun });
            // Where nobody is aboard yet somebody is about to begin, and takes whoever waits.
            let company = line.aboard > 0 && line.waiting.len() >= line.aboard.min(SHARE_MAX);
            let begins = line.busy == 0 || line.busy < AT_ONCE && company;
            line.busy += usize::from(begins);
            begins
        };
        if begins {
            Driver::begin(self.clone(), pool.clone(), doing);
        }
        told.await.map_err(|_| Error::Company)?
    }

    /// What is behind the lock is whole after every statement, so a panic elsewhere spoils nothing.
    fn lines(&self) -> MutexGuard<'_, HashMap<Doing, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody waits, for whoever is done with so many. When there is nobody, they are no longer counted as busy.
    fn waits(&self, doing: Doing, done: usize) -> bool {
        let mut lines = self.lines();
        let line = lines.entry(doing).or_default();
        line.aboard -= done;
        line.waiting.retain(|one| !one.begun.is_closed());
        line.busy -= usize::from(line.waiting.is_empty());
        !line.waiting.is_empty()
    }

    /// Those who begin together: about different things each, in the order in which they came.
    fn next(&self, doing: Doing) -> Vec<Waiting> {
        let mut lines = self.lines();
        let line = lines.entry(doing).or_default();
        let mut together: Vec<Waiting> = Vec::new();
        let mut later = VecDeque::new();
        while let Some(one) = line.waiting.pop_front() {
            if one.begun.is_closed() {
                continue;
            }
            let apart = together.iter().all(|other| other.about != one.about);
            if apart && together.len() < SHARE_MAX {
                together.push(one);
            } else {
                later.push_back(one);
            }
        }
        line.waiting = later;
        line.aboard += together.len();
        together
    }
}

/// Somebody who works off a line until nobody waits.
struct Driver {
    lines: Lines,
    doing: Doing,
    aboard: usize,
    done: bool,
}

impl Driver {
    fn begin(lines: Lines, pool: Pool, doing: Doing) {
        let mut driver = Driver { lines, doing, aboard: 0, done: false };
        // A runtime that is shutting down has nobody left who waits.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            loop {
                // It is never closed.
                let turn = Arc::clone(&driver.lines.gate).acquire_owned().await;
                // Whoever was just told that theirs is done, and goes on with the next, does so first.
                tokio::task::yield_now().await;
                if !driver.lines.waits(doing, driver.aboard) {
                    return driver.end();
                }
                driver.aboard = 0;
                let mut under_way = std::pin::pin!(driver.take_along(&pool));
                if timeout(TURN_MAX, &mut under_way).await.is_err() {
                    drop(turn);
                    under_way.await;
                }
            }
        });
    }

    /// One transaction, from its beginning to its end. Who comes while it is begun has a seat in it.
    async fn take_along(&mut self, pool: &Pool) {
        let begun = begun(pool).await;
        let together = self.lines.next(self.doing);
        self.aboard = together.len();
        match begun {
            Ok(held) if together.is_empty() => {
                let _ = held.rollback().await;
            }
            Ok(held) => drive(held, self.doing, together).await,
            Err(error) => {
                for one in together {
                    let _ = one.begun.send(Err(same(&error)));
                }
            }
        }
    }

    fn end(mut self) {
        self.done = true;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // It panicked, or the runtime ends: who waits is told to go alone.
        let mut lines = self.lines.lines();
        if let Some(line) = lines.get_mut(&self.doing) {
            line.aboard -= self.aboard;
            line.busy -= 1;
            line.waiting.clear();
        }
    }
}

/// A transaction that has begun, for those who are in it.
async fn drive(held: Held, doing: Doing, mut together: Vec<Waiting>) {
    let (name, count) = (doing.0, together.len() as u64);
    metrics::counter!("berth_batches_total", "desk" => name).increment(1);
    metrics::counter!("berth_batched_total", "desk" => name).increment(count);
    let seats = together.len();
    if let (1, Some(one)) = (seats, together.pop_if(|_| seats == 1)) {
        let (over, told) = oneshot::channel();
        let _ = one.begun.send(Ok(Begun::Alone(held, Shift { _over: over })));
        let _ = told.await;
        return;
    }
    let (asks, asked) = mpsc::unbounded_channel::<Ask>();
    for one in together {
        // Who has gone meanwhile leaves by being dropped.
        let _ = one.begun.send(Ok(Begun::Shared(Seat::new(asks.clone()))));
    }
    drop(asks);
    if let Err(spoilt) = Drive::new(held, seats).run(asked).await {
        tracing::info!(%spoilt, ?doing, seats, "a shared transaction failed: each goes alone");
        metrics::counter!("berth_batches_spoilt_total", "desk" => doing.0).increment(1);
    }
}

async fn begun(pool: &Pool) -> Result<Held, sqlx::Error> {
    let mut held = pool.acquire().await?;
    held.begin().await?;
    Ok(held)
}
