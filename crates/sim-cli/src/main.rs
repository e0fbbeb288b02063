//! `tandem-sim`: the simulator of hosts, guests and vCPU scheduling. Arguments and wiring.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tandem_command::{manual, options, program};
use tandem_sim_cli::{compare, exit_status, mixed, new, run, scalability, scenario, sweep};

/// Simulate hosts and VMs: where CPU time goes, what would change it, and why.
#[derive(Debug, Parser)]
#[command(
    name = "tandem-sim",
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
    /// Make a commented scenario, a workload and first commands to begin with
    New(new::NewArgs),
    /// Run one scenario and show where the time went
    Run(run::RunArgs),
    /// Run every combination of some settings several times and show what differs
    Compare(compare::CompareArgs),
    /// Run mixed hosts: VMs of many sizes and programs under several policies, and the work that they do relative to their fair share
    Mixed(mixed::MixedArgs),
    /// Run a grid of settings and seeds into a Parquet file, whole or in shards to be merged
    Sweep(sweep::SweepArgs),
    /// Show how far the programs of a scenario scale, on hardware and in their VMs
    Scalability(scalability::ScalabilityArgs),
    /// Make a scenario of a host that tandem host record recorded
    Scenario(scenario::ScenarioFromArgs),
    /// Write the manual, a page for each command
    #[command(hide = true)]
    Man(manual::ManArgs),
    /// Print completions for a shell
    #[command(hide = true)]
    Completions(manual::CompletionsArgs),
}

fn main() -> ExitCode {
    let Cli { common, command } = program::arguments();
    program::run("tandem-sim", common, exit_status, || match command {
        Command::New(args) => new::main(&args),
        Command::Run(args) => run::main(&args),
        Command::Compare(args) => compare::main(&args),
        Command::Mixed(args) => mixed::main(&args),
        Command::Sweep(args) => sweep::main(&args),
        Command::Scalability(args) => scalability::main(&args),
        Command::Scenario(args) => scenario::main(&args),
        Command::Man(args) => manual::pages(&args, Cli::command()),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
    })
}

#[cfg(test)]
mod documented;
