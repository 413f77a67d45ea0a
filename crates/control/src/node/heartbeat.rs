//! Signs of life. Those that arrive within a moment share a statement and a commit; one that comes alone does not wait.
//! A heartbeat never changes what is free: claims do. It ends a silence, and a sweep begins one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use domain::ids::{EventId, NodeId, NodeTaskId};
use domain::machines::{Node, node};
use jiff::{SignedDuration, Timestamp};
use lifecycle::{Code as _, Source, Value};
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use store::lifecycle::{Actor, Report, apply};
use store::node_agents::Shown;
use store::nodes::{self, Beat, Heard, Hearing, Said, Silent};
use store::{allocations, node_outages};
use uuid::Uuid;
use wire::node::{Gpu, Guest, Heartbeat, HeartbeatAnswer, Lease};

use super::enrol::{AgentIdentity, REFUSED_CERTIFICATE, look_up, understood};
use super::rounds::{Line, Rounds, rounds};
use crate::account::secret::sha256;
use crate::{Ctx, Error};

mod bounds;
mod told;

use told::Told;

/// How many silent nodes a sweep looks at a time.
const SWEEP_BATCH: i64 = 200;
/// So many that were not written with the others are tried one by one.
const FEW: usize = 16;

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
    let stands = write(ctx, &[&read], &read.named, &mut Told::default()).await?;
    answer(ctx, identity, &stands, &read.named)
}

/// Where heartbeats are handed in; clones share it.
#[derive(Clone)]
pub struct Collector {
    ctx: Ctx,
    line: Line<Waiting, Written>,
}

/// What writes the heartbeats that were handed in. One a process.
pub struct Flusher {
    ctx: Ctx,
    rounds: Rounds<Waiting, Written>,
    told: Told,
}

/// A heartbeat, and the SHA-256 of the certificate that was shown with it.
struct Waiting {
    read: Read,
    certificate: [u8; 32],
}

/// What came of a heartbeat.
#[derive(Clone)]
enum Written {
    /// So it stands after it.
    Stands(Arc<Standings>),
    /// Nothing: the certificate is not good any more.
    Refused,
    /// Nobody knows. What went wrong was logged once, for all of them.
    Failed,
}

/// A heartbeat that is within bounds, with the allocations that it names.
#[derive(Debug)]
struct Read {
    beat: Beat,
    named: Vec<Uuid>,
    gpus: usize,
    /// SHA-256 of its inventory.
    digest: [u8; 32],
}

/// How nodes stand after a batch, and which of the allocations that were named are over.
struct Standings {
    nodes: HashMap<NodeId, node::Status>,
    over: HashSet<Uuid>,
}

/// A collector, and the flusher that has to [run](Flusher::run) for it.
pub fn collector(ctx: &Ctx) -> (Collector, Flusher) {
    let (line, rounds) = rounds();
    (
        Collector { ctx: ctx.clone(), line },
        Flusher { ctx: ctx.clone(), rounds, told: Told::default() },
    )
}

impl Collector {
    /// [`beat`], together with others that arrive now. Whether the certificate that was shown is good is asked with them, right before they
    /// are written: whoever shows one need not have been asked about before.
    ///
    /// # Errors
    /// As [`beat`]; [`Error::Unauthenticated`] when the certificate is not good.
    pub async fn beat(
        &self,
        identity: &AgentIdentity,
        certificate: [u8; 32],
        heartbeat: &Heartbeat,
    ) -> Result<HeartbeatAnswer, Error> {
        let read = read(&self.ctx, identity, heartbeat)?;
        let named = read.named.clone();
        match self.line.ask(Waiting { read, certificate }).await? {
            Written::Stands(stands) => answer(&self.ctx, identity, &stands, &named),
            Written::Refused => Err(REFUSED_CERTIFICATE),
            Written::Failed => Err(Error::Store(store::Error::Conflict)),
        }
    }
}

impl Flusher {
    /// Writes until every [`Collector`] is gone.
    pub async fn run(mut self) {
        while let Some(round) = self.rounds.next().await {
            let (waiting, answers): (Vec<_>, Vec<_>) = round.into_iter().unzip();
            let written =
                flush(&self.ctx, &waiting, &mut self.told).await.unwrap_or_else(|error| {
                    if !store::fall::noticed(&error) {
                        let (heartbeats, error) = (waiting.len(), error.chain());
                        tracing::warn!(heartbeats, error, "heartbeats were not written");
                    }
                    vec![Written::Failed; waiting.len()]
                });
            self.rounds.tell(written.into_iter().zip(answers).collect()).await;
        }
    }
}

/// Writes the heartbeats of those who may still speak, the newest of each node, and says what came of each.
async fn flush(ctx: &Ctx, waiting: &[Waiting], told: &mut Told) -> Result<Vec<Written>, Error> {
    let shown: Vec<[u8; 32]> = waiting.iter().map(|waiting| waiting.certificate).collect();
    let known = look_up(&ctx.store, &ctx.clock, &shown).await?;
    let speaks = |(waiting, shown): &(&Waiting, &Option<Shown>)| {
        shown.is_some_and(|shown| shown.agent_id == waiting.read.beat.agent_id)
    };
    let mut newest: HashMap<NodeId, &Read> = HashMap::with_capacity(waiting.len());
    let mut named = Vec::new();
    for (Waiting { read, .. }, _) in waiting.iter().zip(&known).filter(speaks) {
        named.extend_from_slice(&read.named);
        let kept = newest.entry(read.beat.node).or_insert(read);
        if kept.beat.at < read.beat.at {
            *kept = read;
        }
    }
    let reads: Vec<&Read> = newest.into_values().collect();
    let stands = if reads.is_empty() {
        Standings { nodes: HashMap::new(), over: HashSet::new() }
    } else {
        write(ctx, &reads, &named, told).await?
    };
    let stands = Arc::new(stands);
    let answered = |pair| {
        if speaks(&pair) { Written::Stands(Arc::clone(&stands)) } else { Written::Refused }
    };
    Ok(waiting.iter().zip(&known).map(answered).collect())
}

