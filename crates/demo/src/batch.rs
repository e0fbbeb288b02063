//! Moves vCPU threads to SCHED_BATCH: the kernel treats them as CPU-bound, so they do not preempt others at wake-up.
//!
//! The change is not journaled, because the threads belong to VMs of this experiment and end with them.
//! Dropping [`Batch`] reverts it.
//! Source: sched_setscheduler(2), sched(7).

use std::io;

use tandem_linux::thread::ThreadRef;
use thiserror::Error;

use crate::vm_process::VmProcess;

/// The scheduling policy of a thread could not be changed.
#[derive(Debug, Error)]
#[error("cannot make {thread} SCHED_{policy}")]
pub struct BatchError {
    /// The thread.
    pub thread: ThreadRef,
    /// The requested policy.
    pub policy: &'static str,
    /// The operating system's error.
    pub source: io::Error,
}

/// Threads in SCHED_BATCH; dropping it makes them SCHED_OTHER again.
#[derive(Debug)]
pub struct Batch {
    threads: Vec<ThreadRef>,
}

impl Batch {
    /// Moves the vCPU threads of all VMs except the first to SCHED_BATCH.
    pub fn enter(vms: &[VmProcess]) -> Result<Batch, BatchError> {
        let mut batch = Batch { threads: Vec::new() };
        for thread in vms.iter().skip(1).flat_map(|vm| vm.threads()) {
            set(thread, libc::SCHED_BATCH, "BATCH")?;
            batch.threads.push(*thread);
        }
        Ok(batch)
    }

    /// Makes all threads SCHED_OTHER again.
    pub fn leave(mut self) -> Result<(), BatchError> {
        let threads = std::mem::take(&mut self.threads);
        let outcomes: Vec<_> = threads.iter().map(ordinary).collect();
        outcomes.into_iter().collect()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for thread in &self.threads {
            // An error is harmless: the thread has ended.
            let _ = ordinary(thread);
        }
    }
}

fn ordinary(thread: &ThreadRef) -> Result<(), BatchError> {
    set(thread, libc::SCHED_OTHER, "OTHER")
}

fn set(thread: &ThreadRef, number: i32, policy: &'static str) -> Result<(), BatchError> {
    let parameter = libc::sched_param { sched_priority: 0 };
    let failed = |source| BatchError { thread: *thread, policy, source };
    let tid = i32::try_from(thread.tid.0).map_err(|error| failed(io::Error::other(error)))?;
    // SAFETY: `parameter` outlives the call, which only reads it; the kernel checks `tid`.
    match unsafe { libc::sched_setscheduler(tid, number, &parameter) } {
        0 => Ok(()),
        _ => Err(failed(io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::ProcFs;
    use tandem_linux::thread::{Pid, Tid};

    use super::*;

    #[test]
    fn leave_restores_sched_other() {
        let thread = std::thread::spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            let own =
                ThreadRef::read(&ProcFs::host(), Pid(std::process::id()), Tid(tid as u32)).unwrap();
            set(&own, libc::SCHED_BATCH, "BATCH").unwrap();
            let batch = Batch { threads: vec![own] };
            // SAFETY: the call takes no pointer; 0 is the calling thread.
            let policy = || unsafe { libc::sched_getscheduler(0) };
            assert_eq!(policy(), libc::SCHED_BATCH);
            batch.leave().unwrap();
            assert_eq!(policy(), libc::SCHED_OTHER);
        });
        thread.join().unwrap();
    }
}
