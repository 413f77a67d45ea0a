//! TABLE: what can happen in an event, and how often. What a node does by itself happens at once; everything else is a
//! story, which may die, hang, meet others or go unheard.

pub mod asking;
mod messages;
pub mod nodes;
pub mod operators;
pub mod people;
mod spine;

use futures::future::BoxFuture;

use crate::dice::Dice;
use crate::sim::Sim;
use crate::story::Plan;

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

/// A row whose plan needs a look at the database.
macro_rules! looked_up {
    ($name:literal, $weight:literal, $plan:expr) => {
        Action { name: $name, weight: $weight, plan: |sim| Box::pin($plan(sim)) }
    };
}

/// Everything that can happen.
pub const TABLE: &[Action] = &[
    at_hand!("create", 7, people::create),
    at_hand!("create group", 3, people::create_group),
    at_hand!("create again", 4, people::create_again),
    looked_up!("release", 6, people::release),
    at_hand!("release group", 2, people::release_group),
    looked_up!("restart", 12, people::restart),
    at_hand!("bind an app", 1, people::bind),
    looked_up!("ask again", 4, asking::again),
    at_hand!("force release", 1, operators::force),
    looked_up!("abandon", 3, operators::abandon),
    looked_up!("clean", 4, operators::clean),
    looked_up!("quarantine", 4, operators::quarantine),
    looked_up!("clear", 5, operators::clear),
    looked_up!("drain", 1, operators::drain),
    looked_up!("resume", 4, operators::resume),
    looked_up!("retire", 1, operators::retire),
    at_hand!("look for findings", 1, operators::look),
    at_hand!("turn a policy", 2, operators::turn),
    looked_up!("relay", 6, spine::relay),
    looked_up!("consumers", 8, spine::consumers),
    looked_up!("workflows", 10, spine::workflows),
    looked_up!("everything due", 28, spine::everything),
    at_hand!("timer", 10, spine::timer),
    at_hand!("time", 8, spine::time),
    at_hand!("heartbeat", 6, nodes::beat),
    looked_up!("claim", 16, nodes::claim),
    at_hand!("begin", 16, nodes::begin),
    at_hand!("work", 18, nodes::work),
    at_hand!("phase", 2, nodes::phase),
    at_hand!("result", 22, nodes::result),
    at_hand!("old result", 3, nodes::old_result),
    at_hand!("agent restarts", 1, nodes::restart_agent),
    at_hand!("machine reboots", 1, nodes::reboot),
    at_hand!("silence", 1, nodes::fall_silent),
    looked_up!("message out of turn", 6, messages::out_of_turn),
    looked_up!("bus gives up", 3, messages::give_up),
    looked_up!("word again", 2, messages::word_again),
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
