//! Gleaner's controllers: worked cases, programs modelled in a few lines, and properties for every input.

use proptest::prelude::*;
use tandem_model::Nanos;
use tandem_policy::gleaner::consolidation::Because;
use tandem_policy::gleaner::{
    Averages, Consolidation, ConsolidationConfig, Observation, Retention, RetentionConfig,
    VcpuPeriod, retention,
};

const PERIOD: Nanos = Nanos::from_millis(100);

/// `vcpus` equal vCPUs that compute and idle for these times (us) in turn; their threads switch after `grain_us`.
fn alike(vcpus: u32, computes_us: u64, idles_us: u64, grain_us: u64) -> Observation {
    let rounds = PERIOD.0 / ((computes_us + idles_us) * 1000);
    let work = rounds * computes_us * 1000;
    let vcpu = VcpuPeriod {
        work: Nanos(work),
        idle: Nanos(rounds * idles_us * 1000),
        idle_periods: rounds,
        stolen: Nanos::ZERO,
    };
    Observation {
        period: PERIOD,
        vcpus: vec![vcpu; vcpus as usize],
        switches: u64::from(vcpus) * work / (grain_us * 1000),
        user: Nanos(u64::from(vcpus) * work / 2),
        waiting: Nanos::ZERO,
        ..Observation::default()
    }
}

fn paper(vcpus: u32) -> Consolidation {
    Consolidation::new(vcpus, ConsolidationConfig::paper())
}

#[test]
fn worked_case_a_three_vcpus_become_two() {
    let mut controller = paper(3);
    let choice = controller.decide(&alike(3, 200, 100, 100));
    assert_eq!((choice.active, choice.because), (2, Because::Fits));
}

#[test]
fn worked_case_b_coarse_pieces_stay() {
    let mut controller = paper(3);
    let choice = controller.decide(&alike(3, 200, 100, 200));
    assert_eq!(choice.active, 3);
    assert!(matches!(choice.because, Because::TooCoarse { .. }));
}

#[test]
fn without_room_nothing_is_consolidated() {
    let mut controller = paper(3);
    let choice = controller.decide(&alike(3, 300, 100, 100));
    assert_eq!(choice.active, 3);
    assert!(matches!(choice.because, Because::NoRoom { .. }));
}

#[test]
fn time_slice_bounds_grain() {
    let choice = paper(3).decide(&alike(3, 5_000, 20_000, 5_000));
    let Because::TooCoarse { fits, .. } = choice.because else {
        panic!("{choice:?}");
    };
    assert_eq!(fits, 4e6);
}

/// The same work on `vcpus` vCPUs.
fn on_vcpus(observed: &Observation, vcpus: u32) -> Observation {
    let sum = |of: fn(&VcpuPeriod) -> u64| observed.vcpus.iter().map(of).sum::<u64>();
    let each = sum(|vcpu| vcpu.work.0) / u64::from(vcpus);
    let vcpu = VcpuPeriod {
        work: Nanos(each.min(PERIOD.0)),
        idle: Nanos(PERIOD.0.saturating_sub(each)),
        idle_periods: sum(|vcpu| vcpu.idle_periods) / u64::from(vcpus),
        stolen: Nanos::ZERO,
    };
    Observation { vcpus: vec![vcpu; vcpus as usize], ..observed.clone() }
}

#[test]
fn losing_step_is_reverted_and_factor_tightened() {
    let all = alike(4, 30, 100, 20);
    let mut controller = paper(4);
    assert_eq!(controller.decide(&all).because, Because::Fits);
    let fewer = on_vcpus(&all, 3);
    assert_eq!(controller.decide(&fewer).because, Because::Settling);
    let mut worse = fewer.clone();
    for vcpu in &mut worse.vcpus {
        vcpu.work = Nanos(vcpu.work.0 / 2);
    }
    let choice = controller.decide(&worse);
    assert!(matches!(choice.because, Because::Lost { ratio } if ratio < 0.6));
    assert_eq!(choice.active, 4);
    // No vCPU was full: ρ ← 0.9 × 30 ÷ (3 × 100).
    let (load, granularity) = controller.factors();
    assert!((load - 0.09).abs() < 1e-9 && granularity == 1.0, "{load}");
    assert_eq!(controller.decide(&all).because, Because::Resting);
    assert_eq!(controller.decide(&all).active, 4);
}

