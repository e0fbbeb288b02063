//! Affinity masks of threads, and the trait over all settings of a thread ([`Threads`]).
//!
//! The kernel keeps two masks: the requested one, and its intersection with the thread's cpuset.
//! Only the second can be read.
//! A thread that may use every pCPU has almost always never been given a mask.
//! To restore it, request all pCPUs that could ever exist; that equals the kernel's initial mask, so the thread follows its cpuset again.
//!
//! The trait lets tests run the actuator without threads.
//! Source: sched_setaffinity(2); kernel/sched/syscalls.c.

use std::io;

use tandem_model::units::PcpuId;
use tandem_model::{Nanos, Nice, PcpuSet};
use thiserror::Error;

use crate::ids::{Pid, Tid};
use crate::procfs::{ProcFs, user_of};
use crate::sched_attr;
use crate::sched_attr::SchedAttrError;
use crate::thread::ThreadRef;

/// Bytes of a mask with room for the kernel's largest NR_CPUS, 8192.
const MASK_BYTES: usize = 1024;

/// Why an affinity mask could not be read or set.
#[derive(Debug, Error)]
pub enum AffinityError {
    /// The thread ended.
    #[error("thread {0} is gone")]
    Gone(Tid),
    /// The set of pCPUs is empty.
    #[error("the affinity of thread {0} would be empty; name at least one pCPU")]
    Empty(Tid),
    /// The thread may use none of the pCPUs.
    #[error(
        "thread {tid} cannot run on pCPUs {pcpus}: none of them is online and in the thread's cpuset"
    )]
    NotAllowed {
        /// The thread.
        tid: Tid,
        /// The requested pCPUs.
        pcpus: PcpuSet,
    },
    /// The kernel refused otherwise.
    #[error("cannot {action} the pCPUs of thread {tid}: {source}")]
    Kernel {
        /// `read` or `set`.
        action: &'static str,
        /// The thread.
        tid: Tid,
        /// The kernel's error.
        source: io::Error,
    },
}

impl AffinityError {
    /// Whether the thread has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, AffinityError::Gone(_))
    }
}

/// The actuator's operations on threads, other than on their cgroups.
pub trait Threads: Send + Sync {
    /// Whether the thread with this TID and start time exists.
    fn is_alive(&self, thread: &ThreadRef) -> bool;

    /// The user that a process counts for in limits per user, if known.
    fn user(&self, _: Pid) -> Option<u32> {
        None
    }

    /// Returns the pCPUs that a thread may run on.
    fn affinity(&self, tid: Tid) -> Result<PcpuSet, AffinityError>;

    /// Restricts a thread to these pCPUs.
    fn set_affinity(&self, tid: Tid, pcpus: &PcpuSet) -> Result<(), AffinityError>;

    /// Restores a mask that [`Threads::affinity`] has read.
    fn restore_affinity(&self, tid: Tid, original: &PcpuSet) -> Result<(), AffinityError> {
        self.set_affinity(tid, original)
    }

    /// Returns a thread's nice value.
    fn nice(&self, tid: Tid) -> Result<Nice, SchedAttrError>;

    /// Sets a thread's nice value.
    fn set_nice(&self, tid: Tid, nice: Nice) -> Result<(), SchedAttrError>;

    /// Returns a thread's custom slice, if any.
    fn slice(&self, tid: Tid) -> Result<Option<Nanos>, SchedAttrError>;

    /// Sets a thread's custom slice; `None` resets it to the scheduler's.
    fn set_slice(&self, tid: Tid, slice: Option<Nanos>) -> Result<(), SchedAttrError>;
}

/// The threads of this host.
#[derive(Clone, Debug)]
pub struct HostThreads {
    procfs: ProcFs,
}

impl Default for HostThreads {
    fn default() -> HostThreads {
        HostThreads::new(ProcFs::host())
    }
}

impl HostThreads {
    /// The threads in this tree's `/proc`.
    pub fn new(procfs: ProcFs) -> HostThreads {
        HostThreads { procfs }
    }
}

impl Threads for HostThreads {
    fn is_alive(&self, thread: &ThreadRef) -> bool {
        thread.is_alive(&self.procfs)
    }

    fn user(&self, pid: Pid) -> Option<u32> {
        user_of(&self.procfs.process(pid))
    }

    fn affinity(&self, tid: Tid) -> Result<PcpuSet, AffinityError> {
        affinity(tid)
    }

    fn set_affinity(&self, tid: Tid, pcpus: &PcpuSet) -> Result<(), AffinityError> {
        set_affinity(tid, pcpus)
    }

    fn restore_affinity(&self, tid: Tid, original: &PcpuSet) -> Result<(), AffinityError> {
        // A read does not show whether the mask is custom: request everything, and compare the
        // result with the original.
        set_mask(tid, &[0xff; MASK_BYTES]).map_err(|error| explain(tid, original, error))?;
        if affinity(tid)? == *original { Ok(()) } else { set_affinity(tid, original) }
    }

    fn nice(&self, tid: Tid) -> Result<Nice, SchedAttrError> {
        sched_attr::nice(tid)
    }

