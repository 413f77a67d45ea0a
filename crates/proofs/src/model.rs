//! A model check of the cross-machine protocol, on the very tables the product uses: a group, two
//! allocations, their claims and tasks, an agent that may be late, dead or twice, and messages that
//! may be lost, repeated or reordered.

pub mod agent;
pub mod config;
pub mod control;
pub mod liveness;
pub mod properties;
pub mod protocol;
pub mod scenario;
pub mod state;
pub mod tables;
pub mod tx;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use stateright::{Checker, Expectation, HasDiscoveries, Model};

use config::{Config, Flaw};
use liveness::{Graph, at_rest, settled};
use protocol::{Action, Protocol, Whose};
use scenario::{Scenario, scenarios};

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Seconds, in a debug build.
    Small,
    /// Minutes, in a release build.
    Full,
}

/// What a run of the checker found.
#[derive(Debug)]
pub struct Checked {
    /// States generated, and different ones among them.
    pub states: (usize, usize),
    /// The longest way from the start.
    pub depth: usize,
    /// The properties looked at.
    pub properties: usize,
    /// The properties that do not hold, each with a way there.
    pub broken: BTreeMap<&'static str, Vec<Action>>,
    /// What should be possible and is not.
    pub impossible: Vec<&'static str>,
    /// Every edge of the four tables, and whether it was taken.
    pub edges: Vec<(String, bool)>,
}

/// Explores a scenario: all of it, or a flawed one until it breaks as it should.
pub fn check(config: Config) -> Checked {
    let (until, threads) = match config.flaw {
        None => (HasDiscoveries::All, 2),
        // More threads would find it sooner, but not by the shortest way.
        Some(flaw) => (HasDiscoveries::AnyOf(BTreeSet::from([flaw.breaks()])), 1),
    };
    let checker =
        Protocol::new(config).checker().threads(threads).finish_when(until).spawn_bfs().join();
    let mut found = checker.discoveries();
    let mut broken = BTreeMap::new();
    let mut impossible = Vec::new();
    let properties = checker.model().properties();
    for property in &properties {
        match (&property.expectation, found.remove(property.name)) {
            (Expectation::Always | Expectation::Eventually, Some(path)) => {
                broken.insert(property.name, path.into_actions());
            }
            (Expectation::Sometimes, None) => impossible.push(property.name),
            (Expectation::Always | Expectation::Eventually, None)
            | (Expectation::Sometimes, Some(_)) => {}
        }
    }
    Checked {
        states: (checker.state_count(), checker.unique_state_count()),
        depth: checker.max_depth(),
        properties: properties.len(),
        broken,
        impossible,
        edges: checker.model().tables.edges(),
    }
}

/// The edges of the four tables that none of these runs took.
pub fn untaken(runs: &[Checked]) -> Vec<String> {
    let mut edges: BTreeMap<&str, bool> = BTreeMap::new();
    for (edge, taken) in runs.iter().flat_map(|run| &run.edges) {
        *edges.entry(edge).or_default() |= taken;
    }
    edges.into_iter().filter(|(_, taken)| !taken).map(|(edge, _)| edge.to_owned()).collect()
}

/// Every proof of a size, one object each. The agent may be late, silent, dead or repeat itself, and
/// so may everything on the way; it does not lie, and it keeps to its fence: see
/// [`Tx::begin`](tx::Tx::begin).
pub fn prove(size: Size) -> Vec<Value> {
    let mut proofs = Vec::new();
    let mut runs = Vec::new();
    for scenario in scenarios(size) {
        let run = check(scenario.config);
        proofs.push(of_run(&scenario, &run));
        runs.push(run);
        if scenario.searched {
            proofs.push(of_way_out(&scenario));
        }
    }
    let untaken = untaken(&runs);
    let total = runs.first().map_or(0, |run| run.edges.len());
    proofs.push(json!({
        "proof": "model: every edge of the allocation, claim, node task and group tables is taken",
        "edges_exercised": total - untaken.len(),
        "edges_total": total,
        "untaken": untaken,
        "ok": untaken.is_empty(),
    }));
    proofs.extend(Flaw::ALL.iter().map(|flaw| of_flaw(*flaw)));
    proofs
}

fn of_run(scenario: &Scenario, run: &Checked) -> Value {
    json!({
        "proof": format!("model: {}", scenario.name),
        "states": run.states.0,
        "unique_states": run.states.1,
        "depth": run.depth,
        "properties": run.properties,
        "edges_exercised": run.edges.iter().filter(|(_, taken)| *taken).count(),
        "edges_total": run.edges.len(),
        "broken": trace(&run.broken),
        "impossible": run.impossible,
        "ok": run.broken.is_empty() && run.impossible.is_empty(),
    })
}

fn trace(broken: &BTreeMap<&'static str, Vec<Action>>) -> BTreeMap<&'static str, Vec<String>> {
    let words = |steps: &Vec<Action>| steps.iter().map(|step| format!("{step:?}")).collect();
    broken.iter().map(|(property, steps)| (*property, words(steps))).collect()
}

fn of_way_out(scenario: &Scenario) -> Value {
    let protocol = Protocol::new(scenario.config);
    let graph = Graph::of(&protocol);
    let stranded = graph.lost(&[Whose::Agent, Whose::Control], |state| at_rest(&protocol, state));
    let unended = graph.lost(&[Whose::Control, Whose::People], |state| settled(&protocol, state));
    json!({
        "proof": format!("model: {}: nothing is for ever on its way", scenario.name),
        "unique_states": graph.len(),
        "not_at_rest_without_people": stranded.len(),
        "not_ended_without_the_agent": unended.len(),
        "ok": stranded.is_empty() && unended.is_empty(),
    })
}

fn of_flaw(flaw: Flaw) -> Value {
    let run = check(flaw.shows_in());
    let steps = run.broken.get(flaw.breaks());
    json!({
        "proof": format!("model: {} breaks", flaw.name()),
        "states": run.states.0,
        "unique_states": run.states.1,
        "breaks": flaw.breaks(),
        "steps": steps.map(Vec::len),
        "ok": steps.is_some(),
    })
}
