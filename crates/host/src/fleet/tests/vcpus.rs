//! Large numbers of new vCPUs, and vCPU groups that are too busy to remove: each tenant delays only itself.

use tandem_model::decision::Because;
use tandem_model::{Target, VcpuId, Weight};

use super::*;
use crate::discovery::VcpuThread;

/// The hostile tenant.
const HOSTILE: Option<u32> = Some(1000);

/// Its neighbour.
const OTHER: Option<u32> = Some(1001);

impl Subject {
    /// Divides a VM's two vCPUs into groups of their own, or unites them again.
    fn divide(&mut self, vm: &Vm, is_apart: bool) {
        let portions = [(VcpuId(0), 0.75), (VcpuId(1), 0.25)];
        let applied = self.fleet.apply(
            &[Decision::Divide {
                vm: vm.id,
                portions: portions.into_iter().filter(|_| is_apart).collect(),
                because: Because::Together,
            }],
            None,
        );
        assert!(applied.refused.is_empty(), "{:?}", applied.refused);
    }

    /// Returns the number of a VM's single-vCPU groups.
    fn groups_of(&self, vm: &Vm) -> usize {
        let groups = self.fleet.controller().children(&CgroupPath("/vms".into()));
        let name = format!("tandem-{}-{}-vcpu", vm.name, vm.process.pid.0);
        let groups = groups.unwrap().into_iter();
        groups.filter(|group| group.name().starts_with(&name)).count()
    }

    /// Starts another thread of the VM in a vCPU's cgroup.
    fn start_in_cgroup_of(&mut self, vcpu: &ThreadRef) -> ThreadRef {
        let mut other = *vcpu;
        other.tid.0 += 1_000_000_000;
        let place = self.fleet.controller().cgroup_of(vcpu).unwrap();
        self.tree.put(other, &place);
        other
    }

    /// Returns the name of a thread's cgroup.
    fn place(&self, thread: &ThreadRef) -> String {
        let place = self.fleet.controller().cgroup_of(thread).unwrap();
        place.name().to_owned()
    }
}

/// Managed VMs whose vCPUs are in a group each, the threads to replace their second vCPUs with, and the owner of all threads.
fn divided(threads: usize) -> (Subject, Vec<Vm>, Vec<ThreadRef>, Idlers) {
    let mut subject = Subject::new(Duration::MAX);
    let idlers = Idlers::new(threads);
    let (vms, others) = subject.vms_of_threads(&idlers);
    assert_eq!(subject.update(&vms).len(), threads / 3);
    vms.iter().for_each(|vm| subject.divide(vm, true));
    (subject, vms, others, idlers)
}

#[test]
fn hostile_busy_vcpu_groups_are_removed_later() {
    let (mut subject, vms, _, _idlers) = divided(3);
    let vm = &vms[0];
    assert_eq!(subject.groups_of(vm), 2);
    subject.tree.make_busy("/vms", true);
    subject.divide(vm, false);
    let reported = (0..40).flat_map(|_| subject.fleet.update(&vms, &vms).1);
    let reported: Vec<Refused> = reported.collect();
    assert_eq!(reported.len(), 2, "each is reported once: {reported:?}");
    assert_eq!(reported[0].vm, vm.name);
    assert_eq!(subject.groups_of(vm), 2);
    subject.tree.make_busy("/vms", false);
    assert_eq!(subject.update(&vms), [vm.id], "it stays managed");
    assert_eq!(subject.groups_of(vm), 0);
    assert_eq!(subject.tree.below("/vms"), 1);
    subject.update(&[]);
    assert!(!is_pending(subject.dir.path()));
}

#[test]
fn busy_group_in_use_again_stays() {
    let (mut subject, vms, _, _idlers) = divided(3);
    let vm = &vms[0];
    subject.tree.make_busy("/vms", true);
    subject.divide(vm, false);
    subject.update(&vms);
    let apart = subject.place(&vm.vcpus[0].thread);
    subject.divide(vm, true);
    subject.tree.make_busy("/vms", false);
    for _ in 0..3 {
        subject.update(&vms);
        assert_eq!(subject.groups_of(vm), 2);
        let place = subject.place(&vm.vcpus[0].thread);
        assert_ne!(place, apart);
        assert!(place.ends_with("-vcpu0"), "{place}");
    }
    subject.divide(vm, false);
    assert_eq!(subject.groups_of(vm), 0);
}

#[test]
fn busy_groups_of_departed_are_retried() {
    let (mut subject, mut vms, others, _idlers) = divided(6);
    subject.tree.make_busy("/vms", true);
    // A vCPU of the first VM ends; the other VM is united again and leaves before the update.
    subject.replace_vcpus(&mut vms[..1], &others);
    subject.divide(&vms[1], false);
    assert_eq!(subject.update(&vms[..1]).len(), 1);
    assert_eq!((subject.groups_of(&vms[0]), subject.groups_of(&vms[1])), (2, 2));
    subject.tree.make_busy("/vms", false);
    subject.update(&vms[..1]);
    assert_eq!((subject.groups_of(&vms[0]), subject.groups_of(&vms[1])), (1, 0));
}

