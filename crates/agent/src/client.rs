//! The way to the gateway: HTTP/2 over mutual TLS that trusts Berth's own authority and nothing else.
//! [`Gateway`] is what the rest of the agent sees of it, so that tests can stand in for the other side.

use std::error::Error as StdError;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use wire::node::{
    Acknowledged, Certificate, Enrolment, Heartbeat, HeartbeatAnswer, PROTOCOL, PROTOCOL_HEADER,
    PhaseBatch, Renewal, SignedTask, TASKS_MAX, TaskBatch, TaskResult, WAIT_SECONDS_MAX,
};
use wire::problem::Problem;

use crate::Error;
use crate::identity::Identity;

/// The name the gateway's certificate is made out to, whatever its address.
pub const SERVER_NAME: &str = "gateway.berth.internal";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
const WAIT_TIMEOUT: Duration = Duration::from_secs(WAIT_SECONDS_MAX + 10);
/// A gateway that is gone without a word is noticed while a long poll is open.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// A task that is too long to be done must be read all the same, or nobody could say so: see the verifier's bound.
const TASK_BYTES_MAX: usize = 32 << 20;

/// Why a call to the gateway came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// No answer.
    #[error("the gateway can't be reached")]
    Unreachable(#[source] Box<dyn StdError + Send + Sync>),
    /// The gateway does not know this node, or no longer.
    #[error("the gateway refuses this node's certificate ({status}): {detail}")]
    Revoked {
        /// The HTTP status.
        status: u16,
        /// The gateway's words.
        detail: String,
    },
    /// The gateway answered with an error.
    #[error("the gateway answered {status}: {detail}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The gateway's words.
        detail: String,
    },
    /// An answer that can't be read.
    #[error("the gateway's answer can't be read")]
    Unreadable(#[source] Box<dyn StdError + Send + Sync>),
}

/// What the gateway says in the end.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, GatewayError>>;

/// The gateway, as an agent sees it.
pub trait Gateway: Send + Sync + 'static {
    /// `POST /agent/v1/heartbeat`
    fn heartbeat<'a>(&'a self, heartbeat: &'a Heartbeat) -> Answer<'a, HeartbeatAnswer>;
    /// `GET /agent/v1/tasks/wait`; none when nothing came.
    fn wait(&self) -> Answer<'_, Vec<SignedTask>>;
    /// `POST /agent/v1/tasks/{id}/events`
    fn phases<'a>(&'a self, task: Uuid, batch: &'a PhaseBatch) -> Answer<'a, Acknowledged>;
    /// `POST /agent/v1/tasks/{id}/result`
    fn result<'a>(&'a self, task: Uuid, result: &'a TaskResult) -> Answer<'a, Acknowledged>;
    /// `POST /agent/v1/certificate`
    fn renew<'a>(&'a self, renewal: &'a Renewal) -> Answer<'a, Certificate>;
    /// Speaks with another certificate from now on; calls under way end as they began.
    ///
    /// # Errors
    /// When the identity can't be used; the former one stays.
    fn install(&self, identity: &Identity) -> Result<(), Error>;
}

/// The gateway over the network.
#[derive(Debug)]
pub struct HttpGateway {
    address: Address,
    client: RwLock<Client>,
}

impl HttpGateway {
    /// The gateway of `identity`.
    ///
    /// # Errors
    /// When its key, certificates or address can't be used.
    pub fn new(identity: &Identity) -> Result<HttpGateway, Error> {
        let address = Address::parse(&identity.gateway)?;
        let client = RwLock::new(client(&address, &identity.authority, Some(identity))?);
        Ok(HttpGateway { address, client })
    }

