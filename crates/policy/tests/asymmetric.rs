//! The policy `asymmetric` and its parts: properties, a plain model of the division of time, and what the policy asks a host for.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rand_core::SeedableRng;
use rand_pcg::Pcg32;
use tandem_policy::Because;
use tandem_policy::Decision;
use tandem_policy::Nanos;
use tandem_policy::Nice;
use tandem_policy::PcpuId;
use tandem_policy::PcpuSet;
use tandem_policy::VcpuId;
use tandem_policy::VcpuObservation;
use tandem_policy::VmId;
use tandem_policy::VmObservation;
use tandem_policy::Weight;
use tandem_policy::asymmetric::AsymmetricConfig;
use tandem_policy::asymmetric::latency;
use tandem_policy::asymmetric::latency::Standing;
use tandem_policy::asymmetric::latency::Urgencies;
use tandem_policy::asymmetric::resolver::Placed;
use tandem_policy::asymmetric::resolver::balance;
use tandem_policy::asymmetric::resolver::spread;
use tandem_policy::asymmetric::time::Allocations;
use tandem_policy::asymmetric::time::Use;
use tandem_policy::host::Controller;
use tandem_policy::host::ControllerConfig;
use tandem_policy::host::HostObservation;
use tandem_policy::host::IdleTimes;
use tandem_policy::host::Placement;
use tandem_policy::host::registry;

const T: Nanos = Nanos::from_millis(100);

/// The rule of the source in real numbers, from what each vCPU was allocated; and by how much whole ns may differ from it.
fn plain(total: f64, had: &[f64], uses: &[Use]) -> (Vec<f64>, f64) {
    let demand = |(had, used): (&f64, &Use)| {
        let ran = used.ran.0 as f64;
        match used.ready {
            false => ran,
            true if ran >= (had * 0.99).floor() => had * 1.1,
            true => *had,
        }
    };
    let demands: Vec<f64> = had.iter().zip(uses).map(demand).collect();
    let sum: f64 = demands.iter().sum();
    let part = |demand: &f64| match sum > 0.0 {
        true => total * demand / sum,
        false => total / uses.len() as f64,
    };
    // Each demand is a whole number of ns too.
    let off = 1.0 + uses.len() as f64 * total / sum.max(1.0);
    (demands.iter().map(part).collect(), off)
}

#[test]
fn a_million_divisions_agree_with_a_plain_model() {
    let mut random = Pcg32::seed_from_u64(40);
    let mut below = |bound: u64| random.next_u64() % bound;
    let mut allocations = Allocations::default();
    let mut vcpus = 1;
    for step in 0..1_000_000 {
        if step % 1000 == 0 {
            vcpus = 1 + below(8) as u32;
            allocations = Allocations::default();
        }
        let total = Nanos(1_000_000 + below(400_000_000));
        let even = Nanos(total.0 / u64::from(vcpus));
        let had: Vec<Nanos> = (0..vcpus)
            .map(|v| allocations.of(VcpuId(v)).unwrap_or(even))
            .collect();
        let uses: Vec<Use> = had
            .iter()
            .zip(0..)
            .map(|(had, v)| Use {
                vcpu: VcpuId(v),
                ran: match below(3) {
                    0 => *had,
                    1 => Nanos(had.0 * below(130) / 100),
                    _ => Nanos(below(100_000_000)),
                },
                ready: below(2) == 0,
            })
            .collect();
        allocations.divide(total, &uses);
        let real: Vec<f64> = had.iter().map(|time| time.0 as f64).collect();
        let (expected, most) = plain(total.0 as f64, &real, &uses);
        let sum: u64 = allocations.iter().map(|(_, time)| time.0).sum();
        assert_eq!(sum, total.0, "step {step}");
        for ((_, time), expected) in allocations.iter().zip(expected) {
            let off = (time.0 as f64 - expected).abs();
            assert!(
                off <= most + 1e-9 * expected,
                "step {step}: off by {off} of {most}"
            );
        }
    }
}

fn uses() -> impl Strategy<Value = Vec<Use>> {
    proptest::collection::vec((0u64..100_000_000, any::<bool>()), 1..9).prop_map(|uses| {
        let uses = uses.into_iter().zip(0..);
        uses.map(|((ran, ready), v)| Use {
            vcpu: VcpuId(v),
            ran: Nanos(ran),
            ready,
        })
        .collect()
    })
}

fn everywhere() -> PcpuSet {
    "0-7".parse().unwrap()
}

