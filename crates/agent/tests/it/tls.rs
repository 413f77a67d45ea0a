//! Over a real connection: enrolment, mutual TLS, renewal, and whom an agent does not talk to.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use agent::{Config, Error, Identity, SERVER_NAME};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, IsCa,
    KeyPair, SanType,
};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::node::{
    Acknowledged, Certificate, Enrolment, FailureReason, Heartbeat, HeartbeatAnswer, JoinToken,
    Renewal, SignedTask, TaskResult,
};
use wire::seal::SigningKey;

use crate::crashes::succeeded;
use crate::fences::reason;
use crate::house::{House, Order, id, provision};

const SECRET: &str = "a secret that is used once";

/// What a call looked like.
#[derive(Clone, Debug)]
struct Call {
    path: String,
    version: Version,
    /// The certificate the caller showed.
    shown: Option<Vec<u8>>,
}

/// A gateway behind TLS.
pub(crate) struct Server {
    authority: CertifiedIssuer<'static, KeyPair>,
    task_key: String,
    task: Mutex<Option<String>>,
    handed: Notify,
    calls: watch::Sender<Vec<Call>>,
    pub(crate) results: watch::Sender<Vec<TaskResult>>,
    used: Mutex<bool>,
    /// Handshakes that came to nothing.
    turned_away: watch::Sender<u32>,
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("an authority")
}

impl Server {
    pub(crate) fn new(task_key: String) -> Arc<Server> {
        Arc::new(Server {
            authority: authority(),
            task_key,
            task: Mutex::default(),
            handed: Notify::new(),
            calls: watch::Sender::new(Vec::new()),
            results: watch::Sender::new(Vec::new()),
            used: Mutex::new(false),
            turned_away: watch::Sender::new(0),
        })
    }

    /// What the next poll gets.
    pub(crate) fn hand_out(&self, task: &SignedTask) {
        let text = serde_json::to_string(task).expect("it is JSON");
        *self.task.lock().expect("nobody panicked with it") = Some(text);
        self.handed.notify_one();
    }

    async fn next_task(&self) -> String {
        loop {
            if let Some(task) = self.task.lock().expect("nobody panicked with it").take() {
                return task;
            }
            self.handed.notified().await;
        }
    }

    fn tls(&self) -> TlsAcceptor {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.authority).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::clone(self.authority.as_ref().der())).expect("an authority");
        let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()
                .expect("a verifier");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a server");
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    async fn run(self: Arc<Self>, listener: TcpListener) {
        let acceptor = self.tls();
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (server, acceptor) = (Arc::clone(&self), acceptor.clone());
            connections.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return server.turned_away.send_modify(|count| *count += 1);
                };
                let shown = stream.get_ref().1.peer_certificates().map(|all| all[0].to_vec());
                let service = service_fn(move |request| {
                    let (server, shown) = (Arc::clone(&server), shown.clone());
                    async move { server.answer(request, shown).await }
                });
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        shown: Option<Vec<u8>>,
    ) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let path = request.uri().path().to_owned();
        let call = Call { path: path.clone(), version: request.version(), shown };
        let stranger = call.shown.is_none();
        self.calls.send_modify(|calls| calls.push(call));
        let body = request.into_body().collect().await?.to_bytes();
        Ok(match path.as_str() {
            "/agent/v1/enroll" => self.enrol(&body),
            _ if stranger => status(401),
            "/agent/v1/heartbeat" => {
                let _: Heartbeat = serde_json::from_slice(&body).expect("a heartbeat");
                let renew =
                    self.calls.borrow().iter().all(|call| !call.path.ends_with("certificate"));
                let status = "ready".to_owned();
                json(&HeartbeatAnswer { next_seconds: 1, renew, status, over: Vec::new() })
            }
            "/agent/v1/certificate" => {
                let renewal: Renewal = serde_json::from_slice(&body).expect("a renewal");
                json(&self.certify(&renewal.csr))
            }
            "/agent/v1/tasks/wait" => Response::new(Full::from(self.next_task().await)),
            _ => {
                if let Ok(result) = serde_json::from_slice::<TaskResult>(&body) {
                    self.results.send_modify(|results| results.push(result));
                }
                json(&Acknowledged { applied: true, answer: "applied".to_owned() })
            }
        })
    }

    fn enrol(&self, body: &[u8]) -> Response<Full<Bytes>> {
        let enrolment: Enrolment = serde_json::from_slice(body).expect("an enrolment");
        let mut used = self.used.lock().expect("nobody panicked with it");
        if *used || enrolment.secret != SECRET {
            return status(403);
        }
        *used = true;
        json(&self.certify(&enrolment.csr))
    }

    fn certify(&self, csr: &str) -> Certificate {
        let mut request = CertificateSigningRequestParams::from_pem(csr).expect("a request");
        let name = "spiffe://berth/node".try_into().expect("a name");
        request.params.subject_alt_names = vec![SanType::URI(name)];
        let certificate = request.signed_by(&self.authority).expect("a certificate");
        Certificate {
            certificate: certificate.pem(),
            not_after: Timestamp::now() + SignedDuration::from_hours(24),
            authority: self.authority.as_ref().pem(),
            task_keys: vec![self.task_key.clone()],
        }
    }
}

