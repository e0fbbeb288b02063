//! A VM's vCPUs in groups of their own below the VM's, and back together.

use tandem_linux::cgroup::CgroupPath;
use tandem_model::{Because, Decision, VcpuId, VmId, Weight};

use crate::harness::{Skip, Test};
use crate::subject::{OWNER, SHARED, Subject, set_idle, set_weight, whole};

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("apart::groups_beside_the_vms_have_parts_of_its_weight", groups_and_weights),
    ("apart::together_they_are_in_the_vms_group_at_its_weight", together),
    ("apart::a_vm_with_a_cgroup_of_its_own_is_not_put_apart", not_ours),
    ("apart::what_others_set_is_told_and_the_idle_class_comes_first", others),
    ("apart::an_operator_who_moves_a_vcpu_keeps_it_and_the_vm_together", moved_by_others),
    ("apart::a_weight_and_an_idle_class_on_the_empty_group_count", empty_group),
    ("apart::restore_removes_the_groups", restore),
];

/// Puts a VM's vCPUs into groups with these portions, or together.
pub fn divide(vm: VmId, portions: &[f64]) -> Decision {
    Decision::Divide {
        vm,
        portions: (0u32..).map(VcpuId).zip(portions.iter().copied()).collect(),
        because: Because::Together,
    }
}

/// Returns the cgroups of the three vCPUs of the VM without a cgroup of its own.
fn places(subject: &Subject) -> Vec<CgroupPath> {
    let place = |vcpu| {
        let thread = subject.thread(SHARED, vcpu);
        subject.fleet.controller().cgroup_of(&thread).expect("it lives")
    };
    (0..3).map(place).collect()
}

fn default(subject: &Subject) -> f64 {
    subject.fleet.controller().default_weight().value()
}

/// The VM's vCPUs apart, the first with half of the VM's weight, which is four times the default.
fn apart() -> Result<Subject, Skip> {
    let mut subject = Subject::acting()?;
    let weight = 4.0 * default(&subject);
    subject.apply(set_weight(whole(SHARED), weight));
    subject.apply(divide(SHARED, &[0.5, 0.25, 0.25]));
    Ok(subject)
}

fn groups_and_weights() -> Result<(), Skip> {
    let mut subject = apart()?;
    let unit = default(&subject);
    let (vms, places) = (subject.cgroup(SHARED), places(&subject));
    for (n, place) in places.iter().enumerate() {
        assert_eq!(place.parent(), vms.parent());
        assert_eq!(place.name(), format!("{}-vcpu{n}", vms.name()));
    }
    let weights =
        |subject: &Subject| places.iter().map(|p| subject.weight(p).value()).collect::<Vec<_>>();
    assert_eq!(weights(&subject), [2.0 * unit, unit, unit]);
    let observed = subject.observe(SHARED);
    assert!(observed.is_apart());
    assert_eq!(observed.in_force.weight, Weight::saturating(4.0 * unit));
    let portions = observed.vcpus.iter().map(|vcpu| vcpu.in_force.portion);
    assert_eq!(portions.collect::<Vec<_>>(), [Some(0.5), Some(0.25), Some(0.25)]);

    subject.apply(set_weight(whole(SHARED), 8.0 * unit));
    assert_eq!(weights(&subject), [4.0 * unit, 2.0 * unit, 2.0 * unit]);
    subject.apply(divide(SHARED, &[0.25, 0.5, 0.25]));
    assert_eq!(weights(&subject), [2.0 * unit, 4.0 * unit, 2.0 * unit]);
    assert!(subject.recheck().is_empty(), "no foreign change");
    assert_eq!(subject.observe(SHARED).in_force.weight, Weight::saturating(8.0 * unit));
    Ok(())
}

fn together() -> Result<(), Skip> {
    let mut subject = apart()?;
    let weight = 2.0 * default(&subject);
    let groups = places(&subject);
    subject.apply(set_weight(whole(SHARED), weight));
    subject.apply(divide(SHARED, &[]));
    let vms = subject.cgroup(SHARED);
    assert_eq!(places(&subject), [vms.clone(), vms.clone(), vms.clone()]);
    assert_eq!(subject.weight(&vms), Weight::saturating(weight));
    assert!(groups.iter().all(|group| !subject.fleet.controller().exists(group)));
    assert!(!subject.observe(SHARED).is_apart());
    // Once more: dividing again finds the names and the journal free.
    subject.apply(divide(SHARED, &[0.5, 0.25, 0.25]));
    assert_eq!(places(&subject), groups);
    Ok(())
}

