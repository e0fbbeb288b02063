//! `tandem-lab kernel`: compares the simulator's scheduling of threads with the running kernel's.
//!
//! Arguments and printing; the rest is in [`tandem_validate::kernel`].

use std::path::PathBuf;

use clap::Args;
use tandem_validate::kernel;

use tandem_cli::live;
use tandem_command::console::print;
use tandem_command::output;

/// `tandem-lab kernel`
#[derive(Debug, Args)]
pub struct KernelArgs {
    /// Workload files, or folders of them, whose programs end
    #[arg(value_name = "WORKLOAD", default_values = ["research/scenarios/kernel", "research/scenarios/kernel/groups"])]
    workloads: Vec<PathBuf>,
    /// Real runs of each program; medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Write all figures as JSON; without PATH to standard output, in place of the table
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Runs the comparison.
pub fn main(args: &KernelArgs) -> anyhow::Result<()> {
    output::check_json(args.json.as_deref())?;
    let workloads = kernel::read(&args.workloads)?;
    let state_dir = live::state_dir(None).join("groups");
    let tell = |event| note!("{event}");
    let comparison = kernel::compare(&workloads, args.runs, &state_dir, &tell)?;
    if !output::is_stdout(args.json.as_deref()) {
        print(&kernel::text(&comparison))?;
    }
    output::write_json(args.json.as_deref(), &comparison)
}
