//! The controller on a small host of plain data: rounding, permissions, unchanged settings,
//! current settings as the only state, identities, dry runs, policies of single VMs.

use std::collections::BTreeMap;

use tandem_model::{
    Decision, Knob, Nanos, PcpuId, PolicySet, Target, VcpuId, VcpuObservation, VmId, VmObservation,
    Weight,
};
use tandem_policy::host::{
    Controller, ControllerConfig, Host, IdleTimes, Knobs, Period, Placement, WeightKnob, registry,
};
use tandem_policy::turns::Rotation;

const PERIOD: Nanos = Nanos::from_millis(100);

/// Weight of a group in the idle class.
const IDLE_WEIGHT: f64 = 3.0;

/// A vCPU that always wants to run, pinned to one pCPU.
#[derive(Clone)]
struct Burner {
    vcpu: u32,
    pcpu: u32,
    /// Whether its thread can be read now.
    readable: bool,
}

#[derive(Clone)]
struct Vm {
    configured: f64,
    weight: f64,
    idle: bool,
    policies: PolicySet,
    vcpus: Vec<Burner>,
}

/// pCPUs that divide each period by the current weights of the vCPUs pinned there; a VM's is
/// split evenly over its vCPUs.
struct PinnedHost {
    vms: BTreeMap<u64, Vm>,
    pcpus: u32,
    now: Nanos,
    idle: IdleTimes,
    /// Number of weights that can still be written; further writes are refused.
    writes_left: u32,
    knob: WeightKnob,
    applied: Vec<Decision>,
}

impl PinnedHost {
    /// A host of two pCPUs without VMs.
    fn new() -> PinnedHost {
        PinnedHost {
            vms: BTreeMap::new(),
            pcpus: 2,
            now: Nanos::ZERO,
            idle: IdleTimes::new(),
            writes_left: u32::MAX,
            knob: WeightKnob::CGROUP_V2,
            applied: Vec::new(),
        }
    }

    /// Adds a VM of the usual weight with a vCPU on each of these pCPUs.
    fn vm(mut self, id: u64, pins: &[u32]) -> PinnedHost {
        let vcpus = (0..).zip(pins).map(|(vcpu, &pcpu)| Burner { vcpu, pcpu, readable: true });
        let vm = Vm {
            configured: 100.0,
            weight: 100.0,
            idle: false,
            policies: fair(),
            vcpus: vcpus.collect(),
        };
        self.vms.insert(id, vm);
        self
    }

    fn weight(&self, vm: u64) -> f64 {
        self.vms[&vm].weight
    }

    /// A vCPU's share of its pCPU.
    fn share(&self, vm: &Vm, pcpu: u32) -> f64 {
        let own =
            |vm: &Vm| if vm.idle { IDLE_WEIGHT / 10.24 } else { vm.weight / vm.vcpus.len() as f64 };
        let all: f64 = self
            .vms
            .values()
            .flat_map(|vm| vm.vcpus.iter().map(move |vcpu| (vm, vcpu)))
            .filter(|(_, vcpu)| vcpu.pcpu == pcpu)
            .map(|(vm, _)| own(vm))
            .sum();
        own(vm) / all
    }
}

impl Host for PinnedHost {
    type Applied = usize;

    fn idle(&mut self) -> (Nanos, IdleTimes) {
        self.now += PERIOD;
        for pcpu in 0..self.pcpus {
            let used = self.vms.values().any(|vm| vm.vcpus.iter().any(|v| v.pcpu == pcpu));
            let idle = self.idle.entry(PcpuId(pcpu)).or_insert(Nanos::ZERO);
            *idle += if used { Nanos::ZERO } else { PERIOD };
        }
        (self.now, self.idle.clone())
    }

    fn knobs(&self) -> Knobs {
        Knobs::all(self.knob)
    }

