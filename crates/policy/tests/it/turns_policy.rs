//! The policy `turns`: from observations to members, slots and restored settings.

use tandem_model::{
    Because, Decision, Nanos, PcpuSet, VcpuId, VcpuObservation, VmId, VmObservation, Weight,
};
use tandem_policy::flexw::Round;
use tandem_policy::host::{
    Controller, ControllerConfig, HostObservation, IdleTimes, Placement, registry,
};

const T: Nanos = Nanos::from_millis(100);

/// A host whose observations follow the decisions.
struct TestHost {
    controller: Controller,
    vms: Vec<VmObservation>,
}

impl TestHost {
    fn new(placement: Placement, vms: Vec<VmObservation>) -> TestHost {
        let config = ControllerConfig {
            placement,
            ..ControllerConfig::new(registry::set(["fair", "turns"]).unwrap())
        };
        TestHost { controller: Controller::new(config), vms }
    }

    /// Runs a period: decides, and applies the decisions.
    fn period(&mut self) -> Round {
        let host = HostObservation::with_any_knobs(T, self.vms.clone(), IdleTimes::new());
        let round = self.controller.decide(&host);
        for decision in &round.decisions {
            let vm = self.vms.iter_mut().find(|vm| vm.vm == decision.vm());
            let vm = vm.unwrap();
            match decision {
                Decision::SetWeight { weight, .. } => vm.in_force.weight = *weight,
                other => panic!("{other:?}"),
            }
        }
        for vm in &mut self.vms {
            let rotation = round.rotation.as_ref().unwrap();
            vm.in_force.rotating = rotation.member(vm.vm).is_some();
            vm.in_force.left_turns = false;
        }
        round
    }

    fn periods(&mut self, count: usize) -> Round {
        (0..count).map(|_| self.period()).last().unwrap()
    }
}

/// A VM of two vCPUs that never sleeps and gets half of each of two pCPUs.
fn busy(id: u64, allowed: &str) -> VmObservation {
    let allowed: PcpuSet = allowed.parse().unwrap();
    let vcpus = (0..2).map(|n| VcpuObservation {
        ran: Nanos::from_millis(50),
        waited: Nanos::from_millis(50),
        runnable: true,
        ..VcpuObservation::new(VcpuId(n), allowed.clone())
    });
    VmObservation::new(VmId(id), Weight::constant(1024.0), vcpus.collect())
}

fn members(round: &Round) -> Vec<u64> {
    let rotation = round.rotation.as_ref().unwrap();
    rotation.members.iter().map(|member| member.vm.0).collect()
}

#[test]
fn two_awake_vms_rotate_after_five_periods() {
    let mut host = TestHost::new(Placement::Turns, vec![busy(1, "0-1"), busy(2, "0-1")]);
    assert_eq!(members(&host.periods(4)), [0u64; 0]);
    let round = host.period();
    assert_eq!(members(&round), [1, 2]);
    assert_eq!(host.period().decisions, [], "the host moves vCPUs to their slots");
}

#[test]
fn throttled_vm_leaves_turns() {
    let mut host = TestHost::new(Placement::Turns, vec![busy(1, "0-1"), busy(2, "0-1")]);
    assert_eq!(members(&host.periods(5)), [1, 2]);
    for vcpu in &mut host.vms[0].vcpus {
        (vcpu.ran, vcpu.waited) = (Nanos::from_millis(40), Nanos::from_millis(30));
        vcpu.limited = Nanos::from_millis(30);
    }
    assert_eq!(members(&host.periods(5)), [2]);
}

#[test]
fn sleeping_vm_leaves_for_a_while() {
    let mut host = TestHost::new(Placement::Turns, vec![busy(1, "0-1"), busy(2, "0-1")]);
    host.periods(5);
    host.vms[0].in_force.left_turns = true;
    host.vms[0].in_force.rotating = false;
    let round = host.period();
    assert_eq!(members(&round), [2], "the other one has slots next to it");
    let raised = |decision: &Decision| matches!(decision.because(), Because::TakesTurns { raise } if *raise > 1.0);
    assert!(round.decisions.iter().any(raised), "{:?}", round.decisions);
    assert_eq!(members(&host.periods(3)), [2]);
    assert_eq!(members(&host.periods(2)), [1, 2], "five periods later it is back");
}

