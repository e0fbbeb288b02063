//! APLE, the adaptive pause-loop threshold of a VM: safe bindings of `c/aple.h`.
//!
//! The header documents the algorithm; this module adds a checked configuration and exclusive access to the state.
//! Each VM has its own [`Aple`].
//!
//! Units: cycles of one clock.
//! Source: Shan, Ding and Gehani, TPDS 2017, section on APLE.
//!
//! Non-goals: reading clocks, summing the cycles of a VM's vCPUs, setting the window.

/// Cycles of the caller's clock (the TSC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cycles(pub u64);

impl From<u64> for Cycles {
    fn from(cycles: u64) -> Cycles {
        Cycles(cycles)
    }
}

impl From<u32> for Cycles {
    fn from(cycles: u32) -> Cycles {
        Cycles(u64::from(cycles))
    }
}

/// Settings of APLE; valid if 1 ≤ `lower` ≤ `initial` ≤ `upper`, `step` ≥ 1, `epoch_exits` ≥ 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ApleConfig {
    /// T_0, the first threshold, cycles. Default 8192. Costs a few rounds if it is far off.
    pub initial: u32,
    /// T_l, the lowest threshold, cycles. Default 4096. Lower lets short, useful spins exit.
    pub lower: u32,
    /// T_u, the highest threshold, cycles. Default 32768. Higher lets more be wasted per exit.
    pub upper: u32,
    /// δ, how far up and down a round tries, cycles. Default 1024 (512 to 2048 work). Larger finds
    /// a far threshold sooner and ends further from the best one.
    pub step: u32,
    /// Pause-loop exits of the VM in an epoch. Default 1000. Fewer adapt sooner, on noisier
    /// measurements, and add up the VM's cycles more often.
    pub epoch_exits: u32,
}

impl Default for ApleConfig {
    fn default() -> ApleConfig {
        ApleConfig { initial: 8192, lower: 4096, upper: 32768, step: 1024, epoch_exits: 1000 }
    }
}

/// An invalid configuration of APLE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AplePolicyError {
    /// The minimum threshold is 0, which every pause exceeds.
    #[error("APLE's lower bound is 0 cycles; it must be at least 1")]
    LowerIsZero,
    /// The initial threshold is outside the bounds, or they are reversed.
    #[error(
        "APLE's initial threshold of {initial} cycles is not within its bounds, {lower} to \
         {upper}; lower ≤ initial ≤ upper must hold"
    )]
    OutOfBounds {
        /// The first threshold, cycles.
        initial: u32,
        /// The lowest threshold, cycles.
        lower: u32,
        /// The highest threshold, cycles.
        upper: u32,
    },
    /// APLE would never try another threshold.
    #[error("APLE's step is 0 cycles; it must be at least 1 (512 to 2048 work)")]
    StepIsZero,
    /// An epoch would be empty.
    #[error("APLE's epoch has 0 exits; it must have at least 1 (1000 is usual)")]
    EpochIsEmpty,
}

impl ApleConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first matching [`AplePolicyError`].
    pub fn validate(&self) -> Result<(), AplePolicyError> {
        // SAFETY: `self` is a valid, initialized tandem_aple_config, which is only read.
        if unsafe { tandem_ffi_aple_config_ok(self) } {
            return Ok(());
        }
        Err(match *self {
            ApleConfig { lower: 0, .. } => AplePolicyError::LowerIsZero,
            ApleConfig { step: 0, .. } => AplePolicyError::StepIsZero,
            ApleConfig { epoch_exits: 0, .. } => AplePolicyError::EpochIsEmpty,
            ApleConfig { initial, lower, upper, .. } => {
                AplePolicyError::OutOfBounds { initial, lower, upper }
            }
        })
    }
}

/// `struct tandem_aple`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct State {
    vm_cycles: u64,
    handling: u64,
    best_cost: u64,
    best_consumed: u64,
    rounds: u64,
    discarded: u64,
    base: u32,
    threshold: u32,
    choice: u32,
    exits: u32,
    inefficiency_ppm: u32,
    phase: u32,
}

