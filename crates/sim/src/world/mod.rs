//! The simulated world: one clock, one event queue, and everything that reacts.
//!
//! Life: [`World::new`] builds pCPUs, VMs, vCPUs and threads from a scenario → [`World::run`]
//! handles events until the duration is over or every thread has ended → [`World::results`].
//!
//! How an event is handled: it concerns one pCPU, vCPU or thread; the handler first brings the
//! account of the vCPU concerned up to date (`sync`), changes state, and then plans the vCPU's next
//! own event (`plan`). What a handler causes elsewhere (a lock granted to a thread on another vCPU,
//! a pCPU that must choose again) is put on a list of `Work` that is emptied before the clock
//! moves, first in, first out. So nothing recurses and the order is always the same.
//!
//! The rooms: `simulation` is the world as data; what it holds is in `state`, `slots`, `code`, `swapper`,
//! `agent`, `policy_host`, `rotation`, `trace_recorder`, `wait_recorder` and `state_recorder`. `build` makes it, `run` is the loop over events,
//! `execute` is what vCPUs do with their time, `program` interprets the threads' programs and `alone` what concerns nobody else, `locks`,
//! `blocking` and `flush` are the primitives, `wake`, `delay` and `idle` are the guest's scheduler, `interrupts`
//! are IPIs and timers, `pcpus` is the host, `pause_loop` KVM's handling of spinning, `overlays` caps and
//! co-scheduling, `policies`, `division`, `turns`, `flexs` and `gleaner` the adapters for Tandem's policies, `measure` the
//! results, `waits` who waited for whom within a VM, `states` where the time of vCPUs went and who took pCPUs, `observed` both as an
//! interval, `tracing` traces, `check` the invariants.

mod address_space;
mod agent;
mod alone;
mod blocking;
mod build;
mod caches;
mod check;
mod code;
mod delay;
mod division;
mod execute;
mod flexs;
mod flush;
mod gleaner;
mod idle;
mod interrupts;
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
mod slots;
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
