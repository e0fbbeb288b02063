//! `tandem bench`: the measurements behind the numeric promises, each of which anyone can run again.
//!
//! - [`fairness`]: lags over named mixes of VMs, stock against Tandem.
//! - [`work`]: work relative to alone, of every workload beside others, in every mode.
//!   In the same file `asymmetric`: the same of VMs whose vCPUs need unequal time.
//! - [`flexs`]: VMs that wait by spinning beside VMs that compute, with and without FlexS.
//! - [`overhead`]: what the daemon costs with many vCPUs.
//! - [`changes`]: how soon VMs are fair again after one starts, sleeps, wakes or stops.
//! - [`churn`]: what stays behind after many VMs have come and gone.
//! - [`guest`]: programs in this VM, stock against the guest agent.
//!
//! The crate [`tandem_bench`] measures; here are the arguments. They print tables, and with `--json PATH`
//! write their figures to a file. They judge nothing: a figure outside its promise is shown as it is.

pub mod changes;
pub mod churn;
pub mod fairness;
pub mod flexs;
pub mod guest;
pub mod overhead;
pub mod token;
pub mod work;

use clap::Subcommand;

/// `tandem bench …`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Lags over named mixes of VMs: stock cgroup weights against Tandem
    Fairness(fairness::FairnessArgs),
    /// Work of every workload beside others, relative to the same VM alone: stock, by hand, and Tandem
    Work(work::WorkArgs),
    /// Work of VMs whose vCPUs need unequal time, beside others: stock, Tandem, and Tandem with the policy asymmetric
    Asymmetric(work::AsymmetricArgs),
    /// Work of VMs that wait by spinning beside VMs that compute, and who is found to spin: stock, the daemon, and the daemon with FlexS
    Flexs(flexs::FlexsArgs),
    /// CPU time, memory and files of the daemon with many vCPUs
    Overhead(overhead::OverheadArgs),
    /// How soon VMs are fair again after one starts, sleeps, wakes or stops
    Changes(changes::ChangesArgs),
    /// What stays behind after many VMs have come and gone under the daemon
    Churn(churn::ChurnArgs),
    /// Programs of Debian packages in this VM: stock, the guest agent, and settings by hand
    Guest(guest::GuestArgs),
    /// Two threads that hand on a token: a program of `guest`
    #[command(hide = true)]
    GuestToken(token::TokenArgs),
    /// Pieces of work by timers: a program of `guest --one-vcpu`
    #[command(hide = true)]
    GuestPaced { name: String, seconds: f64 },
    /// How long vCPUs were awake since boot: a part of `guest`
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
        BenchCommand::GuestToken(args) => token::main(&args),
        BenchCommand::GuestPaced { name, seconds } => {
            crate::console::print(&tandem_bench::guest::paced::run(&name, seconds)?.to_string())
        }
        BenchCommand::GuestCounters => guest::print_counters(),
    }
}
