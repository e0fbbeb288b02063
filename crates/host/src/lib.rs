//! Find VMs on a Linux host, read what they do, turn scheduler knobs, put everything back.
//!
//! The modules follow the data: [`discovery`] finds VMs of any VMM and names their vCPU threads,
//! [`select`] picks those that the operator wants touched, [`sampler`] reads what each vCPU ran and
//! waited, [`cgroup`] and [`actuator`] change weights, caps, groups and affinity masks. Every change
//! is in [`journal`] before it is made, and [`restore`] puts it back, whoever made it and however
//! that process ended.

pub mod actuator;
pub mod affinity;
pub mod cgroup;
pub mod config;
pub mod cpu_clock;
pub mod daemon;
pub mod discovery;
pub mod fleet;
pub mod idle_watch;
pub mod journal;
pub mod metrics;
pub mod procfs;
pub mod qmp;
pub mod replace;
pub mod restore;
pub mod sampler;
pub mod select;
pub mod signals;
pub mod status;
pub mod thread;
pub mod vmm;

pub use procfs::ProcFs;
