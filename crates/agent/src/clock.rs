//! Time and chance: the clock that is handed in, the one place that sleeps, and dice with or without a seed.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Where an agent takes the time from.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// A clock that asks `now`.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }

    /// The machine's own clock.
    pub fn system() -> Clock {
        Clock::new(Timestamp::now)
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now())
    }
}

/// How a pause ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paused {
    /// It lasted as long as it was to last.
    Whole,
    /// Somebody asked to stop.
    Stopped,
}

/// Waits for `duration`, or until `stop`. Nothing else in the agent sleeps.
#[expect(
    clippy::disallowed_methods,
    reason = "the one sleep: retries, intervals and the simulated world take real time"
)]
pub(crate) async fn pause(duration: Duration, stop: &CancellationToken) -> Paused {
    if stop.is_cancelled() {
        return Paused::Stopped;
    }
    // A pause of nothing does not wait for the next tick of the timer.
    if duration.is_zero() {
        return Paused::Whole;
    }
    tokio::select! {
        biased;
        () = stop.cancelled() => Paused::Stopped,
        () = tokio::time::sleep(duration) => Paused::Whole,
    }
}

/// A new identity, for a boot of the simulated machine.
pub(crate) fn new_id() -> io::Result<Uuid> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("no randomness"))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

/// A source of numbers that is shared by everything in one agent (SplitMix64: spread, not secrecy).
#[derive(Debug)]
pub(crate) struct Dice(AtomicU64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Dice {
    /// Dice that always fall the same way for the same seed.
    pub(crate) fn seeded(seed: u64) -> Dice {
        Dice(AtomicU64::new(seed))
    }

    /// Dice that nobody can foretell, so that many agents do not act at the same moment.
    pub(crate) fn fresh() -> Dice {
        let mut seed = [0; 8];
        // Without randomness the address of the seed has to do: jitter guards no secret.
        if aws_lc_rs::rand::fill(&mut seed).is_err() {
            seed = (std::ptr::from_ref(&seed).addr() as u64).to_le_bytes();
        }
        Dice::seeded(u64::from_le_bytes(seed))
    }

    /// A number from 0 up to but without 1.
    pub(crate) fn roll(&self) -> f64 {
        unit(mix(self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP)))
    }

    /// A duration between nothing and `most`.
    pub(crate) fn below(&self, most: Duration) -> Duration {
        most.mul_f64(self.roll())
    }
}

/// The number from 0 to 1 that belongs to `words`, always the same.
pub(crate) fn foretold(words: &[u64]) -> f64 {
    unit(words.iter().fold(STEP, |sum, word| mix(sum ^ word.wrapping_add(STEP))))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::{Dice, foretold};

    #[test]
    fn dice_stay_in_range_and_repeat_with_their_seed() {
        let rolls = |seed| {
            let dice = Dice::seeded(seed);
            (0..1000).map(|_| dice.roll()).collect::<Vec<_>>()
        };
        assert!(rolls(7).iter().all(|roll| (0.0..1.0).contains(roll)));
        assert_eq!(rolls(7), rolls(7));
        assert_ne!(rolls(7), rolls(8));
        assert_ne!(foretold(&[1, 2]), foretold(&[2, 1]));
    }
}
