//! A crowd, in a process of its own on cores of its own, so that what it costs to be many is not taken from whoever serves it. It is
//! told what to do by a file, and says what it saw as one line of JSON.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::client::Client;
use crate::machine::{milliseconds, now, own_cpu, quantile};
use crate::product::{ENDS_WITH_US, Product, new_id};

/// Says where a process finds what it is to do.
const CROWD: &str = "BENCH_CROWD";
/// Whoever waits longer than this was not answered.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many connections a crowd has at the most, each with one request at a time.
const CONNECTIONS_MAX: usize = 4_096;
/// How often it is looked whether the process can be asked how it is.
const LOOK: Duration = Duration::from_millis(100);

/// How they come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Come {
    /// So many, each again as soon as they are answered.
    Closed(usize),
    /// So many a second, whether or not those before are answered.
    Open(f64),
}

/// What a crowd is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) host: String,
    pub(crate) token: String,
    pub(crate) wish: String,
    pub(crate) come: Come,
    pub(crate) seconds: f64,
}

/// What it saw. Times are in milliseconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Saw {
    /// How long they came, how many, and how many of them found a connection to ask on.
    pub(crate) lasted: f64,
    pub(crate) came: u64,
    pub(crate) asked: u64,
    /// The share of looks at which every connection waited for its answer.
    pub(crate) full: f64,
    /// How many were served while they came: what is served afterwards is not served against a crowd.
    pub(crate) served_meanwhile: u64,
    pub(crate) answers: BTreeMap<u16, u64>,
    /// Who was turned away without a word of when to come back.
    pub(crate) silent: u64,
    /// Who was not answered, and why the first was not.
    pub(crate) broken: u64,
    pub(crate) why: Option<String>,
    pub(crate) served: Times,
    pub(crate) turned_away: Times,
    /// Whether the process is there and can work, asked all the time.
    pub(crate) watched: Times,
    pub(crate) watched_in_vain: u64,
    pub(crate) cpu: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) most: f64,
}

impl Times {
    fn of(mut all: Vec<f64>) -> Times {
        all.sort_by(f64::total_cmp);
        let at = |share| if all.is_empty() { 0.0 } else { quantile(&all, share) };
        Times { p50: at(0.5), p99: at(0.99), most: at(1.0) }
    }
}

impl Saw {
    pub(crate) fn granted(&self) -> u64 {
        self.answers.get(&201).copied().unwrap_or(0)
    }

    /// Everything was either done, or turned away as it should be, and whoever watched was told.
    pub(crate) fn is_clean(&self) -> anyhow::Result<()> {
        let known = |status: &u16| [201, 429, 503].contains(status);
        ensure!(self.answers.keys().all(known), "other answers: {:?}", self.answers);
        ensure!(self.broken == 0, "{} were not answered: {:?}", self.broken, self.why);
        ensure!(self.silent == 0, "{} were not told when to come back", self.silent);
        ensure!(self.watched_in_vain == 0, "{} times it was not seen", self.watched_in_vain);
        Ok(())
    }
}

/// The cores of this machine, shared out: one half to who serves, the other to who asks. With one core both have it.
pub(crate) struct Cores {
    all: CpuSet,
    servers: CpuSet,
    askers: CpuSet,
}

impl Cores {
    pub(crate) fn shared_out() -> anyhow::Result<Cores> {
        let all = sched_getaffinity(None)?;
        let numbers: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
        let (mut servers, mut askers) = (CpuSet::new(), CpuSet::new());
        let half = numbers.len().div_ceil(2);
        numbers.iter().take(half).for_each(|core| servers.set(*core));
        numbers.iter().skip(half.min(numbers.len() - 1)).for_each(|core| askers.set(*core));
        Ok(Cores { all, servers, askers })
    }

    /// What this thread starts from now on serves.
    pub(crate) fn serve(&self) -> anyhow::Result<()> {
        Ok(sched_setaffinity(None, &self.servers)?)
    }

    /// What this thread starts from now on has all of them.
    pub(crate) fn free(&self) -> anyhow::Result<()> {
        Ok(sched_setaffinity(None, &self.all)?)
    }
}

