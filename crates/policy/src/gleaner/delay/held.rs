//! Current state of delayed scheduling.

use serde::Serialize;

use tandem_model::units::Nanos;

/// The means that are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Held {
    /// Slack of timers, ns; zero: as the workload set it.
    pub slack: Nanos,
    /// Whether woken threads do not preempt the running thread.
    pub batch: bool,
}

impl Held {
    /// Whether any means is on.
    pub fn is_any(self) -> bool {
        self != Held::default()
    }
}
