//! Paying in from the command line, against an API that says what the test wants.

use serde_json::{Value, json};
use wire::problem::ProblemCode;

use crate::berth::{Home, Ran};
use crate::stub::{Asked, Says, Stub, page};

const ID: &str = "0198c0de-0000-7000-8000-0000000000aa";
const URL: &str = "https://pay.example.test/cs_1";

fn session(status: &str, progress: &str) -> Value {
    json!({
        "id": ID, "status": status, "status_at": "2026-01-01T00:00:00Z", "progress": progress,
        "status_text": "As it is.", "advice": "Do this.", "amount_minor": 2_500, "currency": "USD",
        "url": (progress == "awaiting_payment").then_some(URL), "credited_amount_minor": null,
        "refunded_minor": 0, "created_at": "2026-01-01T00:00:00Z", "expires_at": null,
        "completed_at": null, "ended_at": null
    })
}

fn balance() -> Value {
    json!({
        "account_id": ID, "currency": "USD", "balance_minor": 0, "balance": "0.00 USD", "status": "depleted",
        "status_at": "2026-01-01T00:00:00Z", "low_balance_threshold_minor": 500, "burn_minor_per_hour": 0,
        "running": 0, "runway_minutes": null, "sentence": "There is nothing left."
    })
}

/// An API at which a checkout comes to that end.
fn till(status: &'static str, progress: &'static str) -> impl Fn(&Asked, usize) -> Says {
    move |asked, _| {
        let path = asked.path.split('?').next().unwrap_or_default();
        match (asked.method.as_str(), path) {
            ("GET", "/api/v1/balance") => Says::Json(200, balance()),
            ("POST", "/api/v1/payments/checkout-session") => {
                Says::Json(201, session("initiated", "awaiting_payment"))
            }
            ("GET", "/api/v1/payments/sessions") => {
                Says::Json(200, page(vec![session(status, progress)]))
            }
            _ => Says::Json(200, session(status, progress)),
        }
    }
}

fn topup(status: &'static str, progress: &'static str, words: &[&str]) -> (Ran, Vec<Asked>) {
    let stub = Stub::answering(till(status, progress));
    let words: Vec<&str> = ["topup"].iter().chain(words).copied().collect();
    (Home::at(&stub.api).run(&words), stub.asked())
}

#[test]
fn a_topup_prints_where_to_pay_and_asks_once() {
    let (ran, asked) = topup("initiated", "awaiting_payment", &["25.00"]);
    assert_eq!((ran.code, ran.out.trim()), (0, URL), "{}", ran.err);
    assert!(ran.err.contains("25.00 USD") && ran.err.contains("payments show"), "{}", ran.err);
    let posts: Vec<&Asked> = asked.iter().filter(|each| each.method == "POST").collect();
    assert_eq!((posts.len(), posts[0].body.as_str()), (1, "{\"amount_minor\":2500}"));
    assert!(posts[0].key.is_some());
    for wrong in ["25.001", "-1", "0", "many", ""] {
        let (ran, asked) = topup("initiated", "awaiting_payment", &["--", wrong]);
        assert_eq!(ran.code, 2, "{wrong}: {}", ran.err);
        assert!(asked.iter().all(|each| each.method == "GET"), "{wrong}");
    }
}

#[test]
fn waiting_for_a_payment_ends_with_what_became_of_it() {
    let (ran, _) = topup("credited", "credited", &["25", "--wait"]);
    assert_eq!((ran.code, ran.out.trim()), (0, URL), "{}", ran.err);
    for (status, progress) in [("expired", "expired"), ("failed_reconcile", "under_review")] {
        let (ran, _) = topup(status, progress, &["25", "--wait"]);
        assert_eq!(ran.code, 10, "{}", ran.err);
        assert!(ran.err.contains("Do this."), "{}", ran.err);
    }
    let (ran, _) = topup("initiated", "processing", &["25", "--wait", "--timeout", "1s"]);
    assert_eq!(ran.code, 9, "{}", ran.err);
    let (ran, _) = topup("credited", "credited", &["25", "--wait", "--json"]);
    let told: Value = serde_json::from_str(&ran.out).expect("JSON and nothing else");
    assert_eq!((ran.code, told["progress"].as_str()), (0, Some("credited")));
    assert!(ran.err.contains(URL), "who waits knows where to pay: {}", ran.err);
}

#[test]
fn payments_are_listed_and_shown_and_an_empty_list_says_how_to_begin() {
    let stub = Stub::answering(till("credited", "credited"));
    let home = Home::at(&stub.api);
    let listed = home.run(&["payments", "list"]);
    assert!(listed.out.contains("25.00 USD") && listed.out.contains("credited"), "{}", listed.out);
    assert!(home.run(&["payments", "show", "0198c0de"]).out.contains("As it is."));
    let none = Stub::always(Says::Json(200, page(Vec::new())));
    let ran = Home::at(&none.api).run(&["payments", "list"]);
    assert!(ran.code == 0 && ran.err.contains("topup 25.00"), "{}", ran.err);
}

#[test]
fn operators_resolve_what_does_not_add_up() {
    let case = json!({
        "session": session("credited", "credited"), "user_id": null, "account_id": ID,
        "stripe_checkout_session_id": "cs_1", "stripe_payment_intent_id": null, "paid_amount_minor": 2_499,
        "paid_currency": "USD", "reason": "amount_mismatch", "posting_id": null, "operator_advice": "Look."
    });
    let cases = json!({"items": [case], "next_cursor": null, "unmatched_events": 2});
    let stub = Stub::answering(move |asked, _| match asked.method.as_str() {
        "POST" => Says::Json(200, case.clone()),
        _ => Says::Json(200, cases.clone()),
    });
    let home = Home::at(&stub.api);
    let listed = home.run(&["admin", "payments", "list", "--stuck"]);
    assert!(listed.out.contains("24.99 USD") && listed.out.contains(ID), "{}", listed.out);
    assert!(listed.err.contains("events --unmatched"), "{}", listed.err);
    let words = ["admin", "payments", "resolve", ID, "--amount-minor", "2499", "--reason", "fee"];
    assert_eq!(home.run(&words).code, 0);
    let asked = stub.asked();
    assert!(asked[0].path.contains("stuck=true"), "{:?}", asked[0]);
    assert_eq!(asked[1].body, "{\"amount_minor\":2499,\"reason\":\"fee\"}");
    let refused = Stub::always(Says::problem(ProblemCode::Conflict, "It is credited."));
    let ran = Home::at(&refused.api).run(&words);
    assert!(ran.code == 6 && ran.err.contains("admin payments list"), "{}", ran.err);
}