#[test]
fn a_full_vcpu_tightens_the_other_factor() {
    let all = alike(2, 40, 100, 20);
    let mut controller = paper(2);
    assert_eq!(controller.decide(&all).active, 1);
    controller.decide(&on_vcpus(&all, 1));
    let mut full = on_vcpus(&all, 1);
    full.vcpus[0].work = PERIOD;
    full.vcpus[0].idle = Nanos::ZERO;
    let mut before = full.clone();
    before.vcpus[0].work = Nanos(PERIOD.0 * 2 / 5);
    // More utilization than before: kept by the paper's judgement.
    let mut kept = controller.clone();
    assert!(matches!(
        kept.decide(&full).because,
        Because::Kept { ratio } if ratio > 1.0
    ));
    // By progress it is a loss if less was done in user mode.
    let mut controller =
        Consolidation::new(2, ConsolidationConfig { confirm: 1, ..ConsolidationConfig::default() });
    controller.decide(&all);
    controller.decide(&full);
    full.user = Nanos(all.user.0 / 2);
    let choice = controller.decide(&full);
    assert_eq!(choice.active, 2);
    assert!(matches!(choice.because, Because::Lost { .. }));
    // η ← 0.9 × 20 ÷ 100.
    let (load, granularity) = controller.factors();
    assert!((granularity - 0.18).abs() < 1e-9 && load == 1.0);
}

/// Two threads that hand each other a token. On two vCPUs a hand-over takes 29 us, 2.6 us of them
/// computation; on one vCPU only the latter.
fn token(active: u32) -> Observation {
    let handed = match active {
        1 => PERIOD.0 / 2_600,
        _ => PERIOD.0 / 29_000,
    };
    let work = handed * 2_600;
    let (idle, periods) = match active {
        1 => (Nanos::ZERO, 0),
        _ => (Nanos(PERIOD.0 - work / 2), handed / 2),
    };
    let vcpu = VcpuPeriod {
        work: Nanos(work / u64::from(active)),
        idle,
        idle_periods: periods,
        stolen: Nanos::ZERO,
    };
    Observation {
        period: PERIOD,
        vcpus: vec![vcpu; active as usize],
        switches: handed,
        user: Nanos(handed * 300),
        waiting: Nanos::ZERO,
        ..Observation::default()
    }
}

/// Four threads that compute and pass messages: two vCPUs' worth of work, and half of it on one.
fn messages(active: u32) -> Observation {
    let vcpu = VcpuPeriod {
        work: Nanos(PERIOD.0 * 97 / 100),
        idle: Nanos(PERIOD.0 * 3 / 100),
        idle_periods: 300,
        stolen: Nanos::ZERO,
    };
    Observation {
        period: PERIOD,
        vcpus: vec![vcpu; active as usize],
        switches: 5_000 * u64::from(active),
        user: Nanos(20_000_000 * u64::from(active)),
        waiting: Nanos(PERIOD.0 * 2),
        ..Observation::default()
    }
}

/// The number of vCPUs after 3 s, which then stays the same.
fn settles(program: impl Fn(u32) -> Observation, vcpus: u32) -> u32 {
    let mut controller = Consolidation::new(vcpus, ConsolidationConfig::default());
    for _ in 0..30 {
        controller.decide(&program(controller.active()));
    }
    let settled = controller.active();
    for _ in 0..5 {
        let choice = controller.decide(&program(controller.active()));
        assert_eq!(choice.active, settled, "{}", choice.because);
    }
    settled
}

#[test]
fn token_moves_to_one_vcpu_messages_stay() {
    assert_eq!(settles(token, 2), 1);
    assert_eq!(settles(messages, 2), 2);
}

