//! The policy `apart`: which VMs are divided, in which portions, and when they are put together again.

use tandem_model::{
    Decision, Nanos, PcpuSet, VcpuId, VcpuObservation, VmId, VmObservation, Weight,
};
use tandem_policy::host::{Controller, ControllerConfig, HostObservation, IdleTimes, registry};

const T: Nanos = Nanos::from_millis(100);

/// vCPU i on pCPU i mod 2, each with its running and waiting time in ms.
fn pinned(id: u64, vcpus: &[(u64, u64)]) -> VmObservation {
    let vcpus = (0u32..).zip(vcpus).map(|(n, &(ran, waited))| {
        let pcpus: PcpuSet = (n % 2).to_string().parse().unwrap();
        VcpuObservation {
            ran: Nanos::from_millis(ran),
            waited: Nanos::from_millis(waited),
            ..VcpuObservation::new(VcpuId(n), pcpus)
        }
    });
    VmObservation {
        divisible: true,
        ..VmObservation::new(VmId(id), Weight::constant(1024.0), vcpus.collect())
    }
}

/// Four vCPUs on two pCPUs that block and wait: the case for this policy.
fn crowded() -> VmObservation {
    pinned(1, &[(25, 25); 4])
}

/// Its neighbour: two vCPUs that compute.
fn burn() -> VmObservation {
    pinned(2, &[(50, 50); 2])
}

struct Host {
    controller: Controller,
    vms: Vec<VmObservation>,
}

impl Host {
    fn new(vms: Vec<VmObservation>) -> Host {
        let policies = registry::set(["fair", "turns", "apart"]).unwrap();
        Host { controller: Controller::new(ControllerConfig::new(policies)), vms }
    }

    /// Runs a period and applies the divisions; returns them.
    fn period(&mut self) -> Vec<(VmId, Vec<f64>)> {
        let host = HostObservation::with_any_knobs(T, self.vms.clone(), IdleTimes::new());
        let round = self.controller.decide(&host);
        let rotation = round.rotation.unwrap();
        let mut divided = Vec::new();
        for decision in round.decisions {
            if let Decision::Divide { vm, portions, .. } = decision {
                let managed = self.vms.iter_mut().find(|observed| observed.vm == vm);
                for vcpu in &mut managed.unwrap().vcpus {
                    let portion = portions.iter().find(|(id, _)| *id == vcpu.vcpu);
                    vcpu.in_force.portion = portion.map(|(_, portion)| *portion);
                }
                divided.push((vm, portions.into_iter().map(|(_, portion)| portion).collect()));
            }
        }
        for vm in &mut self.vms {
            vm.in_force.rotating = rotation.member(vm.vm).is_some();
            assert!(!(vm.in_force.rotating && vm.is_apart()), "{vm:?}");
        }
        divided
    }

    /// Returns the number of periods until VM 1 is divided otherwise, and its portions; `None`: not within 50.
    fn until_divided(&mut self) -> Option<(usize, Vec<f64>)> {
        (1..=50).find_map(|period| {
            let divided = self.period();
            assert!(divided.len() <= 1, "{divided:?}");
            let (vm, portions) = divided.into_iter().next()?;
            assert_eq!(vm, VmId(1));
            Some((period, portions))
        })
    }
}

#[test]
fn crowded_vm_is_divided_after_two_seconds() {
    let mut host = Host::new(vec![crowded(), burn()]);
    assert_eq!(host.until_divided(), Some((19, vec![0.25; 4])));
    assert_eq!(host.until_divided(), None, "once is enough");
}

#[test]
fn portions_follow_runnable_time_with_minimum() {
    // 80, 40, 20 and 0 ms of 100: the last counts as a quarter of the largest.
    let vm = pinned(1, &[(40, 40), (20, 20), (10, 10), (0, 0)]);
    let mut host = Host::new(vec![vm, burn()]);
    let (_, portions) = host.until_divided().unwrap();
    let expected = [0.5, 0.25, 0.125, 0.125];
    let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
    assert!(portions.iter().zip(&expected).all(close), "{portions:?}");
}

