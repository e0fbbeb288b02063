//! The policy `flexs`, in periods: its swaps, and the VMs that it leaves alone.

use tandem_model::branch_counters::{BranchCounts, Counted, CounterSource};
use tandem_model::{
    Because, Decision, Knob, Nanos, Nice, Target, VcpuId, VcpuObservation, VmId, VmObservation,
    Weight,
};
use tandem_policy::flexs::{Basis, SwapAction};
use tandem_policy::flexw::Round;
use tandem_policy::host::flexs::{EVERY, Left, Refusal, SpinOutcome};
use tandem_policy::host::policy::Scope;
use tandem_policy::host::{
    ControllerConfig, HostObservation, IdleTimes, Placement, Policy, registry,
};

const T: Nanos = Nanos::from_millis(100);

/// Recorded counters of a period: a spin loop with PAUSE, and a program that computes.
const SPIN: [u64; 3] = [3_000_000, 1_000_000, 1000];
const WORK: [u64; 3] = [200_000_000, 32_000_000, 960_000];

/// vCPU i on pCPU i, each with its running and waiting time in ms, and its counters.
fn vm(id: u64, vcpus: &[(u64, u64, [u64; 3])]) -> VmObservation {
    let vcpus = (0u32..).zip(vcpus).map(|(n, &(ran, waited, counts))| VcpuObservation {
        ran: Nanos::from_millis(ran),
        waited: Nanos::from_millis(waited),
        runnable: true,
        branches: Some(Counted {
            counts: BranchCounts {
                instructions: counts[0],
                branches: counts[1],
                mispredicted: counts[2],
            },
            source: CounterSource::Synthetic,
            truth: None,
        }),
        ..VcpuObservation::new(VcpuId(n), n.to_string().parse().unwrap())
    });
    VmObservation::new(VmId(id), Weight::constant(1024.0), vcpus.collect())
}

/// vCPU 0 has a pCPU to itself and spins; vCPU 1 waits for its own for two thirds of the time, and computes.
fn spinning() -> VmObservation {
    vm(1, &[(100, 0, SPIN), (33, 67, WORK)])
}

/// The policy alone.
struct World {
    policy: Box<dyn Policy>,
    scope: Scope,
    vms: Vec<VmObservation>,
    last: Round,
    elapsed: Nanos,
}

impl World {
    fn new(vms: Vec<VmObservation>, placement: Placement) -> World {
        let policies = registry::parse("flexs").unwrap();
        let config = ControllerConfig { placement, ..ControllerConfig::new(policies) };
        let (id, entry) = registry::entries(policies).next().unwrap();
        World {
            policy: (entry.build)(&config),
            scope: Scope(id),
            vms,
            last: Round::default(),
            elapsed: T,
        }
    }

    /// Runs `periods` periods in which other policies decided `begun`; returns all decisions of
    /// the policy, none of them applied.
    fn periods(&mut self, periods: u32, begun: &Round) -> Vec<Decision> {
        let mut decided = Vec::new();
        for _ in 0..periods {
            let host = HostObservation {
                elapsed: Some(self.elapsed),
                ..HostObservation::with_any_knobs(T, self.vms.clone(), IdleTimes::new())
            };
            let mut round = begun.clone();
            self.policy.decide(&host, self.scope, &mut round);
            decided.extend(round.decisions.split_off(begun.decisions.len()));
            self.last = round;
        }
        decided
    }

    /// Sets running and waiting time, in ms, and counts of vCPU `n` of the first VM from now on;
    /// no counts if it did not run.
    fn now(&mut self, n: usize, ran: u64, waited: u64, counts: Option<[u64; 3]>) {
        let fresh = vm(1, &[(ran, waited, counts.unwrap_or_default())]);
        let vcpu = &mut self.vms[0].vcpus[n];
        (vcpu.ran, vcpu.waited) = (fresh.vcpus[0].ran, fresh.vcpus[0].waited);
        vcpu.branches = counts.and(fresh.vcpus[0].branches);
    }

