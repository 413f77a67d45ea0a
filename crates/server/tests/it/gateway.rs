//! The node gateway over real TLS: who gets in, who is put out, and what a wait for work hears.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use control::node::admin;
use control::node::enrol::identify;
use domain::ids::NodeId;
use futures::future::{Either, join_all, select};
use rcgen::{CertificateParams, KeyPair};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, HandshakeKind, RootCertStore};
use serde_json::{Value, json};
use server::{Ending, Limits, gateway};
use testkit::House;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::http::admin::{Because, FreshNode, NewNode};
use wire::node::{
    Access, Certificate, Enrolment, Heartbeat, HeartbeatAnswer, JoinToken, PROTOCOL, Renewal,
    SignedTask, TaskOutcome, TaskResult,
};
use wire::problem::Problem;

/// A revoked agent is cut off within this.
const CUT_OFF: Duration = Duration::from_secs(5);

pub(crate) struct Site {
    pub(crate) house: House,
    address: SocketAddr,
    /// Says that it ends.
    stop: CancellationToken,
    /// Ends it.
    closed: CancellationToken,
    serving: JoinSet<Result<(), control::Error>>,
}

impl Site {
    pub(crate) async fn open() -> Site {
        Site::open_with(gateway::limits()).await
    }

    async fn open_with(limits: Limits) -> Site {
        let house = House::open().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let (stop, mut serving) = (CancellationToken::new(), JoinSet::new());
        let closed = CancellationToken::new();
        let ending = Ending::of(stop.clone(), closed.clone());
        serving.spawn(gateway::serve(listener, house.ctx.clone(), limits, ending));
        Site { house, address, stop, closed, serving }
    }

    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        self.closed.cancel();
        while let Some(ended) = self.serving.join_next().await {
            ended.expect("nothing panicked").expect("it ended well");
        }
        self.house.close().await;
    }

    async fn add(&self, name: &str, sku: &str) -> FreshNode {
        let new = NewNode {
            name: name.to_owned(),
            region: "eu-1".to_owned(),
            sku: sku.to_owned(),
            slots: vec![0; 4],
        };
        let made = admin::create(&self.house.ctx, &self.house.operator, &new, None).await;
        made.expect("a node").body
    }

    /// How somebody speaks TLS who trusts our gateway, with this certificate and key if any.
    fn tls(&self, identity: Option<(&str, &KeyPair)>) -> ClientConfig {
        let authority = self.house.ctx.keys.authority_pem();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.as_bytes()).expect("a certificate"))
            .expect("a root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        match identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![
                    CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate"),
                ];
                let key =
                    PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("a key");
                config.with_client_auth_cert(chain, key).expect("they belong together")
            }
        }
    }

    /// Somebody who speaks so.
    fn somebody(&self, identity: Option<(&str, &KeyPair)>) -> Link {
        let mut config = self.tls(identity);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let client = Client::builder()
            .tls_backend_preconfigured(config)
            .resolve("gateway.berth.internal", self.address)
            .no_proxy()
            .build()
            .expect("a client");
        Link { client, port: self.address.port() }
    }

    async fn enrol(&self, fresh: &FreshNode) -> Agent {
        let (node, certificate, key) = self.certify(fresh).await;
        let link = self.somebody(Some((&certificate, &key)));
        Agent { node, certificate, link }
    }

    async fn certify(&self, fresh: &FreshNode) -> (NodeId, String, KeyPair) {
        let token = JoinToken::parse(&fresh.join_token).expect("a token");
        let key = KeyPair::generate().expect("a key");
        let (node_id, secret, csr) = (token.node_id, token.secret, csr(&key));
        let enrolment = Enrolment { protocol: PROTOCOL, node_id, secret, csr };
        let answer = self.somebody(None).post("enroll", &enrolment).await;
        let certificate: Certificate = answer.json().await.expect("a certificate");
        (NodeId(node_id), certificate.certificate, key)
    }

    /// A heartbeat over a connection of its own: whether that went on where an earlier one was, and how it was answered.
    async fn beat_once(&self, tls: &Arc<ClientConfig>) -> (bool, u16) {
        let stream = TcpStream::connect(self.address).await.expect("it listens");
        let name = "gateway.berth.internal".try_into().expect("a name");
        let connector = TlsConnector::from(Arc::clone(tls));
        let mut stream = connector.connect(name, stream).await.expect("a handshake");
        let resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
        let body = serde_json::to_string(&heartbeat(&[])).expect("a heartbeat");
        let head = "POST /agent/v1/heartbeat HTTP/1.1\r\nhost: gateway.berth.internal\r\nconnection: close";
        let length = body.len();
        let request = format!(
            "{head}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.expect("it is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        (resumed, status.expect("a status"))
    }

    async fn agent_id(&self, certificate: &str) -> Uuid {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate");
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &der);
        let fingerprint: [u8; 32] = digest.as_ref().try_into().expect("32 bytes");
        identify(&self.house.ctx, &fingerprint, PROTOCOL).await.expect("it is good").agent_id
    }

    pub(crate) async fn agent(&self, name: &str, sku: &str) -> Agent {
        self.enrol(&self.add(name, sku).await).await
    }
}

