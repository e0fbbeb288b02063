//! `tandem-sim scalability`: how far the programs of a scenario scale, on hardware and in their VMs
//! ([`tandem_experiment::scalability`]).
//!
//! To sweep the allocation period, use `tandem-sim compare --vary host.cfs.latency=…`, or `--set` here.

use std::path::PathBuf;

use clap::Args;
use tandem_experiment::scalability;
use tandem_model::Nanos;
use tandem_sim_report::scalability_table;

use crate::input::ScenarioArgs;
use crate::progress::Bar;
use tandem_command::console::print;
use tandem_command::output;

/// `tandem-sim scalability`
#[derive(Debug, Args)]
pub struct ScalabilityArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Count a thread as synchronizing often if it blocks at least once in this time [default: the time that a vCPU runs without interruption while all
    /// are runnable]
    #[arg(long, value_name = "TIME", value_parser = scalability::timeslice_of)]
    timeslice: Option<Nanos>,
    /// Write the analysis as JSON; without PATH to standard output, in place of the tables
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Makes the necessary runs and prints the analysis.
pub fn main(args: &ScalabilityArgs) -> anyhow::Result<()> {
    let scenario = args.scenario.source()?.scenario()?;
    output::check_json(args.json.as_deref())?;
    let usual = || scalability::timeslice(&scenario);
    let timeslice = args.timeslice.unwrap_or_else(usual);
    let analysis = scalability::analyze(&scenario, timeslice, &Bar::new())?;
    if !output::is_stdout(args.json.as_deref()) {
        print(&scalability_table::text(&scenario, &analysis))?;
    }
    output::write_json(args.json.as_deref(), &tandem_sim_report::versioned_analysis(&analysis))
}
