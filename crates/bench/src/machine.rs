//! Figures, and what the machine was doing while they were taken.

use serde_json::json;

/// One figure: ours and the floor, round by round.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) ours: Vec<f64>,
    pub(crate) floor: Vec<f64>,
    /// The ratio below which the bench fails, and the one we aim for.
    pub(crate) must: f64,
    pub(crate) aim: f64,
    pub(crate) foreign_cpu: Vec<f64>,
}

impl Figure {
    /// One without any round yet.
    pub(crate) const fn new(name: &'static str, must: f64, aim: f64) -> Figure {
        Figure { name, ours: vec![], floor: vec![], must, aim, foreign_cpu: vec![] }
    }

    /// One more round.
    pub(crate) fn push(&mut self, ours: f64, floor: f64, foreign_cpu: f64) {
        self.ours.push(ours);
        self.floor.push(floor);
        self.foreign_cpu.push(foreign_cpu);
    }

    /// The ratio of each round: rounds are adjacent in time, so they share the machine's mood.
    fn ratios(&self) -> Vec<f64> {
        self.ours.iter().zip(&self.floor).map(|(ours, floor)| ours / floor).collect()
    }

    pub(crate) fn is_met(&self) -> bool {
        median(&self.ratios()) >= self.must
    }

    pub(crate) fn line(&self) -> String {
        let ratios = self.ratios();
        let (low, high) = (smallest(&ratios), largest(&ratios));
        json!({
            "name": self.name,
            "ours": rounded(median(&self.ours)),
            "floor": rounded(median(&self.floor)),
            "ratio": rounded(median(&ratios)),
            "spread": [rounded(low), rounded(high)],
            "must": self.must,
            "aim": self.aim,
            "ok": self.is_met(),
            "load": load(),
            "foreign_cpu": rounded(median(&self.foreign_cpu)),
        })
        .to_string()
    }
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn smallest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// The share of all cores that is busy while we do nothing: somebody else's work.
#[expect(clippy::disallowed_methods, reason = "it has to look twice, some time apart")]
pub(crate) async fn foreign_cpu() -> f64 {
    let before = busy_and_total();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    match (before, busy_and_total()) {
        (Some(before), Some(after)) if after.1 > before.1 => {
            (after.0 - before.0) / (after.1 - before.1)
        }
        _ => f64::NAN,
    }
}

fn busy_and_total() -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<f64> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    let total: f64 = ticks.iter().take(8).sum();
    Some((total - ticks.get(3)? - ticks.get(4)?, total))
}
