//! Streams of events that stay open: who has one, how many they may have, and that whoever may no longer watch is let go.
//! An open stream costs a waiter and a timer: whether they may still watch, and whether a ring was lost, is asked for all
//! of them at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::HeaderValue;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Response};
use control::Ctx;
use control::allocation::stream::{self, Cursor, Next, Told, still_allowed};
use control::notification::view;
use futures::stream::unfold;
use spine::wake::Waiter;
use store::Ring;
use store::views::events::{Reached, Watcher};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::http::allocations::AllocationStatus;
use wire::http::notifications::Notification;
use wire::http::timeline::StreamEnd;
use wire::problem::ProblemCode;

use super::Front;
use super::problem::Refusal;
use crate::{Ending, Limits};

/// What a client whose connection breaks waits before it comes back.
const RETRY: std::time::Duration = std::time::Duration::from_secs(1);
/// Every so many beats it is looked whether a ring was lost.
const SWEEP_BEATS: u32 = 4;
/// What an event is called that is a notification.
const NOTIFICATION: &str = "notification";
/// When to ask again for a stream that there is no room for.
const FULL_RETRY_SECONDS: u64 = 15;

/// See the module.
#[derive(Debug, Default)]
pub struct Streams {
    open: Mutex<Open>,
    closing: CancellationToken,
}

#[derive(Debug, Default)]
struct Open {
    last: u64,
    watchers: HashMap<u64, (Watcher, CancellationToken)>,
    of_user: HashMap<Uuid, usize>,
}

impl Streams {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.open().watchers.len()
    }

    /// A seat for somebody who may watch.
    ///
    /// # Errors
    /// A problem when they have too many already, or there are too many in all.
    pub fn take(self: &Arc<Self>, watcher: Watcher, limits: &Limits) -> Result<Seat, Refusal> {
        let mut open = self.open();
        let theirs = open.of_user.get(&watcher.user).copied().unwrap_or(0);
        if theirs >= limits.streams_per_user_max {
            let detail = format!("You have {theirs} streams open. Close one, or wait.");
            let refusal = Refusal::new(ProblemCode::TooManyRequests, detail);
            return Err(refusal.retry_after(FULL_RETRY_SECONDS));
        }
        if open.watchers.len() >= limits.streams_open_max {
            let refusal = Refusal::new(ProblemCode::Unavailable, "Too many streams are open.");
            return Err(refusal.retry_after(FULL_RETRY_SECONDS));
        }
        open.last += 1;
        let (number, gone) = (open.last, self.closing.child_token());
        open.watchers.insert(number, (watcher, gone.clone()));
        *open.of_user.entry(watcher.user).or_default() += 1;
        metrics::gauge!("berth_streams_open").set(open.watchers.len() as f64);
        drop(open);
        Ok(Seat { streams: Arc::clone(self), number, user: watcher.user, gone })
    }

    /// Lets go whoever may no longer watch, every beat, until the server ends; then everybody, who go on elsewhere with the last
    /// they have seen.
    pub async fn run(&self, ctx: &Ctx, limits: &Limits, ending: &Ending) {
        let (mut beats, mut known) = (0_u32, Known::default());
        while timeout(limits.stream_beat, ending.draining()).await.is_err() {
            self.step(ctx).await;
            beats = beats.wrapping_add(1);
            if beats.is_multiple_of(SWEEP_BEATS) {
                self.sweep(ctx, &mut known).await;
            }
        }
        self.closing.cancel();
    }

    /// Rings for what has got further since the last time, in case nobody has: whoever has heard of it finds nothing new. What
    /// is seen for the first time is rung for too, because a ring may have been lost before.
    async fn sweep(&self, ctx: &Ctx, known: &mut Known) {
        let (mut allocations, mut users) = (HashSet::new(), HashSet::new());
        for (watcher, _) in self.open().watchers.values() {
            match watcher.allocation() {
                Some(id) => allocations.insert(id),
                None => users.insert(watcher.user),
            };
        }
        let swept = known.allocations.sweep(ctx, &allocations).await;
        let swept = match swept {
            Ok(()) => known.users.sweep(ctx, &users).await,
            Err(error) => Err(error),
        };
        match swept {
            Ok(()) => {}
            // The next sweep finds it.
            Err(error) if store::fall::noticed(&error) => {}
            Err(error) => tracing::warn!(cause = error.chain(), "streams could not be swept"),
        }
    }

    async fn step(&self, ctx: &Ctx) {
        let open: Vec<(Watcher, CancellationToken)> =
            self.open().watchers.values().cloned().collect();
        if open.is_empty() {
            return;
        }
        let watchers: Vec<Watcher> = open.iter().map(|(watcher, _)| *watcher).collect();
        match still_allowed(ctx, &watchers).await {
            Ok(allowed) => {
                let allowed: HashSet<usize> = allowed.into_iter().collect();
                let gone = open.iter().enumerate().filter(|(place, _)| !allowed.contains(place));
                gone.for_each(|(_, (_, gone))| gone.cancel());
            }
            // Nothing can be read either, so nothing is told to anybody.
            Err(error) if store::fall::noticed(&error) => {}
            Err(error) => tracing::warn!(cause = error.chain(), "streams could not be checked"),
        }
    }
}

