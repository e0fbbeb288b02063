//! The spin detector: worked cases, and the detection rate of synthetic spinning.
//!
//! Counts are synthetic, with seeded noise; counters of real programs are measured elsewhere.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use tandem_model::branch_counters::BranchCounts;
use tandem_policy::flexs::{Basis, SpinDetector};

use super::queues::{SPIN, WORK, counts, detector};

#[test]
fn extremes_are_max_bpi_and_min_bmpr() {
    let mut detector = detector();
    detector.observe(&counts(1000, 100, 50));
    detector.observe(&counts(1000, 300, 90));
    detector.observe(&counts(1000, 200, 20));
    assert_eq!(detector.max_bpi().map(|r| r.as_f64()), Some(0.3));
    assert_eq!(detector.min_bmpr().map(|r| r.as_f64()), Some(0.1));
}

#[test]
fn spinning_differs_from_work() {
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
fn bpi_ten_percent_below_max_is_far() {
    let mut detector = detector();
    detector.observe(&counts(10_000, 1000, 100));
    // mispredicted stays at a tenth of the branches; only bpi moves.
    assert!(!detector.observe(&counts(100_000, 9_000, 900)).busy_waiting);
    assert!(detector.observe(&counts(100_000, 9_010, 901)).busy_waiting);
}

#[test]
fn bmpr_ten_percent_above_min_is_far() {
    let mut detector = detector();
    detector.observe(&counts(100_000, 10_000, 1000));
    assert!(!detector.observe(&counts(100_000, 10_000, 1100)).busy_waiting);
    assert!(detector.observe(&counts(100_000, 10_000, 1099)).busy_waiting);
}

#[test]
fn single_count_at_edge_decides_exactly() {
    let mut detector = detector();
    let whole = u64::MAX / 10 * 10;
    detector.observe(&counts(whole, whole, 0));
    let edge = whole / 10 * 9;
    assert!(!detector.observe(&counts(whole, edge, 0)).busy_waiting);
    assert!(detector.observe(&counts(whole, edge + 1, 0)).busy_waiting);
    // Half as many are far, even if products exceed 128 bits.
    assert!(!detector.observe(&counts(whole, whole / 2, 0)).busy_waiting);
}

#[test]
fn no_instructions_give_no_verdict() {
    let mut detector = detector();
    let verdict = detector.observe(&counts(0, 0, 0));
    assert_eq!(verdict.basis, Basis::NoInstructions);
    assert!(!verdict.busy_waiting && verdict.bpi.is_none());
    assert_eq!(detector.max_bpi(), None);
}

#[test]
fn no_branches_are_no_spinning() {
    let mut detector = detector();
    let verdict = detector.observe(&counts(1000, 0, 0));
    assert_eq!(verdict.basis, Basis::NoBranches);
    assert!(!verdict.busy_waiting && verdict.bmpr.is_none());
    assert_eq!(verdict.bpi.map(|r| r.as_f64()), Some(0.0));
    assert_eq!((detector.max_bpi(), detector.min_bmpr()), (None, None));
}

#[test]
fn zero_min_bmpr_matches_only_zero() {
    let mut detector = detector();
    assert!(detector.observe(&counts(3_000_000, 1_000_000, 0)).busy_waiting);
    let one = detector.observe(&counts(3_000_000, 1_000_000, 1));
    assert!(!one.busy_waiting);
    assert!(detector.observe(&counts(3_000_000, 1_000_000, 0)).busy_waiting);
}

#[test]
fn inconsistent_counts_are_ignored() {
    let mut detector = detector();
    for impossible in [counts(10, 11, 0), counts(10, 5, 6), counts(0, 1, 0)] {
        let verdict = detector.observe(&impossible);
        assert_eq!(verdict.basis, Basis::Inconsistent);
        assert!(!verdict.busy_waiting);
    }
    assert_eq!(detector.max_bpi(), None);
}

#[test]
fn first_sample_spins_without_warm_up() {
    assert!(detector().observe(&WORK).busy_waiting);
    let mut warm = SpinDetector::new(10, 3);
    assert_eq!(warm.observe(&WORK).basis, Basis::WarmingUp);
    assert_eq!(warm.observe(&WORK).basis, Basis::WarmingUp);
    assert_eq!(warm.observe(&WORK).basis, Basis::Compared);
}

#[test]
fn contrast_suppresses_uniform_samples() {
    let mut detector = SpinDetector::new(10, 1).with_contrast(true);
    let nearly = counts(6_100_000, 1_000_000, 20_400);
    for sample in [WORK, nearly, WORK] {
        let verdict = detector.observe(&sample);
        assert_eq!((verdict.busy_waiting, verdict.basis), (false, Basis::Alike));
    }
    // With other samples the extremes tell, also of work that looks as before.
    assert!(detector.observe(&SPIN).busy_waiting);
    let work = detector.observe(&WORK);
    assert_eq!((work.busy_waiting, work.basis), (false, Basis::Compared));
    // A window with nothing but spinning gives no verdict, either.
    detector.clear();
    assert_eq!(detector.observe(&SPIN).basis, Basis::Alike);
}

/// Counts of a loop of `turns` turns, of which one in 1,000 is mispredicted, as synthetic counters show it.
fn turns(turns: u64) -> BranchCounts {
    counts(3 * turns, turns, turns / 1000)
}

#[test]
fn small_sample_does_not_hide_spinning() {
    let large = [turns(1_500_000), WORK, turns(1_499_000)];
    // 1,500 turns have one mispredicted branch, a ratio of 0.00067; 900 have none, and then only 0 would be near.
    for small in [turns(1_500), turns(900)] {
        let mut detector = SpinDetector::new(10, 1).with_least_branches(100_000);
        for sample in large {
            detector.observe(&sample);
        }
        let verdict = detector.observe(&small);
        assert_eq!((verdict.busy_waiting, verdict.basis), (false, Basis::TooFew));
        assert!(!verdict.says_something());
        assert_eq!(detector.min_bmpr().map(|r| r.as_f64()), Some(0.001));
        assert!(detector.observe(&turns(1_500_000)).busy_waiting);
        // In the paper every sample counts.
        let mut of_the_paper = self::detector();
        for sample in large.into_iter().chain([small]) {
            of_the_paper.observe(&sample);
        }
        assert!(!of_the_paper.observe(&turns(1_500_000)).busy_waiting);
    }
}

#[test]
fn small_sample_adds_no_contrast_or_warm_up() {
    let mut detector = SpinDetector::new(10, 2).with_contrast(true).with_least_branches(100_000);
    for _ in 0..5 {
        assert_eq!(detector.observe(&turns(1_500)).basis, Basis::TooFew);
    }
    assert_eq!(detector.observe(&WORK).basis, Basis::WarmingUp);
    assert_eq!(detector.observe(&WORK).basis, Basis::Alike);
    assert_eq!(detector.observe(&turns(1_500)).basis, Basis::TooFew);
    assert_eq!(detector.observe(&WORK).basis, Basis::Alike);
}

/// A number of 0 … 1.
fn unit(random: &mut Pcg64) -> f64 {
    random.next_u32() as f64 / f64::from(u32::MAX)
}

/// 1 − spread … 1 + spread.
fn noise(random: &mut Pcg64, spread: f64) -> f64 {
    1.0 + spread * (2.0 * unit(random) - 1.0)
}

/// Counts of 10 ms with these ratios ± `spread`.
fn noisy(random: &mut Pcg64, bpi: f64, bmpr: f64, spread: f64) -> BranchCounts {
    let instructions = 2e7 * noise(random, 0.3);
    let branches = instructions * bpi * noise(random, spread);
    let mispredicted = branches * bmpr * noise(random, spread);
    counts(instructions as u64, branches as u64, mispredicted as u64)
}

/// Fractions of spinning and of working samples that were judged as spinning.
/// Phases of 1 … 20 samples, a fair window every 1,000.
/// Spinning has bpi 0.33 and bmpr 0.0001, each ± `spread`; work has bpi 0.08 … 0.22 and bmpr 0.002 … 0.032.
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
        let (bpi, bmpr) = if spinning {
            (0.33, 0.0001)
        } else {
            (0.08 + 0.14 * unit(&mut random), 0.002 + 0.03 * unit(&mut random))
        };
        let counted = noisy(&mut random, bpi, bmpr, spread);
        let found = u32::from(detector.observe(&counted).busy_waiting);
        if spinning {
            (spins, hits) = (spins + 1, hits + found);
        } else {
            (works, alarms) = (works + 1, alarms + found);
        }
    }
    println!(
        "spread {spread}: hits {hits} of {spins} spinning samples, \
         false alarms {alarms} of {works} working ones"
    );
    (f64::from(hits) / f64::from(spins), f64::from(alarms) / f64::from(works))
}

#[test]
fn spin_phases_are_found_with_few_alarms() {
    let (hits, alarms) = hits_and_false_alarms(0.03);
    assert!(hits > 0.95, "part of spinning found: {hits}");
    assert!(alarms < 0.02, "part of work taken for spinning: {alarms}");
}

#[test]
fn wide_noise_hides_spinning() {
    // ± 6 % is 12 % between the extremes; the extremes are kept, so not every sample is near both.
    let (hits, alarms) = hits_and_false_alarms(0.06);
    assert!((0.5..0.95).contains(&hits), "part of spinning found: {hits}");
    assert!(alarms < 0.02, "part of work taken for spinning: {alarms}");
}
