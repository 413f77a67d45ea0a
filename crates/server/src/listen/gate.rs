//! How many requests are let in at a time: as many as are answered soon, which is found out as they come. Who is not let in is turned
//! away before anything but the head is read, in words that were put together before. A few are told so at once, many at a pace:
//! else who asks again as soon as they are refused takes the time of those inside.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use lifecycle::Code as _;
use metrics::{Counter, Gauge};
use uuid::Uuid;
use wire::problem::{Problem, ProblemCode};

use crate::Limits;
use crate::http::frame::{REQUEST_ID, WATCHED, name_of};
use crate::http::problem::MEDIA_TYPE;

/// For how long requests are watched before more or fewer are let in.
const STRETCH: Duration = Duration::from_millis(100);

/// Over how many seconds those who are turned away are spread: told the same second, they would all be back in it.
const SPREAD: [&str; 5] = ["1", "2", "3", "4", "5"];

/// How often at the most the log says that some are turned away.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// See the module.
pub struct Gate {
    tide: Mutex<Tide>,
    words: Words,
    /// How many were turned away.
    shed: AtomicU64,
    refused: Counter,
    turned_away: Counter,
    places: Gauge,
}

impl Gate {
    /// Nobody has come yet, and as many are let in as may be.
    pub fn new(limits: &Limits) -> Arc<Gate> {
        let code = ProblemCode::Unavailable.code();
        let gate = Gate {
            tide: Mutex::new(Tide::new(limits)),
            words: Words::new(),
            shed: AtomicU64::new(0),
            refused: metrics::counter!("berth_http_refusals_total", "code" => code),
            turned_away: metrics::counter!("berth_http_turned_away_total"),
            places: metrics::gauge!("berth_http_places"),
        };
        gate.places.set(limits.in_flight_max as f64);
        Arc::new(gate)
    }

    /// A place for a request; none for one that needs none.
    ///
    /// # Errors
    /// When as many are inside as are let in.
    pub(super) fn admit<B>(
        self: &Arc<Self>,
        request: &Request<B>,
    ) -> Result<Option<Place>, TurnedAway> {
        if is_let_in(request.method(), request.uri().path()) {
            return Ok(None);
        }
        let since = now();
        match self.tide().enter(since) {
            Ok(()) => Ok(Some(Place { gate: Arc::clone(self), since, answered: false })),
            Err(told_in) => {
                let (gate, name) = (Arc::clone(self), name_of(request.headers()));
                Err(TurnedAway { gate, name, told_in })
            }
        }
    }

    /// What is behind the lock is whole after every statement, so a panic elsewhere spoils nothing.
    fn tide(&self) -> MutexGuard<'_, Tide> {
        self.tide.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self, soon: Soon) {
        let ended = self.tide().leave(soon, now());
        let Some(Ended { limit, turned_away }) = ended else { return };
        self.places.set(limit as f64);
        if let Some(turned_away) = turned_away {
            tracing::warn!(
                turned_away,
                limit,
                "more come than can be served: some are turned away"
            );
        }
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("tide", &*self.tide()).finish_non_exhaustive()
    }
}

/// What watches the process is let in when it is busiest. So is who opens a stream, because there are limits for them alone, and
/// browsers that are refused a stream never ask again.
fn is_let_in(method: &Method, path: &str) -> bool {
    WATCHED.contains(&path) || (method == Method::GET && is_stream(path))
}

/// What payments have told of is a list.
fn is_stream(path: &str) -> bool {
    path.ends_with("/events") && !path.ends_with("/payments/events")
}

/// A place among the requests that run.
#[derive(Debug)]
pub(super) struct Place {
    gate: Arc<Gate>,
    since: Instant,
    answered: bool,
}

impl Place {
    /// There is an answer; a stream that goes on has no place any more.
    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Whoever hung up may have done so for the wait.
        let soon = if self.answered { Soon::After(self.since.elapsed()) } else { Soon::Never };
        self.gate.left(soon);
    }
}

/// A request that finds no place. It is held until it is its turn to be told so, and leaves the line when it is dropped.
#[derive(Debug)]
pub(super) struct TurnedAway {
    gate: Arc<Gate>,
    name: Uuid,
    /// How long it waits for its turn.
    pub(super) told_in: Duration,
}

impl TurnedAway {
    /// What it is answered with.
    pub(super) fn told(self) -> Response<Body> {
        let gate = &self.gate;
        gate.refused.increment(1);
        gate.turned_away.increment(1);
        // One after the other gets the next second: as even as chance, and cheaper.
        let turn = gate.shed.fetch_add(1, Ordering::Relaxed) as usize % SPREAD.len();
        gate.words.told(self.name, turn)
    }
}

impl Drop for TurnedAway {
    fn drop(&mut self) {
        if !self.told_in.is_zero() {
            self.gate.tide().held -= 1;
        }
    }
}

/// How soon there was an answer.
#[derive(Clone, Copy, Debug)]
enum Soon {
    After(Duration),
    Never,
}

/// What came of a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    limit: usize,
    /// How many were turned away, when that is to be said.
    turned_away: Option<u64>,
}

