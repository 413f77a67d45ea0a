//! What is remembered of an agent for as long as its connection lasts: who it is, which never changes, and what has rung for its node
//! since somebody last looked. Whether it may still speak is never remembered.

use std::sync::{Mutex, PoisonError};

use control::node::enrol::AgentIdentity;
use futures::FutureExt as _;
use spine::Wake;
use spine::wake::Waiter;
use store::Ring;

/// An agent that was asked about on this connection before.
#[derive(Debug)]
pub(crate) struct Met {
    /// Who it is.
    pub(super) identity: AgentIdentity,
    /// Held between waits as well, so that a ring that nobody waits for is not lost.
    bell: Waiter,
    looks: Mutex<Looks>,
}

#[derive(Debug, Default)]
struct Looks {
    /// How often it was noticed that something had rung.
    rung: u64,
    /// What that was when a look began that found nothing.
    nothing_at: Option<u64>,
}

/// A look for work that has begun. One that is given up is as if it had never been.
#[derive(Debug)]
pub(super) struct Look(u64);

impl Met {
    /// Met just now.
    pub(super) fn new(identity: AgentIdentity, wake: &Wake) -> Met {
        let bell = wake.on(Ring::Node(identity.node_id.uuid()));
        Met { identity, bell, looks: Mutex::default() }
    }

    /// A look, if there may be something: nobody has looked on this connection, or something has rung since somebody did who found
    /// nothing.
    pub(super) fn look(&self) -> Option<Look> {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that nobody else finds neither the ring nor the count of it.
        if self.bell.notified().now_or_never().is_some() {
            looks.rung += 1;
        }
        (looks.nothing_at != Some(looks.rung)).then_some(Look(looks.rung))
    }

    /// A look is over, and there was nothing.
    pub(super) fn found_nothing(&self, Look(rung): Look) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.nothing_at = looks.nothing_at.max(Some(rung));
    }
}

#[cfg(test)]
mod tests {
    use control::node::enrol::AgentIdentity;
    use domain::ids::NodeId;
    use jiff::Timestamp;
    use spine::Wake;
    use store::Ring;
    use uuid::Uuid;

    use super::Met;

    fn met(wake: &Wake) -> Met {
        let (agent_id, node_id) = (Uuid::nil(), NodeId(Uuid::nil()));
        Met::new(AgentIdentity { agent_id, node_id, not_after: Timestamp::MAX, protocol: 2 }, wake)
    }

    #[test]
    fn who_has_looked_looks_again_only_when_something_has_rung() {
        let wake = Wake::new();
        let met = met(&wake);
        let first = met.look().expect("nobody has looked");
        met.found_nothing(first);
        assert!(met.look().is_none());
        // While nobody waits.
        wake.ring(&Ring::Node(Uuid::nil()));
        let second = met.look().expect("it has rung");
        met.found_nothing(second);
        assert!(met.look().is_none());
        wake.ring(&Ring::Node(Uuid::max()));
        assert!(met.look().is_none(), "not for it");
    }

    #[test]
    fn a_look_that_is_given_up_or_finds_something_is_followed_by_another() {
        let wake = Wake::new();
        let met = met(&wake);
        let first = met.look().expect("nobody has looked");
        met.found_nothing(first);
        wake.ring(&Ring::Node(Uuid::nil()));
        let _given_up = met.look().expect("it has rung");
        assert!(met.look().is_some(), "whoever heard it has not come to an end with it");
    }

    #[test]
    fn what_rings_during_a_look_is_looked_for_after_it() {
        let wake = Wake::new();
        let met = met(&wake);
        let early = met.look().expect("nobody has looked");
        wake.ring(&Ring::Node(Uuid::nil()));
        // The later one was cut off; the earlier saw nothing of what rang.
        let _late = met.look().expect("it has rung");
        met.found_nothing(early);
        assert!(met.look().is_some());
    }
}
