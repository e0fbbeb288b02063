//! The commands of `tandem-sim`: simulated hosts of any size and scheduler, with reproducible results per seed.
//!
//! - [`new`]: a commented starter project.
//! - [`run`]: a single run of a scenario; tables, JSON, Parquet, a trace for Perfetto.
//! - [`compare`]: a scenario with every combination of some settings, several seeds each.
//! - [`mixed`]: hosts with VMs of many sizes and programs.
//! - [`sweep`]: a grid of settings and seeds, in shards for several machines.
//! - [`scalability`]: how far programs scale, on hardware and in their VMs.
//! - [`scenario`]: a recorded host as a scenario.
//!
//! `tandem_experiment` runs simulations, and `tandem_sim_report` formats results.
//! This crate has arguments, the progress bar and output files.
//! Scenarios are described in `docs/reference/scenarios.md`.

#[macro_use(note, tell)]
extern crate tandem_command;

pub mod compare;
pub mod input;
pub mod mixed;
pub mod new;
pub mod output;
pub mod progress;
pub mod run;
pub mod scalability;
pub mod scenario;
pub mod sweep;

use tandem_command::console;
use tandem_observe::span::SpanError;

/// Returns the exit status of an error: 2 for invalid arguments, 3 if nothing matched, 1 for any other failure.
pub fn exit_status(error: &anyhow::Error) -> u8 {
    if error.chain().any(tandem_sim_report::is_of_an_argument) {
        return 2;
    }
    match error.downcast_ref() {
        Some(SpanError::Outside { .. }) => 3,
        _ => console::exit_status(error),
    }
}
