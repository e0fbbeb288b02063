//! Made-up VMs, for tests.

pub(crate) mod hooked;

use tandem_linux::thread::Pid;
use tandem_linux::thread::StartTime;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_policy::Nanos;
use tandem_policy::VcpuId;
use tandem_policy::VmId;

use crate::discovery::VcpuThread;
use crate::discovery::Vm;
use crate::vmm::Vmm;

/// Milliseconds.
pub(crate) const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// A thread of a process.
pub(crate) fn thread(pid: u32, tid: u32) -> ThreadRef {
    ThreadRef {
        pid: Pid(pid),
        tid: Tid(tid),
        start: StartTime(1),
    }
}

/// A VM of QEMU's: process 100 times its number, and its vCPUs' threads after that.
pub(crate) fn vm(id: u64, name: &str, vcpus: u32) -> Vm {
    let pid = id as u32 * 100;
    Vm {
        id: VmId(id),
        process: thread(pid, pid),
        name: name.to_owned(),
        vmm: Vmm::Qemu,
        vcpus: (0..vcpus)
            .map(|n| VcpuThread {
                index: VcpuId(n),
                thread: thread(pid, pid + 1 + n),
            })
            .collect(),
        unidentified: 0,
    }
}
