//! Decisions of each kind: applied, observed and read back from the kernel; refused; and left alone in a dry run.

use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::Knob;
use tandem_linux::sched_attr::{schedulers_slice, slice};
use tandem_model::{Nanos, Nice, PcpuSet, VmId, Weight};
use tandem_policy::host::{Host, Knobs};

use crate::harness::{Skip, Test};
use crate::host::{LiveHost, controller, nice};
use crate::subject::{
    OWNER, SHARED, Subject, operators_vcpu_group, set_affinity, set_idle, set_nice, set_slice,
    set_weight, single, whole,
};

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("weights_of_vms_and_vcpus_are_applied", weights),
    ("nice_values_and_affinities_are_applied", of_threads),
    ("slices_are_applied", slices),
    ("the_idle_class_of_vms_and_vcpus_is_applied", idle_class),
    ("a_group_that_a_vcpu_has_is_used", group_that_is_there),
    ("an_operators_idle_class_is_seen_from_the_start", operators_idle_class),
    ("a_refused_change_leaves_what_is_in_force", refused_changes),
    ("a_dry_run_changes_nothing", dry_run),
];

/// Returns the last pCPU that a thread may use.
fn last_of(pcpus: &PcpuSet) -> PcpuSet {
    pcpus.iter().last().into_iter().collect()
}

fn weights() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    let mut subject = Subject::acting_on(live_host)?;
    for (vm, made) in [(SHARED, true), (OWNER, false)] {
        assert_eq!(subject.fleet.vm(vm).expect("managed").made, made);
        subject.apply(set_weight(whole(vm), 700.0));
        assert_eq!(subject.observe(vm).in_force.weight, Weight::constant(700.0));
        assert_eq!(subject.weight(&subject.cgroup(vm)), Weight::constant(700.0));
        assert_eq!(subject.observe_vcpu(vm, 1).in_force.weight, None);
        for weight in [640.0, 333.0] {
            subject.apply(set_weight(single(vm, 1), weight));
            let seen = subject.observe_vcpu(vm, 1).in_force;
            assert_eq!((seen.weight, seen.idle), (Some(Weight::saturating(weight)), false));
            let group = subject.group_of(vm, 1);
            assert_eq!(subject.weight(&group), Weight::saturating(weight));
        }
        assert_eq!(subject.observe_vcpu(vm, 0).in_force.weight, None);
        let home = subject.fleet.controller();
        let home = home.cgroup_of(&subject.thread(vm, 0)).expect("it lives");
        assert_eq!(home, subject.cgroup(vm), "the other vCPUs stay");
        assert_eq!(subject.observe(vm).in_force.weight, Weight::constant(700.0));
    }
    // The VMs' vCPUs still belong to them at the next scans.
    assert_eq!(subject.recheck(), Vec::<String>::new());
    assert_eq!(subject.observe_vcpu(OWNER, 1).in_force.weight, Some(Weight::constant(333.0)));
    assert_eq!(subject.restore().snapshot(), before);
    Ok(())
}

fn of_threads() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    let mut subject = Subject::acting_on(live_host)?;
    for vm in [SHARED, OWNER] {
        let (changed, other) = (subject.thread(vm, 1), subject.thread(vm, 0));
        for value in [7, -5] {
            subject.apply(set_nice(vm, 1, value));
            assert_eq!(subject.observe_vcpu(vm, 1).in_force.nice, Nice(value));
            assert_eq!((nice(&changed), nice(&other)), (value, 0));
        }
        assert_eq!(subject.observe_vcpu(vm, 0).in_force.nice, Nice(0));
        let all = affinity(other.tid).expect("a mask");
        let one = last_of(&all);
        subject.apply(set_affinity(vm, 1, &one));
        assert_eq!(subject.observe_vcpu(vm, 1).allowed, one);
        assert_eq!(affinity(changed.tid).expect("a mask"), one);
        assert_eq!(subject.observe_vcpu(vm, 0).allowed, all);
        // The kernel's remaining part counts, and is not taken for a foreign write.
        let beyond: PcpuSet = format!("{one},8191").parse().expect("a list");
        subject.apply(set_affinity(vm, 1, &beyond));
        assert_eq!(subject.observe_vcpu(vm, 1).allowed, one);
    }
    assert_eq!(subject.recheck(), Vec::<String>::new());
    assert_eq!(subject.restore().snapshot(), before);
    Ok(())
}

