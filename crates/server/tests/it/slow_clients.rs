//! Clients that take their time (R33, in small): each is cut off, and nobody else notices.

use std::time::Duration;

use server::Limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::api::{Api, PATIENCE, read_to_end, told};

const SHORT: Duration = Duration::from_millis(300);

fn short() -> Limits {
    Limits { head: SHORT, idle: SHORT, body: SHORT, stall: SHORT, ..Limits::default() }
}

/// What is not cut off within this never is.
const SOON: Duration = Duration::from_secs(10);

async fn closes(stream: &mut TcpStream) -> String {
    timeout(SOON, read_to_end(stream)).await.expect("it is cut off")
}

/// One answer on a connection that stays open.
async fn answer_on(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; 8192];
    let read = timeout(PATIENCE, stream.read(&mut bytes)).await.expect("it is answered");
    String::from_utf8_lossy(&bytes[..read.expect("it is open")]).into_owned()
}

#[tokio::test]
async fn r33_a_head_that_does_not_arrive_is_cut_off() {
    let api = Api::with(short()).await;
    let mut silent = api.connect().await;
    assert_eq!(closes(&mut silent).await, "");
    let mut half = api.connect().await;
    half.write_all(b"GET /healthz HTTP/1.1\r\nHost: ber").await.expect("it is taken");
    assert_eq!(closes(&mut half).await, "");
    let mut dripping = api.connect().await;
    dripping.write_all(b"GET /healthz HTTP/1.1\r\n").await.expect("it is taken");
    let mut drops = interval(SHORT / 10);
    drops.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let cut = timeout(SOON, async {
        loop {
            drops.tick().await;
            if dripping.write_all(b"a: b\r\n").await.is_err() {
                return;
            }
        }
    });
    cut.await.expect("a head may not go on for ever");
    api.close().await;
}

#[tokio::test]
async fn r33_a_second_head_that_does_not_arrive_is_cut_off_too() {
    let api = Api::with(Limits { idle: Duration::from_secs(600), ..short() }).await;
    let mut stream = api.connect().await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: berth\r\n\r\n").await.expect("it is taken");
    assert!(answer_on(&mut stream).await.starts_with("HTTP/1.1 200"));
    stream.write_all(b"GET /hea").await.expect("it is taken");
    assert_eq!(closes(&mut stream).await, "");
    api.close().await;
}

#[tokio::test]
async fn r33_a_body_that_does_not_arrive_gets_a_problem() {
    let api = Api::with(short()).await;
    let head = format!(
        "POST /api/v1/projects HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{\"name\":",
        api.tenant
    );
    let answer = api.raw(head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
    api.close().await;
}

#[tokio::test]
async fn r33_a_connection_rests_for_a_while_and_not_for_ever() {
    let api = Api::with(Limits { idle: SHORT * 4, ..short() }).await;
    let mut stream = api.connect().await;
    // Longer than a head may take: between requests another clock runs.
    for _ in 0..3 {
        let request = b"GET /healthz HTTP/1.1\r\nHost: berth\r\n\r\n";
        stream.write_all(request).await.expect("it is open");
        assert!(answer_on(&mut stream).await.starts_with("HTTP/1.1 200"));
        let rest = timeout(SHORT * 2, stream.readable()).await;
        assert!(rest.is_err(), "it was closed too early");
    }
    assert_eq!(closes(&mut stream).await, "");
    api.close().await;
}

#[tokio::test]
async fn r33_who_does_not_take_the_answer_is_cut_off() {
    let api = Api::with(short()).await;
    let mut stream = api.connect().await;
    let request = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: berth\r\n\r\n";
    let cut = timeout(SOON, async { while stream.write_all(request).await.is_ok() {} });
    cut.await.expect("what nobody reads is not kept for ever");
    api.close().await;
}

#[tokio::test]
async fn r33_others_are_served_while_many_are_slow() {
    let api = Api::with(Limits { head: SOON, ..short() }).await;
    let mut slow = Vec::new();
    for _ in 0..300 {
        let mut stream = api.connect().await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHo").await.expect("it is taken");
        slow.push(stream);
    }
    for _ in 0..50 {
        let quick = told(api.request("GET", "/healthz", None));
        let answer = timeout(Duration::from_secs(2), quick).await.expect("it is not held up");
        assert_eq!(answer.status, 200);
    }
    drop(slow);
    api.close().await;
}

#[tokio::test]
async fn beyond_the_limit_a_connection_waits_for_a_place() {
    let api = Api::with(Limits { connections_max: 1, head: SHORT * 3, ..short() }).await;
    let mut first = api.connect().await;
    first.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").await.expect("it is taken");
    let mut second = api.connect().await;
    let request = b"GET /healthz HTTP/1.1\r\nHost: berth\r\nConnection: close\r\n\r\n";
    second.write_all(request).await.expect("it is taken");
    assert!(timeout(SHORT, second.readable()).await.is_err(), "it did not wait");
    assert!(read_to_end(&mut second).await.starts_with("HTTP/1.1 200"));
    api.close().await;
}

#[tokio::test]
async fn a_request_that_is_on_its_way_is_answered_when_the_server_stops() {
    let mut api = Api::with(Limits { body: SOON, ..short() }).await;
    let mut stream = api.connect().await;
    let head = format!(
        "POST /api/v1/projects HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer {}\r\nExpect: 100-continue\r\n\
         Content-Type: application/json\r\nContent-Length: 16\r\n\r\n",
        api.tenant
    );
    stream.write_all(head.as_bytes()).await.expect("it is taken");
    // Whoever is told to go on is inside.
    assert!(answer_on(&mut stream).await.starts_with("HTTP/1.1 100"));
    api.stop.cancel();
    stream.write_all(b"{\"name\":\"late\"} ").await.expect("it is taken");
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    api.ended().await;
    assert!(TcpStream::connect(api.address).await.is_err(), "nobody listens any more");
    api.close().await;
}

#[tokio::test]
async fn http_2_is_spoken_as_well() {
    let api = Api::with(short()).await;
    let client = reqwest::Client::builder().no_proxy().http2_prior_knowledge();
    let client = client.build().expect("a client");
    let url = format!("http://{}/healthz", api.address);
    let answer = client.get(url).send().await.expect("there is an answer");
    assert_eq!((answer.version(), answer.status().as_u16()), (reqwest::Version::HTTP_2, 200));
    drop(client);
    api.close().await;
}
