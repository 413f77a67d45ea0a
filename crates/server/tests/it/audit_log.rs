//! R29: whatever changes something leaves one entry, whoever is not let in leaves one too, and no entry holds a secret.
//! Generated from the table of doors: a new door that changes something is asked for here.

// tidy: statements behind the store's back, on purpose

use std::collections::BTreeMap;
use std::time::Duration;

use control::account::{install, ssh_keys, tokens};
use control::audit_log::chain;
use control::claim::{aside, view as claims};
use control::node::drain;
use control::policies::turn;
use domain::ids::{ClaimId, NodeId};
use domain::policy::{Bearer, Scope};
use serde_json::{Value, json};
use server::doors::{Door, routes};
use testkit::{Act, new_id};
use uuid::Uuid;
use wire::http::account::{NewSshKey, NewToken};
use wire::http::admin::Because;
use wire::http::policies::NewPolicy;
use wire::node::FailureReason;

use crate::api::{Api, Told, document, example, told};

const SSH_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
const OTHER_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBcanaryCanaryCanaryCanaryCanaryCanaryCanary";
const PASSWORD: &str = "canary-password-0815";

/// A request that goes through a door and changes something.
struct Mutation {
    token: String,
    path: String,
    body: Option<Value>,
}

impl Mutation {
    fn at(&mut self, id: impl ToString) {
        self.put("{id}", id);
    }

    fn put(&mut self, what: &str, id: impl ToString) {
        self.path = self.path.replace(what, &id.to_string());
    }
}

/// What there has to be before somebody can go through a door, and how they do.
async fn mutation(api: &mut Api, document: &Value, door: &Door) -> Mutation {
    let name = format!("{} {}", door.method, door.path.trim_start_matches("/api/v1"));
    let operators = door.permission.bearer() == Bearer::Operator;
    let token = if operators { api.operator.clone() } else { api.tenant.clone() };
    let mutation = Mutation { token, path: door.path.clone(), body: example(document, door) };
    match operators {
        true => of_operator(api, &name, mutation).await,
        false => of_tenant(api, &name, mutation).await,
    }
}

async fn of_tenant(api: &Api, name: &str, mut mutation: Mutation) -> Mutation {
    match name {
        "POST /login" => {
            mutation.body = Some(json!({"email": "login@example.test", "password": PASSWORD}));
        }
        "POST /projects" | "POST /tokens" | "PUT /balance/threshold" => {}
        "PUT /projects/{id}/spending-cap" => mutation.at(api.house.project),
        "POST /ssh-keys" => mutation.body = Some(json!({"name": "a", "public_key": SSH_KEY})),
        "DELETE /ssh-keys/{id}" => mutation.at(ssh_key(api).await),
        "DELETE /tokens/{id}" => mutation.at(token_of(api).await),
        "PUT /projects/{id}/members" => {
            mutation.body = Some(json!({"email": "stranger@example.test", "role": "viewer"}));
            mutation.at(api.house.project);
        }
        "DELETE /projects/{id}/members/{user_id}" => {
            mutation.at(api.house.project);
            mutation.put("{user_id}", user(api).await);
        }
        "POST /webhooks" | "POST /notifications/read-all" => {}
        "POST /notifications/{id}/read" => mutation.at(delivery(api).await.1),
        "POST /webhooks/{id}/deliveries/{notification}/redeliver" => {
            let (webhook, notification) = delivery(api).await;
            mutation.at(webhook);
            mutation.put("{notification}", notification);
        }
        "DELETE /webhooks/{id}" | "POST /webhooks/{id}/rotate" | "POST /webhooks/{id}/test" => {
            mutation.at(delivery(api).await.0);
        }
        "POST /allocations" => mutation.body = Some(api.wish(1)),
        "POST /allocations/{id}/restart" | "POST /allocations/{id}/release" => {
            mutation.at(api.house.active("h100.slice", 1).await.id);
        }
        "POST /allocation-groups" => mutation.body = Some(group_wish(api)),
        "POST /allocation-groups/{id}/release" => {
            mutation.at(made(api, "/api/v1/allocation-groups", &group_wish(api)).await);
            api.house.settle().await;
        }
        "POST /app-instances" => mutation.body = Some(app_wish(api).await),
        "PUT /app-instances/{id}/members" | "POST /app-instances/{id}/end" => {
            let wish = app_wish(api).await;
            mutation.at(made(api, "/api/v1/app-instances", &wish).await);
            if let Some(body) = mutation.body.as_mut() {
                body["members"][0]["allocation_id"] = wish["allocation_id"].clone();
            }
        }
        other => panic!("nobody has said how to go through {other}: add it here"),
    }
    mutation
}

