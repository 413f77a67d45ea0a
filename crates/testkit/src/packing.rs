//! How well placement packs: a trace of requests from a seed, what the product makes of it on a real database, and what
//! nobody could have done better. Time is the trace's; nothing here waits.

mod dice;
mod optimum;
mod replay;
mod trace;

pub use optimum::{optimum, without_walls};
pub use replay::{Pieces, Replayed, replay};
pub use trace::{Asked, MACHINE_GPUS, Recipe, Trace};

/// What the product has placed of a trace, and what it is held against; in GPU-seconds.
#[derive(Clone, Debug)]
pub struct Score {
    /// What the product did.
    pub replayed: Replayed,
    /// What nobody could have exceeded: see [`optimum()`].
    pub optimum: u64,
    /// What one machine as large as the fleet would have placed: see [`without_walls`].
    pub without_walls: u64,
}

impl Score {
    /// Holds it against both.
    pub fn new(trace: &Trace, replayed: Replayed) -> Score {
        Score { replayed, optimum: optimum(trace), without_walls: without_walls(trace) }
    }

    /// The share of what anybody could have placed who knew the future, and need not take who comes first.
    pub fn of_optimum(&self) -> f64 {
        self.replayed.placed as f64 / self.optimum as f64
    }

    /// The share of what a fleet would have placed that may move everything at any time, asked in the same order.
    pub fn of_without_walls(&self) -> f64 {
        self.replayed.placed as f64 / self.without_walls as f64
    }
}
