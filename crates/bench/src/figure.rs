//! One shape for a figure: what was measured round by round, what it is compared with, and what would refute its goal.

use serde_json::{Value, json};

use crate::machine::{self, Mood, median};

/// Which way is good.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    More,
    Less,
}

/// One figure. Compared with a floor it is judged by its ratio, and by itself otherwise.
pub(crate) struct Figure {
    pub(crate) goal: &'static str,
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    better: Better,
    pub(crate) must: Option<f64>,
    pub(crate) aim: Option<f64>,
    note: Option<String>,
    ours: Vec<f64>,
    floor: Vec<f64>,
    foreign_cpu: Vec<f64>,
    client_cpu: Vec<f64>,
    load: Option<f64>,
}

/// The numbers of a figure, once all rounds are taken.
pub(crate) struct Taken {
    pub(crate) ours: f64,
    pub(crate) floor: Option<f64>,
    pub(crate) ratio: Option<f64>,
    pub(crate) spread: [f64; 2],
    pub(crate) load: Option<f64>,
    pub(crate) foreign_cpu: f64,
    pub(crate) client_cpu: Option<f64>,
}

impl Figure {
    /// One of which more is better, without any round yet.
    pub(crate) fn more(goal: &'static str, name: impl Into<String>, unit: &'static str) -> Figure {
        Figure::of(Better::More, goal, name.into(), unit)
    }

    /// One of which less is better, without any round yet.
    pub(crate) fn less(goal: &'static str, name: impl Into<String>, unit: &'static str) -> Figure {
        Figure::of(Better::Less, goal, name.into(), unit)
    }

    const fn of(better: Better, goal: &'static str, name: String, unit: &'static str) -> Figure {
        Figure {
            goal,
            name,
            unit,
            better,
            must: None,
            aim: None,
            note: None,
            ours: Vec::new(),
            floor: Vec::new(),
            foreign_cpu: Vec::new(),
            client_cpu: Vec::new(),
            load: None,
        }
    }

    /// What refutes the goal when it is missed, and what we aim for.
    pub(crate) const fn goal(mut self, must: f64, aim: f64) -> Figure {
        (self.must, self.aim) = (Some(must), Some(aim));
        self
    }

    /// What refutes the goal when it is missed, where there is nothing more to aim for.
    pub(crate) const fn must(mut self, must: f64) -> Figure {
        self.must = Some(must);
        self
    }

    /// What we aim for, where nothing refutes the goal.
    pub(crate) const fn aim(mut self, aim: f64) -> Figure {
        self.aim = Some(aim);
        self
    }

    /// Under which circumstances.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Figure {
        self.note = Some(note.into());
        self
    }

    /// One more round; with its floor if there is one.
    pub(crate) fn push(&mut self, ours: f64, floor: Option<f64>, mood: Mood) {
        self.ours.push(ours);
        self.floor.extend(floor);
        self.foreign_cpu.push(mood.foreign());
        self.client_cpu.extend(mood.client_cpu);
        self.load = machine::load();
    }

    /// [`push`](Figure::push), for those that have one round.
    pub(crate) fn once(mut self, ours: f64, floor: Option<f64>, mood: Mood) -> Figure {
        self.push(ours, floor, mood);
        self
    }

    /// What is judged, round by round: rounds are adjacent in time, so ours and the floor share the machine's mood.
    fn judged(&self) -> Vec<f64> {
        if self.floor.is_empty() {
            return self.ours.clone();
        }
        self.ours.iter().zip(&self.floor).map(|(ours, floor)| ours / floor).collect()
    }

    /// Whether what must be met is. What could not be measured is not met.
    pub(crate) fn is_met(&self) -> bool {
        self.reaches(self.must)
    }

    /// Whether what we aim for is reached.
    pub(crate) fn is_reached(&self) -> bool {
        self.reaches(self.aim)
    }

    fn reaches(&self, limit: Option<f64>) -> bool {
        let value = median(&self.judged());
        match (limit, self.better) {
            (None, _) => value.is_finite(),
            (Some(limit), Better::More) => value >= limit,
            (Some(limit), Better::Less) => value <= limit,
        }
    }

    /// The sign between a figure and its limit.
    pub(crate) const fn sign(&self) -> &'static str {
        match self.better {
            Better::More => "≥",
            Better::Less => "≤",
        }
    }

    /// Under which circumstances, if that was said.
    pub(crate) fn circumstances(&self) -> &str {
        self.note.as_deref().unwrap_or_default()
    }

    pub(crate) fn taken(&self) -> Taken {
        let (judged, compared) = (self.judged(), !self.floor.is_empty());
        let least = judged.iter().copied().fold(f64::INFINITY, f64::min);
        let most = judged.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Taken {
            ours: rounded(median(&self.ours)),
            floor: compared.then(|| rounded(median(&self.floor))),
            ratio: compared.then(|| rounded(median(&judged))),
            spread: [rounded(least), rounded(most)],
            load: self.load,
            foreign_cpu: rounded(median(&self.foreign_cpu)),
            client_cpu: (!self.client_cpu.is_empty()).then(|| rounded(median(&self.client_cpu))),
        }
    }

    /// As one line of JSON.
    pub(crate) fn line(&self) -> Value {
        let taken = self.taken();
        json!({
            "goal": self.goal,
            "name": self.name,
            "better": if self.better == Better::More { "more" } else { "less" },
            "ours": taken.ours,
            "floor": taken.floor,
            "ratio": taken.ratio,
            "spread": taken.spread,
            "unit": self.unit,
            "must": self.must,
            "aim": self.aim,
            "ok": self.is_met(),
            "load": taken.load,
            "foreign_cpu": taken.foreign_cpu,
            "client_cpu": taken.client_cpu,
            "note": self.note,
        })
    }
}

/// To four digits that say something.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powf(3.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::Figure;
    use crate::machine::Mood;

    const QUIET: Mood = Mood::of(0.0);

    #[test]
    fn what_is_compared_is_judged_by_the_median_of_its_ratios() {
        let mut figure = Figure::more("P1", "a", "/s").goal(0.6, 1.0);
        for (ours, floor) in [(50.0, 100.0), (70.0, 100.0), (900.0, 1_000.0)] {
            figure.push(ours, Some(floor), QUIET);
        }
        assert!(figure.is_met() && !figure.is_reached());
        assert_eq!(figure.taken().ratio, Some(0.7));
        assert_eq!(figure.taken().spread, [0.5, 0.9]);
    }

    #[test]
    fn what_is_not_compared_is_judged_by_itself() {
        let slow = Figure::less("P2", "b", "ms").goal(5.0, 4.0).once(5.1, None, QUIET);
        assert!(!slow.is_met());
        let quick = Figure::less("P2", "b", "ms").goal(5.0, 4.0).once(3.0, None, QUIET);
        assert!(quick.is_met() && quick.is_reached());
    }

    #[test]
    fn what_could_not_be_measured_is_not_met() {
        assert!(!Figure::less("P2", "c", "ms").goal(5.0, 4.0).is_met());
        let strange = Figure::more("P2", "d", "/s").once(f64::NAN, None, QUIET);
        assert!(!strange.is_met());
    }
}
