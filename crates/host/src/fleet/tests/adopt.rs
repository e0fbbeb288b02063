//! Adoptions that fail halfway, adoptions in the cgroup of a VM that just left, and a new VM with many vCPUs.
//!
//! All earlier changes are reverted before the next try.

use tandem_model::VcpuId;

use super::*;
use crate::discovery::VcpuThread;

impl Subject {
    /// Lets the adoption of a VM fail at this write of the journal; returns false if there are fewer writes.
    fn fail_at(&mut self, vms: &[Vm], write: usize) -> bool {
        self.disk.fail_at_write(write);
        let (_, refused) = self.fleet.update(vms, vms);
        let has_failed = self.disk.has_fired();
        self.disk.stop();
        assert_eq!(has_failed, !refused.is_empty(), "{refused:?}");
        assert_eq!(has_failed, self.fleet.vms().count() == 0);
        has_failed
    }
}

#[test]
fn hostile_adoption_failures_leave_no_changes() {
    let idlers = Idlers::new(3);
    let fails = |write: usize, ends: bool| {
        let mut subject = Subject::new(Duration::MAX);
        let (vms, _) = subject.vms_of_threads(&idlers);
        if !subject.fail_at(&vms, write) {
            return false;
        }
        if ends {
            subject.update(&[]);
            assert_eq!(subject.tree.below("/vms"), 0, "at write {write}");
            assert!(!is_pending(subject.dir.path()));
            return true;
        }
        assert_eq!(subject.update(&vms), [vms[0].id]);
        assert_eq!(subject.tree.below("/vms"), 1, "at write {write}");
        let group = subject.fleet.vm(vms[0].id).unwrap().cgroup();
        assert_eq!(group.parent().unwrap().0, "/vms", "at write {write}");
        for vcpu in &vms[0].vcpus {
            let place = subject.fleet.controller().cgroup_of(&vcpu.thread);
            assert_eq!(place.unwrap(), *group);
        }
        true
    };
    let writes = (1..).take_while(|write| fails(*write, false) && fails(*write, true));
    // The group, its identity, and two vCPUs.
    assert_eq!(writes.count(), 4);
}

#[test]
fn hostile_new_vm_spreads_vcpus_over_updates() {
    let mut subject = Subject::new(Duration::ZERO);
    let idlers = Idlers::new(60);
    let (mut vms, others) = subject.vms_of_threads(&idlers);
    vms.truncate(1);
    for (thread, index) in others.iter().zip(2..) {
        subject.tree.put(*thread, &CgroupPath("/vms".into()));
        let (index, thread) = (VcpuId(index), *thread);
        vms[0].vcpus.push(VcpuThread { index, thread });
    }
    assert_eq!(subject.update(&vms), [vms[0].id]);
    let has = |subject: &Subject| subject.fleet.vm(vms[0].id).unwrap().vcpu_count();
    assert_eq!(has(&subject), 1);
    subject.update(&vms);
    assert_eq!(has(&subject), 2);
    // A larger budget takes all of them.
    subject.fleet.budget = Duration::MAX;
    subject.update(&vms);
    assert_eq!(has(&subject), vms[0].vcpus.len());
}

#[test]
fn adoption_waits_for_revert_of_its_cgroup() {
    let mut subject = Subject::new(Duration::MAX);
    let tree = subject.tree.clone();
    let other = tree.vm(0, VCPUS, |_| "/other/vm".to_owned());
    let first = tree.vm(1, VCPUS, |_| "/his/vm".to_owned());
    let both = [other, first];
    assert_eq!(subject.update(&both).len(), 2);
    let group = subject.fleet.vm(both[1].id).unwrap().cgroup().clone();
    assert!(group.is_within(&CgroupPath("/his".to_owned())));
    // Both end, and the budget allows one revert.
    both.iter().for_each(|vm| tree.end_vm(vm));
    let second = [tree.vm(2, VCPUS, |_| "/his/vm".to_owned())];
    subject.fleet.budget = Duration::ZERO;
    assert!(subject.update(&second).is_empty());
    assert_eq!(subject.update(&second), [second[0].id]);
    assert_eq!(*subject.fleet.vm(second[0].id).unwrap().cgroup(), group);
    // The revert leaves the changes for the second VM in place.
    assert!(is_pending(subject.dir.path()));
    subject.update(&second);
    assert!(is_pending(subject.dir.path()));
    subject.update(&[]);
    assert!(!is_pending(subject.dir.path()));
}

#[test]
fn leaving_vm_keeps_cgroups_below_its_own() {
    let mut subject = Subject::new(Duration::MAX);
    let tree = subject.tree.clone();
    let vm = |n: u32| tree.vm(n, VCPUS, |_| "/folder".to_owned());
    // It is alone in the folder, which becomes its own cgroup; then another VM starts there.
    let mut vms = vec![vm(0)];
    assert_eq!(subject.update(&vms), [vms[0].id]);
    assert_eq!(subject.fleet.vm(vms[0].id).unwrap().cgroup().0, "/folder");
    vms.push(vm(1));
    assert_eq!(subject.update(&vms).len(), 2);
    let group = subject.fleet.vm(vms[1].id).unwrap().cgroup().clone();
    assert_eq!(group.parent().unwrap().0, "/folder");
    let places = |subject: &Subject, vm: &Vm| -> Vec<CgroupPath> {
        let controller = subject.fleet.controller();
        let threads = vm.vcpus.iter().map(|vcpu| &vcpu.thread);
        threads.map(|thread| controller.cgroup_of(thread).unwrap()).collect()
    };
    let before = places(&subject, &vms[1]);
    assert!(before.iter().all(|place| *place == group), "{before:?}");
    // The other VM's group is busy, and the first VM leaves.
    tree.make_busy("/folder", true);
    tree.end_vm(&vms[0]);
    vms.remove(0);
    assert_eq!(subject.update(&vms), [vms[0].id]);
    assert_eq!(places(&subject, &vms[0]), before);
    // A new VM is adopted at once.
    vms.push(vm(2));
    assert_eq!(subject.update(&vms).len(), 2);
    assert_eq!(places(&subject, &vms[0]), before);
}

#[test]
fn nested_vm_outlives_its_parent_vm() {
    let mut subject = Subject::new(Duration::MAX);
    let mut vms = subject.vms(2);
    assert_eq!(subject.update(&vms).len(), 2);
    let outer = subject.fleet.vm(vms[0].id).unwrap().cgroup().clone();
    vms.push(subject.tree.vm(2, VCPUS, |_| outer.0.clone()));
    assert_eq!(subject.update(&vms).len(), 3);
    let inner = subject.fleet.vm(vms[2].id).unwrap().cgroup().clone();
    assert_eq!(inner.parent().as_ref(), Some(&outer));
    subject.tree.end_vm(&vms[0]);
    for _ in 0..2 {
        assert_eq!(subject.update(&vms[1..]).len(), 2);
        for vcpu in &vms[2].vcpus {
            let place = subject.fleet.controller().cgroup_of(&vcpu.thread);
            assert_eq!(place.unwrap(), inner);
        }
    }
    // After both have ended, both groups are removed.
    subject.tree.end_vm(&vms[2]);
    subject.update(&vms[1..2]);
    assert_eq!(subject.tree.below("/vms"), 1);
}
