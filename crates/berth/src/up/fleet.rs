//! Simulated nodes in this process: each is added once, enrols over the gateway like any other, and is started again when
//! its agent ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::{Config, Identity, SimulatedConfig};
use anyhow::Context as _;
use control::node::admin;
use control::{Caller, Ctx, catalogue};
use domain::machines::node::Status;
use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use wire::http::PAGE_MAX;
use wire::http::admin::{NewNode, Node};

use super::place::Place;
use crate::exit::Done;

/// The pause before an agent that ended is started again.
const REST: Duration = Duration::from_secs(1);

/// A sort of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sort {
    region: &'static str,
    sku: &'static str,
    /// What it is called, between its region and its number.
    word: &'static str,
    model: &'static str,
    gpus: i16,
    numa: i16,
}

const fn h100(region: &'static str, sku: &'static str, word: &'static str) -> Sort {
    Sort { region, sku, word, model: "NVIDIA H100 80GB", gpus: 8, numa: 2 }
}

/// What a fleet is made of, in this order, over and over.
const SORTS: [Sort; 6] = [
    h100("eu-1", "h100.slice", "h100"),
    h100("us-1", "h100.slice", "h100"),
    h100("eu-1", "h100.metal", "metal"),
    Sort {
        region: "us-1",
        sku: "l40s.slice",
        word: "l40s",
        model: "NVIDIA L40S 48GB",
        gpus: 4,
        numa: 1,
    },
    h100("eu-1", "h100.slice", "h100"),
    h100("us-1", "h100.metal", "metal"),
];

/// The machines of a fleet of that size, with their names.
fn machines(count: u16) -> Vec<(String, Sort)> {
    let mut machines: Vec<(String, Sort)> = Vec::new();
    for sort in SORTS.iter().cycle().take(usize::from(count)) {
        let alike =
            |(_, other): &&(String, Sort)| (other.region, other.word) == (sort.region, sort.word);
        let number = machines.iter().filter(alike).count() + 1;
        machines.push((format!("{}-{}-{number}", sort.region, sort.word), *sort));
    }
    machines
}

/// What the whole fleet has to know.
pub(super) struct Fleet {
    pub(super) ctx: Ctx,
    pub(super) operator: Caller,
    pub(super) place: Place,
    /// What simulated durations are multiplied by.
    pub(super) speed: f64,
    /// Where agents reach the gateway.
    pub(super) gateway: String,
}

