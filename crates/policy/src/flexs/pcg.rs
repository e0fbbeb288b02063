//! PCG32, a small seeded generator, for the random choices of FlexS.
//!
//! Source: O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms
//! for Random Number Generation", 2014: the variant XSH RR with 64 bits of state and 32 of output.
//! Not from a crate: it takes 20 lines, and its sequence must never change because runs are compared byte by byte.
//!
//! Not for secrets, and with one fixed stream: only the seed distinguishes generators.

/// Multiplier of the linear congruential step, from the paper.
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
/// Increment: any odd number; this one is the reference implementation's default stream.
const INCREMENT: u64 = 1_442_695_040_888_963_407;

/// The generator.
#[derive(Clone, Debug)]
pub(super) struct Pcg32 {
    state: u64,
}

impl Pcg32 {
    /// A generator whose sequence depends on `seed` alone.
    pub(super) fn new(seed: u64) -> Pcg32 {
        let mut pcg = Pcg32 { state: seed.wrapping_add(INCREMENT) };
        pcg.next();
        pcg
    }

    fn next(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let mixed = (((old >> 18) ^ old) >> 27) as u32;
        mixed.rotate_right((old >> 59) as u32)
    }

    /// Returns a uniformly distributed number of 0 … `bound` − 1; 0 if `bound` is 0.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        if bound == 0 {
            return 0;
        }
        // Numbers below 2³² mod bound would favour the small remainders: draw again.
        let skewed = bound.wrapping_neg() % bound;
        loop {
            let drawn = self.next();
            if drawn >= skewed {
                return drawn % bound;
            }
        }
    }
}
