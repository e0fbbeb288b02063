//! From an order to a report: an experiment, a machine, a kernel.
//!
//! Variants that need other parameters at boot get a boot of their own; all others of a kernel run one
//! after the other in one boot, each for itself.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use thiserror::Error;

use crate::boot::{Boot, BootError};
use crate::emulator::{Answers, EmulatorError};
use crate::event::{Event, Tell};
use crate::experiment::{Experiment, ExperimentError};
use crate::file::FileError;
use crate::job::{Facts, Job, Outcome};
use crate::kernel::{KernelError, Kind};
use crate::machine::{Machine, MachineError};
use crate::payload::PayloadError;
use crate::report::{FORMAT, KernelReport, MachineReport, Report};
use crate::settings::SettingError;
use crate::{emulators, payload, settings};

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Order {
    /// Which experiment: a name of the lab's, or a TOML file.
    pub experiment: String,
    /// On which machine; none: the experiment's.
    pub machine: Option<String>,
    /// With which kernel: `stock`, `patched`, `small`, `debug`, or the path of a bzImage.
    pub kernel: String,
    /// Kernel parameters that every variant gets, as `MODULE.NAME=VALUE`.
    pub settings: Vec<String>,
    /// Only these variants; empty: all.
    pub variants: Vec<String>,
    /// Which seed the first run of each variant gets; 1 is the experiment as it is written.
    pub seed: u64,
    /// How often each variant is run, with one seed after the other.
    pub repeat: u64,
    /// Seconds of the machine that are counted; none: the experiment's.
    pub seconds: Option<f64>,
    /// Clock of the machine's pCPUs; none: the experiment's, or the machine's.
    pub mhz: Option<u32>,
    /// Whether pause-loop exits are traced even if the experiment does not ask for it.
    pub trace: bool,
    /// Whether a machine may be saved after its boot, and restored.
    pub snapshots: bool,
    /// How long a boot with its runs may take on this host.
    pub patience: Duration,
    /// Where the lab is.
    pub lab: PathBuf,
    /// An initramfs that is built already.
    pub initramfs: Option<PathBuf>,
    /// Where logs and the machine's files are kept; none: in a temporary folder, removed after.
    pub work: Option<PathBuf>,
}

