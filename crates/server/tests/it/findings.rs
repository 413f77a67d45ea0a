//! The three-way audit through its doors, and as a metric.

use std::time::Duration;

use serde_json::json;
use testkit::Inventory;

use crate::api::{Api, told};

/// How many findings of a kind the metric says are open.
async fn gauge(api: &Api, kind: &str) -> f64 {
    let text = told(api.request("GET", "/metrics", None)).await.text;
    let head = format!("berth_findings{{kind=\"{kind}\"}} ");
    let found = text.lines().find_map(|line| line.strip_prefix(&head));
    found.unwrap_or_else(|| panic!("no {head} in {text}")).parse().expect("a number")
}

#[tokio::test]
async fn a_disagreement_is_told_through_the_door_and_counted_until_it_is_seen_no_more() {
    let api = Api::open().await;
    let look = async || {
        let looked = api.request("POST", "/api/v1/admin/findings/look", Some(&api.operator));
        told(looked).await.json()
    };
    let id = api.house.active("h100.slice", 2).await.id;
    let heard = async |nothing: bool| {
        api.house.ctx.clock.advance(Duration::from_secs(25));
        for node in api.house.nodes() {
            let truth = api.house.truth_of(node.identity.node_id).await;
            let says = if nothing {
                Inventory { gpus: truth.gpus, ..Inventory::default() }
            } else {
                truth
            };
            node.beat(&api.house.ctx, &says).await.expect("heard");
        }
    };
    heard(true).await;
    let looked = look().await;
    assert_eq!(looked, json!({"clean": false, "open": 1}));
    assert_eq!(gauge(&api, "claim_without_guest").await, 1.0);
    assert_eq!(gauge(&api, "gpus_differ").await, 0.0, "what is not there is counted too");
    let page = api.get("/api/v1/admin/findings", &api.operator).await.json();
    let finding = &page["items"][0];
    assert_eq!((&finding["allocation_id"], &finding["owner"]), (&json!(id), &json!("operator")));
    assert!(finding["advice"].as_str().is_some_and(|advice| !advice.is_empty()), "{finding}");
    assert!(finding["detail"].as_str().is_some_and(|said| said.contains("slot 0, 1 of")));
    assert!(finding["age_seconds"].is_i64() && finding["closed_at"].is_null(), "{finding}");
    let strangers = api.get("/api/v1/admin/findings", &api.tenant).await;
    assert_eq!(strangers.status, 403);

    heard(false).await;
    assert_eq!(look().await["clean"], true);
    assert_eq!(gauge(&api, "claim_without_guest").await, 0.0);
    let all = api.get("/api/v1/admin/findings?all=true", &api.operator).await.json();
    assert!(all["items"][0]["closed_at"].is_string(), "{all}");
    assert_eq!(api.get("/api/v1/admin/findings", &api.operator).await.json()["items"], json!([]));
    api.close().await;
}
