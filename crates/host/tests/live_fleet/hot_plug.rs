//! vCPUs that come, go and cannot be read while the controller runs, and VMs that end.

use tandem_host::discovery::{VcpuThread, Vm};
use tandem_linux::ProcFs;
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::Knob;
use tandem_linux::thread::{Pid, ThreadRef};
use tandem_model::{Nanos, PcpuSet, VcpuId, VmId, VmObservation, Weight};
use tandem_policy::host::Host;

use crate::harness::{Skip, Test};
use crate::helper::{Helper, vcpu_threads, wait_until};
use crate::host::{LiveHost, controller, nice};
use crate::subject::{
    OWNER, SHARED, Subject, UPDATES, describe, set_affinity, set_idle, set_nice, set_slice,
    set_weight, single, whole,
};

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("a_vcpu_comes_and_goes_and_its_vm_stays_in_sight", comes_and_goes),
    ("a_weight_per_vcpu_follows_its_vcpus", weight_per_vcpu),
    ("all_vcpus_change_and_the_vm_stays_in_sight", all_change),
    ("a_vcpu_is_pinned_by_its_number_beside_one_that_cannot_be_read", pinned_by_number),
    ("a_vcpu_plugged_again_has_a_group_as_new", plugged_again),
    ("a_vcpu_that_cannot_be_moved_leaves_its_vm_in_care", cannot_be_moved),
    ("a_vm_let_go_alive_gets_everything_back", let_go_alive),
    ("a_vm_that_dies_is_let_go", dies),
];

/// Returns the numbers of the vCPUs in an observation.
fn numbers(seen: &VmObservation) -> Vec<u32> {
    seen.vcpus.iter().map(|vcpu| vcpu.vcpu.0).collect()
}

/// Starts a vCPU thread of the shared VM, and waits until it has its name.
fn start_vcpu(subject: &mut Subject, vcpu: u32) {
    let before = subject.live_host.threads().len();
    subject.live_host.shared.tell(&format!("start shared/vcpu{vcpu}"));
    subject.live_host.shared.next_line();
    wait_until("the new vCPU has its name", || subject.live_host.threads().len() == before + 1);
}

/// Ends a vCPU thread of the shared VM, one of the first three.
fn end_vcpu(subject: &mut Subject, vcpu: u32) {
    let before = subject.live_host.threads().len();
    subject.live_host.shared.tell(&format!("end {vcpu}"));
    wait_until("the vCPU has ended", || subject.live_host.threads().len() == before - 1);
}

fn comes_and_goes() -> Result<(), Skip> {
    let mut subject = Subject::acting()?;
    subject.apply(set_weight(whole(SHARED), 700.0));
    let configured = subject.observe(SHARED).weight;
    let check = |subject: &mut Subject, vcpus: &[u32]| {
        // The first of these periods sees the change.
        for _ in 0..3 {
            let seen = subject.observe(SHARED);
            assert_eq!(numbers(&seen), vcpus);
            let weights = (seen.weight, seen.in_force.weight);
            assert_eq!(weights, (configured, Weight::constant(700.0)));
            assert_eq!(numbers(&subject.observe(OWNER)), [0, 1]);
        }
        let group = subject.cgroup(SHARED);
        assert_eq!(subject.weight(&group), Weight::constant(700.0));
        let inside = subject.fleet.controller().threads(&group);
        assert_eq!(inside.expect("it exists").len(), vcpus.len());
    };
    check(&mut subject, &[0, 1, 2]);
    start_vcpu(&mut subject, 7);
    subject.update();
    check(&mut subject, &[0, 1, 2, 7]);
    end_vcpu(&mut subject, 1);
    // Before the next scan it is listed, and cannot be read.
    assert_eq!(numbers(&subject.observe(SHARED)), [0, 2, 7]);
    assert_eq!(numbers(&subject.observe(SHARED)), [0, 2, 7]);
    subject.update();
    check(&mut subject, &[0, 2, 7]);
    start_vcpu(&mut subject, 1);
    subject.update();
    check(&mut subject, &[0, 1, 2, 7]);
    Ok(())
}

