//! Full traces of a host for some seconds, by BPF: all switches of all pCPUs, and wake-ups and migrations of watched vCPUs.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use tandem_linux::ProcFs;
//! use tandem_observe::trace::TraceOptions;
//! use tandem_observe::trace::Tracer;
//!
//! let vms = []; // from VM discovery
//! let tracer = Tracer::open(ProcFs::host(), TraceOptions::default())?;
//! let trace = tracer.trace(&vms, Duration::from_secs(5), || false)?;
//! println!("{} pCPUs, {} events lost", trace.pcpus.len(), trace.lost);
//! # Ok::<(), tandem_observe::bpf::BpfError>(())
//! ```
//!
//! The programs (`bpf/trace.bpf.c`) are separate from those that run all day: every event leaves the kernel, through a ring buffer
//! ([`TraceOptions::ring_bytes`]). Events that do not fit into it, or exceed [`TraceOptions::most_events`] in this process, are lost and counted
//! ([`HostTrace::lost`]). They leave gaps, which the numbers of each pCPU's events reveal: within a gap, the trace omits all states that
//! missing events could have changed.
//!
//! `event.rs` decodes events, `story.rs` converts them to slices, `tracer.rs` runs the programs. The requirements are those of
//! [`Bpf`](crate::bpf::Bpf), with the same errors.

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

/// Limits of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Size of the kernel's ring buffer; a power of two, at least 4096. Default 16 MiB: some 260,000 pending events.
    pub ring_bytes: u32,
    /// Maximum number of stored events, 64 bytes each. Default 4,000,000.
    pub most_events: usize,
}

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions { ring_bytes: 16 << 20, most_events: 4_000_000 }
    }
}
