//! What simulations measured, as pages: one run, or several combinations of settings side by side.
//!
//! The figures come as plain data, already averaged and with their intervals; labels come as text,
//! because only who measured knows their units. Here they become charts:
//!
//! - [`measures`]: a metric of every VM under every combination, relative to the first and as it is.
//! - [`time`]: where the CPU time of a VM went.
//! - [`threshold`]: the pause-loop window that APLE set, over time.
//! - [`waits`]: which vCPU waited for which.
//! - [`comparison_page`] and [`run_page`]: the pages.
//!
//! A comparison may hold hundreds of combinations; then the paper's form, a group of upright bars for
//! each VM, gives way to rows, and what would make the page too large is left out and named.

pub mod comparison_page;
pub mod measures;
pub mod run_page;
pub mod threshold;
pub mod time;
pub mod waits;

pub use measures::Measure;
pub use measures::Value;
pub use measures::VmValues;
pub use threshold::Threshold;
pub use time::TimeOf;
pub use waits::Square;
pub use waits::WaitsOf;

/// What a combination is called where it has no name: the scenario as it is.
pub const AS_IT_IS: &str = "as it is";

/// The colour of a combination: its own while there are colours enough, else that of all.
pub(crate) fn series(combination: usize, combinations: usize) -> usize {
    match combinations <= crate::chart::COLOURS {
        true => combination,
        false => 0,
    }
}
