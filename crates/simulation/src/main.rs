//! `cargo xtask simulate`: runs seeds and prints one line of JSON, and the trace of what failed; of a seed alone, its trace.
//! With `ledger`, charges millions of windows with crashes, and all of it again.
//! `SEED`, `RUNS`, `EVENTS` and `WORKERS` say which and how many; `UNTIL_RED=1` stops at the first that fails.
#![expect(clippy::print_stdout, reason = "the figures are the product of this program")]

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use serde_json::json;
use simulation::figures::{self, Size};
use simulation::ledger;

/// How many runs there are, unless told otherwise.
const RUNS: u64 = 10_000;
const EVENTS: u64 = 200;
/// Fewer runs than this need not have reached every rule.
const FULL: usize = 2_000;
/// How many windows the ledger is proven with.
const WINDOWS: u64 = 5_000_000;
/// So many traces are shown.
const TRACES_MAX: usize = 3;

fn main() -> anyhow::Result<ExitCode> {
    if std::env::args().nth(1).is_some_and(|proof| proof == "ledger") {
        return prove_ledger();
    }
    let (seed, runs) = (number("SEED")?, number("RUNS")?);
    // A seed alone is a replay.
    let runs = runs.unwrap_or(if seed.is_some() { 1 } else { RUNS });
    let runs = usize::try_from(runs)?;
    let cores = std::thread::available_parallelism()?.get() as u64;
    let seeds = match seed {
        Some(seed) => (0..runs as u64).map(|number| seed.wrapping_add(number)).collect(),
        None => figures::seeds(1, runs),
    };
    let size = Size {
        seeds,
        events: usize::try_from(number("EVENTS")?.unwrap_or(EVENTS))?,
        workers: usize::try_from(number("WORKERS")?.unwrap_or(cores + 1))?.min(runs),
        stop_at_first: number("UNTIL_RED")?.is_some(),
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "how long it takes is a figure, and nothing depends on it"
    )]
    let begin = Instant::now();
    let figures = figures::run(&size)?;
    // Who replays wants to see it.
    let replayed = figures.last.iter().filter(|_| runs == 1);
    for report in figures.failed.iter().take(TRACES_MAX).chain(replayed) {
        println!("seed {}:\n{}", report.seed, report.trace.join("\n"));
    }
    let mut line = figures.line(&size, runs >= FULL);
    let seconds = begin.elapsed().as_secs_f64();
    let events = line["events"].as_u64().unwrap_or(1).max(1);
    line["seconds"] = json!((seconds * 1_000.0).round() / 1_000.0);
    line["milliseconds_an_event"] = json!((seconds * 1e6 / events as f64).round() / 1_000.0);
    println!("{line}");
    Ok(if line["ok"] == json!(true) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `WINDOWS` says how many, `SEED` by which dice.
fn prove_ledger() -> anyhow::Result<ExitCode> {
    let windows = i64::try_from(number("WINDOWS")?.unwrap_or(WINDOWS))?;
    let size = ledger::Size { windows, seed: number("SEED")?.unwrap_or(1) };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    #[expect(
        clippy::disallowed_methods,
        reason = "how long it takes is a figure, and nothing depends on it"
    )]
    let begin = Instant::now();
    let mut line = runtime.block_on(ledger::prove(&size))?;
    line["seconds"] = json!((begin.elapsed().as_secs_f64() * 1_000.0).round() / 1_000.0);
    println!("{line}");
    Ok(if line["ok"] == json!(true) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn number(name: &str) -> anyhow::Result<Option<u64>> {
    match std::env::var(name) {
        Ok(text) => {
            let number = text.replace('_', "").parse();
            Ok(Some(number.with_context(|| format!("{name} is no number: {text:?}"))?))
        }
        Err(_) => Ok(None),
    }
}
