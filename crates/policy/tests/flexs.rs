//! FlexS against small run queues: worked cases of the detector and of the search, what must hold for
//! every input, and how well synthetic spinning is told from computing.
//!
//! Counts are made up, with seeded noise; how real programs' counters look is measured elsewhere.

use proptest::prelude::*;
use rand_core::Rng;
use rand_core::SeedableRng;
use rand_pcg::Pcg64;
use tandem_policy::FlexS;
use tandem_policy::FlexSConfig;
use tandem_policy::Nanos;
use tandem_policy::PcpuId;
use tandem_policy::VcpuId;
use tandem_policy::VmId;
use tandem_policy::Weight;
use tandem_policy::flexs::Basis;
use tandem_policy::flexs::BranchCounts;
use tandem_policy::flexs::Outcome;
use tandem_policy::flexs::RunQueues;
use tandem_policy::flexs::SpinDetector;
use tandem_policy::flexs::SwapAction;
use tandem_policy::flexs::SwapError;
use tandem_policy::flexs::SwapReason;
use tandem_policy::flexs::VcpuKey;
use tandem_policy::flexs::VcpuPlace;
use tandem_policy::flexs::may_steal;
use tandem_policy::flexs::swap_plan;

fn vcpu(vm: u64, vcpu: u32) -> VcpuKey {
    VcpuKey {
        vm: VmId(vm),
        vcpu: VcpuId(vcpu),
    }
}

fn counts(instructions: u64, branches: u64, mispredicted: u64) -> BranchCounts {
    BranchCounts {
        instructions,
        branches,
        mispredicted,
    }
}

/// A tight loop: a branch in three instructions, one in 10,000 mispredicted.
const SPIN: BranchCounts = BranchCounts {
    instructions: 3_000_000,
    branches: 1_000_000,
    mispredicted: 100,
};
/// Work: a branch in six instructions, two in a hundred mispredicted.
const WORK: BranchCounts = BranchCounts {
    instructions: 6_000_000,
    branches: 1_000_000,
    mispredicted: 20_000,
};

fn detector() -> SpinDetector {
    SpinDetector::new(10, 1)
}

/// Run queues as a test states them. Everything is allowed unless forbidden.
#[derive(Default)]
struct Queues {
    pcpus: Vec<PcpuId>,
    queued: Vec<Vec<VcpuKey>>,
    forbidden: Vec<(VcpuKey, PcpuId)>,
}

impl Queues {
    fn new(pcpus: u32) -> Queues {
        Queues {
            pcpus: (0..pcpus).map(PcpuId).collect(),
            queued: vec![Vec::new(); pcpus as usize],
            forbidden: Vec::new(),
        }
    }

    fn queue(mut self, pcpu: usize, waiting: &[VcpuKey]) -> Queues {
        self.queued[pcpu] = waiting.to_vec();
        self
    }

    fn forbid(mut self, vcpu: VcpuKey, pcpu: u32) -> Queues {
        self.forbidden.push((vcpu, PcpuId(pcpu)));
        self
    }
}

impl RunQueues for Queues {
    fn pcpus(&self) -> &[PcpuId] {
        &self.pcpus
    }

    fn queued(&self, pcpu: PcpuId) -> &[VcpuKey] {
        let queue = self.queued.get(pcpu.0 as usize);
        queue.map_or(&[], Vec::as_slice)
    }

    fn allowed(&self, vcpu: VcpuKey, pcpu: PcpuId) -> bool {
        !self.forbidden.contains(&(vcpu, pcpu))
    }
}

fn flexs() -> FlexS {
    FlexS::new(FlexSConfig::default(), 1).expect("the defaults are in their ranges")
}

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// vCPU 0 of VM 1, on pCPU 0, is accounted as spinning.
fn spin(flexs: &mut FlexS, now: Nanos, queues: &Queues) -> Outcome {
    flexs.tick(now, vcpu(1, 0), PcpuId(0), &SPIN, queues)
}

fn swapped_with(outcome: &Outcome) -> Option<(u32, u32)> {
    match outcome.action {
        SwapAction::Swap { with, on, .. } => Some((with.0, on.0)),
        SwapAction::GoOn { .. } => None,
    }
}

