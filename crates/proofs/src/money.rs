//! Metering without a database: stretches with random prices, clips, gaps and catch-ups are charged window by window, as the
//! product does it, and compared with the price of their time, which is computed another way.

use domain::money::{Stretch, WINDOW_MICROS, windows};
use serde_json::{Value, json};

use crate::walk::Random;

/// A day, in microseconds.
const DAY: u64 = 86_400_000_000;

/// How much is charged.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// How many windows at least.
    pub windows: u64,
    /// Where the dice begin.
    pub seed: u64,
}

/// Charges so many windows; the drift is what they differ by from the price of their time.
pub fn prove(size: &Size) -> Value {
    let mut dice = Dice(Random(size.seed));
    let mut told = Told::default();
    while told.windows < size.windows {
        told.stretch(&mut dice);
    }
    let ok = told.drift == 0 && told.negative == 0 && told.gaps == 0 && told.repriced > 0;
    json!({
        "proof": "money", "windows": told.windows, "stretches": told.stretches, "repriced": told.repriced,
        "catch_ups": told.catch_ups, "charged_minor": told.charged.to_string(), "drift": told.drift.to_string(),
        "negative": told.negative, "gaps": told.gaps, "seed": size.seed, "ok": ok,
    })
}

#[derive(Debug, Default)]
struct Told {
    windows: u64,
    stretches: u64,
    repriced: u64,
    catch_ups: u64,
    charged: i128,
    drift: i128,
    negative: u64,
    gaps: u64,
}

impl Told {
    /// One stretch: charged again and again up to some minute, as many minutes as were missed, and at last to its end.
    fn stretch(&mut self, dice: &mut Dice) {
        let started = dice.below(400 * DAY) as i64;
        let ended = started + dice.length();
        let changes = dice.changes(started, ended);
        let micros_per_minor = [1_000_000, 10_000, 1_000][dice.below(3) as usize];
        let stretch = Stretch {
            started,
            gpus: 1 + dice.below(64) as i64,
            agreed: dice.price(),
            changes: &changes,
            micros_per_minor,
        };
        self.stretches += 1;
        self.repriced += u64::from(!changes.is_empty());
        let (mut until, mut charged) = (started, 0_i128);
        while until < ended {
            let minutes = 1 + if dice.below(8) == 0 { dice.below(5_000) } else { dice.below(3) };
            self.catch_ups += u64::from(minutes > 1);
            let minute = until.div_euclid(WINDOW_MICROS) + minutes as i64;
            let next = (minute * WINDOW_MICROS).min(ended);
            for window in windows(until, next) {
                self.gaps += u64::from(window.from != until);
                let amount = stretch.charge(window);
                self.negative += u64::from(amount < 0);
                charged += i128::from(amount);
                until = window.until;
                self.windows += 1;
            }
        }
        self.charged += charged;
        self.drift += (charged - price(&stretch, ended)).abs();
    }
}

/// The price of a stretch, the other way round: from its end back to its beginning, as a fraction that is cut once.
fn price(stretch: &Stretch<'_>, ended: i64) -> i128 {
    let (mut until, mut exact) = (ended, 0_i128);
    for (at, price) in stretch.changes.iter().rev() {
        let from = (*at).max(stretch.started);
        if from < until {
            exact += i128::from(*price) * i128::from(until - from);
            until = from;
        }
    }
    exact += i128::from(stretch.agreed) * i128::from(until - stretch.started);
    exact * i128::from(stretch.gpus) / 1_000_000 / i128::from(stretch.micros_per_minor)
}

/// What comes by chance.
struct Dice(Random);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound as usize) as u64
    }

    /// From a microsecond to 400 days; most of them hours.
    fn length(&mut self) -> i64 {
        let most = match self.below(20) {
            0 => 1_000,
            1 => 400 * DAY,
            2..=5 => WINDOW_MICROS.unsigned_abs(),
            _ => DAY,
        };
        1 + self.below(most) as i64
    }

    /// From nothing to what a whole machine may cost, and often a price as there are.
    fn price(&mut self) -> i64 {
        match self.below(4) {
            0 => self.below(100_000_001) as i64,
            1 => 0,
            _ => 200 + self.below(2_000) as i64,
        }
    }

    /// Changes of the price, in order; some of them before it began, or behind its end.
    fn changes(&mut self, started: i64, ended: i64) -> Vec<(i64, i64)> {
        let count = if self.below(3) == 0 { 1 + self.below(5) } else { 0 };
        let span = (ended - started).unsigned_abs() * 2 + 2;
        let mut changes: Vec<(i64, i64)> = (0..count)
            .map(|_| {
                let at = started - (ended - started) / 2 + self.below(span) as i64;
                (at, self.price())
            })
            .collect();
        changes.sort_unstable();
        changes.dedup_by_key(|(at, _)| *at);
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::{Size, prove};

    #[test]
    fn windows_sum_to_the_price_of_their_time() {
        let told = prove(&Size { windows: 200_000, seed: 7 });
        assert_eq!(told["ok"], true, "{told}");
    }
}
