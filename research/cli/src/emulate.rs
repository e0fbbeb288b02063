//! `tandem-lab emulate`: experiments in emulated machines.
//!
//! Arguments and printing; the rest is in [`tandem_emulated`].

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use tandem_emulated::event::Event;
use tandem_emulated::experiment::Experiment;
use tandem_emulated::machine::Machine;
use tandem_emulated::run::Order;
use tandem_emulated::{agent, emulators, experiment, machine, run, tables};
use tandem_report::table::{Look, Table};

use tandem_command::console::print;
use tandem_command::number::time;
use tandem_command::output::{check_json, is_stdout, write_json};

/// `tandem-lab emulate …`
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Run an experiment on an emulated machine, with a kernel of your choice
    Run(Box<RunArgs>),
    /// List the experiments and the machines
    List(ListArgs),
    /// Inside a machine: run a job and print its results
    #[command(hide = true)]
    Guest(GuestArgs),
}

/// `tandem-lab emulate run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Which experiment: a name of `tandem-lab emulate list`, or a TOML file
    experiment: String,
    /// On which machine [default: the experiment's]
    #[arg(long)]
    machine: Option<String>,
    /// With which kernel: stock, patched, small, debug (built by kernel/build), or the path of a bzImage
    #[arg(long, default_value = "stock")]
    kernel: String,
    /// Set a kernel parameter in every variant, such as kvm.aple=1; may be repeated
    #[arg(long = "set", value_name = "MODULE.NAME=VALUE")]
    settings: Vec<String>,
    /// Run only this variant; may be repeated
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// Which seed the first run of each variant gets; 1 is the experiment as it is written
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seeds())]
    seed: u64,
    /// Run each variant so often, with one seed after the other; the table then has means with their
    /// 95 % intervals
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seeds())]
    repeat: u64,
    /// Seconds of the machine that are counted [default: the experiment's]
    #[arg(long, value_parser = time::<f64>("seconds"))]
    seconds: Option<f64>,
    /// Clock of the machine's pCPUs in MHz (bochs) [default: the experiment's, or the machine's]
    #[arg(long)]
    mhz: Option<u32>,
    /// Trace pause-loop exits, for what each costs
    #[arg(long)]
    trace: bool,
    /// Write all figures as JSON; without PATH to standard output, in place of the tables
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Boot every time, instead of once for the first run (bochs)
    #[arg(long)]
    no_snapshot: bool,
    /// Seconds of this host that a boot with its runs may take
    #[arg(long, default_value_t = 3600)]
    patience: u64,
    /// Where the lab is
    #[arg(long, value_name = "FOLDER", default_value = "research/lab")]
    lab: PathBuf,
    /// An initramfs that is built already [default: built by research/lab/initramfs/build]
    #[arg(long, value_name = "FILE")]
    initramfs: Option<PathBuf>,
    /// Keep logs and the machine's files here [default: a temporary folder, removed after]
    #[arg(long, value_name = "FOLDER")]
    work: Option<PathBuf>,
}

/// `tandem-lab emulate list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Where the lab is
    #[arg(long, value_name = "FOLDER", default_value = "research/lab")]
    lab: PathBuf,
}

/// `tandem-lab emulate guest`
#[derive(Debug, Args)]
pub struct GuestArgs {
    /// File of the job [default: wait for it in memory]
    #[arg(long)]
    job: Option<PathBuf>,
    /// File for the answers: a serial port
    #[arg(long)]
    answers: PathBuf,
}

fn seeds() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=1_000_000)
}

/// Runs the command.
pub fn main(command: LabCommand) -> anyhow::Result<()> {
    match command {
        LabCommand::Run(args) => run(*args),
        LabCommand::List(args) => list(&args),
        LabCommand::Guest(args) => Ok(agent::run(args.job.as_deref(), &args.answers)?),
    }
}

fn run(args: RunArgs) -> anyhow::Result<()> {
    check_json(args.json.as_deref())?;
    let order = Order {
        experiment: args.experiment,
        machine: args.machine,
        kernel: args.kernel,
        settings: args.settings,
        variants: args.variants,
        seed: args.seed,
        repeat: args.repeat,
        seconds: args.seconds,
        mhz: args.mhz,
        trace: args.trace,
        snapshots: !args.no_snapshot,
        patience: Duration::from_secs(args.patience),
        lab: args.lab,
        initramfs: args.initramfs,
        work: args.work,
    };
    let report = run::run(&order, &|event: Event| note!("lab: {event}"))?;
    write_json(args.json.as_deref(), &report)?;
    if !is_stdout(args.json.as_deref()) {
        print(&tables::text(&report, look()))?;
    }
    Ok(report.verdict()?)
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let mut experiments = Table::new(&["experiment", "machine", "variants", "description"]);
    for name in experiment::names(&args.lab)? {
        let experiment = Experiment::read(&args.lab, &name)?;
        experiments.row(vec![
            name,
            experiment.machine,
            experiment.variants.len().to_string(),
            experiment.title,
        ]);
    }
    let mut machines = Table::new(&["machine", "pCPUs", "MHz", "description", "can run here"]);
    for name in machine::names(&args.lab)? {
        let machine = Machine::read(&args.lab, &name)?;
        machines.row(vec![
            name,
            machine.pcpus.to_string(),
            machine.mhz.map_or_else(|| "the host's".to_owned(), |mhz| mhz.to_string()),
            machine.title.clone(),
            match emulators::check(&machine) {
                Ok(()) => "yes".to_owned(),
                Err(error) => error.to_string(),
            },
        ]);
    }
    print(&format!("{}\n{}", experiments.text(look()), machines.text(look())))
}

/// Returns the look of tables on standard output.
fn look() -> Look {
    Look::of(std::io::stdout().is_terminal())
}