#[test]
fn the_extremes_are_the_largest_bpi_and_the_smallest_bmpr() {
    let mut detector = detector();
    detector.observe(&counts(1000, 100, 50));
    detector.observe(&counts(1000, 300, 90));
    detector.observe(&counts(1000, 200, 20));
    assert_eq!(detector.max_bpi().map(|r| r.as_f64()), Some(0.3));
    assert_eq!(detector.min_bmpr().map(|r| r.as_f64()), Some(0.1));
}

#[test]
fn spinning_is_told_from_work() {
    let mut detector = detector();
    detector.observe(&SPIN);
    let work = detector.observe(&WORK);
    assert_eq!((work.busy_waiting, work.basis), (false, Basis::Compared));
    assert!(detector.observe(&SPIN).busy_waiting);
}

#[test]
fn both_ratios_must_be_near() {
    let mut detector = detector();
    detector.observe(&SPIN);
    let predictable_work = counts(6_000_000, 1_000_000, 100);
    assert!(!detector.observe(&predictable_work).busy_waiting);
    let erratic_loop = counts(3_000_000, 1_000_000, 20_000);
    assert!(!detector.observe(&erratic_loop).busy_waiting);
}

#[test]
fn exactly_ten_percent_below_the_largest_bpi_is_not_near() {
    let mut detector = detector();
    detector.observe(&counts(10_000, 1000, 100));
    // mispredicted stays at a tenth of the branches; only bpi moves.
    assert!(!detector.observe(&counts(100_000, 9_000, 900)).busy_waiting);
    assert!(detector.observe(&counts(100_000, 9_010, 901)).busy_waiting);
}

#[test]
fn exactly_ten_percent_above_the_smallest_bmpr_is_not_near() {
    let mut detector = detector();
    detector.observe(&counts(100_000, 10_000, 1000));
    assert!(
        !detector
            .observe(&counts(100_000, 10_000, 1100))
            .busy_waiting
    );
    assert!(
        detector
            .observe(&counts(100_000, 10_000, 1099))
            .busy_waiting
    );
}

#[test]
fn one_count_at_the_edge_decides_where_floats_would_round() {
    let mut detector = detector();
    let whole = u64::MAX / 10 * 10;
    detector.observe(&counts(whole, whole, 0));
    let edge = whole / 10 * 9;
    assert!(!detector.observe(&counts(whole, edge, 0)).busy_waiting);
    assert!(detector.observe(&counts(whole, edge + 1, 0)).busy_waiting);
    // Half as many is far, also where products are beyond 128 bits.
    assert!(!detector.observe(&counts(whole, whole / 2, 0)).busy_waiting);
}

#[test]
fn guard_no_instructions_gives_no_verdict_and_moves_no_extreme() {
    let mut detector = detector();
    let verdict = detector.observe(&counts(0, 0, 0));
    assert_eq!(verdict.basis, Basis::NoInstructions);
    assert!(!verdict.busy_waiting && verdict.bpi.is_none());
    assert_eq!(detector.max_bpi(), None);
}

#[test]
fn guard_no_branches_is_no_spinning_so_max_bpi_is_never_0() {
    let mut detector = detector();
    let verdict = detector.observe(&counts(1000, 0, 0));
    assert_eq!(verdict.basis, Basis::NoBranches);
    assert!(!verdict.busy_waiting && verdict.bmpr.is_none());
    assert_eq!(verdict.bpi.map(|r| r.as_f64()), Some(0.0));
    assert_eq!((detector.max_bpi(), detector.min_bmpr()), (None, None));
}

#[test]
fn guard_min_bmpr_0_is_near_0_only() {
    let mut detector = detector();
    assert!(
        detector
            .observe(&counts(3_000_000, 1_000_000, 0))
            .busy_waiting
    );
    let one = detector.observe(&counts(3_000_000, 1_000_000, 1));
    assert!(!one.busy_waiting);
    assert!(
        detector
            .observe(&counts(3_000_000, 1_000_000, 0))
            .busy_waiting
    );
}

