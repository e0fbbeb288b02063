//! Branch counters of a fleet.

use std::collections::BTreeSet;

use tandem_linux::branch_counters::BranchCounters;
use tandem_linux::procfs::ProcFs;
use tandem_policy::host::{flexs, registry};

use super::Fleet;
use crate::cpusets::Cpusets;
use crate::managed::ManagedVm;

impl Fleet {
    /// Sets the source of branch counters, for the policy `flexs`.
    #[must_use]
    pub fn with_counters(mut self, source: Box<dyn BranchCounters>) -> Fleet {
        self.counters.source = Some(source);
        self.counters.policy = registry::find(flexs::ENTRY.name).ok();
        self
    }

    /// Reads the cpusets of a VM's vCPUs, if the policy that swaps vCPUs by their branch counters may act on it.
    pub(super) fn read_cpusets(&self, managed: &mut ManagedVm) {
        let swaps = |policy| managed.policies.contains(policy);
        if !self.counters.policy.is_some_and(swaps) {
            return;
        }
        let mut cpusets = Cpusets::open(&ProcFs::host());
        for vcpu in managed.cpu.vcpus.iter_mut().map(|vcpu| &mut vcpu.host) {
            // A cpuset that libvirt set as a pin bounds our affinities as any other does.
            vcpu.cpuset = cpusets.of(&vcpu.thread, false);
        }
    }

    /// Returns the errors of counters since the last call.
    pub(crate) fn counter_errors(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.counters.errors)
    }
}
