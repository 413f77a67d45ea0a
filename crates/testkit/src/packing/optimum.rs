//! What a trace's requests could have got at most: by somebody who knew all of it beforehand, and by a fleet without walls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::trace::Trace;

/// The most GPU-seconds that anybody could have placed of a trace: by refusing whatever is in the way of what comes later,
/// by moving everything at any time, and by granting a part of a request for the whole of its life.
///
/// It is an upper bound because whatever can really be done can be done so too: a plan that puts every request on machines,
/// whole and for good, never uses more GPUs at a time than there are, and that is all that is asked for here. And it is the
/// least number of which that can be shown so, because it is met exactly: along the line of time flows as much as the
/// fleet has GPUs, each of them either idle until the next moment, which costs that time, or in a request from its
/// beginning to its end, which costs nothing. The cheapest flow is the least idle time.
pub fn optimum(trace: &Trace) -> u64 {
    let mut moments: Vec<u64> =
        trace.asked.iter().flat_map(|asked| [asked.at, asked.until]).collect();
    moments.extend([0, trace.seconds]);
    moments.sort_unstable();
    moments.dedup();
    let capacity = u64::from(trace.recipe.capacity());
    let mut flow = Flow::new(moments.len());
    for (index, pair) in moments.windows(2).enumerate() {
        flow.arc(index, index + 1, capacity, pair[1] - pair[0]);
    }
    // Every moment is in the list.
    let place = |moment: u64| moments.binary_search(&moment).unwrap_or(0);
    for asked in &trace.asked {
        flow.arc(place(asked.at), place(asked.until), u64::from(asked.total()), 0);
    }
    capacity * trace.seconds - flow.cheapest(capacity)
}

/// What one machine as large as the whole fleet would have placed, taking everybody who fits in the order in which they
/// come: the rule of the product, without the loss by packing.
///
/// A fleet that may move everything at any time does exactly this: the sizes of a trace divide each other and a machine, so
/// that whatever is free in all is free in one piece after moving. To refuse less, somebody would have to know the future.
pub fn without_walls(trace: &Trace) -> u64 {
    let (mut free, mut placed) = (trace.recipe.capacity(), 0);
    let mut ends: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
    for asked in &trace.asked {
        while let Some(Reverse((until, gpus))) = ends.peek().copied()
            && until <= asked.at
        {
            ends.pop();
            free += gpus;
        }
        if let Some(left) = free.checked_sub(asked.total()) {
            free = left;
            placed += asked.work();
            ends.push(Reverse((asked.until, asked.total())));
        }
    }
    placed
}

/// A network from its first vertex to its last. The arc beside an arc, by number, is the way back.
struct Flow {
    arcs: Vec<Arc>,
    leaving: Vec<Vec<usize>>,
}

struct Arc {
    to: usize,
    left: u64,
    cost: i64,
}

const FAR: i64 = i64::MAX;

impl Flow {
    fn new(vertices: usize) -> Flow {
        Flow { arcs: Vec::new(), leaving: vec![Vec::new(); vertices] }
    }

    fn arc(&mut self, from: usize, to: usize, left: u64, cost: u64) {
        // Seconds of a trace.
        let cost = i64::try_from(cost).unwrap_or(FAR);
        self.leaving[from].push(self.arcs.len());
        self.arcs.push(Arc { to, left, cost });
        self.leaving[to].push(self.arcs.len());
        self.arcs.push(Arc { to: from, left: 0, cost: -cost });
    }

    /// What it costs to send `wanted` through: always along the cheapest way that is left, which is what makes the whole
    /// cheapest. Prices of the vertices keep every cost at zero or more, so that ways can be sought by the nearest first.
    fn cheapest(&mut self, wanted: u64) -> u64 {
        let last = self.leaving.len() - 1;
        let mut prices = vec![0_i64; self.leaving.len()];
        let (mut sent, mut cost) = (0, 0);
        while sent < wanted {
            let (far, by) = self.ways(&prices);
            assert!(far[last] < FAR, "idle GPUs have a way as wide as the fleet");
            for (price, far_of) in prices.iter_mut().zip(&far) {
                *price += *far_of.min(&far[last]);
            }
            let way = self.way_to(last, &by);
            let least = way.iter().map(|arc| self.arcs[*arc].left).min().unwrap_or(0);
            let most = least.min(wanted - sent);
            for arc in way {
                self.arcs[arc].left -= most;
                self.arcs[arc ^ 1].left += most;
            }
            // What a vertex costs in all is what its price has come to.
            cost += most * u64::try_from(prices[last]).unwrap_or(0);
            sent += most;
        }
        cost
    }

