//! Some seconds of a host in full, by BPF: every switch of every pCPU, and each wake-up and move of watched vCPUs.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use tandem_linux::ProcFs;
//! use tandem_observe::trace::TraceOptions;
//! use tandem_observe::trace::Tracer;
//!
//! let vms = []; // found by whoever looks for VMs
//! let tracer = Tracer::open(ProcFs::host(), TraceOptions::default())?;
//! let trace = tracer.trace(&vms, Duration::from_secs(5), || false)?;
//! println!("{} pCPUs, {} events lost", trace.pcpus.len(), trace.lost);
//! # Ok::<(), tandem_observe::bpf::BpfError>(())
//! ```
//!
//! The programs (`bpf/trace.bpf.c`) are others than those that run all day: here every event leaves the kernel, through a ring buffer
//! ([`TraceOptions::ring_bytes`]). What finds no room in it, or exceeds [`TraceOptions::most_events`] in this process, is lost, counted
//! ([`HostTrace::lost`]), and leaves holes: events are numbered on each pCPU, and of a time in which some are missing nothing is claimed that they
//! could have changed.
//!
//! `event.rs` reads what the programs write, `story.rs` makes slices of it, `tracer.rs` has the programs. It needs what
//! [`Bpf`](crate::bpf::Bpf) needs, and says what is missing in the same words.

mod event;
mod story;
#[cfg(with_bpf)]
mod tracer;
#[cfg(not(with_bpf))]
mod without;

#[cfg(doc)]
use tandem_model::states::trace::HostTrace;

#[cfg(with_bpf)]
pub use tracer::Tracer;
#[cfg(not(with_bpf))]
pub use without::Tracer;

/// How much room a trace gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Bytes of the ring buffer in the kernel; a power of two, 4096 at least. Default 16 MiB: some 260,000 events that nobody took out yet.
    pub ring_bytes: u32,
    /// Events that are kept at most, 64 bytes each. Default 4,000,000.
    pub most_events: usize,
}

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions { ring_bytes: 16 << 20, most_events: 4_000_000 }
    }
}
