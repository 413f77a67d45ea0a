//! The nodes that batches of this process are about to write to. Places are found without locks (decision 37): whoever looks next
//! passes these by, so that two batches do not pick the same node, which would be the best one for both. Nobody's rights depend on it:
//! whether a place is free is seen by the statement that takes it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

/// For how many batches a node is passed by after somebody else was faster there: another process has it in hand, and will have it
/// again.
const PASSED_BY: u64 = 8;

/// See the module. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct InHand {
    nodes: Arc<Mutex<Nodes>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Nodes {
    /// Until which batch each is passed by; none while somebody writes to it.
    until: BTreeMap<Uuid, Option<u64>>,
    batches: u64,
}

/// Somebody's turn to look: until it is over nobody else looks, and sees free what they are about to take.
pub(crate) struct Turn {
    in_hand: InHand,
    _guard: OwnedMutexGuard<()>,
    /// What they pass by.
    pub(crate) passed_by: Vec<Uuid>,
}

/// Nodes in somebody's hands; given back when this is dropped.
pub(crate) struct Taken {
    in_hand: InHand,
    nodes: Vec<Uuid>,
}

impl InHand {
    /// Waits for its turn to look.
    pub(crate) async fn turn(&self) -> Turn {
        let guard = Arc::clone(&self.turn).lock_owned().await;
        let mut nodes = self.nodes();
        nodes.batches += 1;
        let batch = nodes.batches;
        nodes.until.retain(|_, until| until.is_none_or(|until| until >= batch));
        let passed_by = nodes.until.keys().copied().collect();
        drop(nodes);
        Turn { in_hand: self.clone(), _guard: guard, passed_by }
    }

    /// What is behind the lock is whole after every statement, so a panic elsewhere spoils nothing.
    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Takes these, and ends the turn.
    pub(crate) fn take(self, nodes: Vec<Uuid>) -> Taken {
        self.in_hand.nodes().until.extend(nodes.iter().map(|node| (*node, None)));
        Taken { in_hand: self.in_hand, nodes }
    }
}

impl Taken {
    /// Somebody else was faster at one of them.
    pub(crate) fn lost(mut self) {
        let taken = std::mem::take(&mut self.nodes);
        let mut nodes = self.in_hand.nodes();
        let until = Some(nodes.batches + PASSED_BY);
        nodes.until.extend(taken.into_iter().map(|node| (node, until)));
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut nodes = self.in_hand.nodes();
        for node in &self.nodes {
            nodes.until.remove(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use uuid::Uuid;

    use super::{InHand, PASSED_BY};

    #[tokio::test]
    async fn what_somebody_has_in_hand_others_pass_by_until_it_is_given_back() {
        let (in_hand, node) = (InHand::default(), Uuid::from_u128(1));
        let taken = in_hand.turn().await.take(vec![node]);
        assert_eq!(in_hand.turn().await.passed_by, [node]);
        drop(taken);
        assert!(in_hand.turn().await.passed_by.is_empty());
    }

    #[tokio::test]
    async fn one_looks_at_a_time() {
        let in_hand = InHand::default();
        let first = in_hand.turn().await;
        assert!(in_hand.turn().now_or_never().is_none(), "the first has not taken anything yet");
        let _taken = first.take(Vec::new());
        assert!(in_hand.turn().now_or_never().is_some());
    }

    #[tokio::test]
    async fn where_somebody_else_was_faster_nobody_looks_for_a_while() {
        let (in_hand, node) = (InHand::default(), Uuid::from_u128(1));
        in_hand.turn().await.take(vec![node]).lost();
        for _ in 0..PASSED_BY {
            assert_eq!(in_hand.turn().await.passed_by, [node]);
        }
        assert!(in_hand.turn().await.passed_by.is_empty());
    }
}
