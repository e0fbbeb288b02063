//! Divides a VM's weight among its vCPUs, each in a group of its own, on the simulated host.
//!
//! The daemon does this with cgroups; here the simulated scheduler has a knob.
//! As on a live host, the VM's group keeps its settings while it is empty, and weights are rounded as the weight knob requires.

use tandem_model::{VcpuId, VmId, Weight};

use crate::host::Scheduler;

use super::simulation::World;

impl World {
    /// Gives a VM's vCPUs groups with these portions of its weight; without portions, returns them to the VM's group.
    /// A VM in the idle class or in the rotation is never divided.
    pub(super) fn divide(&mut self, vm: VmId, portions: &[(VcpuId, f64)]) {
        let can = self.host.is_divisible()
            && !self.policies.vms[vm.0 as usize].2
            && !self.turns.takes_part(vm);
        self.account_all();
        if portions.is_empty() || !can {
            self.unite(vm);
            return;
        }
        for &(id, portion) in portions {
            let Some(v) = self.vcpu_of(vm, id) else {
                continue;
            };
            let settings = &mut self.policies.vcpus[v as usize];
            let was_apart = settings.portion.replace(portion).is_some();
            // Remove the weight that the vCPU had within its VM's group.
            if !was_apart && settings.weight.take().is_some() {
                self.weigh_vcpu(v);
            }
        }
        self.weigh_apart(vm.0 as u32);
    }

    fn unite(&mut self, vm: VmId) {
        let state = &self.vms[vm.0 as usize];
        for v in state.first_vcpu..state.first_vcpu + state.vcpus {
            let settings = &mut self.policies.vcpus[v as usize];
            if settings.portion.take().is_some() {
                settings.weight = None;
                self.host.set_own_group(v, None, self.now);
            }
        }
    }

    /// Sets the weights of a VM's divided vCPUs to their portions of its weight.
    pub(super) fn weigh_apart(&mut self, vm: u32) {
        let state = &self.vms[vm as usize];
        for v in state.first_vcpu..state.first_vcpu + state.vcpus {
            let settings = &mut self.policies.vcpus[v as usize];
            let Some(portion) = settings.portion else {
                continue;
            };
            let weight = Weight::saturating(self.weights[vm as usize] * portion);
            let weight = self.policies.knob.round(weight);
            settings.weight = Some(weight);
            self.host.set_own_group(v, Some(weight.value()), self.now);
        }
    }
}
