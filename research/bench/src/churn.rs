//! Measures resource leaks of the daemon over many VM starts and stops.
//!
//! VMs start and stop one after the other, a few at a time, each long enough for the daemon to find it and act on it.
//! Before and after, without VMs, the bench counts the daemon's open files, memory, cgroups and journal.
//! None of them may grow with the number of starts.
//! The maximum of cgroups in between shows that the daemon acted.
//! The bench also samples the counts while VMs run, and compares the first quarter of the time with the last ([`crate::traces`]).
//! Spread over an hour, it is a soak test.

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

/// Number of VMs that run at a time.
const TOGETHER: usize = 4;

/// Minimum time between two starts.
const STEP: Duration = Duration::from_millis(150);

/// Maximum number of samples.
const SAMPLES: u32 = 240;

/// Minimum time between two samples.
const BETWEEN_SAMPLES: Duration = Duration::from_secs(1);

/// Time for the daemon to notice departed VMs before its resources are counted.
const SETTLE: Duration = Duration::from_secs(3);

/// Returns the prefix of this bench's VM names.
/// It contains the PID, so the daemons of two concurrent benches do not select each other's VMs.
/// It has seven characters because PIDs have at most 22 bits; a VM name may have eight.
fn prefix() -> String {
    format!("c{:06x}", std::process::id())
}

/// Settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of VM starts.
    pub starts: u32,
    /// Minutes over which the starts are spread; `None`: as fast as the minimum step allows.
    pub minutes: Option<u32>,
    /// vCPUs of each VM.
    pub vcpus: u32,
    /// Backend of the vCPUs; `None`: KVM if available.
    pub backend: Option<Backend>,
    /// Options of the daemon.
    pub daemon: DaemonPlan,
    /// Directory for journals and logs.
    pub state_dir: PathBuf,
}

impl Settings {
    /// Number of progress steps.
    pub fn steps(&self) -> u64 {
        u64::from(self.starts)
    }

    /// Time between two starts.
    fn step(&self) -> Duration {
        let length = Duration::from_secs(u64::from(self.minutes.unwrap_or(0)) * 60);
        STEP.max(length / self.starts.max(1))
    }
}

/// Figures of the bench.
#[derive(Clone, Debug, Serialize)]
pub struct Churn {
    /// The host.
    pub host: Host,
    /// Backend of the vCPUs.
    pub backend: Backend,
    /// Number of VM starts.
    pub starts: u32,
    /// vCPUs of each VM.
    pub vcpus: u32,
    /// Counts after the first few VMs, so that one-time allocations do not appear as leaks.
    pub before: Traces,
    /// Counts after all VMs.
    pub after: Traces,
    /// Maximum number of Tandem's cgroups in between.
    pub most_cgroups: usize,
    /// Seconds from the first start to the end of the last VM.
    pub seconds: f64,
    /// Counts while VMs run.
    pub samples: Vec<Sample>,
    /// Samples of the first and of the last quarter of the time; `None` if there are too few.
    pub quarters: Option<Vec<Quarters>>,
    /// Error lines of the daemon.
    pub daemon_errors: Vec<String>,
}

/// Error that ends the measurement.
#[derive(Debug, Error)]
pub enum ChurnError {
    /// Opening the state directory failed.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// A VM failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The daemon failed.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// Reading the daemon's resources failed.
    #[error(transparent)]
    Traces(#[from] TracesError),
    /// Interrupted by a signal.
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
    // Frequent scans let the daemon act on a VM within its short life.
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

/// Returns KVM if a probe VM starts with it; the daemon does not select the probe.
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
    /// Starts `starts` VMs, one per step, and stops all of them. Samples the daemon, if given.
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
            // Names recur, as when a VM is restarted.
            let plan = vm(&format!("{}{}", prefix(), self.next % 10), self.vcpus);
            let mut vm = VmProcess::start(&plan, self.backend, self.next, self.dir.logs())?;
            vm.ready()?;
            self.next += 1;
            running.push_back(vm);
            // A late start is caught up, but each VM runs for at least STEP.
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
    fn starts_spread_evenly_with_minimum_step() {
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
