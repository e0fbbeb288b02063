//! Results of simulations on the terminal, as pages and as pictures: one run, or several combinations of
//! settings compared.
//!
//! - [`run_tables`] and [`run_page`]: one run.
//! - [`comparison_table`] and [`comparison_page`]: combinations compared with the first of them;
//!   [`comparison_charts`] prepares the data of their charts.
//! - [`measures`]: a metric of every VM under every combination, relative to the first and in its unit;
//!   [`over_number`]: as lines over a varied number.
//! - [`mixed`]: mixed hosts, the distribution of deserved work.
//! - [`time`]: the CPU time of a VM by use.
//! - [`threshold`]: the pause-loop window that APLE set, over time.
//! - [`waits`]: waits between VMs, and between the vCPUs of a VM.
//! - [`scalability_table`]: how far programs scale.
//! - [`trace_names`], [`trace`] and [`trace_picture`]: a trace for Perfetto and as a picture;
//!   [`recording`]: the interval that they cover.
//!
//! A comparison may hold hundreds of combinations.
//! Rows then replace the paper's form, a group of upright bars for each VM.
//! Content that would make the page too large is omitted, and a note names it.

pub mod argument;
pub mod beside_record;
pub mod comparison_charts;
pub mod comparison_page;
pub mod comparison_table;
pub mod measures;
pub mod mixed;
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

/// Version of the JSON form of a run (`docs/schemas`).
/// It increases when a field is removed or changes its meaning, not when one is added.
pub const RUN_SCHEMA: u32 = 1;

/// Version of the JSON form of a scalability analysis.
pub const SCALABILITY_SCHEMA: u32 = 1;

/// Maximum number of VMs that are shown one by one; beyond it, only their sum is shown, with a note.
pub const MAX_VMS: usize = 8;

/// Returns the results of a run as written to JSON, with the version of their form.
pub fn versioned(results: &Results) -> Versioned<'_, Results> {
    Versioned { schema: RUN_SCHEMA, figures: results }
}

/// Returns a scalability analysis as written to JSON, with the version of its form.
pub fn versioned_analysis(analysis: &Analysis) -> Versioned<'_, Analysis> {
    Versioned { schema: SCALABILITY_SCHEMA, figures: analysis }
}

/// Returns the footer of pages of simulations.
pub fn footer() -> String {
    format!(
        "tandem {}. Simulated: docs/model.md says what the model leaves out.",
        env!("CARGO_PKG_VERSION")
    )
}
