//! `tandem-lab bench guest`: programs on this machine in stock, with the guest agent, and with settings made by hand ([`tandem_bench::guest`]).

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;
use tandem_bench::guest::counters::Counters;
use tandem_bench::guest::measure::Plan;
use tandem_bench::guest::row::Row;
use tandem_bench::guest::session::Session;
use tandem_bench::guest::{figures, page, program, row, tables, variant};
use tandem_demo::{host_facts, range};
use tandem_linux::interrupt::Interrupt;
use tandem_report::progress::Progress;

use tandem_command::console::{check_writable, print};
use tandem_command::number::time;
use tandem_command::output::save_json;

/// `tandem-lab bench guest`
#[derive(Debug, Args)]
pub struct GuestArgs {
    /// A program to run; may be repeated [default: all]; an unknown name lists them
    #[arg(long = "program", value_name = "NAME", value_delimiter = ',')]
    programs: Vec<String>,
    /// Pairs of runs of each program and variant, 1 … 1000; from 6 on, intervals cover 95 %
    #[arg(long, value_name = "N", default_value_t = 10)]
    runs: u32,
    /// Run the programs for one vCPU [default: the others]
    #[arg(long)]
    one_vcpu: bool,
    /// What to compare with stock: agent, taskset, haltpoll, slack, exhaustive (agent and all fixed settings)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "agent")]
    variants: Vec<String>,
    /// Seconds that a run takes, about, 1 … 60
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = time::<u32>("seconds"))]
    seconds: u32,
    /// Write the figures here, a list of {program, variant, ratio, ci_low, ci_high, runs, …}
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the figures that the JSON file has of other programs and variants
    #[arg(long, requires = "json")]
    add: bool,
    /// Write a page with charts, one file that opens offline
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Only list the programs, and what those lack that cannot run here
    #[arg(long)]
    list: bool,
    /// Where the agent keeps its journal [default: the agent's own]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl GuestArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        let runs = range::whole("--runs", self.runs, 1, 1000)?;
        let seconds = range::whole("--seconds", self.seconds, 1, 60)?;
        let vcpus = host_facts::usable_pcpus()?;
        let tandem = std::env::current_exe().context("cannot find the running program")?;
        let first = vcpus.iter().next();
        Ok(Plan {
            runs,
            seconds,
            variants: variant::list(&self.variants)?,
            vcpus: vcpus.len(),
            vcpu: first.context("this process may use no vCPU")?.0,
            tandem: tandem.display().to_string(),
            state_dir: self.state_dir.clone(),
        })
    }
}

/// Runs the bench.
pub fn main(args: &GuestArgs) -> anyhow::Result<()> {
    let programs = program::chosen(&args.programs, args.one_vcpu)?;
    if args.list {
        return print(&tables::list(&programs).to_string());
    }
    let plan = args.plan()?;
    for path in args.json.iter().chain(&args.html) {
        check_writable(path)?;
    }
    let older = match &args.json {
        Some(path) if args.add => figures::read(path)?,
        _ => Vec::new(),
    };
    let interrupt = Interrupt::watch()?;
    let mut session = Session::prepare(plan, programs, &interrupt)?;
    let progress = Progress::begin(session.steps());
    let rows = session.measure(older, args.json.as_deref(), &progress, &interrupt)?;
    drop(progress);
    finish(args, &session, &rows)
}

fn finish(args: &GuestArgs, session: &Session, rows: &[Row]) -> anyhow::Result<()> {
    let agreements = row::agreements(rows);
    let account = session.account();
    print(&tables::summary(rows, &agreements, account))?;
    if let Some(path) = &args.json {
        save_json(path, &rows)?;
    }
    if let Some(path) = &args.html {
        let text = page::html(rows, &agreements, account, session.plan());
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        note!("charts: {}", path.display());
    }
    let failures = account.failed.len();
    ensure!(failures == 0, "{failures} of the programs or variants that should run did not");
    Ok(())
}

/// `tandem-lab bench guest-counters`: the machine's counters, for the script that serves a database.
pub fn print_counters() -> anyhow::Result<()> {
    print(&serde_json::to_string(&Counters::read()?).context("cannot write JSON")?)
}
