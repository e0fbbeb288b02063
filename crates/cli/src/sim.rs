//! `tandem sim`: simulated hosts, for what a real one cannot show: any size, any scheduler, every
//! cause counted, the same again for the same seed.
//!
//! - [`new`]: a commented project to begin with.
//! - [`run`]: one scenario once; tables, JSON, Parquet, a trace for Perfetto.
//! - [`compare`]: one scenario with every combination of some settings, several seeds each.
//! - [`sweep`]: a grid of settings and seeds, in shards that other machines can take.
//! - [`scalability`]: how far programs scale, on hardware and in their VMs.
//! - [`scenario`]: a recorded host as a scenario.
//! - [`reproduce`]: published figures against the simulator's.
//! - [`survey`]: every policy with every program.
//! - [`mod@bench`]: how fast the simulator is.
//! - [`calibrate`]: microVMs on this machine's KVM, against the simulator.
//! - [`kernel`]: the same thread programs on the kernel that runs here, against the simulator.
//!
//! What they do is in `tandem_experiment`, how it looks in `tandem_report`; here are arguments, the
//! progress bar and where files go. What scenarios look like: `docs/scenarios.md`.

pub mod bench;
pub mod calibrate;
pub mod compare;
mod input;
pub mod kernel;
pub mod new;
pub mod page;
mod progress;
pub mod reproduce;
pub mod run;
pub mod scalability;
pub mod scenario;
pub mod survey;
pub mod sweep;

use clap::Subcommand;

pub use tandem_experiment::vary;

/// `tandem sim …`
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Make a commented scenario, a workload and first commands to begin with
    New(new::NewArgs),
    /// Run one scenario and show where the time went
    Run(run::RunArgs),
    /// Run every combination of some settings several times and show what differs
    Compare(compare::CompareArgs),
    /// Run a grid of settings and seeds into a Parquet file, whole or in shards to be merged
    Sweep(sweep::SweepArgs),
    /// Show how far the programs of a scenario scale, on hardware and in their VMs
    Scalability(scalability::ScalabilityArgs),
    /// Make a scenario of a host that tandem host record recorded
    Scenario(scenario::ScenarioFromArgs),
    /// Hold the simulator's figures against published ones
    Reproduce(reproduce::ReproduceArgs),
    /// Try every policy with every program on a host that is overcommitted more and more
    Survey(survey::SurveyArgs),
    /// Measure how fast the simulator is
    Bench(bench::BenchArgs),
    /// Run thread programs on this kernel and in the simulator, and compare
    Kernel(kernel::KernelArgs),
    /// Run microVMs on this machine's KVM and in the simulator, and compare
    Calibrate(calibrate::CalibrateArgs),
}

/// Carries it out.
pub fn main(command: SimCommand) -> anyhow::Result<()> {
    match command {
        SimCommand::New(args) => new::main(&args),
        SimCommand::Run(args) => run::main(&args),
        SimCommand::Compare(args) => compare::main(&args),
        SimCommand::Sweep(args) => sweep::main(&args),
        SimCommand::Scalability(args) => scalability::main(&args),
        SimCommand::Scenario(args) => scenario::main(&args),
        SimCommand::Reproduce(args) => reproduce::main(&args),
        SimCommand::Survey(args) => survey::main(&args),
        SimCommand::Bench(args) => bench::main(&args),
        SimCommand::Kernel(args) => kernel::main(&args),
        SimCommand::Calibrate(args) => calibrate::main(&args),
    }
}
