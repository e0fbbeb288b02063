//! VMs with new vCPUs, and the order in which updates take those.
//!
//! Tenants take turns, one VM each ([`ByTenant`]); among a tenant's VMs, the one that has waited longest goes first.

use std::collections::{BTreeMap, BTreeSet};

use tandem_linux::thread::ThreadRef;
use tandem_model::VmId;

use super::by_tenant::ByTenant;
use crate::discovery::Vm;
use crate::managed::ManagedVm;
use crate::vm_cpu::VcpuCpu;

/// VMs whose new vCPUs are not taken yet.
#[derive(Debug, Default)]
pub(super) struct Grown {
    /// The longest waiting first.
    waiting: Vec<VmId>,
    by_tenant: ByTenant,
}

impl Grown {
    /// Sets the VMs with new vCPUs, and returns them in the order of their tries.
    pub(super) fn due<'v>(&mut self, grown: &[&'v Vm]) -> Vec<&'v Vm> {
        let mut vms: BTreeMap<VmId, &'v Vm> = grown.iter().map(|vm| (vm.id, *vm)).collect();
        self.waiting.retain(|id| vms.contains_key(id));
        let known: BTreeSet<VmId> = self.waiting.iter().copied().collect();
        let new = vms.keys().copied().filter(|id| !known.contains(id));
        self.waiting.extend(new);
        let waiting = self.waiting.iter().filter_map(|id| vms.remove(id));
        self.by_tenant.order(waiting.collect(), |vm| vm.user)
    }

    /// Records a try; if it leaves vCPUs over, the VM queues behind the others.
    pub(super) fn tried(&mut self, vm: &Vm) {
        self.waiting.retain(|id| *id != vm.id);
        self.by_tenant.tried(vm.user);
    }
}

/// Updates a managed VM to the scan's `vm`, and returns its vCPUs that ended.
pub(super) fn follow_vcpus(managed: &mut ManagedVm, vm: &Vm) -> Vec<VcpuCpu> {
    let threads: BTreeSet<ThreadRef> = vm.vcpus.iter().map(|vcpu| vcpu.thread).collect();
    let (kept, ended) = std::mem::take(&mut managed.cpu.vcpus)
        .into_iter()
        .partition(|vcpu| threads.contains(&vcpu.host.thread));
    managed.cpu.vcpus = kept;
    managed.vm = vm.clone();
    ended
}