#[test]
fn guard_counts_that_contradict_each_other_are_left_out() {
    let mut detector = detector();
    for impossible in [counts(10, 11, 0), counts(10, 5, 6), counts(0, 1, 0)] {
        let verdict = detector.observe(&impossible);
        assert_eq!(verdict.basis, Basis::Inconsistent);
        assert!(!verdict.busy_waiting);
    }
    assert_eq!(detector.max_bpi(), None);
}

#[test]
fn the_first_sample_is_its_own_extreme_unless_there_is_a_warm_up() {
    assert!(detector().observe(&WORK).busy_waiting);
    let mut warm = SpinDetector::new(10, 3);
    assert_eq!(warm.observe(&WORK).basis, Basis::WarmingUp);
    assert_eq!(warm.observe(&WORK).basis, Basis::WarmingUp);
    assert_eq!(warm.observe(&WORK).basis, Basis::Compared);
}

#[test]
fn a_spinning_vcpu_swaps_with_a_waiting_sibling() {
    let queues = Queues::new(2).queue(1, &[vcpu(2, 0), vcpu(1, 3), vcpu(1, 2)]);
    let outcome = spin(&mut flexs(), ms(5), &queues);
    assert_eq!(swapped_with(&outcome), Some((3, 1)));
    assert_eq!(outcome.next_tick, ms(15));
    let SwapAction::Swap { because, .. } = outcome.action else {
        panic!("expected a swap, got {outcome:?}");
    };
    assert_eq!(
        because.to_string(),
        "spins: 0.3333 branches per instruction, 0.0001 of them mispredicted; \
         a sibling with work was found on pCPU 1 of those looked at"
    );
}

#[test]
fn a_working_vcpu_is_left_alone() {
    let queues = Queues::new(2).queue(1, &[vcpu(1, 1)]);
    let mut flexs = flexs();
    spin(&mut flexs, ms(0), &Queues::new(2));
    let outcome = flexs.tick(ms(10), vcpu(1, 0), PcpuId(0), &WORK, &queues);
    let because = SwapReason::NotSpinning {
        basis: Basis::Compared,
    };
    assert_eq!(outcome.action, SwapAction::GoOn { because });
    assert!(!flexs.is_marked(vcpu(1, 0)));
}

#[test]
fn a_sibling_that_is_marked_is_no_candidate() {
    let mut flexs = flexs();
    flexs.tick(ms(0), vcpu(1, 1), PcpuId(1), &SPIN, &Queues::new(2));
    assert!(flexs.is_marked(vcpu(1, 1)));
    let queues = Queues::new(2).queue(1, &[vcpu(1, 1)]);
    assert_eq!(swapped_with(&spin(&mut flexs, ms(1), &queues)), None);
    let queues = Queues::new(2).queue(1, &[vcpu(1, 1), vcpu(1, 2)]);
    assert_eq!(
        swapped_with(&spin(&mut flexs, ms(2), &queues)),
        Some((2, 1))
    );
}

#[test]
fn counters_that_say_nothing_leave_a_mark() {
    let mut flexs = flexs();
    let queues = Queues::new(1);
    spin(&mut flexs, ms(0), &queues);
    flexs.tick(
        ms(10),
        vcpu(1, 0),
        PcpuId(0),
        &BranchCounts::default(),
        &queues,
    );
    assert!(flexs.is_marked(vcpu(1, 0)));
}

#[test]
fn both_must_be_allowed_at_the_others_place() {
    let waits = Queues::new(2).queue(1, &[vcpu(1, 1)]);
    let mine = waits.forbid(vcpu(1, 0), 1);
    let outcome = spin(&mut flexs(), ms(0), &mine);
    let because = SwapReason::NoSibling {
        looked: 0,
        failures: 1,
    };
    assert_eq!(outcome.action, SwapAction::GoOn { because });
    let its = Queues::new(2).queue(1, &[vcpu(1, 1)]).forbid(vcpu(1, 1), 0);
    assert_eq!(swapped_with(&spin(&mut flexs(), ms(0), &its)), None);
}