    fn refused(&self) -> Vec<(u32, Refusal)> {
        let spins = self.last.spins.iter();
        let refused = spins.flat_map(|report| &report.refused);
        refused.map(|(vcpu, why)| (vcpu.0, *why)).collect()
    }

    fn outcome(&self, vcpu: usize) -> SpinOutcome {
        self.last.spins[vcpu].outcome
    }
}

/// The vCPUs that are moved, and where to.
fn moves(decisions: &[Decision]) -> Vec<(u32, String)> {
    let moves = decisions.iter().filter_map(|decision| match decision {
        Decision::SetAffinity { vcpu, pcpus, .. } => Some((vcpu.0, pcpus.to_string())),
        _ => None,
    });
    moves.collect()
}

#[test]
fn spinning_and_waiting_vcpus_swap_with_reasons() {
    let mut world = World::new(vec![spinning()], Placement::Rebalance);
    // No VM is moved before it was observed for some periods.
    assert!(world.periods(EVERY - 1, &Round::default()).is_empty());
    let decided = world.periods(1, &Round::default());
    assert_eq!(moves(&decided), [(0, "1".to_owned()), (1, "0".to_owned())]);
    let because: Vec<String> = decided.iter().map(|d| d.because().to_string()).collect();
    assert_eq!(
        because[0],
        "busy-waits on pCPU 0: 0.3333 branches per instruction (most of its VM 0.3333), 0.0010 of them mispredicted (least 0.0010), \
         by synthetic counters; it changes places with vCPU 1, which waits on pCPU 1"
    );
    assert_eq!(
        because[1],
        "waits 67 % of the time on pCPU 1, and vCPU 0, which busy-waits, gives it pCPU 0"
    );
    let found = |outcome| matches!(outcome, SpinOutcome::Decided(SwapAction::Swap { .. }));
    assert!(found(world.outcome(0)) && !found(world.outcome(1)));
}

#[test]
fn swaps_of_a_vm_are_some_periods_apart() {
    let mut world = World::new(vec![spinning()], Placement::Rebalance);
    let decided = world.periods(10 * EVERY, &Round::default());
    assert_eq!(moves(&decided).len(), 20);
    world.periods(1, &Round::default());
    assert_eq!(world.outcome(0), SpinOutcome::Left(Left::Recent));
}

#[test]
fn all_vms_of_a_group_get_swaps() {
    let vms = (1..=6).map(|id| VmObservation { vm: VmId(id), ..spinning() });
    let mut world = World::new(vms.collect(), Placement::Rebalance);
    let decided = world.periods(EVERY - 1 + 12, &Round::default());
    for id in 1..=6 {
        let of_vm = decided.iter().filter(|decision| decision.vm() == VmId(id));
        assert_eq!(of_vm.count(), 4, "VM {id}: two swaps");
    }
}

#[test]
fn uniformly_spinning_vm_is_left_alone() {
    // A fair window of 10 s has 100 periods.
    let alike = vm(1, &[(33, 67, SPIN), (100, 0, SPIN)]);
    let mut world = World::new(vec![alike], Placement::Rebalance);
    assert_eq!(world.periods(350, &Round::default()), []);
}