#[test]
fn a_program_that_changes_is_followed() {
    let mut controller = Consolidation::new(2, ConsolidationConfig::default());
    for _ in 0..10 {
        controller.decide(&token(controller.active()));
    }
    assert_eq!(controller.active(), 1);
    // Its threads compute now: one vCPU is full, and the grain differs.
    let mut computes = messages(1);
    computes.switches = 10;
    let choice = controller.decide(&computes);
    assert_eq!((choice.active, choice.because), (2, Because::MajorChange));
}

#[test]
fn more_threads_on_full_vcpu_are_a_change() {
    let mut controller = Consolidation::new(2, ConsolidationConfig::default());
    for _ in 0..10 {
        controller.decide(&token(controller.active()));
    }
    let mut crowded = token(1);
    crowded.waiting = Nanos(PERIOD.0 * 3 / 2);
    assert_eq!(controller.decide(&crowded).because, Because::MajorChange);
}

#[test]
fn papers_full_vcpu_always_restores_all() {
    let counts = |config: ConsolidationConfig| {
        let mut controller = Consolidation::new(2, config);
        let mut counts = Vec::new();
        for _ in 0..30 {
            counts.push(controller.decide(&token(controller.active())).active);
        }
        counts
    };
    let ours = counts(ConsolidationConfig::default());
    assert!(ours[10..].iter().all(|&active| active == 1), "{ours:?}");
    // The vCPU with both threads is full: back to two, and over again.
    let papers = counts(ConsolidationConfig::paper());
    assert!(papers[10..].contains(&1), "{papers:?}");
    assert!(papers[10..].contains(&2), "{papers:?}");
}

#[test]
fn paper_ignores_waiting_threads() {
    let lightly = alike(4, 30, 100, 20);
    let after = |config: ConsolidationConfig| {
        let mut controller = Consolidation::new(4, config);
        let mut observed = lightly.clone();
        while controller.active() == 4 {
            controller.decide(&observed);
        }
        // It settles, is judged, and becomes the reference.
        for _ in 0..2 {
            observed = on_vcpus(&lightly, controller.active());
            controller.decide(&observed);
        }
        let mut crowded = observed;
        crowded.waiting = Nanos(PERIOD.0 * 2);
        controller.decide(&crowded).because
    };
    assert_eq!(after(ConsolidationConfig::default()), Because::MajorChange);
    assert_ne!(after(ConsolidationConfig::paper()), Because::MajorChange);
}

#[test]
fn failed_step_is_retried_after_growing_rests() {
    let config = ConsolidationConfig { rest: 4, ..ConsolidationConfig::default() };
    let mut controller = Consolidation::new(2, config);
    let all = alike(2, 10, 100, 5);
    let mut worse = on_vcpus(&all, 1);
    worse.user = Nanos(all.user.0 / 2);
    let mut tried = Vec::new();
    for period in 0..60 {
        let observed = if controller.active() == 1 { &worse } else { &all };
        if controller.decide(observed).because == Because::Fits {
            tried.push(period);
        }
    }
    assert!(tried.len() >= 4, "{tried:?}");
    let rests: Vec<i32> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(rests.is_sorted_by(|a, b| a < b), "{rests:?}");
}

/// Runs `program` for some periods; returns the periods with a step, and those with a harmful one.
fn steps(
    controller: &mut Consolidation,
    periods: usize,
    program: impl Fn(usize, u32) -> Observation,
) -> (Vec<usize>, Vec<usize>) {
    let (mut taken, mut lost) = (Vec::new(), Vec::new());
    for period in 0..periods {
        let because = controller.decide(&program(period, controller.active())).because;
        match because {
            Because::Fits => taken.push(period),
            Because::Lost { .. } => lost.push(period),
            _ => {}
        }
    }
    (taken, lost)
}