fn slices() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    let mut subject = Subject::acting_on(live_host)?;
    let short = Some(Nanos(500_000));
    let Some(usual) = schedulers_slice() else {
        assert_eq!(subject.fleet.knobs().slice, None, "the controller knows");
        let error = subject.refused(set_slice(SHARED, 1, short));
        assert!(error.contains("6.12"), "{error}");
        assert_eq!(subject.observe_vcpu(SHARED, 1).in_force.slice, None);
        return Err(Skip(error));
    };
    assert_eq!(subject.fleet.knobs().slice, Some(Knobs::SLICES));
    for vm in [SHARED, OWNER] {
        let changed = subject.thread(vm, 1);
        // The last two are the kernel's results for a slice that is too short, and for its default.
        let (least, _) = Knobs::SLICES;
        for (asked, got) in [
            (short, short),
            (None, None),
            (Some(Nanos(5)), Some(least)),
            (Some(usual), None),
            (short, short),
        ] {
            subject.apply(set_slice(vm, 1, asked));
            assert_eq!(subject.observe_vcpu(vm, 1).in_force.slice, got);
            assert_eq!(slice(changed.tid).expect("it is read"), got);
            assert_eq!(subject.observe_vcpu(vm, 0).in_force.slice, None);
            assert_eq!(subject.recheck(), Vec::<String>::new(), "{asked:?}");
        }
        subject.apply(set_nice(vm, 1, 3));
        assert_eq!(subject.observe_vcpu(vm, 1).in_force.slice, short);
    }
    assert_eq!(subject.restore().snapshot(), before);
    Ok(())
}

fn idle_class() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    let mut subject = Subject::acting_on(live_host)?;
    subject.need_idle_class()?;
    for vm in [SHARED, OWNER] {
        let cgroup = subject.cgroup(vm);
        subject.apply(set_weight(whole(vm), 700.0));
        subject.apply(set_idle(whole(vm), true));
        assert!(subject.observe(vm).in_force.idle);
        assert!(subject.is_idle(&cgroup));
        // In the idle class there is no weight to set; the group gets this one when it leaves.
        subject.apply(set_weight(whole(vm), 800.0));
        assert!(subject.is_idle(&cgroup));
        subject.apply(set_idle(whole(vm), false));
        let seen = subject.observe(vm).in_force;
        assert_eq!((seen.idle, seen.weight), (false, Weight::constant(800.0)));
        assert!(!subject.is_idle(&cgroup));
        assert_eq!(subject.weight(&cgroup), Weight::constant(800.0));

        // The first decision about a vCPU makes its group.
        subject.apply(set_idle(single(vm, 0), true));
        let group = subject.group_of(vm, 0);
        assert!(subject.observe_vcpu(vm, 0).in_force.idle);
        assert!(subject.is_idle(&group) && !subject.is_idle(&cgroup));
        subject.apply(set_weight(single(vm, 0), 650.0));
        subject.apply(set_idle(single(vm, 0), false));
        let seen = subject.observe_vcpu(vm, 0).in_force;
        assert_eq!((seen.idle, seen.weight), (false, Some(Weight::constant(650.0))));
        assert!(!subject.is_idle(&group));
        assert_eq!(subject.weight(&group), Weight::constant(650.0));
        // A group without an explicit weight has the kernel's.
        subject.apply(set_idle(single(vm, 1), true));
        subject.apply(set_idle(single(vm, 1), false));
        let usual = subject.fleet.controller().default_weight();
        assert_eq!(subject.observe_vcpu(vm, 1).in_force.weight, Some(usual));
        assert_eq!(subject.weight(&subject.group_of(vm, 1)), usual);
        // A group left in the class is taken out at the end.
        subject.apply(set_idle(whole(vm), true));
        subject.apply(set_idle(single(vm, 1), true));
    }
    assert_eq!(subject.recheck(), Vec::<String>::new());
    assert_eq!(subject.restore().snapshot(), before);
    Ok(())
}

fn group_that_is_there() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    let theirs = operators_vcpu_group(&mut live_host, 0, Weight::constant(300.0));
    let before = live_host.snapshot();
    let mut subject = Subject::acting_on(live_host)?;
    assert_eq!(subject.cgroup(OWNER), subject.live_host.own);
    let seen = subject.observe_vcpu(OWNER, 0).in_force;
    assert_eq!(seen.weight, Some(Weight::constant(300.0)), "seen before any decision");
    subject.apply(set_weight(single(OWNER, 0), 400.0));
    let group = subject.group_of(OWNER, 0);
    assert_eq!(group, theirs);
    assert_eq!(subject.weight(&group), Weight::constant(400.0));
    if subject.fleet.knobs().idle {
        subject.apply(set_idle(single(OWNER, 0), true));
        subject.apply(set_idle(single(OWNER, 0), false));
        assert_eq!(subject.weight(&group), Weight::constant(400.0));
    }
    let live_host = subject.restore();
    assert_eq!(live_host.snapshot(), before);
    let weight = controller()?.weight(&group).expect("it exists");
    assert_eq!(weight, Weight::constant(300.0));
    Ok(())
}

