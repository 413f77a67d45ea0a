//! Every door of the table, tried by those who may not go through it. Generated from the table: a new door is tried too.

use control::account::{ssh_keys, tokens};
use control::app_instance;
use control::webhook::manage;
use domain::policy::{Bearer, Permission, Scope};
use serde_json::{Value, json};
use server::doors::{Door, routes};
use testkit::new_id;
use uuid::Uuid;
use wire::http::account::{NewSshKey, NewToken};
use wire::http::app_instances::NewAppInstance;
use wire::http::webhooks::NewWebhook;

use crate::api::{Api, Told, described, document, example, forget, told};

const SSH_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";

/// What belongs to somebody else.
struct Foreign {
    allocation: Uuid,
    group: Uuid,
    app: Uuid,
    payment: Uuid,
    project: Uuid,
    ssh_key: Uuid,
    token: Uuid,
    notification: Uuid,
    webhook: Uuid,
    node: Uuid,
    user: Uuid,
}

impl Foreign {
    async fn of(api: &Api) -> Foreign {
        let (ctx, tenant) = (&api.house.ctx, &api.house.tenant);
        let key = NewSshKey { name: "laptop".to_owned(), public_key: SSH_KEY.to_owned() };
        let key = ssh_keys::create(ctx, tenant, &key, None).await.expect("a key").body;
        let token = NewToken { name: "ci".to_owned(), scopes: vec![], ttl_seconds: None };
        let token = NewToken { scopes: vec![Scope::Read.into()], ..token };
        let token = tokens::create(ctx, tenant, &token, None).await.expect("a token").body;
        let group = api.house.group("h100.slice", &[1]).await.expect("it fits").id;
        let app = NewAppInstance {
            project_id: api.house.project,
            name: "cluster".to_owned(),
            app: "ray".to_owned(),
            allocation_id: None,
            group_id: Some(group),
            members: Vec::new(),
        };
        let app = app_instance::create(ctx, tenant, &app, None).await.expect("an app").body.id;
        let new = NewWebhook { url: "https://hooks.example.org/".to_owned() };
        let webhook = manage::create(ctx, tenant, &new, None).await.expect("a webhook").body;
        let webhook = webhook.webhook.id;
        let tested = manage::test(ctx, tenant, webhook, None).await.expect("a delivery").body;
        Foreign {
            notification: tested.notification_id,
            webhook,
            allocation: api.house.create("h100.slice", 1).await.expect("it fits").id,
            group,
            app,
            payment: api.house.payment_session().await,
            project: api.house.project,
            ssh_key: key.id,
            token: token.token.id,
            node: api.house.first_node().identity.node_id.uuid(),
            user: tenant.user_id,
        }
    }

    /// What nobody has.
    fn nothing() -> Foreign {
        let [
            allocation,
            group,
            app,
            payment,
            project,
            ssh_key,
            token,
            notification,
            webhook,
            node,
            user,
        ] = std::array::from_fn(|_| new_id());
        Foreign {
            allocation,
            group,
            app,
            payment,
            project,
            ssh_key,
            token,
            notification,
            webhook,
            node,
            user,
        }
    }

    /// The path of a door, leading to one of these things.
    fn path(&self, door: &Door) -> String {
        let id = match () {
            () if door.path.contains("/allocations/") => self.allocation,
            () if door.path.contains("/allocation-groups/") => self.group,
            () if door.path.contains("/app-instances/") => self.app,
            () if door.path.contains("/payments/sessions/") => self.payment,
            () if door.path.contains("/projects/") => self.project,
            () if door.path.contains("/ssh-keys/") => self.ssh_key,
            () if door.path.contains("/tokens/") => self.token,
            () if door.path.contains("/notifications/") => self.notification,
            () if door.path.contains("/webhooks/") => self.webhook,
            () => self.node,
        };
        let path = door.path.replace("{id}", &id.to_string());
        let path = path.replace("{user_id}", &self.user.to_string());
        let path = path.replace("{key}", "retry.seconds");
        let path = path.replace("{notification}", &self.notification.to_string());
        path.replace("{consumer}", "workflows").replace("{event_id}", &self.node.to_string())
    }

    fn body(&self, document: &Value, door: &Door) -> Option<Value> {
        let mut body = example(document, door)?;
        if body.get("project_id").is_some() {
            body["project_id"] = json!(self.project);
            if body.get("ssh_key_ids").is_some() {
                body["ssh_key_ids"] = json!([]);
            }
        }
        Some(body)
    }
}

async fn knock(api: &Api, document: &Value, door: &Door, by: (Option<&str>, &Foreign)) -> Told {
    let (token, things) = by;
    let request = api.request(door.method, &things.path(door), token);
    let request = request.header("idempotency-key", new_id().to_string());
    let told = match things.body(document, door) {
        Some(body) => told(request.json(&body)).await,
        None => told(request).await,
    };
    let known = &described(document, door)["responses"];
    let status = told.status.as_str();
    assert!(
        known.get(status).is_some(),
        "{} {}: {status} is not documented: {told:?}",
        door.method,
        door.path
    );
    told
}

