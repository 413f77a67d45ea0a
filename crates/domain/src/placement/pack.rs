//! Which node each member of a group gets, decided exactly: for when taking the best node for one after the other did not
//! work out. Pure; whoever asks holds the nodes locked.

use std::collections::HashSet;

/// How many states are looked at before giving up. Groups are small and sizes few: what people ask for takes some dozens.
const STATES_MAX: usize = 50_000;

/// Something that has to be on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// How much of a node it takes.
    pub size: u16,
    /// Which kind of node it needs: a number below 64.
    pub kind: u8,
}

/// A node with something free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bin {
    /// How much.
    pub free: u16,
    /// Which kinds it is of: a bit for each.
    pub kinds: u64,
}

/// What the search has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Everything has a place: for each item, the number of its bin.
    Fits(Vec<usize>),
    /// There is no way.
    DoesNotFit,
    /// Nobody knows: it would have taken too long.
    Undecided,
}

/// Finds a bin for every item, if there is a way at all.
pub fn pack(items: &[Item], bins: &[Bin]) -> Packing {
    let mut order: Vec<usize> = (0..items.len()).collect();
    // The largest first: what is hard to place is decided while there is room.
    order.sort_by_key(|index| (u16::MAX - items[*index].size, items[*index].kind));
    let mut search = Search {
        items: order.iter().map(|index| items[*index]).collect(),
        bins: bins.to_vec(),
        taken: Vec::with_capacity(items.len()),
        hopeless: HashSet::new(),
        states_left: STATES_MAX,
    };
    match search.place(0) {
        None => Packing::Undecided,
        Some(false) => Packing::DoesNotFit,
        Some(true) => {
            let mut places = vec![0; items.len()];
            for (index, bin) in order.into_iter().zip(search.taken) {
                places[index] = bin;
            }
            Packing::Fits(places)
        }
    }
}

struct Search {
    /// Largest first.
    items: Vec<Item>,
    bins: Vec<Bin>,
    /// The bins of the items so far.
    taken: Vec<usize>,
    /// What is known to lead nowhere: how many items are placed, and what is left in the bins, in order.
    hopeless: HashSet<(usize, Vec<Bin>)>,
    states_left: usize,
}

impl Search {
    /// Places the items from `next` on. `None` when it takes too long.
    fn place(&mut self, next: usize) -> Option<bool> {
        let Some(item) = self.items.get(next).copied() else {
            return Some(true);
        };
        let wanted: u32 = self.items[next..].iter().map(|item| u32::from(item.size)).sum();
        let free: u32 = self.bins.iter().map(|bin| u32::from(bin.free)).sum();
        if wanted > free {
            return Some(false);
        }
        let mut left = self.bins.clone();
        left.sort_unstable();
        let state = (next, left);
        if self.hopeless.contains(&state) {
            return Some(false);
        }
        self.states_left = self.states_left.checked_sub(1)?;
        for bin in self.choices(item) {
            self.bins[bin].free -= item.size;
            self.taken.push(bin);
            if self.place(next + 1)? {
                return Some(true);
            }
            self.taken.pop();
            self.bins[bin].free += item.size;
        }
        self.hopeless.insert(state);
        Some(false)
    }

