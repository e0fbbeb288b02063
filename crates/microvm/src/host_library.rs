//! What calibration and signals need of the C that the workloads share (`guest/`, built for the host too).
//!
//! None of it knows a VM: the chain of steps computes in registers, and the handler finds by itself the
//! vCPU that its thread runs.

unsafe extern "C" {
    fn tandem_time_chain(steps: u64) -> u64;
    fn tandem_shootdown_signal(signal: i32);
    #[cfg(test)]
    fn tandem_completion_bucket(cycles: u64) -> u32;
}

/// How many TSC cycles `steps` steps of the dependent chain took just now.
pub(crate) fn time_chain(steps: u64) -> u64 {
    // SAFETY: computes in registers only.
    unsafe { tandem_time_chain(steps) }
}

/// The time stamp counter.
pub(crate) fn tsc() -> u64 {
    // SAFETY: RDTSC is part of every x86-64 processor, and Linux lets processes execute it unless
    // one asked it not to for itself (PR_SET_TSC).
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The bucket that the guest counts a completion time in.
#[cfg(test)]
pub(crate) fn completion_bucket(cycles: u64) -> u32 {
    // SAFETY: computes in registers only.
    unsafe { tandem_completion_bucket(cycles) }
}

/// The handler for the signal that stands for a shootdown interrupt.
pub(crate) fn shootdown_handler() -> extern "C" fn(i32) {
    extern "C" fn handler(signal: i32) {
        // SAFETY: touches only the record of the vCPU that this thread runs, if it runs one, which
        // `SharedArea::run_thread` keeps mapped meanwhile.
        unsafe { tandem_shootdown_signal(signal) }
    }
    handler
}
