//! The production controller on the simulated host: placement, rounding, dry runs, policies of single VMs, hot-plugged vCPUs,
//! and the effect of each knob on the simulated schedulers.

use std::collections::BTreeSet;

use crate::common::{HOG, scenario};
use tandem_model::{
    Because, Decision, Knob, Nanos, Nice, Target, VcpuId, VmId, VmObservation, Weight,
};
use tandem_policy::flexw::Round;
use tandem_policy::host::policy::Scope;
use tandem_policy::host::{Host, HostObservation, Policy};
use tandem_sim::{Results, Scenario, World};

/// Two pCPUs, VM a with a vCPU on each, VM b with one on the first; `head` precedes the text.
fn two_vms(head: &str, more: &str) -> Scenario {
    let text = format!(
        "{head}\nduration = \"6s\"\nwarmup = \"3s\"\n[machine]\npcpus = 2\n{more}\n\
         [[vm]]\nname = \"a\"\nvcpus = 2\npins = [\"0\", \"1\"]\nworkload = \"hog\"\n\
         [[vm]]\nname = \"b\"\nvcpus = 1\npins = \"0\"\nworkload = \"hog\"\n{HOG}"
    );
    scenario(&text, &[])
}

/// CPU time that each VM received, in pCPUs.
fn received(results: &Results) -> Vec<f64> {
    let seconds = results.measured.as_secs_f64();
    let vms = results.vms.iter();
    vms.map(|vm| vm.received.as_secs_f64() / seconds).collect()
}

fn near(shares: &[f64], expected: &[f64]) {
    for (share, expected) in shares.iter().zip(expected) {
        assert!((share - expected).abs() < 0.05, "{shares:?}, not {expected:?}");
    }
}

#[test]
fn policy_list_configures_controller() {
    let short = two_vms("policies = [\"fair\"]", "");
    let long = two_vms("", "[policies]\nfair = true\n");
    assert_eq!(short.policies, long.policies);
    let mut world = World::new(&short);
    world.record_decisions();
    near(&received(&world.run()), &[1.0, 1.0]);
    let decided = world.take_decisions();
    let weights = decided.iter().flat_map(|(_, round)| &round.decisions);
    let weights: Vec<f64> = weights
        .map(|decision| match decision {
            Decision::SetWeight { weight, .. } => weight.value(),
            other => panic!("{other:?}: placement is \"keep\""),
        })
        .collect();
    assert!(weights.len() > 4);
    assert!(weights.iter().all(|weight| weight.fract() == 0.0), "{weights:?}");
}

#[test]
fn settings_change_policy_list() {
    let text = format!(
        "policies = [\"configured\"]\nduration = \"1s\"\n[machine]\npcpus = 1\n\
         [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"hog\"\n{HOG}"
    );
    let other = scenario(&text, &["policies.fair=true", "policies.configured=false"]);
    let names = tandem_policy::host::registry::names(other.policies.host.controller.policies);
    assert_eq!(names, "fair");
    for wrong in [
        "policies=[\"fare\"]",
        "policies=[1]",
        "policies.fare=true",
        "policies.fair=true",
        "policies=\"fair\"",
    ] {
        let mut source = tandem_sim::scenario::load::Source::from_text("x.toml", &text).unwrap();
        source.set(tandem_sim::scenario::load::Setting::parse(wrong).unwrap());
        let error = source.scenario().unwrap_err().to_string();
        assert!(error.contains("policies") || error.contains("exclude"), "{wrong}: {error}");
    }
}

#[test]
fn weights_of_cgroup_v2_are_coarser() {
    let coarse = two_vms("", "[policies]\nfair = true\nweights = \"v2\"\n");
    let mut world = World::new(&coarse);
    world.record_decisions();
    near(&received(&world.run()), &[1.0, 1.0]);
    let mut steps = BTreeSet::new();
    for (_, round) in world.take_decisions() {
        for decision in round.decisions {
            let Decision::SetWeight { weight, .. } = decision else {
                panic!("{decision:?}");
            };
            let v2 = weight.value() / 10.24;
            assert!((v2 - v2.round()).abs() < 1e-9, "{weight} is not an integral cpu.weight");
            steps.insert(v2.round() as u64);
        }
    }
    assert!(steps.len() > 4, "{steps:?}");
}

