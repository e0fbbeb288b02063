//! `tandem sim scalability`: how far the programs of a scenario scale, on hardware and in their VMs
//! ([`tandem_experiment::scalability`]).
//!
//! The allocation period is swept by `tandem sim compare --vary host.cfs.latency=…`, or here by `--set`.

use std::path::PathBuf;

use clap::Args;
use tandem_experiment::scalability;
use tandem_policy::Nanos;
use tandem_report::simulation;
use tandem_report::simulation::scalability_table;

use super::input::ScenarioArgs;
use super::progress::Bar;
use crate::console::print;
use crate::output;

/// `tandem sim scalability`
#[derive(Debug, Args)]
pub struct ScalabilityArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// A thread that blocks once in this time synchronizes often [default: what a vCPU gets in a row where all
    /// are runnable]
    #[arg(long, value_name = "TIME", value_parser = scalability::timeslice_of)]
    timeslice: Option<Nanos>,
    /// Write the analysis as JSON; without PATH to standard output, in place of the tables
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Runs what is needed and shows the analysis.
pub fn main(args: &ScalabilityArgs) -> anyhow::Result<()> {
    let scenario = args.scenario.source()?.scenario()?;
    output::check_json(args.json.as_deref())?;
    let usual = || scalability::timeslice(&scenario);
    let timeslice = args.timeslice.unwrap_or_else(usual);
    let analysis = scalability::analyze(&scenario, timeslice, &Bar::new())?;
    if !output::is_stdout(args.json.as_deref()) {
        print(&scalability_table::text(&scenario, &analysis))?;
    }
    output::write_json(
        args.json.as_deref(),
        &simulation::versioned_analysis(&analysis),
    )
}
