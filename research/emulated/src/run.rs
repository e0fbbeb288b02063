//! Runs an order (an experiment, a machine, a kernel) and returns a report.
//!
//! Variants with different boot parameters get separate boots.
//! All other variants run one after the other in one boot.

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

/// An order to run an experiment.
#[derive(Clone, Debug)]
pub struct Order {
    /// The experiment: a name in the lab, or a TOML file.
    pub experiment: String,
    /// The machine; `None`: the experiment's.
    pub machine: Option<String>,
    /// The kernel: `stock`, `patched`, `small`, `debug`, or the path of a bzImage.
    pub kernel: String,
    /// Kernel parameters for every variant, as `MODULE.NAME=VALUE`.
    pub settings: Vec<String>,
    /// Variants to run; empty: all.
    pub variants: Vec<String>,
    /// Seed of the first run of each variant; 1 is the unchanged experiment.
    pub seed: u64,
    /// Number of runs of each variant, with consecutive seeds.
    pub repeat: u64,
    /// Measured seconds of the machine; `None`: the experiment's.
    pub seconds: Option<f64>,
    /// Clock of the machine's pCPUs in MHz; `None`: the experiment's, or the machine's.
    pub mhz: Option<u32>,
    /// Whether to trace pause-loop exits even if the experiment does not.
    pub trace: bool,
    /// Whether snapshots may be used.
    pub snapshots: bool,
    /// Maximum time of a boot with its runs on this host.
    pub patience: Duration,
    /// Folder of the lab.
    pub lab: PathBuf,
    /// Path of a prebuilt initramfs.
    pub initramfs: Option<PathBuf>,
    /// Folder for logs and the machine's files; `None`: a temporary folder, removed at the end.
    pub work: Option<PathBuf>,
}

/// Error of an order.
#[derive(Debug, Error)]
pub enum RunError {
    /// The experiment is unknown or invalid.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// The machine is unknown or invalid.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The experiment has no such variant.
    #[error("experiment {experiment} has no variant '{variant}'; it has {known}")]
    Variant {
        /// Name of the experiment.
        experiment: String,
        /// The requested variant.
        variant: String,
        /// Known variants.
        known: String,
    },
    /// The time is out of range.
    #[error("--seconds {0} is no time to run; give a number above 0, up to 3600")]
    Seconds(f64),
    /// The clock is out of range.
    #[error("{asked} MHz is no clock (the machine's own is {own}); give 50 to 10000")]
    Clock {
        /// The requested clock.
        asked: u32,
        /// The clock in the machine's description.
        own: u32,
    },
    /// The machine has no clock of its own.
    #[error("machine {0} has no clock of its own: --mhz is for bochs")]
    NoClock(String),
    /// A kernel parameter is invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// This host cannot run the machine.
    #[error(transparent)]
    Emulator(#[from] EmulatorError),
    /// Resolving the lab's path failed.
    #[error("cannot resolve the lab's folder: {0}")]
    Lab(#[source] io::Error),
    /// Resolving the path of the folder for logs failed.
    #[error("cannot resolve a folder: {0}")]
    Work(#[source] io::Error),
    /// Building or finding the kernel failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Building or finding the initramfs failed.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// Creating a folder failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A boot failed.
    #[error(transparent)]
    Boot(#[from] BootError),
}

/// Runs an order. The report contains failures within the machine.
pub fn run(order: &Order, tell: Tell) -> Result<Report, RunError> {
    let (experiment, machine_name, machine) = resolve(order)?;
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

fn resolve(order: &Order) -> Result<(Experiment, String, Machine), RunError> {
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
            // On an error the files remain in the temporary folder.
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
