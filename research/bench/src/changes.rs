//! Measures how soon VMs are fair again after one of them starts, sleeps, wakes, stops.
//!
//! Two VMs burn (2 vCPUs and 1, pinned to two pCPUs as operators do) under the daemon.
//! A third VM starts, sleeps, wakes and stops.
//! SIGSTOP makes it sleep, which looks to the host like a sleeping guest.
//! After each change the bench reads the VMs' shares every 100 ms.
//!
//! *Fair after* is the earliest time from which every VM's share over the following second stays within 5 % of its fair share.
//! It is "not within the phase" if there is no such time.
//! *Least share of the others* is the smallest share over the first second of the first two VMs, relative to the fair share.
//! It shows whether a VM that slept starves the others.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid as RawPid, Signal, kill_process};
use serde::Serialize;
use tandem_linux::ProcFs;
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_linux::sampler::Sampler;
use tandem_linux::thread::Pid;
use tandem_microvm::Backend;
use tandem_model::PcpuSet;
use tandem_report::experiment::Host;
use tandem_report::progress::Progress;
use thiserror::Error;

use tandem_demo::cpu_time::{Reading, ReadingError};
use tandem_demo::daemon_process::{DaemonError, DaemonProcess, Selected};
use tandem_demo::host_facts;
use tandem_demo::host_facts::PcpusError;
use tandem_demo::plan::{DaemonPlan, VmPlan};
use tandem_demo::state_dir::{StateDir, StateDirError};
use tandem_demo::vm_process::{VmError, VmProcess, stop_all};

/// Names of this bench's VMs, for the daemon's selection.
const NAMES: &str = "chg*";
/// Time between two readings.
const STEP: Duration = Duration::from_millis(100);
/// Steps in the second over which shares are judged.
const JUDGED: usize = 10;
/// Maximum relative distance of a share to its fair share.
const NEAR: f64 = 0.05;
/// vCPUs of the VMs; the last VM is the one that starts and stops.
const VCPUS: [u32; 3] = [2, 1, 1];

/// Settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Repetitions.
    pub runs: u32,
    /// Seconds after each change; the third VM sleeps that long.
    pub seconds: u32,
    /// Backend of the vCPUs.
    pub backend: Backend,
    /// Options of the daemon.
    pub daemon: DaemonPlan,
    /// Directory for journals and logs.
    pub state_dir: PathBuf,
}

impl Settings {
    /// Number of progress steps.
    pub fn steps(&self) -> u64 {
        u64::from(self.runs) * 4
    }
}

/// Effect of one change in one run.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Number of the run.
    pub run: u32,
    /// The change of the third VM.
    pub change: &'static str,
    /// Seconds until all are fair; none if not within the phase.
    pub fair_after: Option<f64>,
    /// Smallest share relative to the fair share of the VMs that did not change, over the first second.
    pub least_of_others: f64,
}

/// All runs.
#[derive(Clone, Debug, Serialize)]
pub struct Changes {
    /// The host.
    pub host: Host,
    /// Backend of the vCPUs.
    pub backend: Backend,
    /// Seconds after each change.
    pub seconds: u32,
    /// The changes, in order.
    pub changes: Vec<Change>,
}

