//! `tandem lab`: experiments in whole emulated machines, which boot a real Linux kernel and run KVM
//! VMs in it, so that changes to KVM can be measured anywhere and again with the same result.
//!
//! ```text
//! experiment (TOML) ─► plan ─► jobs ─► machine: qemu | bochs ─► agent in the guest ─► report (JSON)
//! ```
//!
//! - [`experiment`]: what is run, from `lab/experiments/NAME.toml`; [`run`]: from arguments to a report.
//! - [`job`]: what the machine is told, and what it answers; [`agent`]: the program in it that does it.
//! - [`machine`]: descriptions from `lab/machines/NAME.toml`; [`qemu`] and [`bochs`] run them.
//! - [`payload`]: the initramfs and what is added to it; [`kernel`]: which kernel is booted.
//! - [`mailbox`]: how a machine that was saved after its boot gets its job.
//! - [`trace`]: what a pause-loop exit costs, from the kernel's own trace.
//!
//! Times are those of the emulated machine unless a name says `host`. What it does not do: build
//! kernels (`kernel/build` does), or claim that emulated time is real time.

pub mod agent;
pub mod bochs;
pub mod counters;
pub mod emulator;
pub mod experiment;
pub mod job;
pub mod kernel;
pub mod list;
pub mod machine;
pub mod mailbox;
pub mod payload;
pub mod qemu;
pub mod run;
pub mod settings;
pub mod snapshot;
pub mod tables;
pub mod trace;

use clap::Subcommand;

/// `tandem lab …`
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Run an experiment on an emulated machine, with a kernel of your choice
    Run(Box<run::RunArgs>),
    /// List the experiments and the machines
    List(list::ListArgs),
    /// Inside a machine: carry out a job and print what came out
    #[command(hide = true)]
    Guest(agent::GuestArgs),
}

/// Carries it out.
pub fn main(command: LabCommand) -> anyhow::Result<()> {
    match command {
        LabCommand::Run(args) => run::main(&args),
        LabCommand::List(args) => list::main(&args),
        LabCommand::Guest(args) => agent::main(&args),
    }
}