#[test]
fn hostile_tenants_with_busy_groups_delay_only_themselves() {
    let mut subject = Subject::new(Duration::MAX);
    let idlers = Idlers::new(30);
    let (mut vms, _) = subject.vms_of_threads(&idlers);
    let last = vms.len() - 1;
    vms[..last].iter_mut().for_each(|vm| vm.user = HOSTILE);
    vms[last].user = OTHER;
    assert_eq!(subject.update(&vms).len(), 10);
    vms.iter().for_each(|vm| subject.divide(vm, true));
    subject.tree.make_busy("/vms", true);
    vms.iter().for_each(|vm| subject.divide(vm, false));
    subject.update(&vms);
    subject.tree.make_busy("/vms", false);
    // Each update removes one group; the tenants alternate.
    subject.fleet.budget = Duration::ZERO;
    for _ in 0..4 {
        subject.update(&vms);
    }
    assert_eq!(subject.groups_of(&vms[last]), 0);
    let hostile: usize = vms[..last].iter().map(|vm| subject.groups_of(vm)).sum();
    assert_eq!(hostile, 2 * last - 2);
}

#[test]
fn hostile_vm_churn_delays_no_busy_groups() {
    let mut subject = Subject::new(Duration::MAX);
    let mut vms = subject.vms(12);
    vms.iter_mut().for_each(|vm| vm.user = HOSTILE);
    vms[11].user = OTHER;
    assert_eq!(subject.update(&vms).len(), 12);
    let group = subject.fleet.vm(vms[11].id).unwrap().cgroup().clone();
    subject.tree.make_busy("/vms", true);
    subject.update(&vms[..11]);
    subject.tree.make_busy("/vms", false);
    assert!(subject.fleet.controller().exists(&group));
    // Without a budget, more of the hostile tenant's VMs end than an update reverts.
    subject.fleet.budget = Duration::ZERO;
    subject.update(&vms[..8]);
    assert!(!subject.fleet.controller().exists(&group));
    assert_eq!(subject.tree.below("/vms"), 10, "one hostile VM was reverted too");
}

#[test]
fn hostile_threads_leave_vcpu_groups_within_budget() {
    let (mut subject, mut vms, others, _idlers) = divided(6);
    let start = |subject: &mut Subject, vcpu: usize| {
        let threads = vms.iter().map(|vm| vm.vcpus[vcpu].thread);
        let threads: Vec<ThreadRef> = threads.collect();
        let threads = threads.iter().map(|vcpu| subject.start_in_cgroup_of(vcpu));
        threads.collect::<Vec<ThreadRef>>()
    };
    let extra = [0, 1].map(|vcpu| start(&mut subject, vcpu));
    let left = |subject: &Subject, threads: &[ThreadRef]| {
        let places = threads.iter().map(|thread| subject.place(thread));
        places.filter(|place| place != "vms").count()
    };
    subject.tree.make_busy("/vms", true);
    // First in groups of vCPUs that end, then in groups that are united.
    subject.replace_vcpus(&mut vms, &others);
    subject.fleet.budget = Duration::ZERO;
    subject.update(&vms);
    assert_eq!(left(&subject, &extra[1]), 1, "one group in an update");
    subject.update(&vms);
    assert_eq!(left(&subject, &extra[1]), 0);
    subject.fleet.budget = Duration::MAX;
    subject.update(&vms);
    vms.iter().for_each(|vm| subject.divide(vm, false));
    assert_eq!(left(&subject, &extra[0]), 2);
    subject.update(&vms);
    assert_eq!(left(&subject, &extra[0]), 0);
}

#[test]
fn reused_idle_group_gets_its_weight() {
    let (mut subject, vms, _, _idlers) = divided(3);
    let vm = &vms[0];
    let applied = subject.fleet.apply(
        &[Decision::SetIdle {
            target: Target::Vcpu(vm.id, VcpuId(0)),
            idle: true,
            because: Because::Together,
        }],
        None,
    );
    assert!(applied.refused.is_empty(), "{:?}", applied.refused);
    subject.tree.make_busy("/vms", true);
    subject.divide(vm, false);
    assert_eq!(subject.groups_of(vm), 2);
    subject.divide(vm, true);
    let thread = &vm.vcpus[0].thread;
    let group = subject.fleet.controller().cgroup_of(thread).unwrap();
    assert_eq!(subject.fleet.controller().is_idle(&group).unwrap(), Some(false));
    let weight = subject.fleet.controller().weight(&group).unwrap();
    assert_eq!(weight.value(), 75.0);
}

