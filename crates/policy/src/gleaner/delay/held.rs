//! What of delayed scheduling is in force.

use serde::Serialize;

use tandem_model::units::Nanos;

/// What is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Held {
    /// Timers may be late by so much, ns; zero: as the workload has it.
    pub slack: Nanos,
    /// Woken threads do not preempt who runs.
    pub batch: bool,
}

impl Held {
    /// Whether anything is held back.
    pub fn is_any(self) -> bool {
        self != Held::default()
    }
}
