//! R14: the database breaks under a request: at every statement of it, before the statement and after it; for everybody at once;
//! or has no connection to spare. Whoever asks is told to ask again, and whoever does so with the same key gets what they wanted,
//! once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use control::account::install;
use control::policies::Policies;
use control::{Assembled, assemble};
use domain::policy::{Bearer, Scope};
use serde_json::{Value, json};
use server::Limits;
use server::doors::routes;
use server::http::Front;
use server::listen::Remote;
use server::outside::webhooks::Webhooks;
use store::{Options, Store};
use testkit::{Change, Death, House, Turnstile, new_id};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::ServiceExt as _;

use crate::api::{Api, Book, PATIENCE, Told, told};

const GROUP_RELEASE: &str = "POST /api/v1/allocation-groups/{id}/release";
const FRIEND: &str = "friend@example.test";
const PASSWORD: &str = "correct horse battery staple";
/// `BERTH_R14_ALL=1` cuts at every statement, which takes a minute.
const STRIDE: usize = 8;

/// A mutation as somebody asks for it, more than once.
#[derive(Clone, Debug)]
struct Ask {
    method: &'static str,
    path: String,
    key: String,
    body: Option<Value>,
}

impl Ask {
    fn new(method: &'static str, path: impl Into<String>, body: Option<Value>) -> Ask {
        Ask { method, path: path.into(), key: new_id().to_string(), body }
    }
}

/// A house with doors whose one connection goes through a turnstile, and nobody else behind them.
struct Stage {
    house: House,
    router: Router,
    turnstile: Turnstile,
    token: String,
    /// Allocations that are active, for those who need one.
    active: Vec<String>,
    /// Groups that were given back.
    released: Vec<String>,
}

fn limits() -> Limits {
    let many = std::num::NonZeroU32::MAX;
    let limits = Limits { token_per_minute: many, token_burst: many, ..Limits::default() };
    Limits { login_per_minute: many, login_per_peer_per_minute: many, ..limits }
}

/// The doors of another process on the same database.
async fn doors(house: &House, url: &str, options: Options) -> (Router, Store) {
    let store = Store::open(url, options).await.expect("a store");
    let clock = house.ctx.clock.clone();
    let assembled = assemble(store.clone(), clock, Policies::default()).await;
    let Assembled { ctx, .. } = assembled.expect("it stands");
    let courier = Webhooks::new(Arc::new(Book::default()), false).expect("a courier");
    ctx.post.set(Arc::new(courier));
    (routes::router(Front::new(ctx, limits())), store)
}

async fn send(router: Router, token: String, ask: Ask) -> Told {
    let from = Remote(SocketAddr::from(([127, 0, 0, 1], 1)));
    let mut request = Request::builder().method(ask.method).uri(&ask.path).extension(from);
    request = request.header("authorization", format!("Bearer {token}"));
    request = request.header("idempotency-key", ask.key);
    let body = match ask.body {
        Some(body) => {
            request = request.header("content-type", "application/json");
            Body::from(body.to_string())
        }
        None => Body::empty(),
    };
    let request = request.body(body).expect("a request");
    let answer = router.oneshot(request).await.expect("there is an answer");
    let (status, headers) = (answer.status(), answer.headers().clone());
    let bytes = to_bytes(answer.into_body(), usize::MAX).await.expect("it is whole");
    Told { status, headers, text: String::from_utf8(bytes.into()).expect("it is text") }
}

/// Nothing but: not now, ask again.
fn assert_asked_to_wait(told: &Told, what: &str) {
    assert_eq!((told.refusal().0, told.refusal().1.as_str()), (503, "unavailable"), "{what}");
    let seconds = told.header("retry-after").parse::<u64>();
    assert!(seconds.is_ok_and(|seconds| seconds >= 1), "{what}: {told:?}");
}

/// How a database was changed, whichever rows it was: how many came and went, and which columns of how many moved.
type Effect = BTreeMap<String, usize>;

fn effect(changes: BTreeSet<Change>) -> Effect {
    let mut effect = Effect::new();
    for change in changes {
        let what = match change {
            Change::Added { table, .. } => format!("{table} +"),
            Change::Removed { table, .. } => format!("{table} -"),
            Change::Moved { table, column, .. } => format!("{table}.{column}"),
        };
        *effect.entry(what).or_default() += 1;
    }
    effect
}

