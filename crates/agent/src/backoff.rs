//! How long to wait before trying again: full jitter, so that many agents that lost one gateway do not come back
//! at one moment.

use std::sync::Arc;
use std::time::Duration;

use crate::client::GatewayError;
use crate::clock::Dice;

const FIRST: Duration = Duration::from_millis(250);
/// Short, so that a fleet is back soon: how many are let in at a time is the gateway's to say, and to be turned away costs it nothing.
const MOST: Duration = Duration::from_secs(8);
const REVOKED: Duration = Duration::from_secs(60);

/// The waits of one series of attempts.
#[derive(Debug)]
pub(crate) struct Backoff {
    dice: Arc<Dice>,
    failures: u32,
}

impl Backoff {
    /// A series that has not failed yet.
    pub(crate) fn new(dice: Arc<Dice>) -> Backoff {
        Backoff { dice, failures: 0 }
    }

    /// How long to wait after `error`.
    pub(crate) fn after(&mut self, error: &GatewayError) -> Duration {
        self.failures = self.failures.saturating_add(1);
        match error {
            // Only an operator can change this: ask seldom, and never at once.
            GatewayError::Revoked { .. } => REVOKED / 2 + self.dice.below(REVOKED / 2),
            GatewayError::Unreachable(_)
            | GatewayError::Refused { .. }
            | GatewayError::Unreadable(_) => self.dice.below(ceiling(self.failures)),
        }
    }

    /// It worked: the next failure is the first.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

fn ceiling(failures: u32) -> Duration {
    FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MOST)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{Backoff, ceiling};
    use crate::client::GatewayError;
    use crate::clock::Dice;

    #[test]
    fn the_ceiling_doubles_up_to_a_few_seconds() {
        assert_eq!(ceiling(1), Duration::from_millis(250));
        assert_eq!(ceiling(3), Duration::from_secs(1));
        assert_eq!(ceiling(6), Duration::from_secs(8));
        assert_eq!(ceiling(u32::MAX), Duration::from_secs(8));
    }

    #[test]
    fn a_revoked_node_asks_again_slowly() {
        let mut backoff = Backoff::new(Arc::new(Dice::seeded(1)));
        let revoked = GatewayError::Revoked { status: 403, detail: String::new() };
        for _ in 0..100 {
            let wait = backoff.after(&revoked).as_secs();
            assert!((30..=60).contains(&wait), "{wait}");
        }
    }
}