/// How many are inside, and how many may be. If most of a stretch are not answered soon, there were too many of them; if most are
/// and there was no room for more, there is for a few.
#[derive(Debug)]
struct Tide {
    soon: Duration,
    least: usize,
    most: usize,
    limit: usize,
    inside: usize,
    /// Of this stretch: when it began, how many were inside at most, how many were answered soon and how many not.
    since: Instant,
    peak: usize,
    quick: usize,
    slow: usize,
    /// How many were turned away since the log has said so, and when that was.
    turned_away: u64,
    told: Option<Instant>,
    line: Line,
    /// How many of those who are turned away wait to be told so.
    held: usize,
}

/// The turns of those who are turned away.
#[derive(Debug)]
struct Line {
    /// When it is the next one's turn, how long after the one before, and how far ahead at most.
    next: Instant,
    every: Duration,
    longest: Duration,
    /// How many may wait.
    most: usize,
}

impl Line {
    fn new(limits: &Limits) -> Line {
        Line {
            next: now(),
            every: Duration::from_secs(1) / limits.refusals_per_second.get(),
            longest: limits.refusal_held,
            most: limits.connections_max,
        }
    }

    /// How long the next one waits.
    fn stand(&mut self, now: Instant) -> Duration {
        let turn = self.next.max(now);
        self.next = (turn + self.every).min(now + self.longest);
        turn.saturating_duration_since(now)
    }
}

impl Tide {
    fn new(limits: &Limits) -> Tide {
        let most = limits.in_flight_max;
        Tide {
            soon: limits.soon,
            least: limits.in_flight_min.min(most),
            most,
            limit: most,
            inside: 0,
            since: now(),
            peak: 0,
            quick: 0,
            slow: 0,
            turned_away: 0,
            told: None,
            line: Line::new(limits),
            held: 0,
        }
    }

    /// Whether there is a place; if not, after how long to say so.
    fn enter(&mut self, now: Instant) -> Result<(), Duration> {
        if self.inside < self.limit {
            self.inside += 1;
            self.peak = self.peak.max(self.inside);
            return Ok(());
        }
        self.turned_away += 1;
        // Who waits takes memory. More than may be connected do so only where each connection asks for much at once.
        if self.held >= self.line.most {
            return Err(Duration::ZERO);
        }
        let told_in = self.line.stand(now);
        self.held += usize::from(!told_in.is_zero());
        Err(told_in)
    }

    fn leave(&mut self, soon: Soon, now: Instant) -> Option<Ended> {
        self.inside = self.inside.saturating_sub(1);
        match soon {
            Soon::After(took) if took <= self.soon => self.quick += 1,
            Soon::After(_) | Soon::Never => self.slow += 1,
        }
        (now.saturating_duration_since(self.since) >= STRETCH).then(|| self.turn(now))
    }

    /// Ends a stretch.
    fn turn(&mut self, now: Instant) -> Ended {
        if self.slow > self.quick {
            // A few that take their time are no crowd.
            if self.peak > self.least {
                self.limit = (self.peak.min(self.limit) * 3 / 4).max(self.least);
            }
        } else if self.peak >= self.limit {
            self.limit = (self.limit * 9 / 8 + 1).min(self.most);
        }
        (self.since, self.peak, self.quick, self.slow) = (now, self.inside, 0, 0);
        let long_ago = |told: Instant| now.saturating_duration_since(told) >= TOLD_EVERY;
        let tell = self.turned_away > 0 && self.told.is_none_or(long_ago);
        let turned_away = tell.then(|| {
            self.told = Some(now);
            std::mem::take(&mut self.turned_away)
        });
        Ended { limit: self.limit, turned_away }
    }
}

/// What those are told who are turned away: all but the request's id is there before they come.
struct Words {
    heads: [HeaderMap; SPREAD.len()],
    before_id: Bytes,
    after_id: Bytes,
}

impl Words {
    fn new() -> Words {
        let mut problem = Problem::new(ProblemCode::Unavailable, "Too many requests are running.");
        problem.request_id = Some(Uuid::nil());
        // A problem is text and numbers, which JSON can always say.
        let text = serde_json::to_string(&problem).unwrap_or_default();
        let (before, after) = text.split_once(&Uuid::nil().to_string()).unwrap_or_default();
        let heads = SPREAD.map(|seconds| {
            HeaderMap::from_iter([
                (CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE)),
                (RETRY_AFTER, HeaderValue::from_static(seconds)),
                (CACHE_CONTROL, HeaderValue::from_static("no-store")),
                (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
                (REQUEST_ID, HeaderValue::from_static("")),
            ])
        });
        let (before_id, after_id) = (before.to_owned().into(), after.to_owned().into());
        Words { heads, before_id, after_id }
    }