/// Has a crowd come in a process of its own, and waits until it has gone.
pub(crate) async fn send(
    product: &Product,
    cores: &Cores,
    come: Come,
    seconds: f64,
) -> anyhow::Result<Saw> {
    let order = Order {
        host: product.host(),
        token: product.token.clone(),
        wish: product.request("h100.slice", 1).to_string(),
        come,
        seconds,
    };
    let path = product.folder.join(format!("crowd-{}.json", new_id()));
    std::fs::write(&path, serde_json::to_vec(&order)?)?;
    let mut command = Command::new("setpriv");
    command
        .args(ENDS_WITH_US)
        .arg(std::env::current_exe()?)
        .env(CROWD, &path)
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    sched_setaffinity(None, &cores.askers)?;
    let started = command.spawn();
    cores.free()?;
    let said = started?.wait_with_output().await?;
    ensure!(said.status.success(), "the crowd ended with {}", said.status);
    Ok(serde_json::from_slice(&said.stdout)?)
}

/// Where this process finds what it is to do, if it is a crowd.
pub(crate) fn order() -> Option<PathBuf> {
    std::env::var_os(CROWD).map(PathBuf::from)
}

/// Is the crowd; what it saw, as a line of JSON.
pub(crate) async fn run(path: &Path) -> anyhow::Result<String> {
    let order: Arc<Order> = Arc::new(serde_json::from_slice(&std::fs::read(path)?)?);
    let cpu = own_cpu();
    let watching = watch(Arc::clone(&order), now() + Duration::from_secs_f64(order.seconds));
    let (mut saw, watched) = match order.come {
        Come::Closed(clients) => tokio::join!(closed(&order, clients), watching),
        Come::Open(per_second) => tokio::join!(open(&order, per_second), watching),
    };
    (saw.watched, saw.watched_in_vain) = watched;
    saw.cpu = own_cpu() - cpu;
    Ok(serde_json::to_string(&saw)?)
}

/// One answer.
struct Answer {
    status: u16,
    comes_back: bool,
    took: f64,
}

/// One request on a connection of before, or on a new one; the moment at which it was meant to be sent is when its time begins.
async fn ask(
    order: Arc<Order>,
    client: Option<Client>,
    meant: Instant,
) -> anyhow::Result<(Client, Answer)> {
    let asked = async {
        let mut client = match client {
            Some(client) => client,
            None => Client::connect_to(&order.host, &order.token).await?,
        };
        let reply = client.post("/allocations", new_id(), &order.wish).await?;
        let comes_back = reply.retry_after.is_some();
        Ok((client, Answer { status: reply.status, comes_back, took: milliseconds(meant) }))
    };
    timeout(PATIENCE, asked).await.context("nobody answered in time")?
}

#[derive(Default)]
struct Tally {
    saw: Saw,
    served: Vec<f64>,
    turned_away: Vec<f64>,
}

impl Tally {
    /// Counts an answer; the connection can be used again.
    fn count(&mut self, asked: anyhow::Result<(Client, Answer)>) -> Option<Client> {
        let (client, answer) = match asked {
            Ok(asked) => asked,
            Err(error) => {
                self.saw.broken += 1;
                self.saw.why.get_or_insert_with(|| format!("{error:#}"));
                return None;
            }
        };
        *self.saw.answers.entry(answer.status).or_default() += 1;
        if answer.status == 201 {
            self.served.push(answer.took);
        } else {
            self.turned_away.push(answer.took);
            self.saw.silent += u64::from(!answer.comes_back);
        }
        Some(client)
    }

    fn crowd_is_over(&mut self, began: Instant, came: u64, asked: u64) {
        self.saw.lasted = began.elapsed().as_secs_f64();
        (self.saw.came, self.saw.asked) = (came, asked);
        self.saw.served_meanwhile = self.saw.granted();
    }

    fn end(mut self) -> Saw {
        self.saw.served = Times::of(self.served);
        self.saw.turned_away = Times::of(self.turned_away);
        self.saw
    }
}