fn weight_per_vcpu() -> Result<(), Skip> {
    let mut subject = Subject::weighing_vcpus()?;
    let default = subject.fleet.controller().default_weight().value();
    let group = subject.cgroup(SHARED);
    let check = |subject: &mut Subject, vcpus: u32, in_force: f64| {
        let seen = subject.observe(SHARED);
        assert_eq!(seen.weight, Weight::saturating(default * f64::from(vcpus)));
        assert_eq!(seen.in_force.weight, Weight::saturating(in_force));
        assert_eq!(subject.weight(&group), Weight::saturating(in_force));
    };
    check(&mut subject, 3, default * 3.0);
    start_vcpu(&mut subject, 7);
    let notes = subject.update();
    assert!(notes.iter().any(|note| note.contains("with 4 vCPUs")), "{notes:?}");
    check(&mut subject, 4, default * 4.0);
    // The policy's weight factor moves with it.
    subject.apply(set_weight(whole(SHARED), default * 2.0));
    end_vcpu(&mut subject, 1);
    end_vcpu(&mut subject, 2);
    subject.update();
    check(&mut subject, 2, default);
    assert!(subject.recheck().is_empty(), "nothing is foreign");
    check(&mut subject, 2, default);
    // A foreign weight counts for the present vCPUs, and scales from there.
    let controller = subject.fleet.controller();
    let written = controller.write_knob(&group, Knob::Weight, "640");
    written.expect("the kernel takes it");
    subject.recheck();
    assert_eq!(subject.observe(SHARED).weight, Weight::constant(640.0));
    start_vcpu(&mut subject, 1);
    subject.update();
    assert_eq!(subject.weight(&group), Weight::constant(960.0));
    Ok(())
}

fn all_change() -> Result<(), Skip> {
    let mut subject = Subject::acting()?;
    subject.apply(set_weight(whole(OWNER), 700.0));
    let [shared, owner] = subject.vms();
    let only = |vcpu: usize| Vm { vcpus: vec![owner.vcpus[vcpu]], ..owner.clone() };
    for vcpu in [0, 1, 0] {
        subject.update_with(&[shared.clone(), only(vcpu)]);
        let seen = subject.observe(OWNER);
        assert_eq!(numbers(&seen), [vcpu as u32]);
        assert_eq!(seen.in_force.weight, Weight::constant(700.0));
    }
    Ok(())
}

fn pinned_by_number() -> Result<(), Skip> {
    let mut subject = Subject::acting()?;
    let (one, two) = (subject.thread(SHARED, 1), subject.thread(SHARED, 2));
    // Without a scan in between, the thread has ended and its vCPU is still listed.
    end_vcpu(&mut subject, 0);
    let seen = subject.observe(SHARED);
    let position = seen.vcpus.iter().position(|vcpu| vcpu.vcpu == VcpuId(2));
    assert_eq!(position, Some(1), "{:?}", numbers(&seen));
    // Another managed vCPU has that position: a lookup by position would pin the wrong thread.
    let in_care = subject.fleet.vm(SHARED).expect("managed").allowed();
    assert_eq!((in_care.len(), in_care[1].0), (3, VcpuId(1)));
    let all = affinity(one.tid).expect("a mask");
    let pcpus: PcpuSet = all.iter().take(1).collect();
    if pcpus == all {
        return Err(Skip("needs two pCPUs".to_owned()));
    }
    subject.apply(set_affinity(SHARED, 2, &pcpus));
    assert_eq!(affinity(two.tid).expect("a mask"), pcpus);
    assert_eq!(affinity(one.tid).expect("a mask"), all, "and no other");
    assert_eq!(subject.observe_vcpu(SHARED, 2).allowed, pcpus);
    assert_eq!(subject.observe_vcpu(SHARED, 1).allowed, all);
    // A vCPU that has ended is no error.
    subject.apply(set_affinity(SHARED, 0, &pcpus));
    subject.apply(set_weight(single(SHARED, 0), 50.0));
    let below = subject.fleet.controller().children(&subject.cgroup(SHARED));
    assert_eq!(below.expect("it exists"), [], "nor is a group made for it");
    subject.update();
    assert_eq!(numbers(&subject.observe(SHARED)), [1, 2]);
    Ok(())
}

fn plugged_again() -> Result<(), Skip> {
    let mut subject = Subject::acting()?;
    let has_idle = subject.fleet.knobs().idle;
    subject.apply(set_weight(single(SHARED, 1), 640.0));
    if has_idle {
        subject.apply(set_idle(single(SHARED, 1), true));
    }
    let group = subject.group_of(SHARED, 1);
    let listed = subject.vms();
    end_vcpu(&mut subject, 1);
    // Late scans do not remove its group from the list.
    for _ in 0..UPDATES {
        assert_eq!(subject.update_with(&listed), Vec::<String>::new());
    }
    subject.update();
    assert!(!subject.fleet.controller().exists(&group), "it went with it");
    start_vcpu(&mut subject, 1);
    subject.update();
    let seen = subject.observe_vcpu(SHARED, 1).in_force;
    assert_eq!((seen.weight, seen.idle), (None, false));
    subject.apply(set_weight(single(SHARED, 1), 50.0));
    let group = subject.group_of(SHARED, 1);
    assert_eq!(subject.weight(&group), Weight::constant(50.0));
    if has_idle {
        assert!(!subject.is_idle(&group));
    }
    Ok(())
}

