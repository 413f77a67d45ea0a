//! Agents of machines that do nothing for it, over real mTLS: a few in this process, or many in processes of their own, because each
//! has a connection and a journal, and a process may have only so many files open.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use agent::{Config, SimulatedConfig};
use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::null;
use crate::product::{Product, new_id};

pub(crate) const CUDA: &str = "ubuntu-24.04-cuda";
/// How many agents are in a process.
const IN_A_PROCESS: usize = 2_000;
/// How many nodes are added at a time.
const AT_A_TIME: usize = 16;
/// Says where a process finds its agents. It ends with its input.
const CREW: &str = "BENCH_CREW";

/// An agent: where it keeps what it knows, and what lets it in.
pub(crate) struct Recruit {
    pub(crate) folder: PathBuf,
    pub(crate) join: String,
}

impl Product {
    /// Adds nodes whose agents run until `stop`.
    pub(crate) async fn fleet(
        &self,
        sku: &str,
        count: usize,
        agents: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let images = self.get(&self.operator, "/images").await?;
        let items = images["items"].as_array().into_iter().flatten();
        let sha256 =
            items.filter(|image| image["code"] == CUDA).find_map(|image| image["sha256"].as_str());
        let sha256 = sha256.context("no image")?;
        let mut recruits = self.recruits(sku, count).await?;
        if count <= IN_A_PROCESS {
            begin(recruits, sha256, agents, stop);
        } else {
            while !recruits.is_empty() {
                let rest = recruits.split_off(recruits.len().min(IN_A_PROCESS));
                self.crew(&std::mem::replace(&mut recruits, rest), sha256, agents, stop)?;
            }
        }
        self.until_ready(count).await
    }

    /// Adds nodes whose agents only answer, until `stop`.
    pub(crate) async fn null_fleet(
        &self,
        sku: &str,
        count: usize,
        agents: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        null::begin(self.recruits(sku, count).await?, agents, stop);
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
    fn crew(
        &self,
        recruits: &[Recruit],
        sha256: &str,
        agents: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let each = |recruit: &Recruit| json!({ "folder": recruit.folder, "join": recruit.join });
        let crew: Vec<Value> = recruits.iter().map(each).collect();
        let path = self.folder.join(format!("crew-{}.json", new_id()));
        std::fs::write(&path, json!({ "sha256": sha256, "crew": crew }).to_string())?;
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

fn begin(recruits: Vec<Recruit>, sha256: &str, agents: &mut JoinSet<()>, stop: &CancellationToken) {
    for Recruit { folder, join } in recruits {
        let machine = SimulatedConfig {
            images: vec![(CUDA.to_owned(), sha256.to_owned())],
            speed: 0.0,
            ..SimulatedConfig::with_gpus(8, 2, "H100")
        };
        let mut config = Config::simulated(folder, machine);
        config.join = Some(join);
        let stop = stop.clone();
        agents.spawn(async move {
            if let Err(error) = agent::run(config, stop).await {
                eprintln!("an agent ended: {error}");
            }
        });
    }
}

/// Where this process finds its agents, if it is one of theirs.
pub(crate) fn crew() -> Option<PathBuf> {
    std::env::var_os(CREW).map(PathBuf::from)
}

/// Is the agents that are written down there, until nobody holds the other end of the input.
pub(crate) async fn run(path: &Path) -> anyhow::Result<()> {
    let written: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
    let mut recruits = Vec::new();
    for each in written["crew"].as_array().into_iter().flatten() {
        recruits
            .push(Recruit { folder: text(&each["folder"])?.into(), join: text(&each["join"])? });
    }
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    begin(recruits, &text(&written["sha256"])?, &mut agents, &stop);
    let mut input = tokio::io::stdin();
    let _ = tokio::io::copy(&mut input, &mut tokio::io::sink()).await;
    stop.cancel();
    agents.join_all().await;
    Ok(())
}
