//! What Tandem's host daemon and guest agent share of a Linux system.
//!
//! The modules follow the data: [`ids`], [`procfs`] and [`thread`] name processes and threads, [`sampler`] reads
//! what each thread ran and waited, [`branch_counters`] what its guest branched, [`cgroup`], [`mod@affinity`] and [`actuator`] change weights, caps,
//! groups and affinity masks. Every change is in [`journal`] before it is made, and [`restore`] puts it
//! back, whoever made it and however that process ended.
//!
//! A command that runs for long has its settings from [`settings`], waits with [`signals`], and tells what it does by
//! [`service`] (people and the service manager), [`status_file`] and [`exporter`] (other programs). What others write comes
//! through a socket with who wrote it ([`senders`]), and what they named is
//! [`mod@printable`] before anybody reads it. Whom a process counts for where users are bounded, [`tenants`] says.

pub mod actuator;
pub mod affinity;
pub mod branch_counters;
pub mod cgroup;
pub mod claims;
pub mod cpu_clock;
pub mod disk;
pub mod exporter;
pub mod ids;
pub mod interrupt;
pub mod journal;
pub mod kernel_release;
pub mod printable;
pub mod procfs;
pub mod real_time;
pub mod replace;
pub mod restore;
pub mod sampler;
pub mod sched_attr;
pub mod senders;
pub mod service;
pub mod settings;
pub mod signals;
mod state_dir;
pub mod status_file;
pub mod tenants;
pub mod thread;
mod undo;

pub use procfs::ProcFs;
