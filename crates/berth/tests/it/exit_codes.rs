//! Every way to fail has its number, and says what to do.

use serde_json::{Value, json};
use wire::problem::{Alternative, Fault, Problem, ProblemCode};

use crate::berth::Home;
use crate::stub::{Asked, Says, Stub, allocation, page, timeline};

const ID: &str = "0198c0de-0000-7000-8000-0000000000aa";
const PROJECT: &str = "0198c0de-0000-7000-8000-000000000001";
const CREATE: [&str; 8] =
    ["alloc", "create", "--sku", "h100.slice", "--gpus", "2", "--region", "eu-1"];

#[test]
fn every_problem_has_its_exit_code_and_names_the_request() {
    let cases = [
        (ProblemCode::Unauthenticated, 4),
        (ProblemCode::NotFound, 5),
        (ProblemCode::Conflict, 6),
        (ProblemCode::SkuUnavailable, 7),
        (ProblemCode::BalanceDepleted, 8),
        (ProblemCode::Forbidden, 1),
        (ProblemCode::Invalid, 2),
        (ProblemCode::Internal, 1),
    ];
    for (code, exit) in cases {
        let mut problem = Problem::new(code, "This is what went wrong.");
        problem.request_id = Some(uuid::Uuid::from_u128(77));
        problem.errors = vec![Fault { pointer: "/gpus".to_owned(), detail: "too many".to_owned() }];
        let fit = Alternative { sku: "s".to_owned(), region: "us-1".to_owned(), gpus: 4 };
        problem.would_fit = vec![fit];
        let stub = Stub::always(Says::Problem(Box::new(problem)));
        let ran = Home::at(&stub.api).run(&["alloc", "show", ID]);
        assert_eq!(ran.code, exit, "{code}: {}", ran.err);
        assert_eq!(ran.out, "", "nothing of it is data");
        for said in
            ["This is what went wrong.", "0000-00000000004d", "/gpus", "4 GPUs of s in us-1", "try"]
        {
            assert!(ran.err.contains(said), "{said} is not in {}", ran.err);
        }
    }
}