#[test]
fn stuck_vcpu_groups_are_reported_once_and_retried() {
    let (mut subject, mut vms, others, _idlers) = divided(6);
    subject.tree.make_stuck("/vms", true);
    // A vCPU of the first VM ends; the other VM's are united.
    subject.replace_vcpus(&mut vms[..1], &others);
    subject.divide(&vms[1], false);
    let (_, refused) = subject.fleet.update(&vms, &vms);
    let reported: Vec<&str> = refused.iter().map(|refused| refused.vm.as_str()).collect();
    assert_eq!(reported, [&vms[0].name, &vms[1].name, &vms[1].name]);
    assert!(refused.iter().all(|refused| refused.error.contains("cannot remove")));
    let (_, refused) = subject.fleet.update(&vms, &vms);
    assert!(refused.is_empty(), "{refused:?}");
    let groups = |subject: &Subject| [0, 1].map(|nth| subject.groups_of(&vms[nth]));
    assert_eq!(groups(&subject), [2, 2]);
    subject.tree.make_stuck("/vms", false);
    subject.update(&vms);
    assert_eq!(groups(&subject), [1, 0]);
}

#[test]
fn hostile_tenants_with_new_vcpus_delay_only_themselves() {
    let mut subject = Subject::new(Duration::MAX);
    let idlers = Idlers::new(30);
    let (mut vms, others) = subject.vms_of_threads(&idlers);
    let last = vms.len() - 1;
    vms[..last].iter_mut().for_each(|vm| vm.user = HOSTILE);
    vms[last].user = OTHER;
    assert_eq!(subject.update(&vms).len(), 10);
    subject.fleet.budget = Duration::ZERO;
    subject.replace_vcpus(&mut vms, &others);
    for looks in 1..=10 {
        subject.update(&vms);
        let hostile = vms[..last].iter().filter(|vm| subject.has_vcpus(vm));
        assert_eq!(hostile.count(), if looks == 1 { 1 } else { looks - 1 });
        assert_eq!(subject.has_vcpus(&vms[last]), looks > 1);
    }
}

#[test]
fn hostile_hotplug_spreads_vcpus_over_updates() {
    let mut subject = Subject::new(Duration::MAX);
    let idlers = Idlers::new(60);
    let (mut vms, others) = subject.vms_of_threads(&idlers);
    vms.truncate(2);
    (vms[0].user, vms[1].user) = (HOSTILE, OTHER);
    assert_eq!(subject.update(&vms).len(), 2);
    subject.fleet.budget = Duration::ZERO;
    let (hostile, one) = others.split_at(others.len() - 1);
    subject.replace_vcpus(&mut vms[1..], one);
    for (thread, index) in hostile.iter().zip(2..) {
        subject.tree.put(*thread, &CgroupPath("/vms".into()));
        let (index, thread) = (VcpuId(index), *thread);
        vms[0].vcpus.push(VcpuThread { index, thread });
    }
    let has = |subject: &Subject| subject.fleet.vm(vms[0].id).unwrap().vcpu_count();
    subject.update(&vms);
    assert_eq!((has(&subject), subject.has_vcpus(&vms[1])), (3, false));
    subject.update(&vms);
    assert_eq!((has(&subject), subject.has_vcpus(&vms[1])), (3, true));
    // A larger budget takes all of them.
    subject.fleet.budget = Duration::MAX;
    subject.update(&vms);
    assert_eq!(has(&subject), 2 + hostile.len());
}

#[test]
fn abandoned_vcpu_cgroup_gets_its_weight_back() {
    let mut subject = Subject::new(Duration::MAX);
    let idlers = Idlers::new(3);
    let own = CgroupPath("/own".to_owned());
    let mut vm = subject.tree.vm(0, VCPUS, |_| "/elsewhere".to_owned());
    vm.process = idlers.threads[2];
    subject.tree.put(vm.process, &own);
    for (at, vcpu) in vm.vcpus.iter_mut().enumerate() {
        vcpu.thread = idlers.threads[at];
        subject.tree.put(vcpu.thread, &own.child(&format!("vcpu{at}")));
    }
    assert_eq!(subject.update(std::slice::from_ref(&vm)), [vm.id]);
    let applied = subject.fleet.apply(
        &[Decision::SetWeight {
            target: Target::Vcpu(vm.id, VcpuId(0)),
            weight: Weight::constant(300.0),
            because: Because::Together,
        }],
        None,
    );
    assert!(applied.refused.is_empty(), "{:?}", applied.refused);
    let weight = |subject: &Subject| {
        let controller = subject.fleet.controller();
        controller.weight(&own.child("vcpu0")).unwrap().value()
    };
    assert_eq!(weight(&subject), 300.0);
    subject.tree.put(vm.vcpus[0].thread, &own);
    let mut managed = subject.fleet.vms.remove(&vm.id).unwrap();
    let rechecked = subject.fleet.recheck(&mut managed, &mut Vec::new());
    rechecked.unwrap();
    assert_eq!(weight(&subject), 100.0);
    let journal = std::fs::read_to_string(subject.dir.path().join("journal")).unwrap();
    assert!(!journal.contains("vcpu0"), "{journal}");
}
