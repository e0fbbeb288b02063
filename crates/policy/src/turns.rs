//! Turns: co-scheduling of VMs that never sleep, from user space.
//!
//! A host that schedules each vCPU for itself loses the work of a VM that spins: next to one VM that computes, a
//! spinning barrier does 2 to 28 % of its work rate alone, at a fair share of 50 %.
//! So VMs that never sleep take turns: the groups of the others in the rotation are in the idle class (`cpu.idle`)
//! meanwhile, and each vCPU has a pCPU for itself.
//! It needs no guest agent, PMU, pause-loop exits or kernel patch, and a VM that only computes loses nothing.
//!
//! Source: Ousterhout, "Scheduling Techniques for Concurrent Systems", ICDCS 1982, section 3 (the matrix method): VMs
//! share a row, with at most one vCPU per pCPU. Rows are not fixed here: the VM that is owed most opens each row
//! ([`rotor`]), so that shares follow weights.
//!
//! The parts: [`wakefulness`], [`seats`], [`rotation`], [`rotor`], [`sequence`] and [`sleep`]; [`crate::host::turns`] is
//! the policy made of them. Shares of VMs that sleep are those of [`crate::flexw`].

pub mod blocks;
mod candidate;
mod demand;
pub(crate) mod left_out;
pub mod member;
mod packing;
mod roaming;
pub mod rotation;
pub mod rotor;
pub mod seats;
pub mod sequence;
pub mod sleep;
pub mod stays;
pub mod wakefulness;

pub use member::Member;
pub use rotation::Rotation;
pub use rotor::Rotor;
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

    /// Returns the length of turns if a VM waits for `others` rows between its own.
    pub fn turn_for(&self, others: u32) -> Nanos {
        let allowed = self.longest_wait.0 / u64::from(others.max(1));
        let (least, most) = (self.turn.0 / 2, self.turn.0);
        Nanos(allowed.clamp(least, most)).clamp(TurnsConfig::TURNS.0, TurnsConfig::TURNS.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_members_shorten_turns() {
        let config = TurnsConfig::default();
        assert_eq!(config.turn_for(1), Nanos::from_millis(20));
        assert_eq!(config.turn_for(10), Nanos::from_millis(20));
        assert_eq!(config.turn_for(16), Nanos(12_500_000));
        assert_eq!(config.turn_for(100), Nanos::from_millis(10));
        let short = TurnsConfig { turn: Nanos::from_millis(5), ..config };
        assert_eq!(short.turn_for(100), Nanos::from_millis(5));
    }
}
