//! Measures the cost of the daemon with many vCPUs.
//!
//! It starts many VMs of plain threads that sleep most of the time, like most VMs of a host, and runs the daemon.
//! It counts the daemon's CPU time over a window that begins after the daemon has found all VMs and acted for some periods.
//! It also reports the VMs' own CPU time, because active VMs cause more work for the daemon.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::usage::{Usage, UsageError};
use serde::Serialize;
use tandem_host::config::HostConfig;
use tandem_linux::ProcFs;
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_linux::sampler::Sampler;
use tandem_microvm::Backend;
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
const NAMES: &str = "ovh*";

/// Time before the window, which excludes the daemon's start (finding VMs, creating cgroups).
const SETTLE: Duration = Duration::from_secs(3);

/// A burst of about a millisecond every two seconds or so.
const SETTINGS: [&str; 2] = ["work=2000000", "period=5000000000"];

/// Settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of VMs.
    pub vms: u32,
    /// vCPUs of each VM.
    pub vcpus: u32,
    /// Length of the window.
    pub window: Duration,
    /// Options of the daemon.
    pub daemon: DaemonPlan,
    /// Directory for journals and logs.
    pub state_dir: PathBuf,
}

impl Settings {
    /// Number of progress steps.
    pub fn steps(&self) -> u64 {
        u64::from(self.vms) + (SETTLE + self.window).as_secs()
    }
}

/// Figures of the bench.
#[derive(Clone, Debug, Serialize)]
pub struct Overhead {
    /// The host.
    pub host: Host,
    /// Number of usable pCPUs.
    pub pcpus: usize,
    /// Number of VMs.
    pub vms: u32,
    /// vCPUs of each VM.
    pub vcpus_per_vm: u32,
    /// vCPUs of all VMs.
    pub vcpus: u32,
    /// The daemon's accounting period.
    pub period_ms: u64,
    /// Length of the window.
    pub seconds: f64,
    /// CPU time of the daemon, as a fraction of one pCPU.
    pub daemon_cpu: f64,
    /// CPU time of the daemon per accounting period, in seconds.
    pub daemon_cpu_per_period: f64,
    /// CPU time of all VMs together, in pCPUs.
    pub vms_cpu: f64,
    /// Decisions since the daemon's start, from its metrics.
    pub decisions: Option<u64>,
    /// Decisions that took at most 5 ms.
    pub decisions_in_5_ms: Option<u64>,
    /// Resources of the daemon at the end.
    pub daemon: Usage,
    /// Error lines of the daemon.
    pub daemon_errors: Vec<String>,
}

