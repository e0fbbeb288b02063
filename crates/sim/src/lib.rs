//! A deterministic discrete-event simulator of two schedulers on one clock: the guest's and the
//! host's, with everything between them that hurts a vCPU: lock holders and waiters off CPU,
//! pause-loop exits and directed yield, halts and wake-ups, inter-processor interrupts and TLB
//! shootdowns to vCPUs that do not run, steal time.
//!
//! A [`Scenario`] names a machine, host settings and VMs with workloads; [`World`] runs it and
//! yields [`Results`]. The same scenario and seed give the same bytes on every machine: time is
//! integer nanoseconds, events are ordered by (time, sequence), randomness comes from named PCG
//! streams, and floating point never decides the order of events through the platform's `libm`.
//!
//! What is modelled, simplified and left out: `docs/model.md`.

mod bits;
pub mod host;
pub mod machine;
pub mod queue;
pub mod random;
pub mod results;
pub mod scenario;
pub mod sched;
pub mod trace;
pub mod workload;
pub mod world;

pub use results::Results;
pub use scenario::Scenario;
pub use world::World;
