//! Numbers that are the same for the same seed, on every machine.

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// A number below `sides`.
    pub(super) fn below(&mut self, sides: u64) -> u64 {
        // SplitMix64: seeds that are neighbours give nothing alike.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        let scaled = (u128::from(mixed) * u128::from(sides)) >> 64;
        u64::try_from(scaled).unwrap_or(0)
    }

    /// One of `of`, each as often as its share says.
    pub(super) fn pick<'a, T>(&mut self, of: &'a [T], share: impl Fn(&T) -> u64) -> &'a T {
        let mut left = self.below(of.iter().map(&share).sum());
        for each in of {
            match left.checked_sub(share(each)) {
                Some(rest) => left = rest,
                None => return each,
            }
        }
        unreachable!("the shares were summed up above")
    }
}
