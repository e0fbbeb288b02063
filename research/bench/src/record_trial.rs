//! Validates simulations of recorded programs: compares predicted with measured throughput in other settings.
//!
//! Each program is recorded once, alone on two CPUs, as `tandem guest record` does.
//! Its scenario is simulated in the recorded setting and in three others: on one vCPU, with a computing VM of the same weight, and both.
//! The program itself runs in the same four settings.
//! The trial compares throughput relative to the recorded setting.
//! The baseline is a naive prediction: half the throughput on half of the CPUs, and half with a hog.
//!
//! The guests here have no operating system, so cgroups stand for VMs:
//!
//! - the program's cgroup for its VM;
//! - the CPUs to which its threads are bound (`taskset`) for the vCPUs;
//! - a program that computes on each of these CPUs, in a cgroup of the same weight, for the other VM.
//!
//! This lacks exits, a guest scheduler, and vCPU preemption that the guest does not see.
//!
//! It needs root, for cgroups and tracing, and an otherwise idle machine; the figures contain the load average before and after.

mod figures;
mod place;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tandem_guest::record;
use tandem_guest::record::RecordError;
use tandem_guest::workload::Target;
use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::cgroup::CgroupError;
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_linux::thread::{Pid, ThreadError, ThreadRef};
use tandem_linux::{ProcFs, cgroup};
use tandem_model::application::Profile;
use tandem_model::{Nanos, PcpuId};
use tandem_observe::recorded::application;
use tandem_observe::recorded::application::Setting as Simulated;
use tandem_report::progress::Progress;
use tandem_sim::scenario::load;
use tandem_sim::scenario::load::LoadError;
use tandem_sim::{Scenario, World};
use tandem_validate::this_kernel;
use tandem_validate::this_kernel::UnknownRelease;
use thiserror::Error;

pub use figures::{Answer, Done, RecordTrial, Row, TOLERANCE, text};
pub use place::{PLACES, Place};

use place::{CPUS, RECORDED};

use crate::guest::folder::{Folder, FolderError};
use crate::guest::inputs::InputsError;
use crate::guest::process::RunError;
use crate::guest::program::{Load, Setting};
use crate::guest::{inputs, process, program};
use tandem_demo::host_facts;
use tandem_demo::put_back::{PutBackError, complete};
use tandem_demo::state_dir::{StateDir, StateDirError};

/// The programs and their names.
pub const PROGRAMS: [(&str, Load); 8] = [
    ("sysbench-cpu", Load::SysbenchCpu),
    ("sysbench-threads", Load::SysbenchThreads),
    ("sysbench-mutex", Load::SysbenchMutex { threads: 2 }),
    ("hackbench-pipes", Load::Hackbench { pipes: true }),
    ("sched-pipe", Load::Pipe { threads: false }),
    ("pbzip2", Load::Pbzip2),
    ("stress-futex", Load::StressFutex),
    ("make", Load::Make),
];

/// Seeds of each simulation.
const SEEDS: u64 = 3;

/// Minimum length of a sizing run, as a fraction of the requested time.
const ENOUGH: f64 = 0.3;

/// A run times out after this multiple of the requested time, and a minute.
const TIMEOUT_FACTOR: u64 = 20;

/// Settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Runs of each program in each setting.
    pub rounds: u32,
    /// Approximate length of the recording and of a run in the recorded setting.
    pub seconds: u32,
    /// Names of programs; empty: all.
    pub programs: Vec<String>,
    /// Program that computes forever on CPUs A, B, … when it is run with `hog A B …`.
    pub hog: PathBuf,
    /// Directory of the cgroups' journal.
    pub state_dir: PathBuf,
    /// Folder in which scenarios are kept for inspection, if any.
    pub keep: Option<PathBuf>,
}

