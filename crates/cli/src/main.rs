//! `tandem`: vCPU scheduling for Linux/KVM hosts and their guests. Arguments and wiring.

mod moved;
mod old_options;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tandem_cli::{demo, guest, host, vm};
use tandem_command::{manual, options, program};

/// vCPU scheduling for Linux/KVM: VMs that get their share of an overcommitted host.
#[derive(Debug, Parser)]
#[command(
    name = "tandem",
    version = options::VERSION,
    arg_required_else_help = true,
    after_help = program::EXIT_STATUSES
)]
struct Cli {
    #[command(flatten)]
    common: options::CommonArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Diagnose a host and share it fairly among its VMs: top, why, the daemon, its status and its revert
    #[command(subcommand)]
    Host(host::HostCommand),
    /// Inside a VM: keep idle vCPUs awake (retention) and use fewer of them (consolidation), where that helps
    #[command(subcommand)]
    Guest(guest::GuestCommand),
    /// Run a small VM whose guest is a synchronization workload
    #[command(subcommand)]
    Vm(vm::VmCommand),
    /// Show on real VMs how unfair this host is, and what the daemon changes
    Demo(demo::DemoArgs),
    /// Write the manual, a page for each command
    #[command(hide = true)]
    Man(manual::ManArgs),
    /// Print completions for a shell
    #[command(hide = true)]
    Completions(manual::CompletionsArgs),
}

fn main() -> ExitCode {
    if let Some(status) = moved::delegate() {
        return status;
    }
    let Cli { common, command } = program::parse(old_options::arguments());
    program::run("tandem", common, tandem_cli::exit_status, || match command {
        Command::Host(command) => host::main(command),
        Command::Guest(command) => guest::main(command),
        Command::Vm(command) => vm::main(command),
        Command::Demo(args) => demo::main(args),
        Command::Man(args) => manual::pages(&args, Cli::command()),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
    })
}

#[cfg(test)]
mod documented;
