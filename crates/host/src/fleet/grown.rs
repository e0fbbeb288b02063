//! VMs that have more vCPUs than before: in which order their new ones are taken.
//!
//! One VM of each tenant after the other ([`ByTenant`]), and of a tenant's the one that has waited longest.

use std::collections::{BTreeMap, BTreeSet};

use tandem_linux::thread::ThreadRef;
use tandem_model::VmId;

use super::by_tenant::ByTenant;
use crate::discovery::Vm;
use crate::managed::{ManagedVcpu, ManagedVm};

/// VMs whose new vCPUs are not taken yet.
#[derive(Debug, Default)]
pub(super) struct Grown {
    /// Who waits longest first.
    waiting: Vec<VmId>,
    by_tenant: ByTenant,
}

impl Grown {
    /// These have new vCPUs now, and no others; in the order in which they are tried.
    pub(super) fn due<'v>(&mut self, grown: &[&'v Vm]) -> Vec<&'v Vm> {
        let mut vms: BTreeMap<VmId, &'v Vm> = grown.iter().map(|vm| (vm.id, *vm)).collect();
        self.waiting.retain(|id| vms.contains_key(id));
        let known: BTreeSet<VmId> = self.waiting.iter().copied().collect();
        let new = vms.keys().copied().filter(|id| !known.contains(id));
        self.waiting.extend(new);
        let waiting = self.waiting.iter().filter_map(|id| vms.remove(id));
        self.by_tenant.order(waiting.collect(), |vm| vm.tenant)
    }

    /// It is tried; where that leaves some, it waits behind the others.
    pub(super) fn tried(&mut self, vm: &Vm) {
        self.waiting.retain(|id| *id != vm.id);
        self.by_tenant.tried(vm.tenant);
    }
}

/// A VM is now as it was found; returns those of its vCPUs that ended.
pub(super) fn follow_vcpus(managed: &mut ManagedVm, vm: &Vm) -> Vec<ManagedVcpu> {
    let threads: BTreeSet<ThreadRef> = vm.vcpus.iter().map(|vcpu| vcpu.thread).collect();
    let (kept, ended) = std::mem::take(&mut managed.vcpus)
        .into_iter()
        .partition(|vcpu| threads.contains(&vcpu.thread));
    managed.vcpus = kept;
    managed.vm = vm.clone();
    ended
}