    fn set_nice(&self, tid: Tid, nice: Nice) -> Result<(), SchedAttrError> {
        sched_attr::set_nice(tid, nice)
    }

    fn slice(&self, tid: Tid) -> Result<Option<Nanos>, SchedAttrError> {
        sched_attr::slice(tid)
    }

    fn set_slice(&self, tid: Tid, slice: Option<Nanos>) -> Result<(), SchedAttrError> {
        sched_attr::set_slice(tid, slice)
    }
}

/// Returns the online pCPUs that a thread may run on.
pub fn affinity(tid: Tid) -> Result<PcpuSet, AffinityError> {
    let mut mask = [0u8; MASK_BYTES];
    // SAFETY: the pointer is to MASK_BYTES writable bytes that outlive the call, and the kernel
    // writes at most that many.
    let bytes =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid.0, MASK_BYTES, mask.as_mut_ptr()) };
    let Ok(bytes) = usize::try_from(bytes) else {
        let source = io::Error::last_os_error();
        return Err(match source.raw_os_error() {
            Some(libc::ESRCH) => AffinityError::Gone(tid),
            _ => AffinityError::Kernel { action: "read", tid, source },
        });
    };
    Ok(pcpus_of(&mask[..bytes.min(MASK_BYTES)]))
}

/// Restricts a thread to these pCPUs.
pub fn set_affinity(tid: Tid, pcpus: &PcpuSet) -> Result<(), AffinityError> {
    if pcpus.is_empty() {
        return Err(AffinityError::Empty(tid));
    }
    set_mask(tid, &mask_of(pcpus)).map_err(|error| explain(tid, pcpus, error))
}

fn set_mask(tid: Tid, mask: &[u8; MASK_BYTES]) -> io::Result<()> {
    // SAFETY: the pointer is to MASK_BYTES readable bytes that outlive the call; the kernel only
    // reads them.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid.0, MASK_BYTES, mask.as_ptr()) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn explain(tid: Tid, pcpus: &PcpuSet, source: io::Error) -> AffinityError {
    match source.raw_os_error() {
        Some(libc::ESRCH) => AffinityError::Gone(tid),
        Some(libc::EINVAL) => AffinityError::NotAllowed { tid, pcpus: pcpus.clone() },
        _ => AffinityError::Kernel { action: "set", tid, source },
    }
}

/// Bytes of a long: the kernel's mask is an array of longs, which equals an array of bytes on little-endian machines only.
const LONG: usize = size_of::<libc::c_ulong>();

fn pcpus_of(mask: &[u8]) -> PcpuSet {
    let mut pcpus = Vec::new();
    for (index, long) in mask.chunks_exact(LONG).enumerate() {
        let mut bytes = [0; LONG];
        bytes.copy_from_slice(long);
        let bits = libc::c_ulong::from_ne_bytes(bytes);
        let set = (0..LONG * 8).filter(|bit| bits >> bit & 1 == 1);
        pcpus.extend(set.map(|bit| PcpuId((index * LONG * 8 + bit) as u32)));
    }
    pcpus.into_iter().collect()
}

fn mask_of(pcpus: &PcpuSet) -> [u8; MASK_BYTES] {
    let mut longs = [0 as libc::c_ulong; MASK_BYTES / LONG];
    for PcpuId(pcpu) in pcpus.iter() {
        let (index, bit) = (pcpu as usize / (LONG * 8), pcpu as usize % (LONG * 8));
        // The kernel also ignores pCPUs beyond NR_CPUS.
        if let Some(long) = longs.get_mut(index) {
            *long |= 1 << bit;
        }
    }
    let mut mask = [0; MASK_BYTES];
    for (bytes, long) in mask.chunks_exact_mut(LONG).zip(longs) {
        bytes.copy_from_slice(&long.to_ne_bytes());
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_round_trip() {
        for list in ["0", "0-3,7", "63-64", "1,8191"] {
            let pcpus: PcpuSet = list.parse().unwrap();
            assert_eq!(pcpus_of(&mask_of(&pcpus)), pcpus);
        }
    }

    #[test]
    fn affinity_is_set_and_restored() {
        let me = Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        let threads = HostThreads::default();
        let original = threads.affinity(me).unwrap();
        let first: PcpuSet = original.iter().take(1).collect();
        threads.set_affinity(me, &first).unwrap();
        assert_eq!(threads.affinity(me).unwrap(), first);
        threads.restore_affinity(me, &first).unwrap();
        assert_eq!(threads.affinity(me).unwrap(), first);
        threads.restore_affinity(me, &original).unwrap();
        assert_eq!(threads.affinity(me).unwrap(), original);
    }

    #[test]
    fn errors_name_the_remedy() {
        let me = Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        let error = set_affinity(me, &PcpuSet::default()).unwrap_err();
        assert!(error.to_string().contains("at least one"));
        let absent: PcpuSet = "8191".parse().unwrap();
        let error = set_affinity(me, &absent).unwrap_err();
        assert!(error.to_string().contains("cpuset"), "{error}");
        let missing = Tid(i32::MAX as u32);
        assert!(affinity(missing).unwrap_err().is_gone());
        assert!(set_affinity(missing, &absent).unwrap_err().is_gone());
    }
}