/// Doors through which everybody with an account finds what is theirs, or what is everybody's.
fn is_ones_own(door: &Door) -> bool {
    let to_one_thing = door.path.contains('{');
    match door.permission.bearer() {
        Bearer::Anybody => true,
        Bearer::User => !to_one_thing,
        Bearer::Member(_) => door.method == "GET" && !to_one_thing,
        Bearer::Operator => false,
    }
}

#[tokio::test]
async fn without_a_good_token_no_door_opens_but_the_public_ones() {
    let api = Api::open().await;
    let (document, foreign) = (document(), Foreign::of(&api).await);
    let guessed = format!("{}x", &api.tenant[..api.tenant.len() - 1]);
    for door in routes::doors() {
        let by = [None, Some("nonsense"), Some(guessed.as_str())];
        for token in by {
            let told = knock(&api, &document, &door, (token, &foreign)).await;
            if door.permission == Permission::Public {
                continue;
            }
            assert_eq!(told.refusal(), (401, "unauthenticated".to_owned()), "{door:?}");
            assert!(told.header("www-authenticate").starts_with("Bearer"), "{door:?}");
        }
    }
    api.close().await;
}

#[tokio::test]
async fn a_stranger_sees_nothing_of_others_through_any_door() {
    let api = Api::open().await;
    let (document, foreign) = (document(), Foreign::of(&api).await);
    let house = &api.house;
    let canaries = [
        foreign.allocation.to_string(),
        foreign.group.to_string(),
        foreign.app.to_string(),
        foreign.payment.to_string(),
        foreign.ssh_key.to_string(),
        foreign.token.to_string(),
        foreign.notification.to_string(),
        foreign.webhook.to_string(),
        house.project.to_string(),
        house.tenant.user_id.to_string(),
        house.tenant.email.clone(),
        house.operator.email.clone(),
    ];
    for door in routes::doors() {
        let told = knock(&api, &document, &door, (Some(&api.stranger), &foreign)).await;
        let (status, name) = (told.status.as_u16(), format!("{} {}", door.method, door.path));
        for canary in &canaries {
            assert!(!told.text.contains(canary.as_str()), "{name} tells {canary}: {}", told.text);
        }
        if !is_ones_own(&door) {
            assert!([401, 403, 404].contains(&status), "{name}: {told:?}");
            told.problem();
        }
        if door.permission.bearer() == Bearer::Operator {
            assert_eq!(status, 403, "{name}");
        }
    }
    let shown = house.show(foreign.allocation).await;
    assert_eq!(shown.status.to_string(), "requested", "a stranger has moved it");
    api.close().await;
}

#[tokio::test]
async fn what_is_foreign_and_what_is_not_there_get_the_same_answer() {
    let api = Api::open().await;
    let (document, foreign) = (document(), Foreign::of(&api).await);
    for door in routes::doors().iter().filter(|door| door.path.contains('{')) {
        let mut answers = Vec::new();
        for things in [&foreign, &Foreign::nothing()] {
            let told = knock(&api, &document, door, (Some(&api.stranger), things)).await;
            let mut body = told.json();
            forget(&mut body, "request_id");
            let mut headers = told.headers.clone();
            for changing in ["x-request-id", "date", "ratelimit", "content-length"] {
                headers.remove(changing);
            }
            answers.push((told.status, headers, body));
        }
        assert_eq!(answers[0], answers[1], "{} {}", door.method, door.path);
    }
    api.close().await;
}

#[tokio::test]
async fn a_token_opens_no_door_beyond_its_scopes() {
    let api = Api::open().await;
    let (document, foreign) = (document(), Foreign::of(&api).await);
    // An operator's, so that nothing but the scope is in the way.
    let operator = api.house.operator.user_id;
    for scope in [Scope::Read, Scope::Write, Scope::Admin] {
        let token = api.token(operator, &[scope]).await;
        for door in routes::doors() {
            let needed = door.permission.scope();
            if needed.is_none() || needed == Some(scope) {
                continue;
            }
            let told = knock(&api, &document, &door, (Some(&token), &foreign)).await;
            let name = format!("{} {} with {scope}", door.method, door.path);
            assert_eq!(told.refusal(), (403, "forbidden".to_owned()), "{name}");
            // It is asked before anything else is looked at.
            let path = format!("{}?colour=red", foreign.path(&door));
            let garbage = api.request(door.method, &path, Some(&token)).body("garbage");
            let told = crate::api::told(garbage).await;
            assert_eq!(told.refusal(), (403, "forbidden".to_owned()), "{name}, with garbage");
        }
    }
    api.close().await;
}

#[tokio::test]
async fn a_token_that_was_revoked_opens_nothing_from_then_on() {
    let api = Api::open().await;
    let user = api.house.tenant.user_id;
    let token = api.token(user, &[Scope::Read, Scope::Write]).await;
    let mine = api.get("/api/v1/tokens", &token).await.json();
    let ids = mine["items"].as_array().expect("a list").iter().map(|token| token["id"].clone());
    for id in ids.collect::<Vec<Value>>() {
        let path = format!("/api/v1/tokens/{}", id.as_str().expect("an id"));
        let told = told(api.request("DELETE", &path, Some(&api.tenant))).await;
        // The tenant's own token may be the first to go.
        assert!([204, 401].contains(&told.status.as_u16()), "{told:?}");
    }
    let told = api.get("/api/v1/me", &api.tenant).await;
    assert_eq!(told.refusal().0, 401);
    api.close().await;
}
