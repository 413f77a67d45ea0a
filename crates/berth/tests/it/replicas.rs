//! Two replicas that share nothing but the database: what is done through one is heard at the other at once.

use std::path::Path;
use std::time::Duration;

use agent::{Answer, Gateway as _, HttpGateway, Identity};
use reqwest::Response;
use serde_json::{Value, json};
use testkit::{CLEAN, House};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::node::{Access, SignedTask, TaskOutcome, TaskResult};

use crate::process::{Person, Process, first_heartbeat, free, wish};
use crate::roles::machine;

/// Long before a wait ends by itself (27 s) or a stream gives a sign of life (15 s): nothing else than a ring is as fast.
const PROMPT: Duration = Duration::from_secs(8);

/// Adds a node through `api`, and lets its agent enrol and be heard once; what is left is its identity.
async fn enrolled(house: &House, api: &str, folder: &Path) -> HttpGateway {
    let operator = Person::operator(house).await;
    let node = json!({ "name": "n", "region": "eu-1", "sku": "h100.slice", "slots": [0, 0, 0, 0, 1, 1, 1, 1] });
    let made = operator.post(api, "/admin/nodes", &node).await;
    let images = operator.get(api, "/images").await;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    agents.spawn(agent::run(machine(&made, &images, folder), stop.clone()));
    first_heartbeat(house).await;
    stop.cancel();
    while agents.join_next().await.is_some() {}
    let identity = Identity::find(folder).expect("it can be read").expect("it was kept");
    HttpGateway::new(&identity).expect("it can be used")
}

/// A wait that the gateway is certainly in: of two the later ends the earlier.
async fn held(link: &HttpGateway) -> Answer<'_, Vec<SignedTask>> {
    let (mut one, mut two) = (link.wait(), link.wait());
    let (ended, other) = tokio::select! {
        ended = &mut one => (ended, two),
        ended = &mut two => (ended, one),
    };
    assert_eq!(ended.expect("it is let go"), []);
    other
}

/// What a wait is answered with, which must be a task, and at once.
async fn woken(waiting: Answer<'_, Vec<SignedTask>>) -> SignedTask {
    let answer = timeout(PROMPT, waiting).await.expect("it is woken, long before its time is over");
    answer.expect("an answer").pop().expect("a task, and not the end of its time")
}

async fn answer(link: &HttpGateway, given: &SignedTask, outcome: TaskOutcome) {
    let result = TaskResult { dispatch: given.dispatch, outcome, phases: Vec::new() };
    let heard = link.result(given.task_id, &result).await.expect("it is heard");
    assert!(heard.applied, "{heard:?}");
}

/// Reads on until the stream has told that the allocation is so.
async fn told(stream: &mut Response, seen: &mut String, status: &str) {
    let told = async {
        while !seen.contains(&format!("\"allocation_status\":\"{status}\"")) {
            let more = stream.chunk().await.expect("it is open").expect("it goes on");
            seen.push_str(&String::from_utf8_lossy(&more));
        }
    };
    assert!(timeout(PROMPT, told).await.is_ok(), "never {status}: {seen}");
}

#[tokio::test]
async fn a_wait_and_a_stream_at_one_replica_hear_at_once_of_what_is_done_through_the_other() {
    let house = House::open().await;
    let (apis, gateways) = ([free(), free()], [free(), free()]);
    let url = format!("https://{}", gateways[1]);
    let replica = |number: usize, roles: &str| {
        let settings = [
            ("BERTH_LISTEN_API", apis[number].as_str()),
            ("BERTH_LISTEN_GATEWAY", &gateways[number]),
            ("BERTH_GATEWAY_URL", &url),
        ];
        Process::start(&house, roles, &settings)
    };
    // Whoever queues a task is not where the agent waits.
    let (here, there) = (&apis[0], &apis[1]);
    let queues = replica(0, "api,gateway,relay,worker").ready().await;
    let waits = replica(1, "api,gateway").ready().await;
    let tenant = Person::tenant(&house).await;
    let folder = tempfile::tempdir().expect("a folder");
    let link = enrolled(&house, here, folder.path()).await;

    let waiting = held(&link).await;
    let made: Value = tenant.post(here, "/allocations", &wish(&house, 2)).await;
    let provision = woken(waiting).await;
    let id: Uuid = made["id"].as_str().expect("an id").parse().expect("an id");
    assert_eq!(testkit::envelope_of(&provision).allocation_id, id);

    let events = format!("http://{there}/api/v1/allocations/{id}/events");
    let stream = tenant.http.get(events).bearer_auth(&tenant.token).send().await;
    let (mut stream, mut seen) = (stream.expect("a stream"), String::new());
    told(&mut stream, &mut seen, "provisioning").await;
    assert!(!seen.contains("\"allocation_status\":\"active\""), "{seen}");
    let access = Access { host: "192.0.2.1".to_owned(), port: 22, user: "u".to_owned() };
    answer(&link, &provision, TaskOutcome::Provisioned { access }).await;
    told(&mut stream, &mut seen, "active").await;

    let waiting = held(&link).await;
    tenant.post(here, &format!("/allocations/{id}/release"), &json!({})).await;
    told(&mut stream, &mut seen, "releasing").await;
    let release = woken(waiting).await;
    answer(&link, &release, TaskOutcome::Cleaned { proof: CLEAN }).await;
    told(&mut stream, &mut seen, "released").await;
    drop((stream, link, queues, waits));
    house.close().await;
}
