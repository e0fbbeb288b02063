//! The resolver of the policy `asymmetric`: its moves, and its interaction with other policies that move vCPUs.

use tandem_model::{
    Because, Decision, Nanos, VcpuId, VcpuObservation, VmId, VmObservation, Weight,
};
use tandem_policy::flexw::Round;
use tandem_policy::host::policy::Scope;
use tandem_policy::host::{
    ControllerConfig, HostObservation, IdleTimes, Placement, Policy, registry,
};
use tandem_policy::turns::{Member, Rotation};

const T: Nanos = Nanos::from_millis(100);

/// vCPU i on pCPU i, each with its running and waiting time in ms.
fn vm(id: u64, vcpus: &[(u64, u64)]) -> VmObservation {
    let vcpus = (0u32..).zip(vcpus).map(|(n, &(ran, waited))| VcpuObservation {
        ran: Nanos::from_millis(ran),
        waited: Nanos::from_millis(waited),
        runnable: true,
        ..VcpuObservation::new(VcpuId(n), n.to_string().parse().unwrap())
    });
    VmObservation::new(VmId(id), Weight::constant(1024.0), vcpus.collect())
}

/// Two VMs that need their vCPU 0, on the same pCPU.
fn crowded() -> Vec<VmObservation> {
    [1, 2].map(|id| vm(id, &[(50, 50), (5, 0)])).to_vec()
}

/// The policy alone, in rounds that may begin with decisions of other policies.
struct World {
    policy: Box<dyn Policy>,
    scope: Scope,
    vms: Vec<VmObservation>,
}

impl World {
    fn new(vms: Vec<VmObservation>, placement: Placement) -> World {
        let policies = registry::parse("asymmetric").unwrap();
        let config = ControllerConfig { placement, ..ControllerConfig::new(policies) };
        let (id, entry) = registry::entries(policies).next().unwrap();
        World { policy: (entry.build)(&config), scope: Scope(id), vms }
    }

    /// Runs `rounds` rounds that begin like this one; returns the moves that the policy decides, and applies them.
    fn rounds(&mut self, rounds: usize, begun: &Round) -> Vec<(VmId, VcpuId, Because)> {
        let mut moved = Vec::new();
        for _ in 0..rounds {
            let host = HostObservation::with_any_knobs(T, self.vms.clone(), IdleTimes::new());
            let mut round = begun.clone();
            self.policy.decide(&host, self.scope, &mut round);
            for decision in round.decisions.split_off(begun.decisions.len()) {
                let Decision::SetAffinity { vm, vcpu, pcpus, because } = decision else {
                    continue;
                };
                let vm = &mut self.vms[vm.0 as usize - 1];
                let at = vm.vcpus.iter_mut().find(|v| v.vcpu == vcpu).unwrap();
                at.granted.get_or_insert_with(|| at.allowed.clone());
                at.allowed = pcpus;
                moved.push((vm.vm, vcpu, because));
            }
        }
        moved
    }
}

/// A round in which `fair` moves a vCPU.
fn with_move(vm: u64, vcpu: u32, to: &str) -> Round {
    Round {
        decisions: vec![Decision::SetAffinity {
            vm: VmId(vm),
            vcpu: VcpuId(vcpu),
            pcpus: to.parse().unwrap(),
            because: Because::Configured,
        }],
        ..Round::default()
    }
}

/// A round in which a VM is in the rotation.
fn with_turns(vm: u64) -> Round {
    let member = Member { vm: VmId(vm), slots: Vec::new(), moves: false };
    Round {
        rotation: Some(Rotation {
            length: Nanos::from_millis(40),
            members: vec![member],
            ..Rotation::default()
        }),
        ..Round::default()
    }
}

#[test]
fn vcpus_on_crowded_pcpu_swap() {
    let mut world = World::new(crowded(), Placement::Rebalance);
    let moved = world.rounds(30, &Round::default());
    assert_eq!(moved.len(), 2, "{moved:?}");
    for (.., because) in &moved {
        assert!(matches!(because, Because::Swap { .. }), "{because:?}");
    }
    let position = |vm: usize, vcpu: usize| world.vms[vm].vcpus[vcpu].position();
    assert_ne!(position(0, 0), position(1, 0));
    for vm in 0..2 {
        assert_ne!(position(vm, 0), position(vm, 1), "stacked");
    }
}

#[test]
fn kept_pins_prevent_moves() {
    let mut world = World::new(crowded(), Placement::Turns);
    assert_eq!(world.rounds(30, &Round::default()), []);
}

#[test]
fn group_waits_for_moves_of_other_policies() {
    let mut world = World::new(crowded(), Placement::Rebalance);
    assert_eq!(world.rounds(30, &with_move(2, 0, "1")), []);
    // It is there already, so no vCPU moves.
    assert_eq!(world.rounds(30, &with_move(2, 1, "1")).len(), 2);
}

