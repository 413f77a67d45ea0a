//! The product as its users run it: `berth up` as a process of its own, over real HTTP and real mTLS, with agents in ours.
//! It can be killed and started again in the same place.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use uuid::Uuid;

/// How long a start may take, recovery of the database included.
const START_ATTEMPTS: u32 = 1_200;
const ATTEMPT: Duration = Duration::from_millis(50);
/// How often somebody comes back at the most.
const AGAIN_MAX: u64 = 60;
/// What an account is given, so that nobody runs out.
const FUNDS_MINOR: i64 = 100_000_000;

/// What `setpriv` is told, which then becomes what it is given: killed with the thread that started it, so that a bench that is killed
/// leaves nothing running.
pub(crate) const ENDS_WITH_US: [&str; 2] = ["--pdeathsig", "KILL"];

/// A running product.
pub(crate) struct Product {
    child: Option<Child>,
    binary: PathBuf,
    nodes: u16,
    speed: &'static str,
    scaled: bool,
    /// Its folder.
    pub(crate) folder: PathBuf,
    ports: [u16; 2],
    /// Where people come in.
    pub(crate) api: String,
    /// Of the tenant.
    pub(crate) token: String,
    /// Of the operator.
    pub(crate) operator: String,
    /// The tenant's project.
    pub(crate) project: Uuid,
    /// Shared by everybody who asks.
    pub(crate) http: reqwest::Client,
}

impl Product {
    /// Starts one in a folder of its own, with that many simulated nodes inside, whose durations are multiplied by `speed`.
    pub(crate) async fn start(
        name: &str,
        nodes: u16,
        speed: &'static str,
    ) -> anyhow::Result<Product> {
        Product::start_as(name, nodes, speed, false).await
    }

    /// The same as processes of their own, on NATS and Temporal.
    pub(crate) async fn start_scaled(
        name: &str,
        nodes: u16,
        speed: &'static str,
    ) -> anyhow::Result<Product> {
        Product::start_as(name, nodes, speed, true).await
    }

