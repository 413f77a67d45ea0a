//! The stuck list through its door, and as a metric.

use std::time::Duration;

use serde_json::json;

use crate::api::{Api, told};

#[tokio::test]
async fn r27_what_is_stuck_is_told_through_the_door_and_counted_by_status_within_one_sweep() {
    let api = Api::open().await;
    let gauge = async || {
        let text = told(api.request("GET", "/metrics", None)).await.text;
        let line = |name: &str| {
            let head = format!("{name}{{machine=\"allocation\",status=\"requested\"}} ");
            let found = text.lines().find_map(|line| line.strip_prefix(&head));
            found.unwrap_or_else(|| panic!("no {head} in {text}")).parse::<f64>().expect("a number")
        };
        (line("berth_stuck"), line("berth_oldest_seconds"))
    };
    let sweep = async || {
        api.house
            .spine
            .timers
            .iter()
            .find(|timer| timer.name == "stuck")
            .expect("a timer")
            .step()
            .await
    };
    sweep().await.expect("it is measured");
    assert_eq!(gauge().await, (0.0, 0.0), "what is not there is counted too");
    let made = api.send("POST", "/api/v1/allocations", &api.tenant, &api.wish(1)).await.json();
    api.house.ctx.clock.advance(Duration::from_secs(40));
    sweep().await.expect("it is measured");
    let (stuck, oldest) = gauge().await;
    assert!(stuck == 1.0 && (40.0..100.0).contains(&oldest), "{stuck} {oldest}");
    let found = api.get("/api/v1/admin/stuck", &api.operator).await.json();
    assert_eq!((&found["total"], &found["items"][0]["id"]), (&json!(1), &made["id"]), "{found}");
    assert_eq!(found["statuses"][0]["status"], "requested", "{found}");
    api.house.settle().await;
    sweep().await.expect("it is measured");
    assert_eq!(gauge().await, (0.0, 0.0), "it has moved on");
    assert_eq!(api.get("/api/v1/admin/stuck", &api.operator).await.json()["items"], json!([]));
    api.close().await;
}
