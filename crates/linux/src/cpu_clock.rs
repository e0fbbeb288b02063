//! A process's CPU clock: the cheapest check that none of its threads ran.
//!
//! clock_getcpuclockid(3) gives every process a clock that sums the run time of all its threads, including ended ones.
//! The kernel sums the same numbers that it shows in `schedstat`.
//! While the clock stands still, no thread was switched out or ran through a clock tick.
//! Hence none ended a wait, started another thread, took a new name, opened a file or ended.
//! One system call then replaces reading all of the process's files.
//! It takes about 0.4 µs for a VM of 8 vCPUs, compared with 1 µs for each file and 20 µs for each folder.
//!
//! The current run of a thread shows at the next clock tick at the latest.
//! A reader therefore reads the clock first and the files second: activity that it misses moves the clock later.

use tandem_model::Nanos;

use crate::ids::Pid;

/// Total run time of all threads of a process so far; `None` if the process is gone.
pub fn process_cpu_time(pid: Pid) -> Option<Nanos> {
    // MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED), include/linux/posix-timers_types.h.
    let clock = (!(pid.0 as libc::clockid_t) << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that outlives the call, and the kernel only writes it.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Some(Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn clock_advances_while_the_process_runs() {
        let me = Pid(std::process::id());
        let first = process_cpu_time(me).unwrap();
        while process_cpu_time(me).unwrap() == first {
            black_box(0);
        }
        assert!(process_cpu_time(me).unwrap() > first);
        // Beyond PID_MAX_LIMIT, 2^22.
        assert_eq!(process_cpu_time(Pid(1 << 23)), None);
    }
}
