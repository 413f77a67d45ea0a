//! The stories of the allocation contract on every combination of engines: the same tests, moved by another process. Those that
//! take an engine apart, statement by statement or message by message, are about the engines in Postgres alone, and left out.

#![expect(clippy::print_stdout, reason = "it says what it runs")]

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::carriers::Carriers;
use crate::server::{SERVER_VARIABLE, Server};

/// What `testkit` starts a house's worker by.
const WORKER_VARIABLE: &str = "BERTH_TEST_WORKER";
const NATS_VARIABLE: &str = "BERTH_TEST_NATS";
const TEMPORAL_VARIABLE: &str = "BERTH_TEST_TEMPORAL";

/// Tests that step an engine themselves.
const TAKEN_APART: &str = "test(/^(r08_redelivery|r09_reordering|r10_every_step|long_wait)::/)";

/// Who moves at a barrier is the same on every engine, and each takes a while in another process.
const BARRIERS: &str = "24";

/// Bus and workflows.
const COMBINATIONS: [(&str, bool, bool); 3] = [
    ("NATS and Postgres", true, false),
    ("Postgres and Temporal", false, true),
    ("NATS and Temporal", true, true),
];

/// Runs them; answers whether all passed. Words narrow down which: they go to the test runner as one filter.
///
/// # Errors
/// When a server, the worker or the test runner can't be started.
pub fn run(root: &Path, words: &[String]) -> anyhow::Result<bool> {
    let (server, carriers) = (Server::start()?, Carriers::start(root)?);
    let built = Command::new("cargo")
        .current_dir(root)
        .args(["build", "--quiet", "--workspace", "--bin", "berth-test-worker"])
        .status()
        .context("could not start cargo")?;
    ensure!(built.success(), "the worker could not be built");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), Into::into);
    let worker = target.join("debug/berth-test-worker");
    let mut filter = format!("package(control) and not {TAKEN_APART}");
    if !words.is_empty() {
        filter = format!("({}) and {filter}", words.join(" "));
    }
    let mut passed = true;
    for (name, nats, temporal) in COMBINATIONS {
        println!("the stories on {name}");
        let mut tests = Command::new("cargo");
        tests.current_dir(root).args(["nextest", "run", "--no-fail-fast", "--workspace"]);
        tests.args(["--test", "it", "-E", &filter]);
        tests.env(SERVER_VARIABLE, server.url("{database}")).env(WORKER_VARIABLE, &worker);
        tests.env("BARRIERS", BARRIERS);
        if nats {
            tests.env(NATS_VARIABLE, carriers.nats());
        }
        if temporal {
            tests.env(TEMPORAL_VARIABLE, carriers.temporal());
        }
        passed &= tests.status().context("could not start cargo")?.success();
    }
    Ok(passed)
}
