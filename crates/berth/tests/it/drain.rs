//! A process that is told to end: whoever asks at the time is answered, whoever watches goes on elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use reqwest::Client;
use serde_json::json;
use testkit::{House, new_id};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::process::{PATIENCE, Person, Process, free, moment, status, wish};

/// People who ask all the time at one place, with connections that stay open and with fresh ones.
const PEOPLE: usize = 4;
/// So many requests are answered before anything happens.
const WARM: u64 = 60;

#[derive(Default)]
struct Crowd {
    /// Whether a balancer would send anybody there.
    open: AtomicBool,
    over: AtomicBool,
    answered: AtomicU64,
}

/// Asks and changes something, again and again, and says how often it was not answered well.
async fn person(crowd: Arc<Crowd>, at: String, token: String, fresh: bool) -> Vec<String> {
    let client = || Client::builder().no_proxy().timeout(PATIENCE).build().expect("a client");
    let (mut http, mut failed) = (client(), Vec::new());
    while !crowd.over.load(Relaxed) {
        if !crowd.open.load(Relaxed) {
            moment().await;
            continue;
        }
        if fresh {
            http = client();
        }
        let name = json!({ "name": format!("p{}", new_id().simple()) });
        let url = format!("http://{at}/api/v1/projects");
        let change = http
            .post(&url)
            .bearer_auth(&token)
            .header("idempotency-key", new_id().to_string())
            .json(&name);
        for request in [change, http.get(&url).bearer_auth(&token)] {
            match request.send().await {
                Ok(answer) if answer.status().is_success() => match answer.bytes().await {
                    Ok(_) => {
                        crowd.answered.fetch_add(1, Relaxed);
                    }
                    Err(error) => failed.push(format!("cut off: {error:?}")),
                },
                Ok(answer) => failed.push(format!("answered {}", answer.status())),
                Err(error) => failed.push(format!("{error:?}")),
            }
        }
    }
    failed
}

/// Sends people where it is ready, as a balancer does.
async fn balance(crowd: Arc<Crowd>, health: String) {
    while !crowd.over.load(Relaxed) {
        crowd.open.store(status(&health).await == Some(200), Relaxed);
        moment().await;
    }
}

async fn until(crowd: &Crowd, answered: u64) {
    let enough = async {
        while crowd.answered.load(Relaxed) < answered {
            moment().await;
        }
    };
    timeout(PATIENCE, enough).await.expect("they are answered");
}

/// It says at once that it ends, and is still there.
async fn is_ending(ending: &mut Process, tenant: &Person, here: &str) {
    let told = async {
        while status(&ending.health).await != Some(503) {
            moment().await;
        }
    };
    timeout(Duration::from_secs(5), told).await.expect("it says that it ends");
    assert_eq!(ending.ended(), None);
    let last = tenant.http.get(format!("http://{here}/healthz")).send().await;
    let last = last.expect("it is served");
    let connection = last.headers()["connection"].as_bytes();
    assert_eq!((last.status().as_u16(), connection), (200, &b"close"[..]));
}

/// The next piece of a stream; none when it ended in order.
async fn piece(stream: &mut reqwest::Response) -> Option<String> {
    let chunk = timeout(PATIENCE, stream.chunk()).await.expect("in time").expect("in order");
    chunk.map(|chunk| String::from_utf8_lossy(&chunk).into_owned())
}

/// Who watches is let go in order; answers the last that they have `seen`, with which they go on elsewhere.
async fn read_to_end(mut stream: reqwest::Response, mut seen: String) -> String {
    while let Some(piece) = piece(&mut stream).await {
        seen.push_str(&piece);
    }
    let ids = seen.lines().filter_map(|line| line.strip_prefix("id:"));
    ids.map(str::trim).next_back().expect("something was told").to_owned()
}