    fn observe(&mut self, elapsed: Nanos, period: Nanos, _closely: bool) -> Vec<VmObservation> {
        assert!(elapsed.0 >= period.0, "no period is shorter than the nominal one");
        let vm = |(&id, vm): (&u64, &Vm)| {
            let vcpus = vm.vcpus.iter().filter(|vcpu| vcpu.readable).map(|vcpu| {
                let ran = Nanos((period.0 as f64 * self.share(vm, vcpu.pcpu)) as u64);
                VcpuObservation {
                    ran,
                    waited: period - ran,
                    runnable: true,
                    ..VcpuObservation::new(
                        VcpuId(vcpu.vcpu),
                        [PcpuId(vcpu.pcpu)].into_iter().collect(),
                    )
                }
            });
            let mut observed =
                VmObservation::new(VmId(id), Weight::saturating(vm.configured), vcpus.collect());
            observed.in_force.weight = Weight::saturating(vm.weight);
            observed.in_force.idle = vm.idle;
            observed.policies = vm.policies;
            observed
        };
        self.vms.iter().map(vm).collect()
    }

    fn apply(&mut self, decisions: &[Decision], _: Option<&Rotation>) -> usize {
        let mut made = 0;
        for decision in decisions {
            let Some(vm) = self.vms.get_mut(&decision.vm().0) else {
                continue;
            };
            match decision {
                Decision::SetWeight { weight, .. } if self.writes_left > 0 => {
                    self.writes_left -= 1;
                    vm.weight = weight.value();
                }
                Decision::SetAffinity { vcpu, pcpus, .. } => {
                    let to = pcpus.iter().next().unwrap();
                    let vcpu = vm.vcpus.iter_mut().find(|v| v.vcpu == vcpu.0).unwrap();
                    vcpu.pcpu = to.0;
                }
                _ => continue,
            }
            made += 1;
            self.applied.push(decision.clone());
        }
        made
    }
}

fn fair() -> PolicySet {
    registry::set(["fair"]).unwrap()
}

fn controller(change: impl FnOnce(&mut ControllerConfig)) -> Controller {
    let mut config = ControllerConfig::new(fair());
    change(&mut config);
    Controller::new(config)
}

fn run(controller: &mut Controller, host: &mut PinnedHost, periods: u32) -> Vec<Period<usize>> {
    controller.begin(host);
    (0..periods).filter_map(|_| controller.period(host)).collect()
}

fn decisions(periods: &[Period<usize>]) -> impl Iterator<Item = &Decision> {
    periods.iter().flat_map(|period| &period.round.decisions)
}

#[test]
fn weights_are_rounded_and_written_once() {
    let mut host = PinnedHost::new().vm(1, &[0, 1]).vm(2, &[0]);
    let periods = run(&mut controller(|_| {}), &mut host, 100);
    let mut in_force = BTreeMap::from([(VmId(1), 100.0), (VmId(2), 100.0)]);
    let mut written = 0;
    for decision in decisions(&periods) {
        let Decision::SetWeight { target: Target::Vm(vm), weight, .. } = decision else {
            panic!("{decision:?}");
        };
        assert_eq!(weight.value().fract(), 0.0, "{decision:?}");
        let before = in_force.insert(*vm, weight.value());
        assert_ne!(before, Some(weight.value()), "{decision:?} changes nothing");
        written += 1;
    }
    assert!(written > 4, "{written}");
    // One pCPU each.
    let share = host.share(&host.vms[&2], 0);
    assert!((share - 1.0).abs() < 0.03, "{share}");
}

#[test]
fn refused_write_is_retried() {
    let mut host = PinnedHost::new().vm(1, &[0, 1]).vm(2, &[0]);
    host.writes_left = 0;
    let mut controller = controller(|_| {});
    let refused = run(&mut controller, &mut host, 50);
    // The writes fail, so the same steps are requested again and again, and no larger ones.
    let largest = decisions(&refused).filter_map(|decision| match decision {
        Decision::SetWeight { weight, .. } => Some(weight.value()),
        _ => None,
    });
    assert!(largest.fold(0.0, f64::max) < 250.0);
    assert_eq!(host.weight(2), 100.0);
    host.writes_left = u32::MAX;
    for _ in 0..60 {
        controller.period(&mut host);
    }
    let share = host.share(&host.vms[&2], 0);
    assert!((share - 1.0).abs() < 0.03, "{share}");
}

