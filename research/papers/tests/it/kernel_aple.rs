//! APLE: worked cases of its source, and a comparison with a plain model.
//!
//! A case sets the inefficiency of each epoch through its handling cycles and the cycles that the VM consumed.
//! Then it checks the next threshold.
//! Thresholds are those of the paper: from 8192, between 4096 and 32768, in steps of 1024.
//!
//! The model follows the description, with 128-bit products and a list of the round's epochs, and shares no code with the C.
//! It is compared after each of a series of random epochs, including extreme values.
//!
//! Not covered here: layouts and 128-bit arithmetic (unit tests), undefined behaviour (the fuzzer).

use proptest::prelude::*;
use tandem_kpolicy::{Aple, ApleConfig, AplePolicyError};

/// A VM under APLE, and the cycles that it has consumed.
struct ApleVm {
    aple: Aple,
    consumed: u64,
}

impl ApleVm {
    fn new(config: ApleConfig) -> ApleVm {
        ApleVm { aple: Aple::new(config).unwrap(), consumed: 0 }
    }

    fn starting_with(initial: u32) -> ApleVm {
        ApleVm::new(ApleConfig { initial, ..ApleConfig::default() })
    }

    /// Runs an epoch that wastes `cost` cycles of the `consumed` ones, and returns the next threshold.
    fn epoch(&mut self, cost: u64, consumed: u64) -> u32 {
        let exits = self.aple.config().epoch_exits;
        let spun = u64::from(self.aple.threshold()) * u64::from(exits);
        let mut handling = cost.checked_sub(spun).expect("costs more than the spinning");
        for exit in 1..=exits {
            assert_eq!(self.aple.exit(handling), exit == exits, "exit {exit}");
            handling = 0;
        }
        self.consumed += consumed;
        self.aple.epoch(self.consumed)
    }

    /// Runs a round with these inefficiencies in percent at T_d, above and below, and returns the next T_d.
    fn round(&mut self, percent: [u64; 3]) -> u32 {
        let before = self.aple.rounds();
        let mut next = 0;
        for percent in percent {
            next = self.epoch(percent * 10_000_000, 1_000_000_000);
        }
        assert_eq!(self.aple.rounds(), before + 1);
        assert_eq!(next, self.aple.base(), "a round begins at T_d");
        next
    }
}

#[test]
fn round_tries_base_then_above_then_below() {
    let mut vm = ApleVm::new(ApleConfig::default());
    assert_eq!(vm.aple.threshold(), 8192);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 8192 + 1024);
    assert_eq!(vm.aple.base(), 8192, "T_d stays until the round is over");
    assert_eq!(vm.epoch(60_000_000, 1_000_000_000), 8192 - 1024);
    assert_eq!(vm.aple.base(), 8192);
    assert_eq!(vm.epoch(60_000_000, 1_000_000_000), 8192);
}

#[test]
fn winning_base_repeats_thresholds() {
    let mut vm = ApleVm::new(ApleConfig::default());
    assert_eq!(vm.round([5, 6, 7]), 8192);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 9216);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 7168);
}

#[test]
fn winning_upper_threshold_becomes_base() {
    let mut vm = ApleVm::new(ApleConfig::default());
    assert_eq!(vm.round([6, 5, 7]), 9216);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 10240);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 8192);
}

#[test]
fn winning_lower_threshold_becomes_base() {
    let mut vm = ApleVm::new(ApleConfig::default());
    assert_eq!(vm.round([7, 6, 5]), 7168);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 8192);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 6144);
}

#[test]
fn least_of_three_wins() {
    assert_eq!(ApleVm::new(ApleConfig::default()).round([9, 8, 7]), 7168);
    assert_eq!(ApleVm::new(ApleConfig::default()).round([9, 7, 8]), 9216);
}

#[test]
fn tie_with_base_keeps_base() {
    assert_eq!(ApleVm::new(ApleConfig::default()).round([5, 5, 6]), 8192);
    assert_eq!(ApleVm::new(ApleConfig::default()).round([5, 6, 5]), 8192);
    assert_eq!(ApleVm::new(ApleConfig::default()).round([5, 5, 5]), 8192);
}

#[test]
fn tie_of_above_and_below_keeps_base() {
    assert_eq!(ApleVm::new(ApleConfig::default()).round([6, 5, 5]), 8192);
}

