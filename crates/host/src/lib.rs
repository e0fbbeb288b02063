//! Finds VMs on a Linux host, measures them, changes scheduler settings, and reverts all changes.
//!
//! The modules follow the data.
//! [`discovery`] finds VMs of any VMM and their vCPU threads, and [`select`] picks those that the operator selects.
//! [`fleet`] measures these and applies the decisions, and [`daemon`] does so period after period.
//! [`status`] and [`top`] show received time and states, [`why`] finds problems, [`scalability`] estimates how far VMs scale, and [`export`] serves Prometheus.
//! [`tandem_linux`] measures threads, changes cgroups, and journals and reverts every change, also after a crash.

pub mod apply;
pub mod check;
pub mod columns;
pub mod config;
pub mod configured;
pub mod control;
mod counted;
mod cpusets;
pub mod daemon;
mod demands;
pub mod discovery;
pub mod export;
#[cfg(test)]
mod fixtures;
pub mod fleet;
pub mod glob;
mod hierarchy;
mod hint;
mod homes;
mod in_force;
pub mod list;
mod live_vcpu;
pub mod managed;
pub mod metrics;
mod origin;
mod published;
pub mod qmp;
mod quotas;
pub mod record;
pub mod replay;
pub mod scalability;
mod scanner;
pub mod select;
pub mod spins;
pub mod status;
mod summed;
mod told_apart;
pub mod top;
pub mod trace;
pub mod turns;
mod unseen;
mod vm_cpu;
pub mod vmm;
pub mod waits;
pub mod watch;
mod weights;
pub mod why;