fn operators_idle_class() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    let group = operators_vcpu_group(&mut live_host, 0, Weight::constant(300.0));
    let is_idle = || controller()?.is_idle(&group).map_err(|error| Skip(error.to_string()));
    if is_idle()?.is_none() {
        return Err(Skip("this kernel has no idle class for cgroups (Linux 5.15 has)".to_owned()));
    }
    let put = controller()?.set_idle(&group, true);
    put.expect("the kernel takes it");
    live_host.operator_sets(Knob::Idle, "1");
    let before = live_host.snapshot();
    let mut subject = Subject::acting_on(live_host)?;
    assert!(subject.observe(OWNER).in_force.idle);
    assert!(subject.observe_vcpu(OWNER, 0).in_force.idle);
    assert!(!subject.observe_vcpu(OWNER, 1).in_force.idle);
    let own = subject.cgroup(OWNER);
    subject.apply(set_weight(whole(OWNER), 700.0));
    subject.apply(set_weight(single(OWNER, 0), 650.0));
    assert!(subject.is_idle(&own) && subject.is_idle(&group));
    subject.apply(set_idle(whole(OWNER), false));
    subject.apply(set_idle(single(OWNER, 0), false));
    assert_eq!(subject.weight(&own), Weight::constant(700.0));
    assert_eq!(subject.weight(&group), Weight::constant(650.0));
    let live_host = subject.restore();
    assert_eq!(live_host.snapshot(), before);
    assert_eq!(is_idle()?, Some(true));
    Ok(())
}

/// Returns the current settings of the VM and two of its vCPUs.
fn in_force(subject: &mut Subject, vm: VmId) -> String {
    let seen = subject.observe(vm);
    let vcpus: Vec<_> =
        seen.vcpus.iter().map(|vcpu| (vcpu.vcpu, vcpu.in_force, vcpu.allowed.clone())).collect();
    format!("{:?} {vcpus:?}", seen.in_force)
}

fn refused_changes() -> Result<(), Skip> {
    let mut subject = Subject::acting()?;
    let absent: PcpuSet = "8191".parse().expect("a list");
    for vm in [SHARED, OWNER] {
        subject.apply(set_weight(whole(vm), 700.0));
        subject.apply(set_nice(vm, 1, 4));
        let before = in_force(&mut subject, vm);
        let error = subject.refused(set_affinity(vm, 1, &absent));
        assert!(error.contains("8191"), "{error}");
        assert_eq!(in_force(&mut subject, vm), before);
        // A decision about a missing vCPU is ignored, not refused.
        subject.apply(set_nice(vm, 9, 4));
        subject.apply(set_weight(single(vm, 9), 50.0));
        assert_eq!(in_force(&mut subject, vm), before);
    }
    // A foreign group has the name that a vCPU's group would have.
    let taken = subject.cgroup(OWNER);
    let controller = subject.fleet.controller();
    let taken = controller.create_child(&taken, "vcpu1").expect("a group");
    let before = in_force(&mut subject, OWNER);
    let error = subject.refused(set_weight(single(OWNER, 1), 50.0));
    assert!(error.contains("exists already"), "{error}");
    assert_eq!(in_force(&mut subject, OWNER), before);
    let controller = subject.fleet.controller();
    controller.remove(&taken).expect("it is empty");
    // The kernel refuses, because the group has just been put into the idle class.
    if subject.fleet.knobs().idle {
        for vm in [SHARED, OWNER] {
            let cgroup = subject.cgroup(vm);
            let write = |subject: &Subject, text| {
                let controller = subject.fleet.controller();
                let written = controller.write_knob(&cgroup, Knob::Idle, text);
                written.expect("the kernel takes it");
            };
            write(&subject, "1");
            let before = in_force(&mut subject, vm);
            let error = subject.refused(set_weight(whole(vm), 900.0));
            assert!(error.contains("cpu.idle"), "{error}");
            assert_eq!(in_force(&mut subject, vm), before);
            write(&subject, "0");
        }
    }
    Ok(())
}

fn dry_run() -> Result<(), Skip> {
    let mut subject = Subject::dry()?;
    let before = subject.live_host.snapshot();
    let seen: Vec<String> = [SHARED, OWNER].map(|vm| in_force(&mut subject, vm)).to_vec();
    for vm in [SHARED, OWNER] {
        let all = affinity(subject.thread(vm, 1).tid).expect("a mask");
        let decisions = [
            set_weight(whole(vm), 700.0),
            set_weight(single(vm, 1), 640.0),
            set_idle(whole(vm), true),
            set_idle(single(vm, 1), true),
            set_nice(vm, 1, 9),
            set_slice(vm, 1, Some(Nanos(500_000))),
            set_affinity(vm, 1, &last_of(&all)),
        ];
        let applied = subject.fleet.apply(&decisions, None);
        let changes = applied.weights + applied.moved.len() as u64 + applied.others;
        assert_eq!((changes, applied.refused.len()), (0, 0));
    }
    assert_eq!(subject.recheck(), Vec::<String>::new());
    let after: Vec<String> = [SHARED, OWNER].map(|vm| in_force(&mut subject, vm)).to_vec();
    assert_eq!(after, seen);
    assert_eq!(subject.live_host.snapshot(), before);
    assert_eq!(subject.restore().snapshot(), before);
    Ok(())
}