async fn of_operator(api: &mut Api, name: &str, mut mutation: Mutation) -> Mutation {
    match name {
        "POST /admin/allocations/{id}/force-release" => {
            mutation.at(api.house.active("h100.slice", 1).await.id);
        }
        "POST /admin/nodes" => {
            let new = json!({"name": "new", "region": "eu-1", "sku": "h100.slice", "slots": [0]});
            mutation.body = Some(new);
        }
        "POST /admin/nodes/{id}/join-token"
        | "POST /admin/nodes/{id}/revoke"
        | "POST /admin/nodes/{id}/retire" => mutation.at(node(api).await),
        "POST /admin/nodes/{id}/drain" => mutation.at(ready_node(api).await),
        "POST /admin/nodes/{id}/resume" => mutation.at(empty_node(api).await),
        "POST /admin/findings/look" => {}
        "POST /admin/ledger/adjustments" => {
            let account = api.house.account().await.uuid();
            let body = json!({"account_id": account, "amount_minor": 5, "reason": "goodwill"});
            mutation.body = Some(body);
        }
        "PUT /admin/skus/{code}/price" => mutation.put("{code}", "h100.slice"),
        "POST /admin/allocations/{id}/abandon" => mutation.at(given_up(api).await),
        "POST /admin/allocations/{id}/clean" => mutation.at(failed_and_stuck(api).await),
        "POST /admin/claims/{id}/quarantine" => mutation.at(stuck_claim(api).await),
        "POST /admin/claims/{id}/clear" => {
            let claim = stuck_claim(api).await;
            let (ctx, operator) = (&api.house.ctx, &api.house.operator);
            aside::quarantine(ctx, operator, claim, &because(), None).await.expect("set aside");
            api.house.beat_all().await;
            mutation.at(claim);
        }
        "POST /admin/dead-letters/{consumer}/{event_id}/redrive" => {
            mutation.put("{consumer}", "provisioner");
            mutation.put("{event_id}", dead_letter(api).await);
        }
        "PUT /admin/policies/{key}" | "DELETE /admin/policies/{key}" => {
            mutation.put("{key}", "restart.timeout_seconds");
        }
        other => panic!("nobody has said how to go through {other}: add it here"),
    }
    mutation
}

/// Makes something through its door; its identity.
async fn made(api: &Api, path: &str, body: &Value) -> String {
    let made = api.send("POST", path, &api.tenant, body).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["id"].as_str().expect("an id").to_owned()
}

fn group_wish(api: &Api) -> Value {
    let member = json!({"sku": "h100.slice", "gpus": 1, "region": "eu-1"});
    json!({"project_id": api.house.project, "name": "group", "members": [member], "ssh_key_ids": []})
}

/// An app on an allocation of its own.
async fn app_wish(api: &Api) -> Value {
    let id = api.house.active("h100.slice", 1).await.id;
    json!({
        "project_id": api.house.project, "name": format!("app-{id}"), "app": "ray", "allocation_id": id,
        "members": []
    })
}

/// A webhook, and a notification that is delivered to it.
async fn delivery(api: &Api) -> (String, String) {
    let url = json!({"url": "https://hooks.example.org/berth"});
    let made = api.send("POST", "/api/v1/webhooks", &api.tenant, &url).await.json();
    let webhook = made["webhook"]["id"].as_str().expect("an id").to_owned();
    let path = format!("/api/v1/webhooks/{webhook}/test");
    let tested = told(api.request("POST", &path, Some(&api.tenant))).await.json();
    (webhook, tested["notification_id"].as_str().expect("an id").to_owned())
}

async fn ssh_key(api: &Api) -> String {
    let new = NewSshKey { name: "gone".to_owned(), public_key: OTHER_KEY.to_owned() };
    let made = ssh_keys::create(&api.house.ctx, &api.house.tenant, &new, None).await;
    made.expect("a key").body.id.to_string()
}

async fn token_of(api: &Api) -> String {
    let scopes = vec![Scope::Read.into()];
    let new = NewToken { name: "gone".to_owned(), scopes, ttl_seconds: None };
    let made = tokens::create(&api.house.ctx, &api.house.tenant, &new, None).await;
    made.expect("a token").body.token.id.to_string()
}

async fn user(api: &Api) -> String {
    let email = "stranger@example.test";
    let id = install::ensure_user(&api.house.ctx, email, "S", false, None).await;
    id.expect("an account").to_string()
}

