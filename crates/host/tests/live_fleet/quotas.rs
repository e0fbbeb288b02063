//! Hard caps of any origin and place: on a VM's own cgroup, on those of its vCPUs, or on an ancestor.

use std::thread::sleep;
use std::time::{Duration, Instant};

use tandem_linux::cgroup::{CgroupPath, Knob};
use tandem_model::{Decision, Nanos, VmObservation};
use tandem_policy::host::{Host, HostObservation};
use tandem_policy::{FlexW, FlexWConfig};

use crate::harness::{Skip, Test};
use crate::helper::wait_until;
use crate::host::{LiveHost, controller};
use crate::subject::{OWNER, SHARED, Subject};

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("quotas::of_its_own_cgroup_bounds_a_vm", own),
    ("quotas::of_its_vcpus_cgroups_bound_a_vm", of_vcpus),
    ("quotas::of_a_cgroup_above_bounds_a_vm", above),
    ("quotas::one_set_and_lifted_meanwhile_is_seen", meanwhile),
];

const PERIOD: Nanos = Nanos::from_millis(100);

/// Cap of the VM, as text and in pCPUs: so small that the VM receives it even on a busy machine.
const CAP: &str = "4000 100000";
const PCPUS: f64 = 0.04;

fn set(cgroup: &CgroupPath, text: &str) -> Result<(), Skip> {
    let written = controller()?.write_knob(cgroup, Knob::Quota, text);
    written.map_err(|error| Skip(error.to_string()))
}

/// Makes both VMs' vCPUs spin.
fn spin(live_host: &mut LiveHost) {
    for vcpu in 0..2 {
        live_host.owner.tell(&format!("spin {vcpu}"));
        live_host.shared.tell(&format!("spin {vcpu}"));
    }
}

/// Lets a period pass since `last`, and returns its observation.
/// On a busy machine it is longer; then the times are scaled down.
fn period(subject: &mut Subject, last: &mut Instant) -> Vec<VmObservation> {
    sleep(Duration::from_nanos(PERIOD.0));
    let now = Instant::now();
    let elapsed = now.duration_since(std::mem::replace(last, now)).as_nanos() as u64;
    let mut observed = subject.fleet.observe(Nanos(elapsed), PERIOD, true);
    let shorten = |time: &mut Nanos| time.0 = time.0 * PERIOD.0 / elapsed.max(PERIOD.0);
    for vcpu in observed.iter_mut().flat_map(|vm| &mut vm.vcpus) {
        shorten(&mut vcpu.ran);
        shorten(&mut vcpu.waited);
        shorten(&mut vcpu.limited);
    }
    observed
}

fn of(observed: &[VmObservation], vm: tandem_model::VmId) -> &VmObservation {
    let mut all = observed.iter();
    all.find(|observed| observed.vm == vm).expect("it is in it")
}

fn pcpus(time: Nanos) -> f64 {
    time.0 as f64 / PERIOD.0 as f64
}

