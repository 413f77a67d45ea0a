//! What somebody was told, and their webhooks, as commands: data on stdout, secrets once, and ids that may be short.

use serde_json::{Value, json};

use crate::berth::Home;
use crate::stub::{Says, Stub, page};

const ONE: &str = "0198c0de-0000-7000-8000-0000000000aa";
const OTHER: &str = "0198c0df-0000-7000-8000-0000000000bb";
const URL: &str = "https://hooks.example.org/berth";

fn notification(id: &str, title: &str) -> Value {
    json!({
        "id": id, "number": 1, "kind": "allocation.active", "title": title, "body": "It is ready.",
        "project_id": null, "allocation_id": null, "payment_session_id": null,
        "created_at": "2026-01-01T00:00:00Z", "read_at": null
    })
}

fn webhook() -> Value {
    json!({ "id": ONE, "url": URL, "created_at": "2026-01-01T00:00:00Z", "previous_secret_until": null })
}

fn delivery() -> Value {
    json!({
        "notification_id": OTHER, "kind": "webhook.test", "status": "given_up", "queued_at": "2026-01-01T00:00:00Z",
        "attempts": 19, "next_attempt_at": null, "attempted_at": "2026-01-03T00:00:00Z", "delivered_at": null,
        "given_up_at": "2026-01-03T00:00:00Z", "http_status": 500, "fault": "not_taken"
    })
}

fn cloud() -> Stub {
    Stub::answering(|asked, _| {
        let path = asked.path.split('?').next().unwrap_or_default();
        let fresh = json!({ "webhook": webhook(), "secret": "berth_whsec_x" });
        let body = match (asked.method.as_str(), path) {
            ("GET", "/api/v1/notifications") => json!({
                "items": [notification(ONE, "\u{1b}[31mone"), notification(OTHER, "other")],
                "next_cursor": null, "unread": 2
            }),
            ("POST", "/api/v1/notifications/read-all") => json!({ "read": 2 }),
            ("GET", "/api/v1/webhooks") => page(vec![webhook()]),
            ("DELETE", _) => return Says::Json(204, Value::Null),
            ("GET", path) if path.ends_with("/deliveries") => page(vec![delivery()]),
            ("POST", path) if path.ends_with("/test") || path.ends_with("/redeliver") => delivery(),
            ("POST", path) if path.ends_with("/read") => notification(OTHER, "other"),
            _ => fresh,
        };
        Says::Json(200, body)
    })
}

#[test]
fn what_somebody_was_told_is_listed_without_what_a_terminal_obeys_and_read_by_a_short_id() {
    let stub = cloud();
    let home = Home::at(&stub.api);
    let listed = home.run(&["notifications", "list", "--unread"]);
    assert_eq!(listed.code, 0, "{}", listed.err);
    assert!(listed.out.contains("other") && !listed.out.contains('\u{1b}'), "{}", listed.out);
    assert!(listed.err.contains("2 notifications unread"), "{}", listed.err);
    assert!(stub.asked()[0].path.contains("unread=true"));
    assert_eq!(home.run(&["notifications", "read", "0198c0df"]).code, 0);
    let asked = stub.asked().pop().expect("it was asked");
    assert_eq!(asked.path, format!("/api/v1/notifications/{OTHER}/read"));
    assert!(asked.key.is_some(), "a mutation has a key");
    assert_eq!(home.run(&["notifications", "read", "0198"]).code, 2, "it may be either");
    assert_eq!(home.run(&["notifications", "read", "ffff"]).code, 5);
    assert_eq!(home.run(&["notifications", "read"]).code, 2);
    let all = home.run(&["notifications", "read", "--all"]);
    assert!(all.code == 0 && all.err.contains("2 notifications read"), "{}", all.err);
}

#[test]
fn the_secret_of_a_webhook_is_alone_on_stdout_and_a_webhook_is_named_by_its_url() {
    let stub = cloud();
    let home = Home::at(&stub.api);
    for words in [&["webhooks", "add", URL][..], &["webhooks", "rotate", URL]] {
        let ran = home.run(words);
        assert_eq!((ran.code, ran.out.as_str()), (0, "berth_whsec_x\n"), "{}", ran.err);
    }
    let seen = home.run(&["webhooks", "deliveries", "0198c0de"]);
    assert!(seen.out.contains("given_up") && seen.out.contains("500 not_taken"), "{}", seen.out);
    assert_eq!(home.run(&["webhooks", "test", URL]).code, 0);
    assert_eq!(home.run(&["webhooks", "redeliver", URL, "0198c0df"]).code, 0);
    let asked = stub.asked().pop().expect("it was asked");
    assert_eq!(asked.path, format!("/api/v1/webhooks/{ONE}/deliveries/{OTHER}/redeliver"));
    assert_eq!(home.run(&["webhooks", "redeliver", URL, "ffff"]).code, 5);
    assert_eq!(home.run(&["webhooks", "remove", URL]).code, 0);
    assert_eq!(stub.asked().pop().expect("it was asked").method, "DELETE");
    assert_eq!(home.run(&["webhooks", "remove", "https://another.example.org/"]).code, 5);
}
