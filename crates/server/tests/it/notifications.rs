//! What people are told, over real connections: listed, read, and on a stream that misses nothing, wherever it was written.

use std::time::Duration;

use control::assemble;
use serde_json::{Value, json};
use server::Limits;
use spine::{Clock, wake};
use store::notifications::{self, News};
use testkit::new_id;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::api::{Api, PATIENCE, told};
use crate::events::{Reader, quick};

const EVENTS: &str = "/api/v1/events";

/// Tells somebody something, on this store, and so with its bell.
async fn tell(store: &store::Store, user: Uuid) -> String {
    let mut tx = store.begin().await.expect("a transaction");
    let to = notifications::address(&mut tx, &[user]).await.expect("somebody");
    let cause = new_id().to_string();
    let news = News {
        kind: "webhook.test",
        cause: &cause,
        title: &cause,
        body: "b",
        project_id: None,
        allocation_id: None,
        payment_session_id: None,
        webhook_id: None,
        now: jiff::Timestamp::UNIX_EPOCH,
    };
    notifications::tell(&mut tx, &to, &news).await.expect("told");
    tx.commit().await.expect("committed");
    cause
}

#[tokio::test]
async fn what_somebody_is_told_is_listed_read_and_counted() {
    let api = Api::open().await;
    let (store, user) = (&api.house.ctx.store, api.house.tenant.user_id);
    for _ in 0..3 {
        tell(store, user).await;
    }
    let page = api.get("/api/v1/notifications?limit=2", &api.tenant).await.json();
    let number = |page: &Value, place: usize| page["items"][place]["number"].as_i64();
    assert_eq!(
        (page["unread"].as_i64(), number(&page, 0), number(&page, 1)),
        (Some(3), Some(3), Some(2))
    );
    let cursor = page["next_cursor"].as_str().expect("there is more");
    let path = format!("/api/v1/notifications?limit=2&cursor={cursor}");
    assert_eq!(number(&api.get(&path, &api.tenant).await.json(), 0), Some(1));
    let id = page["items"][0]["id"].as_str().expect("an id");
    let path = format!("/api/v1/notifications/{id}/read");
    let read = told(api.request("POST", &path, Some(&api.tenant))).await;
    assert!(read.status == 200 && read.json()["read_at"].is_string(), "{read:?}");
    let unread = api.get("/api/v1/notifications?unread=true", &api.tenant).await.json();
    assert_eq!((unread["unread"].as_i64(), number(&unread, 0)), (Some(2), Some(2)));
    let all = json!({"up_to": 1});
    let read = api.send("POST", "/api/v1/notifications/read-all", &api.tenant, &all).await;
    assert_eq!(read.json(), json!({"read": 1}));
    let wrong = json!({"up_to": -1});
    let wrong = api.send("POST", "/api/v1/notifications/read-all", &api.tenant, &wrong).await;
    assert_eq!(wrong.refusal().0, 422);
    api.close().await;
}

#[tokio::test]
async fn a_stream_that_is_resumed_after_every_event_tells_each_once_and_in_order() {
    let mut api = Api::with(quick()).await;
    let user = api.house.tenant.user_id;
    let mut expected = Vec::new();
    for _ in 0..4 {
        expected.push(tell(&api.house.ctx.store, user).await);
    }
    let (mut last, mut seen) = ("0".to_owned(), Vec::new());
    for number in 0..4 {
        if number == 2 {
            api.restart(quick()).await;
        }
        let mut reader = Reader::at(&api, EVENTS, Some(&last)).await;
        let sent = reader.next().await.expect("there is more");
        assert_eq!(
            (sent.name.as_str(), sent.id.as_str()),
            ("notification", (number + 1).to_string().as_str())
        );
        last = sent.id;
        let told: Value = serde_json::from_str(&sent.text).expect("it is JSON");
        seen.push(told["title"].as_str().expect("a title").to_owned());
    }
    // From here on the stream is open while something comes.
    let mut reader = Reader::at(&api, EVENTS, Some(&last)).await;
    for number in 5..8 {
        expected.push(tell(&api.house.ctx.store, user).await);
        let sent = reader.next().await.expect("it comes");
        assert_eq!(sent.id, number.to_string());
        let told: Value = serde_json::from_str(&sent.text).expect("it is JSON");
        seen.push(told["title"].as_str().expect("a title").to_owned());
    }
    assert_eq!(seen, expected);
    drop(reader);
    api.close().await;
}

