//! Money through its doors: the balance and how long it lasts, usage, the ledger down to the minute, and what operators correct.

use serde_json::{Value, json};
use testkit::FUNDS_MINOR;

use crate::api::{Api, told};

/// Asks with a key.
async fn put(api: &Api, token: &str, path: &str, body: &Value) -> (u16, Value) {
    let answer = told(api.request("PUT", path, Some(token)).json(body)).await;
    (answer.status.as_u16(), answer.json())
}

async fn adjust(api: &Api, token: &str, key: &str, body: &Value) -> (u16, Value) {
    let path = "/api/v1/admin/ledger/adjustments";
    let asked = api.request("POST", path, Some(token)).header("idempotency-key", key).json(body);
    let answer = told(asked).await;
    (answer.status.as_u16(), answer.json())
}

#[tokio::test]
async fn a_balance_says_what_is_spent_and_for_how_long_it_lasts() {
    let api = Api::open().await;
    let before = api.get("/api/v1/balance", &api.tenant).await.json();
    assert_eq!(before["balance_minor"], FUNDS_MINOR);
    assert_eq!((&before["status"], &before["runway_minutes"]), (&json!("healthy"), &Value::Null));
    api.house.active("h100.slice", 2).await;
    let running = api.get("/api/v1/balance", &api.tenant).await.json();
    // 2 × 831 millionths a second are 5.9832 an hour.
    assert_eq!((&running["burn_minor_per_hour"], &running["running"]), (&json!(599), &json!(1)));
    assert_eq!(running["runway_minutes"], FUNDS_MINOR * 10_000 / (2 * 831) / 60);
    let said = running["sentence"].as_str().unwrap_or_default();
    assert!(said.contains("5.99 USD/h") && said.contains("69 d"), "{said}");
    let (status, _) = put(
        &api,
        &api.tenant,
        "/api/v1/balance/threshold",
        &json!({"low_balance_threshold_minor": FUNDS_MINOR}),
    )
    .await;
    assert_eq!(status, 200);
    let low = api.get("/api/v1/balance", &api.tenant).await.json();
    assert_eq!(low["status"], "low_balance", "it is warned at the line it chose");
    let (status, problem) = put(
        &api,
        &api.tenant,
        "/api/v1/balance/threshold",
        &json!({"low_balance_threshold_minor": -1}),
    )
    .await;
    assert_eq!(
        (status, &problem["errors"][0]["pointer"]),
        (422, &json!("/low_balance_threshold_minor"))
    );
    api.house.settle().await;
    api.close().await;
}

#[tokio::test]
async fn every_charge_can_be_followed_to_the_minutes_the_step_and_the_machine_behind_it() {
    let api = Api::open().await;
    let id = api.house.active("h100.slice", 2).await.id;
    api.house.charge_after(3).await;
    let page = api.get("/api/v1/ledger?limit=1", &api.tenant).await.json();
    let line = &page["items"][0];
    assert_eq!((&line["kind"], line["amount_minor"].as_i64() < Some(0)), (&json!("usage"), true));
    assert_eq!(line["balance_after_minor"], api.house.balance().await);
    let posting = line["posting_id"].as_str().expect("an id");
    let charge = api.get(&format!("/api/v1/ledger/{posting}"), &api.tenant).await.json();
    let windows = charge["windows"].as_array().expect("windows");
    let sum: i64 = windows.iter().filter_map(|window| window["amount_minor"].as_i64()).sum();
    assert_eq!(sum, -line["amount_minor"].as_i64().expect("a number"));
    assert_eq!(charge["windows_total"], windows.len());
    let first = &windows[0];
    assert_eq!((&first["allocation_id"], &first["gpus"]), (&json!(id), &json!(2)));
    assert!(first["opened_seq"].as_i64() > Some(1) && first["heartbeat_at"].is_string(), "{first}");
    let stranger = api.get(&format!("/api/v1/ledger/{posting}"), &api.operator).await;
    assert_eq!(stranger.status, 404, "whose it is not does not learn that it is there");

    let more = api.get("/api/v1/ledger?kind=adjustment", &api.tenant).await.json();
    assert_eq!(more["items"][0]["amount_minor"], FUNDS_MINOR);
    let text = api.get("/api/v1/ledger/export", &api.tenant).await;
    assert!(text.text.starts_with("number,posted_at,kind,amount_minor"), "{}", text.text);
    assert_eq!(text.text.lines().count(), 3, "{}", text.text);
    api.house.settle().await;
    api.close().await;
}

#[tokio::test]
async fn usage_is_summed_by_day_sku_project_and_allocation_and_all_sums_agree() {
    let api = Api::open().await;
    let id = api.house.active("h100.slice", 2).await.id;
    api.house.active("h100.slice", 1).await;
    api.house.charge_after(10).await;
    let mut totals = Vec::new();
    for by in ["day", "sku", "project", "allocation"] {
        let usage = api.get(&format!("/api/v1/usage?by={by}"), &api.tenant).await.json();
        assert_eq!(usage["by"], by);
        totals.push(usage["total_minor"].as_i64().expect("a sum"));
        let items = usage["items"].as_array().expect("sums");
        if by == "allocation" {
            assert_eq!((items.len(), &items[0]["key"]), (2, &json!(id)), "the dearest first");
        }
    }
    assert_eq!(totals[0], FUNDS_MINOR - api.house.balance().await);
    assert!(totals.iter().all(|total| *total == totals[0]), "{totals:?}");
    let project = api.house.project;
    let spending =
        api.get(&format!("/api/v1/projects/{project}/spending"), &api.tenant).await.json();
    assert_eq!(spending["spent_minor"], totals[0]);
    for bad in [
        "by=hour",
        "from=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z",
        "from=1990-01-01T00:00:00Z",
    ] {
        let refused = api.get(&format!("/api/v1/usage?{bad}"), &api.tenant).await;
        assert!(refused.status.is_client_error(), "{bad}: {}", refused.status);
    }
    api.house.settle().await;
    api.close().await;
}

