//! Agents are replaced after the control plane, one by one: who speaks the version before is understood, in the words that
//! were kept of it, and spoken to in them.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use wire::node::{PROTOCOL, PROTOCOL_HEADER, PROTOCOL_OLDEST, SignedTask, TaskBatch};

use crate::gateway::{Agent, Site, problem};

/// A message of the version before, as it was kept.
fn kept(name: &str) -> Value {
    let path = format!(
        "{}/../wire/tests/golden/protocol-{PROTOCOL_OLDEST}/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    serde_json::from_str(&std::fs::read_to_string(path).expect("it is kept")).expect("it is JSON")
}

fn keys(of: &Value) -> Vec<&String> {
    of.as_object().expect("an object").keys().collect()
}

async fn told(agent: &Agent, path: &str, body: &Value) -> Value {
    let answer = agent.link.post(path, body).await;
    assert_eq!(answer.status(), StatusCode::OK, "{path}");
    answer.json().await.expect("an answer")
}

#[tokio::test]
async fn an_agent_of_the_version_before_is_understood_and_told_nothing_that_it_does_not_know() {
    let site = Site::open().await;
    // It does not say its version: the first one could not.
    let agent = site.agent("n", "h100.slice").await;
    let mut beat = kept("heartbeat");
    beat["guests"] = json!([]);
    beat["leases"] = json!([]);
    assert_eq!(
        keys(&told(&agent, "heartbeat", &beat).await),
        keys(&kept("heartbeat_answer")),
        "no more and no less than it knows"
    );
    let id = site.house.create("h100.slice", 1).await.expect("it fits").id;
    site.house.settle().await;
    let task: Value = agent.link.wait().await.json().await.expect("a task");
    assert_eq!(keys(&task), keys(&kept("task")));
    let envelope: Value =
        serde_json::from_str(task["envelope"].as_str().expect("a text")).expect("an envelope");
    assert_eq!(envelope["v"], PROTOCOL_OLDEST);
    let known = kept("envelope_slice_provision");
    assert_eq!(keys(&envelope), keys(&known));
    assert_eq!(keys(&envelope["params"]), keys(&known["params"]));
    assert_eq!(keys(&envelope["params"]["slots"][0]), keys(&known["params"]["slots"][0]));

    let path = |of: &str| format!("tasks/{}/{of}", task["task_id"].as_str().expect("an id"));
    let heard = told(&agent, &path("events"), &kept("phases")).await;
    assert_eq!((keys(&heard), &heard["applied"]), (keys(&kept("acknowledged")), &json!(true)));
    let heard = told(&agent, &path("result"), &kept("result_provisioned")).await;
    assert_eq!(heard["applied"], true);
    site.house.settle().await;
    assert_eq!(site.house.show(id).await.status.to_string(), "active");
    drop(agent);
    site.close().await;
}

#[tokio::test]
async fn an_agent_of_this_version_is_spoken_to_in_it_and_one_of_another_is_told_what_to_upgrade() {
    let site = Site::open().await;
    let agent = site.agent("n", "h100.slice").await;
    assert_eq!(agent.beat(&["ubuntu-24.04-cuda"]).await.status(), StatusCode::OK);
    site.house.create("h100.slice", 1).await.expect("it fits");
    site.house.settle().await;
    let wait = async |version: &str| {
        let request = agent.link.request(Method::GET, "tasks/wait");
        request.header(PROTOCOL_HEADER, version).send().await.expect("an answer")
    };
    for (version, upgrade) in
        [(PROTOCOL + 1, "upgrade the control plane"), (PROTOCOL_OLDEST - 1, "upgrade the agent")]
    {
        let answer = wait(&version.to_string()).await;
        let text = answer.text().await.expect("a text");
        assert!(text.contains(upgrade) && text.contains("\"status\":422"), "{text}");
    }
    assert_eq!(problem(wait("two").await).await, (400, "bad_request".to_owned()));
    let task: Value = wait(&PROTOCOL.to_string()).await.json().await.expect("it was not lost");
    let envelope: Value =
        serde_json::from_str(task["envelope"].as_str().expect("a text")).expect("an envelope");
    assert_eq!(envelope["v"], PROTOCOL);
    drop(agent);
    site.close().await;
}

/// An agent that takes several says so; who does not say so is handed one, in the words it knows.
#[tokio::test]
async fn an_agent_that_takes_several_tasks_is_handed_them_at_once() {
    let site = Site::open().await;
    let agent = site.agent("n", "h100.slice").await;
    assert_eq!(agent.beat(&["ubuntu-24.04-cuda"]).await.status(), StatusCode::OK);
    for _ in 0..4 {
        site.house.create("h100.slice", 1).await.expect("it fits");
    }
    site.house.settle().await;
    let wait = async |path: &str| {
        let request = agent.link.request(Method::GET, path).header(PROTOCOL_HEADER, PROTOCOL);
        request.send().await.expect("an answer")
    };
    for nonsense in ["most=0", "most=-1", "most=many", "most=70000", "seconds=0", "seconds=long"] {
        let answer = wait(&format!("tasks/wait?{nonsense}")).await;
        assert_eq!(problem(answer).await, (400, "bad_request".to_owned()), "{nonsense}");
    }
    let two: TaskBatch = wait("tasks/wait?most=2").await.json().await.expect("a batch");
    assert_eq!(two.tasks.len(), 2);
    let one: SignedTask = wait("tasks/wait").await.json().await.expect("a task");
    assert!(two.tasks.iter().all(|task| task.task_id != one.task_id));
    let rest: TaskBatch = wait("tasks/wait?most=60000").await.json().await.expect("a batch");
    assert_eq!(rest.tasks.len(), 1, "what is left");
    // Who says for how long waits no longer.
    let wait = tokio::time::timeout(Duration::from_secs(10), wait("tasks/wait?most=2&seconds=1"));
    assert_eq!(wait.await.expect("it is over").status(), StatusCode::NO_CONTENT);
    drop(agent);
    site.close().await;
}