    /// The bins that an item fits in, tightest first; of those that are alike only one.
    fn choices(&self, item: Item) -> Vec<usize> {
        let fits = |bin: &Bin| bin.free >= item.size && bin.kinds >> item.kind & 1 == 1;
        let mut found: Vec<usize> = (0..self.bins.len()).filter(|i| fits(&self.bins[*i])).collect();
        found.sort_by_key(|index| (self.bins[*index], *index));
        found.dedup_by_key(|index| self.bins[*index]);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::{Bin, Item, Packing, pack};

    fn items(sizes: &[u16]) -> Vec<Item> {
        sizes.iter().map(|size| Item { size: *size, kind: 0 }).collect()
    }

    fn bins(free: &[u16]) -> Vec<Bin> {
        free.iter().map(|free| Bin { free: *free, kinds: 1 }).collect()
    }

    /// Whether every item is in a bin of its kind, and no bin has more than it can hold.
    fn is_sound(items: &[Item], bins: &[Bin], places: &[usize]) -> bool {
        let mut free: Vec<i32> = bins.iter().map(|bin| i32::from(bin.free)).collect();
        for (item, place) in items.iter().zip(places) {
            if bins[*place].kinds >> item.kind & 1 == 0 {
                return false;
            }
            free[*place] -= i32::from(item.size);
        }
        places.len() == items.len() && free.iter().all(|left| *left >= 0)
    }

    /// Tries every way there is.
    fn by_force(items: &[Item], bins: &[Bin]) -> bool {
        let ways = bins.len().pow(u32::try_from(items.len()).expect("few"));
        (0..ways).any(|way| {
            let place = |index: usize| way / bins.len().pow(u32::try_from(index).expect("few"));
            let places: Vec<usize> = (0..items.len()).map(|i| place(i) % bins.len()).collect();
            is_sound(items, bins, &places)
        })
    }

    /// Numbers that are the same on every run.
    fn dice(seed: &mut u64, sides: u64) -> u16 {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u16::try_from((*seed >> 33) % sides).expect("few sides")
    }

    #[test]
    fn it_finds_a_way_exactly_when_there_is_one() {
        let (mut seed, mut fitted, mut refused) = (7, 0, 0);
        for _ in 0..6_000 {
            let count = 1 + dice(&mut seed, 5);
            let item = |seed: &mut u64| Item {
                size: 1 + dice(seed, 5),
                kind: u8::try_from(dice(seed, 2)).expect("two"),
            };
            let items: Vec<Item> = (0..count).map(|_| item(&mut seed)).collect();
            let count = 1 + dice(&mut seed, 4);
            let bin =
                |seed: &mut u64| Bin { free: dice(seed, 9), kinds: 1 + u64::from(dice(seed, 3)) };
            let bins: Vec<Bin> = (0..count).map(|_| bin(&mut seed)).collect();
            match pack(&items, &bins) {
                Packing::Fits(places) => {
                    assert!(is_sound(&items, &bins, &places), "{items:?} {bins:?} {places:?}");
                    fitted += 1;
                }
                Packing::DoesNotFit => {
                    assert!(!by_force(&items, &bins), "{items:?} {bins:?}");
                    refused += 1;
                }
                Packing::Undecided => panic!("so little is decided: {items:?} {bins:?}"),
            }
        }
        assert!(fitted > 1_000 && refused > 1_000, "{fitted} fitted, {refused} did not");
    }

    /// The tightest for each would put 4 and 3 together, and then the last 2 has no place.
    #[test]
    fn it_finds_what_taking_the_tightest_misses() {
        let (items, bins) = (items(&[4, 3, 3, 2, 2, 2]), bins(&[8, 8]));
        let Packing::Fits(places) = pack(&items, &bins) else { panic!("4 2 2 and 3 3 2") };
        assert!(is_sound(&items, &bins, &places));
    }

    #[test]
    fn the_largest_groups_are_decided() {
        let many = items(&[3; 32]);
        assert!(matches!(pack(&many, &bins(&[8; 16])), Packing::Fits(_)));
        assert_eq!(pack(&many, &bins(&[8; 15])), Packing::DoesNotFit);
        // Enough in all, and yet none of the machines holds three.
        assert_eq!(pack(&many, &bins(&[8; 13])), Packing::DoesNotFit);
        let mixed: Vec<u16> = (0..32).map(|index| [1, 2, 3, 4, 5, 6][index % 6]).collect();
        let free: Vec<u16> = (0..32).map(|index| [8, 7, 5, 3][index % 4]).collect();
        assert_ne!(pack(&items(&mixed), &bins(&free)), Packing::Undecided);
        assert_ne!(pack(&items(&mixed), &bins(&free[..20])), Packing::Undecided);
    }

    #[test]
    fn nothing_fits_anywhere_and_something_nowhere_without_a_bin() {
        assert_eq!(pack(&[], &[]), Packing::Fits(Vec::new()));
        assert_eq!(pack(&items(&[1]), &[]), Packing::DoesNotFit);
    }
}