fn json(answer: &impl serde::Serialize) -> Response<Full<Bytes>> {
    Response::new(Full::from(serde_json::to_vec(answer).expect("it is JSON")))
}

fn status(code: u16) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = code.try_into().expect("a status");
    response
}

pub(crate) async fn listen(server: &Arc<Server>, set: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    set.spawn(Arc::clone(server).run(listener));
    address
}

pub(crate) fn token(server: &Server, address: SocketAddr, node_id: Uuid) -> String {
    let token = JoinToken {
        node_id,
        secret: SECRET.to_owned(),
        gateway: format!("https://{address}"),
        authority: server.authority.as_ref().pem(),
    };
    token.text().expect("it is JSON")
}

#[tokio::test]
async fn an_agent_enrols_speaks_http_2_over_mutual_tls_works_and_renews() {
    let mut house = House::new();
    house.clock = agent::Clock::system();
    let server = Server::new(house.identity.task_keys[0].clone());
    let mut set = JoinSet::new();
    let address = listen(&server, &mut set).await;
    let order = Order::new(id(), 1, provision(&[0]));
    server.hand_out(&house.sign(&order));
    let join = Some(token(&server, address, house.identity.node_id));

    let stop = CancellationToken::new();
    let mut agents = JoinSet::new();
    let config = Config { join, ..house.config() };
    agents.spawn(agent::run(config.clone(), stop.clone()));
    let mut results = server.results.subscribe();
    let results = results.wait_for(|results| !results.is_empty()).await.expect("it lives").clone();
    assert!(succeeded(&results[0].outcome));
    // A heartbeat with the renewed certificate.
    let renewed = |calls: &Vec<Call>| {
        let before = calls.iter().position(|call| call.path.ends_with("certificate"));
        before.is_some_and(|at| calls[at..].iter().any(|call| call.shown != calls[at].shown))
    };
    let mut calls = server.calls.subscribe();
    let calls = calls.wait_for(renewed).await.expect("it lives").clone();
    assert!(calls.iter().all(|call| call.version == Version::HTTP_2), "{calls:?}");
    assert!(calls[0].shown.is_none() && calls[0].path == "/agent/v1/enroll");
    assert!(calls[1..].iter().all(|call| call.shown.is_some()));
    stop.cancel();
    agents.join_next().await.expect("it runs").expect("no panic").expect("a clean stop");

    // The same token is not used again; the certificate at hand is.
    let stop = CancellationToken::new();
    let seen = server.calls.borrow().len();
    agents.spawn(agent::run(config, stop.clone()));
    let mut calls = server.calls.subscribe();
    let calls = calls.wait_for(|calls| calls.len() > seen + 1).await.expect("it lives").clone();
    assert!(calls[seen..].iter().all(|call| !call.path.ends_with("enroll")));
    stop.cancel();
    agents.join_next().await.expect("it runs").expect("no panic").expect("a clean stop");
}

