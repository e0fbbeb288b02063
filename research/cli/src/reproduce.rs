//! `tandem-lab reproduce`: compares the simulator's figures with published ones ([`tandem_papers::reproduce`]).

use std::path::PathBuf;

use clap::Args;
use tandem_papers::reproduce::verdict;
use tandem_papers::{claims_page, claims_table, reproduce};

use tandem_command::console::print;
use tandem_command::{invocation, output};
use tandem_sim_cli::input;
use tandem_sim_cli::progress::Bar;

/// `tandem-lab reproduce`
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// Only these claims, or all that begin so, such as apples.f6.ebizzy,flex
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    claims: Vec<String>,
    /// Replace a value in every trial, such as vm.*.apic=cluster
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Runs of each trial, with seeds one apart, 1 … 1000
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: u32,
    /// Worker threads [default: one for each CPU]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// The folder of the scenarios [default: research/scenarios/papers, here or above, else those built in]
    #[arg(long, value_name = "DIR")]
    scenarios: Option<PathBuf>,
    /// Write the list of claims as JSON; without PATH to standard output, in place of the table
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write a page with charts, one file that opens offline
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the trials of the claims and judges them.
pub fn main(args: &ReproduceArgs) -> anyhow::Result<()> {
    let workers = input::workers(args.runs, args.workers)?;
    output::check_json(args.json.as_deref())?;
    args.html.as_deref().map_or(Ok(()), output::check)?;
    let claims = reproduce::chosen(&args.claims)?;
    let folder = args.scenarios.as_deref();
    let (settings, runs) = (&args.settings, args.runs);
    let verdicts = reproduce::judge_all(claims, folder, settings, runs, workers, &Bar::new())?;
    if !output::is_stdout(args.json.as_deref()) {
        print(&claims_table::table(&verdicts))?;
    }
    if let Some(path) = &args.html {
        let footer = tandem_sim_report::footer();
        let page = claims_page::html(&verdicts, args.runs, &invocation::command(), &footer);
        output::write_text(path, "page", &page)?;
    }
    output::write_json(args.json.as_deref(), &verdict::list(&verdicts))
}
