//! Requests that are sent more than once, over HTTP (R06).

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::new_id;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::api::{Api, Told, told};

async fn create(api: &Api, key: &str, body: &Value) -> Told {
    let request = api.request("POST", "/api/v1/allocations", Some(&api.tenant)).json(body);
    told(request.header("idempotency-key", key)).await
}

async fn count(api: &Api) -> usize {
    let list = api.get("/api/v1/allocations?limit=200", &api.tenant).await.json();
    list["items"].as_array().expect("a list").len()
}

#[tokio::test]
async fn the_same_request_with_the_same_key_happens_once() {
    let api = Api::open().await;
    let (key, wish) = (new_id().to_string(), api.wish(1));
    let first = create(&api, &key, &wish).await;
    assert_eq!(first.status, 201, "{first:?}");
    let place = format!("/api/v1/allocations/{}", first.json()["id"].as_str().expect("an id"));
    assert_eq!(first.header("location"), place);
    assert_eq!(first.header("idempotency-replayed"), "");
    let second = create(&api, &key, &wish).await;
    assert_eq!((second.status, second.json()), (first.status, first.json()));
    assert_eq!(
        (second.header("location"), second.header("idempotency-replayed")),
        (place.as_str(), "true")
    );
    assert_eq!(count(&api).await, 1);

    let other = create(&api, &key, &api.wish(2)).await;
    assert_eq!(other.refusal(), (422, "idempotency_mismatch".to_owned()));
    // What a key names belongs to whoever used it.
    let stranger = api.request("POST", "/api/v1/allocations", Some(&api.stranger)).json(&wish);
    let stranger = told(stranger.header("idempotency-key", &key)).await;
    assert_eq!(stranger.refusal(), (404, "not_found".to_owned()));
    assert_eq!(count(&api).await, 1);
    api.close().await;
}

#[tokio::test]
async fn both_spellings_of_the_header_are_one() {
    let api = Api::open().await;
    let post = || api.request("POST", "/api/v1/allocations", Some(&api.tenant)).json(&api.wish(1));
    let first = told(post().header("x-idempotency-key", "one")).await;
    let second = told(post().header("idempotency-key", "one")).await;
    assert_eq!((first.status.as_u16(), first.json()), (201, second.json()));
    let both = post().header("x-idempotency-key", "one").header("idempotency-key", "two");
    assert_eq!(told(both).await.refusal(), (400, "bad_request".to_owned()));
    let long = "k".repeat(256);
    for key in ["", "a b", long.as_str()] {
        let told = told(post().header("idempotency-key", key)).await;
        assert_eq!(told.refusal().0, 400, "{key:?}");
    }
    api.close().await;
}

#[tokio::test]
async fn doors_that_need_a_key_say_so() {
    let api = Api::open().await;
    let id = api.house.create("h100.slice", 1).await.expect("it fits").id;
    let node = json!({"name": "new", "region": "eu-1", "sku": "h100.slice", "slots": [0]});
    let requests = [
        ("/api/v1/allocations".to_owned(), &api.tenant, Some(api.wish(1))),
        (format!("/api/v1/allocations/{id}/release"), &api.tenant, None),
        (
            format!("/api/v1/admin/allocations/{id}/force-release"),
            &api.operator,
            Some(json!({"reason": "x"})),
        ),
        ("/api/v1/admin/nodes".to_owned(), &api.operator, Some(node)),
    ];
    for (path, token, body) in requests {
        let request = api.request("POST", &path, Some(token));
        let request = body.iter().fold(request, |request, body| request.json(body));
        let told = told(request).await;
        assert_eq!(told.refusal(), (400, "idempotency_key_missing".to_owned()), "{path}");
    }
    assert_eq!(api.house.show(id).await.status.to_string(), "requested");
    api.close().await;
}

#[tokio::test]
async fn a_key_of_one_release_is_not_one_of_another() {
    let api = Api::open().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(api.house.active("h100.slice", 1).await.id);
    }
    let mut answers = Vec::new();
    for id in [ids[0], ids[1], ids[0]] {
        let path = format!("/api/v1/allocations/{id}/release");
        let request = api.request("POST", &path, Some(&api.tenant));
        answers.push(told(request.header("idempotency-key", "again")).await);
    }
    assert_eq!(answers[0].status, 202, "{:?}", answers[0]);
    assert_eq!(answers[0].header("location"), format!("/api/v1/allocations/{}", ids[0]));
    assert_eq!(answers[1].refusal(), (422, "idempotency_mismatch".to_owned()));
    assert_eq!(answers[2].json(), answers[0].json());
    assert_eq!(api.house.show(ids[1]).await.status.to_string(), "active");
    api.close().await;
}