unsafe extern "C" {
    fn tandem_ffi_aple_config_ok(config: *const ApleConfig) -> bool;
    fn tandem_ffi_aple_init(state: *mut State, config: *const ApleConfig, vm_cycles: u64);
    fn tandem_ffi_aple_exit(state: *mut State, config: *const ApleConfig, handling: u64) -> bool;
    fn tandem_ffi_aple_epoch(state: *mut State, config: *const ApleConfig, vm_cycles: u64) -> u32;
    fn tandem_ffi_aple_threshold(state: *const State) -> u32;
}

/// APLE of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aple {
    config: ApleConfig,
    state: State,
}

impl Aple {
    /// Starts with a VM that has not consumed any cycles.
    ///
    /// # Errors
    /// If `config` is invalid.
    pub fn new(config: ApleConfig) -> Result<Aple, AplePolicyError> {
        Aple::starting_at(config, Cycles(0))
    }

    /// Starts with a VM whose vCPUs have already consumed `vm_cycles` in total.
    ///
    /// # Errors
    /// If `config` is invalid.
    pub fn starting_at(
        config: ApleConfig,
        vm_cycles: impl Into<Cycles>,
    ) -> Result<Aple, AplePolicyError> {
        config.validate()?;
        let mut state = State::default();
        // SAFETY: both are valid and have C's layout (`layout_matches_c`); C keeps no pointer.
        unsafe { tandem_ffi_aple_init(&mut state, &config, vm_cycles.into().0) };
        Ok(Aple { config, state })
    }

    /// Accounts a pause-loop exit that took `handling` cycles from exit to entry, including the switch.
    /// Returns true at the end of the epoch, at which the caller must call [`Aple::epoch`].
    #[must_use]
    pub fn exit(&mut self, handling: impl Into<Cycles>) -> bool {
        // SAFETY: as in `starting_at`; access to the state is exclusive.
        unsafe { tandem_ffi_aple_exit(&mut self.state, &self.config, handling.into().0) }
    }

    /// Ends the epoch and returns the new threshold, cycles.
    /// `vm_cycles` is the total consumption of the VM's vCPUs since its creation.
    /// An epoch without exits or consumption is discarded and repeated.
    pub fn epoch(&mut self, vm_cycles: impl Into<Cycles>) -> u32 {
        // SAFETY: as in `starting_at`; access to the state is exclusive.
        unsafe { tandem_ffi_aple_epoch(&mut self.state, &self.config, vm_cycles.into().0) }
    }

    /// Returns the current threshold, cycles.
    pub fn threshold(&self) -> u32 {
        // SAFETY: the state is valid and only read.
        unsafe { tandem_ffi_aple_threshold(&self.state) }
    }

    /// Returns T_d, the threshold in the middle of a round's trials, cycles.
    pub fn base(&self) -> u32 {
        self.state.base
    }

    /// Returns the number of completed rounds of three epochs.
    pub fn rounds(&self) -> u64 {
        self.state.rounds
    }

    /// Returns the number of epochs that were discarded and repeated.
    pub fn discarded(&self) -> u64 {
        self.state.discarded
    }

    /// Returns the number of exits in this epoch.
    pub fn exits(&self) -> u32 {
        self.state.exits
    }

    /// Returns the inefficiency of the last measured epoch, parts per million.
    pub fn inefficiency_ppm(&self) -> u32 {
        self.state.inefficiency_ppm
    }

