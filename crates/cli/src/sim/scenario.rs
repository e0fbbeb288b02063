//! `tandem sim scenario`: a recorded host as a scenario ([`tandem_experiment::recorded`]).

use std::fs::File;
use std::io::ErrorKind;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::bail;
use clap::Args;
use tandem_experiment::execute;
use tandem_experiment::progress::Progress;
use tandem_experiment::recorded;
use tandem_experiment::recorded::Recorded;
use tandem_experiment::recorded::RecordedHost;
use tandem_experiment::recorded::Topology;
use tandem_host::span;
use tandem_observe::findings::KnownHost;
use tandem_observe::record::Record;
use tandem_report::simulation::beside_record;
use tandem_sim::Scenario;
use tandem_sim::World;
use tandem_sim::scenario::load;

use super::progress::Bar;
use crate::console::print;

/// `tandem sim scenario`
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
    /// Simulate the scenario, and print what each VM ran, waited and halted beside what was recorded
    #[arg(long)]
    check: bool,
}

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
    if file
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
    {
        bail!(
            "{} exists and is not overwritten: name another file for -o, or remove it first",
            args.output.display()
        );
    }
    file.with_context(|| format!("cannot write {}", args.output.display()))?;
    match args.check {
        true => check(&host, &load::read(&args.output)?),
        false => Ok(()),
    }
}

/// Runs the scenario once, as `tandem sim run` would, and prints it beside the record.
fn check(host: &RecordedHost, scenario: &Scenario) -> anyhow::Result<()> {
    let progress = Bar::new();
    progress.begin(scenario.duration);
    progress.say(&scenario.name);
    let results = execute::run(&mut World::new(scenario), scenario.duration, &progress)?;
    drop(progress);
    let table = beside_record::table(&recorded::beside(host, &results));
    print(&format!(
        "pCPUs, the vCPUs of a VM together; simulated for {} after {} of warm-up\n\n{table}",
        results.measured, scenario.warmup
    ))
}
