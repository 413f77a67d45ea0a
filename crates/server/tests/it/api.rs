//! The API over real connections on a real database, with a few people before it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::account::install;
use domain::policy::Scope;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Map, Value, json};
use server::doors::{Door, routes};
use server::outside::destination::Names;
use server::outside::webhooks::Webhooks;
use server::{Config, Limits, Server};
use testkit::{House, new_id};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::problem::Problem;

/// Longer than anything here takes, unless it never ends.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// See the module.
pub(crate) struct Api {
    pub(crate) house: House,
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    /// Somebody with a project.
    pub(crate) tenant: String,
    /// Somebody who runs the platform.
    pub(crate) operator: String,
    /// Somebody with an account, and nothing else.
    pub(crate) stranger: String,
    pub(crate) stop: CancellationToken,
    serving: JoinSet<Result<(), server::Error>>,
}

/// What names lead to, as a test has it: to documentation's own host a public address, to any other none.
#[derive(Default)]
pub(crate) struct Book(Mutex<HashMap<String, Vec<IpAddr>>>);

impl Book {
    /// From now on a name leads there.
    pub(crate) fn leads(&self, name: &str, to: &[&str]) {
        let to = to.iter().map(|text| text.parse().expect("an address")).collect();
        self.0.lock().expect("nobody panicked").insert(name.to_owned(), to);
    }
}

impl Names for Book {
    fn addresses<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let found = self.0.lock().expect("nobody panicked").get(name).cloned();
        let example = || vec![IpAddr::from([93, 184, 216, 34])];
        let found = found
            .unwrap_or_else(|| if name.ends_with(".example.org") { example() } else { vec![] });
        async move { Ok(found) }.boxed()
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) status: StatusCode,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Told {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("{} is not JSON", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("it is text"))
    }

    /// The problem that it is, with everything that every problem has.
    pub(crate) fn problem(&self) -> Problem {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem: Problem = serde_json::from_str(&self.text).expect("it is a problem");
        assert_eq!(problem.status, self.status.as_u16(), "{self:?}");
        let id = problem.request_id.expect("it names the request");
        assert_eq!(self.header("x-request-id"), id.to_string());
        assert!(!problem.detail.is_empty() && !problem.advice.is_empty(), "{problem:?}");
        problem
    }

    /// The status and the code, which is what clients decide by.
    pub(crate) fn refusal(&self) -> (u16, String) {
        let problem = self.problem();
        (problem.status, problem.code.to_string())
    }
}

impl Api {
    pub(crate) async fn open() -> Api {
        // A test asks more often than a person.
        let many = std::num::NonZeroU32::MAX;
        let limits = Limits { token_per_minute: many, token_burst: many, ..Limits::default() };
        Api::with(limits).await
    }

    pub(crate) async fn with(limits: Limits) -> Api {
        let mut house = House::open().await;
        let courier = Webhooks::new(Arc::new(Book::default()), true).expect("a courier");
        house.ctx.post.set(Arc::new(courier));
        house.node("h100.slice", &[0, 0, 0, 0, 1, 1, 1, 1]).await;
        let server = Server::bind(Config { limits, ..Config::default() }).await.expect("it binds");
        let (address, stop) = (server.api_addr.expect("it listens"), CancellationToken::new());
        let mut serving = JoinSet::new();
        serving.spawn(server.run(house.ctx.clone(), stop.clone()));
        let client = Client::builder().no_proxy().timeout(PATIENCE).build().expect("a client");
        let everything = [Scope::Read, Scope::Write, Scope::Admin];
        let tenant = token(&house, house.tenant.user_id, &everything[..2]).await;
        let operator = token(&house, house.operator.user_id, &everything).await;
        let stranger = install::ensure_user(&house.ctx, "stranger@example.test", "S", false, None);
        let stranger = stranger.await.expect("an account");
        let stranger = token(&house, stranger, &everything).await;
        Api { house, address, client, tenant, operator, stranger, stop, serving }
    }

    pub(crate) async fn token(&self, user: Uuid, scopes: &[Scope]) -> String {
        token(&self.house, user, scopes).await
    }

    pub(crate) fn request(&self, method: &str, path: &str, token: Option<&str>) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("it is a method");
        let request = self.client.request(method, format!("http://{}{path}", self.address));
        match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> Told {
        told(self.request("GET", path, Some(token))).await
    }