#[test]
fn portions_follow_demands() {
    let mut host = Host::new(vec![crowded(), burn()]);
    host.until_divided().unwrap();
    set_runnable(&mut host, [90, 30, 30, 30]);
    let (_, portions) = host.until_divided().unwrap();
    assert!(portions[0] > 0.33 && portions[1] < 0.23, "{portions:?}");
    let sum: f64 = portions.iter().sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
}

#[test]
fn hotplugged_vcpu_gets_a_group() {
    let mut host = Host::new(vec![crowded(), burn()]);
    host.until_divided().unwrap();
    let more = pinned(1, &[(20, 20); 5]);
    host.vms[0].vcpus.extend(more.vcpus.into_iter().skip(4));
    let (period, portions) = host.until_divided().unwrap();
    assert_eq!((period, portions.len()), (1, 5));
}

#[test]
fn content_or_awake_vm_is_put_together() {
    for now in [(10, 0), (50, 50)] {
        let mut host = Host::new(vec![crowded(), burn()]);
        host.until_divided().unwrap();
        for vcpu in &mut host.vms[0].vcpus {
            vcpu.ran = Nanos::from_millis(now.0);
            vcpu.waited = Nanos::from_millis(now.1);
        }
        let (periods, portions) = host.until_divided().unwrap();
        assert!(portions.is_empty());
        // The averages need some periods to get there.
        assert!((10..=30).contains(&periods), "{now:?}: {periods}");
    }
}

/// Lets the vCPUs of the first VM run or wait for this long in each period.
fn set_runnable(host: &mut Host, could: [u64; 4]) {
    for (vcpu, could) in host.vms[0].vcpus.iter_mut().zip(could) {
        vcpu.ran = Nanos::from_millis(could.min(25));
        vcpu.waited = Nanos::from_millis(could.saturating_sub(25));
    }
}

#[test]
fn spinning_vm_takes_turns_undivided() {
    for quiet in [4, 40, 80] {
        let mut host = Host::new(vec![crowded(), burn()]);
        set_runnable(&mut host, [quiet / 4; 4]);
        (0..20).for_each(|_| assert!(host.period().is_empty()));
        set_runnable(&mut host, [100; 4]);
        (0..40).for_each(|_| assert!(host.period().is_empty(), "{quiet}"));
        assert!(host.vms[0].in_force.rotating);
    }
}

#[test]
fn waits_across_periods_are_no_sleep() {
    let mut host = Host::new(vec![crowded(), burn()]);
    for period in 0..60 {
        let could = if period % 2 == 0 { [85, 115, 85, 115] } else { [115, 85, 115, 85] };
        set_runnable(&mut host, could);
        assert!(host.period().is_empty(), "{period}");
    }
}

#[test]
fn alternating_demand_divides_ever_less_often() {
    let divides = |periods: usize| {
        let mut host = Host::new(vec![crowded(), burn()]);
        let mut divides = 0;
        for period in 0..periods {
            set_runnable(&mut host, if period % 60 < 30 { [80; 4] } else { [5; 4] });
            divides += host.period().len();
        }
        divides
    };
    let (minute, ten) = (divides(600), divides(6000));
    assert!((2..=12).contains(&minute), "{minute}");
    // It is retried after 60 s at the latest.
    assert!(ten <= minute + 30, "{minute} {ten}");
}

#[test]
fn one_vm_is_divided_per_period() {
    let mut vms: Vec<VmObservation> = (1..=6).map(|id| pinned(id, &[(10, 40); 4])).collect();
    vms.push(pinned(7, &[(30, 70); 2]));
    let mut host = Host::new(vms);
    let divided: Vec<usize> = (0..30).map(|_| host.period().len()).collect();
    assert_eq!(divided[..18], [0; 18]);
    assert_eq!(divided[18..24], [1; 6]);
    assert!(host.vms[..6].iter().all(VmObservation::is_apart));
}

