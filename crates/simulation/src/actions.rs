//! TABLE: what can happen in an event, and how often. What a node does by itself happens at once; everything else is a
//! story, which may die, hang, meet others or go unheard.

mod messages;

use std::time::Duration;

use control::Error;
use control::allocation::{create, release, restart};
use control::idempotency::Key;
use control::node::{heartbeat as beats, task};
use domain::ids::{AllocationId, NodeTaskId};
use futures::future::BoxFuture;
use uuid::Uuid;
use wire::Coded;
use wire::http::allocations::{ForceRelease, NewAllocation};
use wire::node::{
    FailureReason, Phase, PhaseBatch, PhaseReport, PhaseStatus, TaskOutcome, TaskResult,
};

use crate::books::Request;
use crate::dice::Dice;
use crate::node::{Luck, Node};
use crate::sim::{Sim, short};
use crate::story::{Heard, Plan};

/// What a release is called in the books.
pub const RELEASE: &str = "release";
/// What it is called when an operator answers for what is left on a slot.
pub const CLEAR: &str = "clear";
/// No run lets more time pass: messages are kept for a day, and the checks look for them.
const PASSED_MAX: Duration = Duration::from_secs(18 * 3_600);

type Planned<'a> = BoxFuture<'a, anyhow::Result<Option<Plan>>>;

/// One row of the table.
pub struct Action {
    /// What it is called in the figures.
    pub name: &'static str,
    weight: usize,
    plan: for<'a> fn(&'a mut Sim<'_>) -> Planned<'a>,
}

/// A row whose plan needs nothing but what is at hand.
macro_rules! at_hand {
    ($name:literal, $weight:literal, $plan:expr) => {
        Action {
            name: $name,
            weight: $weight,
            plan: |sim| {
                let plan: Option<Plan> = $plan(sim);
                Box::pin(async move { Ok(plan) })
            },
        }
    };
}

