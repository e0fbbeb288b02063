//! The simulated world: one clock, one event queue, and all state that events change.
//!
//! [`World::new`] builds pCPUs, VMs, vCPUs and threads from a scenario.
//! [`World::run`] handles events until the duration is over or every thread has ended.
//! [`World::results`] returns the measurements.
//!
//! An event concerns one pCPU, vCPU or thread.
//! Its handler first brings the account of the vCPU concerned up to date (`sync`), changes state, and plans the vCPU's next own event (`plan`).
//! Effects elsewhere (a lock granted to a thread on another vCPU, a pCPU that must reschedule) go to a list of `Work`.
//! The loop empties this list, first in, first out, before the clock moves.
//! Handlers therefore never recurse, and their order is deterministic.
//!
//! Modules:
//!
//! - State: `simulation` is the world as data, made of `state`, `slots`, `code`, `swapper`, `agent`, `policy_host`, `rotation`,
//!   `trace_recorder`, `wait_recorder` and `state_recorder`. `build` creates it, `run` is the event loop.
//! - Execution: `execute` accounts the time of vCPUs, `smt` slows the threads of a core, `program` interprets the threads' programs, and `alone` handles their local operations.
//! - Guest: `locks`, `blocking`, `address_space` and `flush` are the primitives; `wake`, `delay`, `idle` and `governor` are the guest's scheduler;
//!   `interrupts` are IPIs and timers; `caches` refills working sets.
//! - Host: `pcpus` runs the host's scheduler, `pause_loop` and `ipi_aware` are KVM's handling of spinning, `overlays` are caps and co-scheduling,
//!   `core_scheduling` keeps VMs on cores of their own.
//! - Tandem's policies: the adapters `policies`, `division`, `turns`, `flexs` and `gleaner`.
//! - Output: `measure` computes the results, `waits` attributes waits within a VM, `states` attributes the time of vCPUs and pCPU waits,
//!   `observed` exports both as an interval, `tracing` records traces, `check` verifies the invariants.

mod address_space;
mod agent;
mod alone;
mod blocking;
mod build;
mod caches;
mod calendar;
mod check;
mod code;
mod core_scheduling;
mod delay;
mod execute;
mod flexs;
mod flush;
mod gleaner;
mod governor;
mod idle;
mod interrupts;
mod ipi_aware;
mod knobs;
mod locks;
mod measure;
mod observed;
mod overlays;
mod pause_loop;
mod pcpus;
mod policies;
mod policy_host;
mod program;
mod rotation;
mod run;
mod simulation;
mod smt;
mod state;
mod state_recorder;
mod states;
mod swapper;
mod trace_recorder;
mod tracing;
mod turns;
mod wait_recorder;
mod waits;
mod wake;

pub use simulation::World;