/// A node that nothing else is on.
async fn node(api: &Api) -> String {
    let new = wire::http::admin::NewNode {
        name: format!("spare-{}", new_id()),
        region: "eu-1".to_owned(),
        sku: "h100.slice".to_owned(),
        slots: vec![0],
    };
    let made = control::node::admin::create(&api.house.ctx, &api.house.operator, &new, None).await;
    made.expect("a node").body.node.id.to_string()
}

/// A node that takes placements.
async fn ready_node(api: &mut Api) -> NodeId {
    api.house.node("h100.slice", &[0]).await.identity.node_id
}

/// A node that an operator has emptied.
async fn empty_node(api: &mut Api) -> String {
    let node = ready_node(api).await;
    let (ctx, operator) = (&api.house.ctx, &api.house.operator);
    drain::drain(ctx, operator, node.uuid(), &because(), None).await.expect("it is drained");
    api.house.pass(Duration::from_secs(1)).await;
    node.uuid().to_string()
}

fn because() -> Because {
    Because { reason: "a test".to_owned() }
}

/// One clean-up that does not work out is enough for an operator to be asked.
async fn hasty(api: &Api) {
    let once = NewPolicy { value: 1, reason: "a test".to_owned() };
    let (ctx, operator) = (&api.house.ctx, &api.house.operator);
    turn::set(ctx, operator, "release.max_deliver", &once, None).await.expect("turned");
}

/// What nodes do from now on. What they were given before is done first.
async fn script(api: &Api, acts: &[Act]) {
    api.house.settle().await;
    for node in api.house.nodes() {
        node.forget_script();
        node.will(acts);
    }
}

/// An allocation whose release was given up.
async fn given_up(api: &Api) -> Uuid {
    let id = api.house.active("h100.slice", 1).await.id;
    script(api, &[Act::LeaveResidue]).await;
    api.house.release(id).await.expect("asked");
    script(api, &[]).await;
    id
}

/// An allocation that failed, and whose clean-up was given up too.
async fn failed_and_stuck(api: &Api) -> Uuid {
    script(api, &[Act::Fail(FailureReason::DeviceDirty), Act::LeaveResidue]).await;
    let id = api.house.create("h100.slice", 1).await.expect("it fits").id;
    script(api, &[]).await;
    id
}

async fn stuck_claim(api: &Api) -> ClaimId {
    let id = failed_and_stuck(api).await;
    let (ctx, operator) = (&api.house.ctx, &api.house.operator);
    let page = claims::list(ctx, operator, None, None, None).await.expect("a page");
    let mine = page.items.into_iter().find(|claim| claim.allocation_id == id);
    ClaimId(mine.expect("it is stuck").id)
}

async fn dead_letter(api: &Api) -> String {
    let id = new_id();
    let statement = format!(
        "INSERT INTO bus_deliveries (consumer, event_id, entity_id, seq, message, due_at, dead_at, reason)
         VALUES ('provisioner', '{id}', '{id}', 1, '{{}}', clock_timestamp(), clock_timestamp(), 'broken')"
    );
    api.house.database.tamper(&[statement]).await;
    id.to_string()
}

async fn entries(api: &Api) -> i64 {
    api.house.database.number("SELECT count(*) FROM audit_entries").await
}

async fn send(api: &Api, door: &Door, mutation: &Mutation, key: &str) -> Told {
    let request = api.request(door.method, &mutation.path, Some(&mutation.token));
    let request = request.header("idempotency-key", key);
    match &mutation.body {
        Some(body) => told(request.json(body)).await,
        None => told(request).await,
    }
}

