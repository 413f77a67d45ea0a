//! The doors: HTTP, the node gateway, and which door leads to which story.
//!
//! - [`doors::routes`] is the table of doors; [`http`] is how they speak; [`listen`] is the accept loop.
//! - [`gateway`] is where agents come in, with their own certificates.

pub mod documents;
pub mod doors;
mod error;
pub mod gateway;
pub mod http;
mod limits;
pub mod listen;
pub mod telemetry;
pub mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use control::Ctx;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use error::Error;
use http::Front;
pub use limits::Limits;
use listen::Plain;

/// How often what is no longer needed is forgotten.
const UPKEEP: Duration = Duration::from_secs(10);

/// Where a server listens, and what it lets strangers have.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Where people come in. Port 0 is any that is free.
    pub api: SocketAddr,
    /// Where agents come in. Port 0 is any that is free.
    pub gateway: SocketAddr,
    /// How much of anything people may have.
    pub limits: Limits,
    /// How much of anything agents may have.
    pub gateway_limits: Limits,
}

impl Default for Config {
    /// Any two free ports of this machine, for this machine.
    fn default() -> Self {
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let (limits, gateway_limits) = (Limits::default(), gateway::limits());
        Self { api: anywhere, gateway: anywhere, limits, gateway_limits }
    }
}

/// A server that listens and does not serve yet: what connects waits.
#[derive(Debug)]
pub struct Server {
    /// Where people come in.
    pub api_addr: SocketAddr,
    /// Where agents come in.
    pub gateway_addr: SocketAddr,
    api: TcpListener,
    gateway: TcpListener,
    limits: Limits,
    gateway_limits: Limits,
}

impl Server {
    /// Listens on both addresses.
    ///
    /// # Errors
    /// [`Error::Bind`] when one of them is taken, or not ours.
    pub async fn bind(config: Config) -> Result<Server, Error> {
        let (api, api_addr) = bound(config.api).await?;
        let (gateway, gateway_addr) = bound(config.gateway).await?;
        let Config { limits, gateway_limits, .. } = config;
        Ok(Server { api_addr, gateway_addr, api, gateway, limits, gateway_limits })
    }

    /// Serves until `stop`; then lets requests end, for a bounded time.
    ///
    /// # Errors
    /// [`Error::Gateway`] when agents can't be served: then people are not served either.
    pub async fn run(self, ctx: Ctx, stop: CancellationToken) -> Result<(), Error> {
        let stop = stop.child_token();
        let front = Front::new(ctx.clone(), self.limits);
        let router = doors::routes::router(front.clone());
        let api = listen::serve(self.api, router, Plain, self.limits, stop.clone());
        let gateway = async {
            let served = gateway::serve(self.gateway, ctx, self.gateway_limits, stop.clone()).await;
            stop.cancel();
            served
        };
        let streams = front.streams.run(&front.ctx, &front.limits, &stop);
        let ((), (), (), served) = tokio::join!(api, upkeep(&front, &stop), streams, gateway);
        served.map_err(Error::Gateway)
    }
}

async fn bound(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |source| Error::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Forgets who has not asked for a while, and settles what was measured.
async fn upkeep(front: &Front, stop: &CancellationToken) {
    while timeout(UPKEEP, stop.cancelled()).await.is_err() {
        front.rates.forget();
        front.telemetry.settle();
    }
}
