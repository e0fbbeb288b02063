//! What simulations measured, on the terminal, as pages and as pictures: one run, or several combinations
//! of settings side by side.
//!
//! - [`run_tables`] and [`run_page`]: one run.
//! - [`comparison_table`] and [`comparison_page`]: combinations against the first of them;
//!   [`comparison_charts`] says what is drawn of them.
//! - [`measures`]: a metric of every VM under every combination, relative to the first and as it is; [`over_number`]: as lines
//!   over a number that was varied.
//! - [`time`]: where the CPU time of a VM went.
//! - [`threshold`]: the pause-loop window that APLE set, over time.
//! - [`waits`]: who waited for whom.
//! - [`scalability_table`]: how far programs scale.
//! - [`trace_names`], [`trace`] and [`trace_picture`]: a trace for Perfetto and as a picture; [`recording`]: of which time.
//!
//! A comparison may hold hundreds of combinations; then the paper's form, a group of upright bars for
//! each VM, gives way to rows, and what would make the page too large is left out and named.

pub mod argument;
pub mod beside_record;
pub mod comparison_charts;
pub mod comparison_page;
pub mod comparison_table;
pub mod measures;
pub mod over_number;
pub mod recording;
pub mod run_page;
pub mod run_tables;
pub mod scalability_table;
pub mod threshold;
pub mod time;
pub mod trace;
pub mod trace_names;
pub mod trace_picture;
pub mod waits;

pub use argument::is_of_an_argument;
use tandem_experiment::scalability::Analysis;
use tandem_sim::Results;

use tandem_report::json::Versioned;

/// The version of a run's form in JSON (`docs/schemas`): raised when a field changes its meaning or goes; fields may be added.
pub const RUN_SCHEMA: u32 = 1;

/// The same of how far programs scale.
pub const SCALABILITY_SCHEMA: u32 = 1;

/// VMs are shown one by one up to this many; beyond, only all of them together, and a note says so.
pub const MOST_VMS: usize = 8;

/// The results of a run as they are written as JSON: with the version of their form.
pub fn versioned(results: &Results) -> Versioned<'_, Results> {
    Versioned { schema: RUN_SCHEMA, figures: results }
}

/// The same of how far programs scale.
pub fn versioned_analysis(analysis: &Analysis) -> Versioned<'_, Analysis> {
    Versioned { schema: SCALABILITY_SCHEMA, figures: analysis }
}

/// What stands below a page of simulations.
pub fn footer() -> String {
    format!(
        "tandem {}. Simulated: docs/model.md says what the model leaves out.",
        env!("CARGO_PKG_VERSION")
    )
}