#[tokio::test]
async fn r29_every_door_that_changes_something_leaves_one_entry_and_a_replay_none() {
    let mut api = Api::open().await;
    let email = "login@example.test";
    let made = install::ensure_user(&api.house.ctx, email, "L", false, Some(PASSWORD)).await;
    made.expect("an account");
    hasty(&api).await;
    let document = document();
    let mut mutations = 0;
    // Payments need somebody to pay: their own tests, with a provider, look for their entries.
    let here = |door: &&Door| door.method != "GET" && !door.path.contains("/payments/");
    for door in routes::doors().iter().filter(here) {
        let name = format!("{} {}", door.method, door.path);
        let mutation = mutation(&mut api, &document, door).await;
        let (before, key) = (entries(&api).await, new_id().to_string());
        let answer = send(&api, door, &mutation, &key).await;
        assert!(answer.status.is_success(), "{name}: {answer:?}");
        assert_eq!(entries(&api).await, before + 1, "{name} leaves one entry");
        let request = answer.header("x-request-id");
        let same = format!(
            "SELECT count(*) FROM audit_entries
              WHERE request_id = '{request}' AND source = '127.0.0.1' AND outcome = 'done'
                AND user_id IS NOT NULL AND token_id IS NOT NULL AND role = '{}'",
            if door.permission.bearer() == Bearer::Operator { "operator" } else { "user" }
        );
        assert_eq!(
            api.house.database.number(&same).await,
            1,
            "{name} says who, whence and as what"
        );
        mutations += 1;
        if door.path.ends_with("/login") {
            continue;
        }
        // A secret is not told twice: that is refused, and is no deed either.
        let again = send(&api, door, &mutation, &key).await;
        assert!(again.status.is_success() || again.status == 409, "{name}: {again:?}");
        assert_eq!(entries(&api).await, before + 1, "{name}: a replay leaves none");
    }
    assert!(mutations >= 15, "{mutations} doors were tried");
    api.house.settle().await;
    chain::link(&api.house.ctx).await.expect("it links");
    let verdict = chain::verify(&api.house.ctx.store, None).await.expect("it is walked");
    assert!(verdict.sound && verdict.links == entries(&api).await, "{verdict:?}");
    api.close().await;
}

#[tokio::test]
async fn r29_who_is_not_let_in_at_a_door_for_operators_is_written_down_a_few_times_a_minute() {
    let api = Api::open().await;
    let document = document();
    let denied =
        "SELECT count(*) FROM audit_entries WHERE outcome = 'denied' AND action = 'admin.attempt'";
    let before = entries(&api).await;
    let knock = async |door: &Door| {
        let path = door.path.replace("{id}", &new_id().to_string());
        let path = path.replace("{event_id}", &new_id().to_string());
        let request = api.request(door.method, &path, Some(&api.stranger));
        let told = match example(&document, door) {
            Some(body) => told(request.json(&body)).await,
            None => told(request).await,
        };
        assert_eq!(told.status, 403, "{door:?}: {told:?}");
    };
    let doors: Vec<Door> = routes::doors();
    let doors = doors.iter().filter(|door| door.permission.bearer() == Bearer::Operator);
    let mut knocked = 0;
    for door in doors.clone() {
        knock(door).await;
        knocked += 1;
    }
    assert!(knocked > 10, "there are many such doors");
    assert_eq!(api.house.database.number(denied).await, 10, "a few of one person in a minute");
    assert_eq!(entries(&api).await, before + 10);
    api.house.ctx.clock.advance(Duration::from_secs(60));
    knock(doors.clone().next().expect("there is one")).await;
    assert_eq!(api.house.database.number(denied).await, 11, "the next minute is a new one");
    let said = "SELECT count(*) FROM audit_entries
                 WHERE outcome = 'denied' AND target LIKE '% /api/v1/admin/%' AND source = '127.0.0.1'
                   AND user_id IS NOT NULL AND role = 'user'";
    assert_eq!(api.house.database.number(said).await, 11);
    api.close().await;
}

#[tokio::test]
async fn r29_failed_logins_are_written_down_without_what_was_typed() {
    let api = Api::open().await;
    let email = "login@example.test";
    let made = install::ensure_user(&api.house.ctx, email, "L", false, Some(PASSWORD)).await;
    let id = made.expect("an account");
    let login = async |email: &str, password: &str| {
        let body = json!({"email": email, "password": password});
        told(api.request("POST", "/api/v1/login", None).json(&body)).await.status.as_u16()
    };
    assert_eq!(login(email, "wrong-canary-1").await, 401);
    // The password, where the address belongs.
    assert_eq!(login("typed-canary-2", "wrong-canary-1").await, 401);
    assert_eq!(login(email, PASSWORD).await, 201);
    let of = async |condition: String| {
        let query =
            format!("SELECT count(*) FROM audit_entries WHERE action = 'login' AND {condition}");
        api.house.database.number(&query).await
    };
    assert_eq!(of(format!("outcome = 'denied' AND user_id = '{id}' AND target = '{id}'")).await, 1);
    let unknown = "outcome = 'denied' AND user_id IS NULL AND target LIKE 'sha256:%'";
    assert_eq!(of(unknown.to_owned()).await, 1);
    assert_eq!(
        of(format!("outcome = 'done' AND user_id = '{id}' AND source = '127.0.0.1'")).await,
        1
    );
    for secret in ["wrong-canary-1", "typed-canary-2", PASSWORD] {
        assert_eq!(api.house.columns_with(secret.to_owned()).await, [""; 0], "{secret}");
    }
    api.close().await;
}

