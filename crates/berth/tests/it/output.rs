//! Data on stdout, everything else on stderr, and nothing that only a terminal understands where there is none.

use serde_json::{Value, json};

use crate::berth::{Home, Ran};
use crate::stub::{Says, Stub, allocation, page, timeline};

const ID: &str = "0198c0de-0000-7000-8000-0000000000aa";
const OTHER: &str = "0198c0de-0000-7000-8000-0000000000bb";

fn cloud(items: Vec<Value>) -> Stub {
    Stub::answering(move |asked, _| {
        let path = asked.path.split('?').next().unwrap_or_default();
        let body = match path {
            "/api/v1/projects" => page(vec![json!({
                "id": ID, "name": "p", "role": "admin", "created_at": "2026-01-01T00:00:00Z"
            })]),
            "/api/v1/ssh-keys" => page(Vec::new()),
            "/api/v1/allocations" if asked.method == "GET" => page(items.clone()),
            "/api/v1/allocations" => allocation(ID, "made", "requested"),
            path if path.ends_with("/timeline") => timeline(ID, "active"),
            path if path.ends_with(OTHER) => allocation(OTHER, "other", "active"),
            _ => allocation(ID, "made", "active"),
        };
        Says::Json(200, body)
    })
}

fn plain(ran: &Ran) {
    assert!(!ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}'), "{}{}", ran.out, ran.err);
}

#[test]
fn off_a_terminal_nothing_is_coloured_or_moved() {
    let stub = cloud(vec![allocation(ID, "made", "active"), allocation(OTHER, "other", "failed")]);
    let home = Home::at(&stub.api);
    let words: [&[&str]; 6] = [
        &["alloc", "list"],
        &["alloc", "show", "made"],
        &["alloc", "timeline", "made"],
        &["alloc", "timeline", "made", "--watch"],
        &["alloc", "show", "nobody"],
        &["alloc", "create", "--sku", "s", "--gpus", "1", "--region", "r", "--wait"],
    ];
    for words in words {
        let ran = home.run(words);
        plain(&ran);
        assert!(ran.out.lines().all(|line| line == line.trim_end()), "{words:?}: {}", ran.out);
    }
}

#[test]
fn with_json_the_object_is_the_only_thing_on_stdout() {
    let stub = cloud(vec![allocation(ID, "made", "active")]);
    let home = Home::at(&stub.api);
    let create =
        ["alloc", "create", "--sku", "s", "--gpus", "1", "--region", "r", "--wait", "--json"];
    let ran = home.run(&create);
    plain(&ran);
    let made: Value = serde_json::from_str(&ran.out).expect("it is JSON and nothing else");
    assert_eq!((made["id"].as_str(), made["status"].as_str()), (Some(ID), Some("active")));
    assert!(ran.err.contains("Creating GPU slice VM"), "progress is told on stderr: {}", ran.err);
    for words in [
        &["alloc", "list", "--json"][..],
        &["alloc", "show", "made", "--json"],
        &["context", "list", "--json"],
    ] {
        let ran = home.run(words);
        serde_json::from_str::<Value>(&ran.out).expect("it is JSON and nothing else");
        assert_eq!(ran.err, "", "{words:?}");
    }
}

#[test]
fn an_empty_list_teaches_the_next_command_and_is_no_failure() {
    let stub = cloud(Vec::new());
    let home = Home::at(&stub.api);
    let ran = home.run(&["alloc", "list"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""));
    assert!(ran.err.contains("alloc create --sku"), "{}", ran.err);
    let ran = home.run(&["alloc", "list", "--json"]);
    assert_eq!((ran.code, ran.out.trim()), (0, "[]"));
}

#[test]
fn a_beginning_is_enough_where_only_one_thing_begins_so() {
    let stub = cloud(vec![allocation(ID, "made", "active"), allocation(OTHER, "other", "active")]);
    let home = Home::at(&stub.api);
    assert_eq!(home.run(&["alloc", "show", "other"]).code, 0);
    assert_eq!(home.run(&["alloc", "show", OTHER]).code, 0);
    let ran = home.run(&["alloc", "show", &OTHER[..35]]);
    assert!(ran.out.contains(OTHER), "{}", ran.out);
    let ran = home.run(&["alloc", "show", "0198c0de"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains(ID) && ran.err.contains(OTHER), "both are named: {}", ran.err);
    assert_eq!(home.run(&["alloc", "show", "0199"]).code, 5);
}

#[test]
fn what_others_write_does_not_reach_the_terminal_as_orders() {
    let stub = cloud(vec![allocation(ID, "nice\u{1b}]0;title\u{7}", "active")]);
    let home = Home::at(&stub.api);
    plain(&home.run(&["alloc", "list"]));
    plain(&home.run(&["alloc", "show", "nobody"]));
}

#[test]
fn the_environment_stands_for_flags() {
    let stub = cloud(Vec::new());
    let home = Home::at(&stub.api);
    let command = &mut home.command(&["alloc", "list"]);
    let output = command.env("BERTH_ALLOC_LIST_JSON", "1").output().expect("it runs");
    assert_eq!(crate::berth::ran(output).out.trim(), "[]");
}

#[test]
fn completions_are_written_for_every_shell() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let ran = home.run(&["completions", shell]);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("berth") && ran.out.contains("alloc"), "{shell}");
    }
}

#[test]
fn a_private_key_does_not_leave_the_machine() {
    let stub = cloud(Vec::new());
    let home = Home::at(&stub.api);
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n";
    std::fs::write(home.path().join("id_ed25519"), key).expect("it can be written");
    let ran = home.run(&["ssh-key", "add", "id_ed25519"]);
    assert_eq!((ran.code, stub.asked().len()), (2, 0), "{}", ran.err);
}