    /// How far every vertex is from the first, and by which arc it is reached.
    fn ways(&self, prices: &[i64]) -> (Vec<i64>, Vec<usize>) {
        let mut far = vec![FAR; prices.len()];
        let mut by = vec![0; prices.len()];
        far[0] = 0;
        let mut next = BinaryHeap::from([Reverse((0, 0))]);
        while let Some(Reverse((here_far, here))) = next.pop() {
            if here_far > far[here] {
                continue;
            }
            for number in &self.leaving[here] {
                let arc = &self.arcs[*number];
                let through = here_far + arc.cost + prices[here] - prices[arc.to];
                if arc.left > 0 && through < far[arc.to] {
                    (far[arc.to], by[arc.to]) = (through, *number);
                    next.push(Reverse((through, arc.to)));
                }
            }
        }
        (far, by)
    }

    /// The arcs from the first vertex to this one, the last first.
    fn way_to(&self, mut vertex: usize, by: &[usize]) -> Vec<usize> {
        let mut way = Vec::new();
        while vertex > 0 {
            way.push(by[vertex]);
            vertex = self.arcs[by[vertex] ^ 1].to;
        }
        way
    }
}

#[cfg(test)]
mod tests {
    use super::super::dice::Dice;
    use super::{optimum, without_walls};
    use crate::packing::{Asked, Recipe, Trace};

    /// A trace of one machine.
    fn trace(seconds: u64, asked: &[(u64, u64, u32)]) -> Trace {
        let recipe = Recipe { seed: 0, machines: 1, days: 0, load_percent: 0 };
        let asked = asked.iter().map(|(at, until, gpus)| Asked {
            at: *at,
            until: *until,
            gpus: *gpus,
            members: 1,
        });
        Trace { recipe, seconds, asked: asked.collect() }
    }

    /// The most that can be placed whole, found by trying all there is.
    fn by_force(trace: &Trace) -> u64 {
        let count = trace.asked.len();
        let fits = |set: u32| {
            let taken = || (0..count).filter(|i| set >> i & 1 == 1).map(|i| trace.asked[i]);
            let at = |moment: u64| {
                let here = taken().filter(|asked| asked.at <= moment && moment < asked.until);
                here.map(|asked| asked.gpus).sum::<u32>()
            };
            (0..trace.seconds)
                .all(|moment| at(moment) <= 8)
                .then(|| taken().map(|asked| asked.work()).sum::<u64>())
        };
        (0..1_u32 << count).filter_map(fits).max().unwrap_or(0)
    }

    #[test]
    fn nobody_places_more_and_of_halves_of_a_machine_somebody_as_much() {
        let mut dice = Dice::new(3);
        for round in 0..300 {
            let halves = round % 2 == 0;
            let mut asked: Vec<(u64, u64, u32)> = Vec::new();
            for _ in 0..10 {
                let at = dice.below(19);
                let until = at + 1 + dice.below(20 - at);
                let gpus = if halves { 4 } else { 1 + dice.below(8) };
                asked.push((at, until, u32::try_from(gpus).expect("few")));
            }
            asked.sort_unstable();
            let trace = trace(20, &asked);
            let (bound, best) = (optimum(&trace), by_force(&trace));
            assert!(bound >= best, "{bound} is less than {best}: {asked:?}");
            assert!(bound >= without_walls(&trace), "{asked:?}");
            assert!(bound <= 8 * 20 && bound <= trace.work(), "{asked:?}");
            // Where all are alike nothing is gained by granting a part of one.
            assert!(!halves || bound == best, "{bound} is more than {best}: {asked:?}");
        }
    }

    /// Who takes the first that comes has no room for the one that stays.
    #[test]
    fn the_optimum_knows_what_comes_and_the_fleet_without_walls_does_not() {
        let trace = trace(10, &[(0, 2, 1), (1, 10, 8)]);
        assert_eq!(optimum(&trace), 8 * 9);
        assert_eq!(without_walls(&trace), 2);
    }
}
