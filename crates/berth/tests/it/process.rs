//! Real processes of `berth serve` on one database, and people who ask them.

use std::io::Read as _;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use control::account::install;
use domain::policy::Scope;
use reqwest::Client;
use serde_json::{Value, json};
use testkit::{House, new_id};
use tokio::time::timeout;

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A port that nobody else has at the moment.
pub(crate) fn free() -> String {
    let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
    held.local_addr().expect("it has one").to_string()
}

/// A moment, where another process says nothing when it is time.
pub(crate) async fn moment() {
    let _ = timeout(Duration::from_millis(20), std::future::pending::<()>()).await;
}

/// A process. It is gone with the test, however that ends.
pub(crate) struct Process {
    child: Child,
    /// Where it is asked how it is.
    pub(crate) health: String,
}

impl Process {
    /// Starts one with these roles and settings.
    pub(crate) fn start(house: &House, roles: &str, settings: &[(&str, &str)]) -> Process {
        let health = free();
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.env_clear().args(["serve", "--roles", roles]);
        command.env("BERTH_DATABASE_URL", house.database.url());
        command.env("BERTH_DATABASE_CONNECTIONS_MAX", "6");
        command.env("BERTH_LISTEN_HEALTH", &health);
        command.env("BERTH_LIMITS_REQUESTS_PER_MINUTE", "0");
        command.env("RUST_LOG", "warn");
        for (name, value) in settings {
            command.env(name, value);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Process { child: child.spawn().expect("it starts"), health }
    }

    /// Waits until it says that it is ready.
    pub(crate) async fn ready(mut self) -> Process {
        let ready = async {
            while status(&self.health).await != Some(200) {
                if let Some(ended) = self.child.try_wait().expect("it is ours") {
                    panic!("it ended with {ended}: {}", self.said());
                }
                moment().await;
            }
        };
        timeout(PATIENCE, ready).await.expect("it becomes ready");
        self
    }

    fn said(&mut self) -> String {
        let mut text = String::new();
        let said = self.child.stderr.as_mut().expect("it is heard");
        said.read_to_string(&mut text).expect("it is text");
        text
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("kill runs");
        assert!(sent.success(), "the process is gone");
    }

    /// How it has ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().expect("it is ours").map(|ended| ended.code().unwrap_or(-1))
    }

    /// Waits until it has ended; answers how, and what it said.
    pub(crate) async fn end(mut self) -> (i32, String) {
        let ended = async {
            loop {
                if let Some(code) = self.ended() {
                    return code;
                }
                moment().await;
            }
        };
        let code = timeout(PATIENCE, ended).await.expect("it ends");
        (code, self.said())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What it answers when it is asked whether it is ready.
pub(crate) async fn status(health: &str) -> Option<u16> {
    let asked = reqwest::get(format!("http://{health}/readyz")).await;
    asked.ok().map(|answer| answer.status().as_u16())
}

/// Somebody with a token.
pub(crate) struct Person {
    pub(crate) http: Client,
    pub(crate) token: String,
}

impl Person {
    pub(crate) async fn tenant(house: &House) -> Person {
        Person::of(house, house.tenant.user_id, &[Scope::Read, Scope::Write]).await
    }

    pub(crate) async fn operator(house: &House) -> Person {
        let scopes = [Scope::Read, Scope::Write, Scope::Admin];
        Person::of(house, house.operator.user_id, &scopes).await
    }

    async fn of(house: &House, user: uuid::Uuid, scopes: &[Scope]) -> Person {
        let fresh = install::issue_token(&house.ctx, user, "test", scopes, 3_600).await;
        let http = Client::builder().no_proxy().timeout(PATIENCE).build().expect("a client");
        Person { http, token: fresh.expect("a token").secret }
    }

    /// Posts, and must be answered well.
    pub(crate) async fn post(&self, at: &str, path: &str, body: &Value) -> Value {
        let sent = self.http.post(format!("http://{at}/api/v1{path}")).bearer_auth(&self.token);
        let sent = sent.header("idempotency-key", new_id().to_string()).json(body).send();
        let answer = sent.await.expect("an answer");
        let (status, text) = (answer.status(), answer.text().await.expect("a text"));
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str(&text).expect("it is JSON")
    }

    pub(crate) async fn get(&self, at: &str, path: &str) -> Value {
        let sent = self.http.get(format!("http://{at}/api/v1{path}")).bearer_auth(&self.token);
        let answer = sent.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer.json().await.expect("it is JSON")
    }

    /// Waits until an allocation has this status.
    pub(crate) async fn until(&self, at: &str, id: &str, status: &str) {
        let path = format!("/allocations/{id}");
        let seen = async {
            while self.get(at, &path).await["status"] != status {
                moment().await;
            }
        };
        let waited = timeout(PATIENCE, seen).await;
        assert!(waited.is_ok(), "it never is {status}: {}", self.get(at, &path).await);
    }
}

/// Waits until a node has said what it has: it is ready before, and takes nothing yet.
pub(crate) async fn first_heartbeat(house: &House) {
    let heard = async {
        while house.rows("node_images").await == 0 {
            moment().await;
        }
    };
    timeout(PATIENCE, heard).await.expect("a node comes");
}

/// What asks for GPUs.
pub(crate) fn wish(house: &House, gpus: u8) -> Value {
    json!({ "project_id": house.project, "sku": "h100.slice", "gpus": gpus, "region": "eu-1", "ssh_key_ids": [] })
}