/// Error that ends the measurement.
#[derive(Debug, Error)]
pub enum ChangesError {
    /// Reading the usable pCPUs failed.
    #[error(transparent)]
    Pcpus(#[from] PcpusError),
    /// Opening the state directory failed.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// A VM failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The daemon failed.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// Reading CPU times failed.
    #[error(transparent)]
    Reading(#[from] ReadingError),
    /// Interrupted by a signal.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The third VM has an invalid process id.
    #[error("the VM's process id: {0} is not one")]
    NoProcess(Pid),
    /// Sending SIGSTOP failed.
    #[error("cannot stop the VM")]
    Stop(#[source] Errno),
    /// Sending SIGCONT failed.
    #[error("cannot wake the VM")]
    Wake(#[source] Errno),
}

/// Runs the measurement.
pub fn measure(
    settings: &Settings,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Changes, ChangesError> {
    let pcpus = host_facts::usable_pcpus()?;
    let dir = StateDir::open(&settings.state_dir)?;
    let mut changes = Vec::new();
    for run in 1..=settings.runs {
        let experiment = Experiment { settings, pcpus: &pcpus, dir: &dir, interrupt };
        changes.extend(experiment.run(run, progress)?);
    }
    dir.finish();
    Ok(Changes {
        host: host_facts::read(),
        backend: settings.backend,
        seconds: settings.seconds,
        changes,
    })
}

struct Experiment<'a> {
    settings: &'a Settings,
    pcpus: &'a PcpuSet,
    dir: &'a StateDir,
    interrupt: &'a Interrupt,
}

impl Experiment<'_> {
    fn run(&self, run: u32, progress: &Progress) -> Result<Vec<Change>, ChangesError> {
        let mut vms = vec![self.boot(0)?, self.boot(1)?];
        let selected = Selected::Names(NAMES.to_owned());
        let daemon =
            DaemonProcess::start(&selected, &self.settings.daemon, &[], &self.dir.daemon())?;
        self.interrupt.sleep(Duration::from_secs(3))?;
        let mut changes = Vec::new();
        let mut note = |change, judged: (Option<f64>, f64)| {
            let (fair_after, least_of_others) = judged;
            changes.push(Change { run, change, fair_after, least_of_others });
            progress.step();
        };

        progress.say(&format!("run {run}: a VM starts"));
        vms.push(self.boot(2)?);
        note("starts", self.phase(&vms, &[0, 1, 2])?);

        progress.say(&format!("run {run}: it sleeps"));
        let pid = vms[2].pid();
        let sleeper = RawPid::from_raw(pid.0 as i32).ok_or(ChangesError::NoProcess(pid))?;
        kill_process(sleeper, Signal::STOP).map_err(ChangesError::Stop)?;
        let asleep = self.phase(&vms, &[0, 1]);
        // Also after an interrupt: a stopped process would never end.
        kill_process(sleeper, Signal::CONT).map_err(ChangesError::Wake)?;
        note("sleeps", asleep?);

        progress.say(&format!("run {run}: it wakes"));
        note("wakes", self.phase(&vms, &[0, 1, 2])?);

        progress.say(&format!("run {run}: it stops"));
        if let Some(last) = vms.pop() {
            last.stop()?;
        }
        note("stops", self.phase(&vms, &[0, 1])?);
        daemon.stop()?;
        stop_all(vms)?;
        Ok(changes)
    }

    fn boot(&self, index: usize) -> Result<VmProcess, VmError> {
        let all: Vec<_> = self.pcpus.iter().take(2).collect();
        let plan = VmPlan {
            name: format!("chg{index}"),
            vcpus: VCPUS[index],
            weight: 1.0,
            workload: "burn".to_owned(),
            settings: Vec::new(),
            // The first two VMs start on the same pCPU, which makes equal weights unfair.
            // The third starts on the next pCPU.
            pins: (0..VCPUS[index] as usize)
                .map(|vcpu| all[(vcpu + index / 2) % all.len()])
                .collect(),
        };
        let mut vm = VmProcess::start(&plan, self.settings.backend, index as u64, self.dir.logs())?;
        vm.ready()?;
        Ok(vm)
    }

    /// Reads shares during a phase.
    /// Returns the time after which the `awake` VMs were fair, and the least share of the first two in the first second, relative to the fair share.
    fn phase(
        &self,
        vms: &[VmProcess],
        awake: &[usize],
    ) -> Result<(Option<f64>, f64), ChangesError> {
        let mut sampler = Sampler::new(ProcFs::host());
        let begin = Instant::now();
        let steps = self.settings.seconds * 10;
        let mut readings = vec![Reading::take(&mut sampler, vms, self.pcpus)?];
        for step in 1..=steps {
            self.interrupt.sleep_until(begin + STEP * step)?;
            readings.push(Reading::take(&mut sampler, vms, self.pcpus)?);
        }
        Ok(judge(&readings, awake))
    }
}

/// Returns the share of each of the `awake` VMs between two readings, relative to its fair share.
/// All VMs have the same weight and every share is feasible on two pCPUs, so the fair share is the mean.
fn parts(from: &Reading, to: &Reading, awake: &[usize]) -> Vec<f64> {
    let shares = to.shares_since(from);
    let due = awake.iter().map(|&vm| shares[vm]).sum::<f64>() / awake.len() as f64;
    awake.iter().map(|&vm| shares[vm] / due).collect()
}

fn judge(readings: &[Reading], awake: &[usize]) -> (Option<f64>, f64) {
    let seconds: Vec<Vec<f64>> = readings
        .windows(JUDGED + 1)
        .map(|window| parts(&window[0], &window[JUDGED], awake))
        .collect();
    let fair = |parts: &Vec<f64>| parts.iter().all(|part| (part - 1.0).abs() <= NEAR);
    let unfair_for = seconds.iter().rposition(|parts| !fair(parts)).map_or(0, |last| last + 1);
    let fair_after = (unfair_for < seconds.len()).then(|| unfair_for as f64 * STEP.as_secs_f64());
    let least = seconds.first().map_or(0.0, |first| first[0].min(first[1]));
    (fair_after, least)
}

#[cfg(test)]
mod tests {
    use tandem_linux::sampler::VcpuSample;
    use tandem_model::Nanos;

    use super::*;

    /// Readings of two VMs whose shares per step are given in milliseconds.
    fn readings(steps: &[(u64, u64)]) -> Vec<Reading> {
        let begin = Instant::now();
        let mut ran = (0, 0);
        let mut readings = Vec::new();
        for (n, step) in std::iter::once(&(0, 0)).chain(steps).enumerate() {
            ran = (ran.0 + step.0, ran.1 + step.1);
            let vcpu =
                |ms| vec![VcpuSample { ran: Nanos::from_millis(ms), ..VcpuSample::default() }];
            readings.push(Reading {
                at: begin + STEP * n as u32,
                vms: vec![vcpu(ran.0), vcpu(ran.1)],
                idle: Nanos::ZERO,
            });
        }
        readings
    }

    #[test]
    fn fair_after_waits_for_lasting_fairness() {
        let mut steps = vec![(80, 20); 5];
        steps.extend([(50, 50); 30]);
        let (after, least) = judge(&readings(&steps), &[0, 1]);
        // A window is fair once the 80:20 part has left it.
        assert_eq!(after, Some(0.5));
        assert!((least - 0.7).abs() < 1e-9, "{least}");
    }

    #[test]
    fn unfair_phase_has_no_time() {
        let (after, least) = judge(&readings(&[(80, 20); 30]), &[0, 1]);
        assert_eq!(after, None);
        assert!((least - 0.4).abs() < 1e-9, "{least}");
    }
}
