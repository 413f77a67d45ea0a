//! Signs of life. Those that arrive together share a statement and a commit; one that comes alone does not wait.
//! A heartbeat never changes what is free: claims do. It ends a silence, and a sweep begins one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use domain::ids::{EventId, NodeId, NodeTaskId};
use domain::machines::{Node, node};
use jiff::{SignedDuration, Timestamp};
use lifecycle::{Code as _, Source, Value};
use serde::Serialize;
use store::lifecycle::{Actor, Report, apply};
use store::nodes::{self, Beat, Heard, Silent};
use store::{allocations, node_outages};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;
use wire::node::{Gpu, Guest, Heartbeat, HeartbeatAnswer, Lease};

use super::enrol::{AgentIdentity, understood};
use crate::{Ctx, Error};

mod bounds;

/// How many heartbeats may wait to be written.
const WAITING_MAX: usize = 4_096;
/// How many share a statement.
const BATCH_MAX: usize = 256;
/// How many silent nodes a sweep looks at a time.
const SWEEP_BATCH: i64 = 200;

/// What is kept of a heartbeat for people to see.
#[derive(Serialize)]
struct Inventory<'a> {
    gpus: &'a [Gpu],
    images: &'a [String],
    guests: &'a [Guest],
    leases: &'a [Lease],
    running: &'a [Uuid],
    refused: u64,
}

/// Takes one heartbeat, in a transaction of its own. Where many come in, use a [`Collector`].
///
/// # Errors
/// [`Error::Invalid`] when it is out of bounds, [`Error::Unauthenticated`] when the node is gone.
pub async fn beat(
    ctx: &Ctx,
    identity: &AgentIdentity,
    heartbeat: &Heartbeat,
) -> Result<HeartbeatAnswer, Error> {
    let read = read(ctx, identity, heartbeat)?;
    let stands = write(ctx, &[&read.beat], &read.named).await?;
    answer(ctx, identity, &stands, &read.named)
}

/// Where heartbeats are handed in; clones share it.
#[derive(Clone)]
pub struct Collector {
    ctx: Ctx,
    sender: mpsc::Sender<Waiting>,
}

/// What writes the heartbeats that were handed in. One a process.
pub struct Flusher {
    ctx: Ctx,
    receiver: mpsc::Receiver<Waiting>,
}

struct Waiting {
    read: Read,
    answer: oneshot::Sender<Option<Arc<Standings>>>,
}

/// A heartbeat that is within bounds, with the allocations that it names.
struct Read {
    beat: Beat,
    named: Vec<Uuid>,
}

/// How nodes stand after a batch, and which of the allocations that were named are over.
struct Standings {
    nodes: HashMap<NodeId, node::Status>,
    over: HashSet<Uuid>,
}

/// A collector, and the flusher that has to [run](Flusher::run) for it.
pub fn collector(ctx: &Ctx) -> (Collector, Flusher) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (Collector { ctx: ctx.clone(), sender }, Flusher { ctx: ctx.clone(), receiver })
}

impl Collector {
    /// [`beat`], together with others that arrive now.
    ///
    /// # Errors
    /// As [`beat`].
    pub async fn beat(
        &self,
        identity: &AgentIdentity,
        heartbeat: &Heartbeat,
    ) -> Result<HeartbeatAnswer, Error> {
        let read = read(&self.ctx, identity, heartbeat)?;
        let named = read.named.clone();
        let (sender, receiver) = oneshot::channel();
        let stopped = || Error::Broken("nobody writes heartbeats down any more".to_owned());
        let waiting = Waiting { read, answer: sender };
        self.sender.send(waiting).await.map_err(|_| stopped())?;
        let stands = receiver.await.map_err(|_| stopped())?;
        // What went wrong was logged once, for the batch.
        let stands = stands.ok_or(Error::Store(store::Error::Conflict))?;
        answer(&self.ctx, identity, &stands, &named)
    }
}

impl Flusher {
    /// Writes until every [`Collector`] is gone.
    pub async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        // While one batch is written the next gathers: nobody waits for a clock.
        while self.receiver.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let mut newest: HashMap<NodeId, &Beat> = HashMap::with_capacity(batch.len());
            let mut named = Vec::new();
            for Waiting { read: Read { beat, named: names }, .. } in &batch {
                named.extend_from_slice(names);
                let kept = newest.entry(beat.node).or_insert(beat);
                if kept.at < beat.at {
                    *kept = beat;
                }
            }
            let beats: Vec<&Beat> = newest.into_values().collect();
            let stands = match write(&self.ctx, &beats, &named).await {
                Ok(stands) => Some(Arc::new(stands)),
                Err(error) if store::fall::noticed(&error) => None,
                Err(error) => {
                    tracing::warn!(
                        heartbeats = batch.len(),
                        error = error.chain(),
                        "heartbeats were not written"
                    );
                    None
                }
            };
            for Waiting { answer, .. } in batch.drain(..) {
                // Whoever is not listening any more has hung up.
                let _ = answer.send(stands.clone());
            }
        }
    }
}

