//! Timers: work that is due again and again. Every worker runs every timer, so what they do can be had twice; one timer never
//! overlaps itself within a process, and nothing that it does ends it. Some are also woken, and do not wait for their time. What
//! a process must do for itself, such as to learn of policies, runs in those that are no workers, too.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use store::{Ring, fall};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::error::chain;
use crate::pump::{around, guarded};
use crate::wake::Waiter;
use crate::{Error, Wake};

/// Longer than anything that is still alive.
const STEP_MAX: Duration = Duration::from_secs(600);
/// A timer that is woken waits for so long before it runs: what rings once often rings again at once.
const GATHERED: Duration = Duration::from_millis(100);
/// How far apart timers are that would run at the same moment again and again. Together each would need a connection of its own, which a
/// process at rest does not have: it would open a dozen every few seconds and close them again.
const APART: Duration = Duration::from_millis(100);
/// When a timer tries again that found the database away.
const AGAIN: Duration = Duration::from_secs(2);

/// What a timer does; answers how much there was to do.
pub type Tick = Arc<
    dyn Fn() -> BoxFuture<'static, Result<u64, Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Sync,
>;

/// A timer: one row of the table of timers.
#[derive(Clone)]
pub struct Timer {
    /// What it is called, in logs and metrics.
    pub name: &'static str,
    /// From the beginning of one run to the beginning of the next, if that one has ended by then.
    pub period: Duration,
    /// What it does.
    pub step: Tick,
    /// What makes it run before its time.
    pub woken_by: Option<Ring>,
    /// Whether it is about the process it runs in, so that every process runs it.
    pub everywhere: bool,
}

impl Timer {
    /// A timer that does `step`.
    pub fn new<F, E>(
        name: &'static str,
        period: Duration,
        step: impl Fn() -> F + Send + Sync + 'static,
    ) -> Timer
    where
        F: Future<Output = Result<u64, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let step: Tick = Arc::new(move || {
            let ticked = step();
            async move { ticked.await.map_err(Into::into) }.boxed()
        });
        Timer { name, period, step, woken_by: None, everywhere: false }
    }

    /// The same, that also runs a moment after a ring.
    #[must_use]
    pub fn woken_by(mut self, ring: Ring) -> Timer {
        self.woken_by = Some(ring);
        self
    }

    /// The same, that every process runs.
    #[must_use]
    pub fn everywhere(mut self) -> Timer {
        self.everywhere = true;
        self
    }

    /// Does its work once; answers how much there was to do.
    ///
    /// # Errors
    /// What the work answers; a panic is one too.
    pub async fn step(&self) -> Result<u64, Error> {
        // Called inside, because it may panic before there is anything to await.
        let ticked = guarded(STEP_MAX, async { (self.step)().await }).await;
        let ticked = ticked.map_err(Into::into).flatten();
        let result = if ticked.is_ok() { "done" } else { "failed" };
        metrics::counter!("berth_timer_runs_total", "timer" => self.name, "result" => result)
            .increment(1);
        ticked.map_err(|source| Error::Timer { timer: self.name, source })
    }

    /// Does its work at once and then again and again, by so much later than others, until stopped. A run that takes longer than the
    /// period delays the next one.
    async fn run(&self, later: Duration, wake: &Wake, stop: &CancellationToken) {
        let bell = self.woken_by.clone().map(|ring| wake.on(ring));
        let mut ticks = tokio::time::interval(self.period.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut later = Some(later);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
                () = rung(bell.as_ref()) => {
                    if tokio::time::timeout(GATHERED, stop.cancelled()).await.is_ok() {
                        return;
                    }
                }
            }
            let done = self.step().await;
            if let Some(later) = later.take() {
                ticks.reset_after(self.period + later);
            }
            match done {
                Ok(0) => {}
                Ok(count) => tracing::debug!(timer = self.name, count, "a timer had work to do"),
                // What nobody could do is not put off for a whole period.
                Err(error) if fall::noticed(&error) => {
                    ticks.reset_after(around(AGAIN).min(self.period));
                }
                Err(error) => {
                    tracing::warn!(timer = self.name, error = chain(&error), "a timer failed")
                }
            }
        }
    }
}

/// Ends when it was rung; never, for who has no bell.
async fn rung(bell: Option<&Waiter>) {
    match bell {
        Some(bell) => bell.notified().await,
        None => std::future::pending().await,
    }
}

/// Runs timers, each on its own, until stopped.
pub async fn run(timers: Vec<Timer>, wake: Wake, stop: CancellationToken) {
    let mut running = JoinSet::new();
    for (place, timer) in (0_u32..).zip(timers) {
        let (wake, stop) = (wake.clone(), stop.clone());
        running.spawn(async move { timer.run(APART * place, &wake, &stop).await });
    }
    // Also without a timer it lasts until stopped.
    stop.cancelled().await;
    while running.join_next().await.is_some() {}
}
