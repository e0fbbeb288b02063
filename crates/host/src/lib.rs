//! Find VMs on a Linux host, read what they do, turn scheduler knobs, put everything back.
//!
//! The modules follow the data: [`discovery`] finds VMs of any VMM and names their vCPU threads, [`select`] picks
//! those that the operator wants touched, [`fleet`] measures them and applies what is decided, [`daemon`] does so period
//! after period. [`status`] and [`top`] show what VMs receive and where their time goes, [`why`] what is wrong, [`scalability`] how far VMs scale, and [`export`] tells it to Prometheus. How threads are measured and
//! cgroups changed, and how every change is journaled and put back, whoever made it and however that process ended, is in
//! [`tandem_linux`].

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
mod division;
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
pub mod managed;
pub mod metrics;
mod origin;
mod published;
pub mod qmp;
mod quotas;
pub mod record;
pub mod replay;
mod said;
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
pub mod vmm;
pub mod waits;
pub mod watch;
mod weights;
pub mod why;