#[test]
fn ties_compare_fractions_not_costs() {
    let mut vm = ApleVm::new(ApleConfig::default());
    vm.epoch(50_000_000, 1_000_000_000);
    vm.epoch(25_000_000, 500_000_000);
    assert_eq!(vm.epoch(60_000_000, 1_000_000_000), 8192);
    // T_d wastes more by a relative 2 × 10^-14: no tie, although single precision would see one.
    let mut vm = ApleVm::new(ApleConfig::default());
    vm.epoch(50_000_000_000_001, 1_000_000_000_000_000_000);
    vm.epoch(50_000_000_000_000, 1_000_000_000_000_000_000);
    assert_eq!(vm.epoch(60_000_000_000_000, 1_000_000_000_000_000_000), 9216);
}

#[test]
fn lower_threshold_is_clamped_at_bound() {
    let mut vm = ApleVm::starting_with(4096);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 5120);
    assert_eq!(vm.epoch(60_000_000, 1_000_000_000), 4096);
    assert_eq!(vm.epoch(40_000_000, 1_000_000_000), 4096);
    assert_eq!(vm.round([7, 6, 5]), 4096);
    assert_eq!(vm.round([7, 5, 6]), 5120, "and it can be left again");
}

#[test]
fn upper_threshold_is_clamped_at_bound() {
    let mut vm = ApleVm::starting_with(32768);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 32768);
    assert_eq!(vm.epoch(40_000_000, 1_000_000_000), 31744);
    assert_eq!(vm.epoch(60_000_000, 1_000_000_000), 32768);
    assert_eq!(vm.round([7, 6, 5]), 31744, "and it can be left again");
}

#[test]
fn step_near_bound_is_clamped() {
    let mut vm = ApleVm::starting_with(4500);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 5524);
    assert_eq!(vm.epoch(60_000_000, 1_000_000_000), 4096);
    assert_eq!(vm.epoch(40_000_000, 1_000_000_000), 4096);
    let mut vm = ApleVm::starting_with(32000);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 32768);
}

#[test]
fn extreme_bounds_and_steps_do_not_wrap() {
    let mut vm = ApleVm::new(ApleConfig {
        initial: u32::MAX - 1,
        lower: 1,
        upper: u32::MAX,
        step: u32::MAX,
        epoch_exits: 1,
    });
    assert_eq!(vm.epoch(1 << 40, 1 << 50), u32::MAX);
    assert_eq!(vm.epoch(1 << 40, 1 << 50), 1);
    assert_eq!(vm.epoch(1 << 30, 1 << 50), 1);
    assert_eq!(vm.epoch(1 << 40, 1 << 50), u32::MAX);
}

#[test]
fn epoch_has_a_thousand_exits() {
    let mut aple = Aple::new(ApleConfig::default()).unwrap();
    for exit in 1..1000 {
        assert!(!aple.exit(3000_u32), "exit {exit} ends no epoch");
        assert_eq!(aple.threshold(), 8192);
    }
    assert_eq!(aple.exits(), 999);
    assert!(aple.exit(3000_u32));
    assert_eq!(aple.epoch(1_000_000_000_u64), 9216);
    assert_eq!(aple.exits(), 0);
    // (8192 × 1000 + 3000 × 1000) ÷ 10^9
    assert_eq!(aple.inefficiency_ppm(), 11_192);
    assert!(!aple.exit(3000_u32), "the next epoch counts from 0");
}

#[test]
fn vm_without_exits_keeps_threshold() {
    let mut vm = ApleVm::new(ApleConfig::default());
    vm.round([6, 5, 7]);
    for _ in 0..999 {
        assert!(!vm.aple.exit(1_u32));
    }
    // Consumption without exits has no effect.
    vm.consumed += 1 << 50;
    assert_eq!(vm.aple.threshold(), 9216);
    assert!(vm.aple.exit(1_u32));
}

#[test]
fn epoch_without_exits_is_discarded() {
    let mut vm = ApleVm::new(ApleConfig::default());
    assert_eq!(vm.aple.epoch(1_000_000_000_u64), 8192);
    assert_eq!((vm.aple.discarded(), vm.aple.rounds()), (1, 0));
    vm.consumed = 1_000_000_000;
    assert_eq!(vm.round([6, 5, 7]), 9216);
}

