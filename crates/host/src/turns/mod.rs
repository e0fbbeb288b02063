//! Turns on a live host: the rhythm that the daemon's accounting period is too slow for.
//!
//! ```text
//! Fleet::rotate ──► TurnKeeper::follow ──► a thread of its own, turn after turn: who begins to sleep leaves;
//!                        ▲    │              the next row out of the idle class, all others into it
//!                        │    └────────────► the watchdog: a process that takes all out of it if the beats end
//!                        └── who left, how late, what it cost, whether the watchdog was lost: then the fleet starts another
//! ```
//!
//! A thread that ends by itself (a panic) leaves the watchdog armed, which takes all out of the idle class at once; so does the fleet when it
//! next looks, and starts another thread (`again`).
//!
//! Before a VM takes turns the fleet has journaled its weight and `cpu.idle`, and the affinity of a vCPU that roams. Only this thread writes
//! them while it does.
//! The thread is real-time where the kernel allows it, and does little: it writes what changes, two files and a seat per VM at most.
//! A kernel acts on `cpu.idle` at its next clock tick. To make every pCPU choose anew at once, by a real-time thread that runs there
//! for a moment, gained nothing (docs/decisions/015-turns.md).

mod again;
mod in_use;
mod keeper;
mod player;
mod roamers;
pub(crate) mod stats;
pub mod watchdog;
mod watchdog_starter;

pub(crate) use in_use::Turns;
pub use keeper::TurnKeeper;
pub use player::Player;
pub use stats::TurnStats;
pub(crate) use watchdog_starter::WatchdogStarter;
