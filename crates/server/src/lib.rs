//! The doors: HTTP, the node gateway, and which door leads to which story.
//!
//! - [`doors::routes`] is the table of doors; [`http`] is how they speak; [`listen`] is the accept loop.
//! - [`gateway`] is where agents come in, with their own certificates.
//! - [`outside`] is whom the product speaks to: the ports of `control`.

pub mod documents;
pub mod doors;
mod ending;
mod error;
pub mod gateway;
pub mod http;
mod limits;
pub mod listen;
pub mod measures;
pub mod outside;
pub mod telemetry;
pub mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use control::Ctx;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use ending::Ending;
pub use error::Error;
use http::Front;
pub use limits::Limits;
use listen::{Entrance, Gate, Plain};

/// How often what is no longer needed is forgotten.
const UPKEEP: Duration = Duration::from_secs(10);

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1_024;

/// Where a server listens, and what it lets strangers have.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Where people come in, if they do. Port 0 is any that is free.
    pub api: Option<SocketAddr>,
    /// Where agents come in, if they do. Port 0 is any that is free.
    pub gateway: Option<SocketAddr>,
    /// Where it can be asked how it is, whatever else it does.
    pub health: Option<SocketAddr>,
    /// Whether other processes of the same user may listen on the addresses of people and agents, too: the kernel shares out who
    /// comes.
    pub share_port: bool,
    /// How long it says that it ends before it lets nobody in.
    pub notice: Duration,
    /// How much of anything people may have.
    pub limits: Limits,
    /// How much of anything agents may have.
    pub gateway_limits: Limits,
}

impl Default for Config {
    /// Any two free ports of this machine, for this machine.
    fn default() -> Self {
        let anywhere = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let (limits, gateway_limits) = (Limits::default(), gateway::limits());
        Self {
            api: anywhere,
            gateway: anywhere,
            health: None,
            share_port: false,
            notice: Duration::ZERO,
            limits,
            gateway_limits,
        }
    }
}

/// A server that listens and does not serve yet: what connects waits.
#[derive(Debug)]
pub struct Server {
    /// Where people come in.
    pub api_addr: Option<SocketAddr>,
    /// Where agents come in.
    pub gateway_addr: Option<SocketAddr>,
    /// Where it can be asked how it is.
    pub health_addr: Option<SocketAddr>,
    api: Option<TcpListener>,
    gateway: Option<TcpListener>,
    health: Option<TcpListener>,
    notice: Duration,
    limits: Limits,
    gateway_limits: Limits,
}

impl Server {
    /// Listens on every address.
    ///
    /// # Errors
    /// [`Error::Bind`] when one of them is taken, or not ours.
    pub async fn bind(config: Config) -> Result<Server, Error> {
        let (api, api_addr) = bound(config.api, config.share_port)?;
        let (gateway, gateway_addr) = bound(config.gateway, config.share_port)?;
        // Whoever asks how a process is means this one.
        let (health, health_addr) = bound(config.health, false)?;
        let Config { limits, gateway_limits, notice, .. } = config;
        Ok(Server {
            api_addr,
            gateway_addr,
            health_addr,
            api,
            gateway,
            health,
            notice,
            limits,
            gateway_limits,
        })
    }

    /// Serves until `stop`; then says so for a while, and lets requests end, for a bounded time.
    ///
    /// # Errors
    /// [`Error::Gateway`] when agents can't be served: then people are not served either.
    pub async fn run(self, ctx: Ctx, stop: CancellationToken) -> Result<(), Error> {
        let (stop, ending) = (stop.child_token(), Ending::default());
        let mut front = Front::new(ctx.clone(), self.limits);
        front.ending = ending.clone();
        // It is asked how it is until everything else has ended.
        let over = CancellationToken::new();
        let watched = (doors::routes::watched(front.clone()), None);
        let health = served(self.health, over.clone(), watched, self.limits);
        let served = async {
            let router = doors::routes::router(front.clone());
            let gated = (router, Some(Gate::new(&self.limits)));
            let api = served(self.api, ending.clone(), gated, self.limits);
            let gateway = async {
                let Some(listener) = self.gateway else { return Ok(()) };
                let limits = self.gateway_limits;
                let served = gateway::serve(listener, ctx, limits, ending.clone()).await;
                stop.cancel();
                served
            };
            let streams = front.streams.run(&front.ctx, &front.limits, &ending);
            let follow = ending.follow(&stop, self.notice);
            let upkeep = upkeep(&front, &ending);
            let ((), (), (), (), served) = tokio::join!(api, upkeep, streams, follow, gateway);
            over.cancel();
            served
        };
        let (served, ()) = tokio::join!(served, health);
        served.map_err(Error::Gateway)
    }
}

/// Serves `router` without TLS, if there is somebody to listen, behind its gate if it has one.
async fn served(
    listener: Option<TcpListener>,
    ending: impl Into<Ending>,
    (router, gate): (axum::Router, Option<Arc<Gate>>),
    limits: Limits,
) {
    if let Some(listener) = listener {
        let entrance = Entrance { listener, router, accept: Plain };
        listen::serve_behind(gate, entrance, limits, ending.into()).await;
    }
}

type Bound = (Option<TcpListener>, Option<SocketAddr>);

fn bound(address: Option<SocketAddr>, shared: bool) -> Result<Bound, Error> {
    let Some(address) = address else { return Ok((None, None)) };
    let failed = |source| Error::Bind { address, source };
    let listener = listener(address, shared).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((Some(listener), Some(bound)))
}

fn listener(address: SocketAddr, shared: bool) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // What the last process on it has left behind is no obstacle.
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(shared)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Forgets who has not asked for a while, and settles what was measured.
async fn upkeep(front: &Front, ending: &Ending) {
    while timeout(UPKEEP, ending.closing()).await.is_err() {
        front.rates.forget();
        front.telemetry.settle();
    }
}