#[test]
fn epoch_without_consumption_is_repeated() {
    let mut vm = ApleVm::new(ApleConfig::default());
    vm.epoch(60_000_000, 1_000_000_000);
    assert_eq!(vm.epoch(50_000_000, 0), 9216, "above is tried again");
    assert_eq!(vm.aple.discarded(), 1);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 7168);
    assert_eq!(vm.epoch(70_000_000, 1_000_000_000), 9216);
}

#[test]
fn decreasing_cycles_restart_the_count() {
    let mut vm = ApleVm::new(ApleConfig::default());
    vm.epoch(60_000_000, 1_000_000_000);
    vm.consumed = 0;
    assert_eq!(vm.epoch(50_000_000, 5), 9216, "above is tried again");
    assert_eq!(vm.aple.discarded(), 1);
    assert_eq!(vm.epoch(50_000_000, 1_000_000_000), 7168);
    assert_eq!(vm.aple.inefficiency_ppm(), 50_000);
}

#[test]
fn earlier_consumption_does_not_count() {
    let mut aple =
        Aple::starting_at(ApleConfig { epoch_exits: 1, ..ApleConfig::default() }, 1_u64 << 60)
            .unwrap();
    assert!(aple.exit(1808_u32));
    aple.epoch((1_u64 << 60) + 1_000_000);
    assert_eq!(aple.inefficiency_ppm(), 10_000);
}

#[test]
fn costs_saturate() {
    let mut vm = ApleVm::new(ApleConfig::default());
    // A thousand times this wraps to 0 in 64 bits.
    for exit in 1..=1000 {
        assert_eq!(vm.aple.exit(1_u64 << 63), exit == 1000);
    }
    vm.consumed = 1 << 40;
    assert_eq!(vm.aple.epoch(vm.consumed), 9216);
    assert_eq!(vm.aple.inefficiency_ppm(), u32::MAX);
    vm.epoch(50_000_000, 1_000_000_000);
    assert_eq!(vm.epoch(60_000_000, 1_000_000_000), 9216);
}

#[test]
fn invalid_configs_are_rejected_with_reason() {
    let good = ApleConfig::default();
    let cases = [
        (ApleConfig { lower: 0, ..good }, AplePolicyError::LowerIsZero),
        (ApleConfig { step: 0, ..good }, AplePolicyError::StepIsZero),
        (ApleConfig { epoch_exits: 0, ..good }, AplePolicyError::EpochIsEmpty),
        (
            ApleConfig { initial: 4095, ..good },
            AplePolicyError::OutOfBounds { initial: 4095, lower: 4096, upper: 32768 },
        ),
        (
            ApleConfig { lower: 8000, upper: 7000, ..good },
            AplePolicyError::OutOfBounds { initial: 8192, lower: 8000, upper: 7000 },
        ),
    ];
    for (config, because) in cases {
        assert_eq!(Aple::new(config), Err(because));
    }
    let message = Aple::new(cases[3].0).unwrap_err().to_string();
    assert_eq!(
        message,
        "APLE's initial threshold of 4095 cycles is not within its bounds, 4096 to 32768; \
         lower ≤ initial ≤ upper must hold"
    );
}

/// Returns an inefficiency in parts per million with its minimum at `least`: 2 % there, 1 % more at a distance of 4096.
fn convex(threshold: u32, least: u32) -> u64 {
    let distance = u64::from(threshold.abs_diff(least));
    20_000 + distance * distance * 10_000 / (4096 * 4096)
}

fn rounds_on_the_curve(vm: &mut ApleVm, least: u32, rounds: u32) {
    for _ in 0..3 * rounds {
        let wasted = 1 << 40;
        let consumed = wasted / convex(vm.aple.threshold(), least) * 1_000_000;
        vm.epoch(wasted, consumed);
    }
}

#[test]
fn converges_within_a_step_on_convex_curve() {
    for step in [512, 1024, 2048] {
        for least in (4096..=32768).step_by(487) {
            for initial in [4096, 8192, 32768] {
                let mut vm = ApleVm::new(ApleConfig {
                    initial,
                    step,
                    epoch_exits: 3,
                    ..ApleConfig::default()
                });
                rounds_on_the_curve(&mut vm, least, 28672 / step + 1);
                let base = vm.aple.base();
                assert!(
                    base.abs_diff(least) <= step,
                    "from {initial} by {step}: {base}, not {least}"
                );
                rounds_on_the_curve(&mut vm, least, 5);
                assert_eq!(vm.aple.base(), base, "and stays");
            }
        }
    }
}

