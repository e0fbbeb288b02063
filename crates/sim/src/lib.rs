//! Deterministic discrete-event simulator of the guest's and the host's scheduler on one clock.
//!
//! It models the interactions between them: lock-holder and lock-waiter preemption, pause-loop exits and directed yield, halts and
//! wake-ups, IPIs and TLB shootdowns to preempted vCPUs, and steal time.
//!
//! A [`Scenario`] describes a machine, host settings and VMs with workloads; [`World`] runs it and returns [`Results`].
//! The same scenario and seed give the same bytes on every machine.
//! Time is integer nanoseconds, events are ordered by (time, sequence), and random numbers come from named PCG streams.
//! The platform's `libm` has no influence on the order of events.
//!
//! Models, simplifications and omissions: `docs/model.md`.

mod bits;
mod document;
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