fn read(ctx: &Ctx, identity: &AgentIdentity, heartbeat: &Heartbeat) -> Result<Read, Error> {
    understood(heartbeat.protocol)?;
    bounds::check(heartbeat)?;
    let Heartbeat { gpus, images, guests, leases, running, refused, .. } = heartbeat;
    let inventory = Inventory { gpus, images, guests, leases, running, refused: *refused };
    let inventory = serde_json::to_value(inventory)
        .map_err(|_| Error::Broken("an inventory can't be written".to_owned()))?;
    let beat = Beat {
        node: identity.node_id,
        agent_id: identity.agent_id,
        at: in_micros(ctx.clock.now()),
        boot_id: heartbeat.boot_id,
        agent_version: heartbeat.agent_version.clone(),
        inventory,
        running: running.iter().copied().map(NodeTaskId).collect(),
    };
    let mut named: Vec<Uuid> = guests.iter().map(|guest| guest.allocation_id).collect();
    named.extend(leases.iter().map(|lease| lease.allocation_id));
    named.sort_unstable();
    named.dedup();
    Ok(Read { beat, named })
}

/// The database counts microseconds; a moment that is compared with what it keeps must too.
fn in_micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

fn answer(
    ctx: &Ctx,
    identity: &AgentIdentity,
    stands: &Standings,
    named: &[Uuid],
) -> Result<HeartbeatAnswer, Error> {
    let status = stands.nodes.get(&identity.node_id);
    let status = status.ok_or(Error::Unauthenticated("there is no such node any more"))?;
    let left = identity.not_after.duration_since(ctx.clock.now());
    let half = SignedDuration::from_secs(i64::from(ctx.policies().certificate_ttl_seconds) / 2);
    Ok(HeartbeatAnswer {
        next_seconds: ctx.policies().node_heartbeat_seconds,
        renew: left < half,
        status: status.code().to_owned(),
        over: named.iter().copied().filter(|id| stands.over.contains(id)).collect(),
    })
}

/// Writes heartbeats of different nodes, and says how the nodes stand then, and which allocations of those named are over.
async fn write(ctx: &Ctx, beats: &[&Beat], named: &[Uuid]) -> Result<Standings, Error> {
    let owned: Vec<Beat> = beats.iter().map(|beat| (*beat).clone()).collect();
    let (mut heard, over) = hear(ctx, &owned, named).await?;
    // What somebody else holds is waited for one at a time, holding nothing.
    let found: HashSet<NodeId> = heard.iter().map(|heard| heard.node).collect();
    for held in owned.iter().filter(|beat| owned.len() > 1 && !found.contains(&beat.node)) {
        heard.extend(hear(ctx, std::slice::from_ref(held), &[]).await?.0);
    }
    metrics::counter!("berth_heartbeats_total").increment(beats.len() as u64);
    metrics::counter!("berth_heartbeat_commits_total").increment(1);
    let mut nodes: HashMap<NodeId, node::Status> =
        heard.iter().map(|heard| (heard.node, heard.status)).collect();
    compare(&heard, &owned);
    regain(ctx, &owned, &mut nodes).await?;
    Ok(Standings { nodes, over })
}

/// One statement and one commit for all of them.
async fn hear(
    ctx: &Ctx,
    beats: &[Beat],
    named: &[Uuid],
) -> Result<(Vec<Heard>, HashSet<Uuid>), Error> {
    let lease = SignedDuration::from_secs(i64::from(ctx.policies().task_lease_seconds));
    let lease_until = ctx.clock.now().saturating_add(lease).unwrap_or(Timestamp::MAX);
    let mut tx = ctx.store.begin().await?;
    let heard = nodes::hear(&mut tx, beats, lease_until).await?;
    let changed: Vec<&Beat> = heard
        .iter()
        .filter(|heard| heard.images_changed)
        .filter_map(|heard| beats.iter().find(|beat| beat.node == heard.node))
        .collect();
    if !changed.is_empty() {
        let of: Vec<NodeId> = changed.iter().map(|beat| beat.node).collect();
        let images: Vec<(NodeId, &str)> = changed.iter().flat_map(|beat| images_of(beat)).collect();
        nodes::keep_images(&mut tx, &of, &images).await?;
    }
    let over = if named.is_empty() {
        HashSet::new()
    } else {
        allocations::over(&mut tx, named).await?.into_iter().collect()
    };
    tx.commit().await?;
    Ok((heard, over))
}

fn images_of(beat: &Beat) -> impl Iterator<Item = (NodeId, &str)> {
    let images = beat.inventory["images"].as_array().into_iter().flatten();
    images.filter_map(|image| Some((beat.node, image.as_str()?)))
}

