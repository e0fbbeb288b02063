//! `tandem`: vCPU scheduling for Linux/KVM, from one binary. Thin: arguments and wiring.

#[macro_use]
mod console;

mod bench;
mod demo;
mod guest;
mod host;
mod lab;
mod live;
mod number;
mod output;
mod placement;
mod sim;
mod vm;

use clap::Parser;
use clap::Subcommand;

/// vCPU scheduling for Linux/KVM: VMs that get their share of an overcommitted host.
#[derive(Debug, Parser)]
#[command(
    name = "tandem",
    version,
    arg_required_else_help = true,
    after_help = "Exit status: 0 done, 1 failed, 2 arguments that cannot be, 3 nothing matched what was asked for, 4 a part of it cannot be read"
)]
struct Cli {
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
}

fn main() -> std::process::ExitCode {
    let outcome = match Cli::parse().command {
        Command::Host(command) => host::main(command),
        Command::Guest(command) => guest::main(command),
        Command::Vm(command) => vm::main(command),
        Command::Demo(args) => demo::main(args),
        Command::Sim(command) => sim::main(command),
        Command::Lab(command) => lab::main(command),
        Command::Bench(command) => bench::main(command),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            tell!("tandem: {}", console::explain(&error));
            console::exit_status(&error).into()
        }
    }
}
