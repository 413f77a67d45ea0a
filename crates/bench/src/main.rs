//! `make bench`: what the product costs, as ratios of what Postgres itself does with the same SQL in the same run.
//! One JSON line a figure; the exit code says whether every figure that must be met is.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the figures are its product")]

mod machine;
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
}

fn main() -> ExitCode {
    let quick = std::env::var_os("QUICK").is_some_and(|value| value == "1");
    let plan = if quick {
        Plan { rounds: 3, round: Duration::from_secs(2) }
    } else {
        Plan { rounds: 5, round: Duration::from_secs(6) }
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

fn run(plan: Plan) -> anyhow::Result<bool> {
    let directory = std::env::temp_dir().join(format!("berth-bench-{}", std::process::id()));
    // What a killed run of the same number left is not ours to measure on.
    let _ = std::fs::remove_dir_all(&directory);
    let cluster = Cluster::start(&directory, Durability::Full)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let figures =
        runtime.block_on(writer::figures(&cluster, plan)).context("the writer's bench failed");
    drop(cluster);
    let _ = std::fs::remove_dir_all(&directory);
    let mut met = true;
    for figure in figures? {
        println!("{}", figure.line());
        met &= figure.is_met();
    }
    Ok(met)
}
