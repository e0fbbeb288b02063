//! Tests of the program `tandem-lab`.

mod bench;
mod bench_guest;
mod emulate;
mod exit_status;
mod page;
mod references;
mod reproduce;
mod schemas;
mod simulator;
mod survey;
