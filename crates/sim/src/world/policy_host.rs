//! The simulated host's state for the controller of policies: the controller itself, each VM's CPU settings, and the simulated kernel's values.

use tandem_model::{PcpuSet, PolicySet, VcpuId, VcpuSettings, Weight};
use tandem_policy::flexw::Round;
use tandem_policy::host::{Controller, HostObservation, WeightKnob};
use tandem_policy::vm_cpu::{self, VcpuCpu};

/// A group of the simulated host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Group {
    /// A VM's group.
    Vm(u32),
    /// The group of one vCPU, next to the VMs' groups.
    Beside(u32),
    /// The group of one vCPU within its VM's group.
    Within(u32),
}

/// A VM's CPU settings; vCPUs are identified by their numbers in the world.
pub(crate) type VmCpu = vm_cpu::VmCpu<Group, u32>;

/// The controller of policies, its last observation, and the values that it has set.
pub(crate) struct Policies {
    /// `None` while it decides, and without any enabled policy.
    pub controller: Option<Controller>,
    pub knob: WeightKnob,
    /// By vCPU, at the last observation: run time, wait time, number of times switched in.
    pub seen: Vec<(u64, u64, u64)>,
    /// By VM: the configured weight, the policies that may act on it, and whether its group is in the idle class.
    pub vms: Vec<(Weight, PolicySet, bool)>,
    /// By VM: its CPU settings, as the controller knows them.
    pub cpu: Vec<VmCpu>,
    /// By vCPU: nice value of its thread, weight and idle class of its group within the VM's.
    pub vcpus: Vec<VcpuSettings>,
    /// Observations and decisions, if they are recorded.
    pub recording: Option<Vec<(HostObservation, Round)>>,
}

impl Policies {
    /// State for VMs with these weights, policies and numbers of vCPUs, and vCPUs with these settings and affinities.
    pub fn new(
        controller: Option<Controller>,
        knob: WeightKnob,
        vms: Vec<(Weight, PolicySet, u32)>,
        vcpus: Vec<VcpuSettings>,
        allowed: &[PcpuSet],
    ) -> Policies {
        let mut next = 0;
        let cpu = (0u32..).zip(&vms).map(|(vm, (weight, _, count))| {
            let first = next;
            next += count;
            let mut cpu = VmCpu::new(Group::Vm(vm), *weight, false);
            cpu.vcpus = (first..next)
                .map(|v| {
                    let settings = vcpus[v as usize];
                    let id = VcpuId(v - first);
                    let mut vcpu = VcpuCpu::new(id, v, settings, allowed[v as usize].clone());
                    vcpu.group = settings.weight.map(|_| Group::Within(v));
                    vcpu
                })
                .collect();
            cpu
        });
        Policies {
            controller,
            knob,
            seen: vec![(0, 0, 0); vcpus.len()],
            cpu: cpu.collect(),
            vms: vms.iter().map(|(weight, set, _)| (*weight, *set, false)).collect(),
            vcpus,
            recording: None,
        }
    }

    /// Takes a VM's CPU settings out, to change them together with the world.
    pub fn take(&mut self, vm: u32) -> VmCpu {
        let cpu = &mut self.cpu[vm as usize];
        let empty = VmCpu::new(cpu.group, cpu.weight(), false);
        std::mem::replace(cpu, empty)
    }
}
