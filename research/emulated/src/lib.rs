//! Experiments in emulated machines, which boot a real Linux kernel and run KVM VMs in it: `tandem-lab emulate`.
//!
//! They measure changes to KVM on any host, with reproducible results.
//!
//! ```text
//! experiment (TOML) ─► plan ─► jobs ─► machine: qemu | bochs ─► agent in the guest ─► report (JSON)
//! ```
//!
//! - [`experiment`]: experiments from `research/lab/experiments/NAME.toml`; [`mod@run`]: from an order to a
//!   [`report`], whose text is in [`tables`].
//! - [`job`]: the protocol between host and machine; [`agent`]: the program in the machine that runs a job.
//! - [`machine`]: descriptions from `research/lab/machines/NAME.toml`; [`emulators`] runs them, by [`qemu`] or
//!   [`bochs`].
//! - [`payload`]: the initramfs and the job in it; [`kernel`]: the kernel to boot.
//! - [`mailbox`]: delivers the job to a restored snapshot.
//! - [`trace`]: cost of a pause-loop exit, from the kernel's own trace.
//!
//! The crate prints nothing; it reports progress as an [`event::Event`].
//! Times are those of the emulated machine unless a name contains `host`.
//! `kernel/build` builds kernels.
//! Emulated time does not predict real time.

pub mod agent;
pub mod bochs;
pub mod boot;
pub mod counters;
pub mod daemon;
pub mod description;
pub mod emulator;
pub mod emulators;
pub mod event;
pub mod experiment;
pub mod file;
pub mod job;
pub mod kernel;
pub mod machine;
pub mod mailbox;
pub mod payload;
pub mod qemu;
pub mod report;
pub mod run;
pub mod script;
pub mod settings;
pub mod tables;
pub mod trace;