#[test]
fn swap_exchanges_weights_and_nice_values() {
    let mut own_groups = spinning();
    for (vcpu, weight) in own_groups.vcpus.iter_mut().zip([300.0, 700.0]) {
        vcpu.in_force.weight = Some(Weight::constant(weight));
    }
    let decided = World::new(vec![own_groups], Placement::Rebalance).periods(4, &Round::default());
    let weights: Vec<_> = decided
        .iter()
        .filter_map(|decision| match decision {
            Decision::SetWeight { target, weight, .. } => Some((*target, weight.value())),
            _ => None,
        })
        .collect();
    let of = |n| Target::Vcpu(VmId(1), VcpuId(n));
    assert_eq!(weights, [(of(0), 700.0), (of(1), 300.0)]);

    let mut nice = spinning();
    nice.vcpus[1].in_force.nice = Nice(5);
    let decided = World::new(vec![nice], Placement::Rebalance).periods(4, &Round::default());
    let values: Vec<_> = decided
        .iter()
        .filter_map(|decision| match decision {
            Decision::SetNice { vcpu, nice, .. } => Some((vcpu.0, nice.0)),
            _ => None,
        })
        .collect();
    assert_eq!(values, [(0, 5), (1, 0)]);
    // Equal ones are left.
    let decided = World::new(vec![spinning()], Placement::Rebalance).periods(4, &Round::default());
    assert!(decided.iter().all(|d| d.knob() == Knob::Affinity));
}

#[test]
fn no_swaps_without_counters_or_permission() {
    let mut blind = spinning();
    for vcpu in &mut blind.vcpus {
        vcpu.branches = None;
    }
    let mut world = World::new(vec![blind], Placement::Rebalance);
    assert!(world.periods(20, &Round::default()).is_empty());
    assert!(world.last.spins.is_empty());
    for placement in [Placement::Keep, Placement::Turns] {
        let mut world = World::new(vec![spinning()], placement);
        assert!(world.periods(20, &Round::default()).is_empty());
        assert_eq!(world.outcome(0), SpinOutcome::Left(Left::Placement));
    }
    let mut apart = spinning();
    apart.in_force.idle = true;
    let mut world = World::new(vec![apart], Placement::Rebalance);
    assert!(world.periods(20, &Round::default()).is_empty());
}

#[test]
fn equally_waiting_sibling_is_not_swapped() {
    // Both wait for the same time.
    let even = vm(1, &[(40, 60, SPIN), (40, 60, WORK)]);
    let mut world = World::new(vec![even], Placement::Rebalance);
    assert!(world.periods(20, &Round::default()).is_empty());
    let SpinOutcome::Decided(SwapAction::GoOn { because }) = world.outcome(0) else {
        panic!("{:?}", world.outcome(0));
    };
    assert!(because.to_string().contains("no sibling waits with work"));
}

#[test]
fn spinning_sibling_is_no_candidate() {
    let both = vm(1, &[(100, 0, SPIN), (33, 67, SPIN)]);
    let mut world = World::new(vec![both], Placement::Rebalance);
    assert!(world.periods(20, &Round::default()).is_empty());
}

#[test]
fn no_swaps_while_another_policy_moves() {
    let moved = Round {
        decisions: vec![Decision::SetAffinity {
            vm: VmId(1),
            vcpu: VcpuId(1),
            pcpus: "0".parse().unwrap(),
            because: Because::Configured,
        }],
        ..Round::default()
    };
    let mut world = World::new(vec![spinning()], Placement::Rebalance);
    assert!(world.periods(20, &moved).is_empty());
    assert_eq!(world.outcome(0), SpinOutcome::Left(Left::Moving));
}

#[test]
fn siblings_are_never_stacked() {
    let three = vm(1, &[(100, 0, SPIN), (33, 67, WORK), (50, 50, WORK)]);
    let mut world =
        World::new(vec![three, vm(2, &[(0, 0, WORK), (67, 33, WORK)])], Placement::Rebalance);
    for _ in 0..100 {
        for decision in world.periods(1, &Round::default()) {
            if let Decision::SetAffinity { vm, vcpu, pcpus, .. } = decision {
                let vm = world.vms.iter_mut().find(|v| v.vm == vm).unwrap();
                let vcpu = vm.vcpus.iter_mut().find(|v| v.vcpu == vcpu).unwrap();
                vcpu.granted.get_or_insert_with(|| vcpu.allowed.clone());
                vcpu.allowed = pcpus;
            }
        }
        let mut on: Vec<_> = world.vms[0].vcpus.iter().map(|v| v.position()).collect();
        on.sort();
        on.dedup();
        assert_eq!(on.len(), 3, "stacked");
    }
}

