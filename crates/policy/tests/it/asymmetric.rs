//! The policy `asymmetric` and its parts: properties, a plain model of the division of time, and
//! decisions of the policy.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rand_core::SeedableRng;
use rand_pcg::Pcg32;
use tandem_model::observation::Level;
use tandem_model::{
    Decision, Nanos, Nice, PcpuId, PcpuSet, VcpuId, VcpuObservation, VmId, VmObservation, Weight,
};
use tandem_policy::asymmetric::latency::{Standing, Urgencies};
use tandem_policy::asymmetric::report::LeftAlone;
use tandem_policy::asymmetric::resolver::{Placed, balance, spread};
use tandem_policy::asymmetric::time::{Allocations, Use};
use tandem_policy::asymmetric::{AsymmetricConfig, latency};
use tandem_policy::host::{
    Controller, ControllerConfig, HostObservation, IdleTimes, Placement, registry,
};

const T: Nanos = Nanos::from_millis(100);

/// The rule of the source in real numbers, from the last allocations, at most `most` each; and
/// the tolerance for whole ns.
fn plain(total: f64, most: f64, had: &[f64], uses: &[Use]) -> (Vec<f64>, f64) {
    let demand = |(had, used): (&f64, &Use)| {
        let ran = used.ran.0 as f64;
        if !used.ready {
            ran
        } else if ran >= (had * 0.99).floor() {
            had * 1.1
        } else {
            *had
        }
    };
    let demands: Vec<f64> = had.iter().zip(uses).map(demand).collect();
    let vcpus = uses.len();
    let most = most.max(total / vcpus as f64);
    // The most demanding first: some of them get the maximum, and the others share the rest.
    let mut order: Vec<usize> = (0..vcpus).collect();
    order.sort_by(|&a, &b| demands[b].total_cmp(&demands[a]));
    let mut parts = vec![0.0; vcpus];
    for full in 0..vcpus {
        let (at_most, others) = order.split_at(full);
        let left = total - most * full as f64;
        let sum: f64 = others.iter().map(|&at| demands[at]).sum();
        for &at in at_most {
            parts[at] = most;
        }
        for &at in others {
            parts[at] =
                if sum > 0.0 { left * demands[at] / sum } else { left / others.len() as f64 };
        }
        if parts[others[0]] <= most * (1.0 + 1e-12) {
            // Each demand is rounded to whole ns, too.
            return (parts, 1.0 + vcpus as f64 * total / sum.max(1.0));
        }
    }
    (parts, 1.0)
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
        let had: Vec<Nanos> =
            (0..vcpus).map(|v| allocations.of(VcpuId(v)).unwrap_or(even)).collect();
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
        let most = match below(2) {
            0 => total,
            _ => Nanos(even.0 + 1 + below(100_000_000)),
        };
        allocations.divide(total, most, &uses);
        let real: Vec<f64> = had.iter().map(|time| time.0 as f64).collect();
        let (expected, tolerance) = plain(total.0 as f64, most.0 as f64, &real, &uses);
        let sum: u64 = allocations.iter().map(|(_, time)| time.0).sum();
        assert_eq!(sum, total.0, "step {step}");
        assert!(allocations.iter().all(|(_, time)| time <= most));
        for ((_, time), expected) in allocations.iter().zip(expected) {
            let off = (time.0 as f64 - expected).abs();
            assert!(off <= tolerance + 1e-9 * expected, "step {step}: off by {off} of {tolerance}");
        }
    }
}

fn uses() -> impl Strategy<Value = Vec<Use>> {
    proptest::collection::vec((0u64..100_000_000, any::<bool>()), 1..9).prop_map(|uses| {
        let uses = uses.into_iter().zip(0..);
        uses.map(|((ran, ready), v)| Use { vcpu: VcpuId(v), ran: Nanos(ran), ready }).collect()
    })
}

fn everywhere() -> PcpuSet {
    "0-7".parse().unwrap()
}

/// vCPUs of some VMs on 8 pCPUs, at most one of a VM on each.
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
            load: Nanos::from_millis(ms),
            urgent,
            conflicts,
            may_be_on: Some(all),
        })
        .collect()
}

