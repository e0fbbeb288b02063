//! Priority of the calling thread over the threads that it manages.
//!
//! A periodic thread must run on time even on a busy host, and SCHED_FIFO ensures that.
//! The kernel limits its run time (`sched_rt_runtime_us`, 95 % of each second), and each period does little work.
//!
//! Source: sched_setscheduler(2), setpriority(2), sched(7).

use std::io;

/// Makes the calling thread real-time (SCHED_FIFO, priority 1); threads that it starts later are not.
/// After an error (no permission; a v1 cgroup without real-time budget) its policy is unchanged.
pub fn make_real_time() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `parameter` outlives the call, which only reads it; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the nice value of the calling thread, and of threads that it starts later, to −20.
/// Next to hundreds of busy threads, a thread of nice 0 gets a pCPU every few seconds.
/// After an error (no permission) the nice value is unchanged.
pub fn go_before_others() -> io::Result<()> {
    rustix::process::setpriority_process(None, MIN_NICE).map_err(io::Error::from)
}

/// The highest priority of the fair class.
const MIN_NICE: i32 = -20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nice_is_set_or_permission_denied() {
        let thread = std::thread::spawn(|| match go_before_others() {
            Ok(()) => {
                let nice = rustix::process::getpriority_process(None);
                assert_eq!(nice.unwrap(), MIN_NICE);
            }
            Err(error) => {
                println!("skipped: {error}");
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            }
        });
        thread.join().unwrap();
    }

    #[test]
    fn policy_is_set_or_permission_denied() {
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