    /// A mutation with a key of its own.
    pub(crate) async fn send(&self, method: &str, path: &str, token: &str, body: &Value) -> Told {
        let request = self.request(method, path, Some(token)).json(body);
        told(request.header("idempotency-key", new_id().to_string())).await
    }

    /// The body of a request for GPUs.
    pub(crate) fn wish(&self, gpus: i16) -> Value {
        let project = self.house.project;
        json!({"project_id": project, "sku": "h100.slice", "gpus": gpus, "region": "eu-1", "ssh_key_ids": []})
    }

    /// Everything that anybody can see, to be compared with what can be seen later. What is learnt by looking (when a
    /// token was used) is left out.
    pub(crate) async fn all(&self) -> Value {
        let mut all = Map::new();
        for (token, who) in [(&self.tenant, "tenant"), (&self.operator, "operator")] {
            for door in routes::doors() {
                let looks = door.method == "GET" && door.path.starts_with("/api/v1/");
                let is_list =
                    !door.path.ends_with("openapi.json") && !door.path.ends_with("/events");
                if !looks || door.path.contains('{') || !is_list {
                    continue;
                }
                let told = self.get(&door.path, token).await;
                let mut seen = match told.header("content-type").contains("json") {
                    true => told.json(),
                    false => Value::String(told.text),
                };
                forget(&mut seen, "last_used_at");
                forget(&mut seen, "request_id");
                all.insert(format!("{who} {}", door.path), seen);
            }
        }
        Value::Object(all)
    }

    /// A bare connection.
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }

    /// What comes back for these bytes, until the connection is closed.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.expect("it is taken");
        read_to_end(&mut stream).await
    }

    /// Another server in the place of this one, on the same database.
    pub(crate) async fn restart(&mut self, limits: Limits) {
        self.stop.cancel();
        self.ended().await;
        let server = Server::bind(Config { limits, ..Config::default() }).await.expect("it binds");
        (self.address, self.stop) =
            (server.api_addr.expect("it listens"), CancellationToken::new());
        self.serving.spawn(server.run(self.house.ctx.clone(), self.stop.clone()));
    }

    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        drop(self.client);
        while let Some(ended) = self.serving.join_next().await {
            ended.expect("nothing panicked").expect("it ended well");
        }
        self.house.close().await;
    }

    /// Waits until the server has ended by itself.
    pub(crate) async fn ended(&mut self) {
        let ended = timeout(PATIENCE, self.serving.join_next()).await.expect("it ends");
        ended.expect("it was running").expect("nothing panicked").expect("it ended well");
    }
}

async fn token(house: &House, user: Uuid, scopes: &[Scope]) -> String {
    let fresh = install::issue_token(&house.ctx, user, "test", scopes, 3_600).await;
    fresh.expect("a token").secret
}

/// The whole answer; of a stream, which has no end, its beginning.
pub(crate) async fn told(request: RequestBuilder) -> Told {
    let mut answer = request.send().await.expect("there is an answer");
    let (status, headers) = (answer.status(), answer.headers().clone());
    let is_stream = headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
    if is_stream {
        let first = answer.chunk().await.expect("it begins").unwrap_or_default();
        return Told { status, headers, text: String::from_utf8_lossy(&first).into_owned() };
    }
    Told { status, headers, text: answer.text().await.expect("it is text") }
}

/// Everything that comes until the other end closes.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset ends it as well as a close does.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("it is closed");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Takes every field of that name away.
pub(crate) fn forget(value: &mut Value, name: &str) {
    match value {
        Value::Object(fields) => {
            fields.remove(name);
            fields.values_mut().for_each(|value| forget(value, name));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| forget(value, name)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The document, as it is served.
pub(crate) fn document() -> Value {
    serde_json::from_str(&server::documents::openapi()).expect("it is JSON")
}

/// What the document says of a door.
pub(crate) fn described(document: &Value, door: &Door) -> Value {
    document["paths"][&door.path][door.method.to_lowercase()].clone()
}

/// The example of a door's body.
pub(crate) fn example(document: &Value, door: &Door) -> Option<Value> {
    let body = &described(document, door)["requestBody"]["content"]["application/json"];
    body.get("example").cloned()
}
