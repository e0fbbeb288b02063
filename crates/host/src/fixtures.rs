//! Synthetic VMs for tests.

pub(crate) mod intervals;
pub(crate) mod tree;

use tandem_linux::cgroup::CgroupPath;
use tandem_linux::thread::{Pid, StartTime, ThreadRef, Tid};
use tandem_model::{Nanos, PolicySet, VcpuId, VmId, Weight};

use crate::configured::Configured;
use crate::discovery::{VcpuThread, Vm};
use crate::managed::ManagedVm;
use crate::vm_cpu::VmCpu;
use crate::vmm::Vmm;
use crate::waits::Waits;

/// Milliseconds.
pub(crate) const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// A thread of a process.
pub(crate) fn thread(pid: u32, tid: u32) -> ThreadRef {
    ThreadRef { pid: Pid(pid), tid: Tid(tid), start: StartTime(1) }
}

/// A VM of QEMU: the PID is 100 times its number, and the TIDs of its vCPUs follow.
pub(crate) fn vm(id: u64, name: &str, vcpus: u32) -> Vm {
    let pid = id as u32 * 100;
    Vm {
        user: None,
        id: VmId(id),
        process: thread(pid, pid),
        name: name.to_owned(),
        vmm: Vmm::Qemu,
        vcpus: (0..vcpus)
            .map(|n| VcpuThread { index: VcpuId(n), thread: thread(pid, pid + 1 + n) })
            .collect(),
        unidentified: 0,
    }
}

/// A managed VM in a cgroup of its own, without vCPUs.
pub(crate) fn managed(vm: Vm) -> ManagedVm {
    let weight = Weight::constant(1024.0);
    let mut cpu = VmCpu::new(CgroupPath(format!("/{}", vm.name)), weight, false);
    cpu.divisible = true;
    ManagedVm {
        cpu,
        vm,
        made: true,
        configured: weight,
        worth: Configured::new(weight, false, (weight, weight)),
        has_rule: false,
        is_tenants: false,
        own_quota: None,
        left_below: None,
        policies: PolicySet::ALL,
        is_shared: false,
        busy: Vec::new(),
        waits: Waits::default(),
        sampled: false,
    }
}
