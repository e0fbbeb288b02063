//! The trait of a source of branch counters, and its errors.

use std::io;

use rustix::io::Errno;
use tandem_model::VcpuId;
use tandem_model::branch_counters::{Counted, CounterSource};
use thiserror::Error;

use crate::procfs::ProcFs;
use crate::thread::ThreadRef;

/// Why branches cannot be counted.
#[derive(Debug, Error)]
pub enum CounterError {
    /// There is no PMU, or none that distinguishes guests from the host.
    #[error(
        "needs a PMU: this host has no performance counters that count branches of guests ({cause}); in a VM the hypervisor must provide one"
    )]
    NoPmu {
        /// The kernel's error.
        cause: io::Error,
    },
    /// This process lacks the permission.
    #[error(
        "this process may not count branches of other processes' guests ({cause}; kernel.perf_event_paranoid is {paranoid}): run as root, or with CAP_PERFMON"
    )]
    NotAllowed {
        /// The kernel's error.
        cause: io::Error,
        /// `kernel.perf_event_paranoid`.
        paranoid: String,
    },
    /// The process is at its limit of open files, of which each vCPU needs four.
    #[error(
        "this process is at its limit of open files, and counters need four per vCPU: raise the limit (LimitNOFILE= in the service, or ulimit -n)"
    )]
    TooManyFiles,
    /// The thread is gone, for example because its vCPU was unplugged.
    #[error("the thread of the vCPU is gone")]
    Gone,
    /// Other events had the PMU all the time.
    #[error(
        "the vCPU ran, but its counters were never on the PMU, which others use (perf, an NMI watchdog); such periods yield no verdict"
    )]
    NotScheduled,
    /// The process is not a Tandem microVM.
    #[error(
        "synthetic counters exist only in Tandem's own microVMs, and process {pid} is not one: use --counters hardware"
    )]
    NoMicrovm {
        /// The process.
        pid: u32,
    },
    /// Counting failed in another way.
    #[error("cannot count branches: {cause}")]
    Other {
        /// The kernel's error.
        cause: io::Error,
    },
}

impl CounterError {
    /// Maps an error of perf_event_open(2), or of reading its file.
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

    /// Whether the thread has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, CounterError::Gone)
    }
}

/// The text of `kernel.perf_event_paranoid`.
fn paranoid(procfs: &ProcFs) -> String {
    let path = procfs.resolve("/proc/sys/kernel/perf_event_paranoid");
    match std::fs::read_to_string(path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) => format!("not known: {error}"),
    }
}

/// A source of counters.
pub trait BranchCounters {
    /// Kind of the source.
    fn source(&self) -> CounterSource;

    /// Returns the counts of the vCPU of `thread` since the last call for it; `None` at the first call, or if it did not run.
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
    fn kernel_errors_are_mapped() {
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
