//! An operator sets weights, pCPUs and nice values while Tandem runs, 1,000 times, at any moment.
//!
//! Tandem's values apply while it runs.
//! In the end, also after kill -9, the operator's last values apply, and all other settings have their originals.

#[allow(dead_code, reason = "not every test uses all of it")]
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup::{CgroupPath, Knob, Version};
use tandem_model::{Nice, PcpuId, PcpuSet, Weight};
use tandem_testing::fake_host::{Fake, open_on, state_dir};

const FOREIGN_WRITES: u32 = 1000;

fn own() -> CgroupPath {
    CgroupPath("/vms/own.scope".to_owned())
}

/// Even numbers for Tandem and odd ones for the operator, so that the test can distinguish them.
fn number(random: &mut Pcg32, is_ours: bool) -> u32 {
    2 * (5 + random.next_u32() % 400) + u32::from(!is_ours)
}

fn pcpus(number: u32) -> PcpuSet {
    [PcpuId(number % 8)].into_iter().collect()
}

fn nice(number: u32) -> Nice {
    Nice((number % 18) as i8)
}

/// Tandem changes a setting.
fn ours(actuator: &mut Actuator, host: &Fake, random: &mut Pcg32) {
    let thread = host.thread(random.next_u32() as usize % 3).unwrap();
    let value = number(random, true);
    match random.next_u32() % 4 {
        0 | 1 => drop(actuator.set_weight(&own(), Weight::constant(f64::from(value))).unwrap()),
        2 => drop(actuator.set_affinity(&thread, &pcpus(value)).unwrap()),
        _ => drop(actuator.set_nice(&thread, nice(value)).unwrap()),
    }
}

/// The operator changes a setting.
fn theirs(host: &Fake, random: &mut Pcg32) {
    let thread = host.thread(random.next_u32() as usize % 3).unwrap();
    let value = number(random, false);
    match random.next_u32() % 4 {
        0 | 1 => host.operator_sets_weight(&own(), &value.to_string()),
        2 => host.operator_sets_affinity(&thread, &pcpus(value)),
        _ => host.operator_sets_nice(&thread, nice(value)),
    }
}

#[test]
fn foreign_writes() {
    let mut random = Pcg32::seed_from_u64(8);
    let mut written = 0;
    for round in 0.. {
        let dir = state_dir();
        let host = Fake::new(if round % 2 == 0 { Version::V1 } else { Version::V2 });
        let mut actuator = open_on(&host, dir.path());
        let steps = random.next_u32() % 20;
        let is_killed = random.next_u32() % 2 == 0;
        for _ in 0..steps {
            match random.next_u32() % 3 {
                0 => {
                    theirs(&host, &mut random);
                    written += 1;
                }
                _ => ours(&mut actuator, &host, &mut random),
            }
        }
        if is_killed {
            // During the last change, before or after it took effect.
            host.die_at(0, random.next_u32() % 2 == 0);
            let _ = catch_unwind(AssertUnwindSafe(|| {
                ours(&mut actuator, &host, &mut random);
            }));
            host.live();
            actuator.abandon();
            drop(open_on(&host, dir.path()));
        } else {
            drop(actuator);
        }
        assert_eq!(host.now(), host.wanted(), "round {round}");
        if written >= FOREIGN_WRITES {
            break;
        }
    }
}

#[test]
fn foreign_weight_is_overridden_and_reported() {
    let dir = state_dir();
    let host = Fake::new(Version::V2);
    let mut actuator = open_on(&host, dir.path());
    actuator.set_weight(&own(), Weight::constant(2048.0)).unwrap();
    host.operator_sets_weight(&own(), "1024");
    actuator.set_weight(&own(), Weight::constant(2048.0)).unwrap();
    assert_eq!(host.weight_of(&own()), "2048");
    let foreign = actuator.take_foreign();
    let foreign: Vec<_> = foreign.iter().map(|f| (f.knob, f.text.as_str())).collect();
    assert_eq!(foreign, [(Knob::Weight, "1024")]);
    actuator.set_weight(&own(), Weight::constant(2050.0)).unwrap();
    assert!(actuator.take_foreign().is_empty(), "reported once");
    drop(actuator);
    assert_eq!(host.weight_of(&own()), "1024");
}

#[test]
fn foreign_write_after_kill_9_stays() {
    let dir = state_dir();
    let host = Fake::new(Version::V1);
    let mut actuator = open_on(&host, dir.path());
    actuator.set_weight(&own(), Weight::constant(2048.0)).unwrap();
    actuator.abandon();
    host.operator_sets_weight(&own(), "512");
    let (_, report) =
        Actuator::open_with(host.controller(), host.threads(), dir.path(), "boot").unwrap();
    assert_eq!(host.weight_of(&own()), "512");
    let said = report.to_string();
    assert!(said.contains("'512'") && said.contains("another process"), "{said}");
}

/// The cgroup may leave the class between the reads of its weight and its class.
#[test]
fn idle_class_weight_is_not_foreign() {
    for (version, shown) in [(Version::V1, "3"), (Version::V2, "0"), (Version::V2, "1")] {
        let dir = state_dir();
        let host = Fake::new(version);
        let mut actuator = open_on(&host, dir.path());
        for weight in [500.0, 600.0, 700.0, 800.0] {
            let prepared = if weight == 500.0 {
                actuator.prepare_idle(&own(), Weight::constant(weight))
            } else {
                actuator.prepare_weight(&own(), Weight::constant(weight))
            };
            prepared.unwrap();
            host.has_weight(&own(), shown);
        }
        assert_eq!(actuator.take_foreign(), []);
        // Killed after it left the class, before its weight was set.
        let default = host.controller().default_weight();
        host.has_weight(&own(), &default.value().to_string());
        actuator.abandon();
        drop(open_on(&host, dir.path()));
        assert_eq!(host.now(), host.wanted());
    }
}