pub(crate) struct Link {
    client: Client,
    port: u16,
}

impl Link {
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("https://gateway.berth.internal:{}/agent/v1/{path}", self.port);
        self.client.request(method, url)
    }

    pub(crate) async fn post(&self, path: &str, body: &impl serde::Serialize) -> Response {
        self.request(Method::POST, path).json(body).send().await.expect("an answer")
    }

    pub(crate) async fn wait(&self) -> Response {
        self.request(Method::GET, "tasks/wait").send().await.expect("an answer")
    }
}

pub(crate) struct Agent {
    pub(crate) node: NodeId,
    certificate: String,
    pub(crate) link: Link,
}

impl Agent {
    pub(crate) async fn beat(&self, images: &[&str]) -> Response {
        self.link.post("heartbeat", &heartbeat(images)).await
    }

    /// A wait that the gateway is certainly in. Of two waits the later ends the earlier, so that when one has ended, the
    /// other is the one that is waited in.
    async fn waiting(&self) -> impl Future<Output = Response> {
        let (one, two) = (Box::pin(self.link.wait()), Box::pin(self.link.wait()));
        let (ended, other) = match select(one, two).await {
            Either::Left(both) | Either::Right(both) => both,
        };
        assert_eq!(ended.status(), StatusCode::NO_CONTENT);
        other
    }
}

fn heartbeat(images: &[&str]) -> Heartbeat {
    Heartbeat {
        protocol: PROTOCOL,
        agent_version: "1".to_owned(),
        boot_id: Uuid::nil(),
        gpus: Vec::new(),
        images: images.iter().map(|image| (*image).to_owned()).collect(),
        guests: Vec::new(),
        leases: Vec::new(),
        running: Vec::new(),
        refused: 0,
    }
}

fn csr(key: &KeyPair) -> String {
    let request = CertificateParams::default().serialize_request(key).expect("a request");
    request.pem().expect("a text")
}

pub(crate) async fn problem(answer: Response) -> (u16, String) {
    let problem: Problem = answer.json().await.expect("a problem");
    (problem.status, problem.code.to_string())
}

fn result(dispatch: i64) -> TaskResult {
    let access = Access { host: "192.0.2.1".to_owned(), port: 22, user: "u".to_owned() };
    TaskResult { dispatch, outcome: TaskOutcome::Provisioned { access }, phases: Vec::new() }
}