#[test]
fn next_step_starts_from_foreign_weight() {
    let mut host = PinnedHost::new().vm(1, &[0, 1]).vm(2, &[0]);
    let mut controller = controller(|_| {});
    run(&mut controller, &mut host, 50);
    host.vms.get_mut(&2).unwrap().weight = 10.0;
    let next = controller.period(&mut host).unwrap();
    let to = next.round.decisions.iter().find_map(|decision| match decision {
        Decision::SetWeight { target: Target::Vm(VmId(2)), weight, .. } => Some(weight.value()),
        _ => None,
    });
    let to = to.unwrap();
    // One period multiplies a weight by 2.5 at most, before the sum is kept.
    assert!(to > 10.0 && to < 250.0, "{to}");
}

#[test]
fn dry_run_repeats_first_step() {
    let mut host = PinnedHost::new().vm(1, &[0, 1]).vm(2, &[0]);
    let dry = run(&mut controller(|config| config.dry_run = true), &mut host, 20);
    assert!(host.applied.is_empty());
    assert!(dry.iter().all(|period| period.applied.is_none()));
    let mut host = PinnedHost::new().vm(1, &[0, 1]).vm(2, &[0]);
    let wet = run(&mut controller(|_| {}), &mut host, 20);
    let first = |periods: &[Period<usize>]| decisions(periods).next().cloned().unwrap();
    assert_eq!(first(&dry), first(&wet), "a dry run says what would be done");
    // Nothing was written, so the last period requests no more than the smoothed lag does from the start.
    for decision in &dry.last().unwrap().round.decisions {
        let Decision::SetWeight { weight, .. } = decision else {
            panic!("{decision:?}");
        };
        assert!((40.0..=250.0).contains(&weight.value()), "{decision:?}");
    }
}

#[test]
fn vm_without_policy_counts_and_keeps_weight() {
    let mut host = PinnedHost::new().vm(1, &[0, 1]).vm(2, &[0]).vm(3, &[0]);
    for (vm, policies) in [(2, PolicySet::NONE), (3, registry::set(["configured"]).unwrap())] {
        host.vms.get_mut(&vm).unwrap().policies = policies;
    }
    host.vms.get_mut(&3).unwrap().weight = 55.0;
    let used = fair().or(registry::set(["configured"]).unwrap());
    let periods = run(&mut controller(|config| config.policies = used), &mut host, 60);
    assert_eq!(host.weight(2), 100.0, "no policy may change it");
    assert_eq!(host.weight(3), 100.0, "its configured weight, and nothing else");
    assert_ne!(host.weight(1), 100.0, "its neighbour is adjusted");
    let groups = &periods.last().unwrap().round.groups;
    assert_eq!(groups[0].vms.len(), 3, "all take part in the division");
}

#[test]
fn idle_class_vm_has_no_claim() {
    let mut host = PinnedHost::new().vm(1, &[0]).vm(2, &[0]).vm(3, &[0]);
    host.vms.get_mut(&3).unwrap().idle = true;
    let periods = run(&mut controller(|_| {}), &mut host, 60);
    for vm in 1..=3 {
        assert_eq!(host.weight(vm), 100.0, "VM {vm}: its neighbours are fair to each other");
    }
    let accounts = &periods.last().unwrap().round.groups[0].vms;
    let idle = accounts.iter().find(|account| account.vm == VmId(3)).unwrap();
    assert_eq!(idle.lag, 0.0);
}

#[test]
fn sum_does_not_drift_with_fixed_vm() {
    let mut host = PinnedHost::new().vm(1, &[0, 1]).vm(2, &[0]).vm(3, &[1]);
    // VM 3 never wants to run, and no policy may change it.
    let vm = host.vms.get_mut(&3).unwrap();
    vm.policies = PolicySet::NONE;
    vm.vcpus.clear();
    run(&mut controller(|_| {}), &mut host, 2000);
    let sum = host.weight(1) + host.weight(2);
    assert!((150.0..=1100.0).contains(&sum), "{sum}");
}

