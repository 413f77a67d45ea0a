//! What operators read when something did not end well, and what scripts make of it.

use serde_json::{Value, json};

use crate::berth::Home;
use crate::stub::{Asked, Says, Stub, page};

const ID: &str = "0198c0de-0000-7000-8000-0000000000aa";
const CLAIM: &str = "0198c0de-0000-7000-8000-0000000000bb";

/// An API whose invariants hold, with these findings.
fn audited(findings: Vec<Value>) -> impl Fn(&Asked, usize) -> Says {
    move |asked, _| {
        let path = asked.path.split('?').next().unwrap_or_default();
        let body = match (asked.method.as_str(), path) {
            ("POST", "/api/v1/admin/findings/look") => {
                json!({"open": findings.len(), "clean": findings.is_empty()})
            }
            ("GET", "/api/v1/admin/findings") => page(findings.clone()),
            _ => json!({"clean": true, "invariants": [
                {"name": "I01", "holds": "one live claim a slot", "violations": [], "count": 0}
            ]}),
        };
        Says::Json(200, body)
    }
}

#[test]
fn an_audit_with_an_open_finding_ends_with_1_and_says_whose_it_is_and_what_they_do() {
    let finding = json!({
        "id": ID, "kind": "claim_without_guest", "detail": "rack1 does not show it", "owner": "operator",
        "advice": "Look at the machine.", "node_id": ID, "node": "rack1", "allocation_id": ID,
        "first_seen_at": "2026-01-01T00:00:00Z", "last_seen_at": "2026-01-01T00:01:00Z",
        "age_seconds": 60, "closed_at": null
    });
    let stub = Stub::answering(audited(vec![finding]));
    let ran = Home::at(&stub.api).run(&["audit"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    for said in ["claim_without_guest", "operator", "rack1 does not", "Look at the machine"] {
        assert!(ran.out.contains(said), "{said} is not in {}", ran.out);
    }
    assert!(ran.err.contains("1 finding; nothing was changed"), "{}", ran.err);

    let stub = Stub::answering(audited(Vec::new()));
    let ran = Home::at(&stub.api).run(&["audit"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("The nodes, the bill and the database agree"), "{}", ran.err);
}

#[test]
fn what_is_stuck_comes_with_the_commands_that_lead_out() {
    let item = json!({
        "machine": "allocation", "id": ID, "name": "training", "status": "release_failed",
        "since": "2026-01-01T00:00:00Z", "deadline_at": "2026-01-01T01:00:00Z", "overdue_seconds": 60,
        "factor": 1.1, "stuck": false, "owner": "operator", "reason": "cleanup_incomplete",
        "action": "Release it once more.", "command": format!("berth admin force-release {ID} --reason WHY"),
        "otherwise": format!("berth admin abandon {ID} --reason WHY")
    });
    let stuck = json!({
        "at": "2026-01-01T01:01:00Z", "items": [item], "total": 1, "statuses": [], "dead_letters": 0,
        "findings_open": 0
    });
    let stub = Stub::always(Says::Json(200, stuck));
    let home = Home::at(&stub.api);
    let ran = home.run(&["admin", "stuck"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for way_out in ["force-release", "abandon"] {
        let command = format!("admin {way_out} {ID} --reason WHY");
        assert!(unwrapped(&ran.out).contains(&command), "{command} is not in {}", ran.out);
    }
    assert_eq!(home.run(&["admin", "stuck", "--check"]).code, 1);
}

/// Cells are broken into lines where there is no room; nobody types them so.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn claims_come_with_what_to_type_and_a_claim_that_does_not_wait_is_not_found() {
    let claim = json!({
        "id": CLAIM, "status": "quarantined", "status_at": "2026-01-01T00:00:00Z", "reason": "shredded",
        "allocation_id": ID, "allocation_status": "released", "node_id": ID, "node": "rack1", "slot": 3,
        "advice": "See to the machine by hand.",
        "commands": [format!("berth admin clear {CLAIM} --reason WHY")]
    });
    let stub = Stub::always(Says::Json(200, page(vec![claim])));
    let home = Home::at(&stub.api);
    let ran = home.run(&["admin", "claims"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("slot 3 of rack1"), "{}", ran.out);
    assert!(ran.err.contains("See to the machine by hand."), "{}", ran.err);
    assert!(ran.err.contains(&format!("admin clear {CLAIM} --reason WHY")), "{}", ran.err);
    let unknown = home.run(&["admin", "clear", "ffff", "--reason", "x"]);
    assert_eq!(unknown.code, 5, "{}", unknown.err);
    assert_eq!(home.run(&["admin", "clear", CLAIM]).code, 2, "a reason is asked for");
}