    fn client(&self) -> Client {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn post(&self, path: &str, body: &impl Serialize) -> RequestBuilder {
        let request = self.client().post(self.address.url(path)).timeout(CALL_TIMEOUT).json(body);
        match trace::current() {
            Some(traceparent) => request.header(trace::HEADER, traceparent),
            None => request,
        }
    }
}

impl Gateway for HttpGateway {
    fn heartbeat<'a>(&'a self, heartbeat: &'a Heartbeat) -> Answer<'a, HeartbeatAnswer> {
        Box::pin(async move { read(send(self.post("heartbeat", heartbeat)).await?).await })
    }

    fn wait(&self) -> Answer<'_, Vec<SignedTask>> {
        Box::pin(async move {
            let wanted = format!("tasks/wait?most={TASKS_MAX}&seconds={WAIT_SECONDS_MAX}");
            let url = self.address.url(&wanted);
            let response = send(self.client().get(url).timeout(WAIT_TIMEOUT)).await?;
            if response.status() == StatusCode::NO_CONTENT {
                return Ok(Vec::new());
            }
            Ok(match parsed(&body(response, TASK_BYTES_MAX).await?)? {
                HandedOut::Batch(batch) => batch.tasks,
                HandedOut::One(task) => vec![task],
            })
        })
    }

    fn phases<'a>(&'a self, task: Uuid, batch: &'a PhaseBatch) -> Answer<'a, Acknowledged> {
        Box::pin(async move {
            acknowledged(send(self.post(&format!("tasks/{task}/events"), batch)).await?).await
        })
    }

    fn result<'a>(&'a self, task: Uuid, result: &'a TaskResult) -> Answer<'a, Acknowledged> {
        Box::pin(async move {
            acknowledged(send(self.post(&format!("tasks/{task}/result"), result)).await?).await
        })
    }

    fn renew<'a>(&'a self, renewal: &'a Renewal) -> Answer<'a, Certificate> {
        Box::pin(async move { read(send(self.post("certificate", renewal)).await?).await })
    }

    fn install(&self, identity: &Identity) -> Result<(), Error> {
        let client = client(&self.address, &identity.authority, Some(identity))?;
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
        Ok(())
    }
}

/// What comes of a wait.
#[derive(Deserialize)]
#[serde(untagged)]
enum HandedOut {
    /// From a gateway that was asked for several.
    Batch(TaskBatch),
    /// From one that does not know that several can be asked for.
    One(SignedTask),
}

/// Trades a join token for a certificate. The gateway must prove itself by the authority of the token alone.
pub(crate) async fn enrol(
    gateway: &Address,
    authority: &str,
    enrolment: &Enrolment,
) -> Result<Certificate, Error> {
    let client = client(gateway, authority, None)?;
    let request = client.post(gateway.url("enroll")).timeout(CALL_TIMEOUT).json(enrolment);
    let answer = async { read(send(request).await?).await };
    answer.await.map_err(Error::Enrolment)
}

/// Where the gateway listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// The address in `https://host:port`.
    pub(crate) fn parse(text: &str) -> Result<Address, Error> {
        let wrong = || Error::Identity(format!("`{text}` is no address like https://host:port"));
        let url = Url::parse(text).map_err(|_| wrong())?;
        let port = url.port_or_known_default().ok_or_else(wrong)?;
        let host = url.host_str().filter(|_| url.scheme() == "https").ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Address { host, port })
    }

    fn url(&self, path: &str) -> String {
        format!("https://{SERVER_NAME}:{}/agent/v1/{path}", self.port)
    }
}

/// Leads the one name that is in every request to the gateway's real address, looked up anew for each connection.
struct Towards(Address);

impl Resolve for Towards {
    fn resolve(&self, _name: Name) -> Resolving {
        let Address { host, port } = self.0.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, port)).await?;
            let found: Vec<SocketAddr> = found.collect();
            let found: Addrs = Box::new(found.into_iter());
            Ok(found)
        })
    }
}