#[test]
fn two_choices_look_on_two_pcpus_and_find_one_in_seven_twice_as_often() {
    let queues = Queues::new(8).queue(5, &[vcpu(1, 1)]);
    let mut flexs = flexs();
    let mut found = 0;
    for i in 0..7000 {
        let outcome = spin(&mut flexs, ms(i), &queues);
        match outcome.action {
            SwapAction::Swap { on, .. } => {
                assert_eq!(on, PcpuId(5));
                found += 1;
            }
            SwapAction::GoOn {
                because: SwapReason::NoSibling { looked, .. },
            } => assert_eq!(looked, 2),
            other => panic!("expected a search, got {other:?}"),
        }
    }
    // 7000 × 2 ÷ 7, and 5 standard deviations (of 38) to either side.
    assert!((1810..=2190).contains(&found), "found {found} of 2000");
}

#[test]
fn equal_seeds_choose_equally() {
    let queues = Queues::new(8).queue(5, &[vcpu(1, 1)]);
    let (mut one, mut other) = (flexs(), flexs());
    let mut third = FlexS::new(FlexSConfig::default(), 2).expect("in range");
    let mut differs = false;
    for i in 0..100 {
        let outcome = spin(&mut one, ms(i), &queues);
        assert_eq!(outcome, spin(&mut other, ms(i), &queues));
        differs |= outcome != spin(&mut third, ms(i), &queues);
    }
    assert!(differs, "another seed should choose otherwise");
}

#[test]
fn after_failed_searches_the_next_accounting_comes_earlier_to_a_floor() {
    let mut flexs = flexs();
    let nobody = Queues::new(4);
    for failures in 1..=12 {
        let outcome = spin(&mut flexs, ms(100), &nobody);
        let wait = 10u64.saturating_sub(failures).max(1);
        assert_eq!(outcome.next_tick, ms(100 + wait), "failure {failures}");
    }
    let somebody = Queues::new(2).queue(1, &[vcpu(1, 1)]);
    assert_eq!(spin(&mut flexs, ms(100), &somebody).next_tick, ms(110));
    assert_eq!(spin(&mut flexs, ms(100), &nobody).next_tick, ms(109));
}

#[test]
fn a_fair_window_clears_extremes_and_marks() {
    let mut flexs = flexs();
    let nobody = Queues::new(1);
    let work = |flexs: &mut FlexS, now| {
        let outcome = flexs.tick(now, vcpu(1, 1), PcpuId(0), &WORK, &nobody);
        outcome.verdict.busy_waiting
    };
    spin(&mut flexs, ms(0), &nobody);
    assert!(!work(&mut flexs, ms(9_999)));
    assert!(flexs.is_marked(vcpu(1, 0)));
    // Work is now the tightest loop that the window knows of.
    assert!(work(&mut flexs, ms(10_000)));
    assert!(!flexs.is_marked(vcpu(1, 0)));
    spin(&mut flexs, ms(19_999), &nobody);
    assert!(!work(&mut flexs, ms(19_999)));
    // Three windows later: still on the grid of 10 s.
    assert!(work(&mut flexs, ms(45_000)));
    spin(&mut flexs, ms(49_999), &nobody);
    assert!(!work(&mut flexs, ms(49_999)));
    assert!(work(&mut flexs, ms(50_000)));
}

#[test]
fn a_vm_that_is_gone_is_forgotten() {
    let mut flexs = flexs();
    spin(&mut flexs, ms(0), &Queues::new(1));
    flexs.tick(ms(0), vcpu(2, 0), PcpuId(0), &SPIN, &Queues::new(1));
    flexs.forget(VmId(1));
    assert!(!flexs.is_marked(vcpu(1, 0)) && flexs.detector(VmId(1)).is_none());
    assert!(flexs.is_marked(vcpu(2, 0)) && flexs.detector(VmId(2)).is_some());
}

