//! `make prove`: runs every long proof and prints one line of JSON for each. It fails when one of them does.
//! `PROVE_EVENTS` says how far to walk, `PROVE_SIZE=small` takes the sizes of a test run.
#![expect(clippy::print_stdout, reason = "the figures are the product of this program")]

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, anyhow};
use domain::machines::{allocation, claim, node, node_task, tables};
use lifecycle::explore::{Figures, Finding, Scenario, Told, walk_edges};
use lifecycle::{Code, Column, Facts, Fence, Lawful, OPERATION_ID, Source, Table, Value};
use proofs::{model, money, mutation, walk};
use serde_json::json;

/// How far a walk goes, unless told otherwise.
const EVENTS: u64 = 100_000_000;
const EVENTS_SMALL: u64 = 200_000;

/// How many windows are charged.
const WINDOWS: u64 = 50_000_000;
const WINDOWS_SMALL: u64 = 200_000;

/// The names by which a proof can be asked for; without one, all are made.
const PROOFS: [&str; 6] = ["walk", "mutation", "edges", "explore", "model", "money"];

fn main() -> anyhow::Result<ExitCode> {
    let is_small = std::env::var("PROVE_SIZE").is_ok_and(|size| size == "small");
    let events = match std::env::var("PROVE_EVENTS") {
        Ok(number) => number.replace('_', "").parse().context("PROVE_EVENTS is no number")?,
        Err(_) => {
            if is_small {
                EVENTS_SMALL
            } else {
                EVENTS
            }
        }
    };
    let threads = std::thread::available_parallelism()?.get();
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    let wants = |proof: &str| chosen.is_empty() || chosen.iter().any(|choice| choice == proof);
    if let Some(stranger) = chosen.iter().find(|choice| !PROOFS.contains(&choice.as_str())) {
        anyhow::bail!("there is no proof {stranger}, only {}", PROOFS.join(", "));
    }

    let mut all_ok = true;
    if wants("walk") {
        let size = walk::Size { events, threads, seed: 2026 };
        all_ok &= tell(|| Ok(vec![walk::prove(size).map_err(|e| anyhow!(e))?.figures()]))?;
    }
    if wants("mutation") {
        all_ok &= tell(|| Ok(vec![mutation::prove().map_err(|e| anyhow!(e))?.figures()]))?;
    }
    if wants("edges") {
        all_ok &= tell(|| Ok(vec![edges()]))?;
    }
    for race in races()?.iter().filter(|_| wants("explore")) {
        all_ok &= tell(|| Ok(vec![race.prove()]))?;
    }
    if wants("model") {
        let size = if is_small { model::Size::Small } else { model::Size::Full };
        all_ok &= tell(|| Ok(model::prove(size)))?;
    }
    if wants("money") {
        let size =
            money::Size { windows: if is_small { WINDOWS_SMALL } else { WINDOWS }, seed: 2026 };
        all_ok &= tell(|| Ok(vec![money::prove(&size)]))?;
    }
    Ok(if all_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs some proofs and prints their figures; whether all of them are ok.
fn tell(prove: impl FnOnce() -> anyhow::Result<Vec<serde_json::Value>>) -> anyhow::Result<bool> {
    #[expect(
        clippy::disallowed_methods,
        reason = "how long a proof takes is a figure, and nothing depends on it"
    )]
    let begin = Instant::now();
    let lines = prove()?;
    let seconds = (begin.elapsed().as_secs_f64() * 1_000.0).round() / 1_000.0;
    // Proofs that are made in one go have one time together.
    let name = if lines.len() == 1 { "seconds" } else { "seconds_together" };
    let mut all_ok = !lines.is_empty();
    for mut line in lines {
        all_ok &= line["ok"] == json!(true);
        line[name] = json!(seconds);
        println!("{line}");
    }
    Ok(all_ok)
}

/// Every edge of every machine can be taken, beginning at birth.
fn edges() -> serde_json::Value {
    let mut taken = 0;
    let mut out_of_reach = Vec::new();
    for table in tables() {
        let edges = walk_edges(table);
        taken += edges.taken.len();
        for (event, from, to) in edges.out_of_reach {
            let (event, from, to) =
                (table.events[event].code, table.statuses[from].code, table.statuses[to].code);
            out_of_reach.push(format!("{}: {event} from {from} to {to}", table.name));
        }
    }
    let ok = out_of_reach.is_empty();
    json!({"proof": "edges", "machines": tables().len(), "taken": taken, "out_of_reach": out_of_reach, "ok": ok})
}

/// A row on which a compare-and-set of the status alone goes wrong, and the real writer must not.
struct Race {
    name: &'static str,
    table: &'static Table,
    start: (usize, Facts),
    reports: Vec<Told>,
    intruders: Vec<(Column, Value)>,
}

impl Race {
    fn on<M: Lawful>(name: &'static str, status: M::Status, facts: &[(Column, Value)]) -> Race {
        let start = (status.index(), facts_of(facts));
        Race { name, table: M::table(), start, reports: vec![], intruders: vec![] }
    }