fn read(ctx: &Ctx, identity: &AgentIdentity, heartbeat: &Heartbeat) -> Result<Read, Error> {
    understood(heartbeat.protocol)?;
    bounds::check(heartbeat)?;
    let Heartbeat { gpus, images, guests, leases, running, refused, .. } = heartbeat;
    let inventory = Inventory { gpus, images, guests, leases, running, refused: *refused };
    let inventory = to_raw_value(&inventory)
        .map_err(|_| Error::Broken("an inventory can't be written".to_owned()))?;
    let digest = sha256(inventory.get().as_bytes());
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
    Ok(Read { beat, named, gpus: gpus.len(), digest })
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
async fn write(
    ctx: &Ctx,
    reads: &[&Read],
    named: &[Uuid],
    told: &mut Told,
) -> Result<Standings, Error> {
    let said: Vec<Said<'_>> = reads.iter().map(|read| told.said(read)).collect();
    let (mut heard, over) = hear(ctx, &said, named).await?;
    heard.extend(hear_missed(ctx, &said, &heard).await?);
    metrics::counter!("berth_heartbeats_total").increment(said.len() as u64);
    metrics::counter!("berth_heartbeat_commits_total").increment(1);
    let different = told.keep(reads, &heard);
    if different > 0 {
        metrics::counter!("berth_heartbeats_with_other_gpus_total").increment(different);
    }
    let mut nodes: HashMap<NodeId, node::Status> =
        heard.iter().map(|heard| (heard.node, heard.status)).collect();
    let beats: Vec<&Beat> = reads.iter().map(|read| &read.beat).collect();
    regain(ctx, &beats, &mut nodes).await?;
    Ok(Standings { nodes, over })
}

/// Writes with their whole inventories those that were not written with the others. Another process may have written another inventory
/// since; that may be so for many, who are tried together. What somebody else holds is waited for one at a time, holding nothing.
async fn hear_missed(ctx: &Ctx, said: &[Said<'_>], heard: &[Heard]) -> Result<Vec<Heard>, Error> {
    if let [Said { known_at: None, .. }] = said {
        return Ok(Vec::new());
    }
    let mut missed = missing(said, heard);
    let mut late = Vec::new();
    if missed.len() > FEW {
        late = hear(ctx, &missed, &[]).await?.0;
        missed = missing(&missed, &late);
    }
    for one in &missed {
        late.extend(hear(ctx, std::slice::from_ref(one), &[]).await?.0);
    }
    Ok(late)
}

fn missing<'a>(said: &[Said<'a>], heard: &[Heard]) -> Vec<Said<'a>> {
    let found: HashSet<NodeId> = heard.iter().map(|heard| heard.node).collect();
    let missed = said.iter().filter(|said| !found.contains(&said.beat.node));
    missed.map(|said| Said { known_at: None, ..*said }).collect()
}

/// One statement and one commit for all of them.
async fn hear(
    ctx: &Ctx,
    said: &[Said<'_>],
    named: &[Uuid],
) -> Result<(Vec<Heard>, HashSet<Uuid>), Error> {
    let lease = SignedDuration::from_secs(i64::from(ctx.policies().task_lease_seconds));
    let hearing = Hearing {
        lease_until: ctx.clock.now().saturating_add(lease).unwrap_or(Timestamp::MAX),
        // With what comes between two heartbeats it is still younger than what a sweep looks for.
        roughly: silence(ctx) / 2,
    };
    let mut tx = ctx.store.begin().await?;
    let heard = nodes::hear(&mut tx, said, hearing).await?;
    let other: HashSet<NodeId> =
        heard.iter().filter(|heard| heard.images_changed).map(|heard| heard.node).collect();
    if !other.is_empty() {
        let of: Vec<NodeId> = other.iter().copied().collect();
        let changed = said.iter().map(|said| said.beat).filter(|beat| other.contains(&beat.node));
        let images: Vec<(NodeId, Vec<String>)> =
            changed.map(|beat| (beat.node, images_of(beat))).collect();
        let images: Vec<(NodeId, &str)> = images
            .iter()
            .flat_map(|(node, images)| images.iter().map(|image| (*node, image.as_str())))
            .collect();
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

fn images_of(beat: &Beat) -> Vec<String> {
    #[derive(Deserialize)]
    struct Images {
        images: Vec<String>,
    }
    // It was written here.
    serde_json::from_str(beat.inventory.get())
        .map_or_else(|_| Vec::new(), |Images { images }| images)
}

/// Nodes that were silent are ready again, if this is the last that was heard of them, and it was not long ago: a sign of
/// life that had to wait until the node has fallen silent again says nothing.
async fn regain(
    ctx: &Ctx,
    beats: &[&Beat],
    stands: &mut HashMap<NodeId, node::Status>,
) -> Result<(), Error> {
    let oldest = silent_before(ctx);
    let mut back: Vec<&Beat> = beats
        .iter()
        .copied()
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
    ctx.clock.now().saturating_sub(silence(ctx)).unwrap_or(Timestamp::MIN)
}

fn silence(ctx: &Ctx) -> SignedDuration {
    SignedDuration::from_secs(i64::from(ctx.policies().node_offline_after_seconds))
}