#[test]
fn spinning_sliver_does_not_end_swaps() {
    let mut world = World::new(vec![spinning()], Placement::Rebalance);
    world.periods(EVERY, &Round::default());
    // vCPU 1 was kept off its pCPU, and the end of a period cut its loop at the barrier after
    // 1,500 turns, one of them mispredicted.
    world.now(1, 1, 99, Some([4500, 1500, 1]));
    world.periods(1, &Round::default());
    world.now(1, 33, 67, Some(WORK));
    let decided = world.periods(3 * EVERY, &Round::default());
    assert_eq!(moves(&decided).len(), 2 * 3, "{:?}", world.outcome(0));
}

#[test]
fn stopped_spinner_becomes_candidate() {
    // Both spin; vCPU 1 has computed before, so that there is a contrast.
    let mut world = World::new(vec![spinning()], Placement::Rebalance);
    world.periods(1, &Round::default());
    world.now(1, 33, 67, Some(SPIN));
    assert!(world.periods(EVERY, &Round::default()).is_empty());
    let refused = [(1, Refusal::Spins), (0, Refusal::WaitsTooLittle)];
    assert_eq!(world.refused(), refused);
    // It is released, and waits for its pCPU since: there is no sign that it still spins.
    world.now(1, 0, 0, None);
    let decided = world.periods(EVERY, &Round::default());
    assert_eq!(moves(&decided), [(0, "1".to_owned()), (1, "0".to_owned())]);
    // The same holds for one that ran for too short a time to tell.
    world.now(1, 33, 67, Some(SPIN));
    assert!(world.periods(EVERY, &Round::default()).is_empty());
    world.now(1, 1, 99, Some([4500, 1500, 1]));
    assert!(!world.periods(1, &Round::default()).is_empty());
}

#[test]
fn cpuset_without_other_pcpu_prevents_swap() {
    for (vcpu, cpuset) in [(0, "0"), (1, "1")] {
        let mut pinned = spinning();
        pinned.vcpus[vcpu].cpuset = Some(cpuset.parse().unwrap());
        let mut world = World::new(vec![pinned], Placement::Rebalance);
        assert!(world.periods(20, &Round::default()).is_empty());
        assert_eq!(world.refused(), [(1, Refusal::Cpuset)]);
    }
    let mut wide = spinning();
    for vcpu in &mut wide.vcpus {
        vcpu.cpuset = Some("0-3".parse().unwrap());
    }
    let mut world = World::new(vec![wide], Placement::Rebalance);
    assert!(!world.periods(EVERY, &Round::default()).is_empty());
}

#[test]
fn swap_decisions_identify_their_swap() {
    let mut nice = spinning();
    nice.vcpus[1].in_force.nice = Nice(5);
    let decided = World::new(vec![nice], Placement::Rebalance).periods(EVERY, &Round::default());
    assert_eq!(decided.len(), 4);
    let swap = decided[0].swap().expect("it is part of a swap");
    assert_eq!((swap.vm, swap.vcpus), (VmId(1), [VcpuId(0), VcpuId(1)]));
    assert!(decided.iter().all(|decision| decision.swap() == Some(swap)));
}

#[test]
fn fair_window_counts_skipped_periods() {
    // One period of ten needs a decision, so a window of 10 s has ten of them.
    let mut world = World::new(vec![spinning()], Placement::Rebalance);
    world.elapsed = Nanos(10 * T.0);
    let mut new = 0;
    for _ in 0..100 {
        world.periods(1, &Round::default());
        new += u32::from(world.last.spins[0].verdict.basis == Basis::WarmingUp);
    }
    // Two decisions of each window judge no vCPU.
    assert!((18..=22).contains(&new), "in 100 s: {new}");
}
