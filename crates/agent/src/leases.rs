//! The lease reconciler: what the agent's books say that allocations have here, compared with what is on the machine and
//! with what the control plane says is over. What is proven dead is returned, everything else is left and reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;
use wire::node::Lease;

use crate::Error;
use crate::drivers::Driver;
use crate::journal::{Journal, Place};

/// Compares, and remembers what it has said already.
pub(crate) struct Reconciler {
    pub(crate) journal: Arc<Journal>,
    pub(crate) driver: Arc<dyn Driver>,
    /// The allocations that are over and still have something here: said once each.
    pub(crate) left: Mutex<BTreeSet<Uuid>>,
}

impl Reconciler {
    /// What allocations have here by the agent's books; a whole machine has no slots.
    pub(crate) fn leases(&self) -> Vec<Lease> {
        let mut held: BTreeMap<(Uuid, Uuid), Vec<i16>> = BTreeMap::new();
        for (place, lease) in self.journal.leases() {
            let slots = held.entry((lease.allocation, lease.operation)).or_default();
            match place {
                Place::Machine => {}
                Place::Slot(index) => slots.push(index),
            }
        }
        let lease =
            |((allocation_id, operation_id), slots)| Lease { allocation_id, operation_id, slots };
        held.into_iter().map(lease).collect()
    }

    /// Closes what is `over` by the control plane's word, if nothing of it is on the machine and no task of it under way.
    pub(crate) async fn settle(&self, over: &[Uuid]) -> Result<(), Error> {
        if over.is_empty() {
            return Ok(());
        }
        // A machine that does not say what is there proves nothing dead.
        let Ok(guests) = self.driver.guests() else { return Ok(()) };
        for allocation in over.iter().copied() {
            if guests.iter().any(|guest| guest.allocation_id == allocation) {
                self.is_left(allocation);
            } else if self.journal.close(allocation).await? {
                tracing::info!(%allocation, "the allocation is over: its leases are returned");
            }
        }
        Ok(())
    }

    fn is_left(&self, allocation: Uuid) {
        if self.left.lock().unwrap_or_else(PoisonError::into_inner).insert(allocation) {
            tracing::error!(
                %allocation,
                "the allocation is over, but its guest is still here: nothing is touched, an \
                 operator has to look"
            );
        }
    }
}
