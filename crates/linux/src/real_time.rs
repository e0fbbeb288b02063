//! Priority of the calling thread over what it looks after.
//!
//! A thread that keeps a rhythm has to run when it is due, not when a busy host finds time for it. With SCHED_FIFO it does. What
//! bounds its time is the kernel's own limit (`sched_rt_runtime_us`, 95 % of each second), and that its owner does little each time
//! and sleeps in between.
//!
//! Source: sched_setscheduler(2), setpriority(2), sched(7).

use std::io;

/// Makes the calling thread real-time (SCHED_FIFO, the lowest of its priorities); threads that it starts later are not.
/// An error (no permission; a cgroup v1 without real-time) leaves it as it was.
pub fn make_real_time() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `parameter` lives through the call, which reads it; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the calling thread, and threads that it starts later, go before others of the fair class: nice −20. Beside hundreds of threads that
/// compute, one of nice 0 gets a pCPU every few seconds. An error (no permission) leaves it as it was.
pub fn go_before_others() -> io::Result<()> {
    rustix::process::setpriority_process(None, LEAST_NICE).map_err(io::Error::from)
}

/// The most urgent nice value.
const LEAST_NICE: i32 = -20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_before_others_or_says_why_not() {
        let thread = std::thread::spawn(|| match go_before_others() {
            Ok(()) => {
                let nice = rustix::process::getpriority_process(None);
                assert_eq!(nice.unwrap(), LEAST_NICE);
            }
            Err(error) => {
                println!("skipped: {error}");
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            }
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_thread_becomes_real_time_or_says_why_not() {
        let thread = std::thread::spawn(|| match make_real_time() {
            Ok(()) => {
                // SAFETY: reads a number; 0 is the calling thread.
                let policy = unsafe { libc::sched_getscheduler(0) };
                assert_eq!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO);
            }
            Err(error) => {
                println!("skipped: {error}");
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            }
        });
        thread.join().unwrap();
    }
}
