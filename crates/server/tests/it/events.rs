//! Streams over real connections: resumed after every event and over a restart of the server, ended when they must be, and
//! no more of them than there may be.

use std::time::Duration;

use reqwest::{Response, StatusCode};
use server::Limits;
use testkit::Act;
use tokio::time::timeout;
use uuid::Uuid;

use crate::api::{Api, PATIENCE, told};

/// One event, as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A stream that is read event by event.
pub(crate) struct Reader {
    answer: Response,
    buffer: String,
    /// The last id that came, with an event or without.
    pub(crate) last: Option<String>,
}

impl Reader {
    async fn open(api: &Api, id: Uuid, last: Option<&str>) -> Reader {
        Reader::at(api, &format!("/api/v1/allocations/{id}/events"), last).await
    }

    /// The tenant's stream at that path.
    pub(crate) async fn at(api: &Api, path: &str, last: Option<&str>) -> Reader {
        let mut request = api.request("GET", path, Some(&api.tenant));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let answer = request.send().await.expect("there is an answer");
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        assert_eq!(answer.headers()["cache-control"], "no-store");
        assert_eq!(answer.headers()["x-accel-buffering"], "no");
        Reader { answer, buffer: String::new(), last: None }
    }

    /// The next event; none when the stream has ended. Comments are passed over.
    pub(crate) async fn next(&mut self) -> Option<Sent> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let field = |name: &str| {
                    let line = block.lines().find_map(|line| line.strip_prefix(name));
                    line.map(|text| text.trim_start().to_owned())
                };
                let (id, name, text) = (field("id:"), field("event:"), field("data:"));
                self.buffer = rest.to_owned();
                self.last = id.clone().or(self.last.take());
                if let Some(text) = text {
                    let (id, name) = (id.unwrap_or_default(), name.unwrap_or_default());
                    return Some(Sent { id, name, text });
                }
                continue;
            }
            let chunk = timeout(PATIENCE, self.answer.chunk()).await.expect("it goes on or ends");
            match chunk {
                Ok(Some(bytes)) => self.buffer.push_str(&String::from_utf8_lossy(&bytes)),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

pub(crate) fn quick() -> Limits {
    let many = std::num::NonZeroU32::MAX;
    Limits {
        token_per_minute: many,
        token_burst: many,
        stream_beat: Duration::from_millis(50),
        streams_per_user_max: 3,
        ..Limits::default()
    }
}

#[tokio::test]
async fn a_stream_that_is_resumed_after_every_event_tells_every_row_once() {
    let mut api = Api::with(quick()).await;
    api.house.first_node().will(&[Act::Succeed, Act::LeaveResidue]);
    let id = api.house.active("h100.slice", 1).await.id;
    api.house.release(id).await.expect("theirs");
    api.house.settle().await;
    let (mut last, mut seen): (Option<String>, Vec<Sent>) = (None, Vec::new());
    // Up to here somebody reads one event a connection; in the middle the server is another one.
    for number in 0..6 {
        if number == 3 {
            api.restart(quick()).await;
        }
        let mut reader = Reader::open(&api, id, last.as_deref()).await;
        let sent = reader.next().await.expect("there is more");
        last = Some(sent.id.clone());
        seen.push(sent);
    }
    // From here on the stream is open while things happen.
    let mut reader = Reader::open(&api, id, last.as_deref()).await;
    let (sent, ()) = tokio::join!(
        async {
            let mut sent = Vec::new();
            while let Some(each) = reader.next().await {
                sent.push(each);
            }
            sent
        },
        api.house.pass(Duration::from_secs(10)),
    );
    seen.extend(sent);
    let end = seen.pop().expect("an end");
    assert_eq!((end.name.as_str(), end.text.as_str()), ("end", "{\"status\":\"released\"}"));
    assert_eq!(seen.len(), api.house.happenings(id).await.len(), "{seen:#?}");
    let mut ids: Vec<&str> = seen.iter().map(|sent| sent.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), seen.len(), "nothing was told twice");
    // Who has seen it all is told that it is over, and nothing else.
    let mut reader = Reader::open(&api, id, Some(&seen[seen.len() - 1].id)).await;
    assert_eq!(reader.next().await.map(|sent| sent.name).as_deref(), Some("end"));
    assert_eq!(reader.next().await, None);
    drop(reader);
    api.close().await;
}

