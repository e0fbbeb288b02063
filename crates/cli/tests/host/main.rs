//! Tests of `tandem host`, `tandem demo` and `tandem guest record` next to VMs and other programs.
//!
//! Those that need VMs or cgroups are ignored; `scripts/test` runs them sequentially.

mod daemon_disks;
mod daemon_kill;
mod demo;
mod documented_commands;
mod export_support;
mod guest_record;
mod host_check;
mod host_export;
mod host_export_prometheus;
mod host_record;
mod host_scalability;
mod host_top;
mod host_top_terminal;
mod service;
