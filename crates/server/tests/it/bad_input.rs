//! Bodies, heads and queries that nobody should send (R32): each is refused with a problem, none breaks anything, and
//! nothing is changed.

use serde_json::{Map, Value, json};
use server::doors::{Door, routes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::api::{Api, PATIENCE, Told, document, example, told};

fn path_of(api: &Api, door: &Door) -> String {
    let path = door.path.replace("{id}", &api.house.project.to_string());
    path.replace("{user_id}", &api.house.tenant.user_id.to_string())
}

/// Doors that take a body, each with a body that it would take.
fn doors_with_bodies() -> Vec<(Door, Value)> {
    let document = document();
    let with = |door: Door| example(&document, &door).map(|body| (door, body));
    routes::doors().into_iter().filter_map(with).collect()
}

async fn send(api: &Api, door: &Door, bytes: Vec<u8>, kind: &str) -> Told {
    let request = api.request(door.method, &path_of(api, door), Some(&api.operator));
    let request = request.header("idempotency-key", "bad-input").header("content-type", kind);
    told(request.body(bytes)).await
}

/// The bytes, and the statuses that they may get.
fn bad_bodies(good: &Value) -> Vec<(&'static str, Vec<u8>, &'static [u16])> {
    let text = good.to_string();
    let inside = &text[1..text.len() - 1];
    let mut wrong = good.clone();
    wrong.as_object_mut().expect("an object").values_mut().for_each(|value| *value = json!([{}]));
    let mut huge = good.clone();
    huge.as_object_mut().expect("an object").values_mut().for_each(|value| *value = json!(1e308));
    let name = good.as_object().and_then(|fields| fields.keys().next()).expect("a field");
    let deep =
        |open: &str, close: &str| format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
    vec![
        ("empty", Vec::new(), &[400]),
        ("white space", b" \n".to_vec(), &[400]),
        ("half", text.as_bytes()[..text.len() / 2].to_vec(), &[400]),
        ("two", format!("{text}{text}").into_bytes(), &[400]),
        ("null", b"null".to_vec(), &[422]),
        ("a list", format!("[{text}]").into_bytes(), &[422]),
        ("an empty object", b"{}".to_vec(), &[422]),
        ("wrong types", wrong.to_string().into_bytes(), &[422]),
        ("vast numbers", huge.to_string().into_bytes(), &[422]),
        ("a number beyond all", format!("{{{inside},\"x\":1e400}}").into_bytes(), &[400]),
        ("an unknown field", format!("{{{inside},\"status\":\"ready\"}}").into_bytes(), &[422]),
        ("a name twice", format!("{{{inside},{inside}}}").into_bytes(), &[400]),
        ("a lone surrogate", format!("{{\"{name}\":\"\\ud800\"}}").into_bytes(), &[400]),
        ("NUL", format!("{{\"{name}\":\"a\\u0000b\"}}").into_bytes(), &[400]),
        ("not UTF-8", b"{\"name\":\"\xff\xfe\"}".to_vec(), &[400]),
        ("deep lists", deep("[", "]").into_bytes(), &[400]),
        ("deep objects", deep("{\"a\":", "}").into_bytes(), &[400]),
        ("1 MiB and a byte", vec![b' '; 1024 * 1024 + 1], &[413]),
        (
            "1 MiB of text",
            format!("{{\"{name}\":\"{}\"}}", "a".repeat(1_000_000)).into_bytes(),
            &[422],
        ),
    ]
}

#[tokio::test]
async fn r32_no_bad_body_gets_anything_but_a_problem_or_changes_anything() {
    let api = Api::open().await;
    let before = lasting(api.all().await);
    for (door, good) in doors_with_bodies() {
        for (what, bytes, statuses) in bad_bodies(&good) {
            // Where nothing has to be said, an empty object says it.
            if what == "an empty object" && door.path.ends_with("/notifications/read-all") {
                continue;
            }
            let told = send(&api, &door, bytes, "application/json").await;
            let name = format!("{} {}: {what}", door.method, door.path);
            // Some are refused before their body is looked at: whose project it is, for one.
            let early = [403, 404, 429];
            let status = told.status.as_u16();
            assert!(statuses.contains(&status) || early.contains(&status), "{name}: {told:?}");
            let problem = told.problem();
            assert!(problem.detail.len() < 2_000, "{name} is repeated: {problem:?}");
        }
    }
    for (door, seen) in lasting(api.all().await) {
        assert_eq!(before.get(&door), Some(&seen), "{door} tells of a change");
    }
    api.close().await;
}

/// What must not change because somebody sends nonsense. That somebody knocked where they may not is noted, the list of what
/// is stuck says when it was made, and usage up to when it is.
fn lasting(seen: Value) -> Map<String, Value> {
    let Value::Object(mut seen) = seen else { panic!("not by door: {seen}") };
    seen.retain(|door, _| !door.ends_with("/admin/audit/verify"));
    for (door, seen) in &mut seen {
        if door.ends_with("/admin/stuck")
            && let Some(list) = seen.as_object_mut()
        {
            list.remove("at");
        }
        if door.ends_with("/usage")
            && let Some(usage) = seen.as_object_mut()
        {
            usage.retain(|name, _| name != "from" && name != "until");
        }
        if door.ends_with("/admin/audit")
            && let Some(entries) = seen.get_mut("items").and_then(Value::as_array_mut)
        {
            entries.retain(|entry| entry["outcome"] == "done");
        }
    }
    seen
}

#[tokio::test]
async fn r32_what_is_not_plain_json_is_not_read() {
    let api = Api::open().await;
    for (door, good) in doors_with_bodies() {
        for kind in ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"] {
            let told = send(&api, &door, good.to_string().into_bytes(), kind).await;
            assert_eq!(
                told.refusal(),
                (415, "unsupported_media_type".to_owned()),
                "{door:?} {kind}"
            );
        }
        let request = api.request(door.method, &path_of(&api, &door), Some(&api.operator));
        let request = request.header("content-encoding", "gzip").json(&good);
        let told = told(request.header("idempotency-key", "gzip")).await;
        assert_eq!(told.refusal().0, 415, "{door:?}");
    }
    api.close().await;
}

