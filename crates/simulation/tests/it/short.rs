//! Some seeds, and the same ones again.

use simulation::bed::Bed;
use simulation::figures::{self, Size};
use simulation::sim;

#[test]
fn the_kept_seeds_and_some_others_hold() {
    let size = Size { seeds: figures::seeds(1, 8), events: 200, workers: 2, stop_at_first: true };
    let figures = figures::run(&size).expect("they run");
    let told = |report: &sim::Report| {
        format!("seed {}: {:#?}\n{}", report.seed, report.broken, report.trace.join("\n"))
    };
    assert!(figures.failed.is_empty(), "{}", figures.failed.first().map(told).unwrap_or_default());
}

/// Identities, times and turns come from the seed: nothing depends on the machine's mood.
#[tokio::test]
async fn a_seed_replays_exactly() {
    let mut bed = Bed::make().await.expect("a bed");
    for seed in [5, 8] {
        let first = sim::run(&mut bed, seed, 80).await.expect("it runs");
        let again = sim::run(&mut bed, seed, 80).await.expect("it runs");
        let differs = first.trace.iter().zip(&again.trace).position(|(one, other)| one != other);
        let around = |trace: &[String], at: usize| {
            trace[at.saturating_sub(20)..trace.len().min(at + 5)].join("\n")
        };
        let told = differs
            .map(|at| format!("{}\n--\n{}", around(&first.trace, at), around(&again.trace, at)));
        assert_eq!(differs, None, "seed {seed}: {}", told.unwrap_or_default());
        assert_eq!(first.trace.len(), again.trace.len());
    }
    bed.remove().await;
}
