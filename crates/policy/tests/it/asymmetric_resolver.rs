//! The resolver of the policy `asymmetric`: whom it moves, when, and how it gets along with policies that move vCPUs too.

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

/// vCPU i on pCPU i, each with what it ran and waited, in ms.
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

/// The policy alone, in rounds of which others may have decided something.
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

    /// So many rounds that begin like this one; returns the moves that the policy asks for, and makes them.
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

/// A round in which a VM takes turns.
fn with_turns(vm: u64) -> Round {
    let member = Member { vm: VmId(vm), seats: Default::default(), roams: None, due: 0.5 };
    Round {
        rotation: Some(Rotation { turn: Nanos::from_millis(20), members: vec![member] }),
        ..Round::default()
    }
}

#[test]
fn vcpus_of_two_vms_swap_where_pins_put_too_much_on_one_pcpu() {
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
fn with_pins_to_be_kept_nobody_moves() {
    let mut world = World::new(crowded(), Placement::Turns);
    assert_eq!(world.rounds(30, &Round::default()), []);
}

#[test]
fn a_group_waits_in_a_round_in_which_another_policy_moves_one_of_its_vcpus() {
    let mut world = World::new(crowded(), Placement::Rebalance);
    assert_eq!(world.rounds(30, &with_move(2, 0, "1")), []);
    // It is there already, so nothing moves.
    assert_eq!(world.rounds(30, &with_move(2, 1, "1")).len(), 2);
}

#[test]
fn vms_for_which_nothing_else_is_changed_are_not_moved_either() {
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
    // Who should go from pCPU 0 is the first vCPU of VM 2, and if it must stay that of VM 1.
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
fn a_vm_that_uses_little_of_what_it_is_due_is_no_load() {
    // Each is due 100 ms, of which its first vCPU is allocated nearly all; but they use a fifth of that.
    let vms = [1, 2].map(|id| vm(id, &[(20, 0), (1, 0)])).to_vec();
    let mut world = World::new(vms, Placement::Rebalance);
    assert_eq!(world.rounds(30, &Round::default()), []);
}

/// Four VMs whose first vCPUs sleep, and come too late, on pCPU 0; nobody needs much.
fn late() -> Vec<VmObservation> {
    (1..5).map(|id| vm(id, &[(10, 12), (5, 0)])).collect()
}

#[test]
fn urgent_vcpus_that_come_too_late_beside_each_other_are_spread() {
    let mut world = World::new(late(), Placement::Rebalance);
    let moved = world.rounds(12, &Round::default());
    let urgent = moved.iter().filter(|(_, vcpu, _)| *vcpu == VcpuId(0));
    assert_eq!((urgent.count(), moved.len()), (2, 4), "{moved:?}");
}

#[test]
fn who_came_too_late_long_ago_is_not_moved_for_it() {
    let mut world = World::new(late(), Placement::Rebalance);
    // Nothing can be moved meanwhile.
    let held = with_move(1, 0, "7");
    world.rounds(8, &held);
    for vm in &mut world.vms {
        vm.vcpus[0].waited = Nanos::ZERO;
    }
    // Still urgent, as that goes slowly.
    world.rounds(30, &held);
    assert_eq!(world.rounds(10, &Round::default()), []);
}

#[test]
fn a_vcpu_that_roams_is_let_go_after_its_swap_unless_it_takes_turns_now() {
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
        let let_go = world.rounds(1, &begun);
        let of_vm: Vec<_> = let_go.iter().filter(|(id, ..)| *id == vm).collect();
        assert_eq!(of_vm.is_empty(), takes_turns, "{let_go:?}");
        assert!(of_vm.iter().all(|(.., why)| *why == Because::MayRoam));
    }
}