#[test]
fn affinities_change_by_permission_and_identity() {
    // Three VMs on pCPU 0 alone and one on both pCPUs: no weights make that fair.
    let crowded = || PinnedHost::new().vm(1, &[0, 1]).vm(2, &[0]).vm(3, &[0]).vm(4, &[0]);
    let mut host = crowded();
    let kept = run(&mut controller(|_| {}), &mut host, 40);
    assert!(decisions(&kept).all(|decision| decision.knob() != Knob::Affinity));
    let mut host = crowded();
    // vCPU 0 of VM 2 cannot be read: the VM's first observed vCPU is number 1.
    let vm = host.vms.get_mut(&2).unwrap();
    vm.vcpus = vec![
        Burner { vcpu: 0, pcpu: 9, readable: false },
        Burner { vcpu: 1, pcpu: 0, readable: true },
    ];
    let moved =
        run(&mut controller(|config| config.placement = Placement::Rebalance), &mut host, 40);
    let first = decisions(&moved).find(|decision| decision.knob() == Knob::Affinity);
    let Some(Decision::SetAffinity { vm: VmId(2), vcpu, pcpus, .. }) = first else {
        panic!("{first:?}");
    };
    assert_eq!(*vcpu, VcpuId(1), "by identity, not by position");
    assert_eq!(*pcpus, "1".parse().unwrap());
    assert_eq!((host.vms[&2].vcpus[0].pcpu, host.vms[&2].vcpus[1].pcpu), (9, 1));
}

#[test]
fn hotplugged_vcpu_does_not_reset_its_vm() {
    let mut host = PinnedHost::new().vm(1, &[0, 1]).vm(2, &[0]);
    let mut controller = controller(|_| {});
    run(&mut controller, &mut host, 60);
    let settled = host.weight(2);
    assert!(settled > 300.0, "{settled}");
    let came = Burner { vcpu: 1, pcpu: 1, readable: true };
    host.vms.get_mut(&2).unwrap().vcpus.push(came);
    let next = controller.period(&mut host).unwrap();
    assert_eq!(next.observation.vms.len(), 2, "it stays in the observation");
    let to = host.weight(2);
    assert!(
        to > settled / 3.0 && to > 150.0,
        "from {settled} to {to}: it goes on from where it was, not from the configured weight"
    );
    host.vms.get_mut(&2).unwrap().vcpus.pop();
    for _ in 0..60 {
        controller.period(&mut host);
    }
    let share = host.share(&host.vms[&2], 0);
    assert!((share - 1.0).abs() < 0.03, "{share}");
}

#[test]
fn idle_host_skips_most_decisions() {
    let mut host = PinnedHost::new().vm(1, &[0]);
    host.vms.get_mut(&1).unwrap().vcpus.clear();
    let mut controller = controller(|_| {});
    let periods = run(&mut controller, &mut host, 50);
    assert!((10..=12).contains(&periods.len()), "{}", periods.len());
}

/// The list that CONTRIBUTING.md refers to: a new policy is added here, too.
#[test]
fn the_registry_holds_these_policies() {
    let names: Vec<&str> = registry::REGISTRY.iter().map(|policy| policy.name).collect();
    assert_eq!(names, ["fair", "configured", "turns", "apart", "asymmetric", "flexs"]);
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../CONTRIBUTING.md"));
    let text = text.unwrap();
    for policy in registry::REGISTRY {
        assert!(
            text.contains(&format!("`crates/policy/src/host/{}.rs`", policy.name)),
            "CONTRIBUTING.md, \"A new policy\", does not name {}'s file",
            policy.name
        );
        let scenario = format!("scenarios/policy-{}.toml", policy.name);
        let path = format!("{}/../../{scenario}", env!("CARGO_MANIFEST_DIR"));
        assert!(
            text.contains(&scenario) && std::path::Path::new(&path).exists(),
            "{} has no {scenario}, or CONTRIBUTING.md does not name it",
            policy.name
        );
    }
}