/// Error that ends the measurement.
#[derive(Debug, Error)]
pub enum OverheadError {
    /// Opening the state directory failed.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// One of the VMs did not boot.
    #[error("VM {number} of {vms}")]
    Boot {
        /// Number of the VM.
        number: u32,
        /// Number of VMs.
        vms: u32,
        /// Its error.
        source: VmError,
    },
    /// A VM failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The daemon failed.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// Reading the usable pCPUs failed.
    #[error(transparent)]
    Pcpus(#[from] PcpusError),
    /// Reading the daemon's resources failed.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// Reading CPU times failed.
    #[error(transparent)]
    Reading(#[from] ReadingError),
    /// Reading the daemon's metrics failed.
    #[error("cannot read {}", path.display())]
    Metrics {
        /// Path of the metrics.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Interrupted by a signal.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Runs the measurement.
pub fn measure(
    settings: &Settings,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Overhead, OverheadError> {
    let dir = StateDir::open(&settings.state_dir)?;
    let vms = start(settings, &dir, progress, interrupt)?;
    progress.say("the daemon finds the VMs");
    let selected = Selected::Names(NAMES.to_owned());
    let metrics = dir.daemon().join("metrics.txt");
    let file = metrics.to_string_lossy();
    let extra = ["--metrics-file", &file];
    let mut daemon = DaemonProcess::start(&selected, &settings.daemon, &extra, &dir.daemon())?;
    wait(SETTLE, progress, interrupt)?;

    let pcpus = host_facts::usable_pcpus()?;
    let mut sampler = Sampler::new(ProcFs::host());
    let before = Usage::read(daemon.pid())?;
    let vms_before = Reading::take(&mut sampler, &vms, &pcpus)?;
    let begin = Instant::now();
    progress.say(&format!("counting {} s", settings.window.as_secs_f64()));
    wait(settings.window, progress, interrupt)?;
    let after = Usage::read(daemon.pid())?;
    let elapsed = begin.elapsed().as_secs_f64();
    let vms_after = Reading::take(&mut sampler, &vms, &pcpus)?;
    daemon.check_alive()?;
    let errors = daemon.errors()?;
    let page = std::fs::read_to_string(&metrics)
        .map_err(|source| OverheadError::Metrics { path: metrics.clone(), source })?;
    progress.say("stopping");
    daemon.stop()?;
    stop_all(vms)?;
    dir.finish();

    let cpu = after.cpu_seconds - before.cpu_seconds;
    let period = settings.daemon.period_ms;
    let period_ms = period.unwrap_or_else(|| HostConfig::default().period_ms);
    Ok(Overhead {
        host: host_facts::read(),
        pcpus: pcpus.len(),
        vms: settings.vms,
        vcpus_per_vm: settings.vcpus,
        vcpus: settings.vms * settings.vcpus,
        period_ms,
        seconds: elapsed,
        daemon_cpu: cpu / elapsed,
        daemon_cpu_per_period: cpu / elapsed * period_ms as f64 / 1000.0,
        vms_cpu: vms_after.shares_since(&vms_before).iter().sum(),
        decisions: metric(&page, "tandem_decision_seconds_count"),
        decisions_in_5_ms: metric(&page, "tandem_decision_seconds_bucket{le=\"0.005\"}"),
        daemon: after,
        daemon_errors: errors,
    })
}

/// Returns a count from a page of OpenMetrics text.
fn metric(page: &str, series: &str) -> Option<u64> {
    let line = page.lines().find_map(|line| line.strip_prefix(series))?;
    line.trim().parse().ok()
}

fn start(
    settings: &Settings,
    dir: &StateDir,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Vec<VmProcess>, OverheadError> {
    progress.say(&format!("starting {} VMs", settings.vms));
    let mut vms = Vec::new();
    for i in 0..settings.vms {
        interrupt.check()?;
        progress.detail(&format!("starting VM {} of {}", i + 1, settings.vms));
        let plan = VmPlan {
            name: format!("ovh{i:03}"),
            vcpus: settings.vcpus,
            weight: 1.0,
            workload: "bursty".to_owned(),
            settings: SETTINGS.map(str::to_owned).to_vec(),
            pins: Vec::new(),
        };
        let mut vm = VmProcess::start(&plan, Backend::Threads, u64::from(i), dir.logs())?;
        vm.ready().map_err(|source| OverheadError::Boot {
            number: i + 1,
            vms: settings.vms,
            source,
        })?;
        vms.push(vm);
        progress.step();
    }
    Ok(vms)
}

fn wait(time: Duration, progress: &Progress, interrupt: &Interrupt) -> Result<(), Interrupted> {
    let begin = Instant::now();
    let whole = time.as_secs();
    for second in 1..=whole {
        interrupt.sleep_until(begin + Duration::from_secs(second))?;
        progress.step();
    }
    interrupt.sleep_until(begin + time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_finds_counts() {
        let page = "# TYPE tandem_decision_seconds histogram\n\
                    tandem_decision_seconds_bucket{le=\"0.005\"} 41\n\
                    tandem_decision_seconds_count 42\n";
        assert_eq!(metric(page, "tandem_decision_seconds_count"), Some(42));
        let quick = "tandem_decision_seconds_bucket{le=\"0.005\"}";
        assert_eq!(metric(page, quick), Some(41));
        assert_eq!(metric(page, "other"), None);
    }
}
