//! Who is let in when as many are inside as may be: nobody but who watches the process or a stream. Everybody else is turned away before
//! their body is read, and places come back with the answer, with the stream's beginning, and with whoever hangs up.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use server::Limits;
use server::doors::routes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{interval, timeout};

use crate::api::{Api, PATIENCE, described, document, told};

const BODY: &[u8] = b"{\"name\":\"late\"} ";

fn one_place() -> Limits {
    let many = NonZeroU32::MAX;
    Limits { in_flight_max: 1, token_per_minute: many, token_burst: many, ..Limits::default() }
}

async fn said(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; 8192];
    let read = timeout(PATIENCE, stream.read(&mut bytes)).await.expect("it is answered");
    String::from_utf8_lossy(&bytes[..read.expect("it is open")]).into_owned()
}

/// Sends the head of a request with a body, and waits for what is said to it.
async fn head(api: &Api) -> (TcpStream, String) {
    let mut stream = api.connect().await;
    let head = format!(
        "POST /api/v1/projects HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer {}\r\nExpect: 100-continue\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        api.tenant,
        BODY.len()
    );
    stream.write_all(head.as_bytes()).await.expect("it is taken");
    let answer = said(&mut stream).await;
    (stream, answer)
}

/// Somebody who is inside: whoever is told to go on is.
async fn inside(api: &Api) -> TcpStream {
    let (stream, answer) = head(api).await;
    assert!(answer.starts_with("HTTP/1.1 100"), "{answer}");
    stream
}

/// Asks until there is a place.
async fn there_is_a_place(api: &Api) {
    let asked = async {
        let mut ticks = interval(Duration::from_millis(10));
        while api.get("/api/v1/me", &api.tenant).await.status != 200 {
            ticks.tick().await;
        }
    };
    timeout(PATIENCE, asked).await.expect("there is a place again");
}

#[tokio::test]
async fn who_finds_no_place_is_turned_away_in_words_before_their_body_is_read() {
    let api = Api::with(one_place()).await;
    let mut first = inside(&api).await;
    let (_, answer) = head(&api).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "not told to go on, but: {answer}");
    let away = api.get("/api/v1/me", &api.tenant).await;
    assert_eq!(away.refusal(), (503, "unavailable".to_owned()));
    assert!(!away.header("retry-after").is_empty() && away.header("cache-control") == "no-store");
    first.write_all(BODY).await.expect("it is taken");
    assert!(said(&mut first).await.starts_with("HTTP/1.1 201 "), "who was inside is served");
    assert_eq!(api.get("/api/v1/me", &api.tenant).await.status, 200, "there is a place again");
    api.close().await;
}

#[tokio::test]
async fn a_request_keeps_its_name_when_it_is_turned_away() {
    let api = Api::with(one_place()).await;
    let first = inside(&api).await;
    let name = testkit::new_id();
    let request = api.request("GET", "/api/v1/me", Some(&api.tenant));
    let away = told(request.header("x-request-id", name.to_string())).await;
    assert_eq!((away.status.as_u16(), away.problem().request_id), (503, Some(name)));
    drop(first);
    api.close().await;
}

#[tokio::test]
async fn who_watches_the_process_or_a_stream_needs_no_place() {
    let api = Api::with(one_place()).await;
    let first = inside(&api).await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(told(api.request("GET", path, None)).await.status, 200, "{path}");
    }
    drop(first);
    there_is_a_place(&api).await;
    let stream = api.request("GET", "/api/v1/events?after=0", Some(&api.tenant));
    let stream = stream.send().await.expect("there is an answer");
    assert_eq!(stream.status(), 200);
    assert_eq!(api.get("/api/v1/me", &api.tenant).await.status, 200, "an open stream has no place");
    drop(stream);
    api.close().await;
}

#[tokio::test]
async fn who_hangs_up_leaves_their_place_to_others() {
    let api = Api::with(one_place()).await;
    let first = inside(&api).await;
    assert_eq!(api.get("/api/v1/me", &api.tenant).await.status, 503);
    drop(first);
    there_is_a_place(&api).await;
    api.close().await;
}

/// Reads the clock: what is measured here is how long people wait.
#[expect(clippy::disallowed_methods, reason = "a duration is measured")]
fn now() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn many_who_find_no_place_are_told_in_turn() {
    let ten_a_second = NonZeroU32::new(10).expect("it is not zero");
    let api = Api::with(Limits { refusals_per_second: ten_a_second, ..one_place() }).await;
    let first = inside(&api).await;
    let began = now();
    for _ in 0..4 {
        assert_eq!(api.get("/api/v1/me", &api.tenant).await.status, 503);
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(300), "the fourth was told after {took:?}");
    drop(first);
    there_is_a_place(&api).await;
    api.close().await;
}

#[tokio::test]
async fn who_hangs_up_before_they_are_told_no_leaves_the_line() {
    let long = Duration::from_secs(600);
    let limits = Limits { refusals_per_second: NonZeroU32::MIN, refusal_held: long, ..one_place() };
    // No more are held than may be connected: if those who have gone were still counted, the ninth would be told at once.
    let api = Api::with(Limits { connections_max: 8, ..limits }).await;
    let first = inside(&api).await;
    assert_eq!(api.get("/api/v1/me", &api.tenant).await.status, 503);
    for _ in 0..16 {
        let held = timeout(Duration::from_millis(20), api.get("/api/v1/me", &api.tenant)).await;
        assert!(
            held.is_err(),
            "it is held, and its connection is free again for the next: {held:?}"
        );
    }
    drop(first);
    api.close().await;
}

#[tokio::test]
async fn newcomers_are_let_in_at_a_pace() {
    let few = NonZeroU32::new(10).expect("it is not zero");
    let api = Api::with(Limits { accepts_per_second: few, ..one_place() }).await;
    let began = now();
    for _ in 0..5 {
        let answer =
            api.raw(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(300), "five came in {took:?}");
    api.close().await;
}

#[test]
fn streams_are_known_by_their_paths() {
    let document = document();
    for door in routes::doors() {
        let described = described(&document, &door);
        let answers = described["responses"]["200"]["content"].as_object();
        let is_stream = answers.is_some_and(|kinds| kinds.contains_key("text/event-stream"));
        let told = door.path.ends_with("/events") && !door.path.ends_with("/payments/events");
        let by_path = door.method == "GET" && told;
        assert_eq!(is_stream, by_path, "{} {}", door.method, door.path);
    }
}