#[test]
fn dry_run_decides_without_changes() {
    let dry = two_vms("", "[policies]\nfair = true\ndry_run = true\n");
    let mut world = World::new(&dry);
    world.record_decisions();
    near(&received(&world.run()), &[1.5, 0.5].map(|s: f64| if s > 1.0 { 1.33 } else { 0.67 }));
    let decided = world.take_decisions();
    assert!(decided.iter().any(|(_, round)| !round.decisions.is_empty()));
    for (host, _) in &decided {
        assert!(host.vms.iter().all(|vm| vm.in_force.weight == vm.weight));
    }
}

#[test]
fn rebalance_moves_vcpus_and_keep_does_not() {
    let run = |placement: &str| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/policy-fair.toml");
        let mut source = tandem_sim::scenario::load::Source::read(path.as_ref()).unwrap();
        let setting = format!("policies.placement={placement}");
        source.set(tandem_sim::scenario::load::Setting::parse(&setting).unwrap());
        let mut world = World::new(&source.scenario().unwrap());
        world.record_decisions();
        let shares = received(&world.run());
        let moves = world.take_decisions().into_iter().flat_map(|(_, round)| round.decisions);
        let moves = moves.filter(|decision| decision.knob() == Knob::Affinity);
        (shares, moves.count())
    };
    let (shares, moves) = run("rebalance");
    near(&shares, &[0.5; 4]);
    assert!(moves >= 1);
    let (shares, moves) = run("keep");
    assert!(shares[0] > 0.95, "{shares:?}");
    assert_eq!(moves, 0);
}

#[test]
fn vm_overrides_host_policies() {
    let text = |policies: &str| {
        format!(
            "duration = \"4s\"\nwarmup = \"2s\"\n[machine]\npcpus = 2\n[policies]\nfair = true\n\
             [[vm]]\nname = \"a\"\nvcpus = 2\npins = [\"0\", \"1\"]\nworkload = \"hog\"\n\
             [[vm]]\nname = \"b\"\nvcpus = 1\npins = \"0\"\nworkload = \"hog\"\npolicies = {policies}\n{HOG}"
        )
    };
    for policies in ["[]", "[\"configured\"]"] {
        let mut world = World::new(&scenario(&text(policies), &[]));
        world.record_decisions();
        world.run();
        for (_, round) in world.take_decisions() {
            for decision in &round.decisions {
                assert_eq!(decision.vm(), VmId(0), "{policies}: {decision:?}");
            }
        }
    }
    let error = tandem_sim::scenario::load::Source::from_text("x.toml", &text("[\"fare\"]"));
    let error = error.unwrap().scenario().unwrap_err().to_string();
    assert!(error.contains("fair, configured"), "{error}");
}

#[test]
fn hotplug_keeps_vm_under_fair_policy() {
    let text = format!(
        "duration = \"8s\"\nwarmup = \"6s\"\n[machine]\npcpus = 2\n[policies]\nfair = true\n\
         [[vm]]\nname = \"a\"\nvcpus = 2\npins = [\"0\", \"1\"]\nworkload = \"hog\"\n\
         [[vm]]\nname = \"b\"\nvcpus = 2\npins = [\"0\", \"1\"]\nworkload = \"hog\"\n\
         hotplug = [{{ at = \"0s\", vcpus = 1 }}, {{ at = \"3s\", vcpus = 2 }}, {{ at = \"5s\", vcpus = 1 }}]\n{HOG}"
    );
    let mut world = World::new(&scenario(&text, &[]));
    world.record_decisions();
    near(&received(&world.run()), &[1.0, 1.0]);
    let decided = world.take_decisions();
    let mut sizes = BTreeSet::new();
    let mut weight = None;
    for (host, _) in &decided {
        assert_eq!(host.vms.len(), 2, "a VM dropped out of a period");
        let b = host.vm(VmId(1)).unwrap();
        sizes.insert(b.vcpus.len());
        // Its weight continues from its current value: with one vCPU, that is about 10 times the configured weight.
        if let Some(before) = weight {
            let step: f64 = b.in_force.weight.value() / before;
            assert!(step > 0.15 && step < 7.0, "from {before} to {}", b.in_force.weight);
            assert!(
                before < 3000.0 || b.in_force.weight != b.weight,
                "reset to the configured weight"
            );
        }
        weight = Some(b.in_force.weight.value());
    }
    assert_eq!(sizes, BTreeSet::from([1, 2]));
}

