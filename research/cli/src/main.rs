//! `tandem-lab`: the measurements behind Tandem's figures. Arguments and wiring.
//!
//! It starts VMs, daemons and agents as copies of itself, so it has the commands of `tandem` that run them.

#[macro_use(note, tell)]
extern crate tandem_command;

mod bench;
mod calibrate;
mod emulate;
mod kernel;
mod reproduce;
mod survey;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tandem_cli::{guest, host, vm};
use tandem_command::{manual, options, program};

/// Measure Tandem: benches on live hosts, the simulator against kernels, KVM and papers, kernels in emulated machines.
#[derive(Debug, Parser)]
#[command(
    name = "tandem-lab",
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
    /// Measure fairness, work, overhead, churn, programs under the agent, the simulator's speed
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Compare the simulator's figures with published ones
    Reproduce(reproduce::ReproduceArgs),
    /// Try every policy with every program on hosts of increasing overcommit
    Survey(survey::SurveyArgs),
    /// Run thread programs on this kernel and in the simulator, and compare
    Kernel(kernel::KernelArgs),
    /// Run microVMs on this machine's KVM and in the simulator, and compare
    Calibrate(calibrate::CalibrateArgs),
    /// Measure kernels in emulated machines that run KVM VMs
    #[command(subcommand)]
    Emulate(emulate::LabCommand),
    /// As in `tandem`
    #[command(subcommand, hide = true)]
    Host(host::HostCommand),
    /// As in `tandem`
    #[command(subcommand, hide = true)]
    Guest(guest::GuestCommand),
    /// As in `tandem`
    #[command(subcommand, hide = true)]
    Vm(vm::VmCommand),
    /// Print completions for a shell
    #[command(hide = true)]
    Completions(manual::CompletionsArgs),
}

/// Returns the exit status of an error: 2 for invalid arguments, 3 if nothing matched, 1 for any other failure.
fn exit_status(error: &anyhow::Error) -> u8 {
    let is_wrong =
        |cause| tandem_papers::is_of_an_argument(cause) || tandem_bench::is_of_an_argument(cause);
    if error.chain().any(is_wrong) { 2 } else { tandem_cli::exit_status(error) }
}

fn main() -> ExitCode {
    let Cli { common, command } = program::arguments();
    program::run("tandem-lab", common, exit_status, || match command {
        Command::Bench(command) => bench::main(command),
        Command::Reproduce(args) => reproduce::main(&args),
        Command::Survey(args) => survey::main(&args),
        Command::Kernel(args) => kernel::main(&args),
        Command::Calibrate(args) => calibrate::main(&args),
        Command::Emulate(command) => emulate::main(command),
        Command::Host(command) => host::main(command),
        Command::Guest(command) => guest::main(command),
        Command::Vm(command) => vm::main(command),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
    })
}

#[cfg(test)]
mod documented;
