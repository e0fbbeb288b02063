//! vCPU threads in SCHED_BATCH: the kernel then takes them for computing, and they preempt nobody when they wake up.
//!
//! The threads belong to VMs of this experiment and end with them, so nothing is journaled: dropping this makes them ordinary
//! again, and if we are killed, they are gone. Source: sched_setscheduler(2), sched(7).

use std::io;

use tandem_linux::thread::ThreadRef;
use thiserror::Error;

use crate::vm_process::VmProcess;

/// A thread's policy was not changed.
#[derive(Debug, Error)]
#[error("cannot make {thread} SCHED_{policy}")]
pub struct BatchError {
    /// Which.
    pub thread: ThreadRef,
    /// The policy it should have.
    pub policy: &'static str,
    /// What the kernel said.
    pub source: io::Error,
}

/// Threads that are in SCHED_BATCH as long as this lives.
#[derive(Debug)]
pub struct Batch {
    threads: Vec<ThreadRef>,
}

impl Batch {
    /// Puts the vCPU threads of all VMs but the first into the class.
    pub fn enter(vms: &[VmProcess]) -> Result<Batch, BatchError> {
        let mut batch = Batch { threads: Vec::new() };
        for thread in vms.iter().skip(1).flat_map(|vm| vm.threads()) {
            set(thread, libc::SCHED_BATCH, "BATCH")?;
            batch.threads.push(*thread);
        }
        Ok(batch)
    }

    /// Makes them ordinary again.
    pub fn leave(mut self) -> Result<(), BatchError> {
        let threads = std::mem::take(&mut self.threads);
        let outcomes: Vec<_> = threads.iter().map(ordinary).collect();
        outcomes.into_iter().collect()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for thread in &self.threads {
            // A thread that ended is as good as one put back.
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
    // SAFETY: `parameter` lives through the call, which only reads it; a thread number that is not ours is refused or unknown.
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
    fn a_thread_is_batch_for_as_long_as_it_is_held() {
        let thread = std::thread::spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            let own =
                ThreadRef::read(&ProcFs::host(), Pid(std::process::id()), Tid(tid as u32)).unwrap();
            set(&own, libc::SCHED_BATCH, "BATCH").unwrap();
            let batch = Batch { threads: vec![own] };
            // SAFETY: reads a number; 0 is the calling thread.
            let policy = || unsafe { libc::sched_getscheduler(0) };
            assert_eq!(policy(), libc::SCHED_BATCH);
            batch.leave().unwrap();
            assert_eq!(policy(), libc::SCHED_OTHER);
        });
        thread.join().unwrap();
    }
}
