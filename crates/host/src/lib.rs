//! Find VMs on a Linux host, read what they do, turn scheduler knobs, put everything back.
//!
//! The modules follow the data: [`discovery`] finds VMs of any VMM and names their vCPU threads,
//! [`select`] picks those that the operator wants touched, [`sampler`] reads what each vCPU ran and
//! waited, [`cgroup`] and [`actuator`] change weights, caps, groups and affinity masks. Every change
//! is in [`journal`] before it is made, and [`restore`] puts it back, whoever made it and however
//! that process ended.

pub mod config;
pub mod daemon;
pub mod discovery;
pub mod fleet;
pub mod metrics;
pub mod qmp;
pub mod select;
pub mod status;
pub mod vmm;
