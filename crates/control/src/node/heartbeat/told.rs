//! What this process has written of its nodes' inventories. An agent says the same for days, and what is known to stand there already
//! need not be read, sent and compared ten times a minute.

use std::collections::HashMap;

use domain::ids::NodeId;
use jiff::Timestamp;
use store::nodes::{Heard, Said};

use super::Read;

/// From how many nodes on all of it is forgotten: who has gone to another process is never heard of here again.
const MOST: usize = 65_536;

/// The inventory of each node as it was written last from here. Whether it still stands, the statement that uses it asks.
#[derive(Debug, Default)]
pub(super) struct Told(HashMap<NodeId, Known>);

#[derive(Clone, Copy, Debug)]
struct Known {
    /// SHA-256 of the inventory as it was serialised.
    digest: [u8; 32],
    /// When it was written, or said to be the same.
    at: Timestamp,
    /// Whether the record has another number of GPUs.
    differs: bool,
}

impl Told {
    /// The heartbeat as it has to be written.
    pub(super) fn said<'a>(&self, read: &'a Read) -> Said<'a> {
        let known = self.0.get(&read.beat.node).filter(|known| known.digest == read.digest);
        Said { beat: &read.beat, known_at: known.map(|known| known.at) }
    }

    /// Keeps what was written, and says how many of these nodes have other GPUs than their records say.
    pub(super) fn keep(&mut self, reads: &[&Read], heard: &[Heard]) -> u64 {
        if self.0.len() > MOST {
            self.0.clear();
        }
        let heard: HashMap<NodeId, &Heard> =
            heard.iter().map(|heard| (heard.node, heard)).collect();
        let mut different = 0;
        for read in reads {
            let Some(heard) = heard.get(&read.beat.node) else { continue };
            let before = self.0.get(&read.beat.node).is_some_and(|known| known.differs);
            let differs = heard.slots.map_or(before, |slots| i64::try_from(read.gpus) != Ok(slots));
            different += u64::from(differs);
            let known = Known { digest: read.digest, at: heard.inventory_at, differs };
            self.0.insert(read.beat.node, known);
        }
        different
    }
}
