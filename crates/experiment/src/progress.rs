//! Progress reports of simulations, and their cancellation.
//!
//! Callers with a terminal, notebook or window implement [`Progress`].
//! Amounts are simulated time.
//! Several worker threads call the methods concurrently.

use tandem_model::Nanos;

/// Receiver of progress reports.
pub trait Progress: Sync {
    /// Work begins; `total` is the simulated time of all its runs together.
    fn begin(&self, total: Nanos);

    /// Describes the current activity.
    fn say(&self, what: &str);

    /// Simulated time has advanced by `time`.
    fn add(&self, time: Nanos);

    /// Returns whether to cancel; called several hundred times per run, whose results are lost if it returns true.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Ignores all reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _total: Nanos) {}

    fn say(&self, _what: &str) {}

    fn add(&self, _time: Nanos) {}
}