impl Fleet {
    /// Starts `count` nodes; the agents run in `agents` until `stop`. Answers their names.
    pub(super) async fn start(
        self,
        count: u16,
        agents: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> Done<Vec<String>> {
        let fleet = Arc::new(self);
        let there = list(&fleet.ctx, &fleet.operator).await?;
        let mut names = Vec::new();
        for (number, (name, sort)) in machines(count).into_iter().enumerate() {
            let node = there.iter().find(|node| node.name == name);
            if node.is_some_and(|node| node.status.0 == Status::Retired) {
                continue;
            }
            let config = fleet.config(&name, sort, number as u64);
            let join = fleet.join(&name, sort, node, &config.directory).await?;
            agents.spawn(supervise(name.clone(), Config { join, ..config }, stop.clone()));
            names.push(name);
        }
        Ok(names)
    }

    fn config(&self, name: &str, sort: Sort, seed: u64) -> Config {
        let images = catalogue::demonstration().images;
        let machine = SimulatedConfig {
            images: images.into_iter().map(|image| (image.code, image.sha256)).collect(),
            speed: self.speed,
            seed,
            ..SimulatedConfig::with_gpus(sort.gpus, sort.numa, sort.model)
        };
        Config::simulated(self.place.nodes().join(name), machine)
    }

    /// The join token that an agent needs; none when its certificate is still good. A directory that belongs to another
    /// installation is put aside, not used.
    async fn join(
        &self,
        name: &str,
        sort: Sort,
        node: Option<&Node>,
        directory: &Path,
    ) -> Done<Option<String>> {
        let identity = Identity::find(directory).context("a node's identity")?;
        if let (Some(identity), Some(node)) = (&identity, node)
            && identity.node_id == node.id
            && identity.authority == self.ctx.keys.authority_pem()
            && identity.not_after > self.ctx.clock.now()
        {
            if identity.gateway != self.gateway {
                let moved = Identity { gateway: self.gateway.clone(), ..identity.clone() };
                moved.keep(directory).context("a node's identity")?;
            }
            return Ok(None);
        }
        let stranger =
            identity.filter(|identity| node.is_none_or(|node| identity.node_id != node.id));
        if let Some(stranger) = stranger {
            let aside = PathBuf::from(format!("{}.{}", directory.display(), stranger.node_id));
            std::fs::rename(directory, aside).context("a folder of another installation")?;
        }
        let fresh = match node {
            Some(node) => admin::reissue(&self.ctx, &self.operator, node.id, None).await,
            None => admin::create(&self.ctx, &self.operator, &new_node(name, sort), None).await,
        };
        Ok(Some(fresh.with_context(|| format!("the node {name}"))?.body.join_token))
    }
}

fn new_node(name: &str, sort: Sort) -> NewNode {
    let per_numa = (sort.gpus / sort.numa).max(1);
    NewNode {
        name: name.to_owned(),
        region: sort.region.to_owned(),
        sku: sort.sku.to_owned(),
        slots: (0..sort.gpus).map(|gpu| gpu / per_numa).collect(),
    }
}

/// Every node of the fleet.
async fn list(ctx: &Ctx, operator: &Caller) -> Done<Vec<Node>> {
    let mut nodes = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = admin::list(ctx, operator, Some(PAGE_MAX), cursor.as_deref()).await;
        let page = page.context("the fleet can't be read")?;
        nodes.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(nodes);
        }
    }
}

/// Those of `names` that were heard of since `since` and are not on their way in any more.
pub(super) async fn ready(
    ctx: &Ctx,
    operator: &Caller,
    names: &[String],
    since: Timestamp,
) -> Done<usize> {
    let settled = |status: Status| match status {
        Status::Ready | Status::Draining | Status::Maintenance => true,
        Status::Enrolling | Status::Offline | Status::Retired => false,
    };
    let there = |node: &&Node| {
        names.contains(&node.name)
            && settled(node.status.0)
            // Enrolled, it was heard of; what it has is known from its first heartbeat on.
            && node.agent_version.is_some()
            && node.heartbeat_at.is_some_and(|heard| heard >= since)
    };
    Ok(list(ctx, operator).await?.iter().filter(there).count())
}

/// Runs an agent until `stop`, and again whenever it ends.
async fn supervise(name: String, mut config: Config, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match agent::run(config.clone(), stop.child_token()).await {
            Ok(()) if stop.is_cancelled() => return,
            Ok(()) => tracing::warn!(name, "an agent ended and is started again"),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(name, %error, cause, "an agent ended and is started again");
            }
        }
        // The token has done its work as soon as there is a certificate.
        if Identity::find(&config.directory).is_ok_and(|identity| identity.is_some()) {
            config.join = None;
        }
        let _ = timeout(REST, stop.cancelled()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::{machines, new_node};

    #[test]
    fn the_usual_fleet_has_every_sort_in_both_regions() {
        let fleet = machines(6);
        let names: Vec<&str> = fleet.iter().map(|(name, _)| name.as_str()).collect();
        let expected = [
            "eu-1-h100-1",
            "us-1-h100-1",
            "eu-1-metal-1",
            "us-1-l40s-1",
            "eu-1-h100-2",
            "us-1-metal-1",
        ];
        assert_eq!(names, expected);
        let slots = new_node("n", fleet[0].1).slots;
        assert_eq!(slots, [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(new_node("n", fleet[3].1).slots, [0, 0, 0, 0]);
        assert_eq!(machines(3)[..], machines(300)[..3], "a larger fleet has the smaller one in it");
        let all: std::collections::HashSet<String> =
            machines(300).into_iter().map(|(name, _)| name).collect();
        assert_eq!(all.len(), 300);
    }
}
