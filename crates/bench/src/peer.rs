//! What others have made, beside ours: a script of ours installs and starts it, and answers one line of JSON for every line that asks.
//! It ends with the pipe through which it is asked, so that it never outlives us.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// Where the scripts are, seen from where `make` runs us.
const SCRIPTS: &str = "scripts/peers";
/// How long it may take to be installed and started.
const START_MAX: Duration = Duration::from_mins(20);
/// How long it may take longer than it was asked to, for what was taken is also given back.
const ANSWER_MAX: Duration = Duration::from_mins(3);
const END_MAX: Duration = Duration::from_mins(1);

/// One that runs.
pub(crate) struct Peer {
    script: &'static str,
    child: Child,
    asks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// What it is and whether what it has answered survives a crash, for whoever reads a figure.
    pub(crate) described: String,
}

/// How fast it was, or we were.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) rate: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Pace {
    /// Of two that were taken around something.
    pub(crate) const fn mean(self, other: Pace) -> Pace {
        Pace {
            rate: f64::midpoint(self.rate, other.rate),
            p50_ms: f64::midpoint(self.p50_ms, other.p50_ms),
            p99_ms: f64::midpoint(self.p99_ms, other.p99_ms),
        }
    }
}

impl Peer {
    /// Installs and starts one, and waits until it can be asked.
    pub(crate) async fn start(
        script: &'static str,
        settings: &[(&str, String)],
    ) -> anyhow::Result<Peer> {
        let path = std::path::Path::new(SCRIPTS).join(script);
        ensure!(path.is_file(), "{} is not there: run `make bench`", path.display());
        eprintln!("{script}: it is installed and started, which may take minutes");
        let mut child = Command::new(path)
            .envs(settings.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let asks = child.stdin.take().context("a pipe")?;
        let answers = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        let mut peer = Peer { script, child, asks, answers, described: String::new() };
        let said = peer.answer(START_MAX).await?;
        let name = said["peer"].as_str().context("it does not say what it is")?;
        let durable = said["durable"].as_bool().context("it does not say whether it is durable")?;
        peer.described = format!("{name}, {}", if durable { "durable" } else { "not durable" });
        eprintln!("{script}: {}", peer.described);
        Ok(peer)
    }

    /// Has so many clients ask it for so long.
    pub(crate) async fn measure(&mut self, clients: usize, time: Duration) -> anyhow::Result<Pace> {
        let line = format!("{clients} {}\n", time.as_secs_f64());
        self.asks.write_all(line.as_bytes()).await?;
        let said = self.answer(time + ANSWER_MAX).await?;
        let number = |name: &str| {
            said[name].as_f64().with_context(|| format!("{}: no {name} in {said}", self.script))
        };
        Ok(Pace { rate: number("rate")?, p50_ms: number("p50_ms")?, p99_ms: number("p99_ms")? })
    }

    async fn answer(&mut self, patience: Duration) -> anyhow::Result<Value> {
        let line = timeout(patience, self.answers.next_line());
        let line = line.await.with_context(|| format!("{} says nothing", self.script))??;
        let line = line.with_context(|| format!("{} has ended; it said why above", self.script))?;
        let said: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        if let Some(why) = said["cannot"].as_str() {
            bail!("{} can't be measured: {why}", self.script);
        }
        Ok(said)
    }

    /// Ends it and everything that it has started.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        let Peer { script, mut child, asks, .. } = self;
        drop(asks);
        let ended = timeout(END_MAX, child.wait());
        let ended = ended.await.with_context(|| format!("{script} does not end"))??;
        ensure!(ended.success(), "{script} ended with {ended}");
        Ok(())
    }
}
