//! The spine put together: relay, consumers, workflows, timers and the bridge to other processes. The product runs it; a test
//! steps it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use store::Store;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::bus::{self, Broker, Consumer, Subscription};
use crate::timer::Timer;
use crate::workflow::Driver;
use crate::workflow::embedded::Embedded;
use crate::{Clock, Error, Wake, relay, timer, wake};

/// What a process does of what moves by itself. Whatever it does, it hears the wake-ups of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duties {
    /// Moves facts out of the outbox.
    pub relay: bool,
    /// Handles messages, steps workflows, runs the timers of the installation.
    pub worker: bool,
    /// The consumers and timers that it runs without being a worker: a part of the work, in a process of its own.
    pub parts: Vec<&'static str>,
}

impl Duties {
    /// All of it.
    pub const ALL: Duties = Duties { relay: true, worker: true, parts: Vec::new() };

    /// Whether it runs the consumer or the timer of that name.
    fn has(&self, name: &str) -> bool {
        self.worker || self.parts.contains(&name)
    }
}

/// Everything that moves by itself. Its store rings the bell of its wake: see [`Store::ringing`].
#[derive(Clone)]
pub struct Spine {
    /// Where truth rests.
    pub store: Store,
    /// What time it is.
    pub clock: Clock,
    /// Who waits for what.
    pub wake: Wake,
    /// The table of subscriptions.
    pub subscriptions: Vec<Subscription>,
    /// The runs of workflows, and the engine in Postgres that steps them.
    pub workflows: Arc<Embedded>,
    /// What tells consumers of their messages, if Postgres itself does not.
    pub broker: Option<Arc<dyn Broker>>,
    /// What brings runs to those who step them, if Postgres itself does not.
    pub driver: Option<Arc<dyn Driver>>,
    /// Which parts of it run in this process.
    pub duties: Duties,
    /// The table of timers.
    pub timers: Vec<Timer>,
}

impl Spine {
    /// Runs all parts until stopped, and waits for what is under way.
    ///
    /// # Errors
    /// [`Error::Ended`] when a part has ended by itself: the others are stopped then too.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), Error> {
        // Cancelled with `stop`, and also when a part has ended.
        let stop = stop.child_token();
        self.spawn(&stop).watch(&stop).await
    }

    /// Goes on at once with what a dead process had in hand, instead of waiting for its leases to end. For a process that knows
    /// it is the only one on this database; answers how much there was.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn take_over(&self) -> Result<u64, Error> {
        let messages = store::deliveries::free_leases(&self.store).await?;
        Ok(messages + store::workflow_runs::free_leases(&self.store).await?)
    }

    fn spawn(&self, stop: &CancellationToken) -> Parts {
        let mut parts = Parts::default();
        let (store, wake) = (self.store.clone(), self.wake.clone());
        parts.add("the bridge", wake::bridge(store, wake, stop.clone()));
        if let Some(broker) = &self.broker {
            parts.add("the broker", broker.run(stop.clone()));
        }
        if self.duties.relay {
            let both = (self.wake.clone(), stop.clone());
            let (store, broker) = (self.store.clone(), self.broker.clone());
            parts.add("the relay", relay::run(store, self.subscriptions.clone(), broker, both));
        }
        self.spawn_consumers(&mut parts, stop);
        if self.duties.worker {
            self.spawn_workflows(&mut parts, stop);
        }
        let mut timers = self.timers.clone();
        timers.retain(|timer| self.duties.has(timer.name) || timer.everywhere);
        parts.add("the timers", timer::run(timers, self.wake.clone(), stop.clone()));
        parts
    }

    fn spawn_consumers(&self, parts: &mut Parts, stop: &CancellationToken) {
        let ours = |each: &&Subscription| self.duties.has(each.consumer);
        for subscription in self.subscriptions.iter().filter(ours) {
            let name = format!("the consumer {}", subscription.consumer);
            let consumer = self.consumer(subscription);
            let (wake, stop) = (self.wake.clone(), stop.clone());
            parts.add(name, async move { consumer.run(&wake, &stop).await });
        }
    }

    fn spawn_workflows(&self, parts: &mut Parts, stop: &CancellationToken) {
        let (wake, ending) = (self.wake.clone(), stop.clone());
        match &self.driver {
            Some(driver) => {
                let runs = Embedded::clone(&self.workflows);
                parts.add("the workflow engine", driver.run(runs, wake, ending));
            }
            None => {
                let workflows = Arc::clone(&self.workflows);
                parts
                    .add("the workflow engine", async move { workflows.run(&wake, &ending).await });
            }
        }
    }

    /// One pass of the relay, every consumer and the workflow engine, not of the timers; answers how much there was to do.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn step_all(&self) -> Result<usize, Error> {
        let mut done = relay::step(&self.store, &self.subscriptions).await?;
        for subscription in &self.subscriptions {
            done += self.consumer(subscription).step().await?;
        }
        done += self.workflows.step().await?;
        Ok(done)
    }

    /// Every timer once; answers how much there was to do.
    ///
    /// # Errors
    /// The first failure; the timers behind it have not run.
    pub async fn step_timers(&self) -> Result<u64, Error> {
        let mut done = 0;
        for timer in &self.timers {
            done += timer.step().await?;
        }
        Ok(done)
    }

    fn consumer(&self, subscription: &Subscription) -> Consumer {
        let consumer = Consumer::new(self.store.clone(), self.clock.clone(), subscription.clone());
        match &self.broker {
            Some(broker) => consumer.told_by(Arc::clone(broker), bus::SWEEP),
            None => consumer,
        }
    }
}

/// What runs, by name.
#[derive(Default)]
struct Parts {
    running: JoinSet<()>,
    names: HashMap<Id, String>,
}

impl Parts {
    fn add(&mut self, name: impl Into<String>, part: impl Future<Output = ()> + Send + 'static) {
        let id = self.running.spawn(part).id();
        self.names.insert(id, name.into());
    }
    /// Waits for all of them. The first that ends before it is stopped, or panics, stops the others.
    async fn watch(mut self, stop: &CancellationToken) -> Result<(), Error> {
        let mut result = Ok(());
        while let Some(ended) = self.running.join_next_with_id().await {
            let (id, how, wrong) = match ended {
                Ok((id, ())) => (id, "ended", !stop.is_cancelled()),
                Err(error) => (error.id(), "panicked", true),
            };
            if wrong && result.is_ok() {
                let part = self.names.remove(&id).unwrap_or_default();
                tracing::error!(part, how, "a part of the spine is gone");
                result = Err(Error::Ended { part, how });
            }
            stop.cancel();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::Parts;

    #[tokio::test]
    async fn a_part_that_ends_or_panics_is_named_and_the_others_are_stopped() {
        for how in ["ended", "panicked"] {
            let (mut parts, stop) = (Parts::default(), CancellationToken::new());
            let stopped = stop.clone();
            parts.add("the patient part", async move { stopped.cancelled().await });
            parts.add("the hasty part", async move { assert!(how == "ended", "on purpose") });
            let error = parts.watch(&stop).await.expect_err("a part is gone");
            assert!(error.to_string().starts_with(&format!("the hasty part has {how}")), "{error}");
        }
    }

    #[tokio::test]
    async fn parts_that_end_because_they_were_stopped_are_no_fault() {
        let (mut parts, stop) = (Parts::default(), CancellationToken::new());
        for name in ["one", "two"] {
            let stopped = stop.clone();
            parts.add(name, async move { stopped.cancelled().await });
        }
        stop.cancel();
        parts.watch(&stop).await.expect("they were stopped");
    }
}