#[test]
fn kept_placement_rotates_only_pinned_vms() {
    let mut host = TestHost::new(Placement::Keep, vec![busy(1, "0-1"), busy(2, "0-1")]);
    assert_eq!(members(&host.periods(8)), [0u64; 0]);
    let mut pinned = vec![busy(1, "0"), busy(2, "0")];
    for vm in &mut pinned {
        vm.vcpus[1].allowed = "1".parse().unwrap();
    }
    let mut host = TestHost::new(Placement::Keep, pinned);
    let round = host.periods(8);
    assert_eq!(members(&round), [1, 2]);
    assert!(round.rotation.unwrap().members.iter().all(|member| !member.moves));
}

#[test]
fn idle_class_and_hard_cap_exclude_vm() {
    for change in [
        |vm: &mut VmObservation| vm.in_force.idle = true,
        |vm: &mut VmObservation| vm.in_force.quota = Some(1.0),
        // A cap on a cgroup above throttles one of its vCPUs.
        |vm: &mut VmObservation| {
            (vm.vcpus[0].waited, vm.vcpus[0].limited) =
                (Nanos::from_millis(45), Nanos::from_millis(15));
        },
    ] {
        let mut vms = vec![busy(1, "0-1"), busy(2, "0-1")];
        change(&mut vms[0]);
        let mut host = TestHost::new(Placement::Turns, vms);
        assert!(!members(&host.periods(8)).contains(&1));
    }
}

#[test]
fn only_siblings_take_turns_together() {
    let mut vms = vec![busy(1, "0-1"), busy(2, "0-1"), busy(3, "0-1")];
    vms[0].siblings = 7;
    let mut host = TestHost::new(Placement::Turns, vms);
    assert_eq!(members(&host.periods(8)), [2, 3]);
}

#[test]
fn lagging_vm_gets_longer_slots() {
    let mut host = TestHost::new(Placement::Turns, vec![busy(1, "0-1"), busy(2, "0-1")]);
    host.periods(5);
    for (vm, ms) in [(0, 45), (1, 55)] {
        for vcpu in &mut host.vms[vm].vcpus {
            vcpu.ran = Nanos::from_millis(ms);
            vcpu.waited = Nanos::from_millis(100 - ms);
        }
    }
    let round = host.periods(40);
    let rotation = round.rotation.unwrap();
    let parts: Vec<f64> = rotation.members.iter().map(|member| rotation.part(member)).collect();
    assert!(parts[0] > 0.51 && parts[1] < 0.49, "{parts:?}");
    assert!((parts[0] + parts[1] - 1.0).abs() < 0.03, "{parts:?}");
}

/// A VM with the running and waiting times of its vCPUs, pinned one to one, in each period, in ms.
fn pinned(id: u64, vcpus: &[(u64, u64)]) -> VmObservation {
    let vcpus = (0u32..).zip(vcpus).map(|(n, &(ran, waited))| VcpuObservation {
        ran: Nanos::from_millis(ran),
        waited: Nanos::from_millis(waited),
        ..VcpuObservation::new(VcpuId(n), n.to_string().parse().unwrap())
    });
    VmObservation::new(VmId(id), Weight::constant(1024.0), vcpus.collect())
}

#[test]
fn members_stay_in_spite_of_lag() {
    let behind = pinned(1, &[(30, 70), (30, 70)]);
    let mut host = TestHost::new(Placement::Keep, vec![behind, pinned(2, &[(70, 30); 2])]);
    host.periods(20);
    assert!((0..200).all(|_| {
        host.period();
        host.vms[0].in_force.rotating
    }));
}