#[tokio::test]
async fn a_process_that_is_told_to_end_fails_no_request() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 0, 0]).await;
    let tenant = Person::tenant(&house).await;
    let (mut processes, mut crowds, mut people) = (Vec::new(), Vec::new(), JoinSet::new());
    for _ in 0..2 {
        let (api, gateway) = (free(), free());
        let settings = [
            ("BERTH_LISTEN_API", api.as_str()),
            ("BERTH_LISTEN_GATEWAY", &gateway),
            ("BERTH_DRAIN_NOTICE_SECONDS", "2"),
        ];
        let process = Process::start(&house, "api,gateway,relay,worker", &settings).ready().await;
        let crowd = Arc::new(Crowd::default());
        for number in 0..PEOPLE {
            people.spawn(person(
                Arc::clone(&crowd),
                api.clone(),
                tenant.token.clone(),
                number == 0,
            ));
        }
        let balancer = (Arc::clone(&crowd), process.health.clone());
        people.spawn(async move {
            balance(balancer.0, balancer.1).await;
            Vec::new()
        });
        processes.push((process, api));
        crowds.push(crowd);
    }
    for crowd in &crowds {
        until(crowd, WARM).await;
    }
    let (other, there) = processes.pop().expect("there are two");
    let (mut ending, here) = processes.pop().expect("there are two");
    let id = tenant.post(&there, "/allocations", &wish(&house, 1)).await["id"].clone();
    let events = format!("/api/v1/allocations/{}/events", id.as_str().expect("an id"));
    let watch =
        |at: &str| tenant.http.get(format!("http://{at}{events}")).bearer_auth(&tenant.token);
    let mut stream = watch(&here).send().await.expect("a stream");
    let mut seen = String::new();
    while !seen.contains("\nid:") && !seen.starts_with("id:") {
        seen.push_str(&piece(&mut stream).await.expect("it is open"));
    }

    ending.signal("-TERM");
    is_ending(&mut ending, &tenant, &here).await;
    let last = read_to_end(stream, seen).await;
    let again = watch(&there).header("last-event-id", last).send().await.expect("a stream");
    assert_eq!(again.status(), 200);
    drop(again);
    let (code, said) = ending.end().await;
    assert_eq!(code, 0, "{said}");
    let answered = crowds[1].answered.load(Relaxed);
    until(&crowds[1], answered + WARM).await;
    crowds.iter().for_each(|crowd| crowd.over.store(true, Relaxed));
    let failed: Vec<String> = people.join_all().await.into_iter().flatten().collect();
    assert_eq!(failed, Vec::<String>::new());
    drop(other);
    house.close().await;
}

#[tokio::test]
async fn processes_that_share_an_address_hand_over_without_a_failed_request() {
    let house = House::open().await;
    let tenant = Person::tenant(&house).await;
    let (api, gateway) = (free(), free());
    let settings = [
        ("BERTH_LISTEN_API", api.as_str()),
        ("BERTH_LISTEN_GATEWAY", &gateway),
        ("BERTH_LISTEN_SHARE_PORT", "true"),
        ("BERTH_DRAIN_NOTICE_SECONDS", "1"),
    ];
    let start = || Process::start(&house, "api,gateway", &settings);
    let (first, mut people) = (start().ready().await, JoinSet::new());
    let crowd = Arc::new(Crowd::default());
    crowd.open.store(true, Relaxed);
    for number in 0..PEOPLE {
        let fresh = number < PEOPLE / 2;
        people.spawn(person(Arc::clone(&crowd), api.clone(), tenant.token.clone(), fresh));
    }
    until(&crowd, WARM).await;
    // Nobody is told where to go: the kernel shares them out among those that listen.
    let mut running = first;
    for _ in 0..2 {
        let next = start().ready().await;
        let answered = crowd.answered.load(Relaxed);
        until(&crowd, answered + WARM).await;
        running.signal("-TERM");
        let (code, said) = running.end().await;
        assert_eq!(code, 0, "{said}");
        running = next;
    }
    let answered = crowd.answered.load(Relaxed);
    until(&crowd, answered + WARM).await;
    crowd.over.store(true, Relaxed);
    let failed: Vec<String> = people.join_all().await.into_iter().flatten().collect();
    assert_eq!(failed, Vec::<String>::new());
    drop(running);
    house.close().await;
}