/// A hundred requests with one key at one barrier: the answer of those that were not told to wait, which is one and the
/// same, and with that status.
async fn clicks(api: &Arc<Api>, path: &str, body: Option<Value>, status: u16) -> Value {
    const CLICKS: usize = 100;
    let barrier = Arc::new(Barrier::new(CLICKS));
    let mut clicks = JoinSet::new();
    for _ in 0..CLICKS {
        let (api, barrier) = (Arc::clone(api), Arc::clone(&barrier));
        let (path, body) = (path.to_owned(), body.clone());
        clicks.spawn(async move {
            let request = api.request("POST", &path, Some(&api.tenant));
            let request = body.iter().fold(request, |request, body| request.json(body));
            barrier.wait().await;
            told(request.header("idempotency-key", "click")).await
        });
    }
    let mut answers = Vec::new();
    while let Some(told) = clicks.join_next().await {
        let told = told.expect("nothing panicked");
        if told.status.as_u16() == status {
            answers.push(told.json());
        } else {
            assert_eq!(told.refusal(), (409, "idempotency_in_flight".to_owned()), "{told:?}");
            assert_eq!(told.header("retry-after"), "1");
        }
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "there is one answer");
    answers.remove(0)
}

async fn close(api: Arc<Api>) {
    Arc::into_inner(api).expect("all clicks are over").close().await;
}

#[tokio::test]
async fn r06_a_hundred_clicks_at_once_are_one() {
    let api = Arc::new(Api::open().await);
    clicks(&api, "/api/v1/allocations", Some(api.wish(1)), 201).await;
    assert_eq!(count(&api).await, 1);
    close(api).await;
}

#[tokio::test]
async fn r06_a_hundred_clicks_on_restart_restart_once() {
    let api = Arc::new(Api::open().await);
    let before = api.house.active("h100.slice", 1).await;
    let path = format!("/api/v1/allocations/{}/restart", before.id);
    let answer = clicks(&api, &path, None, 202).await;
    assert_eq!(answer["status"], "restarting");
    api.house.settle().await;
    let after = api.house.show(before.id).await;
    assert_eq!((after.status.to_string().as_str(), after.seq), ("active", before.seq + 2));
    let tasks = api.house.tasks(before.id).await;
    assert_eq!(tasks.iter().filter(|task| task.kind == "slice.vm_restart").count(), 1);
    assert_eq!(api.house.deeds("allocation.restart").await, ["done"]);
    close(api).await;
}

#[tokio::test]
async fn r06_a_hundred_clicks_make_one_group_and_give_it_back_once() {
    let api = Arc::new(Api::open().await);
    let groups = "/api/v1/allocation-groups";
    let member = json!({"sku": "h100.slice", "gpus": 1, "region": "eu-1"});
    let wish = json!({"project_id": api.house.project, "members": [member, member]});
    let made = clicks(&api, groups, Some(wish), 201).await;
    assert_eq!(count(&api).await, 2, "its two members and nothing else");
    let listed = api.get(groups, &api.tenant).await.json();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    api.house.settle().await;
    let path = format!("{groups}/{}", made["id"].as_str().expect("an id"));
    let answer = clicks(&api, &format!("{path}/release"), None, 202).await;
    assert_eq!(answer["status"], "releasing");
    api.house.settle().await;
    assert_eq!(api.get(&path, &api.tenant).await.json()["status"], "released");
    for member in made["members"].as_array().expect("members") {
        let id = member["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
        let published = api.house.published(id).await;
        let asked = published.iter().filter(|each| each.ends_with("releasing.requested"));
        assert_eq!(asked.count(), 1, "each member is asked once");
    }
    let deeds = ["group.create", "group.release"];
    for deed in deeds {
        assert_eq!(api.house.deeds(deed).await, ["done"], "{deed}");
    }
    close(api).await;
}

#[tokio::test]
async fn a_secret_is_shown_once_however_often_it_is_asked_for() {
    let api = Api::open().await;
    let node = json!({"name": "new", "region": "eu-1", "sku": "h100.slice", "slots": [0]});
    let post = || {
        let request = api.request("POST", "/api/v1/admin/nodes", Some(&api.operator)).json(&node);
        request.header("idempotency-key", "secret")
    };
    let first = told(post()).await;
    assert_eq!(first.status, 201, "{first:?}");
    let secret = first.json()["join_token"].as_str().expect("a token").to_owned();
    let second = told(post()).await;
    assert_eq!(second.refusal(), (409, "conflict".to_owned()));
    assert!(!second.text.contains(&secret));
    api.close().await;
}
