//! `tandem`: vCPU scheduling for Linux/KVM, from one binary. Thin: arguments and wiring.

#[macro_use]
mod console;

mod bench;
mod demo;
mod guest;
mod host;
mod lab;
mod live;
mod manual;
mod number;
mod options;
mod output;
mod placement;
mod sim;
mod vm;

use std::process::ExitCode;
use std::time::Instant;

use clap::CommandFactory;
use clap::FromArgMatches;
use clap::Parser;
use clap::Subcommand;

/// vCPU scheduling for Linux/KVM: VMs that get their share of an overcommitted host.
#[derive(Debug, Parser)]
#[command(
    name = "tandem",
    version = options::VERSION,
    arg_required_else_help = true,
    after_help = "Exit status: 0 done, 1 failed, 2 arguments that cannot be, 3 nothing matched what was asked for, 4 a part of it cannot be read"
)]
struct Cli {
    #[command(flatten)]
    common: options::CommonArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Share a host fairly among its VMs: the daemon, its status, its undo
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
    /// Simulate hosts and VMs: what happens inside, what if, and why
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Measure kernels in emulated machines that run KVM VMs
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// Measure fairness, overhead and churn
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Write the manual, a page for each command
    #[command(hide = true)]
    Man(manual::ManArgs),
    /// Print what a shell needs to complete commands and options
    #[command(hide = true)]
    Completions(manual::CompletionsArgs),
}

/// The arguments; whoever wants help, the version or what cannot be is answered, and that is the end.
fn arguments() -> Cli {
    let given: Vec<_> = std::env::args_os().collect();
    let mut command = Cli::command().color(options::colour_of_answers(&given));
    let mut matches = command.clone().get_matches_from(given);
    Cli::from_arg_matches_mut(&mut matches)
        .unwrap_or_else(|error| error.format(&mut command).exit())
}

fn main() -> ExitCode {
    let began = Instant::now();
    let Cli { common, command } = arguments();
    common.apply();
    let outcome = match command {
        Command::Host(command) => host::main(command),
        Command::Guest(command) => guest::main(command),
        Command::Vm(command) => vm::main(command),
        Command::Demo(args) => demo::main(args),
        Command::Sim(command) => sim::main(command),
        Command::Lab(command) => lab::main(command),
        Command::Bench(command) => bench::main(command),
        Command::Man(args) => manual::pages(&args, Cli::command()),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
    };
    common.end(began);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("tandem: {}", console::explain(&error));
            console::exit_status(&error).into()
        }
    }
}

#[cfg(test)]
mod documented;