/// One pCPU and two VMs of one always running vCPU: returns each VM's CPU time in pCPUs after `decisions`.
fn after(scheduler: &str, decisions: &[Decision]) -> Vec<f64> {
    let text = format!(
        "duration = \"4s\"\nwarmup = \"2s\"\n[machine]\npcpus = 1\n[host]\nscheduler = \"{scheduler}\"\n\
         [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"hog\"\n\
         [[vm]]\nname = \"b\"\nvcpus = 1\nworkload = \"hog\"\n{HOG}"
    );
    let mut world = World::new(&scenario(&text, &[]));
    world.run_until(Nanos::from_secs(1));
    world.apply(decisions, None);
    received(&world.run())
}

/// One pCPU and a VM of two always running vCPUs: returns each vCPU's CPU time in pCPUs after `decisions`.
fn after_in_vm(scheduler: &str, decisions: &[Decision]) -> Vec<f64> {
    let text = format!(
        "duration = \"4s\"\nwarmup = \"2s\"\n[machine]\npcpus = 1\n[host]\nscheduler = \"{scheduler}\"\n\
         [[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"hog\"\n{HOG}"
    );
    let mut world = World::new(&scenario(&text, &[]));
    world.run_until(Nanos::from_secs(1));
    world.apply(decisions, None);
    let results = world.run();
    let seconds = results.measured.as_secs_f64();
    let vcpus = results.vms[0].vcpus.iter();
    vcpus.map(|vcpu| vcpu.ran.total().as_secs_f64() / seconds).collect()
}

const BECAUSE: Because = Because::Configured;

fn idle(target: Target, idle: bool) -> Decision {
    Decision::SetIdle { target, idle, because: BECAUSE }
}

#[test]
fn idle_class_vm_gets_leftover_time() {
    for scheduler in ["cfs", "eevdf"] {
        let vm = Target::Vm(VmId(0));
        // 3 ÷ (3 + 1024)
        let shares = after(scheduler, &[idle(vm, true)]);
        assert!(shares[0] < 0.02 && shares[1] > 0.97, "{scheduler}: {shares:?}");
        let shares = after(scheduler, &[idle(vm, true), idle(vm, false)]);
        near(&shares, &[0.5, 0.5]);
        let shares = after(scheduler, &[idle(vm, true), idle(Target::Vm(VmId(1)), true)]);
        near(&shares, &[0.5, 0.5]);
    }
}

#[test]
fn wakeup_preempts_idle_class() {
    let sleeper_share = |decisions: &[Decision]| {
        let text = format!(
            "duration = \"4s\"\nwarmup = \"2s\"\n[machine]\npcpus = 1\n\
             [[vm]]\nname = \"hog\"\nvcpus = 1\nworkload = \"hog\"\n\
             [[vm]]\nname = \"sleeper\"\nvcpus = 1\nworkload = \"sleeper\"\n\
             [[workload]]\nname = \"sleeper\"\n[[workload.role]]\nthreads = 1\n\
             program = [ {{ forever = [ {{ compute = \"3ms\" }}, {{ sleep = \"5ms\" }}, \"work\" ] }} ]\n{HOG}"
        );
        let mut world = World::new(&scenario(&text, &[]));
        world.run_until(Nanos::from_secs(1));
        world.apply(decisions, None);
        received(&world.run())[1]
    };
    let equal = sleeper_share(&[]);
    let preferred = sleeper_share(&[idle(Target::Vm(VmId(0)), true)]);
    // 3 ms of every 8 if it never waits.
    assert!(preferred > 0.36 && equal < preferred * 0.98, "{equal} {preferred}");
}

#[test]
fn nice_and_vcpu_groups_divide_vm_time() {
    let nice = |vcpu: u32, nice: i8| Decision::SetNice {
        vm: VmId(0),
        vcpu: VcpuId(vcpu),
        nice: Nice(nice),
        because: BECAUSE,
    };
    let weight = |vcpu: u32, weight: f64| Decision::SetWeight {
        target: Target::Vcpu(VmId(0), VcpuId(vcpu)),
        weight: Weight::saturating(weight),
        because: BECAUSE,
    };
    for scheduler in ["cfs", "eevdf"] {
        // sched_prio_to_weight: 335 of 335 + 1024.
        near(&after_in_vm(scheduler, &[nice(0, 5)]), &[0.2465, 0.7535]);
        near(&after_in_vm(scheduler, &[weight(0, 3072.0)]), &[0.75, 0.25]);
        let vcpu = Target::Vcpu(VmId(0), VcpuId(1));
        let shares = after_in_vm(scheduler, &[idle(vcpu, true)]);
        assert!(shares[1] < 0.02, "{scheduler}: {shares:?}");
    }
}