#[tokio::test]
async fn who_begins_without_a_place_is_told_what_comes_and_has_a_place_to_come_back_to() {
    let api = Api::with(quick()).await;
    let (store, user) = (api.house.ctx.store.clone(), api.house.tenant.user_id);
    tell(&store, user).await;
    let beginning = told(api.request("GET", EVENTS, Some(&api.tenant))).await;
    assert!(beginning.text.contains("id: 1") && !beginning.text.contains("data:"), "{beginning:?}");
    // Told while nobody was connected; the place was given with the first line.
    let missed = tell(&store, user).await;
    let mut reader = Reader::at(&api, EVENTS, Some("1")).await;
    assert!(reader.next().await.expect("it was missed").text.contains(&missed));
    let mut reader = Reader::at(&api, &format!("{EVENTS}?after=0"), None).await;
    assert_eq!(reader.next().await.expect("the first").id, "1");
    for garbage in ["abc", "-1", "", "1.5"] {
        let request = api.request("GET", EVENTS, Some(&api.tenant));
        let told = told(request.header("last-event-id", garbage)).await;
        assert_eq!(told.refusal(), (400, "bad_request".to_owned()), "{garbage}");
    }
    // Nobody hears what another is told.
    let mut reader = Reader::at(&api, EVENTS, Some("2")).await;
    tell(&store, api.house.operator.user_id).await;
    let own = tell(&store, user).await;
    assert!(reader.next().await.expect("their own").text.contains(&own));
    drop(reader);
    api.close().await;
}

#[tokio::test]
async fn a_stream_of_ones_own_ends_when_its_token_does() {
    let api = Api::with(quick()).await;
    let mut reader = Reader::at(&api, EVENTS, None).await;
    let tokens = api.get("/api/v1/tokens", &api.tenant).await.json();
    for token in tokens["items"].as_array().expect("a list") {
        let path = format!("/api/v1/tokens/{}", token["id"].as_str().expect("an id"));
        told(api.request("DELETE", &path, Some(&api.tenant))).await;
    }
    timeout(PATIENCE, async { while reader.next().await.is_some() {} }).await.expect("it ends");
    api.close().await;
}

/// The same installation in another process.
async fn elsewhere(api: &Api) -> control::Ctx {
    let store = api.house.database.store.clone();
    assemble(store, Clock::system(), api.house.ctx.policies()).await.expect("it stands").ctx
}

#[tokio::test]
async fn what_another_process_tells_is_heard_here_at_once() {
    // A beat is longer than the test: nothing but a ring tells of it.
    let api = Api::with(Limits { stream_beat: Duration::from_secs(600), ..quick() }).await;
    let other = elsewhere(&api).await;
    let (stop, mut bridges) = (CancellationToken::new(), JoinSet::new());
    for ctx in [&api.house.ctx, &other] {
        bridges.spawn(wake::bridge(ctx.store.clone(), ctx.wake.clone(), stop.clone()));
    }
    let mut reader = Reader::at(&api, EVENTS, Some("0")).await;
    for number in 1..4 {
        tell(&other.store, api.house.tenant.user_id).await;
        assert_eq!(reader.next().await.expect("it is heard").id, number.to_string());
    }
    stop.cancel();
    while bridges.join_next().await.is_some() {}
    drop(reader);
    api.close().await;
}

#[tokio::test]
async fn what_nobody_rang_for_is_found_by_the_sweep() {
    let api = Api::with(quick()).await;
    let other = elsewhere(&api).await;
    let mut reader = Reader::at(&api, EVENTS, Some("0")).await;
    for number in 1..4 {
        // There is no bridge between the two: the ring is lost.
        tell(&other.store, api.house.tenant.user_id).await;
        assert_eq!(reader.next().await.expect("it is found").id, number.to_string());
    }
    drop(reader);
    api.close().await;
}
