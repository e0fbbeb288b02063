//! Both remedies on one VM of two vCPUs: models of programs that were measured on a real one, in a few lines each.

use tandem_model::Nanos;
use tandem_policy::gleaner::controller::Because;
use tandem_policy::gleaner::{
    Controller, ControllerConfig, Observation, VcpuPeriod, consolidation,
};

const PERIOD: Nanos = Nanos::from_millis(100);
const TICK: Nanos = Nanos::from_millis(4);

/// `active` vCPUs with this busy fraction and this number of idle periods each.
fn seen(active: u32, busy: f64, idle_periods: u64, switches: u64, calls: u64) -> Observation {
    let work = (PERIOD.0 as f64 * busy) as u64;
    let vcpu = VcpuPeriod {
        work: Nanos(work),
        idle: Nanos(PERIOD.0 - work),
        idle_periods,
        stolen: Nanos::ZERO,
    };
    Observation {
        period: PERIOD,
        vcpus: vec![vcpu; active as usize],
        switches,
        calls,
        tick: TICK,
        ..Observation::default()
    }
}

/// Two threads and a pipe: 60 us a round, 12 with retention, 8 on a single vCPU.
fn pipe(active: u32, retained: bool) -> Observation {
    match (active, retained) {
        (1, _) => seen(1, 1.0, 0, 25_000, 50_000),
        (_, true) => seen(2, 0.6, 8_000, 16_000, 32_000),
        (_, false) => seen(2, 0.48, 1_000, 2_600, 5_200),
    }
}

/// Threads that crowd around a lock: hardly idle, and slower with retention or on fewer vCPUs.
fn crowd(active: u32, retained: bool) -> Observation {
    match (active, retained) {
        (1, _) => seen(1, 1.0, 0, 35_000, 0),
        (_, true) => seen(2, 0.75, 1_000, 12_000, 0),
        (_, false) => seen(2, 0.85, 500, 13_000, 0),
    }
}

/// Threads that wait for something slow: idle, in pieces too long for retention, whatever the settings.
fn sleeper(active: u32, _: bool) -> Observation {
    seen(active, 0.2, 3, 10, 0)
}

/// A program with short idle periods that gets the same done whatever the settings.
fn indifferent(active: u32, retained: bool) -> Observation {
    let busy = 0.6 / f64::from(active);
    seen(active, busy, if retained { 900 } else { 800 }, 2_000, 4_000)
}

fn controller() -> Controller {
    Controller::new(2, ControllerConfig::default())
}

/// Runs a program for some periods; returns the settings after each.
fn run(
    controller: &mut Controller,
    program: fn(u32, bool) -> Observation,
    periods: usize,
) -> Vec<(u32, bool)> {
    let mut settings = Vec::new();
    for _ in 0..periods {
        let retained = controller.retention_time() > Nanos::ZERO;
        controller.decide(&program(controller.active(), retained));
        settings.push((controller.active(), controller.retention_time() > Nanos::ZERO));
    }
    settings
}

#[test]
fn pipe_is_retained_then_consolidated() {
    let settings = run(&mut controller(), pipe, 100);
    let retained = settings.iter().position(|&(_, retained)| retained);
    let consolidated = settings.iter().position(|&(active, _)| active == 1);
    assert!(retained.is_some_and(|period| period < 3), "{settings:?}");
    assert!(consolidated.is_some_and(|period| period < 10), "{settings:?}");
    assert!(settings[10..].iter().all(|&(active, _)| active == 1));
}

/// Two threads and a futex on a VM that is fast except for waking.
/// With retention it is busy for most of the time, mostly with the cost of waking.
fn costly(active: u32, retained: bool) -> Observation {
    match (active, retained) {
        (1, _) => seen(1, 1.0, 0, 60_000, 50_000),
        (_, true) => seen(2, 0.8, 18_000, 36_000, 36_000),
        (_, false) => seen(2, 0.3, 1_000, 2_000, 6_000),
    }
}

/// The same program with a smaller gain by retention.
fn cheap(active: u32, retained: bool) -> Observation {
    match (active, retained) {
        (_, false) if active > 1 => seen(2, 0.6, 10_000, 20_000, 20_000),
        _ => costly(active, retained),
    }
}

#[test]
fn costly_wakeups_leave_room_with_retention() {
    let config = || ControllerConfig {
        // Consolidation is tried only after retention.
        consolidation: tandem_policy::gleaner::ConsolidationConfig {
            confirm: 4,
            ..ControllerConfig::default().consolidation
        },
        ..ControllerConfig::default()
    };
    let settings = run(&mut Controller::new(2, config()), costly, 50);
    assert_eq!(settings.last().map(|setting| setting.0), Some(1));
    let settings = run(&mut Controller::new(2, config()), cheap, 50);
    assert!(settings.iter().all(|setting| setting.0 == 2), "{settings:?}");
    let tight = ControllerConfig { slack: 1.0, ..config() };
    let settings = run(&mut Controller::new(2, tight), costly, 50);
    assert!(settings.iter().all(|setting| setting.0 == 2), "{settings:?}");
}

