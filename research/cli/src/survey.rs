//! `tandem-lab survey`: every policy with every program, on a host with increasing overcommit ([`tandem_papers::survey`]).
//!
//! The figures can be saved (`--json`) and shown again without simulation (`--from`), also as a document (`--markdown`) or a page (`--html`).

use std::path::PathBuf;

use clap::Args;
use tandem_papers::survey::entry::{PCPUS, Survey};
use tandem_papers::survey::{Plan, document, file, page as survey_page, tables};

use tandem_command::console::print;
use tandem_command::{invocation, output};
use tandem_sim_cli::input;
use tandem_sim_cli::progress::Bar;

/// `tandem-lab survey`
#[derive(Debug, Args)]
pub struct SurveyArgs {
    /// Policies in addition to stock, such as aple,hvs,apples+flexw [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    policies: Vec<String>,
    /// Programs of workloads/ [default: all that have a profile]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    workloads: Vec<String>,
    /// How often the host is overcommitted: 1, 2, 4 [default: all]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    overcommit: Vec<u32>,
    /// pCPUs of the host, and vCPUs of each VM: 16 or 64 [default: 16]
    #[arg(long, value_name = "N", conflicts_with = "from")]
    pcpus: Option<u32>,
    /// Runs of each, with seeds one apart, 1 … 1000
    #[arg(long, value_name = "N", default_value_t = 2)]
    runs: u32,
    /// Worker threads [default: one for each CPU]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// The folder of the scenarios [default: research/scenarios/papers, here or above, else those built in]
    #[arg(long, value_name = "DIR")]
    scenarios: Option<PathBuf>,
    /// Write all figures as JSON; without PATH to standard output, in place of the tables
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Show the figures of this file, which --json wrote, and simulate nothing
    #[arg(long, value_name = "PATH", conflicts_with_all = ["runs", "workers", "scenarios"])]
    from: Option<PathBuf>,
    /// Write the tables into this document, below the line that says so if it has one
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
    /// Write a page with charts, one file that opens offline
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs or reads a survey, and shows it.
pub fn main(args: &SurveyArgs) -> anyhow::Result<()> {
    output::check_json(args.json.as_deref())?;
    let before = match &args.markdown {
        Some(path) => {
            let before = document::before(path)?;
            output::check(path)?;
            before
        }
        None => String::new(),
    };
    args.html.as_deref().map_or(Ok(()), output::check)?;
    let survey = match &args.from {
        Some(path) => file::read(path, &args.policies, &args.workloads, &args.overcommit)?,
        None => simulate(args)?,
    };
    if !output::is_stdout(args.json.as_deref()) {
        print(&tables::show(&survey))?;
    }
    if let Some(path) = &args.markdown {
        let text = document::document(&before, &tables::parts(&survey, usize::MAX));
        output::write_text(path, "document", &text)?;
    }
    if let Some(path) = &args.html {
        let page = survey_page::html(&survey, &invocation::command(), &tandem_sim_report::footer());
        output::write_text(path, "page", &page)?;
    }
    output::write_json(args.json.as_deref(), &survey.entries)
}

fn simulate(args: &SurveyArgs) -> anyhow::Result<Survey> {
    let workers = input::workers(args.runs, args.workers)?;
    let pcpus = args.pcpus.unwrap_or(PCPUS);
    let plan = Plan::new(&args.policies, &args.workloads, &args.overcommit, pcpus)?;
    Ok(plan.run(args.scenarios.as_deref(), args.runs, workers, &Bar::new())?)
}
