//! What a caller hears while simulations run, and how it ends them early.
//!
//! The library draws nothing: whoever has a terminal, a notebook or a window implements [`Progress`].
//! Amounts are simulated time. Calls come from several worker threads at once.

use tandem_model::Nanos;

/// Told how far simulations are.
pub trait Progress: Sync {
    /// Work begins; `total` is the simulated time of all its runs together.
    fn begin(&self, total: Nanos);

    /// What is being done from now on.
    fn say(&self, what: &str);

    /// So much simulated time has gone by.
    fn add(&self, time: Nanos);

    /// Whether to end early; asked several hundred times in each run. What has run so far is lost.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Nobody listens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _total: Nanos) {}

    fn say(&self, _what: &str) {}

    fn add(&self, _time: Nanos) {}
}