/// Why an order gave no report.
#[derive(Debug, Error)]
pub enum RunError {
    /// There is no such experiment, or it cannot be.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// There is no such machine, or it cannot be.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The experiment has no such variant.
    #[error("experiment {experiment} has no variant '{variant}'; it has {known}")]
    Variant {
        /// Which experiment.
        experiment: String,
        /// What was asked for.
        variant: String,
        /// What there is.
        known: String,
    },
    /// So long cannot be counted.
    #[error("--seconds {0} is no time to run; give a number above 0, up to 3600")]
    Seconds(f64),
    /// So fast cannot be emulated.
    #[error("{asked} MHz is no clock (the machine's own is {own}); give 50 to 10000")]
    Clock {
        /// What was asked for.
        asked: u32,
        /// What the machine's description says.
        own: u32,
    },
    /// The machine's time is that of the host.
    #[error("machine {0} has no clock of its own: --mhz is for bochs")]
    NoClock(String),
    /// Not a parameter of a kernel.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The machine cannot run here.
    #[error(transparent)]
    Emulator(#[from] EmulatorError),
    /// The lab's full path cannot be found out.
    #[error("cannot resolve the lab's folder: {0}")]
    Lab(#[source] io::Error),
    /// The full path of the folder for logs cannot.
    #[error("cannot resolve a folder: {0}")]
    Work(#[source] io::Error),
    /// There is no kernel to boot.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// There is no initramfs.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// A folder cannot be made.
    #[error(transparent)]
    File(#[from] FileError),
    /// A boot did not bring all answers.
    #[error(transparent)]
    Boot(#[from] BootError),
}

/// Carries out an order. What failed within the machine is in the report.
pub fn run(order: &Order, tell: Tell) -> Result<Report, RunError> {
    let (experiment, machine_name, machine) = what(order)?;
    let kind = Kind::parse(&order.kernel);
    let settings = order.settings.iter().map(|text| settings::parse(text));
    let settings = settings.collect::<Result<Vec<_>, _>>()?;
    let seeds = order.seed..=order.seed + (order.repeat - 1);
    let plan = experiment.plan(&kind, &settings, seeds);
    for variant in &plan.passed_over {
        tell(Event::PassedOver { variant: variant.clone() });
    }
    emulators::check(&machine)?;
    let lab = std::path::absolute(&order.lab).map_err(RunError::Lab)?;
    // The repository: the lab is research/lab.
    let top = lab.ancestors().nth(2).unwrap_or(Path::new("/"));
    let kernel = kind.image(top, tell)?;
    let payload = payload::initramfs(top, order.initramfs.as_deref())?;
    let work = Work::at(order.work.as_deref())?;
    let mut all = Vec::new();
    for (number, (parameters, runs)) in plan.boots.iter().enumerate() {
        let folder = work.path.join(format!("boot-{number}"));
        fs::create_dir_all(&folder).map_err(FileError::of("make", &folder))?;
        let once = runs.len().div_ceil(order.repeat as usize);
        tell(Event::Running {
            machine: machine_name.clone(),
            kernel: kind.to_string(),
            variants: runs.iter().take(once).map(|run| run.variant.clone()).collect(),
            seeds: order.repeat,
        });
        let boot = Boot {
            lab: &lab,
            kernel: &kernel,
            payload: &payload,
            parameters,
            job: &Job { runs: runs.clone(), calibration: None },
            work: &folder,
            patience: order.patience,
            snapshots: order.snapshots,
            tell,
        };
        let answers = emulators::run(&machine, &boot)?;
        tell(Event::Done { host_seconds: answers.host_seconds });
        all.push(answers);
    }
    Ok(report(order, &experiment, machine_name, &machine, &kind, all, plan.passed_over))
}

fn what(order: &Order) -> Result<(Experiment, String, Machine), RunError> {
    let mut experiment = Experiment::read(&order.lab, &order.experiment)?;
    if !order.variants.is_empty() {
        let all = std::mem::take(&mut experiment.variants);
        let names: Vec<String> = all.iter().map(|variant| variant.name.clone()).collect();
        if let Some(unknown) = order.variants.iter().find(|name| !names.contains(name)) {
            return Err(RunError::Variant {
                experiment: order.experiment.clone(),
                variant: unknown.clone(),
                known: names.join(", "),
            });
        }
        experiment.variants =
            all.into_iter().filter(|variant| order.variants.contains(&variant.name)).collect();
    }
    if let Some(seconds) = order.seconds {
        if !(seconds > 0.0 && seconds <= 3600.0) {
            return Err(RunError::Seconds(seconds));
        }
        experiment.seconds = seconds;
    }
    experiment.trace |= order.trace;
    let name = order.machine.clone().unwrap_or(experiment.machine.clone());
    let mut machine = Machine::read(&order.lab, &name)?;
    if let (Some(own), Some(asked)) = (machine.mhz, order.mhz.or(experiment.mhz)) {
        if !(50..=10_000).contains(&asked) {
            return Err(RunError::Clock { asked, own });
        }
        machine.mhz = Some(asked);
    }
    if order.mhz.is_some() && machine.mhz.is_none() {
        return Err(RunError::NoClock(name));
    }
    Ok((experiment, name, machine))
}

/// A folder for a run's files.
struct Work {
    path: PathBuf,
    temporary: bool,
}

impl Work {
    fn at(given: Option<&Path>) -> Result<Work, RunError> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => std::env::temp_dir().join(format!("tandem-lab-{}", std::process::id())),
        };
        fs::create_dir_all(&path).map_err(FileError::of("make", &path))?;
        Ok(Work {
            path: std::path::absolute(&path).map_err(RunError::Work)?,
            temporary: given.is_none(),
        })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.temporary {
            // What is left is in the temporary folder.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn report(
    order: &Order,
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
        experiment: order.experiment.clone(),
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
        kernel: KernelReport { asked: kind.to_string(), release: facts.map(|facts| facts.release) },
        seconds: experiment.seconds,
        warm_up: experiment.warm_up,
        seed: order.seed,
        repeat: order.repeat,
        runs,
        failed,
        passed_over,
        host_seconds,
    }
}
