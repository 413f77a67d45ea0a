//! Restarts over real connections: who may, once for a key, what is told to whom comes at the wrong time, what is written
//! down.

// tidy: statements behind the store's back, on purpose

use control::account::{install, members};
use domain::policy::{ProjectRole, Scope};
use serde_json::json;
use testkit::{Act, new_id};
use uuid::Uuid;
use wire::http::account::NewMember;

use crate::api::{Api, Told, told};

/// Somebody in the tenant's project.
async fn member(api: &Api, email: &str, role: ProjectRole) -> (Uuid, String) {
    let house = &api.house;
    let user = install::ensure_user(&house.ctx, email, email, false, None).await;
    let user = user.expect("an account");
    let new = NewMember { email: email.to_owned(), role: role.into() };
    let put = members::put(&house.ctx, &house.tenant, house.project, &new, None).await;
    put.expect("a member");
    (user, api.token(user, &[Scope::Read, Scope::Write]).await)
}

fn place(id: Uuid) -> String {
    format!("/api/v1/allocations/{id}/restart")
}

async fn restart(api: &Api, id: Uuid, token: &str, key: &str) -> Told {
    told(api.request("POST", &place(id), Some(token)).header("idempotency-key", key)).await
}

async fn fresh(api: &Api, id: Uuid, token: &str) -> Told {
    restart(api, id, token, &new_id().to_string()).await
}

async fn entries(api: &Api, id: Uuid, condition: &str) -> i64 {
    let query = format!(
        "SELECT count(*) FROM audit_entries
          WHERE action = 'allocation.restart' AND target_kind = 'allocation' AND target = '{id}' AND {condition}"
    );
    api.house.database.number(&query).await
}

async fn orders(api: &Api, id: Uuid) -> usize {
    let tasks = api.house.tasks(id).await;
    tasks.iter().filter(|task| task.kind == "slice.vm_restart").count()
}

#[tokio::test]
async fn a_restart_is_accepted_once_for_a_key_and_ends_active() {
    let api = Api::open().await;
    let id = api.house.active("h100.slice", 2).await.id;
    let keyless = told(api.request("POST", &place(id), Some(&api.tenant))).await;
    assert_eq!(keyless.refusal(), (400, "idempotency_key_missing".to_owned()));
    let first = restart(&api, id, &api.tenant, "once").await;
    assert_eq!((first.status.as_u16(), &first.json()["status"]), (202, &json!("restarting")));
    assert_eq!(first.header("location"), format!("/api/v1/allocations/{id}"));
    assert_eq!(first.json()["allowed_actions"], json!(["release"]), "it can be called off");
    api.house.settle().await;
    let again = restart(&api, id, &api.tenant, "once").await;
    assert_eq!((again.status, &again.text), (first.status, &first.text), "the first answer");
    assert_eq!(again.header("idempotency-replayed"), "true");
    api.house.settle().await;
    let path = format!("/api/v1/allocations/{id}");
    assert_eq!(api.get(&path, &api.tenant).await.json()["status"], "active");
    assert_eq!(orders(&api, id).await, 1);
    assert_eq!(entries(&api, id, "outcome = 'done'").await, 1, "a replay is no deed");
    // A key says what it was for.
    let other = api.house.active("h100.slice", 1).await.id;
    let mistaken = restart(&api, other, &api.tenant, "once").await;
    assert_eq!(mistaken.refusal(), (422, "idempotency_mismatch".to_owned()));
    api.close().await;
}

#[tokio::test]
async fn owners_admins_and_operators_may_and_each_is_written_down_as_what_they_are() {
    let api = Api::open().await;
    let (admin, admins) = member(&api, "admin@example.test", ProjectRole::Admin).await;
    let (owner, owners) = member(&api, "owner@example.test", ProjectRole::Member).await;
    let wish = api.wish(1);
    let made = api.send("POST", "/api/v1/allocations", &owners, &wish).await.json();
    let id: Uuid = made["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
    api.house.settle().await;
    let operator = api.house.operator.user_id;
    let callers =
        [(&owners, owner, "user"), (&admins, admin, "user"), (&api.operator, operator, "operator")];
    for (token, user, role) in callers {
        let asked = fresh(&api, id, token).await;
        assert_eq!(asked.status.as_u16(), 202, "{asked:?}");
        let request = asked.header("x-request-id");
        let said = format!(
            "outcome = 'done' AND user_id = '{user}' AND role = '{role}' AND request_id = '{request}'
             AND project_id = '{}' AND token_id IS NOT NULL",
            api.house.project
        );
        assert_eq!(entries(&api, id, &said).await, 1, "{role} {user}");
        api.house.settle().await;
    }
    assert_eq!(orders(&api, id).await, callers.len());
    api.close().await;
}

#[tokio::test]
async fn other_members_are_told_who_may_and_strangers_nothing() {
    let api = Api::open().await;
    let id = api.house.active("h100.slice", 1).await.id;
    let (_, other) = member(&api, "other@example.test", ProjectRole::Member).await;
    let (_, viewer) = member(&api, "viewer@example.test", ProjectRole::Viewer).await;
    let reads = api.token(api.house.tenant.user_id, &[Scope::Read]).await;
    // Who runs the platform, with a token that is not for that.
    let unscoped = api.token(api.house.operator.user_id, &[Scope::Read, Scope::Write]).await;
    for token in [&other, &viewer, &reads] {
        let refused = fresh(&api, id, token).await;
        assert_eq!(refused.refusal(), (403, "forbidden".to_owned()), "{refused:?}");
    }
    let told = fresh(&api, id, &other).await.problem();
    assert!(told.detail.contains("owner") && told.detail.contains("admin"), "{told:?}");
    let nobodys = fresh(&api, new_id(), &api.stranger).await.problem();
    for token in [&api.stranger, &unscoped] {
        let hidden = fresh(&api, id, token).await.problem();
        assert_eq!(
            (hidden.status, &hidden.detail, &hidden.advice),
            (404, &nobodys.detail, &nobodys.advice),
            "it can't be told from one that is not there"
        );
    }
    assert_eq!(api.house.show(id).await.status.to_string(), "active");
    assert_eq!(orders(&api, id).await, 0);
    api.close().await;
}

#[tokio::test]
async fn who_comes_at_the_wrong_time_is_told_the_status_and_what_to_do() {
    let api = Api::open().await;
    api.house.first_node().will(&[Act::FallSilent]);
    let id = api.house.create("h100.slice", 1).await.expect("it fits").id;
    let expect = async |status: &str, advice: &str| {
        let problem = fresh(&api, id, &api.tenant).await.problem();
        assert_eq!((problem.status, problem.code.to_string()), (409, "conflict".to_owned()));
        assert!(problem.detail.contains(&format!("It is {status}: ")), "{problem:?}");
        assert!(problem.detail.contains(advice), "{problem:?}");
    };
    expect("requested", "once it is active").await;
    api.house.settle().await;
    expect("provisioning", "once it is active").await;
    api.house.release(id).await.expect("asked");
    expect("releasing", "ask for another one").await;
    api.house.settle().await;
    expect("released", "ask for another one").await;
    assert_eq!(entries(&api, id, "outcome = 'refused'").await, 4, "refusals are on record");
    assert_eq!(orders(&api, id).await, 0);
    api.close().await;
}