proptest! {
    #[test]
    fn division_is_exact_in_any_order(mut uses in uses(), total in 0u64..800_000_000, most in 0u64..800_000_000, again in uses()) {
        let (mut one, mut other) = (Allocations::default(), Allocations::default());
        for uses in [&mut uses, &mut again.clone()] {
            one.divide(Nanos(total), Nanos(most), uses);
            uses.reverse();
            other.divide(Nanos(total), Nanos(most), uses);
            prop_assert_eq!(&one, &other);
            prop_assert_eq!(one.iter().map(|(_, time)| time.0).sum::<u64>(), total);
        }
    }

    #[test]
    fn urgency_moves_one_step_in_any_order(
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
                prop_assert!(one.of(v) <= latency::MAX_LEVEL);
            }
        }
    }

    #[test]
    fn swaps_never_stack_siblings_and_even_out(host in host()) {
        let all = everywhere();
        let before = placed(&host, &all);
        for swaps in [balance(T, &before).into_iter().collect(), spread(&before)] {
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
        if let Some(swap) = balance(T, &before) {
            let sum = |vcpus: &[Placed<'_>], pcpu: PcpuId| -> u64 {
                vcpus.iter().filter(|v| v.pcpu == pcpu).map(|v| v.load.0).sum()
            };
            let (from, to) = (before[swap.one].pcpu, before[swap.other].pcpu);
            let gap = |vcpus: &[Placed<'_>]| sum(vcpus, from).abs_diff(sum(vcpus, to));
            let mut after = before.clone();
            (after[swap.one].pcpu, after[swap.other].pcpu) = (to, from);
            let larger = sum(&before, from).max(sum(&before, to));
            prop_assert!(gap(&after) + larger / 10 <= gap(&before) + 1);
            prop_assert!(larger > T.0);
        }
    }
}

/// vCPU i on pCPU i, each with its running and waiting time in ms.
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
    VmObservation::new(VmId(id), Weight::constant(1024.0), vcpus.collect())
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

/// Applies nice values and slices.
fn apply(decisions: &[Decision], vms: &mut [VmObservation]) {
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

/// The VM next to three that compute on all of its pCPUs, so that its fair share is a quarter of them.
fn with_competitors(vm_1: VmObservation) -> Vec<VmObservation> {
    let computing = vec![(25, 75); vm_1.vcpus.len()];
    let others = (2..5).map(|id| vm(id, &computing));
    [vm_1].into_iter().chain(others).collect()
}

const TIME: AsymmetricConfig = AsymmetricConfig { time: true, latency: false, resolver: false };

const LATENCY: AsymmetricConfig = AsymmetricConfig { time: false, latency: true, resolver: false };

#[test]
fn dry_run_reports_use_and_allocation() {
    let mut controller = controller("asymmetric", TIME);
    // Its fair share is 100 ms: 25 each. vCPU 0 uses its own up and waits; the others use a third.
    let mut vms = with_competitors(vm(1, &[(76, 24), (8, 0), (8, 0), (8, 0)]));
    let decisions = decide(&mut controller, &vms);
    let why = decisions[0].because().to_string();
    assert!(
        why.contains("of its 0.25 pCPUs and is still ready; its siblings used 32 % of theirs"),
        "{why}"
    );
    apply(&decisions, &mut vms);
    assert!(vms[0].vcpus[0].in_force.nice < Nice(0));
    assert!(vms[0].vcpus[1].in_force.nice > Nice(0));
    for _ in 0..20 {
        let decisions = decide(&mut controller, &vms);
        apply(&decisions, &mut vms);
    }
    let settled = decide(&mut controller, &vms);
    assert!(settled.is_empty(), "{settled:?}");
}

#[test]
fn dry_run_reports_unchanged_vms_and_reasons() {
    let mut controller = controller("asymmetric", TIME);
    let mut vms = with_competitors(vm(1, &[(76, 24), (8, 0), (8, 0), (8, 0)]));
    let mut idle = vm(6, &[(5, 5), (1, 0)]);
    idle.in_force.idle = true;
    vms.extend([vm(5, &[(10, 90)]), idle, vm(7, &[(5, 0), (1, 0)])]);
    let host = HostObservation::with_any_knobs(T, vms, IdleTimes::new());
    let round = controller.decide(&host);
    let left = |id| round.left_alone.get(&VmId(id)).copied();
    assert_eq!(left(1), None);
    assert_eq!(left(5), Some(LeftAlone::OneVcpu));
    assert_eq!(left(6), Some(LeftAlone::IdleClass));
    assert_eq!(left(7), Some(LeftAlone::NoneShort));
    let wants = |id| -> Vec<bool> {
        let vcpus = round.vcpus[&VmId(id)].iter();
        vcpus.map(|vcpu| vcpu.wants_more).collect()
    };
    assert_eq!(wants(1), [true, false, false, false]);
    assert_eq!(wants(7), [false, false]);
    assert!(!round.vcpus.contains_key(&VmId(5)), "nothing to divide");
}

#[test]
fn satisfied_vm_keeps_or_regains_usual_settings() {
    let mut controller = controller("asymmetric", AsymmetricConfig::default());
    let satisfied = [vm(1, &[(60, 0), (5, 0)]), vm(2, &[(30, 2), (1, 1)])];
    for _ in 0..100 {
        let decisions = decide(&mut controller, &satisfied);
        let of_time = |decision: &&Decision| matches!(decision, Decision::SetNice { .. });
        assert_eq!(decisions.iter().find(of_time), None);
    }
    let mut vms = with_competitors(vm(1, &[(45, 20), (5, 0)]));
    for _ in 0..5 {
        let decisions = decide(&mut controller, &vms);
        apply(&decisions, &mut vms);
    }
    assert_ne!(vms[0].vcpus[0].in_force.nice, Nice(0));
    for vcpu in &mut vms[0].vcpus {
        (vcpu.waited, vcpu.runnable) = (Nanos::ZERO, false);
    }
    for _ in 0..60 {
        let decisions = decide(&mut controller, &vms);
        apply(&decisions, &mut vms);
    }
    let nice: Vec<Nice> = vms[0].vcpus.iter().map(|vcpu| vcpu.in_force.nice).collect();
    assert_eq!(nice, [Nice(0), Nice(0)]);
}

#[test]
fn vcpu_groups_are_weighted_instead_of_threads() {
    let mut controller = controller("asymmetric", TIME);
    let mut vms = with_competitors(vm(1, &[(45, 20), (5, 0)]));
    for vcpu in &mut vms[0].vcpus {
        vcpu.in_force.weight = Some(Weight::constant(100.0));
    }
    let decisions = decide(&mut controller, &vms);
    let weights: Vec<f64> = decisions
        .iter()
        .filter(|decision| decision.vm() == VmId(1))
        .map(|decision| match decision {
            Decision::SetWeight { weight, .. } => weight.value(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(weights[0] > 150.0 && weights[1] <= 50.0, "{weights:?}");
}

#[test]
fn urgent_vcpus_get_slices_and_charges() {
    let mut controller = controller("fair,asymmetric", AsymmetricConfig::default());
    // vCPU 1 wants little and gets it too late: it waits, with its share not used up.
    let mut vms = [vm(1, &[(60, 0), (10, 40)]), vm(2, &[(40, 60), (90, 10)])];
    for _ in 0..6 {
        let decisions = decide(&mut controller, &vms);
        apply(&decisions, &mut vms);
    }
    assert_eq!(vms[0].vcpus[1].in_force.slice, Some(Nanos(100_000)));
    assert_eq!(vms[0].vcpus[0].in_force.slice, None);
    vms[0].vcpus[1].runs = Some(400);
    let host = HostObservation::with_any_knobs(T, vms.to_vec(), IdleTimes::new());
    let round = controller.decide(&host);
    assert_eq!(round.charges.get(&VmId(1)), Some(&Nanos(300 * 5_000)));
    assert_eq!(round.vcpus[&VmId(1)][1].urgency, latency::MAX_LEVEL);
    assert!(matches!(
        round.vcpus[&VmId(1)][1],
        demand if demand.allocation < Nanos::from_millis(60)
    ));
}

#[test]
fn urgency_sets_nice_without_slices() {
    let mut controller =
        controller("asymmetric", AsymmetricConfig { time: false, latency: true, resolver: false });
    let mut vms = [vm(1, &[(60, 0), (10, 40)])];
    for _ in 0..6 {
        let mut host = HostObservation::with_any_knobs(T, vms.to_vec(), IdleTimes::new());
        host.knobs.slice = None;
        let decisions = controller.decide(&host).decisions;
        apply(&decisions, &mut vms);
    }
    assert_eq!(vms[0].vcpus[1].in_force.nice, Nice(-4));
    assert_eq!(vms[0].vcpus[1].in_force.slice, None);
}

#[test]
fn excess_over_one_pcpu_goes_to_siblings() {
    let mut controller = controller("asymmetric", TIME);
    // Alone, its fair share is 400 ms, which one vCPU cannot use.
    let vms = [vm(1, &[(76, 24), (2, 0), (1, 0), (1, 0)])];
    for _ in 0..40 {
        let host = HostObservation::with_any_knobs(T, vms.to_vec(), IdleTimes::new());
        let round = controller.decide(&host);
        let vcpus = &round.vcpus[&VmId(1)];
        let sum: Nanos = vcpus.iter().map(|vcpu| vcpu.allocation).sum();
        assert_eq!(sum, Nanos(4 * T.0));
        assert!(vcpus.iter().all(|vcpu| vcpu.allocation <= T), "{vcpus:?}");
    }
}

#[test]
fn noisy_period_makes_no_awake_vcpu_urgent() {
    let mut controller = controller("asymmetric", LATENCY);
    let mut vms = with_competitors(vm(1, &[(25, 75), (25, 75)]));
    let is_urgent = |decisions: Vec<Decision>| {
        let of_1 = |decision: &Decision| decision.vm() == VmId(1);
        let mut slices = decisions.into_iter().filter(of_1);
        slices.any(|decision| matches!(decision, Decision::SetSlice { .. }))
    };
    for _ in 0..10 {
        assert!(!is_urgent(decide(&mut controller, &vms)));
    }
    // A wait of 70 ms in progress is not counted yet.
    let vcpu = &mut vms[0].vcpus[0];
    (vcpu.ran, vcpu.waited) = (Nanos::from_millis(10), Nanos::from_millis(20));
    assert!(!is_urgent(decide(&mut controller, &vms)));
    let vcpu = &mut vms[0].vcpus[0];
    (vcpu.ran, vcpu.waited) = (Nanos::from_millis(25), Nanos::from_millis(145));
    for _ in 0..10 {
        assert!(!is_urgent(decide(&mut controller, &vms)));
    }
    // A vCPU that sleeps and is late becomes urgent.
    let vcpu = &mut vms[0].vcpus[0];
    (vcpu.ran, vcpu.waited) = (Nanos::from_millis(10), Nanos::from_millis(20));
    assert!((0..10).any(|_| is_urgent(decide(&mut controller, &vms))));
}

#[test]
fn urgent_rivals_on_a_pcpu_cancel_out() {
    let mut controller = controller("asymmetric", LATENCY);
    let late = [(60, 0), (10, 40)];
    let mut vms = [vm(1, &late), vm(2, &late)];
    let slices = |controller: &mut Controller, vms: &mut [VmObservation]| {
        for _ in 0..8 {
            let host = HostObservation::with_any_knobs(T, vms.to_vec(), IdleTimes::new());
            let round = controller.decide(&host);
            apply(&round.decisions, vms);
        }
        [0, 1].map(|at: usize| vms[at].vcpus[1].in_force.slice)
    };
    // Both on pCPU 1 only.
    assert_eq!(slices(&mut controller, &mut vms), [None, None]);
    let host = HostObservation::with_any_knobs(T, vms.to_vec(), IdleTimes::new());
    let round = controller.decide(&host);
    let urgency = |id: u64| round.vcpus[&VmId(id)][1].urgency;
    assert_eq!([urgency(1), urgency(2)], [latency::MAX_LEVEL; 2]);
    // One of them may go elsewhere, so neither is always in the other's way.
    let shortest = Some(Nanos(100_000));
    vms[1].vcpus[1].allowed = "0-1".parse().unwrap();
    assert_eq!(slices(&mut controller, &mut vms), [shortest, shortest]);
    vms[1].vcpus[1].allowed = "1".parse().unwrap();
    assert_eq!(slices(&mut controller, &mut vms), [None, None]);
    // One of them is content: after a while the other has no rival.
    vms[1].vcpus[1].waited = Nanos::ZERO;
    for _ in 0..40 {
        slices(&mut controller, &mut vms);
    }
    assert_eq!(slices(&mut controller, &mut vms), [shortest, None]);
}

#[test]
fn delegated_weight_makes_no_vcpu_urgent() {
    // Two VMs in one slice, and one below a tenant's slice, with the maximum weight.
    // By the slices' weights its fair share is one pCPU of the two, and it uses that up.
    let mut vms = [vm(1, &[(25, 75); 2]), vm(2, &[(25, 75); 2]), vm(3, &[(50, 40); 2])];
    for (at, vm) in vms.iter_mut().enumerate() {
        let group = u32::from(at == 2);
        vm.siblings = group;
        vm.levels = vec![Level { group, weight: Weight::constant(100.0), quota: None }];
    }
    vms[2].weight = Weight::constant(10_000.0);
    let mut controller = controller("asymmetric", AsymmetricConfig::default());
    for _ in 0..10 {
        let host = HostObservation::with_any_knobs(T, vms.to_vec(), IdleTimes::new());
        let round = controller.decide(&host);
        for (vm, due) in [(1, 50), (2, 50), (3, 100)] {
            let vcpus = round.vcpus[&VmId(vm)].iter();
            let all: Nanos = vcpus.map(|vcpu| vcpu.allocation).sum();
            let off = all.0.abs_diff(Nanos::from_millis(due).0);
            assert!(off < 1_000, "VM {vm}: {all}");
        }
        assert_eq!(round.decisions, []);
    }
}

#[test]
fn urgent_siblings_on_one_pcpu_are_no_rivals() {
    let mut controller = controller("asymmetric", LATENCY);
    let mut vms = with_competitors(vm(1, &[(10, 40), (10, 40)]));
    for vcpu in &mut vms[0].vcpus {
        vcpu.allowed = "0".parse().unwrap();
    }
    for _ in 0..8 {
        let decisions = decide(&mut controller, &vms);
        apply(&decisions, &mut vms);
    }
    let shortest = Some(Nanos(100_000));
    let slices: Vec<_> = vms[0].vcpus.iter().map(|v| v.in_force.slice).collect();
    assert_eq!(slices, [shortest, shortest]);
}

#[test]
fn refused_restore_keeps_usual_settings() {
    let mut controller = controller("asymmetric", AsymmetricConfig::default());
    let mut vms = with_competitors(vm(1, &[(45, 20), (2, 20)]));
    for _ in 0..6 {
        let decisions = decide(&mut controller, &vms);
        apply(&decisions, &mut vms);
    }
    assert_ne!(vms[0].vcpus[0].in_force.nice, Nice(0));
    assert_ne!(vms[0].vcpus[1].in_force.slice, None);
    for vcpu in &mut vms[0].vcpus {
        (vcpu.waited, vcpu.runnable) = (Nanos::ZERO, false);
    }
    // The host refuses, each time.
    for _ in 0..300 {
        decide(&mut controller, &vms);
    }
    for _ in 0..2 {
        let decisions = decide(&mut controller, &vms);
        apply(&decisions, &mut vms);
    }
    for vcpu in &vms[0].vcpus {
        assert_eq!((vcpu.in_force.nice, vcpu.in_force.slice), (Nice(0), None));
    }
    assert_eq!(decide(&mut controller, &vms), []);
}
