//! The accept loop of every listener, plain or TLS. A slow client costs a connection and nothing else: handshakes, heads,
//! rests and stalls all end by themselves. Stopping is bounded, and loses no request that was sent before.

mod gate;
mod pulse;
mod stream;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, HeaderValue};
use axum::response::Response;
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use hyper::Version;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::ServiceExt as _;

use crate::http::later;
use crate::{Ending, Limits};
pub use gate::Gate;
use gate::Place;
use pulse::{Outstayed, Pulse};
use stream::Stream;

/// How long somebody who was let in at the last moment may take to say what they want.
const FIRST_WORD: Duration = Duration::from_secs(1);

/// Where a request came from. Every request carries it in its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote(pub SocketAddr);

/// Turns a TCP connection into one that speaks HTTP, and says who is at its other end.
pub trait Accept: Clone + Send + Sync + 'static {
    /// What HTTP is spoken on.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// What is known of the other end; every request carries it in its extensions.
    type Peer: Clone + Send + Sync + 'static;

    /// Runs in the connection's own task and is cut off after [`Limits::handshake`].
    fn accept(
        &self,
        stream: TcpStream,
        from: SocketAddr,
    ) -> impl Future<Output = io::Result<(Self::Io, Self::Peer)>> + Send;
}

/// No handshake, and nothing known but the address.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Accept for Plain {
    type Io = TcpStream;
    type Peer = Remote;

    async fn accept(&self, stream: TcpStream, from: SocketAddr) -> io::Result<(TcpStream, Remote)> {
        Ok((stream, Remote(from)))
    }
}

/// Serves `router` on `listener` until it is `ending`. From then on every answer tells its connection to go elsewhere; when
/// nobody is let in any more, requests may go on for [`Limits::drain`], and what is left is closed.
pub async fn serve<A: Accept>(
    listener: TcpListener,
    router: Router,
    accept: A,
    limits: Limits,
    ending: Ending,
) {
    serve_behind(None, Entrance { listener, router, accept }, limits, ending).await;
}

/// What is served, to whom, and where.
pub struct Entrance<A> {
    /// Where they come in.
    pub listener: TcpListener,
    /// What answers them.
    pub router: Router,
    /// What is known of them.
    pub accept: A,
}

/// The same behind a gate, if there is one: it decides who is let in before the router hears of them.
pub async fn serve_behind<A: Accept>(
    gate: Option<Arc<Gate>>,
    entrance: Entrance<A>,
    limits: Limits,
    ending: Ending,
) {
    let Entrance { listener, router, accept } = entrance;
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let pace = Pace::new(limits.accepts_per_second);
    let http = http(&limits);
    let hall = Arc::new(Hall { router, gate, accept, limits, http, ending: ending.clone() });
    let mut connections = JoinSet::new();
    while let Some((stream, from, place)) = next(&listener, (&places, &pace), &ending).await {
        connections.spawn(Arc::clone(&hall).connection(stream, from, Some(place)));
        while let Some(ended) = connections.try_join_next() {
            report(ended);
        }
    }
    // Whoever has got through to us in the last moment is served: to close the door on them would fail a request.
    for (stream, from) in late(listener) {
        connections.spawn(Arc::clone(&hall).connection(stream, from, None));
    }
    let drained = async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    };
    if timeout(limits.drain, drained).await.is_err() {
        tracing::warn!(left = connections.len(), "connections did not end in time and are closed");
    }
    connections.shutdown().await;
}

/// How often a newcomer is let in: a storm of them leaves the machine to those who are inside.
struct Pace {
    limiter: DefaultDirectRateLimiter,
    clock: DefaultClock,
}

impl Pace {
    fn new(per_second: NonZeroU32) -> Pace {
        // A burst is a tenth of a second's.
        let burst = NonZeroU32::new(per_second.get() / 10).unwrap_or(NonZeroU32::MIN);
        let limiter = RateLimiter::direct(Quota::per_second(per_second).allow_burst(burst));
        Pace { limiter, clock: DefaultClock::default() }
    }

    async fn next(&self) {
        while let Err(until) = self.limiter.check() {
            rest(until.wait_time_from(self.clock.now())).await;
        }
    }
}

/// The answer to a request that was let in, also if it comes later. What it goes on with needs no place.
async fn answered(mut answer: Response, place: Option<Place>) -> Response {
    if let Some(later) = later::taken(&mut answer) {
        answer = later.await;
    }
    if let Some(place) = place {
        place.answered();
    }
    answer
}

async fn rest(time: Duration) {
    let _ = timeout(time, std::future::pending::<()>()).await;
}

