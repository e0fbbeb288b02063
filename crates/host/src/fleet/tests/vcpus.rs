//! vCPUs that come in numbers, and groups of single vCPUs that are busy when they are given up: each tenant waits for himself.

use tandem_model::decision::Because;
use tandem_model::{Target, VcpuId, Weight};

use super::*;
use crate::discovery::VcpuThread;

/// The tenant who does what he can.
const HOSTILE: Option<u32> = Some(1000);

/// His neighbour.
const OTHER: Option<u32> = Some(1001);

impl Subject {
    /// Puts a VM's two vCPUs apart or together again.
    fn divide(&mut self, vm: &Vm, is_apart: bool) {
        let portions = [(VcpuId(0), 0.75), (VcpuId(1), 0.25)];
        let applied = self.fleet.apply(&[Decision::Divide {
            vm: vm.id,
            portions: portions.into_iter().filter(|_| is_apart).collect(),
            because: Because::Together,
        }]);
        assert!(applied.refused.is_empty(), "{:?}", applied.refused);
    }

    /// How many groups of single vCPUs a VM has.
    fn groups_of(&self, vm: &Vm) -> usize {
        let groups = self.fleet.controller().children(&CgroupPath("/vms".into()));
        let name = format!("tandem-{}-{}-vcpu", vm.name, vm.process.pid.0);
        let groups = groups.unwrap().into_iter();
        groups.filter(|group| group.name().starts_with(&name)).count()
    }

    /// Another thread of the VM is where a vCPU is.
    fn start_beside(&mut self, vcpu: &ThreadRef) -> ThreadRef {
        let mut other = *vcpu;
        other.tid.0 += 1_000_000_000;
        let place = self.fleet.controller().cgroup_of(vcpu).unwrap();
        self.tree.put(other, &place);
        other
    }