#[test]
fn unplugged_vcpu_leaves_its_portion() {
    let mut host = Host::new(vec![pinned(1, &[(12, 13); 8]), burn()]);
    host.until_divided().unwrap();
    host.vms[0].vcpus.truncate(7);
    let (periods, portions) = host.until_divided().unwrap();
    assert_eq!((periods, portions.len()), (1, 7));
    assert!((portions.iter().sum::<f64>() - 1.0).abs() < 1e-9);
}

#[test]
fn portions_below_knob_resolution_are_not_made() {
    use tandem_policy::host::{Knobs, WeightKnob};
    for (weight, divides) in [(16.0, true), (15.0, false)] {
        let policies = registry::set(["apart"]).unwrap();
        let mut controller = Controller::new(ControllerConfig::new(policies));
        let vm = VmObservation {
            divisible: true,
            ..VmObservation::new(VmId(1), Weight::saturating(weight), crowded().vcpus)
        };
        let host = HostObservation {
            knobs: Knobs::all(WeightKnob::CGROUP_V2),
            ..HostObservation::with_any_knobs(T, vec![vm], IdleTimes::new())
        };
        let rounds = (0..30).map(|_| controller.decide(&host));
        assert_eq!(rounds.map(|round| round.decisions.len()).sum::<usize>() > 0, divides);
    }
}

#[test]
fn written_weight_is_sum_of_rounded_portions() {
    let knob = tandem_policy::host::WeightKnob::CGROUP_V2;
    let mut vm = crowded();
    assert_eq!(knob.written(&vm, Weight::constant(101.3)), Weight::constant(101.0));
    for (vcpu, portion) in vm.vcpus.iter_mut().zip([0.4, 0.3, 0.2, 0.1]) {
        vcpu.in_force.portion = Some(portion);
    }
    // 40.4, 30.3, 20.2 and 10.1.
    assert_eq!(knob.written(&vm, Weight::constant(101.3)), Weight::constant(100.0));
    // 0.4, 0.3, 0.2 and 0.1: all below the minimum.
    assert_eq!(knob.written(&vm, Weight::constant(1.0)), Weight::constant(4.0));
}

#[test]
fn ineligible_vms_stay_together() {
    let never_sleeps = pinned(1, &[(50, 50); 4]);
    let a_pcpu_each = pinned(1, &[(40, 40); 2]);
    let content = pinned(1, &[(10, 0); 4]);
    let not_ours = VmObservation { divisible: false, ..crowded() };
    let mut capped = crowded();
    capped.in_force.quota = Some(1.0);
    // By a cap on a cgroup above.
    let mut throttled = crowded();
    for vcpu in &mut throttled.vcpus {
        vcpu.limited = Nanos::from_millis(25);
    }
    let mut idle = crowded();
    idle.in_force.idle = true;
    for vm in [never_sleeps, a_pcpu_each, content, not_ours, capped, throttled, idle] {
        let mut host = Host::new(vec![vm.clone(), burn()]);
        assert_eq!(host.until_divided(), None, "{vm:?}");
    }
}

#[test]
fn idle_pcpus_prevent_division() {
    let mut host = Host::new(vec![crowded(), burn()]);
    let idle: IdleTimes = [0, 1].map(|p| (tandem_model::PcpuId(p), Nanos::from_millis(40))).into();
    for vcpu in &mut host.vms[0].vcpus {
        vcpu.ran = Nanos::from_millis(15);
    }
    host.vms.truncate(1);
    for _ in 0..20 {
        let observed = HostObservation::with_any_knobs(T, host.vms.clone(), idle.clone());
        let round = host.controller.decide(&observed);
        let divides = |decision: &Decision| matches!(decision, Decision::Divide { .. });
        assert!(!round.decisions.iter().any(divides));
    }
}

#[test]
fn indivisible_vm_is_put_together_at_once() {
    let mut host = Host::new(vec![crowded(), burn()]);
    host.until_divided().unwrap();
    host.vms[0].in_force.quota = Some(1.0);
    assert_eq!(host.until_divided(), Some((1, Vec::new())));
}
