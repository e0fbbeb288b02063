//! `tandem sim scalability`: how far the programs of a scenario scale, on hardware and in their VMs
//! ([`tandem_experiment::scalability`]).
//!
//! The allocation period is swept by `tandem sim compare --vary host.cfs.latency=…`, or here by `--set`.

use std::path::PathBuf;

use anyhow::Context;
use anyhow::ensure;
use clap::Args;
use tandem_experiment::scalability;
use tandem_policy::Nanos;
use tandem_report::simulation;
use tandem_report::simulation::scalability_table;
use tandem_sim::scenario::load;

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
    #[arg(long, value_name = "TIME")]
    timeslice: Option<String>,
    /// Write the analysis as JSON; without PATH to standard output, in place of the tables
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Runs what is needed and shows the analysis.
pub fn main(args: &ScalabilityArgs) -> anyhow::Result<()> {
    let scenario = args.scenario.source()?.scenario()?;
    output::check_json(args.json.as_deref())?;
    let timeslice = match &args.timeslice {
        None => scalability::timeslice(&scenario),
        Some(text) => load::time(text)
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("--timeslice {text} is not possible"))?,
    };
    ensure!(
        timeslice > Nanos::ZERO,
        "--timeslice 0 is not possible: write a time such as 6ms"
    );
    let analysis = scalability::analyze(&scenario, timeslice, &Bar::new())?;
    if !output::is_stdout(args.json.as_deref()) {
        print(&scalability_table::text(&scenario, &analysis))?;
    }
    output::write_json(
        args.json.as_deref(),
        &simulation::versioned_analysis(&analysis),
    )
}
