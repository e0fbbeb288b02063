//! Signals from the VMM to its vCPU threads: `kick` interrupts KVM_RUN, `shootdown` represents that workload's interrupt in the threads backend.
//!
//! Both are real-time signals, the second and third from SIGRTMIN, and process-wide.
//! A program that embeds this crate must not use these two.
//! A kick before KVM_RUN must not be lost.
//! Its handler sets `immediate_exit` in the thread's `kvm_run`, which makes the next KVM_RUN return at once (Documentation/virt/kvm/api.rst, "KVM_RUN").

use std::cell::Cell;
use std::sync::OnceLock;
use std::{io, mem, ptr};

use kvm_bindings::kvm_run;

use crate::host_library;

/// Returns the signal that interrupts KVM_RUN.
pub(crate) fn kick() -> i32 {
    libc::SIGRTMIN() + 1
}

/// Returns the signal that represents a shootdown interrupt.
pub(crate) fn shootdown() -> i32 {
    libc::SIGRTMIN() + 2
}

thread_local! {
    /// The `kvm_run` of this thread; null if it runs no vCPU.
    /// It needs no initialization and no destructor, so that a signal handler may read it at any time.
    static RUN: Cell<*mut kvm_run> = const { Cell::new(ptr::null_mut()) };
}

/// Registers the thread's `kvm_run` for the lifetime of the value.
pub(crate) struct KickTarget(());

impl KickTarget {
    /// # Safety
    /// `run` must stay mapped until the value is dropped, on this thread.
    pub(crate) unsafe fn register(run: *mut kvm_run) -> KickTarget {
        RUN.set(run);
        KickTarget(())
    }
}

impl Drop for KickTarget {
    fn drop(&mut self) {
        RUN.set(ptr::null_mut());
    }
}

extern "C" fn on_kick(_signal: i32) {
    let run = RUN.get();
    if !run.is_null() {
        // SAFETY: registered by this thread and still mapped; a single byte, which the kernel reads
        // when this thread next enters KVM_RUN.
        unsafe { ptr::write_volatile(&raw mut (*run).immediate_exit, 1) }
    }
}

/// Installs both handlers, once per process.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let result = INSTALLED.get_or_init(|| {
        handle(kick(), on_kick, 0)?;
        handle(shootdown(), host_library::shootdown_handler(), libc::SA_RESTART)
    });
    result.map_err(io::Error::from_raw_os_error)
}

fn handle(signal: i32, handler: extern "C" fn(i32), flags: i32) -> Result<(), i32> {
    // SAFETY: an all-zero sigaction is valid: no flags, empty mask, default action.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags;
    // SAFETY: `action` is complete; both handlers only do what signal handlers may.
    if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or_default());
    }
    Ok(())
}

/// Sends `signal` to thread `tid` of this process; ignores a thread that has exited.
pub(crate) fn send(tid: i32, signal: i32) {
    // SAFETY: no memory is passed; the call names our own thread group, so a reused TID of another
    // process cannot match.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, signal);
    }
}
