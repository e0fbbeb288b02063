//! Experiments in whole emulated machines, which boot a real Linux kernel and run KVM VMs in it, so
//! that changes to KVM can be measured anywhere and again with the same result. `tandem-lab emulate` on the
//! command line.
//!
//! ```text
//! experiment (TOML) ─► plan ─► jobs ─► machine: qemu | bochs ─► agent in the guest ─► report (JSON)
//! ```
//!
//! - [`experiment`]: what is run, from `research/lab/experiments/NAME.toml`; [`mod@run`]: from an order to a
//!   [`report`], whose text is in [`tables`].
//! - [`job`]: what the machine is told, and what it answers; [`agent`]: the program in it that does it.
//! - [`machine`]: descriptions from `research/lab/machines/NAME.toml`; [`emulators`] runs them, by [`qemu`] or
//!   [`bochs`].
//! - [`payload`]: the initramfs and what is added to it; [`kernel`]: which kernel is booted.
//! - [`mailbox`]: how a machine that was saved after its boot gets its job.
//! - [`trace`]: what a pause-loop exit costs, from the kernel's own trace.
//!
//! Nothing here prints: what there is to tell during a run is an [`event::Event`]. Times are those of
//! the emulated machine unless a name says `host`. What it does not do: build kernels (`kernel/build`
//! does), or claim that emulated time is real time.

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
