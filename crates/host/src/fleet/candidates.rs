//! VMs that are found and not under care yet: which are tried at a look for VMs, and in which order.
//!
//! Those that were not tried yet go first: one of each tenant's, the longest known at the front, then the second of each, and so on ([`ByTenant`]). So
//! who starts thousands at once, or the same ones again and again, waits for himself. One that failed is tried again at the next look, then after up to 2, 4,
//! 8 … 64 looks, for as long as it fails: whoever has a VM that cannot be adopted, and whose tries take long, must not keep others waiting at
//! each look. The looks of many that failed are the same ones, because for any that is tried it has to be read where all VMs are.

use std::collections::BTreeMap;

use tandem_model::VmId;

use super::by_tenant::ByTenant;
use crate::discovery::Vm;

/// The doublings of the time between two tries of one that fails: from 1 look to 64.
const DOUBLINGS: u32 = 6;

/// The VMs.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    vms: BTreeMap<VmId, Candidate>,
    by_tenant: ByTenant,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Tries in a row that failed.
    failures: u32,
    /// The look at which it is tried.
    due: u64,
}

/// One that is to be tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due<'v> {
    /// Which.
    pub(super) vm: &'v Vm,
    /// Whether it failed before.
    pub(super) has_failed: bool,
}

impl Candidates {
    /// Those of these VMs that are due at a look, in the order in which they are tried. All others are forgotten.
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
            let due = self.by_tenant.order(due, |(_, vm)| vm.tenant).into_iter();
            due.map(move |(_, vm)| Due { vm, has_failed })
        };
        in_turns(fresh, false).chain(in_turns(failed, true)).collect()
    }

    /// One of this tenant's is tried.
    pub(super) fn tried(&mut self, tenant: Option<u32>) {
        self.by_tenant.tried(tenant);
    }

    /// One was tried at this look and failed. Where that was not for reasons of its own, it is tried again at the next look.
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
    fn who_fails_is_tried_less_and_less_often_and_others_at_once() {
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
        // One that comes is tried before one that failed, whatever their numbers.
        assert_eq!(ids(&candidates.due(&vms, 256)), [2, 1]);
        // Nor does one wait that failed for another's reasons.
        candidates.failed(VmId(2), 256, false);
        candidates.failed(VmId(1), 256, true);
        assert_eq!(ids(&candidates.due(&vms, 257)), [2]);
        // One that was gone begins anew.
        assert!(ids(&candidates.due(&vms[1..], 258)) == [2]);
        assert_eq!(ids(&candidates.due(&vms, 259)), [1, 2]);
    }

    #[test]
    fn hostile_tenants_with_many_new_vms_wait_for_themselves() {
        let of = |id, tenant| Vm { tenant: Some(tenant), ..fixtures::vm(id, "vm", 1) };
        let mut candidates = Candidates::default();
        let mut vms: Vec<Vm> = (1..=1_000).map(|id| of(id, 1000)).collect();
        candidates.due(&vms, 1);
        // Another's that comes later is the second one, or the first where that one was started anew.
        vms.push(of(2_001, 1001));
        assert_eq!(ids(&candidates.due(&vms, 2))[..3], [1, 2_001, 2]);
        let again: Vec<Vm> = (3_001..=4_000).map(|id| of(id, 1000)).collect();
        let both = || vms[1_000..].iter().chain(&again);
        assert_eq!(ids(&candidates.due(both(), 3))[..3], [2_001, 3_001, 3_002]);
        // So it is with those that failed.
        for vm in both() {
            candidates.failed(vm.id, 3, true);
        }
        let due = candidates.due(both(), 4);
        assert!(ids(&due)[..2].contains(&2_001), "{:?}", &ids(&due)[..2]);
    }

    #[test]
    fn hostile_tenants_whose_vms_take_all_the_time_wait_for_themselves() {
        let of = |id, tenant| Vm { tenant: Some(tenant), ..fixtures::vm(id, "vm", 1) };
        let vms = [of(1, 1000), of(2, 1000), of(3, 1001)];
        let mut candidates = Candidates::default();
        assert_eq!(ids(&candidates.due(&vms, 1)), [1, 3, 2]);
        // There was time for the first only, and it is adopted.
        candidates.tried(Some(1000));
        assert_eq!(ids(&candidates.due(&vms[1..], 2)), [3, 2]);
    }

    #[test]
    fn who_waited_longest_goes_first() {
        let vms: Vec<Vm> = (1..=5).map(|id| fixtures::vm(id, "vm", 1)).collect();
        let mut candidates = Candidates::default();
        assert_eq!(ids(&candidates.due(&vms[3..], 1)), [4, 5]);
        assert_eq!(ids(&candidates.due(&vms, 2)), [4, 5, 1, 2, 3]);
        // Those that failed come after them, and are due at the same look.
        for (vm, look) in [(5, 9), (4, 10), (1, 11)] {
            for _ in 0..3 {
                candidates.failed(VmId(vm), look, true);
            }
        }
        assert_eq!(ids(&candidates.due(&vms, 11)), [2, 3]);
        assert_eq!(ids(&candidates.due(&vms, 12)), [2, 3, 1, 4, 5]);
    }
}