/// The next connection, once there is a place for it and it is its turn; none when it is time to stop.
async fn next(
    listener: &TcpListener,
    (places, pace): (&Arc<Semaphore>, &Pace),
    ending: &Ending,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let next = async {
        let place = Arc::clone(places).acquire_owned().await.ok()?;
        pace.next().await;
        loop {
            match listener.accept().await {
                Ok((stream, from)) => return Some((stream, from, place)),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    // No more files, most likely: some are closed in a moment.
                    tracing::error!(%error, "a connection can't be accepted");
                    rest(Duration::from_millis(200)).await;
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = ending.closing() => None,
        next = next => next,
    }
}

/// Those who wait to be accepted. The listener is closed behind them.
fn late(listener: TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    let mut late = Vec::new();
    let Ok(listener) = listener.into_std() else { return late };
    while let Ok((stream, from)) = listener.accept() {
        let ready = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        late.extend(ready.ok().map(|stream| (stream, from)));
    }
    late
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked");
    }
}

/// How HTTP is spoken.
fn http(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        // The pulse is what cuts off a slow head: a timer for each would cost more than to turn a request away.
        .header_read_timeout(None)
        .max_headers(limits.headers_max)
        // Twice what is allowed, so that who sends a little too much is told so in words.
        .max_buf_size((limits.head_bytes_max as usize * 2).max(16 * 1024));
    http.http2()
        .timer(TokioTimer::new())
        .max_header_list_size(limits.head_bytes_max)
        .max_concurrent_streams(limits.streams_max)
        .max_pending_accept_reset_streams(Some(32))
        .keep_alive_interval(limits.idle)
        .keep_alive_timeout(limits.head);
    http
}

/// What all connections of a listener share.
struct Hall<A> {
    router: Router,
    gate: Option<Arc<Gate>>,
    accept: A,
    limits: Limits,
    http: auto::Builder<TokioExecutor>,
    ending: Ending,
}

impl<A: Accept> Hall<A> {
    /// One connection from its handshake to its end, in a place of its own.
    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        from: SocketAddr,
        place: Option<OwnedSemaphorePermit>,
    ) {
        // In a box, what it needs is gone when it is over.
        let handshake = Box::pin(timeout(self.limits.handshake, self.accept.accept(stream, from)));
        let too_late = async {
            self.ending.closing().await;
            rest(FIRST_WORD).await;
        };
        let shaken = tokio::select! {
            shaken = handshake => Some(shaken),
            () = too_late => None,
        };
        match shaken {
            Some(Ok(Ok((io, peer)))) => self.speak(io, peer, from).await,
            Some(Ok(Err(error))) => tracing::debug!(%from, %error, "the handshake failed"),
            Some(Err(_)) => tracing::debug!(%from, "the handshake took too long"),
            None => {}
        }
        drop(place);
    }

    async fn speak(self: &Arc<Self>, io: A::Io, peer: A::Peer, from: SocketAddr) {
        let pulse = Arc::new(Pulse::new());
        let io = TokioIo::new(Stream::new(io, Arc::clone(&pulse), self.limits.stall));
        let service = hyper::service::service_fn(|request: hyper::Request<Incoming>| {
            let (version, held) = (request.version(), pulse.request(request.version()));
            let admitted = self.gate.as_ref().map_or(Ok(None), |gate| gate.admit(&request));
            let hall = Arc::clone(self);
            // In boxes, what is of no use any more while an answer is waited for is not kept as long.
            let admitted = match admitted {
                Ok(place) => Ok((place, Box::pin(self.ask(request, Remote(from), peer.clone())))),
                Err(turned_away) => Err((turned_away, Box::new(request))),
            };
            async move {
                let mut answer = match admitted {
                    Ok((place, asked)) => answered(asked.await?, place).await,
                    Err((turned_away, _request)) => {
                        hall.hold(turned_away.told_in).await;
                        turned_away.told()
                    }
                };
                if hall.ending.is_draining() && version <= Version::HTTP_11 {
                    let close = HeaderValue::from_static("close");
                    answer.headers_mut().insert(CONNECTION, close);
                }
                Ok::<_, Infallible>(answer.map(|body| held.until_sent(body)))
            }
        });
        let mut connection = pin!(self.http.serve_connection(io, service));
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = self.time_to_go(&pulse) => None,
            outstayed = pulse.outstayed(&self.limits) => match outstayed {
                // There is nothing to end gracefully: the request has not arrived.
                Outstayed::Head => return,
                Outstayed::Idle => None,
            },
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                match timeout(self.limits.drain, connection).await {
                    Ok(ended) => ended,
                    Err(_) => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%from, %error, "a connection broke");
        }
    }

    /// What the router says to a request that was let in.
    fn ask(
        &self,
        request: hyper::Request<Incoming>,
        from: Remote,
        peer: A::Peer,
    ) -> impl Future<Output = Result<Response, Infallible>> + use<A> {
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(from);
        request.extensions_mut().insert(peer);
        self.router.clone().oneshot(request)
    }

    /// Until it is somebody's turn to be turned away. Nobody is held who could go to another process.
    async fn hold(&self, time: Duration) {
        if time.is_zero() {
            return;
        }
        tokio::select! {
            () = self.ending.draining() => {}
            () = rest(time) => {}
        }
    }

    /// Returns when the connection is to be ended. One that speaks HTTP/2 is told so early, and its client loses nothing by it.
    /// On HTTP/1 a client that is about to send would: it is told with its next answer, and ended when it can't be waited for any
    /// more.
    async fn time_to_go(&self, pulse: &Pulse) {
        self.ending.draining().await;
        if pulse.streams() {
            return;
        }
        self.ending.closing().await;
        let _ = timeout(FIRST_WORD, pulse.head_is_in()).await;
    }
}
