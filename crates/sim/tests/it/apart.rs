//! Divided vCPUs on the simulated host: shares over 250 ms with and without division, the effect of a portion, and the cases without division.

use std::path::Path;

use crate::common::{HOG, scenario};
use tandem_model::{Because, Decision, Nanos, Target, VcpuId, VmId, VmObservation, Weight};
use tandem_policy::host::Host;
use tandem_sim::World;
use tandem_sim::scenario::load::{Setting, Source};

/// Fair share of each VM of `scenarios/policy-apart.toml`, in pCPUs.
const DUE: f64 = 2.0 / 3.0;

/// Mean and maximum deviation of the VMs of `scenarios/policy-apart.toml` from their fair shares in windows of 250 ms, in pCPUs.
fn share_deviation(settings: &[&str]) -> (f64, f64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/policy-apart.toml");
    let mut source = Source::read(&path).unwrap();
    for setting in settings {
        source.set(Setting::parse(setting).unwrap());
    }
    source.set(Setting::parse("duration=9s").unwrap());
    let mut world = World::new(&source.scenario().unwrap());
    let (mut before, mut off) = (vec![0.0; 3], Vec::new());
    for window in 13..=36 {
        world.run_until(Nanos::from_millis(250 * window));
        let vms = world.results().vms;
        let received: Vec<f64> = vms.iter().map(|vm| vm.received.as_secs_f64()).collect();
        // Skip the time until the vCPUs have been divided for a second.
        if window > 13 {
            let now = received.iter().zip(&before);
            off.extend(now.map(|(now, before)| ((now - before) / 0.25 - DUE).abs()));
        }
        before = received;
    }
    let mean = off.iter().sum::<f64>() / off.len() as f64;
    (mean, off.into_iter().fold(0.0, f64::max))
}

#[test]
fn division_keeps_shares_over_250_ms() {
    let (mean, most) = share_deviation(&["policies.apart=false"]);
    assert!(mean > 0.3 && most > 1.0, "{mean} {most}");
    let (mean, most) = share_deviation(&[]);
    assert!(mean < 0.2 && most < 0.6, "{mean} {most}");
}

fn divide(vm: u64, portions: &[(u32, f64)]) -> Decision {
    let portions = portions.iter();
    Decision::Divide {
        vm: VmId(vm),
        portions: portions.map(|&(vcpu, portion)| (VcpuId(vcpu), portion)).collect(),
        because: Because::Together,
    }
}

/// One pCPU, VM a with two computing vCPUs, VM b with one.
fn stacked(scheduler: &str) -> World {
    let text = format!(
        "duration = \"60s\"\n[machine]\npcpus = 1\n[host]\nscheduler = \"{scheduler}\"\n\
         [[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"hog\"\n\
         [[vm]]\nname = \"b\"\nvcpus = 1\nworkload = \"hog\"\n{HOG}"
    );
    World::new(&scenario(&text, &[]))
}

/// CPU time that every vCPU receives over 4 s, in pCPUs, after 1 s to settle, a's first; and the observation of a at the end.
fn shares(world: &mut World) -> (Vec<f64>, VmObservation) {
    let period = Nanos::from_secs(4);
    let begin = world.now() + Nanos::from_secs(1);
    world.run_until(begin);
    world.observe(period, period, false);
    world.run_until(begin + period);
    let vms = world.observe(period, period, false);
    let vcpus = vms.iter().flat_map(|vm| &vm.vcpus);
    let ran = vcpus.map(|vcpu| vcpu.ran.as_secs_f64() / period.as_secs_f64()).collect();
    (ran, vms[0].clone())
}

fn near(shares: &[f64], expected: [f64; 3]) {
    for (share, expected) in shares.iter().zip(expected) {
        assert!((share - expected).abs() < 0.02, "{shares:?} {expected:?}");
    }
}

