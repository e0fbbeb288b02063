//! The knobs of the simulated host, as [`tandem_policy::vm_cpu`] sets them.
//!
//! They never refuse a change.
//! A VM's group keeps its settings while it is empty, and weights are rounded as the weight knob requires.

use std::convert::Infallible;

use tandem_model::{Nanos, Nice, PcpuSet, Weight};
use tandem_policy::vm_cpu::{Knobs, VcpuCpu};

use crate::host::Scheduler;

use super::policy_host::Group;
use super::simulation::World;

impl Knobs<Group, u32> for World {
    type Error = Infallible;
    type Switch = ();

    fn default_weight(&self) -> Weight {
        self.policies.knob.default
    }

    fn is_idle(&self, group: &Group) -> Result<bool, Infallible> {
        Ok(match *group {
            Group::Vm(vm) => self.policies.vms[vm as usize].2,
            Group::Within(v) => self.policies.vcpus[v as usize].idle,
            Group::Beside(_) => false,
        })
    }

    fn set_weight(&mut self, group: &Group, weight: Weight) -> Result<Weight, Infallible> {
        let mut written = weight;
        match *group {
            Group::Vm(vm) => self.set_vm_weight(vm, weight),
            Group::Within(v) => {
                self.policies.vcpus[v as usize].weight = Some(weight);
                self.weigh_vcpu(v);
            }
            Group::Beside(v) => {
                written = self.policies.knob.round(weight);
                self.account_all();
                self.host.set_own_group(v, Some(written.value()), self.now);
            }
        }
        Ok(written)
    }

    fn set_idle(&mut self, group: &Group, idle: bool) -> Result<(), Infallible> {
        match *group {
            Group::Vm(vm) => self.set_vm_idle(vm, idle),
            Group::Within(v) => {
                self.policies.vcpus[v as usize].idle = idle;
                self.weigh_vcpu(v);
            }
            // A divided VM is united before it enters the idle class.
            Group::Beside(_) => {}
        }
        Ok(())
    }

    fn find_inner_group(
        &mut self,
        _vm: &Group,
        vcpu: &mut VcpuCpu<Group, u32>,
    ) -> Result<bool, Infallible> {
        vcpu.on_group(Some((Group::Within(vcpu.host), self.policies.knob.default, false)));
        Ok(true)
    }

    fn separate(
        &mut self,
        _vm: &Group,
        vcpu: &VcpuCpu<Group, u32>,
        weight: Weight,
    ) -> Result<Option<(Group, Weight)>, Infallible> {
        let group = Group::Beside(vcpu.host);
        let written = self.set_weight(&group, weight)?;
        Ok(Some((group, written)))
    }

    fn rejoin(&mut self, _vm: &Group, vcpu: &VcpuCpu<Group, u32>) -> Result<(), Infallible> {
        self.account_all();
        self.host.set_own_group(vcpu.host, None, self.now);
        Ok(())
    }

    fn remove_group(&mut self, group: Group) {
        if let Group::Within(v) = group {
            let settings = &mut self.policies.vcpus[v as usize];
            (settings.weight, settings.idle) = (None, false);
            self.weigh_vcpu(v);
        }
    }

    fn set_nice(&mut self, vcpu: &u32, nice: Nice) -> Result<Option<Nice>, Infallible> {
        self.policies.vcpus[*vcpu as usize].nice = nice;
        self.weigh_vcpu(*vcpu);
        Ok(Some(nice))
    }

    fn set_slice(
        &mut self,
        vcpu: &u32,
        slice: Option<Nanos>,
    ) -> Result<Option<Option<Nanos>>, Infallible> {
        self.host.set_slice(*vcpu, slice.map_or(0, |slice| slice.0));
        Ok(Some(slice))
    }

    fn set_affinity(&mut self, vcpu: &u32, pcpus: &PcpuSet) -> Result<Option<PcpuSet>, Infallible> {
        self.set_vcpu_affinity(*vcpu, pcpus);
        Ok(Some(self.allowed[*vcpu as usize].clone()))
    }

    fn prepare_turns(&mut self, _: &Group, _: Weight, _: bool) -> Result<(), Infallible> {
        Ok(())
    }

    fn prepare_slots(&mut self, _: &u32, _: &PcpuSet) -> Result<bool, Infallible> {
        Ok(true)
    }
}
