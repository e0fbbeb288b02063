//! Turns on a live host, by a thread of their own, since the daemon's accounting period is too slow for them.
//!
//! ```text
//! Fleet::apply  ──► TurnKeeper::follow ──► the turn thread, each boundary between slots: VMs that sleep leave the rotation;
//!                        ▲    │              VMs whose slots begin move to their pCPUs and leave the idle class, the others enter it
//!                        │    └────────────► the watchdog: a process that takes all VMs out of the class if beats stop
//!                        └── VMs that left, lateness, cost, and the loss of a watchdog, which the fleet replaces
//! ```
//!
//! A thread that panics leaves the watchdog armed, which takes all VMs out of the idle class at once.
//! The fleet does the same at its next check and starts another thread (`again`).
//!
//! Before a VM takes turns, the fleet journals its weight and `cpu.idle`, and the affinities of its vCPUs in slots.
//! Only the turn thread writes them while the VM takes turns.
//! The thread is real-time if the kernel allows it, and writes only changes: at most two files per VM and an affinity per vCPU.
//!
//! A kernel acts on `cpu.idle` at its next clock tick.
//! Forcing a reschedule on every pCPU, by a real-time thread that runs there briefly, gained nothing (docs/decisions/015-turns.md).

mod again;
mod in_use;
mod keeper;
mod movers;
mod player;
pub(crate) mod stats;
pub mod watchdog;
mod watchdog_starter;

pub(crate) use in_use::Turns;
pub use keeper::TurnKeeper;
pub use player::{Player, PlayerVcpu};
pub use stats::TurnStats;
pub(crate) use watchdog_starter::WatchdogStarter;