fn cannot_be_moved() -> Result<(), Skip> {
    // A kernel thread that is bound to its pCPU cannot leave the root cgroup.
    let procfs = ProcFs::host();
    let bound = (2..64).find_map(|pid| {
        let thread = ThreadRef::of_process(&procfs, Pid(pid)).ok()?;
        let stat = thread.stat(&procfs).ok()?;
        (stat.kernel_thread && stat.comm.starts_with("ksoftirqd/")).then_some(thread)
    });
    let Some(thread) = bound else {
        return Err(Skip("no thread of the kernel is seen from here".to_owned()));
    };
    let mut subject = Subject::acting()?;
    subject.apply(set_weight(whole(SHARED), 700.0));
    let [mut shared, owner] = subject.vms();
    let index = VcpuId(9);
    shared.vcpus.push(VcpuThread { index, thread });
    // Foreign changes of other settings are still seen.
    let group = subject.cgroup(SHARED);
    let written = controller()?.set_weight(&group, Weight::constant(650.0));
    written.expect("the kernel takes it");
    let mut noted = Vec::new();
    for _ in 0..UPDATES {
        let vms = [shared.clone(), owner.clone()];
        let (notes, refused) = subject.fleet.update(&vms, &vms);
        noted.extend(notes);
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(refused[0].vm, "shared");
        let seen = subject.observe(SHARED);
        assert_eq!(numbers(&seen), [0, 1, 2]);
        let weight = if noted.is_empty() { 700.0 } else { 650.0 };
        assert_eq!(seen.in_force.weight, Weight::saturating(weight));
    }
    assert_eq!(noted.len(), 1, "{noted:?}");
    subject.update();
    Ok(())
}

fn let_go_alive() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    let mut subject = Subject::acting_on(live_host)?;
    let all = affinity(subject.thread(SHARED, 1).tid).expect("a mask");
    let one: PcpuSet = all.iter().take(1).collect();
    for vm in [SHARED, OWNER] {
        subject.apply(set_weight(whole(vm), 700.0));
        subject.apply(set_weight(single(vm, 1), 640.0));
        subject.apply(set_nice(vm, 1, 7));
        subject.apply(set_affinity(vm, 1, &one));
        if subject.fleet.knobs().slice.is_some() {
            subject.apply(set_slice(vm, 1, Some(Nanos(500_000))));
        }
        if subject.fleet.knobs().idle {
            subject.apply(set_idle(whole(vm), true));
        }
    }
    let [_, owner] = subject.vms();
    let notes = subject.update_with(&[owner]);
    assert!(notes.iter().any(|note| note.contains("shared")), "{notes:?}");
    let thread = subject.live_host.threads()[1];
    assert_eq!(nice(&thread), 0);
    assert_eq!(affinity(thread.tid).expect("a mask"), all);
    subject.update_with(&[]);
    assert_eq!(subject.live_host.snapshot(), before, "no restore was needed");
    Ok(())
}

fn dies() -> Result<(), Skip> {
    let mut subject = Subject::acting()?;
    let id = VmId(3);
    let helper = Helper::start("vm", &["brief", "2"]);
    let brief = describe(id, &helper);
    let [shared, owner] = subject.vms();
    let vms = [shared.clone(), owner.clone(), brief];
    subject.update_with(&vms);
    assert_eq!(subject.find(id), None, "its account begins");
    assert_eq!(numbers(&subject.observe(id)), [0, 1]);
    subject.apply(set_weight(single(id, 1), 640.0));
    let cgroup = subject.cgroup(id);
    let pid = helper.pid();
    helper.kill();
    assert!(!ProcFs::host().process(pid).exists() || vcpu_threads(pid).is_empty());
    // Listed once more by a scan that was slightly too early.
    subject.update_with(&vms);
    assert_eq!(subject.find(id), None);
    subject.apply(set_weight(whole(id), 50.0));
    let notes = subject.update_with(&[shared, owner]);
    assert!(notes.iter().any(|note| note.contains("brief")), "{notes:?}");
    assert!(!subject.fleet.controller().exists(&cgroup));
    Ok(())
}
