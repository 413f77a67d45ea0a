//! A trace: who asks when, for how many GPUs and for how long. Made from a seed by whole numbers alone, so that the same
//! seed is the same trace on every machine.

use super::dice::Dice;

/// How many GPUs a machine of the trace's fleet has, on two NUMA nodes.
pub const MACHINE_GPUS: u32 = 8;

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// What people ask for: of a hundred so many, for that many GPUs on a machine, on that many machines at once.
const SIZES: [(u64, u32, u32); 7] =
    [(50, 1, 1), (18, 2, 1), (14, 4, 1), (15, 8, 1), (1, 8, 2), (1, 8, 3), (1, 8, 4)];

/// How long they keep it: of a hundred so many, at least and at most so many seconds. The tail is heavy: half are gone in
/// two hours, and six sevenths of all the work are done by the seventh that stays for more than a day.
const LIVES: [(u64, u64, u64); 5] = [
    (30, 5 * 60, HOUR / 2),
    (34, HOUR / 2, 4 * HOUR),
    (22, 4 * HOUR, DAY),
    (10, DAY, 4 * DAY),
    (4, 4 * DAY, 14 * DAY),
];

/// How many ask in each hour of a day, where a hundred is the mean.
const HOURS: [u64; 24] = [
    50, 45, 40, 40, 40, 45, 60, 80, 110, 135, 150, 160, 155, 150, 155, 160, 150, 135, 120, 110,
    100, 85, 70, 55,
];

/// How long before its beginning a trace begins in truth: nobody stays for longer.
const BEFORE: u64 = 14 * DAY;

/// What a trace is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Which of all such traces.
    pub seed: u64,
    /// How many machines there are.
    pub machines: u32,
    /// How many days it lasts.
    pub days: u32,
    /// How much is asked for in the mean, as a share of what there is. At noon it is more by half, and at night half of it.
    pub load_percent: u32,
}

impl Recipe {
    /// All GPUs of the fleet.
    pub const fn capacity(&self) -> u32 {
        self.machines * MACHINE_GPUS
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// When: a second of the trace.
    pub at: u64,
    /// When it is given back, if it was granted; the end of the trace if that comes first.
    pub until: u64,
    /// How many GPUs of a machine.
    pub gpus: u32,
    /// Of how many machines: all of them or none.
    pub members: u32,
}

impl Asked {
    /// All its GPUs.
    pub const fn total(&self) -> u32 {
        self.gpus * self.members
    }

    /// How many GPU-seconds it is.
    pub fn work(&self) -> u64 {
        u64::from(self.total()) * (self.until - self.at)
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What it was made from.
    pub recipe: Recipe,
    /// How long it lasts.
    pub seconds: u64,
    /// In the order in which they ask.
    pub asked: Vec<Asked>,
}

impl Trace {
    /// The trace of a recipe. It begins with a fleet in use: whoever came in the two weeks before and would still be there
    /// asks in its first second.
    pub fn new(recipe: Recipe) -> Trace {
        let seconds = u64::from(recipe.days) * DAY;
        let mut dice = Dice::new(recipe.seed);
        let mut asked = Vec::new();
        // In a hundred hundredths.
        let gpus: u64 =
            SIZES.iter().map(|(share, gpus, many)| share * u64::from(gpus * many)).sum();
        let life: u64 = LIVES.iter().map(|(share, least, most)| share * (least + most) / 2).sum();
        let demand = u64::from(recipe.load_percent) * u64::from(recipe.capacity());
        for second in 0..BEFORE + seconds {
            let hour = HOURS[usize::try_from(second % DAY / HOUR).unwrap_or(0)];
            // Whether somebody asks in this second is one throw: what is asked for is the demand, in the mean of a day.
            if dice.below(gpus * life) >= demand * hour {
                continue;
            }
            let (_, gpus, members) = *dice.pick(&SIZES, |size| size.0);
            let (_, least, most) = *dice.pick(&LIVES, |life| life.0);
            let ends = second + least + dice.below(most - least);
            if ends > BEFORE {
                let at = second.saturating_sub(BEFORE);
                let until = (ends - BEFORE).min(seconds);
                asked.push(Asked { at, until, gpus, members });
            }
        }
        Trace { recipe, seconds, asked }
    }

    /// What is asked for in all, in GPU-seconds.
    pub fn work(&self) -> u64 {
        self.asked.iter().map(Asked::work).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::{Recipe, Trace};

    fn trace(seed: u64) -> Trace {
        Trace::new(Recipe { seed, machines: 125, days: 14, load_percent: 100 })
    }

    #[test]
    fn a_seed_is_one_trace_and_another_seed_another() {
        assert_eq!(trace(7), trace(7));
        assert_ne!(trace(7).asked, trace(8).asked);
    }

    #[test]
    fn as_much_is_asked_for_as_the_recipe_says_in_order_and_within_the_trace() {
        let trace = trace(1);
        let mean = trace.work() / trace.seconds;
        assert!((900..1_100).contains(&mean), "{mean} GPUs of 1000 are asked for");
        assert!(trace.asked.is_sorted_by_key(|asked| asked.at));
        assert!(trace.asked.iter().all(|asked| asked.at < asked.until));
        assert!(trace.asked.iter().all(|asked| asked.until <= trace.seconds));
    }

    #[test]
    fn half_are_gone_in_two_hours_and_a_seventh_does_most_of_the_work() {
        let trace = trace(2);
        let came: Vec<_> = trace.asked.iter().filter(|asked| asked.at > 0).collect();
        let short = came.iter().filter(|asked| asked.until - asked.at < 2 * super::HOUR).count();
        assert!((45..60).contains(&(short * 100 / came.len())), "{short} of {}", came.len());
        let long = trace.asked.iter().filter(|asked| asked.until - asked.at > super::DAY);
        let long: u64 = long.map(super::Asked::work).sum();
        assert!(long * 10 > trace.work() * 7, "{long} of {}", trace.work());
    }
}
