//! `tandem lab run`: an experiment, a machine, a kernel; out come tables and JSON.
//!
//! Variants that need other parameters at boot get a boot of their own; all others of a kernel run one
//! after the other in one boot, each for itself.

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde::Serialize;

use super::emulator::Answers;
use super::experiment::Experiment;
use super::job::Facts;
use super::job::Failed;
use super::job::Job;
use super::job::Outcome;
use super::kernel::Kind;
use super::machine::Boot;
use super::machine::Machine;
use super::payload;
use super::settings;
use super::tables;
use crate::console::print;
use crate::output::check_json;
use crate::output::is_stdout;
use crate::output::write_json;

/// Version of the report.
const FORMAT: &str = "tandem-lab/1";

/// `tandem lab run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Which experiment: a name of `tandem lab list`, or a TOML file
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
    #[arg(long)]
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
    #[arg(long, value_name = "FOLDER", default_value = "lab")]
    lab: PathBuf,
    /// An initramfs that is built already [default: built by lab/initramfs/build]
    #[arg(long, value_name = "FILE")]
    initramfs: Option<PathBuf>,
    /// Keep logs and the machine's files here [default: a temporary folder, removed after]
    #[arg(long, value_name = "FOLDER")]
    work: Option<PathBuf>,
}

fn seeds() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=1_000_000)
}

/// What is written as JSON.
#[derive(Debug, Serialize)]
pub struct Report {
    format: &'static str,
    /// Which experiment.
    pub experiment: String,
    title: String,
    question: String,
    /// The machine.
    pub machine: MachineReport,
    /// The kernel.
    pub kernel: KernelReport,
    seconds: f64,
    warm_up: f64,
    seed: u64,
    /// How often each variant was run.
    pub repeat: u64,
    /// What came out, by seed and then in the experiment's order.
    pub runs: Vec<Outcome>,
    /// What failed.
    pub failed: Vec<Failed>,
    /// Variants that this kernel cannot serve.
    pub passed_over: Vec<String>,
    /// Seconds of the host in all.
    pub host_seconds: f64,
}

/// The machine, in a report.
#[derive(Debug, Serialize)]
pub struct MachineReport {
    /// Its name.
    pub name: String,
    title: String,
    /// Its pCPUs.
    pub pcpus: u32,
    /// The clock it was given, where it has one.
    pub mhz: Option<u32>,
    /// What its kernel found the TSC to be.
    pub tsc_khz: Option<u64>,
    /// KVM's module in it.
    pub kvm: Option<String>,
    /// Boots that were restored instead.
    pub restored: usize,
    /// Boots in all.
    pub boots: usize,
}

/// The kernel, in a report.
#[derive(Debug, Serialize)]
pub struct KernelReport {
    /// As asked for.
    pub asked: String,
    /// As it names itself.
    pub release: Option<String>,
}

/// Runs it.
pub fn main(args: &RunArgs) -> anyhow::Result<()> {
    check_json(args.json.as_deref())?;
    let (experiment, machine_name, machine) = what(args)?;
    let kind = Kind::parse(&args.kernel);
    let settings = args.settings.iter().map(|text| settings::parse(text));
    let settings = settings.collect::<anyhow::Result<Vec<_>>>()?;
    let seeds = args.seed..=args.seed + (args.repeat - 1);
    let plan = experiment.plan(&kind, &settings, seeds);
    for name in &plan.passed_over {
        eprintln!("lab: variant '{name}' needs the patched kernel: passed over");
    }
    machine.check()?;
    let lab = std::path::absolute(&args.lab).context("cannot resolve the lab's folder")?;
    let top = lab.parent().unwrap_or(Path::new("/"));
    let kernel = kind.image(top)?;
    let payload = payload::initramfs(top, args.initramfs.as_deref())?;
    let work = Work::at(args.work.as_deref())?;
    let mut all = Vec::new();
    for (number, (parameters, runs)) in plan.boots.iter().enumerate() {
        let folder = work.path.join(format!("boot-{number}"));
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let mut names: Vec<&str> = runs.iter().map(|run| run.variant.as_str()).collect();
        names.truncate(runs.len().div_ceil(args.repeat as usize));
        let times = match args.repeat {
            1 => String::new(),
            repeat => format!(", each with {repeat} seeds"),
        };
        eprintln!("lab: {machine_name}, {kind}: {}{times}", names.join(", "));
        let answers = machine.run(&Boot {
            lab: &lab,
            kernel: &kernel,
            payload: &payload,
            parameters,
            job: &Job {
                runs: runs.clone(),
                calibration: None,
            },
            work: &folder,
            patience: Duration::from_secs(args.patience),
            snapshots: !args.no_snapshot,
        })?;
        eprintln!("lab: {:.0} s of this host", answers.host_seconds);
        all.push(answers);
    }
    let report = report(
        args,
        &experiment,
        machine_name,
        &machine,
        &kind,
        all,
        plan.passed_over,
    );
    write_json(args.json.as_deref(), &report)?;
    if !is_stdout(args.json.as_deref()) {
        print(&tables::text(&report))?;
    }
    verdict(&report)
}

