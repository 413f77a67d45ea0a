//! Who waits for work. A node waits once: a newer wait ends the older one, which may hang on a connection that is long
//! dead, and would be handed the task that is meant for the living.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand;
use domain::ids::NodeId;
use tokio_util::sync::CancellationToken;

/// The waits of this process.
#[derive(Default)]
pub(super) struct Polls(Mutex<Waits>);

#[derive(Default)]
struct Waits {
    newest: u64,
    by_node: HashMap<NodeId, (u64, CancellationToken)>,
}

impl Waits {
    fn count(&self) {
        metrics::gauge!("berth_long_polls_open").set(self.by_node.len() as f64);
    }
}

impl Polls {
    /// A wait of that node, the only one from now on.
    pub(super) fn begin(&self, node: NodeId) -> Poll<'_> {
        let displaced = CancellationToken::new();
        let mut waits = self.waits();
        waits.newest += 1;
        let number = waits.newest;
        if let Some((_, older)) = waits.by_node.insert(node, (number, displaced.clone())) {
            older.cancel();
        }
        waits.count();
        Poll { polls: self, node, number, displaced }
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One wait, until dropped.
pub(super) struct Poll<'p> {
    polls: &'p Polls,
    node: NodeId,
    number: u64,
    displaced: CancellationToken,
}

impl Poll<'_> {
    /// Ends when a newer wait of the node has begun.
    pub(super) async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        let mut waits = self.polls.waits();
        if waits.by_node.get(&self.node).is_some_and(|(number, _)| *number == self.number) {
            waits.by_node.remove(&self.node);
        }
        waits.count();
    }
}

/// How long one wait lasts: up to a tenth less each time, so that a fleet does not come back all at once.
pub(super) fn about(patience: Duration) -> Duration {
    let mut dice = [128_u8];
    // Without randomness it lasts as long as on average.
    let _ = rand::fill(&mut dice);
    patience.mul_f64(0.9 + 0.1 * f64::from(dice[0]) / 255.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use domain::ids::NodeId;
    use futures::FutureExt as _;
    use uuid::Uuid;

    use super::{Polls, about};

    #[test]
    fn a_newer_wait_of_a_node_ends_the_older_one() {
        let polls = Polls::default();
        let (here, there) = (NodeId(Uuid::nil()), NodeId(Uuid::max()));
        let (first, other) = (polls.begin(here), polls.begin(there));
        let second = polls.begin(here);
        assert!(first.displaced().now_or_never().is_some());
        drop(first);
        assert!(second.displaced().now_or_never().is_none(), "the older one takes nothing with it");
        assert!(other.displaced().now_or_never().is_none());
        let third = polls.begin(here);
        assert!(second.displaced().now_or_never().is_some());
        drop((second, third, other));
        assert!(polls.waits().by_node.is_empty());
    }

    #[test]
    fn waits_differ_by_a_tenth_at_most() {
        for _ in 0..100 {
            let lasts = about(Duration::from_secs(60)).as_secs_f64() / 60.0;
            assert!((0.89..=1.0).contains(&lasts), "{lasts}");
        }
    }
}
