//! Work that one process is already doing, so that it does not start it twice.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The keys of the work in flight, usually a kind and an id.
///
/// An economy, never correctness: it knows one process only and forgets with it. Where doing a thing twice is
/// harmful, the claim is a transition.
#[derive(Debug)]
pub struct InFlight<K: Eq + Hash + Clone> {
    held: Arc<Mutex<HashSet<K>>>,
}

impl<K: Eq + Hash + Clone> Default for InFlight<K> {
    fn default() -> Self {
        Self { held: Arc::default() }
    }
}

impl<K: Eq + Hash + Clone> Clone for InFlight<K> {
    fn clone(&self) -> Self {
        Self { held: Arc::clone(&self.held) }
    }
}

/// The right to do one piece of work. Dropping it gives the right back, also when a panic or a cancellation drops it.
#[must_use = "the work counts as in flight only while the permit lives"]
#[derive(Debug)]
pub struct Permit<K: Eq + Hash + Clone> {
    held: Arc<Mutex<HashSet<K>>>,
    key: K,
}

// A panic elsewhere can't leave a set of keys half changed, so a poisoned lock is as good as another.
fn keys<K>(held: &Mutex<HashSet<K>>) -> MutexGuard<'_, HashSet<K>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Eq + Hash + Clone> InFlight<K> {
    /// Nothing in flight.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the right to `key`; none when it is held. Check and claim are one step.
    pub fn claim(&self, key: K) -> Option<Permit<K>> {
        keys(&self.held).insert(key.clone()).then(|| Permit { held: Arc::clone(&self.held), key })
    }

    /// Whether `key` is held. Only for routing: claim to be sure.
    pub fn is_held(&self, key: &K) -> bool {
        keys(&self.held).contains(key)
    }
}

impl<K: Eq + Hash + Clone> Drop for Permit<K> {
    fn drop(&mut self) {
        keys(&self.held).remove(&self.key);
    }
}