    /// Returns the settings.
    pub fn config(&self) -> &ApleConfig {
        &self.config
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;
    use std::mem::{align_of, offset_of, size_of};

    use proptest::prelude::*;

    use super::*;

    unsafe extern "C" {
        safe fn tandem_ffi_aple_config_layout(field: u32) -> u32;
        safe fn tandem_ffi_aple_layout(field: u32) -> u32;
        safe fn tandem_ffi_compare_fractions(a: u64, b: u64, c: u64, d: u64) -> i32;
        safe fn tandem_ffi_parts_per_million(a: u64, b: u64) -> u32;
    }

    fn reported(by: impl Fn(u32) -> u32) -> Vec<usize> {
        let all = (0..).map(by).take_while(|&value| value != u32::MAX);
        all.map(|value| value as usize).collect()
    }

    #[test]
    fn layout_matches_c() {
        let default = ApleConfig::default();
        let config = vec![
            size_of::<ApleConfig>(),
            align_of::<ApleConfig>(),
            offset_of!(ApleConfig, initial),
            offset_of!(ApleConfig, lower),
            offset_of!(ApleConfig, upper),
            offset_of!(ApleConfig, step),
            offset_of!(ApleConfig, epoch_exits),
            default.initial as usize,
            default.lower as usize,
            default.upper as usize,
            default.step as usize,
            default.epoch_exits as usize,
        ];
        assert_eq!(reported(|field| tandem_ffi_aple_config_layout(field)), config);
        let state = vec![
            size_of::<State>(),
            align_of::<State>(),
            offset_of!(State, vm_cycles),
            offset_of!(State, handling),
            offset_of!(State, best_cost),
            offset_of!(State, best_consumed),
            offset_of!(State, rounds),
            offset_of!(State, discarded),
            offset_of!(State, base),
            offset_of!(State, threshold),
            offset_of!(State, choice),
            offset_of!(State, exits),
            offset_of!(State, inefficiency_ppm),
            offset_of!(State, phase),
            0,
            1,
            2,
        ];
        assert_eq!(reported(|field| tandem_ffi_aple_layout(field)), state);
    }

    fn compare(a: u64, b: u64, c: u64, d: u64) -> Ordering {
        tandem_ffi_compare_fractions(a, b, c, d).cmp(&0)
    }

    #[test]
    fn comparison_uses_all_128_bits() {
        let most = u64::MAX;
        assert_eq!(
            compare(most, most - 1, most - 1, most - 2),
            Ordering::Less,
            "1 + 1/(2^64 - 2) against 1 + 1/(2^64 - 3)"
        );
        assert_eq!(compare(most, most, 1, 1), Ordering::Equal);
        assert_eq!(compare(most, 1, most, 1), Ordering::Equal);
        assert_eq!(compare(most, 1, most - 1, 1), Ordering::Greater);
    }

    /// Numbers of every magnitude, and neighbours of powers of two.
    fn any_size() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>(),
            (any::<u64>(), 0_u32..64).prop_map(|(value, shift)| value >> shift),
            (0_u32..64, -1_i64..=1)
                .prop_map(|(bit, offset)| { (1_u64 << bit).wrapping_add_signed(offset) }),
        ]
    }

    proptest! {
        #[test]
        fn fractions_compare_exactly(
            a in any_size(), b in any_size(), c in any_size(), d in any_size(),
        ) {
            let exact = (u128::from(a) * u128::from(d)).cmp(&(u128::from(c) * u128::from(b)));
            prop_assert_eq!(compare(a, b, c, d), exact);
        }

        #[test]
        fn nearly_equal_fractions_compare_exactly(
            (a, b) in (any::<u32>(), any::<u32>()), times in any::<u32>(), more in -1_i64..=1,
        ) {
            let (a, b, times) = (u64::from(a), u64::from(b) + 1, u64::from(times));
            let (c, d) = ((a * times).saturating_add_signed(more), b * times);
            for (a, b, c, d) in [(a, b, c, d), (a << 31, b << 31, c, d)] {
                let exact = (u128::from(a) * u128::from(d)).cmp(&(u128::from(c) * u128::from(b)));
                prop_assert_eq!(compare(a, b, c, d), exact);
            }
        }

        #[test]
        fn parts_per_million_are_nearly_exact(a in any_size(), b in any_size()) {
            prop_assume!(b != 0);
            let exact = (u128::from(a) * 1_000_000 / u128::from(b)).min(u128::from(u32::MAX)) as u32;
            let ours = tandem_ffi_parts_per_million(a, b);
            if a >> 44 == 0 {
                prop_assert_eq!(ours, exact);
            } else if ours != u32::MAX {
                // 44 bits of a and at least 31 bits of b remain, as the quotient is below 2^32 / 10^6.
                prop_assert!(ours.abs_diff(exact) <= 2 + exact / 100_000_000, "{ours}, not {exact}");
            } else {
                prop_assert!(exact > u32::MAX - 100, "{exact}");
            }
        }
    }
}
