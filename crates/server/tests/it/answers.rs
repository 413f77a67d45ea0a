//! What every answer has, and what it says about how often one may ask.

use std::num::NonZeroU32;

use serde_json::json;
use server::Limits;
use testkit::new_id;

use crate::api::{Api, told};

#[tokio::test]
async fn a_request_is_named_by_the_caller_or_by_us() {
    let api = Api::open().await;
    let id = new_id().to_string();
    for path in ["/api/v1/me", "/healthz", "/nothing"] {
        let request = api.request("GET", path, Some(&api.tenant)).header("x-request-id", &id);
        assert_eq!(told(request).await.header("x-request-id"), id, "{path}");
        let request = api.request("GET", path, Some(&api.tenant)).header("x-request-id", "mine");
        let minted = told(request).await.header("x-request-id").to_owned();
        assert!(minted.parse::<uuid::Uuid>().is_ok_and(|id| id.get_version_num() == 7), "{minted}");
    }
    api.close().await;
}

#[tokio::test]
async fn no_answer_is_kept_or_guessed_at() {
    let api = Api::open().await;
    for path in ["/api/v1/me", "/healthz", "/nothing", "/api/v1/openapi.json"] {
        let told = api.get(path, &api.tenant).await;
        assert_eq!(told.header("cache-control"), "no-store", "{path}");
        assert_eq!(told.header("x-content-type-options"), "nosniff", "{path}");
    }
    api.close().await;
}

#[tokio::test]
async fn a_version_that_is_known_is_not_sent_again() {
    let api = Api::open().await;
    let made = api.send("POST", "/api/v1/allocations", &api.tenant, &api.wish(1)).await;
    let path = made.header("location").to_owned();
    let shown = api.get(&path, &api.tenant).await;
    let tag = shown.header("etag").to_owned();
    assert_eq!(tag, format!("\"{}\"", shown.json()["seq"]));
    for known in [tag.clone(), format!("W/{tag}"), format!("\"0\", {tag}"), "*".to_owned()] {
        let request = api.request("GET", &path, Some(&api.tenant)).header("if-none-match", &known);
        let told = told(request).await;
        assert_eq!((told.status.as_u16(), told.text.as_str()), (304, ""), "{known}");
        assert_eq!(told.header("etag"), tag);
    }
    let request = api.request("GET", &path, Some(&api.tenant)).header("if-none-match", "\"9999\"");
    assert_eq!(told(request).await.status, 200);
    api.close().await;
}

#[tokio::test]
async fn a_list_goes_on_where_the_page_before_ended() {
    let api = Api::open().await;
    for _ in 0..3 {
        api.send("POST", "/api/v1/allocations", &api.tenant, &api.wish(1)).await;
    }
    let (mut ids, mut path) = (Vec::new(), "/api/v1/allocations?limit=2".to_owned());
    loop {
        let page = api.get(&path, &api.tenant).await.json();
        let items = page["items"].as_array().expect("a list").iter();
        ids.extend(items.map(|item| item["id"].as_str().expect("an id").to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/api/v1/allocations?limit=2&cursor={cursor}");
    }
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!((all, ids.len()), (3, 3));
    api.close().await;
}

#[tokio::test]
async fn whoever_asks_too_often_is_told_when_to_come_back() {
    let few = NonZeroU32::new(3).expect("it is not zero");
    let limits = Limits { token_per_minute: few, token_burst: few, ..Limits::default() };
    let api = Api::with(limits).await;
    for left in [2, 1, 0] {
        let told = api.get("/api/v1/me", &api.tenant).await;
        assert_eq!(told.status, 200);
        assert_eq!(told.header("ratelimit-policy"), "\"token\";q=3;w=60");
        assert!(
            told.header("ratelimit").starts_with(&format!("\"token\";r={left};t=")),
            "{told:?}"
        );
    }
    let told = api.get("/api/v1/me", &api.tenant).await;
    assert_eq!(told.refusal(), (429, "too_many_requests".to_owned()));
    assert!(
        told.header("retry-after").parse::<u64>().is_ok_and(|wait| (1..=20).contains(&wait)),
        "{told:?}"
    );
    assert_eq!(api.get("/api/v1/me", &api.operator).await.status, 200, "others may");
    api.close().await;
}

#[tokio::test]
async fn passwords_are_not_guessed_here() {
    let few = NonZeroU32::new(2).expect("it is not zero");
    let api = Api::with(Limits { login_per_minute: few, ..Limits::default() }).await;
    let wrong = json!({"email": "tenant@example.test", "password": "wrong"});
    let mut seen = Vec::new();
    for _ in 0..3 {
        let told = told(api.request("POST", "/api/v1/login", None).json(&wrong)).await;
        seen.push(told.refusal().0);
    }
    assert_eq!(seen, [401, 401, 429]);
    api.close().await;
}

#[tokio::test]
async fn more_than_can_be_done_is_turned_away_at_once() {
    let api = Api::with(Limits { in_flight_max: 0, ..Limits::default() }).await;
    let mut back = Vec::new();
    for _ in 0..6 {
        let shed = api.get("/api/v1/me", &api.tenant).await;
        assert_eq!(shed.refusal(), (503, "unavailable".to_owned()));
        back.push(shed.header("retry-after").to_owned());
    }
    assert_eq!(back, ["1", "2", "3", "4", "5", "1"], "they do not all come back at once");
    assert_eq!(told(api.request("GET", "/healthz", None)).await.status, 200, "it lives");
    api.close().await;
}