#[test]
fn current_values_are_observed() {
    let text = format!(
        "duration = \"1s\"\n[machine]\npcpus = 2\n\
         [[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"hog\"\n{HOG}"
    );
    let mut world = World::new(&scenario(&text, &[]));
    world.run_until(Nanos::from_millis(100));
    let (vm, vcpu) = (VmId(0), VcpuId(1));
    let decisions = [
        Decision::SetWeight {
            target: Target::Vm(vm),
            weight: Weight::constant(77.0),
            because: BECAUSE,
        },
        Decision::SetWeight {
            target: Target::Vcpu(vm, vcpu),
            weight: Weight::constant(99.0),
            because: BECAUSE,
        },
        idle(Target::Vm(vm), true),
        idle(Target::Vcpu(vm, vcpu), true),
        Decision::SetNice { vm, vcpu, nice: Nice(-3), because: BECAUSE },
        Decision::SetSlice { vm, vcpu, slice: Some(Nanos(500_000)), because: BECAUSE },
        Decision::SetAffinity { vm, vcpu, pcpus: "1".parse().unwrap(), because: BECAUSE },
    ];
    world.apply(&decisions, None);
    let observed = world.observe(Nanos(1), Nanos(1), true);
    assert_eq!(
        (observed[0].in_force.weight, observed[0].in_force.idle),
        (Weight::constant(77.0), true)
    );
    let of_vcpu = observed[0].vcpu(vcpu).unwrap();
    let settings = of_vcpu.in_force;
    assert_eq!((settings.weight, settings.idle), (Some(Weight::constant(99.0)), true));
    assert_eq!((settings.nice, settings.slice), (Nice(-3), Some(Nanos(500_000))));
    assert_eq!(of_vcpu.allowed, "1".parse().unwrap());
    // All decisions match the current values.
    let host = tandem_policy::host::HostObservation {
        period: Nanos(1),
        elapsed: Some(Nanos(1)),
        idle: Default::default(),
        knobs: world.knobs(),
        vms: observed,
    };
    assert!(decisions.iter().all(|decision| host.is_in_force(decision)));
}

#[test]
fn host_reports_its_knobs() {
    let knobs = |scheduler: &str| {
        let text = format!(
            "duration = \"1s\"\n[machine]\npcpus = 1\n[host]\nscheduler = \"{scheduler}\"\n\
             [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"hog\"\n{HOG}"
        );
        World::new(&scenario(&text, &[])).knobs()
    };
    assert!(knobs("eevdf").slice.is_some() && knobs("cfs").slice.is_none());
    let credit = knobs("credit");
    assert!(!credit.idle && !credit.nice && !credit.vcpu_groups && credit.affinity);
    assert_eq!(credit.weight.step, 4.0);
}

/// Gives VM a four times the weight of VM b.
#[derive(Debug)]
struct FourToOne;

impl Policy for FourToOne {
    fn decide(&mut self, host: &HostObservation, _scope: Scope, round: &mut Round) {
        round.contended = true;
        let wants = |vm: &VmObservation| Decision::SetWeight {
            target: Target::Vm(vm.vm),
            weight: Weight::saturating(if vm.vm == VmId(0) { 4096.4 } else { 1024.0 }),
            because: Because::Outside,
        };
        round.decisions.extend(host.vms.iter().map(wants));
    }
}

#[test]
fn external_policy_replaces_scenario_policies() {
    let text = |head: &str| {
        format!(
            "{head}\nduration = \"6s\"\nwarmup = \"3s\"\n[machine]\npcpus = 1\n\
             [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"hog\"\n\
             [[vm]]\nname = \"b\"\nvcpus = 1\nworkload = \"hog\"\n{HOG}"
        )
    };
    let mut world = World::new(&scenario(&text("policies = [\"fair\"]"), &[]));
    world.record_decisions();
    assert!(world.replace_policies(Box::new(FourToOne)));
    near(&received(&world.run()), &[0.8, 0.2]);
    // Decided once, rounded as the knob requires.
    let decided = world.take_decisions();
    let decisions: Vec<&Decision> =
        decided.iter().flat_map(|(_, round)| &round.decisions).collect();
    let [Decision::SetWeight { weight, .. }] = decisions[..] else {
        panic!("{decisions:?}");
    };
    assert_eq!(weight.value(), 4096.0);
    assert!(decided.len() > 50, "the policy decides in every period: {}", decided.len());
    let mut world = World::new(&scenario(&text(""), &[]));
    assert!(!world.replace_policies(Box::new(FourToOne)));
}
