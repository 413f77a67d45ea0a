//! Explanations through the doors.

use crate::api::Api;

#[tokio::test]
async fn a_refusal_of_capacity_tells_the_same_as_the_question_and_no_names() {
    let api = Api::open().await;
    let granted = api.send("POST", "/api/v1/allocations", &api.tenant, &api.wish(8)).await;
    assert_eq!(granted.status.as_u16(), 201);
    let refused = api.send("POST", "/api/v1/allocations", &api.tenant, &api.wish(8)).await;
    assert_eq!(refused.refusal(), (409, "sku_unavailable".to_owned()));
    let asked = api
        .get("/api/v1/availability/explain?sku=h100.slice&region=eu-1&gpus=8", &api.tenant)
        .await
        .json();
    assert_eq!(asked["narrowed"], refused.json()["narrowed"]);
    assert_eq!(asked["narrowed"].as_array().map(Vec::len), Some(5));
    assert_eq!(asked["fits"], false);
    assert!(!refused.text.contains("node-0"), "{}", refused.text);
    let wrong = api.get("/api/v1/availability/explain?sku=h100.slice", &api.tenant).await;
    assert_eq!(wrong.refusal().0, 400);
    api.close().await;
}

#[tokio::test]
async fn tenants_and_operators_are_told_why_as_far_as_it_is_for_them() {
    let api = Api::open().await;
    let id = api.house.active("h100.slice", 1).await.id;
    let told = api.get(&format!("/api/v1/allocations/{id}/explain"), &api.tenant).await;
    assert_eq!(told.status.as_u16(), 200, "{told:?}");
    assert_eq!(told.json()["status"], "active");
    assert!(!told.text.contains("node-0") && !told.text.contains("actor"), "{}", told.text);
    let told = api.get(&format!("/api/v1/admin/allocations/{id}/explain"), &api.operator).await;
    assert_eq!(told.json()["machine"]["name"], "node-0");
    api.close().await;
}