/// How far everything that is watched had got at the last sweep.
#[derive(Default)]
struct Known {
    allocations: Far<Reached>,
    users: Far<i64>,
}

/// How far each of one sort has got.
struct Far<R>(HashMap<Uuid, R>);

impl<R> Default for Far<R> {
    fn default() -> Self {
        Far(HashMap::new())
    }
}

impl<R: Copy + PartialEq> Far<R> {
    /// Forgets what nobody watches; what is watched, if anything is.
    fn only(&mut self, watched: &HashSet<Uuid>) -> Option<Vec<Uuid>> {
        self.0.retain(|id, _| watched.contains(id));
        (!watched.is_empty()).then(|| watched.iter().copied().collect())
    }

    /// Those of these that have got further.
    fn further(&mut self, reached: Vec<(Uuid, R)>) -> Vec<Uuid> {
        let moved = reached.into_iter().filter(|(id, at)| self.0.insert(*id, *at) != Some(*at));
        moved.map(|(id, _)| id).collect()
    }
}

impl Far<Reached> {
    async fn sweep(&mut self, ctx: &Ctx, watched: &HashSet<Uuid>) -> Result<(), control::Error> {
        if let Some(watched) = self.only(watched) {
            let moved = self.further(stream::reached(ctx, &watched).await?);
            moved.into_iter().for_each(|id| ctx.wake.ring_here(&Ring::Allocation(id)));
        }
        Ok(())
    }
}

impl Far<i64> {
    async fn sweep(&mut self, ctx: &Ctx, watched: &HashSet<Uuid>) -> Result<(), control::Error> {
        if let Some(watched) = self.only(watched) {
            let moved = self.further(view::reached(ctx, &watched).await?);
            moved.into_iter().for_each(|id| ctx.wake.ring_here(&Ring::User(id)));
        }
        Ok(())
    }
}

/// The place of one stream. It is free again when this is dropped.
#[derive(Debug)]
pub struct Seat {
    streams: Arc<Streams>,
    number: u64,
    user: Uuid,
    gone: CancellationToken,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        open.watchers.remove(&self.number);
        if let Some(theirs) = open.of_user.get_mut(&self.user) {
            *theirs -= 1;
            if *theirs == 0 {
                open.of_user.remove(&self.user);
            }
        }
        metrics::gauge!("berth_streams_open").set(open.watchers.len() as f64);
    }
}

/// Where a stream comes from, and how far it was told.
pub enum Source {
    /// What happens to an allocation.
    Allocation(Uuid, Cursor),
    /// What somebody is told.
    Notifications {
        /// Who.
        user: Uuid,
        /// The number of the last that was told.
        after: i64,
    },
}

/// What is read of it.
enum Read {
    Events(VecDeque<Event>),
    Nothing,
    /// This is the last that there is.
    Over(Option<Event>),
}