    fn told(&self, request_id: Uuid, turn: usize) -> Response<Body> {
        let mut letters = [0; uuid::fmt::Hyphenated::LENGTH];
        let id: &str = request_id.hyphenated().encode_lower(&mut letters);
        let text = [&self.before_id, id.as_bytes(), &self.after_id].concat();
        let mut answer = Response::new(Body::from(text));
        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        *answer.headers_mut() = self.heads.get(turn).cloned().unwrap_or_default();
        // An id is hexadecimal digits and hyphens.
        if let Ok(id) = HeaderValue::from_str(id) {
            answer.headers_mut().insert(REQUEST_ID, id);
        }
        answer
    }
}

#[expect(clippy::disallowed_methods, reason = "a duration is measured: how long an answer took")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::Method;

    use super::{STRETCH, Soon, Tide, is_let_in, now};
    use crate::Limits;

    const QUICK: Soon = Soon::After(Duration::from_millis(1));
    const SLOW: Soon = Soon::After(Duration::from_secs(3));

    fn tide(in_flight_min: usize, in_flight_max: usize) -> Tide {
        Tide::new(&Limits { in_flight_min, in_flight_max, ..Limits::default() })
    }

    /// So many come at once, as many as there is room for go in, and all of them are answered; so many stretches long.
    fn crowd(tide: &mut Tide, count: usize, soon: Soon, stretches: u32) -> usize {
        let mut inside = 0;
        for _ in 0..stretches {
            inside = (0..count).filter(|_| tide.enter(now()).is_ok()).count();
            let over = tide.since + STRETCH;
            for left in (0..inside).rev() {
                let ended = tide.leave(soon, if left == 0 { over } else { tide.since });
                assert_eq!(ended.is_some(), left == 0);
            }
        }
        inside
    }

    #[test]
    fn as_long_as_answers_come_soon_as_many_are_let_in_as_may_be() {
        let mut tide = tide(8, 100);
        assert_eq!(crowd(&mut tide, 1_000, QUICK, 10), 100);
    }

    #[test]
    fn when_most_wait_for_long_fewer_are_let_in_and_never_too_few() {
        let mut tide = tide(8, 100);
        assert_eq!(crowd(&mut tide, 1_000, SLOW, 2), 75);
        assert_eq!(crowd(&mut tide, 1_000, SLOW, 30), 8);
        assert_eq!(crowd(&mut tide, 1_000, Soon::Never, 3), 8);
    }

    #[test]
    fn when_answers_come_soon_again_more_are_let_in_again() {
        let mut tide = tide(8, 100);
        crowd(&mut tide, 1_000, SLOW, 30);
        assert_eq!(crowd(&mut tide, 1_000, QUICK, 30), 100);
    }

    #[test]
    fn a_few_that_take_their_time_close_the_gate_to_nobody() {
        let mut tide = tide(8, 100);
        crowd(&mut tide, 8, SLOW, 50);
        assert_eq!(crowd(&mut tide, 1_000, QUICK, 1), 100);
    }

    #[test]
    fn that_some_are_turned_away_is_said_now_and_then_with_how_many() {
        let mut tide = tide(1, 1);
        let began = now();
        let mut said = Vec::new();
        for second in 1..=12 {
            assert!(tide.enter(began).is_ok());
            assert!(tide.enter(began).is_err() && tide.enter(began).is_err());
            let ended = tide.leave(QUICK, began + Duration::from_secs(second));
            said.extend(ended.expect("a stretch is over").turned_away);
        }
        assert_eq!(said, [2, 20]);
    }

    #[test]
    fn a_few_are_turned_away_at_once_and_many_at_a_pace_that_ends() {
        let mut tide = tide(0, 0);
        let (began, every) = (tide.line.next, tide.line.every);
        let told_in = |tide: &mut Tide, at| tide.enter(at).expect_err("there is no place");
        for turn in 0..10 {
            assert_eq!(told_in(&mut tide, began + every * turn), Duration::ZERO);
        }
        let at = began + every * 9;
        let waits: Vec<Duration> = (0..5_000).map(|_| told_in(&mut tide, at)).collect();
        assert_eq!(waits[..3], [every, every * 2, every * 3]);
        assert_eq!(waits.last(), Some(&Limits::default().refusal_held), "nobody waits for longer");
        assert_eq!(told_in(&mut tide, at + Duration::from_secs(2)), Duration::ZERO, "it is over");
    }

    #[test]
    fn no_more_wait_to_be_turned_away_than_may_be_connected() {
        let limits = Limits { in_flight_max: 0, connections_max: 3, ..Limits::default() };
        let (mut tide, at) = (Tide::new(&limits), now() + Duration::from_secs(1));
        let waits = (0..20).filter_map(|_| tide.enter(at).err()).filter(|wait| !wait.is_zero());
        assert_eq!(waits.count(), 3);
    }

    #[test]
    fn what_watches_and_what_is_watched_for_long_needs_no_place() {
        for path in ["/healthz", "/readyz", "/metrics", "/api/v1/events"] {
            assert!(is_let_in(&Method::GET, path), "{path}");
        }
        assert!(!is_let_in(&Method::GET, "/api/v1/allocations"));
        assert!(!is_let_in(&Method::GET, "/api/v1/admin/payments/events"));
        assert!(!is_let_in(&Method::POST, "/api/v1/events"));
    }
}