#[test]
fn nobody_at_the_address_is_said_with_how_to_start_it() {
    let ran = Home::at("http://127.0.0.1:1").run(&["whoami"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("nothing listens at http://127.0.0.1:1"), "{}", ran.err);
    assert!(ran.err.contains("up --detach"), "{}", ran.err);
}

#[test]
fn who_has_no_token_is_told_to_log_in_before_anything_is_sent() {
    let stub = Stub::always(Says::Json(200, json!({})));
    let home = Home::new();
    let ran = super::berth::ran(
        home.command(&["alloc", "list"]).env("BERTH_API", &stub.api).output().expect("it runs"),
    );
    assert_eq!((ran.code, stub.asked().len()), (4, 0), "{}", ran.err);
    assert!(ran.err.contains("login"));
}

#[test]
fn wrong_words_are_a_matter_of_usage() {
    let home = Home::new();
    for words in [&["alloc", "create"][..], &["nonsense"], &["alloc", "list", "--status", "sleepy"]]
    {
        assert_eq!(home.run(words).code, 2, "{words:?}");
    }
    assert_eq!(home.run(&["--version"]).code, 0);
    assert_eq!(home.run(&["context", "use", "nobody"]).code, 2);
}

/// An API with one project and one allocation, whose creation and status are as asked for.
fn cloud(status: &'static str) -> impl Fn(&Asked, usize) -> Says {
    move |asked, _| {
        let path = asked.path.split('?').next().unwrap_or_default();
        let body: Value = match (asked.method.as_str(), path) {
            ("GET", "/api/v1/projects") => page(vec![json!({
                "id": PROJECT, "name": "p", "role": "admin", "created_at": "2026-01-01T00:00:00Z"
            })]),
            ("GET", "/api/v1/ssh-keys") => page(Vec::new()),
            ("POST", "/api/v1/allocations") => allocation(ID, "made", "requested"),
            ("GET", "/api/v1/allocations") => page(vec![allocation(ID, "made", status)]),
            ("GET", path) if path.ends_with("/timeline") => timeline(ID, status),
            _ => allocation(ID, "made", status),
        };
        Says::Json(200, body)
    }
}

fn create(status: &'static str, more: &[&str]) -> (super::berth::Ran, Vec<Asked>) {
    let stub = Stub::answering(cloud(status));
    let words: Vec<&str> = CREATE.iter().chain(more).copied().collect();
    (Home::at(&stub.api).run(&words), stub.asked())
}

#[test]
fn waiting_ends_with_what_became_of_it() {
    let (ran, _) = create("active", &["--wait", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let (ran, _) = create("failed", &["--wait"]);
    assert_eq!(ran.code, 10, "{}", ran.err);
    assert!(ran.err.contains("ssh_not_ready") && ran.err.contains("Inspect"), "{}", ran.err);
    let (ran, _) = create("released", &["--wait"]);
    assert_eq!(ran.code, 10, "somebody gave it back: {}", ran.err);
    let (ran, asked) = create("provisioning", &["--wait", "--timeout", "1s"]);
    assert_eq!(ran.code, 9, "{}", ran.err);
    assert!(asked.iter().all(|each| !each.path.contains("release")), "it goes on without us");
}

#[test]
fn nobody_at_the_terminal_is_not_asked_and_not_waited_for() {
    let (ran, asked) = create("requested", &[]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(asked.iter().all(|each| !each.path.contains("timeline")), "it did not wait");
    let stub = Stub::answering(cloud("active"));
    let home = Home::at(&stub.api);
    let ran = home.run(&["alloc", "release", "made"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(stub.asked().iter().all(|each| each.method == "GET"), "nothing was released");
    assert_eq!(home.run(&["alloc", "release", "made", "--yes"]).code, 0);
    assert!(stub.asked().iter().any(|each| each.path.ends_with("/release")));
}

#[test]
fn what_gets_lost_is_asked_for_again_with_the_same_key() {
    let flaky = |says: Says| {
        let answer = cloud("requested");
        Stub::answering(move |asked, before| match (asked.method.as_str(), before) {
            // Two requests come before the one that matters: the projects and the keys.
            ("POST", 2 | 3) => says.clone(),
            _ => answer(asked, before),
        })
    };
    let troubles = [
        Says::Nothing,
        Says::problem(ProblemCode::Unavailable, "Not now."),
        Says::problem(ProblemCode::IdempotencyInFlight, "Still running."),
        Says::Json(502, json!("a proxy")),
    ];
    for trouble in troubles {
        let stub = flaky(trouble);
        let ran = Home::at(&stub.api).run(&CREATE);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let posts: Vec<Asked> =
            stub.asked().into_iter().filter(|each| each.method == "POST").collect();
        assert_eq!(posts.len(), 3, "twice it went wrong");
        assert!(posts[0].key.is_some());
        assert!(posts.iter().all(|each| each.key == posts[0].key && each.body == posts[0].body));
    }
}

#[test]
fn two_commands_are_two_things() {
    let stub = Stub::answering(cloud("requested"));
    let home = Home::at(&stub.api);
    assert_eq!((home.run(&CREATE).code, home.run(&CREATE).code), (0, 0));
    let posts = stub.asked().into_iter().filter(|each| each.method == "POST");
    let keys: std::collections::HashSet<_> = posts.map(|each| each.key).collect();
    assert_eq!(keys.len(), 2);
}

#[test]
fn patience_has_an_end() {
    let stub = Stub::always(Says::problem(ProblemCode::Unavailable, "Not now."));
    let ran = Home::at(&stub.api).run(&["whoami"]);
    assert_eq!((ran.code, stub.asked().len()), (1, 6), "{}", ran.err);
}

#[test]
fn a_login_is_never_sent_twice_and_keeps_its_token_to_itself() {
    let stub = Stub::always(Says::Nothing);
    let home = Home::new();
    let login = |api: &str| {
        use std::io::Write as _;
        let words = ["login", "--api", api, "--email", "a@b.c", "--password-stdin"];
        let mut child = home
            .command(&words)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("it runs");
        child.stdin.take().expect("it is piped").write_all(b"correct horse\n").expect("it listens");
        super::berth::ran(child.wait_with_output().expect("it ends"))
    };
    assert_eq!(login(&stub.api).code, 1);
    assert_eq!(stub.asked().len(), 1);
    assert!(stub.asked()[0].body.contains("correct horse"));

    let stub = Stub::answering(|asked, _| match asked.path.as_str() {
        "/api/v1/login" => Says::Json(
            201,
            json!({
                "secret": "berth_fresh",
                "token": {
                    "id": ID, "name": "n", "scopes": ["read"], "created_at": "2026-01-01T00:00:00Z",
                    "expires_at": "2027-01-01T00:00:00Z", "last_used_at": null, "revoked_at": null
                }
            }),
        ),
        _ => Says::Json(
            200,
            json!({
                "user_id": ID, "email": "a@b.c", "name": "A", "operator": false, "scopes": ["read"], "projects": []
            }),
        ),
    });
    let ran = login(&stub.api);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!ran.out.contains("berth_fresh") && !ran.err.contains("berth_fresh"));
    assert_eq!(stub.asked()[1].token.as_deref(), Some("berth_fresh"));
    let kept = std::fs::read_to_string(home.config()).expect("it was written");
    assert!(kept.contains("berth_fresh") && !kept.contains("correct horse"));
    for words in [["context", "show"], ["context", "list"]] {
        let shown = home.run(&words);
        assert!(!shown.out.contains("berth_fresh") && shown.code == 0, "{}", shown.out);
    }
}

/// An API on which an allocation is in this status until something is asked of it, and restarts or is released then.
fn moved(before: &'static str) -> Stub {
    Stub::answering(move |asked, _| {
        let path = asked.path.split('?').next().unwrap_or_default();
        let after = if path.ends_with("/restart") { "restarting" } else { "releasing" };
        let body = match asked.method.as_str() {
            "POST" => allocation(ID, "made", after),
            _ if path.ends_with("/timeline") => timeline(ID, before),
            _ => allocation(ID, "made", before),
        };
        Says::Json(200, body)
    })
}

#[test]
fn a_restart_interrupts_nobody_who_was_not_asked_and_ends_as_it_ends() {
    let stub = moved("active");
    let home = Home::at(&stub.api);
    let ran = home.run(&["alloc", "restart", ID]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("interrupted") && ran.err.contains("--yes"), "{}", ran.err);
    assert!(stub.asked().iter().all(|each| each.method == "GET"), "nothing was changed");
    let ran = home.run(&["alloc", "restart", ID, "--yes", "--wait"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let asked = stub.asked();
    let restart = asked.iter().find(|each| each.method == "POST").expect("it was asked");
    assert!(restart.path.ends_with("/restart") && restart.key.is_some(), "{restart:?}");
    let ran =
        Home::at(&moved("restart_failed").api).run(&["alloc", "restart", ID, "--yes", "--wait"]);
    assert_eq!(ran.code, 10, "{}", ran.err);
    assert!(ran.err.contains("the restart of made did not succeed"), "{}", ran.err);
}

#[test]
fn a_cancel_is_a_release_that_says_what_was_called_off() {
    let cases = [
        ("requested", "preparation of made was called off"),
        ("provisioning", "it is not charged"),
        ("restarting", "restart of made was called off"),
    ];
    for (before, said) in cases {
        let stub = moved(before);
        let ran = Home::at(&stub.api).run(&["alloc", "cancel", ID, "--yes", "--no-wait"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.err.contains(said), "{before}: {}", ran.err);
        assert!(stub.asked().iter().any(|each| each.path.ends_with("/release")));
    }
    let ran = Home::at(&moved("active").api).run(&["alloc", "cancel", ID, "--yes", "--no-wait"]);
    assert!(!ran.err.contains("called off"), "{}", ran.err);
}
