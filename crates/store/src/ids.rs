//! Where the identities of rows and facts come from: the machine's time and chance, or a count, which is the same whenever
//! the same is done again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

/// The moment that counted identities carry, in milliseconds: it is long ago, and never matters.
const COUNTED_AT: u128 = 1_767_225_600_000;
/// The version and the variant of an identity that begins with its time.
const SHAPE: u128 = 0x7000_8000_0000_0000_0000;

/// A source of identities, each greater than those before it. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    counted: Option<Arc<AtomicU64>>,
}

impl Ids {
    /// Identities that are counted from the first.
    pub fn counted() -> Ids {
        Ids { counted: Some(Arc::default()) }
    }

    /// Begins to count anew, if they are counted.
    pub fn restart(&self) {
        if let Some(count) = &self.counted {
            count.store(0, Ordering::SeqCst);
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "identities of facts are made where the facts are written"
    )]
    pub(crate) fn next(&self) -> Uuid {
        match &self.counted {
            None => Uuid::now_v7(),
            Some(count) => {
                let number = u128::from(count.fetch_add(1, Ordering::SeqCst));
                Uuid::from_u128(COUNTED_AT << 80 | SHAPE | number)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ids;

    #[test]
    fn counted_identities_grow_and_are_the_same_when_counted_anew() {
        let ids = Ids::counted();
        let first: Vec<_> = (0..300).map(|_| ids.next()).collect();
        assert!(first.is_sorted_by(|a, b| a < b));
        assert!(first.iter().all(|id| id.get_version_num() == 7));
        ids.restart();
        assert_eq!((0..300).map(|_| ids.clone().next()).collect::<Vec<_>>(), first);
    }
}