fn client(address: &Address, authority: &str, who: Option<&Identity>) -> Result<Client, Error> {
    let version = HeaderValue::from(PROTOCOL);
    Client::builder()
        .default_headers(
            [(HeaderName::from_static(PROTOCOL_HEADER), version)].into_iter().collect(),
        )
        .tls_backend_preconfigured(tls(authority, who)?)
        .dns_resolver(Arc::new(Towards(address.clone())))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .https_only(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        // Calls that begin together then share one connection, and one handshake, from the first on.
        .http2_prior_knowledge()
        .http2_keep_alive_interval(KEEP_ALIVE)
        .http2_keep_alive_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("berth-agent/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| Error::Identity(chain(&error)))
}

fn tls(authority: &str, who: Option<&Identity>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority)? {
        roots.add(certificate).map_err(|error| Error::Identity(chain(&error)))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Identity(chain(&error)))?
        .with_root_certificates(roots);
    let mut config = match who {
        None => config.with_no_client_auth(),
        Some(identity) => config
            .with_client_auth_cert(certificates(&identity.certificate)?, key(&identity.key)?)
            .map_err(|error| Error::Identity(chain(&error)))?,
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    // One gateway, a few connections: a small cache is enough to make a reconnect cheap.
    config.resumption = Resumption::in_memory_sessions(4);
    Ok(config)
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(Error::Identity("a certificate is missing".to_owned())),
        Err(error) => Err(Error::Identity(format!("a certificate can't be read: {error}"))),
    }
}

fn key(pem: &str) -> Result<PrivateKeyDer<'static>, Error> {
    // Without the parser's words: they might quote the key.
    PrivateKeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| Error::Identity("the key can't be read".to_owned()))
}

async fn send(request: RequestBuilder) -> Result<Response, GatewayError> {
    let response = request.send().await.map_err(unreachable)?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let detail = match body(response, ANSWER_BYTES_MAX).await {
        Ok(bytes) => detail(&bytes),
        Err(_) => String::new(),
    };
    let status = status.as_u16();
    match status {
        401 | 403 => Err(GatewayError::Revoked { status, detail }),
        _ => Err(GatewayError::Refused { status, detail }),
    }
}

fn detail(bytes: &[u8]) -> String {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) => crate::sentence(&format!("{}: {}", problem.code, problem.detail)),
        Err(_) => crate::sentence(&String::from_utf8_lossy(bytes)),
    }
}

async fn read<T: DeserializeOwned>(response: Response) -> Result<T, GatewayError> {
    parsed(&body(response, ANSWER_BYTES_MAX).await?)
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, GatewayError> {
    serde_json::from_slice(bytes).map_err(|error| GatewayError::Unreadable(Box::new(error)))
}

/// A success is an acknowledgement, whatever a newer gateway writes into it.
async fn acknowledged(response: Response) -> Result<Acknowledged, GatewayError> {
    let bytes = body(response, ANSWER_BYTES_MAX).await?;
    let unread = |_| Acknowledged { applied: false, answer: "unreadable".to_owned() };
    Ok(serde_json::from_slice(&bytes).unwrap_or_else(unread))
}

async fn body(mut response: Response, bytes_max: usize) -> Result<Vec<u8>, GatewayError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        if bytes.len() + chunk.len() > bytes_max {
            return Err(GatewayError::Unreadable("it is too long".into()));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn unreachable(error: reqwest::Error) -> GatewayError {
    GatewayError::Unreachable(Box::new(error))
}

/// An error and its causes in one line, for the log and for words that end up in another error.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn an_address_is_https_with_a_host_and_a_port() {
        let address = Address::parse("https://[::1]:7443").expect("it is one");
        assert_eq!((address.host.as_str(), address.port), ("::1", 7443));
        assert_eq!(address.url("enroll"), "https://gateway.berth.internal:7443/agent/v1/enroll");
        assert_eq!(Address::parse("https://berth.example").expect("it is one").port, 443);
        assert!(Address::parse("http://berth.example:80").is_err());
        assert!(Address::parse("berth.example:80").is_err());
    }
}
