//! VMs that are found and not managed yet, and the order in which an update tries to adopt them.
//!
//! New VMs go first: the longest known of each tenant, then the second of each, and so on ([`ByTenant`]).
//! So a tenant that starts thousands of VMs, or restarts the same ones again and again, delays only itself.
//!
//! A VM that failed is tried at the next update, and then every 2, 4, 8 … 64 updates while it keeps failing.
//! So a tenant's VM that cannot be adopted, and takes long to try, does not delay others in every update.
//! VMs that failed share the same updates, because each try reads the cgroups of all VMs.

use std::collections::BTreeMap;

use tandem_model::VmId;

use super::by_tenant::ByTenant;
use crate::discovery::Vm;

/// Maximum number of doublings of the interval between two tries of a VM that fails: from 1 update to 64.
const DOUBLINGS: u32 = 6;

/// All candidates.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    vms: BTreeMap<VmId, Candidate>,
    by_tenant: ByTenant,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Failed tries in a row.
    failures: u32,
    /// The number of the update that tries it.
    due: u64,
}

/// A candidate to try now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due<'v> {
    pub(super) vm: &'v Vm,
    /// Whether it failed before.
    pub(super) has_failed: bool,
}

impl Candidates {
    /// Returns the VMs of `new` to try in update `look`, in order, and forgets all VMs that are not in `new`.
    pub(super) fn due<'v>(
        &mut self,
        new: impl IntoIterator<Item = &'v Vm>,
        look: u64,
    ) -> Vec<Due<'v>> {
        let mut before = std::mem::take(&mut self.vms);
        let mut due = Vec::new();
        for vm in new {
            let fresh = Candidate { failures: 0, due: look };
            let candidate = before.remove(&vm.id).unwrap_or(fresh);
            self.vms.insert(vm.id, candidate);
            if candidate.due <= look {
                due.push((candidate, vm));
            }
        }
        due.sort_by_key(|(candidate, _)| candidate.due);
        let (failed, fresh): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|(candidate, _)| candidate.failures > 0);
        let in_turns = |due: Vec<(Candidate, &'v Vm)>, has_failed| {
            let due = self.by_tenant.order(due, |(_, vm)| vm.user).into_iter();
            due.map(move |(_, vm)| Due { vm, has_failed })
        };
        in_turns(fresh, false).chain(in_turns(failed, true)).collect()
    }

    /// Records a try for this tenant.
    pub(super) fn tried(&mut self, tenant: Option<u32>) {
        self.by_tenant.tried(tenant);
    }

    /// Records a failure in update `look`.
    /// If the reason was not the VM's own, the next update tries it again.
    pub(super) fn failed(&mut self, vm: VmId, look: u64, of_its_own: bool) {
        if let Some(candidate) = self.vms.get_mut(&vm) {
            candidate.failures = if of_its_own { candidate.failures.saturating_add(1) } else { 1 };
            let wait = 1 << (candidate.failures - 1).min(DOUBLINGS);
            candidate.due = (look / wait + 1) * wait;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn ids(due: &[Due<'_>]) -> Vec<u64> {
        due.iter().map(|due| due.vm.id.0).collect()
    }

    #[test]
    fn failures_back_off_and_new_vms_go_first() {
        let vms = [1, 2].map(|id| fixtures::vm(id, "vm", 1));
        let mut candidates = Candidates::default();
        let mut tried = Vec::new();
        for look in 1..=200 {
            for due in candidates.due(&vms[..1], look) {
                assert_eq!(due.has_failed, look > 1);
                candidates.failed(due.vm.id, look, true);
                tried.push(look);
            }
        }
        assert_eq!(tried, [1, 2, 4, 8, 16, 32, 64, 128, 192]);
        // A new VM is tried before one that failed, whatever their ids.
        assert_eq!(ids(&candidates.due(&vms, 256)), [2, 1]);
        // A failure for another VM's reasons does not delay the next try.
        candidates.failed(VmId(2), 256, false);
        candidates.failed(VmId(1), 256, true);
        assert_eq!(ids(&candidates.due(&vms, 257)), [2]);
        // A VM that was gone starts again without failures.
        assert!(ids(&candidates.due(&vms[1..], 258)) == [2]);
        assert_eq!(ids(&candidates.due(&vms, 259)), [1, 2]);
    }

    #[test]
    fn hostile_tenants_with_many_vms_delay_only_themselves() {
        let of = |id, user| Vm { user: Some(user), ..fixtures::vm(id, "vm", 1) };
        let mut candidates = Candidates::default();
        let mut vms: Vec<Vm> = (1..=1_000).map(|id| of(id, 1000)).collect();
        candidates.due(&vms, 1);
        // Another tenant's later VM comes second, or first if the first tenant restarts its VMs.
        vms.push(of(2_001, 1001));
        assert_eq!(ids(&candidates.due(&vms, 2))[..3], [1, 2_001, 2]);
        let again: Vec<Vm> = (3_001..=4_000).map(|id| of(id, 1000)).collect();
        let both = || vms[1_000..].iter().chain(&again);
        assert_eq!(ids(&candidates.due(both(), 3))[..3], [2_001, 3_001, 3_002]);
        // The same holds for VMs that failed.
        for vm in both() {
            candidates.failed(vm.id, 3, true);
        }
        let due = candidates.due(both(), 4);
        assert!(ids(&due)[..2].contains(&2_001), "{:?}", &ids(&due)[..2]);
    }

    #[test]
    fn hostile_tenants_with_slow_vms_delay_only_themselves() {
        let of = |id, user| Vm { user: Some(user), ..fixtures::vm(id, "vm", 1) };
        let vms = [of(1, 1000), of(2, 1000), of(3, 1001)];
        let mut candidates = Candidates::default();
        assert_eq!(ids(&candidates.due(&vms, 1)), [1, 3, 2]);
        // The budget allowed the first only, which was adopted.
        candidates.tried(Some(1000));
        assert_eq!(ids(&candidates.due(&vms[1..], 2)), [3, 2]);
    }

    #[test]
    fn longest_waiting_vm_goes_first() {
        let vms: Vec<Vm> = (1..=5).map(|id| fixtures::vm(id, "vm", 1)).collect();
        let mut candidates = Candidates::default();
        assert_eq!(ids(&candidates.due(&vms[3..], 1)), [4, 5]);
        assert_eq!(ids(&candidates.due(&vms, 2)), [4, 5, 1, 2, 3]);
        // VMs that failed come after them, in the same update.
        for (vm, look) in [(5, 9), (4, 10), (1, 11)] {
            for _ in 0..3 {
                candidates.failed(VmId(vm), look, true);
            }
        }
        assert_eq!(ids(&candidates.due(&vms, 11)), [2, 3]);
        assert_eq!(ids(&candidates.due(&vms, 12)), [2, 3, 1, 4, 5]);
    }
}