/// Checks that the VM is throttled without waiting: its fair share is the rest of the cap.
/// For three seconds its weight and the other's stay near their values.
fn holds(subject: &mut Subject) {
    let mut last = Instant::now();
    period(subject, &mut last);
    wait_until("it is throttled", || {
        let observed = period(subject, &mut last);
        let owner = of(&observed, OWNER);
        owner.limited() > Nanos(PERIOD.0 / 4)
    });
    let mut policy = FlexW::new(FlexWConfig::default());
    let (mut due, mut limited, mut waited) = (0.0, 0.0, 0.0);
    let periods = 30;
    for _ in 0..periods {
        let mut vms = period(subject, &mut last);
        // The decided weights are observed, without any write. As siblings the VMs would gain by each other's weights.
        for vm in &mut vms {
            vm.siblings = 0;
            let weight = policy.real_time_weight(vm.vm);
            vm.in_force.weight = weight.unwrap_or(vm.weight);
        }
        let host = HostObservation::with_any_knobs(PERIOD, vms, Default::default());
        let round = policy.decide(&host, |_| true);
        for decision in &round.decisions {
            if let Decision::SetWeight { weight, .. } = decision {
                let usual = subject.fleet.controller().default_weight();
                let factor = weight.value() / usual.value();
                // Without writes the noise of the lags accumulates; without knowledge of the cap it went to a hundredth.
                assert!((0.2..=5.0).contains(&factor), "{decision:?}");
            }
        }
        let accounts = round.groups.iter().flat_map(|group| &group.vms);
        let account = accounts.into_iter().find(|account| account.vm == OWNER);
        due += pcpus(account.expect("it is in a group").fair) / f64::from(periods);
        let owner = of(&host.vms, OWNER);
        limited += pcpus(owner.limited());
        waited += pcpus(owner.vcpus.iter().map(|vcpu| vcpu.waited).sum());
    }
    assert!(due < 1.5 * PCPUS, "due {due:.3} of {PCPUS}");
    // Other load on this machine determines its other waits.
    let part = limited / (limited + waited);
    assert!(part > 0.1, "throttled {limited:.2}, waited {waited:.2}");
    // The other VM has the rest of the host.
    let observed = period(subject, &mut last);
    assert_eq!(of(&observed, SHARED).limited(), Nanos::ZERO);
    assert_eq!(of(&observed, SHARED).in_force.quota, None);
}

fn own() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    live_host.enable_controller_as_operator();
    set(&live_host.own, CAP)?;
    spin(&mut live_host);
    let before = live_host.snapshot();
    let mut subject = Subject::acting_on(live_host)?;
    assert_eq!(subject.observe(OWNER).in_force.quota, Some(PCPUS));
    holds(&mut subject);
    assert_eq!(subject.restore().snapshot(), before);
    Ok(())
}

fn of_vcpus() -> Result<(), Skip> {
    let mut live_host = LiveHost::like_libvirt()?;
    let controller = controller()?;
    for thread in live_host.own_threads() {
        let group = controller.cgroup_of(&thread).expect("it lives");
        set(&group, "2000 100000")?;
    }
    spin(&mut live_host);
    let mut subject = Subject::acting_on(live_host)?;
    assert_eq!(subject.observe(OWNER).in_force.quota, Some(PCPUS));
    holds(&mut subject);
    // One vCPU is uncapped, so a further pCPU is left.
    let thread = subject.thread(OWNER, 1);
    let group = controller.cgroup_of(&thread).expect("it lives");
    set(&group, "max 100000")?;
    subject.recheck();
    let left = subject.observe(OWNER).in_force.quota.expect("one has a cap");
    assert!((left - 1.02).abs() < 1e-9, "{left}");
    Ok(())
}

fn above() -> Result<(), Skip> {
    let machine = CgroupPath("/machine.slice".to_owned());
    if controller()?.exists(&machine) {
        let why = format!("{machine} belongs to others here");
        return Err(Skip(why));
    }
    let mut live_host = LiveHost::like_libvirt()?;
    assert_eq!(live_host.own.parent(), Some(machine.clone()));
    set(&machine, CAP)?;
    spin(&mut live_host);
    let mut subject = Subject::acting_on(live_host)?;
    let observed = subject.observe(OWNER);
    assert_eq!(observed.in_force.quota, None, "it has none of its own");
    let quotas = observed.levels.iter().map(|level| level.quota);
    assert_eq!(quotas.collect::<Vec<_>>(), [Some(PCPUS)]);
    holds(&mut subject);
    Ok(())
}

fn meanwhile() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    live_host.enable_controller_as_operator();
    spin(&mut live_host);
    let mut subject = Subject::acting_on(live_host)?;
    let own = subject.cgroup(OWNER);
    assert_eq!(subject.observe(OWNER).in_force.quota, None);
    set(&own, CAP)?;
    subject.recheck();
    assert_eq!(subject.observe(OWNER).in_force.quota, Some(PCPUS));
    holds(&mut subject);
    set(&own, "max 100000")?;
    subject.recheck();
    assert_eq!(subject.observe(OWNER).in_force.quota, None);
    assert_eq!(period(&mut subject, &mut Instant::now())[1].limited(), Nanos::ZERO);
    Ok(())
}