fn not_ours() -> Result<(), Skip> {
    let mut subject = Subject::acting()?;
    assert!(!subject.observe(OWNER).divisible);
    subject.apply(divide(OWNER, &[0.5, 0.5]));
    let thread = subject.thread(OWNER, 0);
    let place = subject.fleet.controller().cgroup_of(&thread).expect("it lives");
    assert_eq!(place, subject.cgroup(OWNER));
    Ok(())
}

fn others() -> Result<(), Skip> {
    let mut subject = apart()?;
    subject.need_idle_class()?;
    let group = places(&subject).swap_remove(1);
    let foreign = Weight::saturating(3.0 * default(&subject));
    let controller = subject.fleet.controller();
    controller.set_weight(&group, foreign).expect("it is there");
    let notes = subject.recheck();
    assert!(
        notes.iter().any(|note| note.contains(&group.0) && note.contains("someone else")),
        "{notes:?}"
    );
    assert_eq!(subject.observe_vcpu(SHARED, 1).in_force.weight, Some(foreign));
    // A VM enters the idle class undivided, because its group enters it.
    subject.apply(divide(SHARED, &[]));
    subject.apply(set_idle(whole(SHARED), true));
    subject.apply(divide(SHARED, &[0.5, 0.25, 0.25]));
    assert!(!subject.observe(SHARED).is_apart());
    assert!(subject.is_idle(&subject.cgroup(SHARED)));
    Ok(())
}

fn restore() -> Result<(), Skip> {
    let subject = apart()?;
    let mut groups = places(&subject);
    groups.push(subject.cgroup(SHARED));
    let home = groups[0].parent().expect("not the root");
    let live_host = subject.restore();
    let controller = crate::host::controller()?;
    assert!(groups.iter().all(|group| !controller.exists(group)));
    for thread in crate::helper::vcpu_threads(live_host.shared.pid()) {
        assert_eq!(controller.cgroup_of(&thread).expect("it lives"), home);
    }
    Ok(())
}

fn moved_by_others() -> Result<(), Skip> {
    let mut subject = apart()?;
    let groups = places(&subject);
    let home = groups[0].parent().expect("not the root");
    let thread = subject.thread(SHARED, 0);
    let controller = subject.fleet.controller();
    controller.move_thread(thread.tid, &home).expect("it moves");
    let notes = subject.recheck();
    let told = |note: &String| note.contains(&groups[0].0) && note.contains("moved it out");
    assert!(notes.iter().any(told), "{notes:?}");
    let observed = subject.observe(SHARED);
    assert!(!observed.divisible && observed.is_apart());
    subject.apply(divide(SHARED, &[]));
    let vms = subject.cgroup(SHARED);
    assert_eq!(places(&subject), [home.clone(), vms.clone(), vms]);
    let exists = |group: &CgroupPath| subject.fleet.controller().exists(group);
    assert!(!groups.iter().any(exists));
    Ok(())
}

fn empty_group() -> Result<(), Skip> {
    let mut subject = apart()?;
    subject.need_idle_class()?;
    let (vms, unit) = (subject.cgroup(SHARED), default(&subject));
    let controller = subject.fleet.controller();
    controller.set_weight(&vms, Weight::saturating(3.0 * unit)).expect("it is there");
    let notes = subject.recheck();
    assert!(notes.iter().any(|note| note.contains("counts as configured")), "{notes:?}");
    assert_eq!(subject.observe(SHARED).weight, Weight::saturating(3.0 * unit));
    let controller = subject.fleet.controller();
    controller.set_idle(&vms, true).expect("it is there");
    let notes = subject.recheck();
    assert!(notes.iter().any(|note| note.contains("cpu.idle")), "{notes:?}");
    assert!(subject.observe(SHARED).in_force.idle);
    // As the policy then requests; there is no weight to write.
    subject.apply(divide(SHARED, &[]));
    assert_eq!(places(&subject), [vms.clone(), vms.clone(), vms.clone()]);
    assert!(subject.is_idle(&vms));
    Ok(())
}
