//! Tests of the program `tandem-sim`.

mod common;
mod data;
mod exit_status;
mod malformed;
mod mixed;
mod page;
mod scalability;
mod scenario;
mod schemas;
mod slurm;
mod sweep;
mod trace_perfetto;
mod usage;
