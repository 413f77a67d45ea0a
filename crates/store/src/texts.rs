//! Statements that are put together from constants, and kept: to write one down each time takes longer than whatever else is done before
//! it is asked.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// Texts by all that they follow from. There are as many as there are kinds of statements.
pub(crate) struct Texts<K>(LazyLock<RwLock<HashMap<K, Arc<str>>>>);

impl<K: Eq + Hash> Texts<K> {
    pub(crate) const fn new() -> Texts<K> {
        Texts(LazyLock::new(RwLock::default))
    }

    /// The text of this kind, which `write` writes down if it is the first.
    pub(crate) fn of(&self, kind: K, write: impl FnOnce() -> String) -> Arc<str> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&kind).cloned();
        known.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(kind).or_insert_with(|| write().into()))
        })
    }
}