#[tokio::test]
async fn an_operator_adjusts_with_a_reason_and_twice_is_once() {
    let api = Api::open().await;
    let account = api.house.account().await;
    let body = json!({"account_id": account.uuid(), "amount_minor": -250, "reason": "a slip"});
    let (status, line) = adjust(&api, &api.operator, "one", &body).await;
    assert_eq!((status, &line["amount_minor"]), (201, &json!(-250)), "{line}");
    let (again, same) = adjust(&api, &api.operator, "one", &body).await;
    assert_eq!((again, same), (201, line));
    assert_eq!(api.house.balance().await, FUNDS_MINOR - 250);
    // When the key is forgotten, the ledger still knows it.
    api.house.forget_keys().await;
    let (forgotten, problem) = adjust(&api, &api.operator, "one", &body).await;
    assert_eq!((forgotten, &problem["code"]), (422, &json!("idempotency_mismatch")));
    assert_eq!(api.house.balance().await, FUNDS_MINOR - 250);
    for (bad, pointer) in [
        (json!({"account_id": account.uuid(), "amount_minor": 0, "reason": "x"}), "/amount_minor"),
        (json!({"account_id": account.uuid(), "amount_minor": 5, "reason": " "}), "/reason"),
    ] {
        let (status, problem) = adjust(&api, &api.operator, "two", &bad).await;
        assert_eq!((status, &problem["errors"][0]["pointer"]), (422, &json!(pointer)));
    }
    let (status, _) = adjust(&api, &api.tenant, "three", &body).await;
    assert_eq!(status, 403);
    let entries = api.house.entries("ledger.adjust").await;
    assert_eq!(entries, [("done".to_owned(), Some("a slip".to_owned()))]);
    let audit = api.get("/api/v1/admin/ledger/audit", &api.operator).await.json();
    assert_eq!(audit["clean"], true, "{audit}");
    api.house.settle().await;
    api.close().await;
}

#[tokio::test]
async fn who_has_nothing_left_is_refused_with_402_and_what_to_do() {
    let api = Api::open().await;
    let account = api.house.account().await;
    let body =
        json!({"account_id": account.uuid(), "amount_minor": -FUNDS_MINOR, "reason": "all of it"});
    assert_eq!(adjust(&api, &api.operator, "all", &body).await.0, 201);
    let asked = json!({
        "project_id": api.house.project, "sku": "h100.slice", "gpus": 1, "region": "eu-1", "ssh_key_ids": []
    });
    let create = api
        .request("POST", "/api/v1/allocations", Some(&api.tenant))
        .header("idempotency-key", "no-money")
        .json(&asked);
    let refused = told(create).await;
    assert_eq!(refused.status, 402);
    let problem = refused.json();
    assert_eq!(problem["code"], "balance_depleted");
    assert!(problem["detail"].as_str().is_some_and(|said| said.contains("0.00 USD")), "{problem}");
    assert!(problem["advice"].as_str().is_some_and(|said| said.contains("berth topup")));
    let depleted = api.get("/api/v1/admin/accounts?status=depleted", &api.operator).await.json();
    let ids: Vec<&Value> =
        depleted["items"].as_array().expect("accounts").iter().map(|each| &each["id"]).collect();
    assert!(ids.contains(&&json!(account.uuid())), "{depleted}");
    api.house.settle().await;
    api.close().await;
}

/// A price holds from a moment on, for what comes and, if the operator says so, for what runs; never backwards.
#[tokio::test]
async fn a_price_is_changed_from_a_moment_on_and_never_backwards() {
    let api = Api::open().await;
    let id = api.house.active("h100.slice", 2).await.id;
    api.house.charge_after(5).await;
    let path = "/api/v1/admin/skus/h100.slice/price";
    let price = |micros: i64, from: Option<&str>, running: bool| json!({"price_micros_per_gpu_second": micros, "from": from, "running": running, "reason": "dearer"});
    let (status, problem) =
        put(&api, &api.operator, path, &price(1_662, Some("2020-01-01T00:00:00Z"), true)).await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (422, &json!("/from")));
    assert_eq!(put(&api, &api.tenant, path, &price(1_662, None, true)).await.0, 403);
    assert_eq!(
        put(&api, &api.operator, "/api/v1/admin/skus/none/price", &price(1, None, true)).await.0,
        404
    );
    assert_eq!(put(&api, &api.operator, path, &price(-1, None, true)).await.0, 422);
    let (status, set) = put(&api, &api.operator, path, &price(1_662, None, true)).await;
    assert_eq!((status, &set["running"]), (200, &json!(1)), "{set}");
    // Some minutes at the old price, then ten at the double.
    api.house.charge_after(20).await;
    let (micros, charged) = api.house.charged(id).await;
    let exact = api.house.owed_after_a_change(2, (831, 1_662)).await;
    assert_eq!(charged, exact, "each stretch at its own price, rounded once");
    assert!(charged > micros * 2 * 831 / 10_000_000_000, "it is dearer than it was");
    let next = api.house.create("h100.slice", 1).await.expect("it fits");
    assert_eq!(next.price_micros_per_gpu_second, 1_662, "who asks now pays what it costs now");
    api.house.settle().await;
    api.close().await;
}
