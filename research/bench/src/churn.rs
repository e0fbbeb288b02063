//! What stays behind after many VMs have come and gone under the daemon.
//!
//! VMs start and stop one after the other, a few at a time, each long enough for the daemon to find
//! it and to act on it. Before and after, with no VM running, the daemon's open files, memory,
//! cgroups and journal are counted; the most cgroups seen in between shows that it did act. Nothing
//! may grow with the number of starts. The same is counted now and then in between, and the first quarter of the time
//! held against the last ([`crate::traces`]): spread over an hour, that is a soak.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_microvm::Backend;
use tandem_report::experiment::Host;
use tandem_report::explain;
use tandem_report::progress::Progress;
use thiserror::Error;

use crate::traces::{Quarters, Sample, Traces, TracesError, cgroups, quarters};
use tandem_demo::daemon_process::{DaemonError, DaemonProcess, Selected};
use tandem_demo::host_facts;
use tandem_demo::plan::{DaemonPlan, VmPlan};
use tandem_demo::state_dir::{StateDir, StateDirError};
use tandem_demo::vm_process::{VmError, VmProcess, stop_all};

/// How many VMs run at a time.
const TOGETHER: usize = 4;

/// The least time between two starts.
const STEP: Duration = Duration::from_millis(150);

/// So many samples are taken, if the time allows.
const SAMPLES: u32 = 240;

/// The least time between two samples.
const BETWEEN_SAMPLES: Duration = Duration::from_secs(1);

/// Time for the daemon to notice that VMs are gone, before it is counted.
const SETTLE: Duration = Duration::from_secs(3);

/// Names of this bench's VMs begin so. Another one at the same time has other names, so neither's daemon takes the other's VMs.
/// Seven characters, as pids have at most 22 bits: a VM's name may have eight.
fn prefix() -> String {
    format!("c{:06x}", std::process::id())
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of VM starts.
    pub starts: u32,
    /// Over how many minutes they are spread; without that, one follows the other.
    pub minutes: Option<u32>,
    /// vCPUs of each VM.
    pub vcpus: u32,
    /// What runs the vCPUs; without one, KVM if there is KVM.
    pub backend: Option<Backend>,
    /// How the daemon is started.
    pub daemon: DaemonPlan,
    /// Where the experiment works.
    pub state_dir: PathBuf,
}

impl Settings {
    /// How many steps of progress the measurement has.
    pub fn steps(&self) -> u64 {
        u64::from(self.starts)
    }

    /// Time between two starts.
    fn step(&self) -> Duration {
        let length = Duration::from_secs(u64::from(self.minutes.unwrap_or(0)) * 60);
        STEP.max(length / self.starts.max(1))
    }
}

/// What stayed behind.
#[derive(Clone, Debug, Serialize)]
pub struct Churn {
    /// The host.
    pub host: Host,
    /// What ran the vCPUs.
    pub backend: Backend,
    /// Number of VM starts.
    pub starts: u32,
    /// vCPUs of each VM.
    pub vcpus: u32,
    /// After the first few VMs, so that what is allocated once is not taken for a leak.
    pub before: Traces,
    /// After all of them.
    pub after: Traces,
    /// The most cgroups of Tandem's in between.
    pub most_cgroups: usize,
    /// From the first start to the end of the last VM, in seconds.
    pub seconds: f64,
    /// The same in between, while VMs run.
    pub samples: Vec<Sample>,
    /// These figures in the first and in the last quarter of the time; `None` if there are too few samples to say.
    pub quarters: Option<Vec<Quarters>>,
    /// The lines in which the daemon reported errors.
    pub daemon_errors: Vec<String>,
}