#[tokio::test]
async fn an_order_of_ten_megabytes_is_read_so_that_it_can_be_refused() {
    let mut house = House::new();
    house.clock = agent::Clock::system();
    let server = Server::new(house.identity.task_keys[0].clone());
    let mut set = JoinSet::new();
    let address = listen(&server, &mut set).await;
    let mut envelope = house.envelope(&Order::new(id(), 1, provision(&[0])));
    envelope.params["image"] = "x".repeat(10 << 20).into();
    server.hand_out(&house.seal(&envelope));
    let stop = CancellationToken::new();
    let join = Some(token(&server, address, house.identity.node_id));
    let mut agents = JoinSet::new();
    agents.spawn(agent::run(Config { join, ..house.config() }, stop.clone()));
    let mut results = server.results.subscribe();
    let results = results.wait_for(|results| !results.is_empty()).await.expect("it lives").clone();
    assert_eq!(reason(&results[0].outcome), Some(FailureReason::Malformed));
    stop.cancel();
    agents.join_next().await.expect("it runs").expect("no panic").expect("a clean stop");
}

#[tokio::test]
async fn a_used_token_is_an_error_that_says_what_to_do() {
    let house = House::new();
    let server = Server::new(house.identity.task_keys[0].clone());
    *server.used.lock().expect("nobody panicked with it") = true;
    let mut set = JoinSet::new();
    let address = listen(&server, &mut set).await;
    let join = Some(token(&server, address, house.identity.node_id));
    let config = Config { join, ..house.config() };
    let ended = agent::run(config, CancellationToken::new()).await;
    assert!(matches!(ended, Err(Error::Enrolment(_))), "{ended:?}");
    assert!(Identity::find(house.path()).expect("readable").is_none());
}

#[tokio::test]
async fn a_gateway_of_another_authority_never_sees_the_secret() {
    let house = House::new();
    let server = Server::new(SigningKey::generate().expect("a key").0.verifying().text());
    let impostor = Server::new(house.identity.task_keys[0].clone());
    let mut set = JoinSet::new();
    let address = listen(&impostor, &mut set).await;
    let join = Some(token(&server, address, house.identity.node_id));
    let config = Config { join, ..house.config() };
    let stop = CancellationToken::new();
    let mut agents = JoinSet::new();
    agents.spawn(agent::run(config, stop.clone()));
    // It keeps trying, since an address may be right again; the impostor gets no request.
    let mut turned_away = impostor.turned_away.subscribe();
    turned_away.wait_for(|count| *count >= 2).await.expect("it lives");
    assert!(impostor.calls.borrow().is_empty());
    stop.cancel();
    agents.join_next().await.expect("it runs").expect("no panic").expect("a clean stop");
}

#[tokio::test]
async fn a_token_of_another_node_does_not_take_over_a_directory() {
    let house = House::new();
    house.identity.keep(house.path()).expect("it can be kept");
    let server = Server::new(house.identity.task_keys[0].clone());
    let address = "127.0.0.1:1".parse().expect("an address");
    let join = Some(token(&server, address, id()));
    let config = Config { join, ..house.config() };
    let ended = agent::run(config, CancellationToken::new()).await;
    assert!(matches!(ended, Err(Error::OtherNode { .. })), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_has_ended_asks_for_a_new_token() {
    let mut house = House::new();
    house.identity.not_after = house.clock.now();
    house.identity.keep(house.path()).expect("it can be kept");
    let ended = agent::run(house.config(), CancellationToken::new()).await;
    assert!(matches!(ended, Err(Error::CertificateEnded { .. })), "{ended:?}");
}