impl Source {
    fn ring(&self) -> Ring {
        match self {
            Source::Allocation(id, _) => Ring::Allocation(*id),
            Source::Notifications { user, .. } => Ring::User(*user),
        }
    }

    /// What a stream begins with. Who is told from now on has a place to come back to before there is anything to tell.
    fn opening(&self) -> Event {
        let open = Event::default().retry(RETRY).comment("open");
        match self {
            Source::Allocation(..) => open,
            Source::Notifications { after, .. } => open.id(after.to_string()),
        }
    }

    async fn read(&mut self, ctx: &Ctx) -> Result<Read, control::Error> {
        match self {
            Source::Allocation(_, cursor) => Ok(match stream::next(ctx, cursor).await? {
                Next::Events(told) => Read::Events(told.iter().filter_map(written).collect()),
                Next::Nothing => Read::Nothing,
                Next::Over(status) => Read::Over(ended(status)),
            }),
            Source::Notifications { user, after } => {
                let told = view::after(ctx, *user, *after).await?;
                let Some(last) = told.last() else {
                    return Ok(Read::Nothing);
                };
                *after = last.number;
                Ok(Read::Events(told.iter().filter_map(notification).collect()))
            }
        }
    }
}

/// One stream. Nothing runs ahead of its reader: the next piece is read when the last one was taken.
struct Stream {
    front: Front,
    seat: Seat,
    source: Source,
    /// Got before the first look, so that nothing that happens in between is missed.
    bell: Waiter,
    /// What is read and not yet taken.
    read: VecDeque<Event>,
    begun: bool,
    over: bool,
    /// Whether there may be something to read.
    due: bool,
}

/// The answer that is a stream of what comes from `source`.
pub fn answer(front: Front, seat: Seat, source: Source) -> Response {
    let bell = front.ctx.wake.on(source.ring());
    let read = VecDeque::new();
    let (begun, over, due) = (false, false, true);
    let stream = Stream { front, seat, source, bell, read, begun, over, due };
    let events = unfold(stream, async |mut stream| {
        let event = stream.next().await?;
        Some((Ok::<Event, Infallible>(event), stream))
    });
    let mut answer = Sse::new(events).into_response();
    // A proxy that collects an answer before it passes it on would hold back everything.
    answer.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}

impl Stream {
    async fn next(&mut self) -> Option<Event> {
        if !self.begun {
            self.begun = true;
            return Some(self.source.opening());
        }
        loop {
            if self.over || self.seat.gone.is_cancelled() {
                return None;
            }
            if let Some(event) = self.read.pop_front() {
                return Some(event);
            }
            if !self.due {
                if self.rings().await {
                    continue;
                }
                return Some(Event::default().comment("still here"));
            }
            match self.source.read(&self.front.ctx).await {
                Ok(Read::Events(events)) => self.read = events,
                Ok(Read::Over(last)) => {
                    self.over = true;
                    return last;
                }
                Ok(Read::Nothing) => self.due = false,
                // The client comes back with what it has seen, and is told why if it still can't be.
                Err(error) => {
                    if !store::fall::noticed(&error) {
                        tracing::warn!(cause = error.chain(), "a stream was ended");
                    }
                    return None;
                }
            }
        }
    }

    /// Waits for something to happen: a ring, or that it is let go. False when a beat went by and it is time for a sign of
    /// life.
    async fn rings(&mut self) -> bool {
        let beat = self.front.limits.stream_beat;
        let waited = timeout(beat, async {
            tokio::select! {
                () = self.bell.notified() => {}
                () = self.seat.gone.cancelled() => {}
            }
        });
        self.due = waited.await.is_ok();
        self.due
    }
}

fn written(told: &Told) -> Option<Event> {
    let kind = told.event.kind.to_string();
    Event::default().id(&told.id).event(kind).json_data(&told.event).ok()
}

fn ended(status: AllocationStatus) -> Option<Event> {
    Event::default().event("end").json_data(StreamEnd { status }).ok()
}

fn notification(told: &Notification) -> Option<Event> {
    Event::default().id(told.number.to_string()).event(NOTIFICATION).json_data(told).ok()
}