#[test]
fn unchanged_vms_are_not_moved() {
    let idle = |vm: &mut VmObservation| vm.in_force.idle = true;
    let rotating = |vm: &mut VmObservation| vm.in_force.rotating = true;
    let apart = |vm: &mut VmObservation| {
        for vcpu in &mut vm.vcpus {
            vcpu.in_force.portion = Some(0.5);
        }
    };
    let single = |vm: &mut VmObservation| vm.vcpus.truncate(1);
    type Change = fn(&mut VmObservation);
    let changes: [(&str, Change); 4] =
        [("idle", idle), ("rotating", rotating), ("apart", apart), ("single", single)];
    // The first vCPU of VM 2 should leave pCPU 0, or that of VM 1 if the former must stay.
    let of_three = || {
        let roams = |vm: &mut VmObservation, at: usize| {
            vm.vcpus[at].allowed = "0-2".parse().unwrap();
        };
        let mut vms = vec![
            vm(1, &[(30, 20), (5, 0)]),
            vm(2, &[(70, 30), (0, 0), (45, 0)]),
            vm(3, &[(5, 0), (5, 0)]),
        ];
        roams(&mut vms[0], 1);
        vms[1].vcpus.remove(1);
        roams(&mut vms[2], 0);
        vms
    };
    let mut world = World::new(of_three(), Placement::Rebalance);
    let moved = world.rounds(12, &Round::default());
    assert!(moved.iter().any(|(vm, ..)| *vm == VmId(2)), "{moved:?}");
    for (name, change) in changes {
        let mut vms = of_three();
        change(&mut vms[1]);
        let mut world = World::new(vms, Placement::Rebalance);
        let moved = world.rounds(12, &Round::default());
        let vms: Vec<u64> = moved.iter().map(|(vm, ..)| vm.0).collect();
        assert_eq!(vms, [1, 3], "{name}");
    }
    let mut world = World::new(crowded(), Placement::Rebalance);
    let moved = world.rounds(30, &with_turns(2));
    assert!(moved.iter().all(|(vm, ..)| *vm == VmId(1)), "{moved:?}");
}

#[test]
fn unused_fair_share_is_no_load() {
    // Each has a fair share of 100 ms, nearly all of it allocated to its first vCPU; but they use a fifth of that.
    let vms = [1, 2].map(|id| vm(id, &[(20, 0), (1, 0)])).to_vec();
    let mut world = World::new(vms, Placement::Rebalance);
    assert_eq!(world.rounds(30, &Round::default()), []);
}

/// Four VMs whose first vCPUs sleep, and get their time too late, on pCPU 0; none needs much.
fn late() -> Vec<VmObservation> {
    (1..5).map(|id| vm(id, &[(10, 12), (5, 0)])).collect()
}

#[test]
fn late_urgent_vcpus_are_spread() {
    let mut world = World::new(late(), Placement::Rebalance);
    let moved = world.rounds(12, &Round::default());
    let urgent = moved.iter().filter(|(_, vcpu, _)| *vcpu == VcpuId(0));
    assert_eq!((urgent.count(), moved.len()), (2, 4), "{moved:?}");
}

#[test]
fn old_lateness_causes_no_move() {
    let mut world = World::new(late(), Placement::Rebalance);
    // No vCPU can be moved meanwhile.
    let held = with_move(1, 0, "7");
    world.rounds(8, &held);
    for vm in &mut world.vms {
        vm.vcpus[0].waited = Nanos::ZERO;
    }
    // Still urgent, as urgency falls slowly.
    world.rounds(30, &held);
    assert_eq!(world.rounds(10, &Round::default()), []);
}

#[test]
fn roaming_vcpu_regains_affinity_unless_rotating() {
    for takes_turns in [false, true] {
        let mut vms = crowded();
        for vcpu in vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
            vcpu.pcpu = vcpu.position();
            vcpu.allowed = "0-1".parse().unwrap();
        }
        let mut world = World::new(vms, Placement::Rebalance);
        let swapped = (0..30).map(|_| world.rounds(1, &Round::default()));
        let swapped = swapped.into_iter().find(|moved| !moved.is_empty()).unwrap();
        let vm = swapped[0].0;
        let begun = if takes_turns { with_turns(vm.0) } else { Round::default() };
        let released = world.rounds(1, &begun);
        let of_vm: Vec<_> = released.iter().filter(|(id, ..)| *id == vm).collect();
        assert_eq!(of_vm.is_empty(), takes_turns, "{released:?}");
        assert!(of_vm.iter().all(|(.., why)| *why == Because::MayRoam));
    }
}