    /// A report by the first who may make it.
    fn told(mut self, event: &str, payload: &[(Column, Value)]) -> anyhow::Result<Race> {
        let event =
            self.table.event(event).with_context(|| format!("there is no event {event}"))?;
        let source = self.table.events[event].reporters.first().copied().unwrap_or(Source::Worker);
        self.reports.push(Told { event, source, payload: facts_of(payload) });
        Ok(self)
    }

    fn beside(mut self, column: Column, value: Value) -> Race {
        self.intruders.push((column, value));
        self
    }

    fn explore(&self, fence: Fence) -> Finding {
        let Race { table, start, reports, intruders, .. } = self;
        Scenario {
            table,
            fence,
            start: start.clone(),
            reports: reports.clone(),
            deliveries: 2,
            intruders: intruders.clone(),
        }
        .explore()
    }

    /// The status alone must fail, with a trace; the other fences must not.
    fn prove(&self) -> serde_json::Value {
        let (alone, checked, locked) = (
            self.explore(Fence::StatusOnly),
            self.explore(Fence::Checked),
            self.explore(Fence::Locked),
        );
        let ok = matches!(
            (&alone, &checked, &locked),
            (Finding::Broken(_), Finding::Holds(_), Finding::Holds(_))
        );
        json!({
            "proof": "explore",
            "machine": self.table.name,
            "race": self.name,
            "status_only": told(alone),
            "checked": told(checked),
            "locked": told(locked),
            "ok": ok,
        })
    }
}

fn facts_of(facts: &[(Column, Value)]) -> Facts {
    facts.iter().fold(Facts::NONE, |all, (column, value)| all.with(*column, value.clone()))
}

fn told(finding: Finding) -> serde_json::Value {
    match finding {
        Finding::Broken(trace) => json!({"counterexample": trace}),
        Finding::Holds(Figures { states, writes, edges }) => {
            json!({"states": states, "writes": writes, "edges": edges.len()})
        }
    }
}

fn operation(id: u128) -> (Column, Value) {
    (OPERATION_ID, Value::Id(id))
}

/// The races that the contract speaks of: an old answer after the row has come back, and a column that changes beside
/// the writer, between its load and its write.
fn races() -> anyhow::Result<Vec<Race>> {
    use allocation::Status::{Provisioning, Releasing};
    let agent = |id| (node_task::AGENT_ID, Value::Id(id));
    let dispatch = |number| (node_task::DISPATCH, Value::Int(number));
    let on_node = (node_task::NODE_ID, Value::Id(1));
    let task = [on_node.clone(), agent(1), dispatch(1), (node_task::DISPATCHES_MAX, Value::Int(3))];
    let dispatched = node_task::Status::Dispatched;
    let heard_at = |moment| (node::HEARTBEAT_AT, Value::Time(moment));

    Ok(vec![
        Race::on::<allocation::Allocation>(
            "a cancelled provision answers",
            Provisioning,
            &[operation(1)],
        )
        .told("provision.succeeded", &[operation(1)])?
        .told("provision.failed", &[operation(1)])?
        .told("release.requested", &[operation(2)])?
        .told("release.completed", &[operation(2)])?
        .beside(OPERATION_ID, Value::Id(3)),
        Race::on::<allocation::Allocation>(
            "an old release answers a retried one",
            Releasing,
            &[operation(1)],
        )
        .told("release.completed", &[operation(1)])?
        .told("release.exhausted", &[operation(1)])?
        .told("release.requested", &[operation(2)])?
        .told("release.completed", &[operation(2)])?,
        Race::on::<node_task::NodeTask>("an old dispatch answers a new one", dispatched, &task)
            .told("task.succeeded", &[agent(1), dispatch(1)])?
            .told("task.lease_expired", &[dispatch(1)])?
            .told("task.dispatched", &[on_node, agent(2)])?
            .told("task.failed", &[agent(2), dispatch(2)])?,
        Race::on::<node_task::NodeTask>("the last attempt is taken away", dispatched, &task)
            .told("task.lease_expired", &[dispatch(1)])?
            .told("task.expired", &[])?
            .beside(node_task::DISPATCHES_MAX, Value::Int(1)),
        Race::on::<claim::Claim>(
            "an old clean-up frees what is cleaned again",
            claim::Status::Cleaning,
            &[operation(1)],
        )
        .told("claim.freed", &[operation(1)])?
        .told("claim.stuck", &[operation(1)])?
        .told("claim.cleaning", &[operation(2)])?
        .told("claim.freed", &[operation(2)])?,
        Race::on::<node::Node>(
            "a heartbeat arrives while it is given up",
            node::Status::Ready,
            &[heard_at(1)],
        )
        .told("heartbeat.lost", &[heard_at(1)])?
        .told("heartbeat.regained", &[])?
        .beside(node::HEARTBEAT_AT, Value::Time(2)),
    ])
}