#[test]
fn portions_divide_weight_and_revert_completely() {
    for scheduler in ["cfs", "eevdf"] {
        let mut world = stacked(scheduler);
        let (ran, before) = shares(&mut world);
        near(&ran, [0.25, 0.25, 0.5]);
        assert!(!before.divisible && !before.is_apart(), "this kernel keeps the lag");

        world.apply(&[divide(0, &[(0, 0.75), (1, 0.25)])], None);
        let (ran, apart) = shares(&mut world);
        near(&ran, [0.375, 0.125, 0.5]);
        let in_force = [0, 1].map(|v: usize| apart.vcpus[v].in_force);
        assert_eq!(in_force.map(|now| now.portion), [Some(0.75), Some(0.25)]);
        let weights = [768.0, 256.0].map(|weight| Some(Weight::saturating(weight)));
        assert_eq!(in_force.map(|now| now.weight), weights);

        // The vCPUs' groups divide the VM's new weight by their portions.
        world.apply(
            &[Decision::SetWeight {
                target: Target::Vm(VmId(0)),
                weight: Weight::constant(2048.0),
                because: Because::Together,
            }],
            None,
        );
        near(&shares(&mut world).0, [0.5, 1.0 / 6.0, 1.0 / 3.0]);

        world.apply(&[divide(0, &[])], None);
        let (ran, after) = shares(&mut world);
        near(&ran, [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]);
        let settings = |vm: &VmObservation| vm.vcpus.iter().map(|v| v.in_force).collect();
        let (before, after): (Vec<_>, Vec<_>) = (settings(&before), settings(&after));
        assert_eq!(after, before);
    }
}

#[test]
fn credit_and_idle_class_ignore_division() {
    let mut credit = stacked("credit");
    credit.apply(&[divide(0, &[(0, 0.75), (1, 0.25)])], None);
    let (ran, vm) = shares(&mut credit);
    assert!(!vm.divisible && !vm.is_apart());
    assert!((ran[0] - ran[1]).abs() < 0.05, "{ran:?}");

    let mut linux = stacked("eevdf");
    linux.apply(
        &[
            Decision::SetIdle {
                target: Target::Vm(VmId(0)),
                idle: true,
                because: Because::Together,
            },
            divide(0, &[(0, 0.75), (1, 0.25)]),
        ],
        None,
    );
    let (ran, vm) = shares(&mut linux);
    assert!(vm.in_force.idle && !vm.is_apart());
    assert!(ran[2] > 0.98, "{ran:?}");
}

#[test]
fn repeated_division_conserves_time() {
    for scheduler in ["cfs", "eevdf"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/reweight-hog.toml");
        let mut source = Source::read(&path).unwrap();
        let free = "host.placement=\"load-balancing\"";
        for setting in [&format!("host.scheduler=\"{scheduler}\""), free] {
            source.set(Setting::parse(setting).unwrap());
        }
        let scenario = source.scenario().unwrap();
        let mut world = World::new(&scenario);
        let mut apart = false;
        let mut until = Nanos::ZERO;
        while !world.run_until(until) {
            until += Nanos(7_770_777);
            apart = !apart;
            let portions = [(0, 0.4), (1, 0.3), (2, 0.2), (3, 0.1)];
            let portions = if apart { &portions[..] } else { &[] };
            let whole = if apart { &[(0, 1.0)][..] } else { &[] };
            world.apply(&[divide(0, portions), divide(2, whole)], None);
        }
        let results = world.results();
        let pcpus = results.pcpus.iter();
        let all: Nanos = pcpus.map(|pcpu| pcpu.busy + pcpu.polling + pcpu.idle).sum();
        assert_eq!(all, Nanos(results.measured.0 * 2));
        for vm in &results.vms {
            let share = vm.received.as_secs_f64() / results.measured.as_secs_f64();
            assert!(share > 0.3 && vm.work > 0, "{scheduler}: {} {share}", vm.name);
        }
    }
}
