//! What nodes do: they say that they live, take work, do it well or badly, and say how it ended.

use control::Error;
use control::node::{dispatch, heartbeat as beats, task};
use domain::ids::NodeTaskId;
use uuid::Uuid;
use wire::Coded;
use wire::node::{
    FailureReason, Phase, PhaseBatch, PhaseReport, PhaseStatus, TaskOutcome, TaskResult,
};

use crate::node::{Luck, Node};
use crate::sim::{Sim, short};
use crate::story::{Heard, Plan};

/// So many in a hundred pieces of work take long, and so often such a one comes to its end when it could.
const SLOW: usize = 20;
/// Why a restart fails.
const NOT_RESTARTED: &[FailureReason] = &[
    FailureReason::RebootFailed,
    FailureReason::GuestMissing,
    FailureReason::SshNotReady,
    FailureReason::GuestNotReady,
    FailureReason::MountsNotReady,
    FailureReason::RuntimesNotReady,
    FailureReason::AgentDied,
    FailureReason::LeaseConflict,
];
/// Why anything else fails.
const NOT_DONE: &[FailureReason] = &[
    FailureReason::DriverFailed,
    FailureReason::LeaseConflict,
    FailureReason::SshNotReady,
    FailureReason::AgentDied,
];

/// A node that is not silent.
fn node(sim: &mut Sim<'_>) -> Option<usize> {
    node_with(sim, |_| true)
}

/// A node that is not silent, and of which this is true.
fn node_with(sim: &mut Sim<'_>, holds: impl Fn(&Node) -> bool) -> Option<usize> {
    let fits = |place: &usize| sim.nodes[*place].silent == 0 && holds(&sim.nodes[*place]);
    let fitting: Vec<usize> = (0..sim.nodes.len()).filter(fits).collect();
    sim.dice.pick(&fitting).copied()
}

pub(super) fn beat(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = node(sim)?;
    Some(heartbeat(sim, node))
}

/// A sign of life of a node.
pub fn heartbeat(sim: &Sim<'_>, node: usize) -> Plan {
    let (identity, told) = (sim.nodes[node].identity, sim.nodes[node].heartbeat());
    Plan::new(format!("heartbeat of {node}"), move |assembled| {
        let ctx = assembled.ctx.clone();
        async move { Heard::Beat(node, beats::beat(&ctx, &identity, &told).await) }
    })
}

/// Mostly a node for which there is something.
pub(super) async fn claim(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    if sim.dice.chance(10) {
        return Ok(node(sim).map(|node| claim_for(sim, node)));
    }
    let waiting: Vec<Uuid> = sqlx::query_scalar(
        "SELECT DISTINCT node_id FROM node_tasks WHERE status = 'queued' ORDER BY node_id",
    )
    .fetch_all(&mut sim.bed.sql)
    .await?;
    let node = node_with(sim, |node| waiting.contains(&node.identity.node_id.uuid()));
    Ok(node.map(|node| claim_for(sim, node)))
}

/// A node asks for work.
pub fn claim_for(sim: &Sim<'_>, node: usize) -> Plan {
    let identity = sim.nodes[node].identity;
    // The first is an older agent, that takes one after the other.
    let most = if node == 0 { 1 } else { 3 };
    Plan::new(format!("claim by {node}"), move |assembled| {
        let ctx = assembled.ctx.clone();
        async move { Heard::Given(node, dispatch::claim(&ctx, &identity, most).await) }
    })
}

pub(super) fn begin(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = node_with(sim, |node| !node.inbox.is_empty())?;
    // The newest first now and then, so that what is older is begun late.
    let count = sim.nodes[node].inbox.len();
    let place = if sim.dice.chance(60) { count - 1 } else { sim.dice.below(count) };
    let given = sim.nodes[node].inbox.get(place)?.clone();
    // What was taken may be taken again: a message that comes twice.
    if !sim.dice.chance(10) {
        sim.nodes[node].inbox.remove(place);
    }
    sim.say(format!("node {node} looks at {} {}", short(&given.task_id), given.dispatch));
    let now = sim.bed.clock.now();
    if let Err(violation) = sim.nodes[node].begin(&given, now) {
        sim.broken(violation);
    }
    let slow = sim.dice.chance(SLOW);
    if let Some(entry) = sim.nodes[node].journal.last_mut() {
        entry.slow |= slow;
    }
    None
}