/// Everything that can happen.
pub const TABLE: &[Action] = &[
    at_hand!("create", 10, create),
    at_hand!("create again", 3, create_again),
    at_hand!("release", 6, release_one),
    at_hand!("force release", 2, force_release),
    at_hand!("restart", 5, restart_one),
    at_hand!("relay", 6, |_: &mut Sim<'_>| Some(relay())),
    at_hand!("consumers", 8, consumers),
    at_hand!("workflows", 10, |_: &mut Sim<'_>| Some(workflows())),
    at_hand!("everything due", 26, |_: &mut Sim<'_>| Some(everything())),
    at_hand!("timer", 9, timer),
    at_hand!("time", 8, time),
    at_hand!("heartbeat", 5, beat),
    at_hand!("claim", 16, claim),
    at_hand!("begin", 16, begin),
    at_hand!("work", 18, work),
    at_hand!("phase", 2, phase),
    at_hand!("result", 22, result),
    at_hand!("old result", 3, old_result),
    at_hand!("agent restarts", 1, restart_agent),
    at_hand!("silence", 1, fall_silent),
    Action {
        name: "message out of turn",
        weight: 6,
        plan: |sim| Box::pin(messages::out_of_turn(sim)),
    },
    Action { name: "bus gives up", weight: 1, plan: |sim| Box::pin(messages::give_up(sim)) },
    Action { name: "word again", weight: 2, plan: |sim| Box::pin(messages::word_again(sim)) },
];

/// The place of an action in the table.
pub fn choose(dice: &mut Dice) -> usize {
    let weights: Vec<usize> = TABLE.iter().map(|action| action.weight).collect();
    dice.weighted(&weights)
}

/// What an action comes to now: a story, or nothing when it is done already. Whether it was anything at all is the other
/// answer: there may be nothing for it to do.
///
/// # Errors
/// When the simulation's own look at the database fails.
pub async fn plan(sim: &mut Sim<'_>, action: usize) -> anyhow::Result<(Option<Plan>, bool)> {
    let lines = sim.report.trace.len();
    let planned = (TABLE[action].plan)(sim).await?;
    let was_something = planned.is_some() || sim.report.trace.len() > lines;
    if was_something {
        sim.count(TABLE[action].name);
    }
    Ok((planned, was_something))
}

fn create(sim: &mut Sim<'_>) -> Option<Plan> {
    let (sku, gpus) = match sim.dice.weighted(&[5, 4, 1, 2]) {
        0 => ("l40s.slice", 1),
        1 => ("l40s.slice", 2),
        2 => ("l40s.slice", 4),
        _ => ("h100.metal", 8),
    };
    let number = sim.books.requests.len();
    let body = NewAllocation {
        project_id: sim.bed.project,
        sku: sku.to_owned(),
        gpus,
        region: "eu-1".to_owned(),
        ssh_key_ids: Vec::new(),
        image: None,
        name: Some(format!("request-{number}")),
    };
    let key = format!("key-{number}");
    sim.books.requests.push(Request { key, body, answer: None, refused: false });
    Some(ask_for(sim, number))
}

fn create_again(sim: &mut Sim<'_>) -> Option<Plan> {
    let unanswered = sim.books.unanswered();
    let all: Vec<usize> = (0..sim.books.requests.len()).collect();
    let from = if sim.dice.chance(70) { &unanswered } else { &all };
    let place = *sim.dice.pick(from)?;
    Some(ask_for(sim, place))
}

/// Asks for what the books say, under its key.
pub fn ask_for(sim: &Sim<'_>, place: usize) -> Plan {
    let Request { key, body, .. } = sim.books.requests[place].clone();
    let caller = sim.bed.tenant.clone();
    let what = format!("create {} {} x{} ({key})", place, body.sku, body.gpus);
    Plan::new(what, move |assembled| {
        let ctx = assembled.ctx.clone();
        async move {
            let key = Key::of(caller.user_id, "POST /allocations", &key, key.as_bytes());
            let answer = create::request(&ctx, &caller, &body, &key).await;
            Heard::Created(place, answer.map(|answer| answer.body.id))
        }
    })
}

fn release_one(sim: &mut Sim<'_>) -> Option<Plan> {
    let id = *sim.dice.pick(&sim.books.known)?;
    let caller = sim.bed.tenant.clone();
    Some(Plan::new(format!("release {}", short(&id)), move |assembled| {
        let ctx = assembled.ctx.clone();
        async move {
            let answer = release::request(&ctx, &caller, AllocationId(id), None).await;
            Heard::Asked(RELEASE, id, answer.map(|_| ()))
        }
    }))
}

fn restart_one(sim: &mut Sim<'_>) -> Option<Plan> {
    let id = *sim.dice.pick(&sim.books.known)?;
    let caller = sim.bed.tenant.clone();
    Some(Plan::new(format!("restart {}", short(&id)), move |assembled| {
        let ctx = assembled.ctx.clone();
        async move {
            let answer = restart::request(&ctx, &caller, AllocationId(id), None).await;
            Heard::Asked("restart", id, answer.map(|_| ()))
        }
    }))
}

fn force_release(sim: &mut Sim<'_>) -> Option<Plan> {
    let id = *sim.dice.pick(&sim.books.known)?;
    Some(force(sim, id))
}

/// An operator takes an allocation back.
pub fn force(sim: &Sim<'_>, id: Uuid) -> Plan {
    let caller = sim.bed.operator.clone();
    Plan::new(format!("force {}", short(&id)), move |assembled| {
        let ctx = assembled.ctx.clone();
        async move {
            let because = ForceRelease { reason: "the dice fell so".to_owned() };
            let answer = release::force(&ctx, &caller, AllocationId(id), &because, None).await;
            Heard::Asked(RELEASE, id, answer.map(|_| ()))
        }
    })
}

fn relay() -> Plan {
    Plan::new("relay", |assembled| {
        let spine = assembled.spine.clone();
        async move { moved(spine::relay::step(&spine.store, &spine.subscriptions).await) }
    })
}

fn consumers(sim: &mut Sim<'_>) -> Option<Plan> {
    let chosen = sim.dice.below(64);
    Some(Plan::new("consumer", move |assembled| {
        let spine = assembled.spine.clone();
        async move {
            let subscriptions = &spine.subscriptions;
            let subscription = subscriptions[chosen % subscriptions.len()].clone();
            let (store, clock) = (spine.store.clone(), spine.clock.clone());
            let consumer = spine::bus::postgres::Consumer::new(store, clock, subscription);
            moved(consumer.step().await)
        }
    }))
}

fn workflows() -> Plan {
    Plan::new("workflows", |assembled| {
        let spine = assembled.spine.clone();
        async move { moved(spine.workflows.step().await) }
    })
}

/// What a process does by itself when it is left alone.
fn everything() -> Plan {
    Plan::new("everything due", |assembled| {
        let spine = assembled.spine.clone();
        async move { moved(spine.step_all().await) }
    })
}

fn timer(sim: &mut Sim<'_>) -> Option<Plan> {
    let chosen = sim.dice.below(64);
    Some(Plan::new(format!("timer {chosen}"), move |assembled| {
        let timers = assembled.spine.timers.clone();
        async move { Heard::Moved(told(timers[chosen % timers.len()].step().await)) }
    }))
}

fn time(sim: &mut Sim<'_>) -> Option<Plan> {
    let lengths = [1, 3, 10, 40, 65, 130, 300, 1_100, 3_600];
    let chosen = sim.dice.weighted(&[6, 6, 6, 6, 5, 5, 3, 2, 1]);
    let time = Duration::from_secs(lengths[chosen]);
    if sim.passed + time < PASSED_MAX {
        sim.passed += time;
        sim.bed.clock.advance(time);
        sim.say(format!("{} s pass", time.as_secs()));
    }
    None
}

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

fn beat(sim: &mut Sim<'_>) -> Option<Plan> {
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

fn claim(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = node(sim)?;
    Some(claim_for(sim, node))
}

/// A node asks for work.
pub fn claim_for(sim: &Sim<'_>, node: usize) -> Plan {
    let identity = sim.nodes[node].identity;
    Plan::new(format!("claim by {node}"), move |assembled| {
        let ctx = assembled.ctx.clone();
        async move { Heard::Given(node, task::claim(&ctx, &identity).await) }
    })
}

fn begin(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = node_with(sim, |node| !node.inbox.is_empty())?;
    let place = sim.dice.below(sim.nodes[node].inbox.len());
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
    None
}

fn work(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = node_with(sim, |node| !node.open().is_empty())?;
    let open = sim.nodes[node].open();
    let place = *sim.dice.pick(&open)?;
    let luck = match sim.dice.weighted(&[66, 12, 12, 10]) {
        1 => Luck::Residue,
        2 => Luck::Fails(FailureReason::DriverFailed),
        3 => Luck::Fails(FailureReason::LeaseConflict),
        _ => Luck::Good,
    };
    let task = sim.nodes[node].journal[place].task;
    sim.say(format!("node {node} works on {}: {luck:?}", short(&task)));
    if let Err(violation) = sim.nodes[node].work(place, luck) {
        sim.broken(violation);
    }
    None
}

fn phase(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = node_with(sim, |node| !node.open().is_empty())?;
    let open = sim.nodes[node].open();
    let entry = sim.nodes[node].journal[*sim.dice.pick(&open)?].clone();
    let (identity, dispatch) = (sim.nodes[node].identity, *entry.dispatches.last()?);
    let told = PhaseReport {
        seq: 1,
        phase: Coded(Phase::ImagePrepared),
        status: Coded(PhaseStatus::Running),
        at: sim.bed.clock.now(),
    };
    let batch = PhaseBatch { dispatch, phases: vec![told] };
    Some(Plan::new(format!("phase of {}", short(&entry.task)), move |assembled| {
        let ctx = assembled.ctx.clone();
        async move {
            let told = task::phases(&ctx, &identity, NodeTaskId(entry.task), &batch).await;
            Heard::Moved(told.map(|told| u64::from(told.applied)).map_err(|error| error.chain()))
        }
    }))
}

fn result(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = node_with(sim, |node| !node.untold().is_empty())?;
    let untold = sim.nodes[node].untold();
    let place = *sim.dice.pick(&untold)?;
    let times = if sim.dice.chance(15) { 2 + sim.dice.below(4) } else { 1 };
    result_of(sim, (node, place), times, false)
}

/// What was said before is said again, also under the number of an old dispatch.
fn old_result(sim: &mut Sim<'_>) -> Option<Plan> {
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

fn restart_agent(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = sim.dice.below(sim.nodes.len());
    sim.nodes[node].restart();
    sim.say(format!("the agent of {node} starts anew"));
    None
}

fn fall_silent(sim: &mut Sim<'_>) -> Option<Plan> {
    let node = sim.dice.below(sim.nodes.len());
    sim.nodes[node].silent = 5 + sim.dice.below(40);
    sim.say(format!("node {node} falls silent"));
    None
}

fn moved(count: Result<usize, spine::Error>) -> Heard {
    Heard::Moved(told(count.map(|count| count as u64)))
}

fn told(count: Result<u64, spine::Error>) -> Result<u64, String> {
    count.map_err(|error| chain(&error))
}

/// An error with all its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