#[tokio::test]
async fn r29_a_forwarded_address_is_not_believed() {
    let api = Api::open().await;
    let request = api.request("POST", "/api/v1/projects", Some(&api.tenant));
    let request =
        request.header("x-forwarded-for", "203.0.113.5").header("forwarded", "for=203.0.113.5");
    assert_eq!(told(request.json(&json!({"name": "mine"}))).await.status, 201);
    assert_eq!(api.house.columns_with("203.0.113.5".to_owned()).await, [""; 0]);
    api.close().await;
}

#[tokio::test]
async fn the_log_is_read_filtered_and_verified_through_its_doors() {
    let api = Api::open().await;
    let made =
        api.send("POST", "/api/v1/projects", &api.tenant, &json!({"name": "mine"})).await.json();
    let project = made["id"].as_str().expect("an id");
    let path = format!("/api/v1/admin/audit?action=project.create&target={project}&limit=1");
    let page = api.get(&path, &api.operator).await.json();
    assert_eq!(page["items"][0]["user"], "tenant@example.test", "{page}");
    assert_eq!(page["items"][0]["position"], Value::Null, "not linked yet");
    chain::link(&api.house.ctx).await.expect("it links");
    let verdict = api.get("/api/v1/admin/audit/verify", &api.operator).await.json();
    assert_eq!((&verdict["sound"], &verdict["unlinked"]), (&json!(true), &json!(0)), "{verdict}");
    let head = &verdict["head"];
    let kept = format!("{}:{}", head["position"], head["hash"].as_str().expect("a hash"));
    let path = format!("/api/v1/admin/audit/verify?head={kept}");
    assert_eq!(api.get(&path, &api.operator).await.json()["sound"], true);
    let other = kept.replace(|c: char| c.is_ascii_lowercase(), "0");
    let path = format!("/api/v1/admin/audit/verify?head={other}");
    assert_eq!(api.get(&path, &api.operator).await.json()["sound"], false);
    let refused: BTreeMap<&str, u16> = BTreeMap::from([
        ("/api/v1/admin/audit/verify?head=1", 422),
        ("/api/v1/admin/audit?user=nobody", 400),
        ("/api/v1/admin/audit?from=yesterday", 400),
        ("/api/v1/admin/audit?colour=red", 400),
    ]);
    for (path, status) in refused {
        assert_eq!(api.get(path, &api.operator).await.refusal().0, status, "{path}");
    }
    let mine = api.get(&format!("/api/v1/projects/{project}/audit"), &api.tenant).await.json();
    assert_eq!(mine["items"][0]["action"], "project.create", "{mine}");
    api.close().await;
}

#[tokio::test]
async fn policies_are_turned_through_their_doors() {
    let api = Api::open().await;
    let path = "/api/v1/admin/policies/restart.timeout_seconds";
    let body = json!({"value": 1200, "reason": "slow machines"});
    let set = api.send("PUT", path, &api.operator, &body).await;
    assert_eq!((set.status.as_u16(), &set.json()["value"]), (200, &json!(1200)), "{set:?}");
    let all = api.get("/api/v1/admin/policies", &api.operator).await.json();
    let found = all["items"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|each| each["key"] == "restart.timeout_seconds");
    assert_eq!(found.expect("it is there")["value"], 1200);
    let unknown =
        api.send("PUT", "/api/v1/admin/policies/restart.seconds", &api.operator, &body).await;
    let problem = unknown.problem();
    assert_eq!(problem.status, 404);
    assert!(problem.detail.contains("restart.timeout_seconds"), "{}", problem.detail);
    let far = json!({"value": 1, "reason": "hasty"});
    let far = api.send("PUT", path, &api.operator, &far).await.problem();
    assert_eq!((far.status, far.errors[0].pointer.as_str()), (422, "/value"));
    assert!(far.detail.contains("between 30 and 86400 seconds"), "{}", far.detail);
    let nothing = json!({"value": 60, "reason": " "});
    assert_eq!(
        api.send("PUT", path, &api.operator, &nothing).await.problem().errors[0].pointer,
        "/reason"
    );
    let reset = told(api.request("DELETE", path, Some(&api.operator))).await;
    assert_eq!((reset.status.as_u16(), &reset.json()["value"]), (200, &json!(900)));
    api.close().await;
}