pub(super) fn work(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = node_with(sim, |node| !node.open().is_empty())?;
    let open = sim.nodes[node].open();
    let place = *sim.dice.pick(&open)?;
    let entry = &sim.nodes[node].journal[place];
    if entry.slow && !sim.dice.chance(SLOW) {
        return None;
    }
    let (task, reasons) = (entry.task, if entry.is_restart() { NOT_RESTARTED } else { NOT_DONE });
    let luck = match (sim.dice.weighted(&[66, 12, 22]), sim.dice.pick(reasons)) {
        (1, _) => Luck::Residue,
        (2, Some(reason)) => Luck::Fails(*reason),
        _ => Luck::Good,
    };
    sim.say(format!("node {node} works on {}: {luck:?}", short(&task)));
    if let Err(violation) = sim.nodes[node].work(place, luck) {
        sim.broken(violation);
    }
    None
}

pub(super) fn phase(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = node_with(sim, |node| !node.open().is_empty())?;
    let open = sim.nodes[node].open();
    let entry = sim.nodes[node].journal[*sim.dice.pick(&open)?].clone();
    let (identity, dispatch) = (sim.nodes[node].identity, *entry.dispatches.last()?);
    let (phase, status) = match entry.is_restart() {
        true => (Phase::Rebooted, PhaseStatus::Succeeded),
        false => (Phase::ImagePrepared, PhaseStatus::Running),
    };
    let told =
        PhaseReport { seq: 1, phase: Coded(phase), status: Coded(status), at: sim.bed.clock.now() };
    let batch = PhaseBatch { dispatch, phases: vec![told] };
    Some(Plan::new(format!("phase of {}", short(&entry.task)), move |assembled| {
        let ctx = assembled.ctx.clone();
        async move {
            let told = task::phases(&ctx, &identity, NodeTaskId(entry.task), &batch).await;
            Heard::Moved(told.map(|told| u64::from(told.applied)).map_err(|error| error.chain()))
        }
    }))
}

pub(super) fn result(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = node_with(sim, |node| !node.untold().is_empty())?;
    let untold = sim.nodes[node].untold();
    let place = *sim.dice.pick(&untold)?;
    let times = if sim.dice.chance(15) { 2 + sim.dice.below(4) } else { 1 };
    result_of(sim, (node, place), times, false)
}

/// What was said before is said again, also under the number of an old dispatch.
pub(super) fn old_result(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = node_with(sim, |node| !node.ended().is_empty())?;
    let ended = sim.nodes[node].ended();
    let place = *sim.dice.pick(&ended)?;
    result_of(sim, (node, place), 1, true)
}

/// A node tells how a task ended, so often.
pub fn result_of(
    sim: &mut Sim<'_>,
    (node, place): (usize, usize),
    times: usize,
    any: bool,
) -> Option<Plan> {
    let entry = sim.nodes[node].journal[place].clone();
    let dispatch = match any {
        true => *sim.dice.pick(&entry.dispatches)?,
        false => *entry.dispatches.iter().max()?,
    };
    let outcome: TaskOutcome = entry.outcome.clone()?;
    let identity = sim.nodes[node].identity;
    let what = format!("result of {} dispatch {dispatch} x{times}", short(&entry.task));
    Some(Plan::new(what, move |assembled| {
        let ctx = assembled.ctx.clone();
        async move {
            let result = TaskResult { dispatch, outcome, phases: Vec::new() };
            let mut heard: Result<String, Error> = Ok(String::new());
            for _ in 0..times {
                let told = task::finish(&ctx, &identity, NodeTaskId(entry.task), &result).await;
                heard = told.map(|told| told.answer);
            }
            Heard::Acknowledged(node, entry.task, heard)
        }
    }))
}

pub(super) fn restart_agent(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = sim.dice.below(sim.nodes.len());
    sim.nodes[node].restart();
    sim.say(format!("the agent of {node} starts anew"));
    None
}

pub(super) fn reboot(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = sim.dice.below(sim.nodes.len());
    sim.nodes[node].reboots();
    sim.say(format!("node {node} is another boot"));
    None
}

pub(super) fn fall_silent(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = sim.dice.below(sim.nodes.len());
    sim.nodes[node].silent = 5 + sim.dice.below(40);
    sim.say(format!("node {node} falls silent"));
    None
}
