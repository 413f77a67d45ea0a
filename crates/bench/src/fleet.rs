//! Agents of machines that do nothing for it, over real mTLS: a few in this process, or many in processes of their own, because each
//! has a connection and a journal, and a process may have only so many files open.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use agent::{Config, SimulatedConfig};
use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgPool;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::null;
use crate::product::{Product, new_id};

pub(crate) const CUDA: &str = "ubuntu-24.04-cuda";
/// How many agents are in a process.
const IN_A_PROCESS: usize = 2_000;
/// How many nodes are added at a time.
const AT_A_TIME: usize = 16;
/// Says where a process finds its agents. It ends with its input.
const CREW: &str = "BENCH_CREW";

/// What answers a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Agents {
    /// Agents with their books, on disk before and after each of six phases that take no time.
    Whole,
    /// Something that only answers: what is left is the control plane.
    Null,
    /// The same, and it says when it had the task in its hands.
    NullThatTells,
}

/// An agent: where it keeps what it knows, and what lets it in.
#[derive(Clone, Serialize, Deserialize)]
struct Recruit {
    folder: PathBuf,
    join: String,
}

impl Product {
    /// Adds so many nodes whose agents run until `stop`.
    pub(crate) async fn fleet(
        &self,
        sku: &str,
        (which, count): (Agents, usize),
        agents: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let images = self.get(&self.operator, "/images").await?;
        let items = images["items"].as_array().into_iter().flatten();
        let sha256 =
            items.filter(|image| image["code"] == CUDA).find_map(|image| image["sha256"].as_str());
        let sha256 = sha256.context("no image")?.to_owned();
        let mut crew = Crew { which, sha256, recruits: self.recruits(sku, count).await? };
        if count <= IN_A_PROCESS {
            crew.begin(agents, stop);
        } else {
            while !crew.recruits.is_empty() {
                let rest = crew.recruits.split_off(crew.recruits.len().min(IN_A_PROCESS));
                self.send(&crew, agents, stop)?;
                crew.recruits = rest;
            }
        }
        // What becomes active is charged minute by minute, and there is more of it than a newcomer's gift pays for.
        let sql = PgPool::connect(&self.database()).await?;
        let owned = "SELECT id FROM accounts WHERE owner_id IS NOT NULL";
        for account in sqlx::query_scalar::<_, Uuid>(owned).fetch_all(&sql).await? {
            self.give(account).await?;
        }
        sql.close().await;
        self.until_ready(count).await
    }

    async fn recruits(&self, sku: &str, count: usize) -> anyhow::Result<Vec<Recruit>> {
        let recruits = stream::iter(0..count).map(|number| self.recruit(sku, number));
        recruits.buffer_unordered(AT_A_TIME).try_collect().await
    }

    async fn recruit(&self, sku: &str, number: usize) -> anyhow::Result<Recruit> {
        let name = format!("{}-{number}", sku.replace('.', "-"));
        let new = json!({ "name": name, "region": "eu-1", "sku": sku, "slots": [0, 0, 0, 0, 1, 1, 1, 1] });
        let (status, made) = self.post(&self.operator, "/admin/nodes", new_id(), &new).await?;
        ensure!(status == 201, "a node: {status} {made}");
        let join = made["join_token"].as_str().context("no token")?.to_owned();
        Ok(Recruit { folder: self.folder.join("nodes").join(name), join })
    }

    /// Agents in a process of their own.
    fn send(
        &self,
        crew: &Crew,
        agents: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let path = self.folder.join(format!("crew-{}.json", new_id()));
        std::fs::write(&path, serde_json::to_vec(crew)?)?;
        let mut child = Command::new(std::env::current_exe()?)
            .env(CREW, &path)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stop = stop.clone();
        agents.spawn(async move {
            let input = child.stdin.take();
            tokio::select! {
                () = stop.cancelled() => {}
                ended = child.wait() => eprintln!("a process of agents ended: {ended:?}"),
            }
            drop(input);
            let _ = child.wait().await;
        });
        Ok(())
    }
}

/// Agents of one process.
#[derive(Serialize, Deserialize)]
struct Crew {
    which: Agents,
    /// Of the image that they have.
    sha256: String,
    recruits: Vec<Recruit>,
}

impl Crew {
    fn begin(&self, agents: &mut JoinSet<()>, stop: &CancellationToken) {
        for recruit in &self.recruits {
            let (recruit, stop) = (recruit.clone(), stop.clone());
            let machine = SimulatedConfig {
                images: vec![(CUDA.to_owned(), self.sha256.clone())],
                speed: 0.0,
                ..SimulatedConfig::with_gpus(8, 2, "H100")
            };
            let mut config = Config::simulated(recruit.folder, machine.clone());
            config.join = Some(recruit.join);
            let which = self.which;
            agents.spawn(async move {
                let ended = match which {
                    Agents::Whole => agent::run(config, stop).await.map_err(Into::into),
                    Agents::Null => null::answer(config, machine, false, &stop).await,
                    Agents::NullThatTells => null::answer(config, machine, true, &stop).await,
                };
                if let Err(error) = ended {
                    eprintln!("an agent ended: {error:#}");
                }
            });
        }
    }
}

/// Where this process finds its agents, if it is one of theirs.
pub(crate) fn crew() -> Option<PathBuf> {
    std::env::var_os(CREW).map(PathBuf::from)
}

/// Is the agents that are written down there, until nobody holds the other end of the input.
pub(crate) async fn run(path: &Path) -> anyhow::Result<()> {
    let crew: Crew = serde_json::from_slice(&std::fs::read(path)?)?;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    crew.begin(&mut agents, &stop);
    let mut input = tokio::io::stdin();
    let _ = tokio::io::copy(&mut input, &mut tokio::io::sink()).await;
    stop.cancel();
    agents.join_all().await;
    Ok(())
}
