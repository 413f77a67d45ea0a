//! A consumer's line to a broker: the words that came over it, and when to look for what nobody told of.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_util::sync::CancellationToken;

use super::{Broker, Subscription, Word};
use crate::error::chain;

/// How many words wait here; those that do not fit wait at the broker, for any process.
const ROOM: usize = 64;
/// How long a broken line waits before it is built again.
const BROKEN: Duration = Duration::from_secs(1);

pub(super) struct Line {
    broker: Arc<dyn Broker>,
    coming: Sender<Word>,
    here: Mutex<Receiver<Word>>,
    /// Something was told of that could not be begun yet.
    behind: AtomicBool,
    /// Something has been handled since: what was behind it may be due.
    look: AtomicBool,
    swept_at: Mutex<Option<Timestamp>>,
    sweep: SignedDuration,
}

impl Line {
    pub(super) fn new(broker: Arc<dyn Broker>, sweep: SignedDuration) -> Line {
        let (coming, here) = channel(ROOM);
        Line {
            broker,
            coming,
            here: Mutex::new(here),
            behind: AtomicBool::new(false),
            look: AtomicBool::new(false),
            swept_at: Mutex::new(None),
            sweep,
        }
    }

    /// Up to `room` words that have come.
    pub(super) fn take(&self, room: usize) -> Vec<Word> {
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| here.try_recv().ok()).take(room).collect()
    }

    pub(super) fn note_behind(&self) {
        self.behind.store(true, Ordering::Release);
    }

    pub(super) fn look_for_what_is_behind(&self) {
        if self.behind.swap(false, Ordering::AcqRel) {
            self.look.store(true, Ordering::Release);
        }
    }

    /// Whether it is time to look for messages that nobody told of.
    pub(super) fn sweeps(&self, now: Timestamp) -> bool {
        let look = self.look.swap(false, Ordering::AcqRel);
        let mut swept_at = self.swept_at.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back is no reason to wait for it.
        let due = swept_at.is_none_or(|at| now.duration_since(at).abs() >= self.sweep);
        if due {
            *swept_at = Some(now);
        }
        look || due
    }

    /// Takes in words as they come, each with a ring, until stopped. What is broken is built again.
    pub(super) async fn listen(
        &self,
        subscription: &Subscription,
        rung: impl Fn(),
        stop: &CancellationToken,
    ) {
        let consumer = subscription.consumer;
        let listening = async {
            loop {
                match self.broker.listen(consumer, subscription.subjects).await {
                    Ok(mut words) => {
                        while let Some(word) = words.next().await {
                            // Never closed: the other end is here.
                            let _ = self.coming.send(word).await;
                            rung();
                        }
                        tracing::warn!(consumer, "the broker's line is broken");
                    }
                    Err(error) => {
                        let error = chain(&error);
                        tracing::warn!(consumer, error, "the broker can't be listened to");
                    }
                }
                let _ = tokio::time::timeout(BROKEN, std::future::pending::<()>()).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = listening => {}
        }
    }
}