#[tokio::test]
async fn nobody_without_a_certificate_gets_further_than_enrolment() {
    let site = Site::open().await;
    let stranger = site.somebody(None);
    let id = Uuid::nil();
    let doors = [
        (Method::POST, "certificate".to_owned()),
        (Method::POST, "heartbeat".to_owned()),
        (Method::GET, "tasks/wait".to_owned()),
        (Method::POST, format!("tasks/{id}/events")),
        (Method::POST, format!("tasks/{id}/result")),
    ];
    for (method, path) in doors {
        // Not even what is wrong with a body is told to strangers.
        let answer = stranger.request(method, &path).body("{").send().await.expect("an answer");
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
        assert_eq!(problem(answer).await, (401, "unauthenticated".to_owned()), "{path}");
    }
    let nowhere = stranger.request(Method::GET, "nowhere").send().await.expect("an answer");
    assert_eq!(problem(nowhere).await.0, 404);
    let odd = stranger.post("enroll", &json!({ "protocol": 1, "extra": true })).await;
    assert_eq!(problem(odd).await.0, 422);
    site.close().await;
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused_in_the_handshake() {
    let site = Site::open().await;
    let node = site.agent("n", "h100.slice").await;
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    let name = format!("spiffe://berth/node/{}", node.node);
    params.subject_alt_names = vec![rcgen::SanType::URI(name.try_into().expect("a name"))];
    let forged = params.self_signed(&key).expect("a certificate").pem();
    let forger = site.somebody(Some((&forged, &key)));
    let refused = forger.request(Method::GET, "tasks/wait").send().await;
    assert!(refused.expect_err("no answer").status().is_none(), "it never spoke HTTP");
    assert_eq!(node.beat(&[]).await.status(), StatusCode::OK, "others are served");
    site.close().await;
}

#[tokio::test]
async fn whoever_enrols_too_often_is_told_to_wait() {
    let site = Site::open().await;
    let stranger = site.somebody(None);
    let enrolment = Enrolment {
        protocol: PROTOCOL,
        node_id: Uuid::nil(),
        secret: "guess".to_owned(),
        csr: String::new(),
    };
    for _ in 0..60 {
        assert_eq!(problem(stranger.post("enroll", &enrolment).await).await.0, 401);
    }
    let answer = stranger.post("enroll", &enrolment).await;
    assert!(answer.headers().contains_key("retry-after"));
    assert_eq!(problem(answer).await, (429, "too_many_requests".to_owned()));
    site.close().await;
}

#[tokio::test]
async fn an_agent_is_heard_renews_and_keeps_its_identity() {
    let site = Site::open().await;
    let agent = site.agent("n", "h100.slice").await;
    let answer: HeartbeatAnswer = agent.beat(&[]).await.json().await.expect("an answer");
    assert_eq!((answer.status.as_str(), answer.renew), ("ready", false));
    let before = site.agent_id(&agent.certificate).await;
    let key = KeyPair::generate().expect("a key");
    let answer = agent.link.post("certificate", &Renewal { csr: csr(&key) }).await;
    let renewed: Certificate = answer.json().await.expect("a certificate");
    let link = site.somebody(Some((&renewed.certificate, &key)));
    let newer = Agent { node: agent.node, certificate: renewed.certificate, link };
    assert_eq!(newer.beat(&[]).await.status(), StatusCode::OK);
    assert_eq!(agent.beat(&[]).await.status(), StatusCode::OK, "the older one has its grace");
    assert_eq!(site.agent_id(&newer.certificate).await, before);
    site.close().await;
}

#[tokio::test]
async fn an_agent_that_is_revoked_is_out_at_once_and_in_the_middle_of_a_wait() {
    let site = Site::open().await;
    let agent = site.agent("n", "h100.slice").await;
    let waiting = agent.waiting().await;
    let because = Because { reason: "stolen".to_owned() };
    let (ctx, operator) = (&site.house.ctx, &site.house.operator);
    admin::revoke(ctx, operator, agent.node.uuid(), &because, None).await.expect("revoked");
    assert_eq!(agent.beat(&[]).await.status(), StatusCode::UNAUTHORIZED);
    let cut_off = timeout(CUT_OFF, waiting).await.expect("in time");
    assert_eq!(problem(cut_off).await, (401, "unauthenticated".to_owned()));
    drop(agent);
    site.close().await;
}

#[tokio::test]
async fn a_revocation_in_another_process_reaches_a_wait_in_time() {
    let site = Site::open().await;
    let agent = site.agent("n", "h100.slice").await;
    let waiting = agent.waiting().await;
    // This store rings no bell of ours.
    let revoked = site
        .house
        .database
        .in_transaction(async |tx| store::node_agents::revoke(tx, agent.node).await);
    assert!(revoked.await.expect("revoked").is_some());
    let cut_off = timeout(CUT_OFF, waiting).await.expect("in time");
    assert_eq!(cut_off.status(), StatusCode::UNAUTHORIZED);
    drop(agent);
    site.close().await;
}

#[tokio::test]
async fn a_revocation_in_another_process_is_out_with_the_next_request_of_a_connection_that_was_known()
 {
    let site = Site::open().await;
    let agent = site.agent("n", "h100.slice").await;
    assert_eq!(agent.beat(&[]).await.status(), StatusCode::OK);
    drop(agent.waiting().await);
    // This store rings no bell of ours.
    let revoked = site
        .house
        .database
        .in_transaction(async |tx| store::node_agents::revoke(tx, agent.node).await);
    assert!(revoked.await.expect("revoked").is_some());
    assert_eq!(agent.beat(&[]).await.status(), StatusCode::UNAUTHORIZED);
    let told = agent.link.post(&format!("tasks/{}/result", Uuid::nil()), &result(1)).await;
    assert_eq!(told.status(), StatusCode::UNAUTHORIZED);
    let waits = timeout(CUT_OFF, agent.link.wait()).await.expect("in time");
    assert_eq!(waits.status(), StatusCode::UNAUTHORIZED);
    drop(agent);
    site.close().await;
}

#[tokio::test]
async fn a_certificate_that_ends_while_its_connection_lasts_is_good_for_no_wait() {
    let site = Site::open().await;
    let agent = site.agent("n", "h100.slice").await;
    drop(agent.waiting().await);
    // Nothing rings when a certificate ends.
    site.house.ctx.clock.advance(Duration::from_secs(8 * 86_400));
    let waits = timeout(CUT_OFF, agent.link.wait()).await.expect("in time");
    assert_eq!(waits.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(agent.beat(&[]).await.status(), StatusCode::UNAUTHORIZED);
    drop(agent);
    site.close().await;
}

#[tokio::test]
async fn what_is_queued_while_nobody_waits_is_in_the_next_wait() {
    let site = Site::open().await;
    let agent = site.agent("n", "h100.slice").await;
    assert_eq!(agent.beat(&["ubuntu-24.04-cuda"]).await.status(), StatusCode::OK);
    drop(agent.waiting().await);
    site.house.create("h100.slice", 1).await.expect("it fits");
    site.house.settle().await;
    let given = timeout(Duration::from_secs(1), agent.link.wait()).await.expect("at once");
    assert_eq!(given.status(), StatusCode::OK);
    drop(agent);
    site.close().await;
}

#[tokio::test]
async fn a_session_that_goes_on_does_not_bring_a_revoked_certificate_in() {
    let site = Site::open().await;
    let (node, certificate, key) = site.certify(&site.add("n", "h100.slice").await).await;
    let tls = Arc::new(site.tls(Some((&certificate, &key))));
    assert_eq!(site.beat_once(&tls).await, (false, 200));
    assert_eq!(site.beat_once(&tls).await, (true, 200), "it is known by its session");
    let because = Because { reason: "stolen".to_owned() };
    let (ctx, operator) = (&site.house.ctx, &site.house.operator);
    admin::revoke(ctx, operator, node.uuid(), &because, None).await.expect("revoked");
    assert_eq!(site.beat_once(&tls).await, (true, 401));
    site.close().await;
}

#[tokio::test]
async fn another_enrolment_cuts_the_older_certificate_off() {
    let site = Site::open().await;
    let older = site.agent("n", "h100.slice").await;
    let waiting = older.waiting().await;
    let (ctx, operator) = (&site.house.ctx, &site.house.operator);
    let again = admin::reissue(ctx, operator, older.node.uuid(), None).await.expect("a token");
    let newer = site.enrol(&again.body).await;
    assert_eq!(
        timeout(CUT_OFF, waiting).await.expect("in time").status(),
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(older.beat(&[]).await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(newer.beat(&[]).await.status(), StatusCode::OK);
    drop(older);
    site.close().await;
}

#[tokio::test]
async fn a_wait_hears_of_its_own_nodes_task_and_of_no_other() {
    let site = Site::open().await;
    let (ours, theirs) =
        (site.agent("ours", "h100.slice").await, site.agent("theirs", "l40s.slice").await);
    assert_eq!(ours.beat(&["ubuntu-24.04-cuda"]).await.status(), StatusCode::OK);
    let (here, there) = (ours.waiting().await, Box::pin(theirs.waiting().await));
    site.house.create("h100.slice", 1).await.expect("it fits");
    site.house.settle().await;
    let given: SignedTask =
        timeout(CUT_OFF, here).await.expect("in time").json().await.expect("a task");
    // Theirs is still waiting: another wait ends it empty-handed.
    let (there, another) = match select(there, Box::pin(theirs.link.wait())).await {
        Either::Left(both) => both,
        Either::Right(_) => panic!("the newer wait ended first"),
    };
    assert_eq!(there.status(), StatusCode::NO_CONTENT);
    drop(another);
    let path = format!("tasks/{}/result", given.task_id);
    let stolen = theirs.link.post(&path, &result(given.dispatch)).await;
    assert_eq!(problem(stolen).await, (404, "not_found".to_owned()));
    let done: Value =
        ours.link.post(&path, &result(given.dispatch)).await.json().await.expect("an answer");
    assert_eq!(done["applied"], true, "{done}");
    let again: Value =
        ours.link.post(&path, &result(given.dispatch)).await.json().await.expect("an answer");
    assert_eq!((&again["applied"], &again["answer"]), (&json!(false), &json!("duplicate")));
    drop((ours, theirs));
    site.close().await;
}

#[tokio::test]
async fn a_gateway_that_stops_lets_go_of_those_who_wait() {
    let site = Site::open().await;
    let agent = site.agent("n", "h100.slice").await;
    let waiting = agent.waiting().await;
    site.stop.cancel();
    assert_eq!(timeout(CUT_OFF, waiting).await.expect("in time").status(), StatusCode::NO_CONTENT);
    drop(agent);
    site.close().await;
}

#[tokio::test]
async fn a_gateway_that_is_ending_answers_who_waits_at_once_and_still_lets_agents_in() {
    let site = Site::open().await;
    let agent = site.agent("n", "h100.slice").await;
    let waiting = agent.waiting().await;
    site.stop.cancel();
    let let_go = timeout(CUT_OFF, waiting).await.expect("it does not wait for its time");
    assert_eq!(let_go.status(), StatusCode::NO_CONTENT);
    // Who asks again all the same waits, but not for long.
    let again = timeout(CUT_OFF, agent.link.wait()).await.expect("a short wait");
    assert_eq!(again.status(), StatusCode::NO_CONTENT);
    // Others are still let in, and a task that is there is handed over to the last.
    let another = site.agent("m", "h100.slice").await;
    assert_eq!(another.beat(&["ubuntu-24.04-cuda"]).await.status(), StatusCode::OK);
    site.house.create("h100.slice", 1).await.expect("it fits");
    site.house.settle().await;
    let given = timeout(CUT_OFF, another.link.wait()).await.expect("a short wait");
    assert_eq!(given.status(), StatusCode::OK);
    drop((agent, another));
    site.close().await;
}

/// Asks until it is let in; how often it was turned away before.
async fn insist(link: &Link) -> usize {
    let mut turned_away = 0;
    while let Err(error) = link.request(Method::GET, "tasks/wait").send().await {
        assert!(error.is_connect(), "{error:?}");
        turned_away += 1;
        let _ = timeout(Duration::from_millis(50), std::future::pending::<()>()).await;
    }
    turned_away
}

#[tokio::test]
async fn r22_a_fleet_that_comes_at_once_takes_its_turns_and_whoever_is_turned_away_comes_back() {
    let limits = Limits {
        handshakes_per_second: NonZeroU32::new(20).expect("it is not zero"),
        handshakes_waiting_max: 5,
        ..gateway::limits()
    };
    let site = Site::open_with(limits).await;
    let fleet: Vec<Link> = (0..30).map(|_| site.somebody(None)).collect();
    let began = site.house.ctx.clock.now();
    let turned_away: usize = join_all(fleet.iter().map(insist)).await.into_iter().sum();
    assert!(turned_away >= 20, "five wait, a few are through: {turned_away}");
    // Two at once, and the others a twentieth of a second after each other.
    let took = site.house.ctx.clock.now().duration_since(began);
    assert!(took.as_millis() >= 1_350, "{took:?}");
    // Those who are inside have no turns to take.
    let answer = fleet[0].request(Method::GET, "tasks/wait").send().await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    drop(fleet);
    site.close().await;
}