/// Error that ends the measurement.
#[derive(Debug, Error)]
pub enum TrialError {
    /// Too few rounds or seconds.
    #[error("{rounds} rounds of {seconds} s are not possible: at least 1 round of at least 2 s")]
    Settings {
        /// Number of rounds.
        rounds: u32,
        /// Seconds of a round.
        seconds: u32,
    },
    /// Unknown name of a program.
    #[error("'{0}' is no program of the trial; they are {known}", known = PROGRAMS.map(|(name, _)| name).join(", "))]
    NoProgram(String),
    /// Too few CPUs.
    #[error("the trial needs 2 CPUs; this process may use {0}")]
    Cpus(usize),
    /// Reading the usable CPUs failed.
    #[error(transparent)]
    Pcpus(#[from] host_facts::PcpusError),
    /// The scheduler of this kernel is unknown.
    #[error(transparent)]
    Release(#[from] UnknownRelease),
    /// Interrupted by a signal.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// Opening the state directory failed.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// Reading the cgroups of this host failed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Creating the cgroups failed.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// Removing the cgroups failed.
    #[error(transparent)]
    PutBack(#[from] PutBackError),
    /// Reading this process failed.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// Creating the temporary folder failed.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Error that skips a program.
#[derive(Debug, Error)]
enum ProgramError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Inputs(#[from] InputsError),
    #[error("it ended with {0}: {1}")]
    Failed(std::process::ExitStatus, String),
    #[error("no figure in its output: {0}")]
    NoFigure(String),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("{0}")]
    Hog(String),
    #[error("in the simulator nothing gets done")]
    NoWork,
}

/// The two cgroups, of equal weight.
struct Groups {
    actuator: Actuator,
    program: PathBuf,
    hog: PathBuf,
}

impl Groups {
    fn make(state_dir: &Path) -> Result<Groups, TrialError> {
        let procfs = ProcFs::host();
        let (_, mount) = cgroup::mounts::find(&procfs, "cpu")?;
        let controller = cgroup::open(&procfs)?;
        let me = ThreadRef::of_process(&procfs, Pid(std::process::id()))?;
        let parent = controller.cgroup_of(&me)?;
        let (mut actuator, _) = Actuator::open(controller, state_dir)?;
        let mut make = |name: &str| -> Result<PathBuf, TrialError> {
            let name = format!("tandem-trial-{name}-{}", std::process::id());
            let group = actuator.create_group(&parent, &name)?;
            Ok(mount.join(group.0.trim_start_matches('/')).join("cgroup.procs"))
        };
        let (program, hog) = (make("program")?, make("hog")?);
        Ok(Groups { actuator, program, hog })
    }

    fn leave(mut self) -> Result<(), TrialError> {
        Ok(complete(&self.actuator.restore())?)
    }
}

/// Wraps a command to run in a cgroup, bound to these CPUs. `quiet` discards its output.
fn wrapped(argv: &[String], entrance: &Path, cpus: &[PcpuId], quiet: bool) -> Vec<String> {
    let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    let enter = if quiet {
        "echo $$ >\"$0\" && exec taskset -c \"$@\" >/dev/null 2>&1"
    } else {
        "echo $$ >\"$0\" && exec taskset -c \"$@\""
    };
    let before = ["sh", "-c", enter, &entrance.to_string_lossy(), &cpus.join(",")];
    before.into_iter().map(str::to_owned).chain(argv.iter().cloned()).collect()
}

/// A hog, killed on drop.
struct Hog(Child);

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Stage<'a> {
    settings: &'a Settings,
    cpus: Vec<PcpuId>,
    groups: &'a Groups,
    folder: &'a Path,
    scheduler: &'static str,
    interrupt: &'a Interrupt,
}

/// Measures all programs.
pub fn measure(
    settings: &Settings,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<RecordTrial, TrialError> {
    if settings.rounds == 0 || settings.seconds < 2 {
        return Err(TrialError::Settings { rounds: settings.rounds, seconds: settings.seconds });
    }
    let programs = chosen(&settings.programs)?;
    let cpus: Vec<PcpuId> = host_facts::usable_pcpus()?.iter().take(CPUS).collect();
    if cpus.len() < CPUS {
        return Err(TrialError::Cpus(cpus.len()));
    }
    let host = host_facts::read();
    let scheduler = this_kernel::scheduler(&host.kernel)?;
    let folder = Folder::new()?;
    let dir = StateDir::open(&settings.state_dir)?;
    let mut trial = RecordTrial::new(host, scheduler, settings.rounds, settings.seconds);
    trial.load_before = this_kernel::load_average();
    let groups = Groups::make(&dir.groups())?;
    let stage =
        Stage { settings, cpus, groups: &groups, folder: folder.path(), scheduler, interrupt };
    let outcome = stage.all(&programs, &mut trial, progress);
    groups.leave()?;
    dir.finish();
    outcome?;
    trial.load_after = this_kernel::load_average();
    trial.count();
    Ok(trial)
}

fn chosen(names: &[String]) -> Result<Vec<(&'static str, Load)>, TrialError> {
    if names.is_empty() {
        return Ok(PROGRAMS.to_vec());
    }
    let find = |name: &String| {
        let found = PROGRAMS.iter().find(|(known, _)| known == name);
        found.copied().ok_or_else(|| TrialError::NoProgram(name.clone()))
    };
    names.iter().map(find).collect()
}

impl Stage<'_> {
    /// Measures these programs; skips a program that fails.
    fn all(
        &self,
        programs: &[(&'static str, Load)],
        trial: &mut RecordTrial,
        progress: &Progress,
    ) -> Result<(), Interrupted> {
        for &(name, load) in programs {
            progress.say(name);
            match program::missing(load, program::present) {
                Some(why) => trial.skip(name, why),
                None => match self.program(name, load) {
                    Ok(row) => trial.rows.push(row),
                    Err(error) => trial.skip(name, tandem_report::explain(&error)),
                },
            }
            self.interrupt.check()?;
            progress.step();
        }
        Ok(())
    }

    fn program(&self, name: &'static str, load: Load) -> Result<Row, ProgramError> {
        if load == Load::Make {
            inputs::write_program(&self.folder.join("program"))?;
        }
        let count = self.size(load)?;
        let profile = self.record(name, load, count)?;
        let mut runs = vec![Vec::new(); 1 + PLACES.len()];
        let mut places: Vec<(usize, Place)> =
            [RECORDED].into_iter().chain(PLACES).enumerate().collect();
        for _ in 0..self.settings.rounds {
            for (at, place) in &places {
                runs[*at].push(self.run(load, count, *place)?);
            }
            // Alternate the order, so that drift favours no setting.
            places.reverse();
        }
        let mut simulated = Vec::new();
        for place in [RECORDED].into_iter().chain(PLACES) {
            simulated.push(self.simulate(name, &profile, place)?);
        }
        let before =
            simulated.first().copied().filter(|done| *done > 0.0).ok_or(ProgramError::NoWork)?;
        let answers = PLACES.iter().enumerate().map(|(at, place)| {
            let pairs = runs[at + 1].iter().zip(&runs[0]);
            Answer::new(*place, pairs, simulated[at + 1] / before)
        });
        Ok(Row::new(name, load, &profile, answers.collect()))
    }

    /// Finds the count with which a program runs for about the requested time.
    fn size(&self, load: Load) -> Result<u64, ProgramError> {
        let Some((least, most)) = load.counts() else {
            return Ok(1);
        };
        let wanted = f64::from(self.settings.seconds);
        let mut count = least;
        loop {
            let took = self.run(load, count, RECORDED)?.took;
            let next = count as f64 * (wanted / took).min(16.0);
            let next = (next.round() as u64).clamp(least, most);
            if took >= wanted * ENOUGH || next <= count {
                return Ok(next);
            }
            count = next;
        }
    }

    fn setting(&self, load: Load, count: u64) -> Result<(Vec<String>, String), ProgramError> {
        let folder = self.folder.to_string_lossy().into_owned();
        if load == Load::Pbzip2 {
            let path = self.folder.join(format!("text-{count}"));
            if !path.exists() {
                inputs::write_text(&path, count)?;
            }
        }
        let argv = load.command(&self.words(count, &folder));
        Ok((argv, folder))
    }

    fn words<'a>(&self, count: u64, folder: &'a str) -> Setting<'a> {
        Setting { seconds: self.settings.seconds, count, vcpus: CPUS, folder, tandem: "tandem" }
    }

    fn run(&self, load: Load, count: u64, place: Place) -> Result<Done, ProgramError> {
        let cpus = &self.cpus[..place.cpus];
        let (argv, folder) = self.setting(load, count)?;
        let hog = place.has_hog.then(|| self.hog(cpus)).transpose()?;
        let limit = Duration::from_secs(60 + u64::from(self.settings.seconds) * TIMEOUT_FACTOR);
        let argv = wrapped(&argv, &self.groups.program, cpus, false);
        let run = process::run(&argv, self.folder, limit, self.interrupt)?;
        drop(hog);
        if !run.status.success() {
            return Err(ProgramError::Failed(run.status, run.quote()));
        }
        let work = load.work(&run, &self.words(count, &folder));
        let work = work.ok_or_else(|| ProgramError::NoFigure(run.quote()))?;
        let (rate, took) = (work.rate(), run.wall.as_secs_f64());
        Ok(Done { rate, took, unit_cpu: run.cpu.as_secs_f64() / (rate * took) })
    }

    fn hog(&self, cpus: &[PcpuId]) -> Result<Hog, ProgramError> {
        let hog = [self.settings.hog.to_string_lossy().into_owned(), "hog".to_owned()];
        let mut argv = hog.to_vec();
        argv.extend(cpus.iter().map(ToString::to_string));
        let argv = wrapped(&argv, &self.groups.hog, cpus, true);
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).stdin(Stdio::null());
        let child = command.spawn().map_err(|error| {
            ProgramError::Hog(format!("cannot start {}: {error}", self.settings.hog.display()))
        })?;
        Ok(Hog(child))
    }

    fn record(&self, name: &str, load: Load, count: u64) -> Result<Profile, ProgramError> {
        let (argv, _) = self.setting(load, count)?;
        let argv = wrapped(&argv, &self.groups.program, &self.cpus, true);
        let options = record::Options {
            target: Target::Command(argv.into_iter().map(OsString::from).collect()),
            seconds: None,
            traces: true,
        };
        let recording = record::record(options)?;
        let mut profile = recording.profile.clone();
        let status = recording.wait()?;
        if let Some(status) = status.filter(|status| !status.success()) {
            return Err(ProgramError::Failed(status, "while it was recorded".to_owned()));
        }
        profile.program = name.to_owned();
        Ok(profile)
    }

    /// Returns the simulated throughput of the recorded program, in CPU time per second.
    fn simulate(&self, name: &str, profile: &Profile, place: Place) -> Result<f64, ProgramError> {
        let setting = Simulated {
            vcpus: place.cpus as u32,
            has_hog: place.has_hog,
            scheduler: self.scheduler,
            tick: Some(this_kernel::tick()),
            warmup: Nanos::from_secs(1),
            duration: Nanos::from_secs(7),
        };
        let text = application::scenario(profile, &setting);
        if let Some(folder) = &self.settings.keep {
            let hog = if place.has_hog { "-hog" } else { "" };
            let path = folder.join(format!("{name}-{}{hog}.toml", place.cpus));
            // For inspection only, so errors do not matter.
            let _ = std::fs::write(path, &text);
        }
        let scenario = load::from_text(name, &text)?;
        let vm = application::vm_name(profile);
        let done = (1..=SEEDS).map(|seed| {
            let scenario = Scenario { seed, ..scenario.clone() };
            World::new(&scenario).run().throughput(&vm).unwrap_or(0.0)
        });
        Ok(done.sum::<f64>() / SEEDS as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_program_lists_the_eight() {
        let names: std::collections::BTreeSet<_> = PROGRAMS.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(chosen(&[]).unwrap().len(), 8);
        assert_eq!(chosen(&["make".to_owned()]).unwrap()[0].1, Load::Make);
        let error = chosen(&["x".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("'x'") && error.contains("pbzip2, stress-futex"), "{error}");
    }

    #[test]
    fn command_enters_cgroup_and_is_bound() {
        let argv = wrapped(
            &["a b".to_owned(), "c".to_owned()],
            Path::new("/group/cgroup.procs"),
            &[PcpuId(0), PcpuId(1)],
            false,
        );
        assert_eq!(argv[3..], ["/group/cgroup.procs", "0,1", "a b", "c"]);
        let naive: Vec<f64> = PLACES.iter().map(|place| place.naive()).collect();
        assert_eq!(naive, [0.5, 0.5, 0.25]);
        assert_eq!(RECORDED.naive(), 1.0);
    }
}
