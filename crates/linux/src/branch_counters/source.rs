//! A source of branch counters, and why there may be none.

use std::io;

use rustix::io::Errno;
use tandem_model::VcpuId;
use tandem_model::branch_counters::{Counted, CounterSource};
use thiserror::Error;

use crate::procfs::ProcFs;
use crate::thread::ThreadRef;

/// Why there are no counts.
#[derive(Debug, Error)]
pub enum CounterError {
    /// There is no PMU, or none that tells guests from the host.
    #[error(
        "needs a PMU: this host has no performance counters that count branches of guests ({cause}); in a VM the hypervisor must give it one"
    )]
    NoPmu {
        /// What the kernel said.
        cause: io::Error,
    },
    /// This process may not count.
    #[error(
        "this process may not count what other processes' guests run ({cause}; kernel.perf_event_paranoid is {paranoid}): run as root, or with CAP_PERFMON"
    )]
    NotAllowed {
        /// What the kernel said.
        cause: io::Error,
        /// `kernel.perf_event_paranoid`.
        paranoid: String,
    },
    /// This process may open no more files: four are needed for each vCPU.
    #[error(
        "this process may have no more open files, and counters need four for each vCPU: raise the limit (LimitNOFILE= in the service, or ulimit -n)"
    )]
    TooManyFiles,
    /// The thread is gone, as when its vCPU was unplugged.
    #[error("the thread of the vCPU is gone")]
    Gone,
    /// Other events had the PMU all the time.
    #[error(
        "the vCPU ran, and its counters never got onto the PMU: others use it (perf, an NMI watchdog); it is not judged in such periods"
    )]
    NotScheduled,
    /// The process is no microVM of Tandem's.
    #[error(
        "synthetic counters are those of Tandem's own microVMs, and process {pid} is none: use --counters hardware"
    )]
    NoMicrovm {
        /// Its process.
        pid: u32,
    },
    /// Counting failed in another way.
    #[error("cannot count branches: {cause}")]
    Other {
        /// What the kernel said.
        cause: io::Error,
    },
}

impl CounterError {
    /// What an error of perf_event_open(2) or of reading its file means.
    pub fn of(cause: io::Error, procfs: &ProcFs) -> CounterError {
        let errno = cause.raw_os_error().map(Errno::from_raw_os_error);
        match errno {
            Some(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP | Errno::NOSYS) => {
                CounterError::NoPmu { cause }
            }
            Some(Errno::ACCESS | Errno::PERM) => {
                CounterError::NotAllowed { paranoid: paranoid(procfs), cause }
            }
            Some(Errno::MFILE | Errno::NFILE) => CounterError::TooManyFiles,
            Some(Errno::SRCH) => CounterError::Gone,
            _ => CounterError::Other { cause },
        }
    }

    /// Whether the thread merely ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, CounterError::Gone)
    }
}

/// `kernel.perf_event_paranoid`, as it stands there.
fn paranoid(procfs: &ProcFs) -> String {
    let path = procfs.resolve("/proc/sys/kernel/perf_event_paranoid");
    match std::fs::read_to_string(path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) => format!("not known: {error}"),
    }
}

/// A source of counters.
pub trait BranchCounters {
    /// Where they come from.
    fn source(&self) -> CounterSource;

    /// What the vCPU that `thread` runs counted since the last call for it; `None` the first time, and if it did not run.
    fn count(&mut self, vcpu: VcpuId, thread: &ThreadRef) -> Result<Option<Counted>, CounterError>;

    /// Forgets a thread that is gone.
    fn forget(&mut self, thread: &ThreadRef);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(errno: Errno) -> CounterError {
        CounterError::of(io::Error::from_raw_os_error(errno.raw_os_error()), &ProcFs::host())
    }

    #[test]
    fn each_error_of_the_kernel_has_a_name() {
        assert!(of(Errno::NOENT).to_string().starts_with("needs a PMU"));
        assert!(of(Errno::OPNOTSUPP).to_string().starts_with("needs a PMU"));
        let refused = of(Errno::ACCESS).to_string();
        assert!(
            refused.contains("perf_event_paranoid") && refused.contains("CAP_PERFMON"),
            "{refused}"
        );
        assert!(of(Errno::MFILE).to_string().contains("LimitNOFILE"));
        assert!(of(Errno::SRCH).is_gone() && !of(Errno::NOENT).is_gone());
        assert!(of(Errno::INVAL).to_string().contains("Invalid argument"));
    }
}