/// What ends the measurement.
#[derive(Debug, Error)]
pub enum ChurnError {
    /// It has nowhere to work.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// A VM failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The daemon failed.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// What the daemon holds and leaves is not known.
    #[error(transparent)]
    Traces(#[from] TracesError),
    /// Somebody asked for the end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Runs the measurement.
pub fn measure(
    settings: &Settings,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Churn, ChurnError> {
    let dir = StateDir::open(&settings.state_dir)?;
    let backend = settings.backend.unwrap_or_else(|| usable_backend(&dir, progress));

    let selected = Selected::Names(format!("{}*", prefix()));
    // Looking often for VMs makes each one's short life long enough to be acted on.
    let plan = DaemonPlan { scan_ms: Some(100), ..settings.daemon.clone() };
    let mut daemon = DaemonProcess::start(&selected, &plan, &[], &dir.daemon())?;
    let mut churner = Churner {
        vcpus: settings.vcpus,
        backend,
        dir: &dir,
        interrupt,
        next: 0,
        most: 0,
        samples: Vec::new(),
    };
    churner.run(TOGETHER as u32 * 2, STEP, None, &Progress::hidden())?;
    interrupt.sleep(SETTLE)?;
    let before = Traces::read(&daemon, &prefix())?;
    churner.most = 0;
    progress.say(&format!("{} VM starts and stops", settings.starts));
    let begin = Instant::now();
    churner.run(settings.starts, settings.step(), Some(&daemon), progress)?;
    let seconds = begin.elapsed().as_secs_f64();
    interrupt.sleep(SETTLE)?;
    daemon.check_alive()?;
    let after = Traces::read(&daemon, &prefix())?;
    let (most_cgroups, samples) = (churner.most, churner.samples);
    let daemon_errors = daemon.errors()?;
    daemon.stop()?;
    dir.finish();

    Ok(Churn {
        host: host_facts::read(),
        backend,
        starts: settings.starts,
        vcpus: settings.vcpus,
        before,
        after,
        most_cgroups,
        seconds,
        quarters: quarters(&samples),
        samples,
        daemon_errors,
    })
}

/// KVM if there is KVM: tried with one VM that the daemon does not select.
fn usable_backend(dir: &StateDir, progress: &Progress) -> Backend {
    let probe = || -> Result<(), VmError> {
        let mut vm = VmProcess::start(&vm("probe", 1), Backend::Kvm, 1, dir.logs())?;
        vm.ready()?;
        vm.stop()
    };
    match probe() {
        Ok(()) => Backend::Kvm,
        Err(error) => {
            progress.note(&format!(
                "KVM could not be used, plain threads instead: {}",
                explain(&error)
            ));
            Backend::Threads
        }
    }
}

fn vm(name: &str, vcpus: u32) -> VmPlan {
    VmPlan {
        name: name.to_owned(),
        vcpus,
        weight: 1.0,
        workload: "burn".to_owned(),
        settings: Vec::new(),
        pins: Vec::new(),
    }
}

struct Churner<'a> {
    vcpus: u32,
    backend: Backend,
    dir: &'a StateDir,
    interrupt: &'a Interrupt,
    next: u64,
    most: usize,
    samples: Vec<Sample>,
}

impl Churner<'_> {
    /// Starts this many VMs, one in each step, and ends with none running. Of the daemon, if one is given, samples are taken.
    fn run(
        &mut self,
        starts: u32,
        step: Duration,
        daemon: Option<&DaemonProcess>,
        progress: &Progress,
    ) -> Result<(), ChurnError> {
        let begin = Instant::now();
        let every = BETWEEN_SAMPLES.max(step * starts / SAMPLES);
        let mut next_sample = begin + every;
        let mut running: VecDeque<VmProcess> = VecDeque::new();
        for start in 1..=starts {
            progress.detail(&format!("VM {start} of {starts}"));
            // Names come again, as they do when a VM is restarted.
            let plan = vm(&format!("{}{}", prefix(), self.next % 10), self.vcpus);
            let mut vm = VmProcess::start(&plan, self.backend, self.next, self.dir.logs())?;
            vm.ready()?;
            self.next += 1;
            running.push_back(vm);
            // Who is behind catches up, but gives each VM its time.
            let end = (begin + step * start).max(Instant::now() + STEP);
            while let Some(daemon) = daemon.filter(|_| next_sample < end) {
                self.interrupt.sleep_until(next_sample)?;
                self.samples.push(Sample {
                    seconds: begin.elapsed().as_secs_f64(),
                    starts: start,
                    traces: Traces::read(daemon, &prefix())?,
                });
                next_sample = Instant::now().max(next_sample + every);
            }
            self.interrupt.sleep_until(end)?;
            self.most = self.most.max(cgroups(&prefix()).map_err(TracesError::from)?);
            if running.len() == TOGETHER
                && let Some(oldest) = running.pop_front()
            {
                oldest.stop()?;
            }
            progress.step();
        }
        Ok(stop_all(running.into())?)
    }
}

#[cfg(test)]
mod tests {
    use tandem_host::config::Placement;

    use super::*;

    #[test]
    fn starts_are_spread_over_the_minutes_and_never_hurried() {
        let step = |starts, minutes| {
            let daemon = DaemonPlan {
                period_ms: None,
                scan_ms: None,
                placement: Placement::Keep,
                policies: None,
                asymmetric: None,
                counters: None,
            };
            Settings { starts, minutes, vcpus: 1, backend: None, daemon, state_dir: PathBuf::new() }
                .step()
        };
        assert_eq!(step(1_000, Some(60)), Duration::from_millis(3_600));
        assert_eq!(step(1_000, None), STEP);
        assert_eq!(step(100_000, Some(1)), STEP);
    }
}
