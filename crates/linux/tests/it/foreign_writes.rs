//! An operator sets weights, pCPUs and nice values beside a running Tandem, a thousand times, at any moment: Tandem's are in force
//! while it runs, and in the end, also after kill -9, the operator's last ones are, and what the operator never set is as it was.

#[allow(dead_code, reason = "not every test uses all of it")]
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::fake_host::{Fake, open_on, state_dir};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup::{CgroupPath, Knob, Version};
use tandem_model::{Nice, PcpuId, PcpuSet, Weight};

const FOREIGN_WRITES: u32 = 1000;

fn own() -> CgroupPath {
    CgroupPath("/vms/own.scope".to_owned())
}

/// Ours are even numbers, theirs odd ones, so that they can be told apart here.
fn number(random: &mut Pcg32, is_ours: bool) -> u32 {
    2 * (5 + random.next_u32() % 400) + u32::from(!is_ours)
}

fn pcpus(number: u32) -> PcpuSet {
    [PcpuId(number % 8)].into_iter().collect()
}

fn nice(number: u32) -> Nice {
    Nice((number % 18) as i8)
}

/// Tandem sets something.
fn ours(actuator: &mut Actuator, host: &Fake, random: &mut Pcg32) {
    let thread = host.thread(random.next_u32() as usize % 3).unwrap();
    let value = number(random, true);
    match random.next_u32() % 4 {
        0 | 1 => drop(actuator.set_weight(&own(), Weight::constant(f64::from(value))).unwrap()),
        2 => drop(actuator.set_affinity(&thread, &pcpus(value)).unwrap()),
        _ => drop(actuator.set_nice(&thread, nice(value)).unwrap()),
    }
}

/// The operator sets something.
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
            // In the middle of the last change, before or after it took effect.
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
fn ours_are_in_force_while_it_runs_and_theirs_are_told() {
    let dir = state_dir();
    let host = Fake::new(Version::V2);
    let mut actuator = open_on(&host, dir.path());
    actuator.set_weight(&own(), Weight::constant(2048.0)).unwrap();
    host.operator_sets_weight(&own(), "1024");
    actuator.set_weight(&own(), Weight::constant(2048.0)).unwrap();
    assert_eq!(host.weight_of(&own()), "2048");
    let told = actuator.take_foreign();
    let told: Vec<_> = told.iter().map(|f| (f.knob, f.text.as_str())).collect();
    assert_eq!(told, [(Knob::Weight, "1024")]);
    actuator.set_weight(&own(), Weight::constant(2050.0)).unwrap();
    assert!(actuator.take_foreign().is_empty(), "told once");
    drop(actuator);
    assert_eq!(host.weight_of(&own()), "1024");
}

#[test]
fn what_was_set_after_kill_9_stays() {
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
    assert!(said.contains("'512'") && said.contains("somebody else"), "{said}");
}

/// Before a look at its idle class and after one at its weight the cgroup may have left the class.
#[test]
fn what_the_idle_class_shows_is_nobodys_weight() {
    for (version, shown) in [(Version::V1, "3"), (Version::V2, "0"), (Version::V2, "1")] {
        let dir = state_dir();
        let host = Fake::new(version);
        let mut actuator = open_on(&host, dir.path());
        for weight in [500.0, 600.0, 700.0, 800.0] {
            match weight == 500.0 {
                true => actuator.prepare_idle(&own(), Weight::constant(weight)),
                false => actuator.prepare_weight(&own(), Weight::constant(weight)),
            }
            .unwrap();
            host.has_weight(&own(), shown);
        }
        assert_eq!(actuator.take_foreign(), []);
        // Out of the class, and killed before it had its weight.
        let default = host.controller().default_weight();
        host.has_weight(&own(), &default.value().to_string());
        actuator.abandon();
        drop(open_on(&host, dir.path()));
        assert_eq!(host.now(), host.wanted());
    }
}
