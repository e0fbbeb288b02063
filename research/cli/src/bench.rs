//! `tandem-lab bench`: the reproducible measurements behind the numeric targets.
//!
//! - [`fairness`]: lags over named mixes of VMs, in stock and with Tandem.
//! - [`work`]: work of every workload with competing VMs relative to running alone, in every mode.
//!   The same file has `asymmetric`: the same for VMs whose vCPUs need unequal CPU time.
//! - [`flexs`]: spinning VMs competing with computing VMs, with and without FlexS.
//! - [`overhead`]: cost of the daemon with many vCPUs.
//! - [`changes`]: time until VMs are fair again after one starts, sleeps, wakes or stops.
//! - [`churn`]: leftover state after many VM starts and stops.
//! - [`guest`]: programs in this VM, in stock and with the guest agent.
//!
//! The crate [`tandem_bench`] measures; these modules have the arguments.
//! They print tables, and with `--json PATH` write their figures to a file.
//! A figure outside its target is no failure.

pub mod changes;
pub mod churn;
pub mod fairness;
pub mod flexs;
pub mod guest;
pub mod overhead;
pub mod simulator;
pub mod token;
pub mod work;

use clap::Subcommand;

/// `tandem-lab bench …`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Lags over named mixes of VMs: stock cgroup weights against Tandem
    Fairness(fairness::FairnessArgs),
    /// Work of every workload with competing VMs, relative to the same VM alone: stock, manual settings, and Tandem
    Work(work::WorkArgs),
    /// Work of VMs whose vCPUs need unequal time, with competing VMs: stock, Tandem, and Tandem with the policy asymmetric
    Asymmetric(work::AsymmetricArgs),
    /// Work of spinning and computing VMs that compete, and how well spinning is detected: stock, the daemon, and the daemon with FlexS
    Flexs(flexs::FlexsArgs),
    /// CPU time, memory and files of the daemon with many vCPUs
    Overhead(overhead::OverheadArgs),
    /// How soon VMs are fair again after one starts, sleeps, wakes or stops
    Changes(changes::ChangesArgs),
    /// Measure leftover state after many VMs have started and ended under the daemon
    Churn(churn::ChurnArgs),
    /// Programs of Debian packages in this VM: stock, the guest agent, and settings by hand
    Guest(guest::GuestArgs),
    /// Measure the speed of the simulator
    Sim(simulator::BenchArgs),
    /// Two threads that pass a token: a program of `guest`
    #[command(hide = true)]
    GuestToken(token::TokenArgs),
    /// Work items by timers: a program of `guest --one-vcpu`
    #[command(hide = true)]
    GuestPaced { name: String, seconds: f64 },
    /// Awake time of vCPUs since boot: a part of `guest`
    #[command(hide = true)]
    GuestCounters,
}

/// Runs the measurement.
pub fn main(command: BenchCommand) -> anyhow::Result<()> {
    match command {
        BenchCommand::Fairness(args) => fairness::main(&args),
        BenchCommand::Work(args) => work::main(&args),
        BenchCommand::Asymmetric(args) => work::asymmetric(&args),
        BenchCommand::Flexs(args) => flexs::main(&args),
        BenchCommand::Overhead(args) => overhead::main(&args),
        BenchCommand::Changes(args) => changes::main(&args),
        BenchCommand::Churn(args) => churn::main(&args),
        BenchCommand::Guest(args) => guest::main(&args),
        BenchCommand::Sim(args) => simulator::main(&args),
        BenchCommand::GuestToken(args) => token::main(&args),
        BenchCommand::GuestPaced { name, seconds } => tandem_command::console::print(
            &tandem_bench::guest::paced::run(&name, seconds)?.to_string(),
        ),
        BenchCommand::GuestCounters => guest::print_counters(),
    }
}
