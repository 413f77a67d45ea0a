//! Groups over real connections: the whole way round, versions, keys, refusals.

use serde_json::{Value, json};
use testkit::new_id;

use crate::api::{Api, told};

const GROUPS: &str = "/api/v1/allocation-groups";

fn wish(api: &Api, counts: &[i16]) -> Value {
    let member = |gpus: &i16| json!({"sku": "h100.slice", "gpus": gpus, "region": "eu-1"});
    let members: Vec<Value> = counts.iter().map(member).collect();
    json!({"project_id": api.house.project, "name": "training", "members": members})
}

#[tokio::test]
async fn a_group_is_asked_for_looked_at_and_given_back() {
    let api = Api::open().await;
    let made = api.send("POST", GROUPS, &api.tenant, &wish(&api, &[4, 2])).await;
    assert_eq!(made.status, 201, "{made:?}");
    let path = made.header("location").to_owned();
    assert_eq!(made.json()["members"][1]["name"], "training-2");
    let first = api.get(&path, &api.tenant).await;
    let tag = first.header("etag").to_owned();
    let known = || api.request("GET", &path, Some(&api.tenant)).header("if-none-match", &tag);
    assert_eq!(told(known()).await.status, 304);
    api.house.settle().await;
    let shown = told(known()).await;
    assert_eq!((shown.status.as_u16(), &shown.json()["status"]), (200, &json!("active")));
    assert_eq!(shown.json()["allowed_actions"], json!(["release"]));
    let listed = api.get(&format!("{GROUPS}?status=active&limit=1"), &api.tenant).await.json();
    assert_eq!(listed["items"][0]["id"], shown.json()["id"]);

    // Only the members of the project may look, and a key is needed to give it back.
    assert_eq!(api.get(&path, &api.operator).await.refusal(), (404, "not_found".to_owned()));
    let release = format!("{path}/release");
    let keyless = told(api.request("POST", &release, Some(&api.tenant))).await;
    assert_eq!(keyless.refusal(), (400, "idempotency_key_missing".to_owned()));
    let key = new_id().to_string();
    let send = || api.request("POST", &release, Some(&api.tenant)).header("idempotency-key", &key);
    let first = told(send()).await;
    assert_eq!((first.status.as_u16(), &first.json()["status"]), (202, &json!("releasing")));
    api.house.settle().await;
    let again = told(send()).await;
    assert_eq!((again.text, again.status), (first.text, first.status), "the first answer again");
    assert_eq!(
        again.headers.get("idempotency-replayed").map(|value| value.as_bytes()),
        Some(&b"true"[..])
    );
    assert_eq!(api.get(&path, &api.tenant).await.json()["status"], "released");
    let late = api.request("POST", &release, Some(&api.tenant));
    let late = told(late.header("idempotency-key", new_id().to_string())).await;
    assert_eq!(late.refusal(), (409, "conflict".to_owned()));
    api.close().await;
}

#[tokio::test]
async fn a_group_that_does_not_fit_is_refused_with_what_would() {
    let api = Api::open().await;
    let refused = api.send("POST", GROUPS, &api.tenant, &wish(&api, &[4, 4, 4])).await;
    assert_eq!(refused.refusal(), (409, "sku_unavailable".to_owned()));
    assert!(refused.problem().detail.starts_with("All 3 members"), "{refused:?}");
    let single = api.wish(2);
    api.send("POST", "/api/v1/allocations", &api.tenant, &single).await;
    let refused = api.send("POST", GROUPS, &api.tenant, &wish(&api, &[4, 4])).await;
    let problem = refused.problem();
    assert!(problem.detail.contains("training-2 (/members/1)"), "{problem:?}");
    assert_eq!((problem.would_fit[0].region.as_str(), problem.would_fit[0].gpus), ("eu-1", 2));
    let one = api.get("/api/v1/allocations", &api.tenant).await.json();
    assert_eq!(one["items"].as_array().map(Vec::len), Some(1), "of the groups nothing was kept");
    api.close().await;
}

#[tokio::test]
async fn a_member_names_its_group_and_a_group_its_members_to_whom_they_belong() {
    let api = Api::open().await;
    let single = api.house.active("h100.slice", 1).await;
    assert_eq!(single.group_id, None);
    let made = api.send("POST", GROUPS, &api.tenant, &wish(&api, &[1, 2])).await.json();
    let group = made["id"].as_str().expect("an id").to_owned();
    let member = made["members"][1]["id"].as_str().expect("an id");
    let shown = api.get(&format!("/api/v1/allocations/{member}"), &api.tenant).await.json();
    assert_eq!(shown["group_id"], made["id"]);
    let list = async |path: &str, token: &str| {
        let listed = api.get(&format!("{path}?group={group}"), token).await.json();
        listed["items"].as_array().expect("a list").clone()
    };
    let mine = list("/api/v1/allocations", &api.tenant).await;
    assert_eq!(mine.len(), 2, "its members and not the other");
    assert!(mine.iter().all(|each| each["group_id"] == made["id"]));
    assert_eq!(list("/api/v1/allocations", &api.stranger).await, Vec::<Value>::new());
    assert_eq!(list("/api/v1/admin/allocations", &api.operator).await.len(), 2);
    let wrong = api.get("/api/v1/allocations?group=training", &api.tenant).await;
    assert_eq!(wrong.refusal().0, 400);

    let all = api.get("/api/v1/admin/allocation-groups?status=requested", &api.operator).await;
    assert_eq!(all.json()["items"][0]["id"], made["id"]);
    let none = api.get("/api/v1/admin/allocation-groups?status=degraded", &api.operator).await;
    assert_eq!(none.json()["items"], json!([]));
    let mere = api.get("/api/v1/admin/allocation-groups", &api.tenant).await;
    assert_eq!(mere.refusal().0, 403);
    api.close().await;
}

#[tokio::test]
async fn a_group_is_explained_to_whom_it_belongs_and_to_operators() {
    let api = Api::open().await;
    let made = api.send("POST", GROUPS, &api.tenant, &wish(&api, &[1, 2])).await.json();
    let group = made["id"].as_str().expect("an id");
    let path = format!("{GROUPS}/{group}/explain");
    let told = api.get(&path, &api.tenant).await;
    assert_eq!((told.status.as_u16(), &told.json()["status"]), (200, &json!("requested")));
    assert_eq!(told.json()["members"][0]["holds_up"], true);
    assert!(!told.text.contains("node-0") && !told.text.contains("actor"), "{}", told.text);
    assert_eq!(api.get(&path, &api.stranger).await.refusal(), (404, "not_found".to_owned()));
    let path = format!("/api/v1/admin/allocation-groups/{group}/explain");
    let told = api.get(&path, &api.operator).await.json();
    assert!(told["steps"][0]["actor"].is_string(), "{told}");
    let nobodys = format!("/api/v1/admin/allocation-groups/{}/explain", new_id());
    assert_eq!(api.get(&nobodys, &api.operator).await.refusal().0, 404);
    api.close().await;
}
