//! Tests of the program `tandem` that need no VM.

mod check_config;
mod exit_status;
mod export_packaging;
mod malformed;
mod manual;
mod packaging;