#[test]
fn base_follows_moving_minimum() {
    let mut vm = ApleVm::new(ApleConfig::default());
    for least in [20_000, 5_000, 30_000] {
        rounds_on_the_curve(&mut vm, least, 28);
        assert!(vm.aple.base().abs_diff(least) <= 1024);
    }
}

/// Plain model of the description: a list of the round's epochs as (threshold, cost, consumed).
struct Model {
    config: ApleConfig,
    base: u32,
    round: Vec<(u32, u128, u128)>,
    seen: u64,
    exits: u128,
    handling: u128,
}

impl Model {
    fn threshold(&self) -> u32 {
        let ApleConfig { lower, upper, step, .. } = self.config;
        let (base, step) = (i64::from(self.base), i64::from(step));
        let threshold = match self.round.len() {
            0 => base,
            1 => (base + step).min(i64::from(upper)),
            _ => (base - step).max(i64::from(lower)),
        };
        u32::try_from(threshold).unwrap()
    }

    fn epoch(&mut self, vm_cycles: u64) -> u32 {
        let most = u128::from(u64::MAX);
        let threshold = self.threshold();
        let cost = (u128::from(threshold) * self.exits + self.handling.min(most)).min(most);
        let before = std::mem::replace(&mut self.seen, vm_cycles);
        if self.exits > 0 && vm_cycles > before {
            let consumed = u128::from(vm_cycles - before);
            self.round.push((threshold, cost, consumed));
        }
        (self.exits, self.handling) = (0, 0);
        if let [first, second, third] = self.round[..] {
            let less = |a: &(u32, u128, u128), b: &(u32, u128, u128)| a.1 * b.2 <= b.1 * a.2;
            let mut smallest = vec![];
            for epoch in [first, second, third] {
                if less(&epoch, &first) && less(&epoch, &second) && less(&epoch, &third) {
                    smallest.push(epoch.0);
                }
            }
            if let [alone] = smallest[..] {
                self.base = alone;
            }
            self.round.clear();
        }
        self.threshold()
    }
}

#[derive(Clone, Debug)]
enum Epoch {
    /// Exact ratio of wasted to consumed cycles, so that ties are frequent.
    Ratio(u64),
    /// Cost of each exit, and the new value of the VM's cycles.
    Exits(Vec<u64>, u64),
}

fn epochs() -> impl Strategy<Value = Vec<Epoch>> {
    let size = || (any::<u64>(), 0_u32..64).prop_map(|(value, shift)| value >> shift);
    let epoch = prop_oneof![
        3 => (1_u64..=4).prop_map(Epoch::Ratio),
        1 => (prop::collection::vec(size(), 0..6), size())
            .prop_map(|(exits, cycles)| Epoch::Exits(exits, cycles)),
    ];
    prop::collection::vec(epoch, 1..120)
}

fn configs() -> impl Strategy<Value = ApleConfig> {
    (1_u32..60_000, 0_u32..20_000, 0_u32..20_000, 1_u32..30_000).prop_map(
        |(lower, to_initial, to_upper, step)| ApleConfig {
            initial: lower + to_initial,
            lower,
            upper: lower + to_initial + to_upper,
            step,
            epoch_exits: 3,
        },
    )
}

proptest! {
    #[test]
    fn random_epochs_match_the_model(config in configs(), epochs in epochs()) {
        let mut aple = Aple::new(config).unwrap();
        let mut model = Model {
            config,
            base: config.initial,
            round: vec![],
            seen: 0,
            exits: 0,
            handling: 0,
        };
        for epoch in epochs {
            let (exits, vm_cycles) = match epoch {
                Epoch::Ratio(ratio) => {
                    let wasted = 12 * 1_000_000;
                    let spun = 3 * u64::from(aple.threshold());
                    let consumed = model.seen.saturating_add(wasted / ratio);
                    (vec![wasted - spun, 0, 0], consumed)
                }
                Epoch::Exits(exits, vm_cycles) => (exits, vm_cycles),
            };
            for handling in exits {
                model.exits += 1;
                model.handling += u128::from(handling);
                prop_assert_eq!(aple.exit(handling), model.exits >= 3);
            }
            let next = model.epoch(vm_cycles);
            prop_assert_eq!(aple.epoch(vm_cycles), next);
            prop_assert_eq!(aple.threshold(), next);
            prop_assert_eq!(aple.base(), model.base);
            prop_assert!(config.lower <= next && next <= config.upper);
        }
    }
}
