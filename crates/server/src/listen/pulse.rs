//! Whether a connection has a request in hand, waits for the rest of a head, or rests; and for how long it may.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use http_body_util::BodyExt as _;
use hyper::Version;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::rest;
use crate::Limits;

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Some of a head has arrived, or it has only just been opened.
    Head,
    /// So many requests are being answered.
    Busy(usize),
    /// It waits for the next request.
    Idle,
}

/// Why a connection has been open for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outstayed {
    /// The rest of a head did not come.
    Head,
    /// Nothing came.
    Idle,
}

#[derive(Debug)]
struct Now {
    phase: Phase,
    since: Instant,
    /// On HTTP/2 bytes come and go without a request, so they say nothing.
    streams: bool,
}

impl Now {
    fn enter(&mut self, phase: Phase) {
        (self.phase, self.since) = (phase, now());
    }
}

#[expect(clippy::disallowed_methods, reason = "a duration is measured: how long a phase lasts")]
fn now() -> Instant {
    Instant::now()
}

/// The pulse of one connection. A change of phase wakes nobody: who watches looks again in time.
#[derive(Debug)]
pub(super) struct Pulse {
    now: Mutex<Now>,
    /// For whoever waits for a request alone.
    requested: Notify,
}

impl Pulse {
    /// Of a connection that was just opened.
    pub(super) fn new() -> Pulse {
        let now = Now { phase: Phase::Head, since: now(), streams: false };
        Pulse { now: Mutex::new(now), requested: Notify::new() }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes have arrived.
    pub(super) fn bytes(&self) {
        let mut now = self.now();
        if now.phase == Phase::Idle && !now.streams {
            now.enter(Phase::Head);
        }
    }

    /// The head of a request is there. It is being answered until what comes back is dropped.
    pub(super) fn request(self: &Arc<Self>, version: Version) -> Held {
        let mut now = self.now();
        now.streams |= version == Version::HTTP_2;
        let phase = match now.phase {
            Phase::Head | Phase::Idle => Phase::Busy(1),
            Phase::Busy(requests) => Phase::Busy(requests + 1),
        };
        now.enter(phase);
        self.requested.notify_one();
        Held(Arc::clone(self))
    }

    fn answered(&self) {
        let mut now = self.now();
        let phase = match now.phase {
            Phase::Busy(requests) if requests > 1 => Phase::Busy(requests - 1),
            Phase::Head | Phase::Busy(_) | Phase::Idle => Phase::Idle,
        };
        now.enter(phase);
    }

    /// Whether it speaks HTTP/2, as far as is known.
    pub(super) fn streams(&self) -> bool {
        self.now().streams
    }

    /// Ends when no request is on its way in: at once, unless the connection is fresh or a head has begun to arrive.
    pub(super) async fn head_is_in(&self) {
        while self.now().phase == Phase::Head {
            self.requested.notified().await;
        }
    }

    /// Ends when the connection has been in one phase for longer than it may. Every change of phase begins anew. It is looked
    /// at again before any phase that has begun meanwhile can be over, so that nobody has to ring for a change.
    pub(super) async fn outstayed(&self, limits: &Limits) -> Outstayed {
        let soonest = limits.head.min(limits.idle);
        loop {
            let (phase, lasted) = {
                let now = self.now();
                (now.phase, now.since.elapsed())
            };
            let left = match phase {
                Phase::Head => limits.head.checked_sub(lasted).ok_or(Outstayed::Head),
                Phase::Idle => limits.idle.checked_sub(lasted).ok_or(Outstayed::Idle),
                Phase::Busy(_) => Ok(soonest),
            };
            match left {
                Ok(left) => rest(left.min(soonest)).await,
                Err(outstayed) => return outstayed,
            }
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct Held(Arc<Pulse>);

impl Held {
    /// Keeps the request in hand until the whole answer has been taken: what would map the body's errors lives as long as
    /// the body does.
    pub(super) fn until_sent(self, body: Body) -> Body {
        Body::new(body.map_err(move |error| {
            let _held = &self;
            error
        }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.answered();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hyper::Version;

    use super::{Phase, Pulse};

    #[test]
    fn a_connection_rests_only_when_its_last_answer_is_sent() {
        let pulse = Arc::new(Pulse::new());
        let one = pulse.request(Version::HTTP_2);
        let two = pulse.request(Version::HTTP_2);
        drop(one);
        assert_eq!(pulse.now().phase, Phase::Busy(1));
        drop(two);
        assert_eq!(pulse.now().phase, Phase::Idle);
    }

    #[test]
    fn a_request_is_in_hand_until_its_answer_is_taken() {
        let pulse = Arc::new(Pulse::new());
        let answer = pulse.request(Version::HTTP_11).until_sent("told".into());
        assert_eq!(pulse.now().phase, Phase::Busy(1));
        assert_eq!(hyper::body::Body::size_hint(&answer).exact(), Some(4));
        drop(answer);
        assert_eq!(pulse.now().phase, Phase::Idle);
    }

    #[test]
    fn bytes_are_the_beginning_of_a_head_on_http_1_alone() {
        let pulse = Arc::new(Pulse::new());
        drop(pulse.request(Version::HTTP_11));
        pulse.bytes();
        assert_eq!(pulse.now().phase, Phase::Head);
        drop(pulse.request(Version::HTTP_2));
        pulse.bytes();
        assert_eq!(pulse.now().phase, Phase::Idle);
    }
}