    async fn start_as(
        name: &str,
        nodes: u16,
        speed: &'static str,
        scaled: bool,
    ) -> anyhow::Result<Product> {
        let folder = std::env::temp_dir().join(format!("berth-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let binary = std::env::current_exe()?.with_file_name("berth");
        ensure!(binary.is_file(), "{} is not there: build it first", binary.display());
        let http = reqwest::Client::builder().timeout(Duration::from_secs(60)).build()?;
        let mut product = Product {
            child: None,
            binary,
            nodes,
            speed,
            scaled,
            folder,
            ports: [free_port()?, free_port()?],
            api: String::new(),
            token: String::new(),
            operator: String::new(),
            project: Uuid::nil(),
            http,
        };
        product.api = format!("http://127.0.0.1:{}/api/v1", product.ports[0]);
        product.begin().await?;
        product.read_contexts()?;
        let me: Value = product.get(&product.token, "/me").await?;
        product.project = serde_json::from_value(me["projects"][0]["id"].clone())?;
        Ok(product)
    }

    /// Starts the process, and waits until it takes requests.
    pub(crate) async fn begin(&mut self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(self.folder.join("starts.log"))?;
        let [api, gateway] = self.ports.map(|port| format!("127.0.0.1:{port}"));
        let mut command = self.command();
        if self.scaled {
            command.env("BERTH_UP_SCALED", "1");
        }
        let child = command
            .env("RUST_LOG", "warn")
            .args(["up", "--speed", self.speed, "--requests-per-minute", "0", "--data"])
            .arg(self.folder.join("berth"))
            .args(["--api", &api, "--gateway", &gateway, "--nodes", &self.nodes.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.child = Some(child);
        let ready = self.api.replace("/api/v1", "/readyz");
        for _ in 0..START_ATTEMPTS {
            if self.http.get(&ready).send().await.is_ok_and(|answer| answer.status().is_success())
                && self.contexts().is_ok()
            {
                return Ok(());
            }
            if let Some(ended) =
                self.child.as_mut().and_then(|child| child.try_wait().ok()).flatten()
            {
                bail!(
                    "berth up ended with {ended}; see {}",
                    self.folder.join("starts.log").display()
                );
            }
            pause(ATTEMPT).await;
        }
        bail!("berth up is not ready; see {}", self.folder.display())
    }

    fn contexts(&self) -> anyhow::Result<toml::Table> {
        let text = std::fs::read_to_string(self.folder.join("config.toml"))?;
        let table: toml::Table = text.parse()?;
        Ok(table["contexts"].as_table().context("there are no contexts")?.clone())
    }

    fn read_contexts(&mut self) -> anyhow::Result<()> {
        let contexts = self.contexts()?;
        let token = |name: &str| {
            let context = contexts.get(name).and_then(|context| context.get("token"));
            Some(context?.as_str()?.to_owned())
        };
        self.token = token("demo").context("there is no token of a tenant")?;
        self.operator = token("operator").context("there is no token of an operator")?;
        Ok(())
    }

    /// The binary, with its contexts. It ends with who has started it, however that ends.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(ENDS_WITH_US).arg(&self.binary);
        command.env("BERTH_CONFIG", self.folder.join("config.toml")).env_remove("DATABASE_URL");
        command
    }

    /// Which of its processes live, by name.
    pub(crate) fn processes(&self) -> anyhow::Result<BTreeMap<String, u32>> {
        let text = std::fs::read(self.folder.join("berth/processes.json"))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Ends it in order.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
            let ended = child.wait()?;
            ensure!(ended.success(), "berth up ended with {ended}");
        }
        Ok(())
    }

    /// The process.
    pub(crate) fn process(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Ends it as a power cut would: no destructor runs.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// The address of its database.
    pub(crate) fn database(&self) -> String {
        let socket = self.folder.join("berth/postgres");
        format!("postgres://berth@localhost/berth?host={}", socket.display())
    }

    /// Where people come in, as a host and a port.
    pub(crate) fn host(&self) -> String {
        self.api.trim_start_matches("http://").split('/').next().unwrap_or_default().to_owned()
    }

    /// The server of its database.
    pub(crate) fn postmaster(&self) -> Option<u32> {
        let file = self.folder.join("berth/postgres/data/postmaster.pid");
        std::fs::read_to_string(file).ok()?.lines().next()?.trim().parse().ok()
    }

    /// `GET`, which must succeed.
    pub(crate) async fn get(&self, token: &str, path: &str) -> anyhow::Result<Value> {
        let answer = self.http.get(format!("{}{path}", self.api)).bearer_auth(token).send().await?;
        let status = answer.status();
        let body = answer.text().await?;
        ensure!(status.is_success(), "GET {path}: {status} {body}");
        Ok(serde_json::from_str(&body)?)
    }

    /// `POST` with a key; the answer whatever it is.
    pub(crate) async fn post(
        &self,
        token: &str,
        path: &str,
        key: Uuid,
        body: &Value,
    ) -> reqwest::Result<(u16, Value)> {
        let answer = self.say(token, path, key, body).await?;
        let status = answer.status().as_u16();
        Ok((status, answer.json().await.unwrap_or_default()))
    }

    /// The same as somebody does it who has time: who is turned away comes back with the same key, when they were told to. The status
    /// of the answer, and how often they came back.
    pub(crate) async fn post_in_patience(
        &self,
        path: &str,
        key: Uuid,
        body: &Value,
    ) -> reqwest::Result<(u16, u64)> {
        let mut again = 0;
        loop {
            let answer = self.say(&self.token, path, key, body).await?;
            let status = answer.status().as_u16();
            let told = answer.headers().get(reqwest::header::RETRY_AFTER);
            let seconds = told.and_then(|told| told.to_str().ok()?.parse().ok());
            match seconds {
                Some(seconds) if [429, 503].contains(&status) && again < AGAIN_MAX => {
                    pause(Duration::from_secs(seconds)).await;
                    again += 1;
                }
                _ => return Ok((status, again)),
            }
        }
    }

    async fn say(
        &self,
        token: &str,
        path: &str,
        key: Uuid,
        body: &Value,
    ) -> reqwest::Result<reqwest::Response> {
        self.http
            .post(format!("{}{path}", self.api))
            .bearer_auth(token)
            .header("Idempotency-Key", key.to_string())
            .json(body)
            .send()
            .await
    }

    /// What asks for that many GPUs.
    pub(crate) fn request(&self, sku: &str, gpus: i16) -> Value {
        json!({ "project_id": self.project, "sku": sku, "gpus": gpus, "region": "eu-1", "ssh_key_ids": [] })
    }

    /// Gives an account more than it will need, as an operator does.
    pub(crate) async fn give(&self, account: Uuid) -> anyhow::Result<()> {
        let gift =
            json!({ "account_id": account, "amount_minor": FUNDS_MINOR, "reason": "for a bench" });
        let path = "/admin/ledger/adjustments";
        let (status, said) = self.post(&self.operator, path, new_id(), &gift).await?;
        ensure!(status == 201, "an adjustment: {status} {said}");
        Ok(())
    }

    pub(crate) async fn until_announced(&self) -> anyhow::Result<()> {
        for _ in 0..START_ATTEMPTS {
            if self.folder.join("berth/running.json").is_file() {
                return Ok(());
            }
            pause(ATTEMPT).await;
        }
        bail!("berth up never says that it is ready; see {}", self.folder.display())
    }

    pub(crate) async fn until_ready(&self, count: usize) -> anyhow::Result<()> {
        let sql = sqlx::PgPool::connect(&self.database()).await?;
        // Agents are let in at a pace, and each comes twice: to enrol, and to work.
        for _ in 0..START_ATTEMPTS * 4 {
            let ready: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM nodes WHERE status = 'ready' AND EXISTS (SELECT 1 FROM node_images WHERE node_id = nodes.id)",
            )
            .fetch_one(&sql)
            .await?;
            if usize::try_from(ready)? >= count {
                return Ok(());
            }
            pause(ATTEMPT).await;
        }
        bail!("the nodes do not become ready")
    }

    /// The invariants that do not hold.
    pub(crate) async fn violations(&self) -> anyhow::Result<Vec<Value>> {
        let found = self.get(&self.operator, "/admin/invariants").await?;
        let broken = found["invariants"].as_array().into_iter().flatten();
        Ok(broken.filter(|invariant| invariant["count"] != 0).cloned().collect())
    }

    /// Everything that must always be true is: figures of a product that has broken its word mean nothing.
    pub(crate) async fn check(&self) -> anyhow::Result<()> {
        let violations = self.violations().await?;
        ensure!(violations.is_empty(), "invariants are violated: {}", json!(violations));
        Ok(())
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        let _ = self.kill();
        remove(&self.folder);
    }
}

/// The database writes its last words for a moment after its parent has gone.
fn remove(folder: &Path) {
    for _ in 0..20 {
        if std::fs::remove_dir_all(folder).is_ok() {
            return;
        }
        wait(ATTEMPT);
    }
}

#[expect(clippy::disallowed_methods, reason = "another process says nothing when it is ready")]
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

#[expect(clippy::disallowed_methods, reason = "another process says nothing when it is gone")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

#[expect(clippy::disallowed_methods, reason = "a load needs identities that were never used")]
pub(crate) fn new_id() -> Uuid {
    Uuid::now_v7()
}

/// A port that nobody has at the moment.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
