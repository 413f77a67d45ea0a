//! `make bench`: what the product costs, as ratios of what Postgres itself does with the same SQL in the same run.
//! One JSON line a figure; the exit code says whether every figure that must be met is.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the figures are its product")]

mod beside;
mod charging;
mod crashes;
mod falls;
mod load;
mod machine;
mod packing;
mod product;
mod reconnect;
mod replicas;
mod scaled;
mod stories;
mod writer;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use store::cluster::{Cluster, Durability};

/// How long and how often.
#[derive(Clone, Copy)]
struct Plan {
    rounds: usize,
    round: Duration,
    runs: usize,
    agents: usize,
    requests: usize,
    /// Of billing, beside which people ask.
    minutes: usize,
}

fn main() -> ExitCode {
    let quick = std::env::var_os("QUICK").is_some_and(|value| value == "1");
    let plan = if quick {
        Plan {
            rounds: 3,
            round: Duration::from_secs(2),
            runs: 100,
            agents: 200,
            requests: 2_000,
            minutes: 1,
        }
    } else {
        Plan {
            rounds: 5,
            round: Duration::from_secs(6),
            runs: 500,
            agents: 2_000,
            requests: 10_000,
            minutes: 5,
        }
    };
    match run(plan) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// All of it, or only the part that ONLY names.
fn run(plan: Plan) -> anyhow::Result<bool> {
    let only = std::env::var("ONLY").unwrap_or_default();
    let wanted = |part: &str| only.is_empty() || only == part;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut met = true;
    if wanted("writer") {
        met &= measured(&runtime, async |cluster| writer::figures(cluster, plan).await)?;
    }
    if wanted("charging") {
        met &= measured(&runtime, async |cluster| charging::figures(cluster, plan).await)?;
    }
    let mut say = |line: anyhow::Result<stories::Line>| -> anyhow::Result<()> {
        let line = line?;
        println!("{}", line.text);
        met &= line.met;
        Ok(())
    };
    // Whoever asks for a number of crashes wants nothing else.
    if let Ok(kills) = std::env::var("CRASHES") {
        say(runtime.block_on(crashes::run(kills.parse()?)))?;
        return Ok(met);
    }
    // Minutes long, and so only for who asks for it.
    let given = |name: &str, default: u32| -> anyhow::Result<u32> {
        std::env::var(name).map_or(Ok(default), |text| Ok(text.parse()?))
    };
    let seed = u64::from(given("SEED", std::process::id())?);
    if only == "scaled" {
        let minutes = u64::from(given("MINUTES", 10)?);
        say(runtime.block_on(scaled::run(minutes, seed)))?;
    }
    if only == "falls" {
        say(runtime.block_on(falls::run(given("FALLS", 40)?, seed)))?;
    }
    if wanted("charging") {
        say(runtime.block_on(beside::run(plan.minutes)))?;
    }
    if wanted("packing") {
        for line in runtime.block_on(packing::run(plan.minutes == 1, seed))? {
            say(Ok(line))?;
        }
    }
    if wanted("to_active") {
        say(runtime.block_on(stories::to_active(plan.runs)))?;
    }
    if wanted("storm") {
        for sizes in [&[1][..], &[4], &[8], &[1, 8, 2, 4]] {
            say(runtime.block_on(stories::storm("h100.slice", sizes, plan.requests)))?;
        }
        say(runtime.block_on(stories::storm("h100.metal", &[8], plan.requests)))?;
    }
    if wanted("agents") {
        say(runtime.block_on(stories::agents(plan.agents, 200)))?;
    }
    if wanted("replicas") {
        say(runtime.block_on(replicas::run(plan.runs / 2)))?;
    }
    if wanted("reconnect") {
        say(runtime.block_on(reconnect::run(plan.agents)))?;
    }
    Ok(met)
}

/// Figures that are taken on a Postgres of their own, with durability on.
fn measured(
    runtime: &tokio::runtime::Runtime,
    take: impl AsyncFnOnce(&Cluster) -> anyhow::Result<Vec<machine::Figure>>,
) -> anyhow::Result<bool> {
    let directory = std::env::temp_dir().join(format!("berth-bench-{}", std::process::id()));
    // What a killed run of the same number left is not ours to measure on.
    let _ = std::fs::remove_dir_all(&directory);
    let cluster = Cluster::start(&directory, Durability::Full)?;
    let figures = runtime.block_on(take(&cluster)).context("it could not be measured");
    drop(cluster);
    let _ = std::fs::remove_dir_all(&directory);
    Ok(told(&figures?))
}

/// Says them, and whether all that must be met are.
fn told(figures: &[machine::Figure]) -> bool {
    for figure in figures {
        println!("{}", figure.line());
    }
    figures.iter().all(machine::Figure::is_met)
}