    /// The name of the cgroup in which a thread is.
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
fn hostile_groups_of_vcpus_that_stay_busy_are_gone_at_a_later_look() {
    let (mut subject, vms, _, _idlers) = divided(3);
    let vm = &vms[0];
    assert_eq!(subject.groups_of(vm), 2);
    subject.tree.make_busy("/vms", true);
    subject.divide(vm, false);
    let told = (0..40).flat_map(|_| subject.fleet.update(&vms, &vms).1);
    let told: Vec<Refused> = told.collect();
    assert_eq!(told.len(), 2, "each is told once: {told:?}");
    assert_eq!(told[0].vm, vm.name);
    assert_eq!(subject.groups_of(vm), 2);
    subject.tree.make_busy("/vms", false);
    assert_eq!(subject.update(&vms), [vm.id], "it stays under care");
    assert_eq!(subject.groups_of(vm), 0);
    assert_eq!(subject.tree.below("/vms"), 1);
    subject.update(&[]);
    assert!(!is_pending(subject.dir.path()));
}

#[test]
fn a_busy_group_that_is_in_use_again_stays() {
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
fn busy_groups_of_vcpus_that_ended_or_whose_vm_left_are_tried_again() {
    let (mut subject, mut vms, others, _idlers) = divided(6);
    subject.tree.make_busy("/vms", true);
    // A vCPU of the first ends; the other is put together again and leaves before an update.
    subject.replace_vcpus(&mut vms[..1], &others);
    subject.divide(&vms[1], false);
    assert_eq!(subject.update(&vms[..1]).len(), 1);
    assert_eq!((subject.groups_of(&vms[0]), subject.groups_of(&vms[1])), (2, 2));
    subject.tree.make_busy("/vms", false);
    subject.update(&vms[..1]);
    assert_eq!((subject.groups_of(&vms[0]), subject.groups_of(&vms[1])), (1, 0));
}

#[test]
fn hostile_tenants_with_many_busy_groups_wait_for_themselves() {
    let mut subject = Subject::new(Duration::MAX);
    let idlers = Idlers::new(30);
    let (mut vms, _) = subject.vms_of_threads(&idlers);
    let last = vms.len() - 1;
    vms[..last].iter_mut().for_each(|vm| vm.tenant = HOSTILE);
    vms[last].tenant = OTHER;
    assert_eq!(subject.update(&vms).len(), 10);
    vms.iter().for_each(|vm| subject.divide(vm, true));
    subject.tree.make_busy("/vms", true);
    vms.iter().for_each(|vm| subject.divide(vm, false));
    subject.update(&vms);
    subject.tree.make_busy("/vms", false);
    // One in each update: of his, and of his neighbour's.
    subject.fleet.budget = Duration::ZERO;
    for _ in 0..4 {
        subject.update(&vms);
    }
    assert_eq!(subject.groups_of(&vms[last]), 0);
    let his: usize = vms[..last].iter().map(|vm| subject.groups_of(vm)).sum();
    assert_eq!(his, 2 * last - 2);
}

#[test]
fn hostile_tenants_whose_vms_end_all_the_time_keep_nobody_elses_groups() {
    let mut subject = Subject::new(Duration::MAX);
    let mut vms = subject.vms(12);
    vms.iter_mut().for_each(|vm| vm.tenant = HOSTILE);
    vms[11].tenant = OTHER;
    assert_eq!(subject.update(&vms).len(), 12);
    let group = subject.fleet.vm(vms[11].id).unwrap().cgroup.clone();
    subject.tree.make_busy("/vms", true);
    subject.update(&vms[..11]);
    subject.tree.make_busy("/vms", false);
    assert!(subject.fleet.controller().exists(&group));
    // There is no time, and more of his end than are put back.
    subject.fleet.budget = Duration::ZERO;
    subject.update(&vms[..8]);
    assert!(!subject.fleet.controller().exists(&group));
    assert_eq!(subject.tree.below("/vms"), 10, "and one of his is");
}

#[test]
fn hostile_threads_in_groups_of_vcpus_are_moved_when_there_is_time() {
    let (mut subject, mut vms, others, _idlers) = divided(6);
    let start = |subject: &mut Subject, vcpu: usize| {
        let threads = vms.iter().map(|vm| vm.vcpus[vcpu].thread);
        let threads: Vec<ThreadRef> = threads.collect();
        let threads = threads.iter().map(|vcpu| subject.start_beside(vcpu));
        threads.collect::<Vec<ThreadRef>>()
    };
    let beside = [0, 1].map(|vcpu| start(&mut subject, vcpu));
    let left = |subject: &Subject, threads: &[ThreadRef]| {
        let places = threads.iter().map(|thread| subject.place(thread));
        places.filter(|place| place != "vms").count()
    };
    subject.tree.make_busy("/vms", true);
    // Of vCPUs that end, then of those that are put together.
    subject.replace_vcpus(&mut vms, &others);
    subject.fleet.budget = Duration::ZERO;
    subject.update(&vms);
    assert_eq!(left(&subject, &beside[1]), 1, "one group in an update");
    subject.update(&vms);
    assert_eq!(left(&subject, &beside[1]), 0);
    subject.fleet.budget = Duration::MAX;
    subject.update(&vms);
    vms.iter().for_each(|vm| subject.divide(vm, false));
    assert_eq!(left(&subject, &beside[0]), 2);
    subject.update(&vms);
    assert_eq!(left(&subject, &beside[0]), 0);
}

#[test]
fn a_busy_group_in_the_idle_class_has_a_weight_when_it_is_used_again() {
    let (mut subject, vms, _, _idlers) = divided(3);
    let vm = &vms[0];
    let applied = subject.fleet.apply(&[Decision::SetIdle {
        target: Target::Vcpu(vm.id, VcpuId(0)),
        idle: true,
        because: Because::Together,
    }]);
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
fn groups_of_vcpus_that_cannot_be_removed_are_told_once_and_tried_again() {
    let (mut subject, mut vms, others, _idlers) = divided(6);
    subject.tree.make_stuck("/vms", true);
    // A vCPU of the first ends; the other's are put together.
    subject.replace_vcpus(&mut vms[..1], &others);
    subject.divide(&vms[1], false);
    let (_, refused) = subject.fleet.update(&vms, &vms);
    let told: Vec<&str> = refused.iter().map(|refused| refused.vm.as_str()).collect();
    assert_eq!(told, [&vms[0].name, &vms[1].name, &vms[1].name]);
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
fn hostile_tenants_with_many_new_vcpus_wait_for_themselves() {
    let mut subject = Subject::new(Duration::MAX);
    let idlers = Idlers::new(30);
    let (mut vms, others) = subject.vms_of_threads(&idlers);
    let last = vms.len() - 1;
    vms[..last].iter_mut().for_each(|vm| vm.tenant = HOSTILE);
    vms[last].tenant = OTHER;
    assert_eq!(subject.update(&vms).len(), 10);
    subject.fleet.budget = Duration::ZERO;
    subject.replace_vcpus(&mut vms, &others);
    for looks in 1..=10 {
        subject.update(&vms);
        let his = vms[..last].iter().filter(|vm| subject.has_vcpus(vm));
        assert_eq!(his.count(), if looks == 1 { 1 } else { looks - 1 });
        assert_eq!(subject.has_vcpus(&vms[last]), looks > 1);
    }
}

#[test]
fn hostile_numbers_of_new_vcpus_of_one_vm_are_taken_over_several_looks() {
    let mut subject = Subject::new(Duration::MAX);
    let idlers = Idlers::new(60);
    let (mut vms, others) = subject.vms_of_threads(&idlers);
    vms.truncate(2);
    (vms[0].tenant, vms[1].tenant) = (HOSTILE, OTHER);
    assert_eq!(subject.update(&vms).len(), 2);
    subject.fleet.budget = Duration::ZERO;
    let (his, one) = others.split_at(others.len() - 1);
    subject.replace_vcpus(&mut vms[1..], one);
    for (thread, index) in his.iter().zip(2..) {
        subject.tree.put(*thread, &CgroupPath("/vms".into()));
        let (index, thread) = (VcpuId(index), *thread);
        vms[0].vcpus.push(VcpuThread { index, thread });
    }
    let has = |subject: &Subject| subject.fleet.vm(vms[0].id).unwrap().vcpu_count();
    subject.update(&vms);
    assert_eq!((has(&subject), subject.has_vcpus(&vms[1])), (3, false));
    subject.update(&vms);
    assert_eq!((has(&subject), subject.has_vcpus(&vms[1])), (3, true));
    // With more time all of it is taken.
    subject.fleet.budget = Duration::MAX;
    subject.update(&vms);
    assert_eq!(has(&subject), 2 + his.len());
}

#[test]
fn a_vcpus_own_cgroup_that_its_thread_was_moved_out_of_has_its_own_weight_again() {
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
    let applied = subject.fleet.apply(&[Decision::SetWeight {
        target: Target::Vcpu(vm.id, VcpuId(0)),
        weight: Weight::constant(300.0),
        because: Because::Together,
    }]);
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
