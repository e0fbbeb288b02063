//! A thread's scheduler attributes besides its affinity: nice value, EEVDF slice and SCHED_BATCH.
//!
//! Since Linux 6.12, sched_setattr(2) takes a custom slice as `sched_runtime` of a fair thread: a shorter one means an earlier deadline.
//! The kernel reports the slice in use, but not whether it is custom.
//! A thread with the scheduler's slice therefore counts as one without a custom slice.
//! The scheduler's slice is read from this process's first thread.
//! Older kernels report no slice and accept none.
//!
//! Source: sched_setattr(2); `__setparam_fair` and `get_params` of kernel/sched/syscalls.c.

use std::io;

use serde::{Deserialize, Serialize};
use tandem_model::{Nanos, Nice};
use thiserror::Error;

use crate::ids::Tid;

/// Why an attribute could not be read or set.
#[derive(Debug, Error)]
pub enum SchedAttrError {
    /// The thread ended.
    #[error("thread {0} is gone")]
    Gone(Tid),
    /// The kernel has no custom slices.
    #[error("this kernel has no custom slices per thread; they need Linux 6.12")]
    NoSlices,
    /// The kernel refused.
    #[error("cannot {action} of thread {tid}: {source}{}", hint(source))]
    Kernel {
        /// The operation.
        action: &'static str,
        /// The thread.
        tid: Tid,
        /// The kernel's error.
        source: io::Error,
    },
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => "; run Tandem as root, or with CAP_SYS_NICE",
        Some(libc::EINVAL) => "; the thread is not in the fair class, or the value is out of range",
        _ => "",
    }
}

impl SchedAttrError {
    /// Whether the thread has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, SchedAttrError::Gone(_))
    }

    fn of(action: &'static str, tid: Tid, source: io::Error) -> SchedAttrError {
        match source.raw_os_error() {
            Some(libc::ESRCH) => SchedAttrError::Gone(tid),
            _ => SchedAttrError::Kernel { action, tid, source },
        }
    }
}

/// struct sched_attr of include/uapi/linux/sched/types.h, its first version.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = size_of::<Attr>() as u32;

