//! Many runs, by several workers, and what they come to.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use futures::FutureExt as _;
use serde_json::{Value, json};

use crate::bed::Bed;
use crate::coverage;
use crate::sim::{self, Report};

/// Seeds that found something once. They run first.
const KEPT: &str = include_str!("../seeds.txt");

/// How much is to be run.
#[derive(Clone, Debug)]
pub struct Size {
    /// The seeds, in this order.
    pub seeds: Vec<u64>,
    /// Events a run.
    pub events: usize,
    /// How many at once.
    pub workers: usize,
    /// Whether the first that fails ends it.
    pub stop_at_first: bool,
}

/// The kept seeds, and then so many from `first` on.
pub fn seeds(first: u64, runs: usize) -> Vec<u64> {
    let kept = KEPT.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
    let fresh = (0..).map(|number| first.wrapping_add(number));
    kept.chain(fresh).take(runs).collect()
}

/// What all runs came to.
#[derive(Debug, Default)]
pub struct Figures {
    runs: usize,
    counts: BTreeMap<String, u64>,
    steps: BTreeSet<[String; 4]>,
    refusals: BTreeSet<[String; 4]>,
    states: BTreeSet<String>,
    /// Those in which something was not as it must be.
    pub failed: Vec<Report>,
    /// The last that held.
    pub last: Option<Report>,
}

impl Figures {
    fn add(&mut self, report: Report) {
        self.runs += 1;
        for (what, count) in &report.counts {
            *self.counts.entry(what.clone()).or_default() += count;
        }
        self.steps.extend(report.steps.iter().cloned());
        self.refusals.extend(report.refusals.iter().cloned());
        self.states.extend(report.states.iter().cloned());
        if report.broken.is_empty() {
            self.last = Some(report);
        } else {
            self.failed.push(report);
        }
    }

    /// The rules that nothing has exercised.
    pub fn missing(&self) -> Vec<String> {
        coverage::missing(&self.steps)
    }

    /// One line for people and machines.
    pub fn line(&self, size: &Size, must_cover: bool) -> Value {
        let (taken, all) = coverage::share(&self.steps);
        let missing = self.missing();
        let failed: Vec<Value> = self
            .failed
            .iter()
            .map(|report| json!({"seed": report.seed, "broken": report.broken}))
            .collect();
        let ok = failed.is_empty() && (missing.is_empty() || !must_cover);
        json!({
            "proof": "simulation",
            "runs": self.runs,
            "events": self.runs * size.events,
            "states": self.states.len(),
            "counts": self.counts,
            "rules": {"exercised": taken, "of": all, "missing": missing},
            "refusals": self.refusals.len(),
            "failed": failed,
            "ok": ok,
        })
    }
}

/// Runs them all.
///
/// # Errors
/// When the simulation itself can't go on.
pub fn run(size: &Size) -> anyhow::Result<Figures> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let figures = Mutex::new(Figures::default());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..size.workers.max(1))
            .map(|_| scope.spawn(|| work(size, (&next, &stop), &figures)))
            .collect();
        let mut results = workers.into_iter().map(|worker| {
            worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker has panicked")))
        });
        results.try_for_each(|result| result)
    })?;
    Ok(figures.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn work(
    size: &Size,
    (next, stop): (&AtomicUsize, &AtomicBool),
    figures: &Mutex<Figures>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut bed = Bed::make().await.context("the bed can't be made")?;
        while !stop.load(Ordering::SeqCst) {
            let Some(seed) = size.seeds.get(next.fetch_add(1, Ordering::SeqCst)).copied() else {
                break;
            };
            let ran = AssertUnwindSafe(sim::run(&mut bed, seed, size.events)).catch_unwind().await;
            let broken = |what: String| Report {
                seed,
                broken: vec![what],
                spoilt: true,
                ..Report::default()
            };
            let report = match ran {
                Ok(Ok(report)) => report,
                Ok(Err(error)) => broken(format!("the run broke off: {error:#}")),
                Err(_) => broken("a story panicked".to_owned()),
            };
            let spoilt = report.spoilt;
            let ended = size.stop_at_first && !report.broken.is_empty();
            stop.fetch_or(ended, Ordering::SeqCst);
            figures.lock().unwrap_or_else(PoisonError::into_inner).add(report);
            if spoilt && !ended {
                bed = Bed::make().await.context("the bed can't be made")?;
            }
        }
        bed.remove().await;
        Ok(())
    })
}