#[test]
fn tunables_out_of_range_are_named() {
    let wrong = |change: fn(&mut FlexSConfig)| {
        let mut config = FlexSConfig::default();
        change(&mut config);
        match FlexS::new(config, 1) {
            Ok(_) => "accepted".to_string(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(
        wrong(|c| c.tick = Nanos::ZERO),
        "tick is 0 ns: expected 100.000 µs … 1.000 s"
    );
    assert_eq!(wrong(|c| c.choices = 0), "choices is 0: expected 1 … 64");
    assert_eq!(
        wrong(|c| c.similarity = 1),
        "similarity is 1: expected 2 … 1000"
    );
    assert_eq!(
        wrong(|c| c.fair_window = ms(9)),
        "fair_window is 9.000 ms: expected 10.000 ms … 3600.000 s"
    );
    assert_eq!(
        wrong(|c| c.earlier = ms(11)),
        "earlier is 11.000 ms: expected 0 ns … 10.000 ms"
    );
    assert_eq!(
        wrong(|c| c.floor = ms(11)),
        "floor is 11.000 ms: expected 100.000 µs … 10.000 ms"
    );
    assert_eq!(wrong(|c| c.warm_up = 0), "warm_up is 0: expected 1 … 1000");
    assert_eq!(wrong(|_| ()), "accepted");
}

#[test]
fn a_swap_exchanges_pcpu_position_and_weight() {
    let place = |vcpu, pcpu, weight, position| VcpuPlace {
        vcpu,
        pcpu: PcpuId(pcpu),
        weight: Weight(weight),
        position,
    };
    let (a, b, c) = (vcpu(1, 0), vcpu(1, 1), vcpu(2, 0));
    let places = [
        place(a, 0, 256.0, 0),
        place(b, 1, 341.0, 2),
        place(c, 1, 9.0, 0),
        place(vcpu(1, 2), 0, 1.0, 1),
    ];
    let swapped = [place(a, 1, 341.0, 2), place(b, 0, 256.0, 0)];
    assert_eq!(swap_plan(&places, a, b), Ok(swapped));
    assert_eq!(swap_plan(&places, a, c), Err(SwapError::NotSiblings(a, c)));
    let on_0 = vcpu(1, 2);
    let same = SwapError::SamePcpu(a, on_0, PcpuId(0));
    assert_eq!(swap_plan(&places, a, on_0), Err(same));
    let nowhere = vcpu(1, 9);
    assert_eq!(
        swap_plan(&places, a, nowhere),
        Err(SwapError::NotPlaced(nowhere))
    );
}

#[test]
fn stealing_takes_only_a_vm_that_is_not_there_yet() {
    assert!(may_steal(VmId(1), []));
    assert!(may_steal(VmId(1), [VmId(2), VmId(3)]));
    assert!(!may_steal(VmId(1), [VmId(2), VmId(1)]));
}

/// A number of 0 … 1.
fn unit(random: &mut Pcg64) -> f64 {
    random.next_u32() as f64 / f64::from(u32::MAX)
}

/// 1 − spread … 1 + spread.
fn noise(random: &mut Pcg64, spread: f64) -> f64 {
    1.0 + spread * (2.0 * unit(random) - 1.0)
}

/// Counts of 10 ms with these ratios, give or take `spread`.
fn noisy(random: &mut Pcg64, bpi: f64, bmpr: f64, spread: f64) -> BranchCounts {
    let instructions = 2e7 * noise(random, 0.3);
    let branches = instructions * bpi * noise(random, spread);
    let mispredicted = branches * bmpr * noise(random, spread);
    counts(instructions as u64, branches as u64, mispredicted as u64)
}

/// Parts of spinning and of working samples that were taken for spinning. Phases of 1 … 20 samples, a
/// fair window every 1,000; spinning has bpi 0.33 and bmpr 0.0001, give or take `spread`, work anything
/// of bpi 0.08 … 0.22 and bmpr 0.002 … 0.032.
fn hits_and_false_alarms(spread: f64) -> (f64, f64) {
    let mut random = Pcg64::seed_from_u64(7);
    let mut detector = detector();
    let (mut spins, mut hits, mut works, mut alarms) = (0u32, 0u32, 0u32, 0u32);
    let (mut left, mut spinning) = (0, false);
    for sample in 0..20_000 {
        if sample % 1000 == 0 {
            detector.clear();
        }
        if left == 0 {
            spinning = !spinning;
            left = 1 + random.next_u32() % 20;
        }
        left -= 1;
        let (bpi, bmpr) = match spinning {
            true => (0.33, 0.0001),
            false => (
                0.08 + 0.14 * unit(&mut random),
                0.002 + 0.03 * unit(&mut random),
            ),
        };
        let counted = noisy(&mut random, bpi, bmpr, spread);
        let found = u32::from(detector.observe(&counted).busy_waiting);
        match spinning {
            true => (spins, hits) = (spins + 1, hits + found),
            false => (works, alarms) = (works + 1, alarms + found),
        }
    }
    println!(
        "spread {spread}: hits {hits} of {spins} spinning samples, \
         false alarms {alarms} of {works} working ones"
    );
    (
        f64::from(hits) / f64::from(spins),
        f64::from(alarms) / f64::from(works),
    )
}

#[test]
fn spin_phases_among_work_are_found_with_few_false_alarms() {
    let (hits, alarms) = hits_and_false_alarms(0.03);
    assert!(hits > 0.95, "part of spinning found: {hits}");
    assert!(alarms < 0.02, "part of work taken for spinning: {alarms}");
}

#[test]
fn noise_wider_than_ten_percent_between_extremes_hides_spinning() {
    // ± 6 % is 12 % between the extremes; the extremes are kept, so not every sample is near both.
    let (hits, alarms) = hits_and_false_alarms(0.06);
    assert!(
        (0.5..0.95).contains(&hits),
        "part of spinning found: {hits}"
    );
    assert!(alarms < 0.02, "part of work taken for spinning: {alarms}");
}

/// Counts that can be, small enough to be scaled by 1,000.
fn possible() -> impl Strategy<Value = BranchCounts> {
    (1u64..1 << 40, 0u64..=1000, 0u64..=1000).prop_map(|(instructions, bpi, bmpr)| {
        let branches = instructions * bpi / 1000;
        counts(instructions, branches, branches * bmpr / 1000)
    })
}

/// vCPUs on pCPUs, each with a weight.
fn placed() -> impl Strategy<Value = Vec<VcpuPlace>> {
    prop::collection::vec((0u64..3, 0u32..4, 1u32..1000), 2..16).prop_map(|places| {
        let place = |(i, (vm, pcpu, weight)): (usize, (u64, u32, u32))| VcpuPlace {
            vcpu: vcpu(vm, i as u32),
            pcpu: PcpuId(pcpu),
            weight: Weight(f64::from(weight)),
            position: i as u32,
        };
        places.into_iter().enumerate().map(place).collect()
    })
}

/// On each pCPU the weight and the VMs, ascending, and the positions.
fn per_pcpu(places: &[VcpuPlace]) -> Vec<(f64, Vec<VmId>, Vec<u32>)> {
    let on = |pcpu| {
        let here = || {
            places
                .iter()
                .filter(move |place| place.pcpu == PcpuId(pcpu))
        };
        let mut vms: Vec<VmId> = here().map(|place| place.vcpu.vm).collect();
        vms.sort();
        let mut positions: Vec<u32> = here().map(|place| place.position).collect();
        positions.sort();
        (here().map(|place| place.weight.0).sum(), vms, positions)
    };
    (0..4).map(on).collect()
}

proptest! {
    #[test]
    fn scaling_all_counts_changes_no_verdict(
        samples in prop::collection::vec((possible(), 1u64..1000), 1..40),
    ) {
        let (mut plain, mut scaled) = (detector(), detector());
        for (sample, by) in samples {
            let BranchCounts { instructions, branches, mispredicted } = sample;
            let larger = counts(instructions * by, branches * by, mispredicted * by);
            prop_assert_eq!(plain.observe(&sample), scaled.observe(&larger));
        }
    }

    #[test]
    fn verdicts_follow_the_formula_with_floors(
        samples in prop::collection::vec((1u128..300, 0u128..300, 0u128..300), 1..40),
    ) {
        let mut detector = detector();
        let (mut max_bpi, mut min_bmpr) = ((0, 1), (1, 1));
        for (i, b, m) in samples {
            let (b, m) = (b.min(i), m.min(b).min(i));
            let verdict = detector.observe(&counts(i as u64, b as u64, m as u64));
            if b == 0 {
                prop_assert!(!verdict.busy_waiting);
                continue;
            }
            if b * max_bpi.1 > max_bpi.0 * i {
                max_bpi = (b, i);
            }
            if m * min_bmpr.1 < min_bmpr.0 * b {
                min_bmpr = (m, b);
            }
            // (B/I − b/i) × 10 ÷ (B/I) over the common denominator, and likewise for bmpr.
            let far_bpi = (max_bpi.0 * i - b * max_bpi.1) * 10 / (max_bpi.0 * i);
            let above = m * min_bmpr.1 - min_bmpr.0 * b;
            let far_bmpr = match min_bmpr.0 * b {
                0 => above,
                least => above * 10 / least,
            };
            prop_assert_eq!(verdict.busy_waiting, far_bpi == 0 && far_bmpr == 0);
        }
    }

    #[test]
    fn no_counts_make_the_detector_panic(
        samples in prop::collection::vec(any::<(u64, u64, u64)>(), 1..20),
        similarity in any::<u32>(),
        warm_up in any::<u32>(),
    ) {
        let mut detector = SpinDetector::new(similarity, warm_up);
        for (i, b, m) in samples {
            let verdict = detector.observe(&counts(i, b, m));
            prop_assert!(verdict.busy_waiting <= verdict.ratios().is_some());
        }
    }

    #[test]
    fn a_swap_keeps_each_pcpus_weight_positions_and_vms(
        places in placed(),
        a in any::<prop::sample::Index>(),
        b in any::<prop::sample::Index>(),
    ) {
        let (a, b) = (a.get(&places).vcpu, b.get(&places).vcpu);
        let mut after = places.clone();
        if let Ok(swapped) = swap_plan(&places, a, b) {
            for place in &mut after {
                for new in swapped {
                    if new.vcpu == place.vcpu {
                        *place = new;
                    }
                }
            }
            prop_assert_ne!(&after, &places);
        } else {
            let pcpu = |vcpu| places.iter().find(|place| place.vcpu == vcpu).map(|place| place.pcpu);
            prop_assert!(a.vm != b.vm || pcpu(a) == pcpu(b));
        }
        prop_assert_eq!(per_pcpu(&after), per_pcpu(&places));
    }

    #[test]
    fn a_swap_is_only_with_an_unmarked_waiting_sibling_that_is_allowed(
        places in placed(),
        spinning in prop::collection::vec(any::<bool>(), 16),
        forbidden in prop::collection::vec((0usize..16, 0u32..4), 0..8),
        seed in any::<u64>(),
    ) {
        let mut flexs = FlexS::new(FlexSConfig::default(), seed).expect("in range");
        let mut queues = Queues::new(4);
        for (i, pcpu) in forbidden {
            if let Some(place) = places.get(i) {
                queues.forbidden.push((place.vcpu, PcpuId(pcpu)));
            }
        }
        // So that work is not its own extreme.
        for vm in 0..3 {
            flexs.tick(Nanos::ZERO, vcpu(vm, 99), PcpuId(0), &SPIN, &Queues::new(4));
        }
        for (place, &spins) in places.iter().zip(&spinning).skip(1) {
            let sample = if spins { SPIN } else { WORK };
            flexs.tick(Nanos::ZERO, place.vcpu, place.pcpu, &sample, &Queues::new(4));
            queues.queued[place.pcpu.0 as usize].push(place.vcpu);
        }
        let me = places[0];
        let outcome = flexs.tick(ms(1), me.vcpu, me.pcpu, &SPIN, &queues);
        if let Some((with, on)) = swapped_with(&outcome) {
            let sibling = vcpu(me.vcpu.vm.0, with);
            prop_assert!(queues.queued(PcpuId(on)).contains(&sibling));
            prop_assert!(!flexs.is_marked(sibling));
            prop_assert!(queues.allowed(sibling, me.pcpu));
            prop_assert!(queues.allowed(me.vcpu, PcpuId(on)));
            prop_assert!(swap_plan(&places, me.vcpu, sibling).is_ok());
        }
    }
}
