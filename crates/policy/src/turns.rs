//! Turns: co-scheduling of VMs that never sleep, from user space.
//!
//! A host that schedules each vCPU for itself loses the work of a VM that spins: next to one VM that computes, a
//! spinning barrier does 2 to 28 % of its work rate alone, at a fair share of 50 %.
//! So VMs that never sleep take turns: the groups of the others in the rotation are in the idle class (`cpu.idle`)
//! meanwhile, and each vCPU has a pCPU for itself.
//! It needs no guest agent, PMU, pause-loop exits or kernel patch, and a VM that only computes loses nothing.
//!
//! Source: Ousterhout, "Scheduling Techniques for Concurrent Systems", ICDCS 1982, section 3 (the matrix method): VMs
//! have slots on the same pCPUs one after the other. Slots are laid out by wrap-around in blocks of pCPUs ([`blocks`]),
//! so that shares follow weights.
//!
//! The parts: [`wakefulness`], [`blocks`], [`rotation`], [`sequence`] and [`sleep`]; [`crate::host::turns`] is
//! the policy made of them. Shares of VMs that sleep are those of [`crate::flexw`].

pub mod blocks;
mod candidate;
pub(crate) mod left_out;
pub mod member;
pub mod rotation;
mod seats;
pub mod sequence;
pub mod sleep;
pub mod stays;
pub mod wakefulness;

pub use member::{Member, Slot};
pub use rotation::{Residents, Rotation};
pub use sequence::{Sequence, Step};
pub use sleep::SleepWatch;

use crate::settings::settings;
use tandem_model::units::Nanos;

settings! {
    /// Tunables of turns.
    #[derive(Copy)]
    pub struct TurnsConfig {
        /// Length of a turn.
        /// Shorter turns lose more to switching, which a kernel does at clock ticks.
        /// Longer turns gain no more work, and delay a VM that begins to sleep.
        pub turn: Nanos = Nanos::from_millis(20), TurnsConfig::TURNS;
        /// Maximum wait of a VM in the rotation for its turn; beyond it, turns are shortened, down to half.
        pub longest_wait: Nanos = Nanos::from_millis(200), (Nanos::from_millis(5), Nanos::from_secs(10));
        /// Consecutive periods without sleep before a VM joins the rotation.
        pub periods: u32 = 5, (1, 100);
    }
}

impl TurnsConfig {
    /// Range of `turn`.
    pub const TURNS: (Nanos, Nanos) = (Nanos::from_millis(5), Nanos::from_millis(100));
}
