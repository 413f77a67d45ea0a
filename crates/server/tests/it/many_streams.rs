//! Streams that nobody reads, and many that have nothing to tell: neither costs more than it must.

// tidy: statements behind the store's back, on purpose

use std::time::Duration;

use futures::future::join_all;
use reqwest::{Client, Response};
use server::Limits;
use testkit::Statements;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{interval, timeout};
use uuid::Uuid;

use crate::api::{Api, PATIENCE, read_to_end, told};

/// How many streams share a connection.
const SHARED: usize = 100;
const BEAT: Duration = Duration::from_millis(300);

fn limits() -> Limits {
    let many = std::num::NonZeroU32::MAX;
    Limits {
        token_per_minute: many,
        token_burst: many,
        stream_beat: BEAT,
        streams_per_user_max: 10_000,
        ..Limits::default()
    }
}

/// One of many streams, and what came of it that is not yet looked at.
struct Watched {
    answer: Response,
    text: String,
}

impl Watched {
    /// Reads until this has come so often, and forgets all of it.
    async fn until(&mut self, what: &str, times: usize) {
        while self.text.matches(what).count() < times {
            let chunk = timeout(PATIENCE, self.answer.chunk()).await.expect("it goes on");
            let bytes = chunk.expect("it is not broken").expect("it has not ended");
            self.text.push_str(&String::from_utf8_lossy(&bytes));
        }
        self.text.clear();
    }
}

/// So many streams of one allocation, a hundred at a time on each connection.
async fn watch(api: &Api, id: Uuid, streams: usize) -> Vec<Watched> {
    let url = format!("http://{}/api/v1/allocations/{id}/events", api.address);
    let mut watched = Vec::with_capacity(streams);
    while watched.len() < streams {
        let client = Client::builder().no_proxy().http2_prior_knowledge().build();
        let client = client.expect("a client");
        let open = || client.get(&url).bearer_auth(&api.tenant).send();
        // The first makes the connection that the others share.
        let mut answers = vec![open().await];
        let others = SHARED.min(streams - watched.len()) - 1;
        answers.extend(join_all((0..others).map(|_| open())).await);
        for answer in answers {
            let answer = answer.expect("there is an answer");
            assert_eq!(answer.status().as_u16(), 200);
            watched.push(Watched { answer, text: String::new() });
        }
    }
    watched
}

/// `BERTH_IDLE_STREAMS=5000` for more of them.
#[tokio::test]
async fn many_streams_that_have_nothing_to_tell_ask_the_database_for_nothing() {
    let wanted = std::env::var("BERTH_IDLE_STREAMS").ok().and_then(|text| text.parse().ok());
    let api = Api::with(limits()).await;
    let id = api.house.active("h100.slice", 1).await.id;
    let happened = api.house.happenings(id).await.len();
    let mut streams = watch(&api, id, wanted.unwrap_or(500)).await;
    for stream in &mut streams {
        stream.until("event: ", happened).await;
    }
    // What was rung for at the first sweep is looked at by everybody, once.
    let last = streams.len() - 1;
    let statements = Statements::count();
    streams[last].until("still here", 4).await;
    while statements.take() > 4 {
        streams[last].until("still here", 1).await;
    }
    let began = api.house.database_micros().await;
    streams[last].until("still here", 9).await;
    let micros = api.house.database_micros().await - began;
    let asked = statements.take();
    drop(statements);
    let beats = usize::try_from(micros / 300_000).expect("time goes on") + 1;
    // One question a beat, who may still watch, and one every few, whether a ring was lost: for all of them together.
    println!("{} idle streams: {asked} statements in {beats} beats", streams.len());
    assert!(beats >= 8 && asked > 2 && asked <= 2 * beats + 2, "{asked} in {beats} beats");

    // They are all still there, and each is told of what happens.
    api.house.release(id).await.expect("asked");
    for stream in &mut streams {
        stream.until("event: state", 1).await;
    }
    drop(streams);
    api.close().await;
}

/// A connection that takes next to nothing in.
async fn narrow(api: &Api) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("a small one");
    socket.connect(api.address).await.expect("it listens")
}

#[tokio::test]
async fn who_does_not_read_a_stream_is_cut_off_and_nothing_is_kept_for_them() {
    const ROWS: usize = 40_000;
    let stall = Duration::from_millis(500);
    let api = Api::with(Limits { stall, streams_per_user_max: 1, ..limits() }).await;
    let id = api.house.active("h100.slice", 1).await.id;
    // More than any connection holds on its way.
    let phases = format!(
        "INSERT INTO node_task_events (task_id, dispatch, seq, phase, stands, at, position)
         SELECT id, dispatch, 1000 + number, 'image_prepared', 'running', clock_timestamp(), 1000 + number
           FROM node_tasks, generate_series(1, {ROWS}) AS number
          WHERE allocation_id = '{id}'"
    );
    api.house.database.tamper(&[phases]).await;
    let statements = Statements::count();
    let mut stream = narrow(&api).await;
    let path = format!("/api/v1/allocations/{id}/events");
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer {}\r\n\r\n",
        api.tenant
    );
    stream.write_all(request.as_bytes()).await.expect("it is taken");
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.expect("it is answered");
    assert_eq!(head, *b"HTTP/1.1 200", "it is the one that there is room for");
    // There is room for one: until the server has let the other go, this one is refused.
    let mut tries = interval(stall / 5);
    let again = timeout(PATIENCE, async {
        let mut refused = 0_usize;
        loop {
            tries.tick().await;
            let request = api.request("GET", &path, Some(&api.tenant));
            let answer = request.send().await.expect("there is an answer");
            match answer.status().as_u16() {
                200 => return refused,
                429 => refused += 1,
                other => panic!("it is answered {other}"),
            }
        }
    });
    assert!(again.await.expect("it was cut off") > 0);
    // What was read from the database is what fits on the way, a few hundred rows at a time; the rest was left there.
    let read = statements.take();
    drop(statements);
    println!("{read} statements until it was cut off");
    let got = read_to_end(&mut stream).await.matches("event: phase").count();
    assert!(got < ROWS, "all {got} were sent to somebody who did not read");
    assert!(read * 200 < ROWS, "{read} statements of 200 rows each for somebody who did not read");
    assert_eq!(told(api.request("GET", "/healthz", None)).await.status, 200);
    api.close().await;
}