#[tokio::test]
async fn r32_a_vast_body_is_refused_before_it_has_arrived() {
    let api = Api::open().await;
    let head = format!(
        "POST /api/v1/projects HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nConnection: close\r\n",
        api.tenant
    );
    let claimed = api.raw(format!("{head}Content-Length: 1073741824\r\n\r\n").as_bytes()).await;
    assert!(claimed.starts_with("HTTP/1.1 413 "), "{claimed}");
    assert!(claimed.contains("body_too_large"), "{claimed}");

    let mut stream = api.connect().await;
    let endless = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
    stream.write_all(endless.as_bytes()).await.expect("it is taken");
    let chunk = format!("1000\r\n{}\r\n", " ".repeat(0x1000));
    let (mut reading, mut writing) = stream.split();
    let written = async {
        while writing.write_all(chunk.as_bytes()).await.is_ok() {}
        std::future::pending::<()>().await;
    };
    let mut answer = vec![0; 4096];
    let read = async { reading.read(&mut answer).await.expect("there is an answer") };
    let read = async {
        tokio::select! { read = read => read, () = written => 0 }
    };
    let read = timeout(PATIENCE, read).await.expect("it is answered while it arrives");
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    api.close().await;
}

#[tokio::test]
async fn what_is_unknown_in_a_query_or_a_path_is_refused_by_name() {
    let api = Api::open().await;
    for door in routes::doors().iter().filter(|door| door.method == "GET") {
        let path = format!("{}?colour=red", path_of(&api, door));
        let told = api.get(&path, &api.operator).await;
        assert_eq!(told.refusal(), (400, "bad_request".to_owned()), "{door:?}");
        assert!(told.problem().detail.contains("`colour`"), "{told:?}");
    }
    for query in [
        "limit=0",
        "limit=201",
        "limit=-1",
        "limit=many",
        "limit=1&limit=2",
        "cursor=x",
        "status=odd",
        "project_id=1",
    ] {
        let told = api.get(&format!("/api/v1/allocations?{query}"), &api.tenant).await;
        assert!([400, 422].contains(&told.status.as_u16()), "{query}: {told:?}");
        told.problem();
    }
    for id in ["1", "..%2f..%2fetc", "%00", "%ff", "' OR 1=1 --"] {
        let told = api.get(&format!("/api/v1/allocations/{id}"), &api.tenant).await;
        assert_eq!(told.refusal(), (400, "bad_request".to_owned()), "{id}: {told:?}");
    }
    api.close().await;
}

#[tokio::test]
async fn paths_and_methods_that_are_not_there_are_problems_too() {
    let api = Api::open().await;
    for path in ["/", "/api/v1", "/api/v1/allocations/", "/api/v2/me", "/agent/v1/tasks/wait"] {
        let told = api.get(path, &api.operator).await;
        assert_eq!(told.refusal(), (404, "not_found".to_owned()), "{path}");
    }
    let told = told(api.request("PATCH", "/api/v1/allocations", Some(&api.tenant))).await;
    assert_eq!(told.refusal(), (405, "method_not_allowed".to_owned()));
    let mut allowed: Vec<&str> = told.header("allow").split(',').map(str::trim).collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["GET", "HEAD", "POST"]);
    api.close().await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused_in_words() {
    let api = Api::open().await;
    let large = "a".repeat(66_000);
    let told = told(api.request("GET", "/healthz", None).header("x-large", &large)).await;
    assert_eq!(told.refusal(), (431, "headers_too_large".to_owned()));
    let larger =
        format!("GET /healthz HTTP/1.1\r\nHost: berth\r\nx: {}\r\n\r\n", "a".repeat(300_000));
    let mut stream = api.connect().await;
    // It may be closed before all of it is sent.
    let _ = stream.write_all(larger.as_bytes()).await;
    let mut answer = [0; 12];
    let read = timeout(PATIENCE, stream.read_exact(&mut answer)).await.expect("it ends");
    assert!(read.is_err() || answer.starts_with(b"HTTP/1.1 431"), "{answer:?}");
    api.close().await;
}
