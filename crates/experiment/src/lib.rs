//! Experiments: running scenarios of the simulator many times and saying what came out.
//!
//! - [`input`]: a scenario's file with what is different in it.
//! - [`execute`]: runs, on several threads, with [`progress`] that a caller shows.
//! - [`metrics`]: everything that a simulation measures, under one name each.
//! - [`statistics`]: means with their intervals.
//! - [`vary`], [`range`], [`policies`]: what is varied, and the names that stand for it; [`parameters`]: its values
//!   as columns.
//! - [`compare`]: every combination of some settings, several runs each.
//! - [`sweep`]: a grid of settings and seeds in shards.
//! - [`figures`]: figures as Parquet and CSV files; [`columns`]: what all our Parquet files share.
//! - [`starter`]: a commented project to begin with.
//! - [`scalability`]: how far programs scale, on hardware and in their VMs.
//!
//! Nothing here prints, reads arguments or draws: `tandem_report` shows what is computed here, and the
//! command line says where it goes. Every error is a type of its operation; its text and those of its
//! causes say what was wrong, where, and what would be right.

pub mod beside_record;
pub mod columns;
pub mod compare;
pub mod execute;
pub mod figures;
pub mod input;
pub mod metrics;
pub mod parameters;
pub mod policies;
pub mod progress;
pub mod range;
pub mod scalability;
pub mod starter;
pub mod statistics;
pub mod sweep;
pub mod vary;
