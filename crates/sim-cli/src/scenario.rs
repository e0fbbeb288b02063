//! `tandem-sim scenario`: a recorded host as a scenario ([`tandem_observe::recorded`]).

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use tandem_experiment::execute;
use tandem_experiment::progress::Progress;
use tandem_observe::findings::KnownHost;
use tandem_observe::record::Record;
use tandem_observe::recorded::{Recorded, RecordedHost, Topology};
use tandem_observe::span;
use tandem_sim::scenario::load;
use tandem_sim::{Scenario, World};
use tandem_sim_report::beside_record;

use crate::progress::Bar;
use tandem_command::console::print;

/// `tandem-sim scenario`
#[derive(Debug, Args)]
pub struct ScenarioFromArgs {
    /// The record: the folder that tandem host record wrote
    #[arg(long, value_name = "FOLDER")]
    from: PathBuf,
    /// The interval of this time, or from one time to another, such as +90s, or +60s..-10m [default: all of the record]
    #[arg(long, visible_alias = "range", value_name = "TIME[..TIME]", value_parser = span::span, allow_hyphen_values = true)]
    at: Option<span::Span>,
    /// The scenario: a TOML file that is not there yet
    #[arg(short, long, value_name = "FILE.toml")]
    output: PathBuf,
    /// Simulate the scenario, and compare each VM's running, waiting and halted time with the recording
    #[arg(long)]
    check: bool,
}

/// Writes the scenario; with `--check`, also simulates it.
pub fn main(args: &ScenarioFromArgs) -> anyhow::Result<()> {
    let (record, mut recorded) = (Record::open(&args.from)?, Recorded::new());
    record.read(args.at.unwrap_or_default().of(&record)?, |_, frame| {
        let vms = frame.vms.iter();
        vms.for_each(|(vm, known)| recorded.name(*vm, &known.name, known.weight));
        if let Some(KnownHost { caches, cores, .. }) = frame.host {
            recorded.topology(Topology { caches, cores });
        }
        recorded.add(&frame.interval);
        anyhow::Ok(())
    })?;
    let host = recorded.host(&args.from.to_string_lossy())?;
    let text = host.toml();
    let file = File::create_new(&args.output).and_then(|mut file| file.write_all(text.as_bytes()));
    if file.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
        bail!(
            "{} exists and is not overwritten: name another file for -o, or remove it first",
            args.output.display()
        );
    }
    file.with_context(|| format!("cannot write {}", args.output.display()))?;
    if args.check { check(&host, &load::read(&args.output)?) } else { Ok(()) }
}

/// Runs the scenario once, like `tandem-sim run`, and prints its figures next to those of the record.
fn check(host: &RecordedHost, scenario: &Scenario) -> anyhow::Result<()> {
    let progress = Bar::new();
    progress.begin(scenario.duration);
    progress.say(&scenario.name);
    let results = execute::run(&mut World::new(scenario), scenario.duration, &progress)?;
    drop(progress);
    let table = beside_record::table(&tandem_experiment::beside_record::compare(host, &results));
    print(&format!(
        "pCPUs, the vCPUs of a VM together; simulated for {} after {} of warm-up\n\n{table}",
        results.measured, scenario.warmup
    ))
}