#[test]
fn returned_vcpus_are_no_other_workload() {
    let all = alike(2, 10, 100, 5);
    let mut worse = on_vcpus(&all, 1);
    worse.user = Nanos(all.user.0 / 2);
    // When the other vCPU is back, threads are still on one vCPU for a moment and catch up on their work.
    let mut returning = alike(2, 60, 40, 20);
    returning.vcpus[0] = VcpuPeriod { work: PERIOD, ..VcpuPeriod::default() };
    for long in 1..3 {
        let mut controller = Consolidation::new(2, ConsolidationConfig::default());
        let since = std::cell::Cell::new(usize::MAX);
        let (taken, lost) = steps(&mut controller, 40, |period, active| {
            if active == 1 {
                since.set(period + 1);
                return worse.clone();
            }
            if period < since.get().saturating_add(long) && since.get() <= period {
                returning.clone()
            } else {
                all.clone()
            }
        });
        assert_eq!(taken.len(), 1, "{long}: {taken:?}");
        assert_eq!(lost.len(), 1, "{long}: {lost:?}");
    }
}

#[test]
fn recurring_workload_is_not_harmed_each_time() {
    // Both fit on one vCPU by the conditions, and get half as much done there.
    let phases = [alike(2, 10, 100, 5), alike(2, 50, 100, 40)];
    let program = |period: usize, active: u32| {
        let all = &phases[period / 12 % 2];
        let mut worse = on_vcpus(all, 1);
        worse.user = Nanos(all.user.0 / 2);
        if active == 1 { worse } else { all.clone() }
    };
    let config = ConsolidationConfig { granularity_factor: 2.0, ..ConsolidationConfig::default() };
    let mut controller = Consolidation::new(2, config);
    let (_, lost) = steps(&mut controller, 600, program);
    // A minute with fifty changes: each phase after 0, 5, 15 and 35 s.
    assert!((2..=8).contains(&lost.len()), "{lost:?}");
}

#[test]
fn a_workload_that_sleeps_changes_nothing() {
    let mut controller = Consolidation::new(2, ConsolidationConfig::default());
    for _ in 0..10 {
        controller.decide(&token(controller.active()));
    }
    let mut asleep = token(1);
    asleep.vcpus[0] = VcpuPeriod { idle: PERIOD, ..VcpuPeriod::default() };
    for _ in 0..20 {
        let choice = controller.decide(&asleep);
        assert_eq!((choice.active, choice.because), (1, Because::Asleep));
    }
}

#[test]
fn retention_covers_two_short_idle_periods() {
    let mut retention = Retention::new(RetentionConfig::default());
    let mut after = |idles_us: u64| retention.decide(&alike(2, idles_us, idles_us, 5)).time;
    assert_eq!(after(20), Nanos(50_000));
    assert_eq!(after(30), Nanos(100_000));
    assert_eq!(after(150), Nanos(400_000));
    // Hysteresis: between half of the maximum retention and all of it.
    assert_eq!(after(1_500), Nanos(2_000_000));
    assert_eq!(after(2_100), Nanos::ZERO);
    assert_eq!(after(1_500), Nanos::ZERO);
    assert_eq!(after(800), Nanos(1_600_000));
}

#[test]
fn polling_workload_is_not_retained() {
    let mut retention = Retention::new(RetentionConfig::default());
    let choice = retention.decide(&alike(2, 3, 200, 1));
    assert_eq!(choice.time, Nanos::ZERO);
    assert!(matches!(choice.because, retention::Because::LittleWork { .. }));
}

#[test]
fn stolen_time_ends_retention_until_calm() {
    let mut retention = Retention::new(RetentionConfig::default());
    let calm = alike(2, 10, 100, 5);
    let retained = retention.decide(&calm).time;
    assert_eq!(retained, Nanos(200_000));
    let mut stolen = calm.clone();
    stolen.vcpus[0].stolen = Nanos(PERIOD.0 / 20);
    let choice = retention.decide(&stolen);
    assert_eq!(choice.time, Nanos::ZERO);
    assert!(matches!(
        choice.because,
        retention::Because::Stolen { part } if (part - 0.025).abs() < 1e-9
    ));
    for _ in 0..20 {
        assert_eq!(retention.decide(&calm).time, Nanos::ZERO);
    }
    assert_eq!(retention.decide(&calm).time, retained);
}