async fn closed(order: &Arc<Order>, clients: usize) -> Saw {
    let (mut tally, mut running, mut came) = (Tally::default(), JoinSet::new(), 0);
    let began = now();
    for _ in 0..clients {
        running.spawn(ask(Arc::clone(order), None, now()));
        came += 1;
    }
    while let Some(Ok(asked)) = running.join_next().await {
        let client = tally.count(asked);
        if began.elapsed().as_secs_f64() < order.seconds {
            running.spawn(ask(Arc::clone(order), client, now()));
            came += 1;
        } else if tally.saw.lasted == 0.0 {
            tally.crowd_is_over(began, came, came);
        }
    }
    tally.end()
}

async fn open(order: &Arc<Order>, per_second: f64) -> Saw {
    let (mut tally, mut running) = (Tally::default(), JoinSet::new());
    let (mut idle, mut came, mut asked) = (Vec::new(), 0_u64, 0_u64);
    let (mut looks, mut full) = (0_u64, 0_u64);
    let (began, mut ticks) = (now(), interval(Duration::from_millis(1)));
    while began.elapsed().as_secs_f64() < order.seconds {
        ticks.tick().await;
        while let Some(Ok(asked)) = running.try_join_next() {
            idle.extend(tally.count(asked));
        }
        let due = began.elapsed().as_secs_f64().min(order.seconds) * per_second;
        // A crowd has so many connections: who finds all of them waiting for an answer has come, and goes again.
        while came < due as u64 {
            if running.len() < CONNECTIONS_MAX {
                let meant = began + Duration::from_secs_f64(came as f64 / per_second);
                running.spawn(ask(Arc::clone(order), idle.pop(), meant));
                asked += 1;
            }
            came += 1;
        }
        looks += 1;
        full += u64::from(running.len() == CONNECTIONS_MAX);
    }
    tally.crowd_is_over(began, came, asked);
    tally.saw.full = full as f64 / looks.max(1) as f64;
    while let Some(Ok(asked)) = running.join_next().await {
        tally.count(asked);
    }
    tally.end()
}

/// Asks all the time whether the process is there and can work; how long that took, and how often it was not told.
async fn watch(order: Arc<Order>, until: Instant) -> (Times, u64) {
    let (mut took, mut in_vain, mut ticks) = (Vec::new(), 0, interval(LOOK));
    while now() < until {
        ticks.tick().await;
        for path in ["/healthz", "/readyz"] {
            let began = now();
            let asked = async {
                let mut client = Client::connect_to(&order.host, &order.token).await?;
                client.get(path).await
            };
            match timeout(PATIENCE, asked).await {
                Ok(Ok(reply)) if reply.status == 200 => took.push(milliseconds(began)),
                Ok(Ok(_) | Err(_)) | Err(_) => in_vain += 1,
            }
        }
    }
    (Times::of(took), in_vain)
}

#[cfg(test)]
mod tests {
    use super::{Cores, Saw};

    #[test]
    fn nobody_has_no_core_and_nobody_has_another_than_there_is() {
        let cores = Cores::shared_out().expect("a machine has cores");
        let count = |set: &super::CpuSet| set.count();
        assert!(count(&cores.servers) > 0 && count(&cores.askers) > 0);
        let shared = count(&cores.servers) + count(&cores.askers);
        assert!(shared == count(&cores.all) || count(&cores.all) == 1);
    }

    #[test]
    fn a_crowd_is_clean_when_everybody_was_answered_in_words() {
        let clean = || Saw { answers: [(201, 5), (503, 50)].into(), ..Saw::default() };
        assert!(clean().is_clean().is_ok());
        assert!(Saw { silent: 1, ..clean() }.is_clean().is_err());
        assert!(Saw { broken: 1, ..clean() }.is_clean().is_err());
        assert!(Saw { watched_in_vain: 1, ..clean() }.is_clean().is_err());
        assert!(Saw { answers: [(500, 1)].into(), ..Saw::default() }.is_clean().is_err());
    }
}
