//! What is left of nodes that are locked, while several requests share them: each gets what it would have got if they had come
//! one after the other, as far as these nodes go. Pure; the database has said which nodes are worth a look.

use std::collections::BTreeMap;

use super::{FreeSlot, choose};
use crate::ids::NodeId;

/// What is free on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// The node as a whole, or nothing any more.
    Whole(bool),
    /// These slots.
    Slots(Vec<FreeSlot>),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Stock {
    nodes: BTreeMap<NodeId, Left>,
}

impl Stock {
    /// Adds a node. One that is there already stays as it is: what is left of it is known better here.
    pub fn add(&mut self, node: NodeId, left: Left) {
        self.nodes.entry(node).or_insert(left);
    }

    /// Takes a whole node, or `wanted` slots of one: on one NUMA node if there is any such, and only if `may_tear` on several;
    /// where the fewest are left over. `None` if none of `among` has it.
    pub fn take(
        &mut self,
        among: &[NodeId],
        wanted: Option<i16>,
        may_tear: bool,
    ) -> Option<(NodeId, Vec<FreeSlot>)> {
        let Some(wanted) = wanted else {
            let untouched = |node: &&NodeId| self.nodes.get(node) == Some(&Left::Whole(true));
            let node = *among.iter().filter(untouched).min()?;
            self.nodes.insert(node, Left::Whole(false));
            return Some((node, Vec::new()));
        };
        let wanted = usize::try_from(wanted).ok()?;
        let fits = |node: &NodeId| {
            let Some(Left::Slots(slots)) = self.nodes.get(node) else { return None };
            let widest = widest(slots);
            let torn = widest < wanted;
            // Where it has to be torn, the less the better: as the database has it.
            let left = if torn { usize::MAX - widest } else { widest };
            (slots.len() >= wanted && (may_tear || !torn)).then_some((
                torn,
                slots.len(),
                left,
                *node,
            ))
        };
        let (_, _, _, node) = among.iter().filter_map(fits).min()?;
        let Some(Left::Slots(slots)) = self.nodes.get_mut(&node) else { return None };
        let taken = choose(slots, wanted)?;
        slots.retain(|slot| !taken.contains(slot));
        Some((node, taken))
    }
}

/// How many slots are free on the NUMA node that has most.
fn widest(slots: &[FreeSlot]) -> usize {
    let on = |numa: i16| slots.iter().filter(|slot| slot.numa == numa).count();
    slots.iter().map(|slot| on(slot.numa)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::{Left, Stock};
    use crate::ids::{NodeId, SlotId};
    use crate::placement::FreeSlot;

    fn node(number: u128) -> NodeId {
        NodeId(Uuid::from_u128(number))
    }

    /// A node with so many free slots on each of its NUMA nodes.
    fn slots(numas: &[usize]) -> Left {
        let numas = numas.iter().enumerate().flat_map(|(numa, count)| vec![numa; *count]);
        let slot = |(index, numa): (usize, usize)| FreeSlot {
            id: SlotId(Uuid::from_u128(index as u128)),
            index: i16::try_from(index).expect("few"),
            numa: i16::try_from(numa).expect("few"),
        };
        Left::Slots(numas.enumerate().map(slot).collect())
    }

    fn stock(nodes: &[&[usize]]) -> (Stock, Vec<NodeId>) {
        let mut stock = Stock::default();
        let ids: Vec<NodeId> = (1..=nodes.len()).map(|number| node(number as u128)).collect();
        for (id, numas) in ids.iter().zip(nodes) {
            stock.add(*id, slots(numas));
        }
        (stock, ids)
    }

    /// Which nodes they get, one after the other.
    fn taken(nodes: &[&[usize]], wanted: &[i16], may_tear: bool) -> Vec<Option<u128>> {
        let (mut stock, ids) = stock(nodes);
        let mut one =
            |wanted: &i16| Some(stock.take(&ids, Some(*wanted), may_tear)?.0.uuid().as_u128());
        wanted.iter().map(&mut one).collect()
    }

    #[test]
    fn the_tightest_is_filled_before_another_is_begun() {
        assert_eq!(taken(&[&[4, 4], &[2, 0]], &[4, 2, 1, 1], false), [1, 2, 1, 1].map(Some));
        assert_eq!(taken(&[&[4, 4], &[4, 4]], &[4, 4, 4, 4], false), [1, 1, 2, 2].map(Some));
    }

    #[test]
    fn one_numa_node_comes_before_a_tight_fit_and_tearing_has_to_be_allowed() {
        assert_eq!(taken(&[&[1, 1], &[4, 4]], &[2], true), [Some(2)]);
        assert_eq!(taken(&[&[1, 1]], &[2], false), [None]);
        assert_eq!(taken(&[&[1, 1]], &[2], true), [Some(1)]);
        // Torn as little as can be, among those that have as many.
        assert_eq!(taken(&[&[2, 2, 2], &[3, 2, 1]], &[4], true), [Some(2)]);
    }

    #[test]
    fn nothing_is_taken_twice_and_what_is_gone_is_gone() {
        let (mut stock, ids) = stock(&[&[1, 1]]);
        let (_, first) = stock.take(&ids, Some(1), false).expect("there is one");
        stock.add(ids[0], slots(&[1, 1]));
        let (_, second) = stock.take(&ids, Some(1), false).expect("there is another");
        assert_ne!(first, second);
        assert_eq!(stock.take(&ids, Some(1), true), None);
    }

    #[test]
    fn a_whole_node_is_taken_once() {
        let mut stock = Stock::default();
        stock.add(node(1), Left::Whole(true));
        assert_eq!(stock.take(&[node(1)], None, false), Some((node(1), vec![])));
        assert_eq!(stock.take(&[node(1)], None, false), None);
        assert_eq!(stock.take(&[node(2)], None, false), None);
    }
}