/// vCPUs of some VMs on 8 pCPUs, no two of a VM on one.
fn host() -> impl Strategy<Value = Vec<(u64, u32, u32, u64, bool, u64)>> {
    let vm = proptest::collection::btree_map(0u32..8, (0u64..100, any::<bool>(), 0u64..9), 1..6);
    proptest::collection::vec(vm, 1..6).prop_map(|vms| {
        let mut placed = Vec::new();
        for (vm, vcpus) in (0u64..).zip(vms) {
            for (v, (pcpu, (ms, urgent, conflicts))) in (0u32..).zip(vcpus) {
                placed.push((vm, v, pcpu, ms, urgent, conflicts));
            }
        }
        placed
    })
}

fn placed<'a>(host: &[(u64, u32, u32, u64, bool, u64)], all: &'a PcpuSet) -> Vec<Placed<'a>> {
    let vcpus = host.iter();
    vcpus
        .map(|&(vm, vcpu, pcpu, ms, urgent, conflicts)| Placed {
            vm: VmId(vm),
            vcpu: VcpuId(vcpu),
            pcpu: PcpuId(pcpu),
            allocation: Nanos::from_millis(ms),
            urgent,
            conflicts,
            may_be_on: Some(all),
        })
        .collect()
}

proptest! {
    #[test]
    fn the_vms_time_is_divided_exactly_whatever_the_order(mut uses in uses(), total in 0u64..800_000_000, again in uses()) {
        let (mut one, mut other) = (Allocations::default(), Allocations::default());
        for uses in [&mut uses, &mut again.clone()] {
            one.divide(Nanos(total), uses);
            uses.reverse();
            other.divide(Nanos(total), uses);
            prop_assert_eq!(&one, &other);
            prop_assert_eq!(one.iter().map(|(_, time)| time.0).sum::<u64>(), total);
        }
    }

    #[test]
    fn urgency_moves_by_a_step_and_does_not_depend_on_the_order(
        standings in proptest::collection::vec((any::<bool>(), any::<bool>(), proptest::collection::vec(0u32..6, 0..3)), 6),
        periods in 1usize..12,
    ) {
        let mut standings: Vec<Standing> = standings.into_iter().zip(0..).map(|((used_up, ready, by), v)| Standing {
            vcpu: VcpuId(v),
            used_up,
            ready,
            sleeps: v != 5,
            woken_by: by.into_iter().map(VcpuId).collect(),
        }).collect();
        let (mut one, mut other) = (Urgencies::default(), Urgencies::default());
        for _ in 0..periods {
            let before = one.clone();
            one.follow(&standings);
            standings.reverse();
            other.follow(&standings);
            prop_assert_eq!(&one, &other);
            for v in (0..6).map(VcpuId) {
                prop_assert!(one.of(v).abs_diff(before.of(v)) <= 1);
                prop_assert!(one.of(v) <= latency::MOST);
            }
        }
    }

    #[test]
    fn swaps_never_stack_siblings_and_even_out(host in host()) {
        let all = everywhere();
        let before = placed(&host, &all);
        for swaps in [balance(&before).into_iter().collect(), spread(&before)] {
            let mut after = before.clone();
            for swap in &swaps {
                let (one, other) = (after[swap.one].pcpu, after[swap.other].pcpu);
                prop_assert_ne!(one, other);
                (after[swap.one].pcpu, after[swap.other].pcpu) = (other, one);
            }
            let mut seen = BTreeMap::new();
            for vcpu in &after {
                prop_assert!(seen.insert((vcpu.vm, vcpu.pcpu), vcpu.vcpu).is_none());
            }
        }
        if let Some(swap) = balance(&before) {
            let sum = |vcpus: &[Placed<'_>], pcpu: PcpuId| -> u64 {
                vcpus.iter().filter(|v| v.pcpu == pcpu).map(|v| v.allocation.0).sum()
            };
            let (from, to) = (before[swap.one].pcpu, before[swap.other].pcpu);
            let gap = |vcpus: &[Placed<'_>]| sum(vcpus, from).abs_diff(sum(vcpus, to));
            let mut after = before.clone();
            (after[swap.one].pcpu, after[swap.other].pcpu) = (to, from);
            prop_assert!(gap(&after) < gap(&before));
        }
    }
}

/// vCPU i on pCPU i, each with what it ran and waited, in ms.
fn vm(id: u64, vcpus: &[(u64, u64)]) -> VmObservation {
    let vcpus = (0u32..).zip(vcpus).map(|(n, &(ran, waited))| {
        let pcpus: PcpuSet = n.to_string().parse().unwrap();
        VcpuObservation {
            ran: Nanos::from_millis(ran),
            waited: Nanos::from_millis(waited),
            runs: Some(100),
            runnable: true,
            ..VcpuObservation::new(VcpuId(n), pcpus)
        }
    });
    VmObservation::new(VmId(id), Weight(1024.0), vcpus.collect())
}

fn controller(policies: &str, asymmetric: AsymmetricConfig) -> Controller {
    Controller::new(ControllerConfig {
        asymmetric,
        placement: Placement::Rebalance,
        ..ControllerConfig::new(registry::parse(policies).unwrap())
    })
}

fn decide(controller: &mut Controller, vms: &[VmObservation]) -> Vec<Decision> {
    let host = HostObservation::with_any_knobs(T, vms.to_vec(), IdleTimes::new());
    controller.decide(&host).decisions
}

/// Puts nice values and slices in force.
fn put_in_force(decisions: &[Decision], vms: &mut [VmObservation]) {
    for decision in decisions {
        let vm = vms.iter_mut().find(|vm| vm.vm == decision.vm()).unwrap();
        let Some(at) = decision.vcpu() else {
            continue;
        };
        let vcpu = vm.vcpus.iter_mut().find(|vcpu| vcpu.vcpu == at).unwrap();
        match decision {
            Decision::SetNice { nice, .. } => vcpu.in_force.nice = *nice,
            Decision::SetSlice { slice, .. } => vcpu.in_force.slice = *slice,
            _ => {}
        }
    }
}

/// The VM beside three that compute on all of its pCPUs, so that it is due a quarter of them.
fn beside(vm_1: VmObservation) -> Vec<VmObservation> {
    let computing = vec![(25, 75); vm_1.vcpus.len()];
    let others = (2..5).map(|id| vm(id, &computing));
    [vm_1].into_iter().chain(others).collect()
}

const TIME: AsymmetricConfig = AsymmetricConfig {
    time: true,
    latency: false,
    resolver: false,
};

#[test]
fn a_dry_run_says_what_a_vcpu_used_and_what_it_gets() {
    let mut controller = controller("asymmetric", TIME);
    // Due 100 ms: 25 each. vCPU 0 uses its own up and waits; the others use a third.
    let mut vms = beside(vm(1, &[(76, 24), (8, 0), (8, 0), (8, 0)]));
    let decisions = decide(&mut controller, &vms);
    let why = decisions[0].because().to_string();
    assert!(
        why.contains("of its 0.25 pCPUs and is still ready; its siblings used 32 % of theirs"),
        "{why}"
    );
    put_in_force(&decisions, &mut vms);
    assert!(vms[0].vcpus[0].in_force.nice < Nice(0));
    assert!(vms[0].vcpus[1].in_force.nice > Nice(0));
    for _ in 0..20 {
        let decisions = decide(&mut controller, &vms);
        put_in_force(&decisions, &mut vms);
    }
    let settled = decide(&mut controller, &vms);
    assert!(settled.is_empty(), "{settled:?}");
}

#[test]
fn a_satisfied_vm_is_left_alone_and_one_that_becomes_so_has_its_own_back() {
    let mut controller = controller("asymmetric", AsymmetricConfig::default());
    let satisfied = [vm(1, &[(60, 0), (5, 0)]), vm(2, &[(30, 2), (1, 1)])];
    for _ in 0..100 {
        let decisions = decide(&mut controller, &satisfied);
        let of_time = |decision: &&Decision| matches!(decision, Decision::SetNice { .. });
        assert_eq!(decisions.iter().find(of_time), None);
    }
    let mut vms = beside(vm(1, &[(45, 20), (5, 0)]));
    for _ in 0..5 {
        let decisions = decide(&mut controller, &vms);
        put_in_force(&decisions, &mut vms);
    }
    assert_ne!(vms[0].vcpus[0].in_force.nice, Nice(0));
    for vcpu in &mut vms[0].vcpus {
        (vcpu.waited, vcpu.runnable) = (Nanos::ZERO, false);
    }
    for _ in 0..60 {
        let decisions = decide(&mut controller, &vms);
        put_in_force(&decisions, &mut vms);
    }
    let nice: Vec<Nice> = vms[0].vcpus.iter().map(|vcpu| vcpu.in_force.nice).collect();
    assert_eq!(nice, [Nice(0), Nice(0)]);
}

#[test]
fn groups_of_vcpus_are_weighed_instead_of_threads_where_there_are_some() {
    let mut controller = controller("asymmetric", TIME);
    let mut vms = beside(vm(1, &[(45, 20), (5, 0)]));
    for vcpu in &mut vms[0].vcpus {
        vcpu.in_force.weight = Some(Weight(100.0));
    }
    let decisions = decide(&mut controller, &vms);
    let weights: Vec<f64> = decisions
        .iter()
        .filter(|decision| decision.vm() == VmId(1))
        .map(|decision| match decision {
            Decision::SetWeight { weight, .. } => weight.0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(weights[0] > 150.0 && weights[1] <= 50.0, "{weights:?}");
}

#[test]
fn urgent_vcpus_have_short_slices_and_their_vm_is_charged_for_switches() {
    let mut controller = controller("fair,asymmetric", AsymmetricConfig::default());
    // vCPU 1 wants little and comes too late: the one that waits, with its share not used up.
    let mut vms = [vm(1, &[(60, 0), (10, 40)]), vm(2, &[(40, 60), (90, 10)])];
    for _ in 0..6 {
        let decisions = decide(&mut controller, &vms);
        put_in_force(&decisions, &mut vms);
    }
    assert_eq!(vms[0].vcpus[1].in_force.slice, Some(Nanos(100_000)));
    assert_eq!(vms[0].vcpus[0].in_force.slice, None);
    vms[0].vcpus[1].runs = Some(400);
    let host = HostObservation::with_any_knobs(T, vms.to_vec(), IdleTimes::new());
    let round = controller.decide(&host);
    assert_eq!(round.charges.get(&VmId(1)), Some(&Nanos(300 * 5_000)));
    assert_eq!(round.vcpus[&VmId(1)][1].urgency, latency::MOST);
    assert!(matches!(
        round.vcpus[&VmId(1)][1],
        demand if demand.allocation < Nanos::from_millis(60)
    ));
}

#[test]
fn without_slices_urgency_is_a_weight_for_a_while() {
    let mut controller = controller(
        "asymmetric",
        AsymmetricConfig {
            time: false,
            latency: true,
            resolver: false,
        },
    );
    let mut vms = [vm(1, &[(60, 0), (10, 40)])];
    for _ in 0..6 {
        let mut host = HostObservation::with_any_knobs(T, vms.to_vec(), IdleTimes::new());
        host.knobs.slice = None;
        let decisions = controller.decide(&host).decisions;
        put_in_force(&decisions, &mut vms);
    }
    assert_eq!(vms[0].vcpus[1].in_force.nice, Nice(-4));
    assert_eq!(vms[0].vcpus[1].in_force.slice, None);
}

#[test]
fn vcpus_of_two_vms_swap_where_pins_put_too_much_on_one_pcpu() {
    let pin = |vcpu: &mut VcpuObservation, pcpu: &str| vcpu.allowed = pcpu.parse().unwrap();
    // Both VMs need their vCPU 0, on the same pCPU.
    let mut vms = [vm(1, &[(50, 50), (5, 0)]), vm(2, &[(50, 50), (5, 0)])];
    let mut controller = controller("asymmetric", AsymmetricConfig::default());
    let mut moved = Vec::new();
    for _ in 0..30 {
        for decision in decide(&mut controller, &vms) {
            if let Decision::SetAffinity {
                vm,
                vcpu,
                pcpus,
                because,
            } = &decision
            {
                assert!(matches!(because, Because::Swap { .. }), "{because:?}");
                let vm = &mut vms[vm.0 as usize - 1];
                pin(&mut vm.vcpus[vcpu.0 as usize], &pcpus.to_string());
                moved.push((vm.vm, *vcpu));
            }
        }
    }
    assert_eq!(moved.len(), 2, "{moved:?}");
    let pcpu_of_busy: Vec<_> = vms.iter().map(|vm| vm.vcpus[0].position()).collect();
    assert_ne!(pcpu_of_busy[0], pcpu_of_busy[1]);
    for vm in &vms {
        assert_ne!(vm.vcpus[0].position(), vm.vcpus[1].position(), "stacked");
    }
}

#[test]
fn with_pins_to_be_kept_nobody_moves() {
    let mut controller = Controller::new(ControllerConfig::new(
        registry::parse("asymmetric").unwrap(),
    ));
    let vms = [vm(1, &[(50, 50), (5, 0)]), vm(2, &[(50, 50), (5, 0)])];
    for _ in 0..30 {
        let decisions = decide(&mut controller, &vms);
        assert!(
            !decisions
                .iter()
                .any(|d| matches!(d, Decision::SetAffinity { .. }))
        );
    }
}
