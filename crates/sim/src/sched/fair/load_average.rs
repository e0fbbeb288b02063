//! Load average with exponential decay: the half-life is 33.6 ms.
//!
//! Linux has kept such averages of runnable load since 3.8 (per-entity load tracking, kernel/sched/fair.c).
//! Each period of 1,048,576 ns counts y times the next one, with y³² = ½.
//! A sleeping entity therefore stays in the average of its group for a while.
//! The weight of a group on one of several CPUs depends on it: see `group`.
//!
//! Loads are weights, in any unit; times are ns.
//! Time advances in steps of 32,768 ns, 32 to a kernel period; a step in which the load changes counts with the load at its end.
//! Powers come from a table computed by square roots and products only, so they are the same on every machine.
//! The kernel's corrections of a remote CPU's average (stale by up to a balancing interval) are left out.

/// Length of a step in ns, as a power of two.
const STEP: u32 = 15;

/// Half-life in steps, as a power of two: 2^25 ns.
const HALF: u32 = 10;

/// 2^(−n ÷ 2^HALF) for each n below 2^HALF.
#[derive(Clone, Debug, Default)]
pub struct Decay(Vec<f64>);

impl Decay {
    /// Computes the table.
    pub fn new() -> Decay {
        // roots[k]: 2^(−2^k ÷ 2^HALF), from the largest down.
        let mut roots = [0.0; HALF as usize];
        let mut root = 0.5_f64;
        for place in roots.iter_mut().rev() {
            root = root.sqrt();
            *place = root;
        }
        let power = |n: u32| -> f64 {
            let bits = roots.iter().enumerate().filter(|(k, _)| n >> k & 1 == 1);
            bits.map(|(_, root)| root).product()
        };
        Decay((0..1 << HALF).map(power).collect())
    }

    /// The remainder of 1 after `steps` steps.
    #[inline]
    fn left(&self, steps: u64) -> f64 {
        let halvings = steps >> HALF;
        if halvings > 60 {
            return 0.0;
        }
        self.0[(steps & ((1 << HALF) - 1)) as usize] / (1_u64 << halvings) as f64
    }
}

/// A load average.
#[derive(Clone, Copy, Debug, Default)]
pub struct Average {
    value: f64,
    /// Time up to which it is advanced, ns.
    upto: u64,
}

impl Average {
    /// The average without any load.
    pub const ZERO: Average = Average { value: 0.0, upto: 0 };

    /// The value as of the last [`Average::advance`].
    #[inline]
    pub fn value(&self) -> f64 {
        self.value
    }

    /// Advances it to `now`; the load has been `load` since the last call.
    #[inline]
    pub fn advance(&mut self, decay: &Decay, load: u64, now: u64) -> f64 {
        let steps = now.saturating_sub(self.upto) >> STEP;
        if steps > 0 {
            let load = load as f64;
            self.value = load + (self.value - load) * decay.left(steps);
            self.upto += steps << STEP;
        }
        self.value
    }

    /// Adds an entity's average, or removes it if negative.
    #[inline]
    pub fn add(&mut self, average: f64) {
        self.value = (self.value + average).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_LIFE: u64 = 1 << (STEP + HALF);

    #[test]
    fn load_halves_in_32_periods() {
        let decay = Decay::new();
        let mut average = Average::ZERO;
        average.add(1024.0);
        assert_eq!(average.advance(&decay, 0, HALF_LIFE), 512.0);
        assert_eq!(average.advance(&decay, 0, 3 * HALF_LIFE), 128.0);
        assert_eq!(average.advance(&decay, 0, 90 * HALF_LIFE), 0.0);
    }

    #[test]
    fn average_converges_to_constant_load() {
        let decay = Decay::new();
        let mut average = Average::ZERO;
        average.add(300.0);
        assert_eq!(average.advance(&decay, 300, 12_345_678), 300.0);
        let mut average = Average::ZERO;
        assert_eq!(average.advance(&decay, 1024, HALF_LIFE), 512.0);
        assert!(average.advance(&decay, 1024, 20 * HALF_LIFE) > 1023.9);
    }

    #[test]
    fn average_is_independent_of_update_rate() {
        let decay = Decay::new();
        let mut once = Average::ZERO;
        let mut often = Average::ZERO;
        for now in (0..40_000_000).step_by(77_777) {
            often.advance(&decay, 1000, now);
        }
        let (once, often) =
            (once.advance(&decay, 1000, 40_000_000), often.advance(&decay, 1000, 40_000_000));
        assert!((once - often).abs() < 1e-9, "{once} {often}");
        let exact = 1000.0 * (1.0 - (-40.0 / 33.554_432_f64).exp2());
        assert!((once - exact).abs() < 0.5, "{once} {exact}");
    }
}
