//! Linux interfaces that Tandem's host daemon and guest agent share.
//!
//! The modules follow the data.
//! [`ids`], [`procfs`] and [`thread`] identify processes and threads.
//! [`sampler`] reads the run and wait times of each thread, [`branch_counters`] the branches of its guest.
//! [`cgroup`], [`mod@affinity`] and [`actuator`] change weights, caps, groups and affinity masks.
//! [`journal`] records every change before it is made, and [`restore`] reverts it, however the process ended.
//!
//! A long-running command reads its settings with [`settings`] and waits with [`signals`].
//! It reports through [`log`] (people), [`service`] (the service manager), [`status_file`] and [`exporter`] (other programs).
//! [`senders`] identifies the writers of a socket, and [`mod@printable`] escapes names that they chose.

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
pub mod log;
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
pub mod status_file;
pub mod thread;
mod undo;

pub use procfs::ProcFs;
