//! Kernel accounting of a thread of this process: time on a pCPU and time waiting for one, in nanoseconds since its creation.
//!
//! Time on a pCPU is the thread's CPU clock.
//! It equals the first field of `/proc/self/task/TID/schedstat`, but is current, while the file lags by up to a tick.
//! Waiting time is the second field of that file; the kernel adds a wait at its end, so a current wait is not included.
//! Without these statistics (CONFIG_SCHED_INFO) the waiting time is unknown, not zero.

use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Times of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTime {
    /// On a pCPU, in guest or host.
    pub cpu_ns: u64,
    /// Runnable, but not on a pCPU; `None` if the kernel does not report it.
    pub wait_ns: Option<u64>,
}

impl ThreadTime {
    /// Reads the times of thread `tid` of this process; `None` if it has exited.
    pub fn of(tid: i32) -> Option<ThreadTime> {
        let cpu_ns = clock_ns(thread_clock(tid))?;
        let wait_ns = fs::read_to_string(format!("/proc/self/task/{tid}/schedstat"))
            .ok()
            .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse().ok());
        Some(ThreadTime { cpu_ns, wait_ns })
    }
}

/// Returns the clock id of a thread's CPU time, in the kernel's encoding (include/linux/posix-timers_types.h):
/// the inverted id above three bits, "per thread" (4) and "scheduler's account" (2).
fn thread_clock(tid: i32) -> libc::clockid_t {
    (!tid << 3) | 4 | 2
}

/// Reads CLOCK_MONOTONIC.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or_default()
}

fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live, unshared timespec.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    let time = Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?);
    u64::try_from(time.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_clock_advances_with_computation() {
        // SAFETY: gettid has no arguments and cannot fail.
        let tid = unsafe { libc::gettid() };
        let before = ThreadTime::of(tid).expect("this thread is there");
        let start = monotonic_ns();
        crate::host_library::time_chain(1_000_000);
        let elapsed = monotonic_ns() - start;
        let after = ThreadTime::of(tid).expect("this thread is there");
        assert!(after.cpu_ns > before.cpu_ns);
        assert!(after.cpu_ns - before.cpu_ns <= elapsed + 10_000_000);
    }

    #[test]
    fn exited_thread_has_no_times() {
        // SAFETY: gettid has no arguments and cannot fail.
        let tid = std::thread::spawn(|| unsafe { libc::gettid() }).join().expect("no panic");
        // The kernel removes the thread's entry slightly after it wakes the joiner.
        let gone = (0..1000).any(|_| {
            std::thread::yield_now();
            ThreadTime::of(tid).is_none()
        });
        assert!(gone);
    }
}
