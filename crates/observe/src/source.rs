//! What a source of observation is asked, and what it answers.
//!
//! ```no_run
//! use tandem_linux::ProcFs;
//! use tandem_observe::Plain;
//! use tandem_observe::Source;
//!
//! let mut source = Plain::new(ProcFs::host());
//! let vms = []; // found by whoever looks for VMs
//! source.begin(&vms)?;
//! std::thread::sleep(std::time::Duration::from_secs(1));
//! let interval = source.interval(&vms)?;
//! for missing in &interval.missing {
//!     println!("{missing}");
//! }
//! # Ok::<(), tandem_observe::ObserveError>(())
//! ```
//!
//! All times are within the interval, in ns. A pCPU has as much time as the interval is long.

use std::fmt;

use serde::Serialize;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::sampler::SampleError;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_policy::Nanos;
use tandem_policy::PcpuSet;
use tandem_policy::State;
use tandem_policy::VcpuId;
use tandem_policy::VcpuTimes;
use tandem_policy::VmId;
use tandem_policy::states::edges::Edges;
use thiserror::Error;

/// Why nothing can be observed.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// The kernel lacks the account, or this process may not have as many files open.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Processes cannot be listed.
    #[error("cannot list {path}: {source}; is /proc mounted?")]
    List {
        /// Which folder.
        path: std::path::PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// A vCPU to look at, and the thread that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedVcpu {
    /// Its number in its VM.
    pub vcpu: VcpuId,
    /// Its thread.
    pub thread: ThreadRef,
}

/// A VM to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedVm {
    /// A number that no other VM has.
    pub vm: VmId,
    /// Its process.
    pub process: ThreadRef,
    /// Its vCPUs, by number.
    pub vcpus: Vec<WatchedVcpu>,
}

/// Measures where time goes, interval after interval.
pub trait Source {
    /// Begins: what happened before does not count.
    fn begin(&mut self, vms: &[WatchedVm]) -> Result<(), ObserveError>;

    /// What happened since [`Source::begin`] or the last interval. A VM or vCPU that is new, or gone, is not in it.
    fn interval(&mut self, vms: &[WatchedVm]) -> Result<Interval, ObserveError>;
}

/// A state that a source does not measure, for some VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Which state.
    pub state: State,
    /// Of how many VMs.
    pub vms: usize,
    /// Of how many that were looked at.
    pub of: usize,
    /// For want of what, and how to get it.
    pub want: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} not measured", self.state)?;
        if self.vms < self.of {
            write!(f, " for {} of {} VMs", self.vms, self.of)?;
        }
        write!(f, ": {}", self.want)
    }
}

/// One vCPU over the interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuInterval {
    /// Its number in its VM.
    pub vcpu: VcpuId,
    /// Where its time went.
    pub times: VcpuTimes,
    /// Time on a pCPU, whatever for.
    pub ran: Nanos,
    /// Time runnable without a pCPU, throttled or not.
    pub waited: Nanos,
    /// How often it was put on a pCPU.
    pub runs: u64,
    /// Whether it was runnable when the interval ended.
    pub runnable: bool,
    /// Where it may run.
    pub allowed: PcpuSet,
}

/// CPU time of a thread, or of all of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadTime {
    /// The thread's name.
    pub name: String,
    /// CPU time.
    pub time: Nanos,
}

/// One VM over the interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmInterval {
    /// Which VM.
    pub vm: VmId,
    /// Its vCPUs that could be read at both ends, in the order given.
    pub vcpus: Vec<VcpuInterval>,
    /// The threads that work for it beside its vCPUs and that ran: emulator, I/O threads, vhost. The longest first.
    pub threads: Vec<ThreadTime>,
}

/// A process of the host that is no VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskTime {
    /// Its name.
    pub name: String,
    /// Its number.
    pub pid: Pid,
    /// Its cgroup, in the hierarchy of the cpu controller, where that is known.
    pub cgroup: Option<CgroupPath>,
    /// CPU time of all its threads.
    pub time: Nanos,
}

/// Where the host's pCPUs were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostTotals {
    /// pCPUs that are online.
    pub pcpus: usize,
    /// Idle time, summed over pCPUs; in steps of a clock tick. `None`: not measured.
    pub idle: Option<Nanos>,
    /// CPU time of vCPUs.
    pub vcpus: Nanos,
    /// CPU time of the VMs' other threads.
    pub vm_threads: Nanos,
    /// CPU time of processes that are no VMs and lived at the end of the interval.
    pub tasks: Nanos,
    /// Those of them that used most, the most first.
    pub top_tasks: Vec<TaskTime>,
    /// CPU time of threads of the kernel, without vhost.
    pub kernel: Nanos,
}

/// What a source answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// How long it was.
    pub length: Nanos,
    /// The VMs, in the order given.
    pub vms: Vec<VmInterval>,
    /// Who waited for whom.
    pub edges: Edges,
    /// The rest of the host.
    pub host: HostTotals,
    /// What is not measured, and for want of what.
    pub missing: Vec<Missing>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_of_whom() {
        let mut missing = Missing {
            state: State::Poll,
            vms: 2,
            of: 3,
            want: "run as root".to_owned(),
        };
        assert_eq!(
            missing.to_string(),
            "POLL not measured for 2 of 3 VMs: run as root"
        );
        missing.vms = 3;
        assert_eq!(missing.to_string(), "POLL not measured: run as root");
    }
}