/// How a case is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// With its key it is answered again.
    Keyed,
    /// Its answer is a secret: whoever missed it is told that it was given.
    Secret,
    /// It has no key: asked for again, it is another one.
    Unkeyed,
}

/// What is asked for, and how.
type Case = (&'static str, Kind);

/// The door of a case is its first two words; what follows tells two of one door apart.
const CASES: [Case; 26] = [
    ("POST /api/v1/login", Kind::Unkeyed),
    ("POST /api/v1/projects", Kind::Keyed),
    ("PUT /api/v1/projects/{id}/members", Kind::Keyed),
    ("DELETE /api/v1/projects/{id}/members/{user_id}", Kind::Keyed),
    ("POST /api/v1/ssh-keys", Kind::Keyed),
    ("DELETE /api/v1/ssh-keys/{id}", Kind::Keyed),
    ("POST /api/v1/tokens", Kind::Secret),
    ("DELETE /api/v1/tokens/{id}", Kind::Keyed),
    ("POST /api/v1/app-instances", Kind::Keyed),
    ("PUT /api/v1/app-instances/{id}/members", Kind::Keyed),
    ("POST /api/v1/app-instances/{id}/end", Kind::Keyed),
    ("POST /api/v1/allocations", Kind::Keyed),
    ("POST /api/v1/allocations/{id}/restart", Kind::Keyed),
    ("POST /api/v1/allocations/{id}/release", Kind::Keyed),
    ("POST /api/v1/allocations/{id}/release cancels", Kind::Keyed),
    ("POST /api/v1/allocation-groups", Kind::Keyed),
    (GROUP_RELEASE, Kind::Keyed),
    ("POST /api/v1/notifications/{id}/read", Kind::Keyed),
    ("POST /api/v1/notifications/read-all", Kind::Keyed),
    ("POST /api/v1/webhooks", Kind::Secret),
    ("DELETE /api/v1/webhooks/{id}", Kind::Keyed),
    ("POST /api/v1/webhooks/{id}/rotate", Kind::Secret),
    ("POST /api/v1/webhooks/{id}/test", Kind::Keyed),
    ("POST /api/v1/webhooks/{id}/deliveries/{notification}/redeliver", Kind::Keyed),
    ("PUT /api/v1/balance/threshold", Kind::Keyed),
    ("PUT /api/v1/projects/{id}/spending-cap", Kind::Keyed),
];

/// What speaks to a payment provider, or is told by one, is more than one transaction: the tests of payments take it apart.
const OF_PAYMENTS: [&str; 2] =
    ["POST /api/v1/payments/checkout-session", "POST /api/v1/payments/stripe/webhook"];

fn fresh(name: &str) -> String {
    format!("{name}-{}", new_id().simple())
}

fn ssh_key() -> Value {
    let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
    blob.extend(new_id().as_bytes());
    blob.extend([7; 16]);
    json!({"name": fresh("key"), "public_key": format!("ssh-ed25519 {}", BASE64_STANDARD.encode(blob))})
}

impl Stage {
    async fn open() -> Stage {
        // Nodes of a script send no heartbeat, and are not missed.
        let policies = Policies { node_offline_after_seconds: 10_000_000, ..Policies::default() };
        let mut house = House::with(policies).await;
        for _ in 0..if all() { 8 } else { 2 } {
            house.node("h100.slice", &[0; 64]).await;
        }
        install::ensure_user(&house.ctx, FRIEND, "F", false, Some(PASSWORD)).await.expect("a user");
        let scopes = [Scope::Read, Scope::Write];
        let token = install::issue_token(&house.ctx, house.tenant.user_id, "test", &scopes, 3_600);
        let token = token.await.expect("a token").secret;
        let turnstile = Turnstile::new(&house.database.url(), &Arc::new(Notify::new()));
        let options = Options { connections_max: 1, ..Options::default() };
        let (router, _) = doors(&house, turnstile.url(), options).await;
        Stage { house, router, turnstile, token, active: Vec::new(), released: Vec::new() }
    }

    fn sent(&self, ask: &Ask) -> impl Future<Output = Told> + Send + use<> {
        send(self.router.clone(), self.token.clone(), ask.clone())
    }

    /// What something that is needed first is called.
    async fn make(&self, path: &str, body: Value) -> String {
        let made = self.sent(&Ask::new("POST", path, Some(body))).await;
        assert_eq!(made.status, 201, "{path}: {made:?}");
        let made = made.json();
        let inside = ["token", "webhook"].into_iter().find_map(|of| made[of].get("id"));
        let id = made.get("id").or(inside).expect("an id");
        id.as_str().expect("it is text").to_owned()
    }

    /// An allocation that is active, and that nobody else is given.
    async fn active(&mut self) -> String {
        if self.active.is_empty() {
            for _ in 0..12 {
                let made = self.house.create("h100.slice", 1).await.expect("it fits");
                self.active.push(made.id.to_string());
            }
            self.house.settle().await;
        }
        self.active.pop().expect("they were just made")
    }

    fn wish(&self) -> Value {
        json!({"project_id": self.house.project, "sku": "h100.slice", "gpus": 1, "region": "eu-1", "ssh_key_ids": []})
    }

    fn group(&self) -> Value {
        let member = json!({"sku": "h100.slice", "gpus": 1, "region": "eu-1"});
        json!({"project_id": self.house.project, "members": [member, member]})
    }

    async fn app(&mut self) -> Value {
        // Several may be bound to one.
        let of = self.active().await;
        self.active.push(of.clone());
        json!({"project_id": self.house.project, "name": fresh("app"), "app": "ray", "allocation_id": of, "members": []})
    }

    /// Something of that case that nobody has asked for yet.
    async fn ask(&mut self, case: &str) -> Ask {
        let member = json!({"email": FRIEND, "role": "member"});
        let (method, path, body) = match case {
            "POST /api/v1/login" => {
                let body = json!({"email": FRIEND, "password": PASSWORD});
                ("POST", "/api/v1/login".to_owned(), Some(body))
            }
            "POST /api/v1/projects" => {
                ("POST", "/api/v1/projects".to_owned(), Some(json!({"name": fresh("p")})))
            }
            "PUT /api/v1/balance/threshold" => {
                // Another one each time, and far below what there is.
                let minor = new_id().as_u128() % 10_000;
                let body = json!({"low_balance_threshold_minor": minor as u64});
                ("PUT", "/api/v1/balance/threshold".to_owned(), Some(body))
            }
            "PUT /api/v1/projects/{id}/spending-cap" => {
                let id = self.make("/api/v1/projects", json!({"name": fresh("p")})).await;
                let body = json!({"spend_cap_minor": 500});
                ("PUT", format!("/api/v1/projects/{id}/spending-cap"), Some(body))
            }
            "PUT /api/v1/projects/{id}/members" => {
                let id = self.make("/api/v1/projects", json!({"name": fresh("p")})).await;
                ("PUT", format!("/api/v1/projects/{id}/members"), Some(member))
            }
            "DELETE /api/v1/projects/{id}/members/{user_id}" => {
                let id = self.make("/api/v1/projects", json!({"name": fresh("p")})).await;
                let path = format!("/api/v1/projects/{id}/members");
                let put = self.sent(&Ask::new("PUT", &path, Some(member))).await.json();
                let user = put["user_id"].as_str().expect("a user").to_owned();
                ("DELETE", format!("{path}/{user}"), None)
            }
            "POST /api/v1/ssh-keys" => ("POST", "/api/v1/ssh-keys".to_owned(), Some(ssh_key())),
            "DELETE /api/v1/ssh-keys/{id}" => {
                let id = self.make("/api/v1/ssh-keys", ssh_key()).await;
                ("DELETE", format!("/api/v1/ssh-keys/{id}"), None)
            }
            "POST /api/v1/tokens" => {
                let body = json!({"name": fresh("t"), "scopes": ["read"]});
                ("POST", "/api/v1/tokens".to_owned(), Some(body))
            }
            "DELETE /api/v1/tokens/{id}" => {
                let body = json!({"name": fresh("t"), "scopes": ["read"]});
                let id = self.make("/api/v1/tokens", body).await;
                ("DELETE", format!("/api/v1/tokens/{id}"), None)
            }
            other if other.contains("/webhooks") || other.contains("/notifications") => {
                self.ask_to_be_told(other).await
            }
            other => self.ask_for_gpus(other).await,
        };
        Ask::new(method, path, body)
    }

    /// One webhook, one delivery to it, and one notification that is unread.
    async fn ask_to_be_told(&mut self, case: &str) -> (&'static str, String, Option<Value>) {
        self.house.forget_webhooks().await;
        let url = json!({"url": "https://hooks.example.org/"});
        let (own, list) = ("/api/v1/webhooks".to_owned(), "/api/v1/notifications");
        if case == "POST /api/v1/webhooks" {
            return ("POST", own, Some(url));
        }
        let hook = format!("{own}/{}", self.make(&own, url).await);
        let tested = self.sent(&Ask::new("POST", format!("{hook}/test"), None)).await.json();
        let told = tested["notification_id"].as_str().expect("an id");
        self.house.unread(told.parse().expect("an id")).await;
        match case {
            "POST /api/v1/notifications/{id}/read" => ("POST", format!("{list}/{told}/read"), None),
            "POST /api/v1/notifications/read-all" => {
                ("POST", format!("{list}/read-all"), Some(json!({})))
            }
            "DELETE /api/v1/webhooks/{id}" => ("DELETE", hook, None),
            "POST /api/v1/webhooks/{id}/rotate" => ("POST", format!("{hook}/rotate"), None),
            "POST /api/v1/webhooks/{id}/test" => ("POST", format!("{hook}/test"), None),
            "POST /api/v1/webhooks/{id}/deliveries/{notification}/redeliver" => {
                ("POST", format!("{hook}/deliveries/{told}/redeliver"), None)
            }
            unknown => panic!("nobody knows how to ask for {unknown}"),
        }
    }

    async fn ask_for_gpus(&mut self, case: &str) -> (&'static str, String, Option<Value>) {
        match case {
            "POST /api/v1/allocations" => {
                ("POST", "/api/v1/allocations".to_owned(), Some(self.wish()))
            }
            "POST /api/v1/allocations/{id}/restart" => {
                let id = self.active().await;
                ("POST", format!("/api/v1/allocations/{id}/restart"), None)
            }
            "POST /api/v1/allocations/{id}/release" => {
                let id = self.active().await;
                ("POST", format!("/api/v1/allocations/{id}/release"), None)
            }
            "POST /api/v1/allocations/{id}/release cancels" => {
                let id = self.make("/api/v1/allocations", self.wish()).await;
                ("POST", format!("/api/v1/allocations/{id}/release"), None)
            }
            "POST /api/v1/allocation-groups" => {
                ("POST", "/api/v1/allocation-groups".to_owned(), Some(self.group()))
            }
            GROUP_RELEASE => {
                let id = self.make("/api/v1/allocation-groups", self.group()).await;
                self.released.push(id.clone());
                ("POST", format!("/api/v1/allocation-groups/{id}/release"), None)
            }
            "POST /api/v1/app-instances" => {
                let body = self.app().await;
                ("POST", "/api/v1/app-instances".to_owned(), Some(body))
            }
            "PUT /api/v1/app-instances/{id}/members" => {
                let body = self.app().await;
                let members =
                    json!({"members": [{"allocation_id": body["allocation_id"], "role": "head"}]});
                let id = self.make("/api/v1/app-instances", body).await;
                ("PUT", format!("/api/v1/app-instances/{id}/members"), Some(members))
            }
            "POST /api/v1/app-instances/{id}/end" => {
                let body = self.app().await;
                let id = self.make("/api/v1/app-instances", body).await;
                ("POST", format!("/api/v1/app-instances/{id}/end"), None)
            }
            unknown => panic!("nobody knows how to ask for {unknown}"),
        }
    }

    /// Asks once with a cut, if there is to be one, and then again and again. Answers the statements up to the cut, and what came of
    /// all of it.
    async fn trial(&mut self, case: Case, cut: Option<(usize, Death)>) -> (Vec<String>, Effect) {
        let (name, kind) = case;
        let ask = self.ask(name).await;
        let before = self.house.database.snapshot().await;
        let (first, asked) = self.turnstile.run_cut(self.sent(&ask), cut).await;
        let at = asked.last().cloned().unwrap_or_default();
        let place = format!("{name}: {cut:?} {at}");
        let there = cut.is_some_and(|(_, how)| how == Death::After) && commits(&at);
        match cut {
            Some((number, _)) => {
                assert_eq!(asked.len(), number, "it was cut where it should: {place}");
                assert_asked_to_wait(&first, &place);
            }
            None => assert!(first.status.is_success(), "{place}: {first:?}"),
        }
        let answered = cut.is_none() || there;
        let second = self.sent(&ask).await;
        if kind == Kind::Secret && answered {
            assert_eq!(second.refusal(), (409, "conflict".to_owned()), "{place}");
        } else {
            assert!(second.status.is_success(), "{place}: {second:?}");
            let replayed = second.header("idempotency-replayed") == "true";
            assert_eq!(replayed, answered && kind == Kind::Keyed, "{place}: {second:?}");
        }
        if kind == Kind::Keyed {
            let third = self.sent(&ask).await;
            assert_eq!((third.status, &third.text), (second.status, &second.text), "{place}");
        }
        let after = self.house.database.snapshot().await;
        (asked, effect(before.changes_to(&after)))
    }

    /// Cuts a case at its statements up to its commit; answers how often.
    async fn cut_everywhere(&mut self, case: Case, first: usize) -> usize {
        let (asked, whole) = self.trial(case, None).await;
        assert!(!whole.is_empty(), "{case:?} has no effect");
        let commit = asked.iter().rposition(|statement| commits(statement));
        let commit = commit.expect("it commits") + 1;
        // A short request is cut before its commit, too.
        let stride = if all() { 1 } else { STRIDE.min(commit - 1) };
        let mut cuts = 0;
        for how in [Death::Before, Death::After] {
            // Others with every case, so that it is not always the same that are left out; the commit is never.
            let some = (1..commit).skip((first + cuts) % stride).step_by(stride);
            for at in some.chain([commit]) {
                let (asked, mut effect) = self.trial(case, Some((at, how))).await;
                // Who does not hear of the commit begins no run: the sweep does, and what came of that is seen in the end.
                if case.0 == GROUP_RELEASE && at == commit && how == Death::After {
                    effect.insert("workflow_runs +".to_owned(), 1);
                }
                if case.1 != Kind::Unkeyed {
                    let at = asked.last();
                    assert_eq!(effect, whole, "{case:?} {how:?} {at:?}");
                }
                cuts += 1;
            }
        }
        cuts
    }
}

/// Whether it makes true what was asked: as the end of a transaction, or, where an allocation is written, by itself.
fn commits(statement: &str) -> bool {
    statement == "COMMIT" || statement.contains("require_won")
}

fn all() -> bool {
    std::env::var_os("BERTH_R14_ALL").is_some()
}

#[test]
fn every_mutation_that_a_tenant_has_is_among_the_cases() {
    let doors: BTreeSet<String> = routes::doors()
        .into_iter()
        .filter(|door| door.method != "GET" && door.permission.bearer() != Bearer::Operator)
        .map(|door| format!("{} {}", door.method, door.path))
        .filter(|door| !OF_PAYMENTS.contains(&door.as_str()))
        .collect();
    let door = |case: &Case| case.0.split(' ').take(2).collect::<Vec<_>>().join(" ");
    assert_eq!(CASES.iter().map(door).collect::<BTreeSet<_>>(), doors);
}

#[tokio::test]
async fn r14_a_request_that_is_cut_off_at_any_statement_has_one_effect_when_it_is_repeated() {
    let mut stage = Stage::open().await;
    let mut cuts = 0;
    for (number, case) in CASES.into_iter().enumerate() {
        cuts += stage.cut_everywhere(case, number).await;
    }
    println!("{cuts} cuts");
    assert!(cuts >= 4 * CASES.len(), "{cuts}");
    stage.house.pass(Duration::from_secs(120)).await;
    for id in &stage.released {
        let path = format!("/api/v1/allocation-groups/{id}");
        let shown = stage.sent(&Ask::new("GET", path, None)).await.json();
        assert_eq!(shown["status"], "released", "{shown}");
    }
    stage.house.close().await;
}

/// Makes projects until each was answered well; answers how often it was told to ask again.
async fn person(api: Arc<Api>, projects: usize) -> usize {
    let mut waited = 0;
    for _ in 0..projects {
        let (key, body) = (new_id().to_string(), json!({"name": fresh("r14")}));
        loop {
            let request = api.request("POST", "/api/v1/projects", Some(&api.tenant)).json(&body);
            let told = told(request.header("idempotency-key", &key)).await;
            if told.status == 201 {
                break;
            }
            // The connection of the one before may not have noticed yet that it is gone.
            if told.refusal() != (409, "idempotency_in_flight".to_owned()) {
                assert_asked_to_wait(&told, "a project");
            }
            waited += 1;
        }
    }
    waited
}

#[tokio::test]
async fn r14_when_all_connections_are_ended_everybody_is_served_by_new_ones() {
    const PEOPLE: usize = 8;
    const PROJECTS: usize = 12;
    const BLOWS: usize = 6;
    let api = Arc::new(Api::open().await);
    let mut people = JoinSet::new();
    for _ in 0..PEOPLE {
        people.spawn(person(Arc::clone(&api), PROJECTS));
    }
    let (mut ended, mut waited) = (0, 0);
    for _ in 0..BLOWS {
        ended += api.house.database.end_connections().await;
        // Between two blows somebody gets through.
        if let Ok(Some(one)) = timeout(Duration::from_millis(50), people.join_next()).await {
            waited += one.expect("nothing panicked");
        }
    }
    waited += people.join_all().await.into_iter().sum::<usize>();
    assert!(ended > 0 && waited > 0, "{ended} connections were ended, {waited} had to ask again");
    // Nothing was under way when these were ended: nobody is told of it more than once.
    tokio::task::yield_now().await;
    api.house.database.end_connections().await;
    let look = || api.get("/api/v1/projects?limit=200", &api.tenant);
    let first = look().await;
    if first.status != 200 {
        assert_asked_to_wait(&first, "the first to notice");
    }
    let made = look().await.json();
    let names = made["items"].as_array().expect("a list").iter();
    let ours =
        names.filter(|project| project["name"].as_str().is_some_and(|n| n.starts_with("r14")));
    assert_eq!(ours.count(), PEOPLE * PROJECTS, "each of them once");
    Arc::into_inner(api).expect("all have gone").close().await;
}

#[tokio::test]
async fn r14_without_a_connection_to_spare_nobody_waits_for_long_and_readiness_says_so() {
    let house = House::open().await;
    let options = Options { connections_max: 2, acquire: Duration::from_millis(250) };
    let (router, store) = doors(&house, &house.database.url(), options).await;
    let scopes = [Scope::Read, Scope::Write];
    let token = install::issue_token(&house.ctx, house.tenant.user_id, "test", &scopes, 3_600);
    let token = token.await.expect("a token").secret;
    let ask = Ask::new("POST", "/api/v1/projects", Some(json!({"name": "spared"})));
    let look = |path: &str| send(router.clone(), token.clone(), Ask::new("GET", path, None));
    assert_eq!(look("/readyz").await.status, 200);
    let before = house.database.snapshot().await;
    let held = [store.begin().await, store.begin().await].map(|tx| tx.expect("a transaction"));
    let mut waits = JoinSet::new();
    for _ in 0..20 {
        waits.spawn(send(router.clone(), token.clone(), ask.clone()));
    }
    // Together, and not one after the other.
    let all = timeout(Duration::from_millis(1_500), waits.join_all());
    for told in all.await.expect("nobody waits for longer than they were told") {
        assert_asked_to_wait(&told, "nothing is free");
    }
    let ready = look("/readyz").await;
    assert_asked_to_wait(&ready, "readiness");
    assert_eq!(ready.problem().detail, "The database can't be asked.");
    assert_eq!(look("/healthz").await.status, 200, "the process itself is well");
    drop(held);
    let told = timeout(PATIENCE, send(router.clone(), token.clone(), ask)).await;
    assert_eq!(told.expect("it is answered").status, 201);
    assert_eq!(look("/readyz").await.status, 200);
    let changed = effect(before.changes_to(&house.database.snapshot().await));
    assert_eq!((changed["projects +"], changed["idempotency_keys +"]), (1, 1), "{changed:?}");
    store.close().await;
    house.close().await;
}