#[tokio::test]
async fn what_is_no_last_event_of_this_stream_is_refused_with_what_to_do() {
    let api = Api::with(quick()).await;
    let id = api.house.active("h100.slice", 1).await.id;
    let other = api.house.active("h100.slice", 1).await.id;
    let given = Reader::open(&api, other, None).await.next().await.expect("an event").id;
    let path = format!("/api/v1/allocations/{id}/events");
    for garbage in ["7", "abc.def", given.as_str(), ""] {
        let request = api.request("GET", &path, Some(&api.tenant));
        let told = told(request.header("last-event-id", garbage)).await;
        assert_eq!(told.refusal(), (400, "bad_request".to_owned()), "{garbage}");
        assert!(told.problem().detail.contains("Leave it out"), "{told:?}");
    }
    api.close().await;
}

#[tokio::test]
async fn nobody_has_more_streams_than_they_may_and_a_closed_one_counts_no_more() {
    let api = Api::with(quick()).await;
    let id = api.house.active("h100.slice", 1).await.id;
    let path = format!("/api/v1/allocations/{id}/events");
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut reader = Reader::open(&api, id, None).await;
        reader.next().await.expect("it is open");
        open.push(reader);
    }
    let refused = told(api.request("GET", &path, Some(&api.tenant))).await;
    assert_eq!(refused.refusal(), (429, "too_many_requests".to_owned()));
    assert!(refused.problem().detail.contains("You have 3 streams open"), "{refused:?}");
    assert!(!refused.header("retry-after").is_empty());
    // An operator has their own, and through their own door.
    let admin = format!("/api/v1/admin/allocations/{id}/events");
    let answer = api.request("GET", &admin, Some(&api.operator)).send().await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    drop((answer, open));
    // The server notices when it next writes, which is at the next beat.
    timeout(PATIENCE, async {
        loop {
            let answer = api.request("GET", &path, Some(&api.tenant)).send().await.expect("one");
            if answer.status() == StatusCode::OK {
                break;
            }
        }
    })
    .await
    .expect("there is room again");
    api.close().await;
}

#[tokio::test]
async fn a_stream_ends_when_its_reader_may_no_longer_watch_and_when_the_server_stops() {
    let mut api = Api::with(quick()).await;
    let id = api.house.active("h100.slice", 1).await.id;
    let mut reader = Reader::open(&api, id, None).await;
    reader.next().await.expect("it is open");
    let tokens = api.get("/api/v1/tokens", &api.tenant).await.json();
    for token in tokens["items"].as_array().expect("a list") {
        let path = format!("/api/v1/tokens/{}", token["id"].as_str().expect("an id"));
        told(api.request("DELETE", &path, Some(&api.tenant))).await;
    }
    while reader.next().await.is_some() {}
    // A member who was removed sees no more either.
    let (house, scopes) = (&api.house, [domain::policy::Scope::Read]);
    api.tenant = api.token(house.tenant.user_id, &scopes).await;
    let mut reader = Reader::open(&api, id, None).await;
    reader.next().await.expect("it is open");
    api.house.forget_member(api.house.tenant.user_id).await;
    while reader.next().await.is_some() {}
    let gone =
        told(api.request("GET", &format!("/api/v1/allocations/{id}/events"), Some(&api.tenant)));
    assert_eq!(gone.await.refusal().0, 404);
    // The server stops without waiting for those who watch.
    let path = format!("/api/v1/admin/allocations/{id}/events");
    let request = api.request("GET", &path, Some(&api.operator));
    let answer = request.send().await.expect("an answer");
    let mut reader = Reader { answer, buffer: String::new(), last: None };
    reader.next().await.expect("it is open");
    api.stop.cancel();
    while reader.next().await.is_some() {}
    timeout(Duration::from_secs(5), api.ended()).await.expect("it stops at once");
    api.close().await;
}
