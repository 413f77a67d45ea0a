//! The accept loop of every listener, plain or TLS. A slow client costs a connection and nothing else: handshakes, heads,
//! rests and stalls all end by themselves, and stopping is bounded.

mod pulse;
mod stream;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::Limits;
use pulse::{Held, Outstayed, Pulse};
use stream::Stream;

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

/// Serves `router` on `listener` until `stop`. Then it accepts nothing more, lets requests end for [`Limits::drain`], and
/// closes what is left.
pub async fn serve<A: Accept>(
    listener: TcpListener,
    router: Router,
    accept: A,
    limits: Limits,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let hall = Arc::new(Hall { router, accept, limits, http: http(&limits), stop: stop.clone() });
    let mut connections = JoinSet::new();
    while let Some((stream, from, place)) = next(&listener, &places, &stop).await {
        connections.spawn(Arc::clone(&hall).connection(stream, from, place));
        while let Some(ended) = connections.try_join_next() {
            report(ended);
        }
    }
    drop(listener);
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

/// The next connection, once there is a place for it; none when it is time to stop.
async fn next(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    stop: &CancellationToken,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = stop.run_until_cancelled(Arc::clone(places).acquire_owned()).await?.ok()?;
    loop {
        match stop.run_until_cancelled(listener.accept()).await? {
            Ok((stream, from)) => return Some((stream, from, place)),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // No more files, most likely: some are closed in a moment.
                tracing::error!(%error, "a connection can't be accepted");
                let pause = std::time::Duration::from_millis(200);
                if timeout(pause, stop.cancelled()).await.is_ok() {
                    return None;
                }
            }
        }
    }
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
        .timer(TokioTimer::new())
        // It runs between two requests as well, so the pulse is what cuts off a slow head.
        .header_read_timeout(limits.idle.max(limits.head))
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
    accept: A,
    limits: Limits,
    http: auto::Builder<TokioExecutor>,
    stop: CancellationToken,
}

impl<A: Accept> Hall<A> {
    /// One connection from its handshake to its end, in a place of its own.
    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        from: SocketAddr,
        place: OwnedSemaphorePermit,
    ) {
        let handshake = timeout(self.limits.handshake, self.accept.accept(stream, from));
        match self.stop.run_until_cancelled(handshake).await {
            Some(Ok(Ok((io, peer)))) => self.speak(io, peer, from).await,
            Some(Ok(Err(error))) => tracing::debug!(%from, %error, "the handshake failed"),
            Some(Err(_)) => tracing::debug!(%from, "the handshake took too long"),
            None => {}
        }
        drop(place);
    }

    async fn speak(&self, io: A::Io, peer: A::Peer, from: SocketAddr) {
        let pulse = Arc::new(Pulse::new());
        let io = TokioIo::new(Stream::new(io, Arc::clone(&pulse), self.limits.stall));
        let service = hyper::service::service_fn(|request: hyper::Request<Incoming>| {
            let held = pulse.request(request.version());
            let mut request: Request = request.map(Body::new);
            request.extensions_mut().insert(Remote(from));
            request.extensions_mut().insert(peer.clone());
            answer(self.router.clone(), request, held)
        });
        let mut connection = pin!(self.http.serve_connection(io, service));
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = self.stop.cancelled() => None,
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
}

async fn answer(router: Router, request: Request, held: Held) -> Result<Response, Infallible> {
    let answer = router.oneshot(request).await?;
    Ok(answer.map(|body| held.until_sent(body)))
}
