//! VMs that cannot be adopted after something was changed for them already: all of that is put back before they are tried again.

use super::*;

impl Subject {
    /// The adoption of a VM fails at this write of the journal; false: there are fewer.
    fn fail_at(&mut self, vms: &[Vm], write: usize) -> bool {
        self.disk.fails_at.store(write, Ordering::Relaxed);
        let (_, refused) = self.fleet.update(vms, vms);
        let has_failed = self.disk.fails_at.swap(0, Ordering::Relaxed) == 0;
        assert_eq!(has_failed, !refused.is_empty(), "{refused:?}");
        assert_eq!(has_failed, self.fleet.vms().count() == 0);
        has_failed
    }
}

#[test]
fn hostile_vms_whose_adoption_fails_half_way_leave_nothing() {
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
        let group = &subject.fleet.vm(vms[0].id).unwrap().cgroup;
        assert_eq!(group.parent().unwrap().0, "/vms", "at write {write}");
        for vcpu in &vms[0].vcpus {
            let place = subject.fleet.controller().cgroup_of(&vcpu.thread);
            assert_eq!(place.unwrap(), *group);
        }
        true
    };
    let writes = (1..).take_while(|write| fails(*write, false) && fails(*write, true));
    // The group, which one it is, and two vCPUs.
    assert_eq!(writes.count(), 4);
}
