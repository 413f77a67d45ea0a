//! TLS of the node gateway. Whoever shows a certificate shows one of our authority, or the handshake fails; whoever shows
//! none may only enrol. What a certificate is worth is asked for every request: see [`gateway`](crate::gateway).

mod turns;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest;
use control::Ctx;
use control::keys::Keys;
use jiff::{SignedDuration, Timestamp};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::{Acceptor, ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{RootCertStore, ServerConfig};
use spine::Clock;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::Limits;
use crate::gateway::Met;
use crate::listen::Accept;
use turns::Turns;

/// How long a handshake may take once it is its turn.
const TURN: Duration = Duration::from_secs(3);

/// The gateway's own certificate is good for so long, and replaced after half of it.
const OWN_TTL: SignedDuration = SignedDuration::from_hours(7 * 24);
/// It is good from a little before it was made, for nodes whose clocks are behind.
const OWN_SKEW: SignedDuration = SignedDuration::from_hours(1);

/// Who is at the other end of a connection. Every request carries it, and all of one connection the same.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The SHA-256 of the certificate that was shown in the handshake, if one was.
    pub certificate: Option<[u8; 32]>,
    /// Whose it is, once somebody has asked.
    pub(crate) met: Arc<OnceLock<Met>>,
}

/// Makes TLS connections of TCP connections. Clones share the turns.
#[derive(Clone)]
pub struct AcceptAgents {
    config: Arc<ServerConfig>,
    turns: Arc<Turns>,
}

impl AcceptAgents {
    /// For the agents of this installation.
    ///
    /// # Errors
    /// When the authority's certificate can't be used.
    pub fn new(ctx: &Ctx, limits: &Limits) -> Result<AcceptAgents, rustls::Error> {
        let turns = Arc::new(Turns::new(limits));
        Ok(AcceptAgents { config: Arc::new(config(ctx)?), turns })
    }
}

impl Accept for AcceptAgents {
    /// In a box: who serves a connection hands it on more than once, and would keep room for it each time.
    type Io = Box<TlsStream<TcpStream>>;
    type Peer = Shown;

    async fn accept(&self, stream: TcpStream, _from: SocketAddr) -> io::Result<(Self::Io, Shown)> {
        stream.set_nodelay(true)?;
        // Nobody has a turn before he has said something.
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let Some(turn) = self.turns.take().await else {
            counted("turned_away");
            return Err(io::Error::other("too many wait for their handshake"));
        };
        let handshake = timeout(TURN, hello.into_stream(Arc::clone(&self.config))).await;
        drop(turn);
        let stream = handshake.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let (_, connection) = stream.get_ref();
        let resumed = connection.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        counted(if resumed { "resumed" } else { "full" });
        let leaf = connection.peer_certificates().and_then(<[_]>::first);
        let certificate = leaf.map(|leaf| sha256(leaf));
        Ok((Box::new(stream), Shown { certificate, met: Arc::default() }))
    }
}

fn counted(kind: &'static str) {
    metrics::counter!("berth_gateway_handshakes_total", "kind" => kind).increment(1);
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

fn config(ctx: &Ctx) -> Result<ServerConfig, rustls::Error> {
    let crypto = Arc::new(provider::default_provider());
    let authority =
        CertificateDer::from_pem_slice(ctx.keys.authority_pem().as_bytes()).map_err(|_| {
            rustls::Error::General("the authority's certificate can't be read".to_owned())
        })?;
    let mut roots = RootCertStore::empty();
    roots.add(authority)?;
    let agents = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&crypto))
        .allow_unauthenticated()
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let time = Arc::new(Time(ctx.clock.clone()));
    let own = Own {
        keys: Arc::clone(&ctx.keys),
        clock: ctx.clock.clone(),
        crypto: Arc::clone(&crypto),
        current: Mutex::new(None),
    };
    let mut config = ServerConfig::builder_with_details(crypto, time)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(agents)
        .with_cert_resolver(Arc::new(own));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = provider::Ticketer::new()?;
    Ok(config)
}

/// The clock that everything else is judged by, so that certificates are too.
#[derive(Debug)]
struct Time(Clock);

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// The gateway's own certificate: made when it is first needed, replaced before it ends, never kept.
struct Own {
    keys: Arc<Keys>,
    clock: Clock,
    crypto: Arc<CryptoProvider>,
    current: Mutex<Option<(Arc<CertifiedKey>, Timestamp)>>,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

impl ResolvesServerCert for Own {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let now = self.clock.now();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((certified, replace_at)) = &*current
            && now < *replace_at
        {
            return Some(Arc::clone(certified));
        }
        match self.issue(now) {
            Ok(certified) => {
                let replace_at = now.saturating_add(OWN_TTL / 2).unwrap_or(Timestamp::MAX);
                *current = Some((Arc::clone(&certified), replace_at));
                Some(certified)
            }
            Err(error) => {
                tracing::error!(error, "the gateway has no certificate to show");
                None
            }
        }
    }
}

impl Own {
    fn issue(&self, now: Timestamp) -> Result<Arc<CertifiedKey>, String> {
        let not_before = now.saturating_sub(OWN_SKEW).unwrap_or(Timestamp::MIN);
        let not_after = now.saturating_add(OWN_TTL).unwrap_or(Timestamp::MAX);
        let issued = self.keys.gateway_certificate(not_before, not_after);
        let issued = issued.map_err(|error| error.chain())?;
        let chain = vec![CertificateDer::from(issued.certificate)];
        let key = PrivatePkcs8KeyDer::from(issued.key).into();
        let certified = CertifiedKey::from_der(chain, key, &self.crypto);
        certified.map(Arc::new).map_err(|error| error.to_string())
    }
}
