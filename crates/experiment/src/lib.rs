//! Experiments: repeated runs of simulator scenarios, and their figures.
//!
//! - [`input`]: a scenario file with settings from the command line.
//! - [`execute`]: runs on several threads, with [`progress`] that the caller shows.
//! - [`metrics`]: all metrics of a simulation, by name.
//! - [`statistics`]: means with their intervals.
//! - [`vary`], [`range`], [`policies`]: varied settings and their names; [`parameters`]: their values as columns.
//! - [`compare`]: every combination of some settings, with several runs each.
//! - [`mixed`]: hosts with VMs of many sizes and programs.
//! - [`sweep`]: a grid of settings and seeds in shards.
//! - [`figures`]: figures as Parquet and CSV files; [`columns`]: columns of all our Parquet files.
//! - [`beside_record`]: comparison of a recorded host with its simulation.
//! - [`starter`]: a commented project as a starting point.
//! - [`scalability`]: scalability of programs on hardware and in VMs.
//!
//! This crate does not print, parse arguments or draw: `tandem_report` renders the results, and the command line selects the output.
//! Every operation has its own error type, whose text and causes name the failure, its place and the valid form.

pub mod beside_record;
pub mod columns;
pub mod compare;
pub mod execute;
pub mod figures;
pub mod input;
pub mod metrics;
pub mod mixed;
pub mod parameters;
pub mod policies;
pub mod progress;
pub mod range;
pub mod scalability;
pub mod starter;
pub mod statistics;
pub mod sweep;
pub mod vary;
