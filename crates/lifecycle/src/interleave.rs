//! The harness that makes a race happen: it runs something between a writer's load and its write.

use crate::fact::Guard;
use crate::machine::Lawful;
use crate::outcome::Refusal;
use crate::writer::{Change, Entry, Row, Store};

/// A store that lets `meanwhile` loose on the store beneath it, once, right after the first load.
pub struct Interleaved<'a, T, F> {
    store: &'a mut T,
    meanwhile: Option<F>,
}

impl<'a, T, F: FnOnce(&mut T)> Interleaved<'a, T, F> {
    /// Wraps `store`.
    pub fn new(store: &'a mut T, meanwhile: F) -> Self {
        Self { store, meanwhile: Some(meanwhile) }
    }
}

impl<M: Lawful, T: Store<M>, F: FnOnce(&mut T)> Store<M> for Interleaved<'_, T, F> {
    type Id = T::Id;
    type Error = T::Error;

    fn load(&mut self, id: &T::Id) -> Result<Option<Row<M::Status>>, T::Error> {
        let row = self.store.load(id)?;
        if let Some(meanwhile) = self.meanwhile.take() {
            meanwhile(self.store);
        }
        Ok(row)
    }

    fn knows(&mut self, id: &T::Id, event_id: u128) -> Result<bool, T::Error> {
        self.store.knows(id, event_id)
    }

    fn guard(&mut self, id: &T::Id, guard: Guard) -> Result<bool, T::Error> {
        self.store.guard(id, guard)
    }

    fn compare_and_set(
        &mut self,
        id: &T::Id,
        change: &Change<'_, M::Status>,
    ) -> Result<bool, T::Error> {
        self.store.compare_and_set(id, change)
    }

    fn append(&mut self, entry: Entry<T::Id>) -> Result<(), T::Error> {
        self.store.append(entry)
    }

    fn refused(
        &mut self,
        id: &T::Id,
        event_id: u128,
        refusal: &Refusal<M::Status>,
    ) -> Result<(), T::Error> {
        self.store.refused(id, event_id, refusal)
    }
}
