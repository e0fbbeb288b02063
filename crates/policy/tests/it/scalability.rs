//! Worked cases of scalability: Amdahl both ways, and the rotating serial work of figure 4.6.

use tandem_model::Nanos;
use tandem_policy::scalability::{
    Features, Fraction, PhysicalRun, ScalabilityError, Type, VirtualRun, potential_efficiency,
};

#[test]
fn amdahl_both_ways() {
    // 20 % of 100 units are serial; 80 run on 4 cores in 20. The other three idle for 20 each.
    let (serial, parallel, cores) = (20, 80, 4);
    let run = PhysicalRun {
        cores,
        execution: Nanos(serial + parallel / u64::from(cores)),
        idle: Nanos(serial * u64::from(cores - 1)),
        busy_waiting: Nanos::ZERO,
    };
    let by_law = 1.0 / (0.2 + 0.8 / f64::from(cores));
    assert!((run.efficiency().unwrap().get() - 0.625).abs() < 1e-12);
    assert!((run.speedup().unwrap().0 - 2.5).abs() < 1e-12);
    assert!((by_law - 2.5).abs() < 1e-12);
    // Spinning instead of idling loses as much.
    let spinning = PhysicalRun { idle: Nanos::ZERO, busy_waiting: run.idle, ..run };
    assert_eq!(spinning.speedup(), run.speedup());
}

/// One allocation period of figure 4.6: a loop of 2 serial and then 4 parallel units on 4 vCPUs (one
/// unit each). `slices` are the vCPUs' shares of the period; `serial(i)` says on which vCPU the
/// serial work of the i-th iteration runs. Iterations go on while every vCPU has slice left for its
/// part; the rest is not carried over.
fn one_period(slices: [u64; 4], serial: impl Fn(usize) -> usize) -> (u64, VirtualRun) {
    let mut left = slices;
    let mut iterations = 0;
    loop {
        let mut after = left;
        let mut fits = true;
        let mut use_up = |vcpu: usize, units: u64| match after[vcpu].checked_sub(units) {
            Some(rest) => after[vcpu] = rest,
            None => fits = false,
        };
        use_up(serial(iterations), 2);
        (0..4).for_each(|vcpu| use_up(vcpu, 1));
        if !fits {
            break;
        }
        left = after;
        iterations += 1;
    }
    let run = VirtualRun {
        vcpus: 4,
        allocated: Nanos(slices.iter().sum()),
        switching: Nanos::ZERO,
        unused: Nanos(left.iter().sum()),
    };
    (iterations as u64, run)
}

#[test]
fn fig_4_6_rotating_serial_work_scales() {
    let (fixed, fixed_run) = one_period([6; 4], |_| 0);
    let (rotated, rotated_run) = one_period([6; 4], |i| i % 4);
    let (weighted, weighted_run) = one_period([12, 4, 4, 4], |_| 0);
    assert_eq!((fixed, rotated, weighted), (2, 4, 4));
    let speedups = [fixed_run, rotated_run, weighted_run].map(|run| run.speedup().unwrap().0);
    assert_eq!(speedups, [2.0, 4.0, 4.0]);
}

#[test]
fn fig_4_6_could_use_its_half() {
    // On 4 cores an iteration takes 2 + 1 units of time and 6 of CPU: half is used, half is given.
    let utilization = Fraction::new(6.0 / 12.0).unwrap();
    let half = Fraction::new(0.5).unwrap();
    assert_eq!(potential_efficiency(utilization, half), Ok(Fraction::ALL));
    // With the whole host to itself it could use half.
    assert_eq!(potential_efficiency(utilization, Fraction::ALL), Ok(half));
    assert!(potential_efficiency(utilization, Fraction::NONE).is_err());
}

#[test]
fn switching_and_unused_slices_cost_a_vm_alike() {
    let run = |switching, unused| VirtualRun {
        vcpus: 8,
        allocated: Nanos(1_000),
        switching: Nanos(switching),
        unused: Nanos(unused),
    };
    assert_eq!(run(0, 0).speedup().unwrap().0, 8.0);
    assert_eq!(run(100, 150).speedup(), run(250, 0).speedup());
    assert_eq!(run(250, 0).speedup().unwrap().0, 6.0);
}

#[test]
fn four_types() {
    let class = |active, voluntary_switches_per_second| {
        let features = Features {
            units: 16,
            active,
            voluntary_switches_per_second,
            timeslice: Nanos::from_millis(30),
        };
        features.class()
    };
    // 12 of 16 are 75 %; once in 30 ms is 33.3 times in a second.
    assert_eq!(class(12.0, 33.0), Type::ScalesOnBoth);
    assert_eq!(class(11.9, 34.0), Type::PoorOnBoth);
    assert_eq!(class(12.0, 34.0), Type::WorseOnVm);
    assert_eq!(class(11.9, 33.0), Type::BetterOnVm);
    assert_eq!(class(16.0, 1000.0).number(), 3);
}

#[test]
fn invalid_inputs_are_rejected() {
    let run =
        PhysicalRun { cores: 2, execution: Nanos(10), idle: Nanos(15), busy_waiting: Nanos(6) };
    let error = run.speedup().unwrap_err();
    assert_eq!(error, ScalabilityError::NotAPart { part: Nanos(21), whole: Nanos(20) });
    assert!(error.to_string().contains("21 ns"), "{error}");
    assert_eq!(PhysicalRun { cores: 0, ..run }.speedup(), Err(ScalabilityError::NoUnits));
    for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(Fraction::new(wrong).is_err(), "{wrong}");
    }
}