fn get(tid: Tid) -> io::Result<Attr> {
    let mut attr = Attr::default();
    // SAFETY: the pointer is to SIZE writable bytes that outlive the call, and the kernel writes at most that many.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, tid.0, &raw mut attr, SIZE, 0u32) };
    match result {
        0 => Ok(attr),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(tid: Tid, attr: Attr) -> io::Result<()> {
    let attr = Attr { size: SIZE, ..attr };
    // SAFETY: the pointer is to a sched_attr that contains its size; the kernel only reads it.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid.0, &raw const attr, 0u32) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns a thread's nice value.
pub fn nice(tid: Tid) -> Result<Nice, SchedAttrError> {
    let attr = get(tid).map_err(|error| SchedAttrError::of("read the nice value", tid, error))?;
    Ok(Nice(attr.nice as i8))
}

/// Sets a thread's nice value; its slice stays.
pub fn set_nice(tid: Tid, nice: Nice) -> Result<(), SchedAttrError> {
    // SAFETY: no pointer is passed.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid.0, libc::c_int::from(nice.0)) };
    match result {
        0 => Ok(()),
        _ => {
            let error = io::Error::last_os_error();
            Err(SchedAttrError::of("set the nice value", tid, error))
        }
    }
}

/// Returns the slice that the scheduler gives threads without a custom one; `None` if the kernel has no custom slices.
pub fn schedulers_slice() -> Option<Nanos> {
    let attr = get(Tid(std::process::id())).ok()?;
    (attr.runtime > 0).then_some(Nanos(attr.runtime))
}

/// Returns a thread's custom slice, if any.
pub fn slice(tid: Tid) -> Result<Option<Nanos>, SchedAttrError> {
    let usual = schedulers_slice().ok_or(SchedAttrError::NoSlices)?;
    let attr = get(tid).map_err(|error| SchedAttrError::of("read the slice", tid, error))?;
    let slice = Nanos(attr.runtime);
    Ok((slice != usual).then_some(slice))
}

/// Sets a thread's custom slice; `None` resets it to the scheduler's.
pub fn set_slice(tid: Tid, slice: Option<Nanos>) -> Result<(), SchedAttrError> {
    if schedulers_slice().is_none() {
        return Err(SchedAttrError::NoSlices);
    }
    let failed = |error| SchedAttrError::of("set the slice", tid, error);
    let attr = get(tid).map_err(failed)?;
    let runtime = slice.map_or(0, |slice| slice.0);
    set(tid, Attr { runtime, ..attr }).map_err(failed)
}

/// Policy and slice of a thread of the fair class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FairScheduling {
    /// SCHED_BATCH: after a wake-up it does not preempt the running thread.
    pub batch: bool,
    /// Custom slice, ns; `None` for the scheduler's, or if the kernel has no custom slices.
    pub slice: Option<Nanos>,
}

/// Returns a thread's policy and slice; `None` if it is outside the fair class or SCHED_IDLE.
pub fn fair_scheduling(tid: Tid) -> Result<Option<FairScheduling>, SchedAttrError> {
    let failed = |error| SchedAttrError::of("read the scheduling policy", tid, error);
    let attr = get(tid).map_err(failed)?;
    let batch = match attr.policy as libc::c_int {
        libc::SCHED_OTHER => false,
        libc::SCHED_BATCH => true,
        _ => return Ok(None),
    };
    let usual = schedulers_slice().map_or(0, |slice| slice.0);
    let slice = (attr.runtime != usual).then_some(Nanos(attr.runtime));
    Ok(Some(FairScheduling { batch, slice }))
}

/// Sets the policy and slice of a thread of the fair class; its nice value stays.
/// On kernels without custom slices, sets only the policy.
pub fn set_fair_scheduling(tid: Tid, scheduling: FairScheduling) -> Result<(), SchedAttrError> {
    let failed = |error| SchedAttrError::of("set the scheduling policy", tid, error);
    let attr = get(tid).map_err(failed)?;
    let policy = if scheduling.batch { libc::SCHED_BATCH } else { libc::SCHED_OTHER };
    let runtime = match schedulers_slice() {
        Some(_) => scheduling.slice.map_or(0, |slice| slice.0),
        None => 0,
    };
    let attr = Attr { policy: policy as u32, runtime, ..attr };
    set(tid, attr).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the test in a new thread, so that it changes no other test's thread.
    fn in_a_thread(test: impl FnOnce(Tid) + Send) {
        let run = || test(Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32));
        std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    }

    #[test]
    fn nice_round_trips() {
        in_a_thread(|me| {
            let before = nice(me).unwrap();
            let next = Nice((before.0 + 3).min(19));
            set_nice(me, next).unwrap();
            assert_eq!(nice(me).unwrap(), next);
        });
    }

    #[test]
    fn slice_is_set_and_reset() {
        if schedulers_slice().is_none() {
            println!("skipped: this kernel has no custom slices");
            return;
        }
        in_a_thread(|me| {
            assert_eq!(slice(me).unwrap(), None);
            set_slice(me, Some(Nanos(500_000))).unwrap();
            assert_eq!(slice(me).unwrap(), Some(Nanos(500_000)));
            set_slice(me, None).unwrap();
            assert_eq!(slice(me).unwrap(), None);
        });
    }

    #[test]
    fn batch_and_slice_are_set_and_restored() {
        in_a_thread(|me| {
            let before = fair_scheduling(me).unwrap().unwrap();
            let nice_before = nice(me).unwrap();
            let slice = schedulers_slice().map(|usual| Nanos(usual.0 * 2));
            let batch = FairScheduling { batch: true, slice };
            set_fair_scheduling(me, batch).unwrap();
            assert_eq!(fair_scheduling(me).unwrap(), Some(batch));
            set_fair_scheduling(me, before).unwrap();
            assert_eq!(fair_scheduling(me).unwrap(), Some(before));
            assert_eq!(nice(me).unwrap(), nice_before);
        });
    }

    #[test]
    fn missing_thread_is_gone() {
        let missing = Tid(i32::MAX as u32);
        assert!(nice(missing).unwrap_err().is_gone());
        assert!(set_nice(missing, Nice(1)).unwrap_err().is_gone());
    }
}