#[test]
fn lock_crowd_is_left_alone() {
    let settings = run(&mut controller(), crowd, 200);
    assert!(settings.iter().all(|&setting| setting == (2, false)));
}

#[test]
fn long_idle_periods_are_not_retained() {
    let settings = run(&mut controller(), sleeper, 200);
    assert!(settings.iter().all(|&(_, retained)| !retained), "{settings:?}");
}

#[test]
fn nearly_idle_program_is_left_alone() {
    fn ticker(active: u32, _: bool) -> Observation {
        seen(active, 0.02, 20, 40, 40)
    }
    let settings = run(&mut controller(), ticker, 200);
    assert!(settings.iter().all(|&setting| setting == (2, false)));
}

#[test]
fn useless_retention_is_mostly_off() {
    let settings = run(&mut controller(), indifferent, 1000);
    let tried = settings.iter().filter(|&&setting| setting != (2, false));
    assert!(tried.count() < 60, "{settings:?}");
    let mut controller = controller();
    let mut lost = 0;
    for _ in 0..1000 {
        let retained = controller.retention_time() > Nanos::ZERO;
        let decision = controller.decide(&indifferent(controller.active(), retained));
        lost += u32::from(matches!(decision.retention, Because::Lost { .. }));
    }
    // Each rest is twice as long: 10 s, 20 s, 40 s of the 100 s.
    assert!((2..=4).contains(&lost), "{lost}");
}

#[test]
fn changed_program_gets_vcpus_and_trial() {
    let mut controller = controller();
    assert_eq!(run(&mut controller, pipe, 20).last(), Some(&(1, true)));
    // A computation on both vCPUs.
    fn compute(active: u32, _: bool) -> Observation {
        seen(active, 1.0, 0, 20, 0)
    }
    let settings = run(&mut controller, compute, 30);
    let back = settings.iter().position(|&(active, _)| active == 2);
    assert!(back.is_some_and(|period| period < 5), "{settings:?}");
    assert_eq!(settings.last().map(|setting| setting.0), Some(2));
    let again = run(&mut controller, pipe, 30);
    assert_eq!(again.last().map(|setting| setting.0), Some(1), "{again:?}");
}

#[test]
fn one_change_at_a_time() {
    let mut controller = controller();
    for _ in 0..100 {
        let before = (controller.active(), controller.retention_time());
        let retained = controller.retention_time() > Nanos::ZERO;
        let decision = controller.decide(&pipe(controller.active(), retained));
        let switched = (before.1 > Nanos::ZERO) != (decision.retention_time > Nanos::ZERO);
        assert!(!(switched && before.0 != decision.active), "{decision:?}");
        if matches!(decision.retention, Because::OnTrial) {
            assert_eq!(decision.consolidation, Some(consolidation::Because::Settling));
        }
    }
}

#[test]
fn disabled_remedies_stay_off() {
    let config =
        ControllerConfig { consolidate: false, retain: false, ..ControllerConfig::default() };
    let settings = run(&mut Controller::new(2, config), pipe, 50);
    assert!(settings.iter().all(|&setting| setting == (2, false)));
}

#[test]
fn busy_host_ends_retention_for_a_while() {
    let mut controller = controller();
    run(&mut controller, pipe, 4);
    assert!(controller.retention_time() > Nanos::ZERO);
    let mut stolen = pipe(2, true);
    for vcpu in &mut stolen.vcpus {
        vcpu.stolen = Nanos::from_millis(50);
    }
    for _ in 0..3 {
        controller.decide(&stolen);
    }
    assert_eq!(controller.retention_time(), Nanos::ZERO);
    let settings = run(&mut controller, pipe, 15);
    assert!(settings.iter().all(|&(_, retained)| !retained), "{settings:?}");
}

#[test]
fn two_phase_program_is_not_harmed_each_time() {
    // It passes messages for a second and polls for work for a second; retention gains nothing for either.
    fn looks(active: u32, retained: bool) -> Observation {
        let idle_periods = if retained { 250 } else { 240 };
        seen(active, 0.12, idle_periods, 300, 600)
    }
    let mut controller =
        Controller::new(2, ControllerConfig { consolidate: false, ..ControllerConfig::default() });
    let mut lost = 0;
    for period in 0..600 {
        let program = if period / 10 % 2 == 0 { indifferent } else { looks };
        let retained = controller.retention_time() > Nanos::ZERO;
        let decision = controller.decide(&program(controller.active(), retained));
        lost += u32::from(matches!(decision.retention, Because::Lost { .. }));
    }
    // A minute: each phase after 0, 10 and 30 s, and once in between.
    assert!((2..=8).contains(&lost), "{lost}");
}
