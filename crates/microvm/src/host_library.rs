//! Functions of the workloads' C code (`guest/`, also built for the host) for calibration and signals.
//!
//! They need no VM: the chain computes in registers, and the handler finds its thread's vCPU in thread-local storage.

unsafe extern "C" {
    fn tandem_time_chain(steps: u64) -> u64;
    fn tandem_shootdown_signal(signal: i32);
    #[cfg(test)]
    fn tandem_completion_bucket(cycles: u64) -> u32;
}

/// Runs `steps` steps of the dependent chain and returns the elapsed TSC cycles.
pub(crate) fn time_chain(steps: u64) -> u64 {
    // SAFETY: computes in registers only.
    unsafe { tandem_time_chain(steps) }
}

/// Reads the time stamp counter.
pub(crate) fn tsc() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC, and Linux permits it unless the process disabled it
    // for itself (PR_SET_TSC).
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns the guest's bucket of a completion time.
#[cfg(test)]
pub(crate) fn completion_bucket(cycles: u64) -> u32 {
    // SAFETY: computes in registers only.
    unsafe { tandem_completion_bucket(cycles) }
}

/// Returns the handler of the signal that represents a shootdown interrupt.
pub(crate) fn shootdown_handler() -> extern "C" fn(i32) {
    extern "C" fn handler(signal: i32) {
        // SAFETY: accesses only the record of this thread's vCPU, if any, which
        // `SharedArea::run_thread` keeps mapped meanwhile.
        unsafe { tandem_shootdown_signal(signal) }
    }
    handler
}