fn what(args: &RunArgs) -> anyhow::Result<(Experiment, String, Machine)> {
    let mut experiment = Experiment::read(&args.lab, &args.experiment)?;
    if !args.variants.is_empty() {
        let all = std::mem::take(&mut experiment.variants);
        let names: Vec<String> = all.iter().map(|variant| variant.name.clone()).collect();
        if let Some(unknown) = args.variants.iter().find(|name| !names.contains(name)) {
            bail!(
                "experiment {} has no variant '{unknown}'; it has {}",
                args.experiment,
                names.join(", ")
            );
        }
        experiment.variants = all
            .into_iter()
            .filter(|variant| args.variants.contains(&variant.name))
            .collect();
    }
    if let Some(seconds) = args.seconds {
        if !(seconds > 0.0 && seconds <= 3600.0) {
            bail!("--seconds {seconds} is no time to run; give a number above 0, up to 3600");
        }
        experiment.seconds = seconds;
    }
    experiment.trace |= args.trace;
    let name = args.machine.clone().unwrap_or(experiment.machine.clone());
    let mut machine = Machine::read(&args.lab, &name)?;
    if let (Some(own), Some(asked)) = (machine.mhz, args.mhz.or(experiment.mhz)) {
        if !(50..=10_000).contains(&asked) {
            bail!("{asked} MHz is no clock (the machine's own is {own}); give 50 to 10000");
        }
        machine.mhz = Some(asked);
    }
    if args.mhz.is_some() && machine.mhz.is_none() {
        bail!("machine {name} has no clock of its own: --mhz is for bochs");
    }
    Ok((experiment, name, machine))
}

/// A folder for a run's files.
struct Work {
    path: PathBuf,
    temporary: bool,
}

impl Work {
    fn at(given: Option<&Path>) -> anyhow::Result<Work> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => std::env::temp_dir().join(format!("tandem-lab-{}", std::process::id())),
        };
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Work {
            path: std::path::absolute(&path).context("cannot resolve a folder")?,
            temporary: given.is_none(),
        })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.temporary {
            // What is left is in the temporary folder.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn report(
    args: &RunArgs,
    experiment: &Experiment,
    name: String,
    machine: &Machine,
    kind: &Kind,
    all: Vec<Answers>,
    passed_over: Vec<String>,
) -> Report {
    let facts: Option<Facts> = all.iter().find_map(|answers| answers.facts.clone());
    let boots = all.len();
    let restored = all.iter().filter(|answers| answers.restored).count();
    let host_seconds = all.iter().map(|answers| answers.host_seconds).sum();
    let (mut runs, mut failed) = (Vec::new(), Vec::new());
    for answers in all {
        runs.extend(answers.outcomes);
        failed.extend(answers.failed);
    }
    let place = |name: &str| experiment.variants.iter().position(|v| v.name == name);
    runs.sort_by_key(|run: &Outcome| (run.seed, place(&run.variant)));
    Report {
        format: FORMAT,
        experiment: args.experiment.clone(),
        title: experiment.title.clone(),
        question: experiment.question.clone(),
        machine: MachineReport {
            name,
            title: machine.title.clone(),
            pcpus: facts.as_ref().map_or(machine.pcpus, |facts| facts.pcpus),
            mhz: machine.mhz,
            tsc_khz: facts.as_ref().map(|facts| facts.tsc_khz),
            kvm: facts.as_ref().map(|facts| facts.kvm.clone()),
            restored,
            boots,
        },
        kernel: KernelReport {
            asked: kind.to_string(),
            release: facts.map(|facts| facts.release),
        },
        seconds: experiment.seconds,
        warm_up: experiment.warm_up,
        seed: args.seed,
        repeat: args.repeat,
        runs,
        failed,
        passed_over,
        host_seconds,
    }
}

/// An error if something failed: what did not is in the report all the same.
fn verdict(report: &Report) -> anyhow::Result<()> {
    if let Some(failed) = report.failed.first() {
        let whose = failed.variant.as_deref().unwrap_or("the job");
        bail!(
            "{} of the runs failed; the first: {whose}: {}",
            report.failed.len(),
            failed.error
        );
    }
    let broken: u64 = report
        .runs
        .iter()
        .flat_map(|run| &run.vms)
        .map(|vm| vm.violations)
        .sum();
    if broken > 0 {
        bail!("the workloads saw {broken} broken invariants: a bug of Tandem or of that kernel");
    }
    if report.runs.is_empty() {
        bail!("no variant of {} runs with this kernel", report.experiment);
    }
    Ok(())
}