/// A node that has other GPUs than its record says is shown to operators, and counted. The record stays.
fn compare(heard: &[Heard], beats: &[Beat]) {
    let differs = |heard: &&Heard| {
        let beat = beats.iter().find(|beat| beat.node == heard.node);
        let gpus = beat.and_then(|beat| beat.inventory["gpus"].as_array()).map_or(0, Vec::len);
        i64::try_from(gpus) != Ok(heard.slots)
    };
    let different = heard.iter().filter(differs).count();
    if different > 0 {
        metrics::counter!("berth_heartbeats_with_other_gpus_total").increment(different as u64);
    }
}

/// Nodes that were silent are ready again, if this is the last that was heard of them, and it was not long ago: a sign of
/// life that had to wait until the node has fallen silent again says nothing.
async fn regain(
    ctx: &Ctx,
    beats: &[Beat],
    stands: &mut HashMap<NodeId, node::Status>,
) -> Result<(), Error> {
    let oldest = silent_before(ctx);
    let mut back: Vec<&Beat> = beats
        .iter()
        .filter(|beat| stands.get(&beat.node) == Some(&node::Status::Offline) && beat.at >= oldest)
        .collect();
    if back.is_empty() {
        return Ok(());
    }
    back.sort_by_key(|beat| beat.node);
    let mut tx = ctx.store.begin().await?;
    for beat in back {
        let report = Report::new(
            node::Event::HeartbeatRegained,
            EventId(tx.new_id()),
            Actor::new(Source::Agent, format!("agent {}", beat.agent_id)),
        )
        .with(node::HEARTBEAT_AT, Value::Time(beat.at.as_microsecond()));
        let outcome = apply::<Node>(&mut tx, beat.node, &report).await?;
        if outcome.is_retryable() {
            // The transaction is void. Nobody is lost: the next heartbeat finds them offline still.
            return Ok(());
        }
        if outcome.is_applied() {
            node_outages::end(&mut tx, beat.node, beat.at).await?;
        }
        if let Ok(standing) = outcome.require() {
            stands.insert(beat.node, standing.status);
        }
    }
    tx.commit().await?;
    Ok(())
}

/// Nodes that take placements and were not heard of for too long take none from now on; says how many. While nobody listened
/// nobody could be heard, so after an outage of ours everybody has the whole time again.
///
/// # Errors
/// When the store fails.
pub async fn sweep_offline(ctx: &Ctx) -> Result<u64, Error> {
    let (before, mut after, mut lost) = (silent_before(ctx), None, 0);
    if !was_listened(ctx, before).await? {
        return Ok(0);
    }
    loop {
        let silent = nodes::list_silent(&ctx.store, before, after, SWEEP_BATCH).await?;
        for one in &silent {
            lost += u64::from(lose(ctx, one).await?);
        }
        after = silent.last().copied();
        if (silent.len() as i64) < SWEEP_BATCH {
            return Ok(lost);
        }
    }
}

async fn lose(ctx: &Ctx, silent: &Silent) -> Result<bool, Error> {
    let mut tx = ctx.store.begin().await?;
    let report = Report::new(
        node::Event::HeartbeatLost,
        EventId(tx.new_id()),
        Actor::new(Source::Timer, "sweep of silent nodes"),
    )
    .with(node::HEARTBEAT_AT, Value::Time(silent.heartbeat_at.as_microsecond()));
    let outcome = apply::<Node>(&mut tx, silent.node, &report).await?;
    if outcome.is_retryable() {
        return Ok(false);
    }
    if outcome.is_applied() {
        node_outages::begin(&mut tx, silent.node, silent.heartbeat_at).await?;
    }
    tx.commit().await?;
    Ok(outcome.is_applied())
}

/// A gateway is there to hear nodes; it says so every few seconds.
///
/// # Errors
/// When the store fails.
pub async fn listen(ctx: &Ctx) -> Result<(), Error> {
    Ok(nodes::listen(&ctx.store, in_micros(ctx.clock.now())).await?)
}

/// Whether a gateway was there to hear nodes since `from`, without a gap. Only then does it mean anything that nothing was heard.
///
/// # Errors
/// When the store fails.
pub(crate) async fn was_listened(ctx: &Ctx, from: Timestamp) -> Result<bool, Error> {
    let listening = nodes::find_listening(&ctx.store).await?;
    Ok(listening.is_none_or(|listening| listening.covers(from, ctx.clock.now())))
}

/// Who was last heard of before this is silent, if somebody [has listened](was_listened) since.
pub(crate) fn silent_before(ctx: &Ctx) -> Timestamp {
    let silence = SignedDuration::from_secs(i64::from(ctx.policies().node_offline_after_seconds));
    ctx.clock.now().saturating_sub(silence).unwrap_or(Timestamp::MIN)
}
