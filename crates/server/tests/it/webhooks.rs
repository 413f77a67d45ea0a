//! Webhooks over real connections: what arrives, what is signed, and where nothing is ever sent.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use control::webhook::courier::{Courier as _, Letter};
use control::webhook::deliver;
use serde_json::{Value, json};
use server::outside::webhooks::Webhooks;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use wire::http::webhooks::DeliveryFault;

use crate::api::{Api, Book, PATIENCE, told};

/// What a receiver answers.
#[derive(Clone, Copy)]
enum Says {
    Status(u16),
    /// Go there instead.
    Elsewhere(u16, &'static str),
    /// This status, and so much text, with a word in it that nobody is to see.
    Much(u16, usize),
}

const CANARY: &str = "the-innards-of-the-receiver";

#[derive(Clone, Default)]
struct Heard {
    requests: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    answers: Arc<Mutex<VecDeque<Says>>>,
}

/// Somebody who listens on this machine.
struct Receiver {
    address: SocketAddr,
    heard: Heard,
    _serving: JoinSet<()>,
}

async fn hear(State(heard): State<Heard>, headers: HeaderMap, body: Bytes) -> Response {
    heard.requests.lock().expect("nobody panicked").push((headers, body));
    let says = heard.answers.lock().expect("nobody panicked").pop_front();
    let status = |status| StatusCode::from_u16(status).expect("a status");
    match says.unwrap_or(Says::Status(200)) {
        Says::Status(code) => status(code).into_response(),
        Says::Elsewhere(code, place) => {
            (status(code), [("location", HeaderValue::from_static(place))]).into_response()
        }
        Says::Much(code, bytes) => {
            (status(code), CANARY.repeat(bytes / CANARY.len() + 1)).into_response()
        }
    }
}

impl Receiver {
    async fn open(answers: &[Says]) -> Receiver {
        let heard = Heard::default();
        heard.answers.lock().expect("nobody panicked").extend(answers);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (router, mut serving) =
            (Router::new().fallback(hear).with_state(heard.clone()), JoinSet::new());
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Receiver { address, heard, _serving: serving }
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    fn requests(&self) -> Vec<(HeaderMap, Bytes)> {
        self.heard.requests.lock().expect("nobody panicked").clone()
    }
}

/// Adds a webhook; its id and its secret.
async fn add(api: &Api, url: &str) -> (String, String) {
    let made = api.send("POST", "/api/v1/webhooks", &api.tenant, &json!({"url": url})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let (id, secret) = (made.json()["webhook"]["id"].clone(), made.json()["secret"].clone());
    (id.as_str().expect("an id").to_owned(), secret.as_str().expect("a secret").to_owned())
}

async fn test(api: &Api, id: &str) -> Value {
    let path = format!("/api/v1/webhooks/{id}/test");
    let tested = told(api.request("POST", &path, Some(&api.tenant))).await;
    assert_eq!(tested.status, 202, "{tested:?}");
    tested.json()
}

async fn sweep(api: &Api) -> u64 {
    deliver::sweep(&api.house.ctx).await.expect("a sweep")
}

/// The newest delivery, as its owner sees it.
async fn newest(api: &Api, id: &str) -> Value {
    let page = api.get(&format!("/api/v1/webhooks/{id}/deliveries"), &api.tenant).await.json();
    page["items"][0].clone()
}

/// What a receiver does who has read the manual.
fn verifies(secret: &str, headers: &HeaderMap, body: &[u8]) -> bool {
    let given = headers["berth-signature"].to_str().expect("it is text");
    let parts: Vec<(&str, &str)> =
        given.split(',').filter_map(|part| part.split_once('=')).collect();
    let time = parts.iter().find(|(name, _)| *name == "t").expect("a time").1;
    let signed = [time.as_bytes(), b".", body].concat();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex"))
            .collect()
    };
    parts
        .iter()
        .any(|(name, tag)| *name == "v1" && hmac::verify(&key, &signed, &bytes(tag)).is_ok())
}

#[tokio::test]
async fn a_machine_that_is_ready_is_told_to_a_receiver_who_can_verify_it() {
    let api = Api::open().await;
    let receiver = Receiver::open(&[]).await;
    let (id, secret) = add(&api, &receiver.url()).await;
    let allocation = api.house.active("h100.slice", 1).await.id;
    assert_eq!(sweep(&api).await, 1);
    let requests = receiver.requests();
    let [(headers, body)] = requests.as_slice() else { panic!("one, not {}", requests.len()) };
    assert!(verifies(&secret, headers, body) && !verifies("another", headers, body));
    let changed = String::from_utf8_lossy(body).replace("ready", "gone");
    assert!(!verifies(&secret, headers, changed.as_bytes()), "one word makes it another");
    assert_eq!(headers["content-type"], "application/json");
    let said: Value = serde_json::from_slice(body).expect("it is JSON");
    assert_eq!((&said["version"], &said["kind"]), (&json!(1), &json!("allocation.active")));
    assert_eq!(said["allocation_id"], json!(allocation));
    assert_eq!(said["id"], json!(headers["berth-delivery"].to_str().expect("it is text")));
    let seen = newest(&api, &id).await;
    assert_eq!((&seen["status"], &seen["http_status"]), (&json!("delivered"), &json!(200)));
    // A key that was used is not shown its secret again.
    let list = api.get("/api/v1/webhooks", &api.tenant).await;
    assert!(!list.text.contains(&secret) && list.text.contains(&id));
    api.close().await;
}

#[tokio::test]
async fn what_fails_is_tried_once_more_and_what_the_receiver_said_is_shown_to_nobody() {
    let api = Api::open().await;
    let receiver = Receiver::open(&[Says::Much(500, 200_000), Says::Status(204)]).await;
    let (id, secret) = add(&api, &receiver.url()).await;
    test(&api, &id).await;
    assert_eq!((sweep(&api).await, receiver.requests().len()), (1, 1));
    let seen = newest(&api, &id).await;
    assert_eq!(
        (&seen["status"], &seen["fault"], &seen["http_status"]),
        (&json!("pending"), &json!("not_taken"), &json!(500))
    );
    assert!(!seen.to_string().contains(CANARY));
    assert!(api.house.columns_with(CANARY.to_owned()).await.is_empty());
    assert_eq!((sweep(&api).await, receiver.requests().len()), (0, 1));
    api.house.ctx.clock.advance(Duration::from_secs(30));
    assert_eq!((sweep(&api).await, receiver.requests().len()), (1, 2));
    assert_eq!(newest(&api, &id).await["status"], json!("delivered"));
    for (headers, body) in receiver.requests() {
        assert!(verifies(&secret, &headers, &body));
    }
    let ids: Vec<Bytes> = receiver.requests().into_iter().map(|(_, body)| body).collect();
    assert_eq!(ids[0], ids[1], "the same, to the byte");
    api.close().await;
}

#[tokio::test]
async fn a_redirect_is_not_followed_whereto_it_leads() {
    let api = Api::open().await;
    let metadata = "http://169.254.169.254/latest/meta-data/";
    let receiver = Receiver::open(&[
        Says::Elsewhere(302, metadata),
        Says::Elsewhere(307, "/hook"),
        Says::Elsewhere(308, "https://hooks.example.org/"),
    ])
    .await;
    let (id, _) = add(&api, &receiver.url()).await;
    for (number, status) in [(1, 302), (2, 307), (3, 308)] {
        test(&api, &id).await;
        sweep(&api).await;
        let seen = newest(&api, &id).await;
        assert_eq!((&seen["fault"], &seen["http_status"]), (&json!("redirected"), &json!(status)));
        assert_eq!(receiver.requests().len(), number, "not even to the same place");
    }
    api.close().await;
}

#[tokio::test]
async fn who_is_not_there_is_tried_again_and_who_says_too_much_has_still_taken_it() {
    let api = Api::open().await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", nobody.local_addr().expect("an address"));
    drop(nobody);
    let (id, _) = add(&api, &url).await;
    test(&api, &id).await;
    sweep(&api).await;
    let seen = newest(&api, &id).await;
    assert_eq!((&seen["fault"], &seen["http_status"]), (&json!("no_connection"), &Value::Null));
    let receiver = Receiver::open(&[Says::Much(200, 5_000_000)]).await;
    let (id, _) = add(&api, &receiver.url()).await;
    test(&api, &id).await;
    sweep(&api).await;
    assert_eq!(newest(&api, &id).await["status"], json!("delivered"));
    api.close().await;
}

#[tokio::test]
async fn nobody_registers_what_leads_within() {
    let api = Api::open().await;
    // Through the door, with what even somebody on their own machine may not name.
    for url in [
        "http://169.254.169.254/",
        "http://[::ffff:169.254.169.254]/",
        "ftp://hooks.example.org/",
        "https://user:pass@hooks.example.org/",
        "https://hooks.example.org:25/",
        "http://nobody.invalid/",
        "x",
    ] {
        let told = api.send("POST", "/api/v1/webhooks", &api.tenant, &json!({"url": url})).await;
        assert_eq!(told.refusal().0, 422, "{url}");
        assert_eq!(told.problem().errors[0].pointer, "/url", "{url}");
    }
    let strict = Webhooks::new(Arc::new(Book::default()), false).expect("a courier");
    for url in [
        "http://hooks.example.org/",
        "https://127.0.0.1:8443/",
        "https://10.0.0.1/",
        "https://localhost/",
    ] {
        assert!(strict.judge(url).await.is_err(), "{url}");
    }
    assert!(strict.judge("https://hooks.example.org/").await.is_ok());
    api.close().await;
}

fn letter(url: &str) -> Letter {
    Letter { url: url.to_owned(), headers: Vec::new(), body: b"{}".to_vec() }
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_by_the_time_of_the_delivery_gets_nothing() {
    let (book, receiver) = (Arc::new(Book::default()), Receiver::open(&[]).await);
    let names: Arc<dyn server::outside::destination::Names> = Arc::<Book>::clone(&book);
    let courier = Webhooks::new(names, false).expect("a courier");
    let url = format!("https://turncoat.example.org:{}/", receiver.address.port());
    let kept = courier.judge(&url).await.expect("it leads out into the world");
    for within in [
        &["127.0.0.1"][..],
        &["::ffff:127.0.0.1"],
        &["93.184.216.34", "127.0.0.1"],
        &["169.254.169.254"],
        &[],
    ] {
        book.leads("turncoat.example.org", within);
        let outcome = courier.carry(letter(&kept)).await;
        assert_eq!(outcome.fault, Some(DeliveryFault::AddressRefused), "{within:?}");
    }
    // What was kept when more was allowed is judged by what is allowed now.
    let plain = courier.carry(letter(&receiver.url())).await;
    assert_eq!(plain.fault, Some(DeliveryFault::UrlRefused));
    let within = courier.carry(letter(&format!("https://{}/", receiver.address))).await;
    assert_eq!(within.fault, Some(DeliveryFault::AddressRefused));
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn what_is_connected_to_is_what_was_judged() {
    // Nobody but our own book knows the name: that it arrives shows that nobody else was asked.
    let (book, receiver) = (Arc::new(Book::default()), Receiver::open(&[]).await);
    book.leads("only.in.our.book", &["127.0.0.1"]);
    let names: Arc<dyn server::outside::destination::Names> = Arc::<Book>::clone(&book);
    let courier = Webhooks::new(names, true).expect("a courier");
    let url = format!("http://only.in.our.book:{}/", receiver.address.port());
    let outcome = courier.carry(letter(&url)).await;
    assert_eq!((outcome.http_status, outcome.fault), (Some(200), None));
    assert_eq!(receiver.requests().len(), 1);
    book.leads("only.in.our.book", &["169.254.169.254"]);
    let outcome = courier.carry(letter(&url)).await;
    assert_eq!(
        outcome.fault,
        Some(DeliveryFault::AddressRefused),
        "a kept connection is no way around"
    );
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn the_timer_is_rung_for_signs_with_both_secrets_delivers_again_and_stops_with_the_webhook() {
    let api = Api::open().await;
    let receiver = Receiver::open(&[]).await;
    let (id, secret) = add(&api, &receiver.url()).await;
    let rotated =
        told(api.request("POST", &format!("/api/v1/webhooks/{id}/rotate"), Some(&api.tenant)))
            .await;
    let fresh = rotated.json()["secret"].as_str().expect("a secret").to_owned();
    let timers = &api.house.spine.timers;
    let timer = timers.iter().find(|timer| timer.name == "webhook_deliveries").expect("a timer");
    let bell = api.house.ctx.wake.on(timer.woken_by.clone().expect("it has a bell"));
    let notification = test(&api, &id).await["notification_id"].clone();
    timeout(PATIENCE, bell.notified()).await.expect("nobody waits for its time");
    api.house.pass(Duration::from_secs(1)).await;
    let (headers, body) = receiver.requests().pop().expect("it came");
    assert!(verifies(&secret, &headers, &body) && verifies(&fresh, &headers, &body), "both");
    let path = format!(
        "/api/v1/webhooks/{id}/deliveries/{}/redeliver",
        notification.as_str().expect("an id")
    );
    let again = told(api.request("POST", &path, Some(&api.tenant))).await;
    assert_eq!((again.status.as_u16(), &again.json()["status"]), (202, &json!("pending")));
    api.house.pass(Duration::from_secs(1)).await;
    assert_eq!(receiver.requests().len(), 2);
    let gone =
        told(api.request("DELETE", &format!("/api/v1/webhooks/{id}"), Some(&api.tenant))).await;
    assert_eq!(gone.status, 204);
    let again = told(api.request("POST", &path, Some(&api.tenant))).await;
    assert_eq!(again.refusal().0, 404);
    api.close().await;
}
