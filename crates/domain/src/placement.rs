//! Which slots of a node a request gets. Pure; which node is the database's question, because only it can lock one. Only
//! for a group whose members do not fit one by one is that decided here too, over nodes that are locked: see [`pack`].

pub mod pack;
pub mod stock;

use crate::ids::SlotId;

/// A slot that is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSlot {
    /// Its identity.
    pub id: SlotId,
    /// Its number on the node.
    pub index: i16,
    /// The NUMA node it belongs to.
    pub numa: i16,
}

/// Takes `wanted` of the free slots: all on one NUMA node if any has enough, and then on the one where the fewest are left
/// over; otherwise from the fullest NUMA nodes down, so that as few as possible are torn. `None` when there are not enough.
pub fn choose(free: &[FreeSlot], wanted: usize) -> Option<Vec<FreeSlot>> {
    if wanted == 0 || free.len() < wanted {
        return None;
    }
    let mut nodes: Vec<Vec<FreeSlot>> = Vec::new();
    for slot in free {
        match nodes.iter_mut().find(|node| node[0].numa == slot.numa) {
            Some(node) => node.push(*slot),
            None => nodes.push(vec![*slot]),
        }
    }
    for node in &mut nodes {
        node.sort_by_key(|slot| slot.index);
    }
    let key = |node: &Vec<FreeSlot>| (node.len(), node[0].numa);
    let tight = nodes.iter().filter(|node| node.len() >= wanted).min_by_key(|node| key(node));
    if let Some(node) = tight {
        return Some(node[..wanted].to_vec());
    }
    nodes.sort_by_key(|node| (usize::MAX - node.len(), node[0].numa));
    Some(nodes.into_iter().flatten().take(wanted).collect())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::{FreeSlot, choose};
    use crate::ids::SlotId;

    /// A node whose free slots belong to these NUMA nodes.
    fn free(numa: &[i16]) -> Vec<FreeSlot> {
        let slot = |(index, numa): (usize, &i16)| FreeSlot {
            id: SlotId(Uuid::from_u128(index as u128)),
            index: i16::try_from(index).expect("few"),
            numa: *numa,
        };
        numa.iter().enumerate().map(slot).collect()
    }

    fn taken(numa: &[i16], wanted: usize) -> Option<Vec<i16>> {
        Some(choose(&free(numa), wanted)?.iter().map(|slot| slot.index).collect())
    }

    #[test]
    fn one_numa_node_is_taken_where_it_fits_and_the_tightest_of_them() {
        assert_eq!(taken(&[0, 0, 0, 1, 1], 2), Some(vec![3, 4]));
        assert_eq!(taken(&[0, 0, 0, 1, 1], 3), Some(vec![0, 1, 2]));
        assert_eq!(taken(&[1, 0, 1, 0], 1), Some(vec![1]));
    }

    #[test]
    fn what_fits_on_no_numa_node_tears_as_few_as_possible() {
        assert_eq!(taken(&[0, 1, 1, 2, 2, 2], 4), Some(vec![3, 4, 5, 1]));
        assert_eq!(taken(&[0, 1], 2), Some(vec![0, 1]));
    }

    #[test]
    fn what_does_not_fit_is_none() {
        assert_eq!(taken(&[0, 0], 3), None);
        assert_eq!(taken(&[], 1), None);
        assert_eq!(taken(&[0], 0), None);
    }
}
