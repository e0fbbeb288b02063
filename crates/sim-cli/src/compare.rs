//! `tandem-sim compare`: every combination of some settings, several runs each
//! ([`tandem_experiment::compare`]), as a table, figures, a page and a picture.

use std::path::PathBuf;

use clap::Args;
use tandem_experiment::compare::{Plan, SHOWN};
use tandem_experiment::figures;
use tandem_sim_report::comparison_page::Data;
use tandem_sim_report::{comparison_page, comparison_table};

use crate::input;
use crate::input::ScenarioArgs;
use crate::output::OutputArgs;
use crate::progress::Bar;
use tandem_command::console::print;
use tandem_command::{invocation, output};

/// `tandem-sim compare`
#[derive(Debug, Args)]
pub struct CompareArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Values to compare, such as host.scheduler=cfs,eevdf,credit; several make all combinations. Set after what --policies sets
    #[arg(long, value_name = "KEY=VALUE,…")]
    vary: Vec<String>,
    /// Policies to compare, such as stock,aple,hvs,aple+hvs; an unknown one lists all
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    policies: Vec<String>,
    /// Runs of each combination, with seeds one apart, 1 … 1000
    #[arg(long, value_name = "N", default_value_t = 10)]
    runs: u32,
    /// Worker threads [default: one for each CPU]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Metrics in table, page and picture; an unknown one lists all
    #[arg(long, value_name = "NAME,…", default_value = SHOWN)]
    metrics: String,
    /// Write a picture of the metrics, SVG or PNG by its name: lines over a number that is varied, else bars relative to the
    /// first combination
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the comparison.
pub fn main(args: &CompareArgs) -> anyhow::Result<()> {
    let workers = input::workers(args.runs, args.workers)?;
    let combinations = input::combinations(&args.policies, &args.vary)?;
    let plan = Plan::read(&args.scenario.source()?, combinations, args.runs)?;
    if args.picture.is_some() {
        comparison_page::can_draw(plan.parameters())?;
    }
    args.output.check()?;
    let drawing = output::check_picture(args.picture.as_deref())?;
    // The page also shows details of one run of each combination.
    let outcome = plan.run(workers, args.output.html.is_some(), &Bar::new())?;
    let comparison = &outcome.comparison;
    let shown = comparison.chosen(&args.metrics)?;
    if !args.output.json_only() {
        print(&comparison_table::text(comparison, &shown))?;
    }
    output::write_json(args.output.json.as_deref(), comparison)?;
    let data = Data {
        comparison,
        parameters: plan.parameters(),
        scenarios: plan.scenarios(),
        watched: &outcome.watched,
        shown: &shown,
        command: &invocation::command(),
    };
    if let Some(path) = &args.output.html {
        let page = comparison_page::html(&data, &tandem_sim_report::footer());
        output::write_text(path, "page", &page)?;
    }
    if let Some(drawing) = &drawing {
        let picture = comparison_page::picture(&data)?;
        note!("picture: {}", drawing.write(&picture)?.display());
    }
    if let Some(path) = &args.output.table {
        figures::write(path, plan.parameters().columns(), plan.rows(&outcome.runs))?;
    }
    Ok(())
}
