//! A thread's scheduler attributes besides its affinity: nice value, EEVDF slice, and whether it is of SCHED_BATCH.
//!
//! A slice of its own is what sched_setattr(2) takes as `sched_runtime` of an ordinary thread since Linux 6.12: shorter means an earlier
//! deadline. The kernel tells the slice in use, not whether it is the thread's own. A thread that has the scheduler's slice
//! therefore counts as one without its own; the scheduler's is read from this process's first thread. Older kernels tell none, and
//! there none can be set.
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
    /// The kernel has no slices of threads' own.
    #[error("this kernel has no slices of threads' own: Linux 6.12 is the first that has")]
    NoSlices,
    /// The kernel refused.
    #[error("cannot {action} of thread {tid}: {source}{}", hint(source))]
    Kernel {
        /// What was tried.
        action: &'static str,
        /// Which thread.
        tid: Tid,
        /// What it said.
        source: io::Error,
    },
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => "; run Tandem as root, or with CAP_SYS_NICE",
        Some(libc::EINVAL) => "; it is no thread of the fair class, or the value is out of range",
        _ => "",
    }
}

impl SchedAttrError {
    /// Whether the thread merely ended.
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
    // SAFETY: the pointer is to a sched_attr that says its own size; the kernel only reads it.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid.0, &raw const attr, 0u32) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A thread's nice value.
pub fn nice(tid: Tid) -> Result<Nice, SchedAttrError> {
    let attr = get(tid).map_err(|error| SchedAttrError::of("read the nice value", tid, error))?;
    Ok(Nice(attr.nice as i8))
}

/// Gives a thread a nice value; its slice stays.
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

/// The slice that the scheduler gives threads without one of their own; `None`: this kernel has no slices of threads' own.
pub fn schedulers_slice() -> Option<Nanos> {
    let attr = get(Tid(std::process::id())).ok()?;
    (attr.runtime > 0).then_some(Nanos(attr.runtime))
}

/// A thread's slice, if it has one of its own.
pub fn slice(tid: Tid) -> Result<Option<Nanos>, SchedAttrError> {
    let usual = schedulers_slice().ok_or(SchedAttrError::NoSlices)?;
    let attr = get(tid).map_err(|error| SchedAttrError::of("read the slice", tid, error))?;
    let slice = Nanos(attr.runtime);
    Ok((slice != usual).then_some(slice))
}

/// Gives a thread a slice of its own, or takes it away.
pub fn set_slice(tid: Tid, slice: Option<Nanos>) -> Result<(), SchedAttrError> {
    if schedulers_slice().is_none() {
        return Err(SchedAttrError::NoSlices);
    }
    let failed = |error| SchedAttrError::of("set the slice", tid, error);
    let attr = get(tid).map_err(failed)?;
    let runtime = slice.map_or(0, |slice| slice.0);
    set(tid, Attr { runtime, ..attr }).map_err(failed)
}

/// How a thread of the fair class is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FairScheduling {
    /// SCHED_BATCH: once woken, it does not preempt who runs.
    pub batch: bool,
    /// A slice of its own, ns; `None`: the scheduler's, or this kernel has no others.
    pub slice: Option<Nanos>,
}

/// How a thread is scheduled; `None` if it is not of the fair class, or of SCHED_IDLE.
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

/// Lets a thread of the fair class be scheduled so; its nice value stays. Without slices of threads' own only the policy is set.
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

    /// A thread of its own, so that no other test's thread is changed.
    fn in_a_thread(test: impl FnOnce(Tid) + Send) {
        let run = || test(Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32));
        std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    }

    #[test]
    fn a_nice_value_is_set_and_read_back() {
        in_a_thread(|me| {
            let before = nice(me).unwrap();
            let next = Nice((before.0 + 3).min(19));
            set_nice(me, next).unwrap();
            assert_eq!(nice(me).unwrap(), next);
        });
    }

    #[test]
    fn a_slice_is_set_read_back_and_taken_away() {
        if schedulers_slice().is_none() {
            println!("skipped: this kernel has no slices of threads' own");
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
    fn a_thread_becomes_batch_with_a_slice_and_is_put_back() {
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
    fn a_thread_that_is_gone_is_told_from_a_refusal() {
        let nobody = Tid(i32::MAX as u32);
        assert!(nice(nobody).unwrap_err().is_gone());
        assert!(set_nice(nobody, Nice(1)).unwrap_err().is_gone());
    }
}