#[test]
fn papers_retention_is_always_a_round_trip() {
    let mut retention = Retention::new(RetentionConfig::paper());
    let mut stolen = alike(2, 10, 100, 5);
    stolen.vcpus[0].stolen = Nanos(PERIOD.0 / 2);
    let seen = [alike(2, 10, 100, 5), alike(2, 10, 5_000, 5), alike(2, 3, 200, 1), stolen];
    for observed in seen {
        let choice = retention.decide(&observed);
        assert_eq!(choice.time, Nanos(50_000));
        assert_eq!(choice.because, retention::Because::Fixed);
    }
}

fn vcpu_period() -> impl Strategy<Value = VcpuPeriod> {
    (0..=PERIOD.0, 0..=PERIOD.0, 0..10_000_u64, 0..=PERIOD.0).prop_map(
        |(work, idle, idle_periods, stolen)| VcpuPeriod {
            work: Nanos(work),
            idle: Nanos(idle.min(PERIOD.0 - work)),
            idle_periods,
            stolen: Nanos(stolen),
        },
    )
}

fn observation(vcpus: usize) -> impl Strategy<Value = Observation> {
    (
        proptest::collection::vec(vcpu_period(), vcpus),
        0..100_000_u64,
        0..=PERIOD.0,
        0..=PERIOD.0 * 8,
    )
        .prop_map(|(vcpus, switches, user, waiting)| Observation {
            period: PERIOD,
            vcpus,
            switches,
            user: Nanos(user),
            waiting: Nanos(waiting),
            ..Observation::default()
        })
}

/// 16 threads that lose by being many: each additional vCPU makes all of them slower.
fn better_on_few(active: u32) -> Observation {
    let mut observed = alike(active, 60, 700, 50);
    observed.user = Nanos(20_000_000 * 16 / u64::from(active.max(4)));
    observed
}

#[test]
fn many_vcpus_are_halved_until_harmful() {
    let mut controller = Consolidation::new(16, ConsolidationConfig::default());
    let mut counts = vec![16];
    for _ in 0..30 {
        let mut observed = better_on_few(controller.active());
        if controller.active() < 4 {
            observed.user = Nanos(observed.user.0 * u64::from(controller.active()) / 4);
        }
        let active = controller.decide(&observed).active;
        if counts.last() != Some(&active) {
            counts.push(active);
        }
    }
    assert_eq!(counts, [16, 8, 4, 2, 4, 3, 4]);
}

proptest! {
    /// For any observations: a period removes at most half of the vCPUs (the paper: one) and
    /// never all, factors stay within 0 … 1, and no step violates the paper's conditions.
    #[test]
    fn steps_are_small_and_meet_both_conditions(
        seen in proptest::collection::vec(observation(8), 1..60),
        is_paper in any::<bool>(),
    ) {
        let config = if is_paper { ConsolidationConfig::paper() } else { ConsolidationConfig::default() };
        let mut controller = Consolidation::new(8, config);
        for mut observed in seen {
            let before = controller.active();
            observed.vcpus.truncate(before as usize);
            let choice = controller.decide(&observed);
            prop_assert!((1..=8).contains(&choice.active));
            let least = if is_paper { before - 1 } else { before.div_ceil(2) };
            prop_assert!(choice.active >= least);
            let (after_load, after_granularity) = controller.factors();
            prop_assert!(after_load > 0.0 && after_load <= 1.0);
            prop_assert!(after_granularity > 0.0 && after_granularity <= 1.0);
            if choice.active < before {
                let averages = Averages::of(&observed);
                let room = f64::from(before - 1) * averages.idles;
                prop_assert!(averages.computes <= room);
                prop_assert!(averages.grain <= averages.idles);
                prop_assert!(averages.grain <= 4e6);
            }
        }
    }

    /// Retention is zero, or at least the measured cost and at most the maximum; and always zero while time is stolen.
    #[test]
    fn retention_is_bounded(seen in proptest::collection::vec(observation(2), 1..60)) {
        let mut retention = Retention::new(RetentionConfig::default());
        for observed in seen {
            let choice = retention.decide(&observed);
            prop_assert!(choice.time.0 == 0 || (50_000..=2_000_000).contains(&choice.time.0));
            if Averages::of(&observed).stolen > 0.01 {
                prop_assert_eq!(choice.time, Nanos::ZERO);
            }
        }
    }
}
