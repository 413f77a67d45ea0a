//! What surrounds every request of a listener: its id, its time, its line in the log, the headers of every answer, and
//! that nothing inside can make it end without an answer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use futures::FutureExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tracing::{Instrument as _, Span};
use uuid::Uuid;
use wire::problem::ProblemCode;

use super::later::{later, taken};
use super::problem::{Refusal, finish};
use crate::Limits;
use crate::telemetry::{Seen, Stopwatch};

/// What watches the process is let in when it is busiest: that is when it must be seen.
pub(crate) const WATCHED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Over how many seconds those who are turned away are spread: told the same second, they would all be back in it.
const SHED_SPREAD_SECONDS: u64 = 5;

/// Names a request, in and out.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The identity of a request. Every request inside a frame carries it in its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId(pub Uuid);

struct Frame {
    head_bytes_max: usize,
    whole: Option<Duration>,
    places: Arc<Semaphore>,
    /// How many were turned away.
    shed: AtomicU64,
}

/// Puts a frame around `router`. With `whole`, a request that takes longer is given up; long polls have none.
pub fn around(router: Router, limits: &Limits, whole: Option<Duration>) -> Router {
    let places = Arc::new(Semaphore::new(limits.in_flight_max));
    let head_bytes_max = limits.head_bytes_max as usize;
    let frame = Arc::new(Frame { head_bytes_max, whole, places, shed: AtomicU64::new(0) });
    router
        .fallback(async || Refusal::new(ProblemCode::NotFound, "There is nothing at this path."))
        .method_not_allowed_fallback(async || {
            Refusal::new(ProblemCode::MethodNotAllowed, "This path does not know this method.")
        })
        .layer(from_fn_with_state(frame, surround))
}

async fn surround(State(frame): State<Arc<Frame>>, mut request: Request, next: Next) -> Response {
    let id = name_of(request.headers());
    request.extensions_mut().insert(RequestId(id));
    let path = request.extensions().get::<MatchedPath>().cloned();
    let seen = Seen { method: request.method().clone(), path, request_id: id };
    let watch = Stopwatch::start();
    let span = seen.span(&request);
    let framed = Framed { seen, watch, span };
    let place = match frame.admit(&request) {
        Ok(place) => place,
        Err(refusal) => return framed.close(refusal.into_response()),
    };
    let mut answer =
        frame.run(next.run(request), frame.whole).instrument(framed.span.clone()).await;
    let Some(answer_later) = taken(&mut answer) else { return framed.close(answer) };
    later(async move {
        let left = frame.whole.map(|whole| whole.saturating_sub(framed.watch.elapsed()));
        let answer = frame.run(answer_later, left).instrument(framed.span.clone()).await;
        drop(place);
        framed.close(answer)
    })
}

/// A request inside a frame.
struct Framed {
    seen: Seen,
    watch: Stopwatch,
    span: Span,
}

impl Framed {
    /// What every answer has, and what is told of it.
    fn close(self, answer: Response) -> Response {
        let Framed { seen, watch, span } = self;
        let mut answer = finish(answer, seen.request_id);
        let headers = answer.headers_mut();
        // An id is hexadecimal digits and hyphens.
        if let Ok(id) = HeaderValue::from_str(&seen.request_id.to_string()) {
            headers.insert(REQUEST_ID, id);
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        seen.answered(answer.status(), watch.elapsed(), &span);
        answer
    }
}

impl Frame {
    /// A place among the requests that run, for one that is not too large.
    fn admit(&self, request: &Request) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        let line = request.uri().path().len() + request.uri().query().map_or(0, str::len);
        let headers = request.headers().iter().map(|(name, value)| {
            // As HTTP/2 counts them.
            name.as_str().len() + value.len() + 32
        });
        if line + headers.sum::<usize>() > self.head_bytes_max {
            let detail = format!("The head may have {} bytes.", self.head_bytes_max);
            return Err(Refusal::new(ProblemCode::HeadersTooLarge, detail));
        }
        if WATCHED.contains(&request.uri().path()) {
            return Ok(None);
        }
        Arc::clone(&self.places).try_acquire_owned().map(Some).map_err(|_| {
            // One after the other gets the next second: as even as chance, and cheaper.
            let turn = self.shed.fetch_add(1, Ordering::Relaxed) % SHED_SPREAD_SECONDS;
            Refusal::new(ProblemCode::Unavailable, "Too many requests are running.")
                .retry_after(1 + turn)
        })
    }

    /// An answer in any case, and by then.
    async fn run(
        &self,
        answer: impl Future<Output = Response>,
        within: Option<Duration>,
    ) -> Response {
        let run = AssertUnwindSafe(answer).catch_unwind();
        let ended = match within {
            Some(within) => timeout(within, run).await.ok(),
            None => Some(run.await),
        };
        match ended {
            Some(Ok(answer)) => answer,
            Some(Err(panic)) => {
                Refusal::fault(format!("panicked: {}", said(&*panic))).into_response()
            }
            None => Refusal::new(
                ProblemCode::Unavailable,
                "It took too long. Whether anything was changed is not certain.",
            )
            .retry_after(1)
            .into_response(),
        }
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("something else")
}

/// What the caller calls the request, if that is an id; one of ours otherwise.
pub(crate) fn name_of(headers: &HeaderMap) -> Uuid {
    let given = headers.get(&REQUEST_ID).and_then(|text| text.to_str().ok()?.parse().ok());
    given.unwrap_or_else(mint)
}

#[expect(clippy::disallowed_methods, reason = "a request has an id before there is a transaction")]
fn mint() -> Uuid {
    Uuid::now_v7()
}
