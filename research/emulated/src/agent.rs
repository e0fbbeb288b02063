//! The agent inside an emulated machine (`tandem-lab emulate guest`): gets a job, runs its VMs on this machine's KVM, reads KVM's counters, and answers line by line.
//!
//! It is the machine's only program, started by the initramfs's init.
//! All VMs of a run are in its own process, with a thread for each vCPU.
//! Without cgroups the scheduler treats them like a process for each VM.
//!
//! The host decides which runs the job has, and evaluates the results.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, TryFromFloatSecsError};
use std::{fs, process, thread};

use tandem_linux::affinity::{AffinityError, affinity};
use tandem_linux::thread::Tid;
use tandem_microvm::{
    Backend, Calibration, ConfigError, Microvm, MicrovmConfig, NotACalibration, ParameterError,
    Snapshot, StartError,
};
use tandem_model::PcpuSet;
use thiserror::Error;

use crate::counters::CounterError;
use crate::daemon::{Daemon, DaemonError};
use crate::file::FileError;
use crate::job::{Facts, Failed, Job, Line, MARK, Outcome, Run, Sample, Vm, VmOutcome};
use crate::mailbox::{Mailbox, MailboxError};
use crate::settings::SettingError;
use crate::trace::TraceError;
use crate::{counters, settings, trace};

/// Error of a job, or of a run of it.
#[derive(Debug, Error)]
pub enum AgentError {
    /// Accessing a file or the serial port failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// No job arrived.
    #[error(transparent)]
    Mailbox(#[from] MailboxError),
    /// The job is invalid.
    #[error("the job is invalid: {0}")]
    Job(#[source] serde_json::Error),
    /// The job's calibration is invalid.
    #[error(transparent)]
    Calibration(#[from] NotACalibration),
    /// An answer cannot be written as JSON.
    #[error(transparent)]
    Answer(serde_json::Error),
    /// A VM is pinned to a pCPU that the machine does not have.
    #[error("VM {vm}: pins has {pin}, but the machine has {open} pCPUs for VMs, from 0")]
    Pin {
        /// Name of the VM.
        vm: String,
        /// The pCPU.
        pin: u32,
        /// Number of pCPUs for VMs.
        open: usize,
    },
    /// A time is invalid.
    #[error("{seconds} s is no valid time: {source}")]
    Time {
        /// The time.
        seconds: f64,
        /// The reason.
        source: TryFromFloatSecsError,
    },
    /// Setting a kernel parameter failed.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The daemon of the run failed.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// Accessing KVM's counters failed.
    #[error(transparent)]
    Counter(#[from] CounterError),
    /// Tracing failed.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A VM of the job is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A parameter of a workload is invalid.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// Reading the pCPUs for VMs failed.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// A VM did not start.
    #[error("VM {vm} did not start: {source}")]
    Start {
        /// Name of the VM.
        vm: String,
        /// The reason.
        source: StartError,
    },
    /// A VM stopped.
    #[error("VM {vm}: {failure}")]
    Stopped {
        /// Name of the VM.
        vm: String,
        /// The reason.
        failure: String,
    },
}

/// Runs the agent. The job is in the file `job`, or arrives in this program's memory.
/// Answers go to the file `answers`, a serial port.
pub fn run(job: Option<&Path>, answers: &Path) -> Result<(), AgentError> {
    let mut host = Host::open(answers)?;
    let done = carry_out(job, &mut host);
    if let Err(error) = done {
        host.say(&Line::Failed(Failed { variant: None, error: error.to_string() }))?;
    }
    host.say(&Line::End)
}

/// The host, at the other end of a serial port.
struct Host {
    port: File,
    path: PathBuf,
}

impl Host {
    fn open(path: &Path) -> Result<Host, AgentError> {
        let port = File::options().append(true).open(path).map_err(FileError::of("open", path))?;
        Ok(Host { port, path: path.to_owned() })
    }

    fn say(&mut self, line: &Line) -> Result<(), AgentError> {
        let json = serde_json::to_string(line).map_err(AgentError::Answer)?;
        let text = format!("{MARK}{json}\n");
        let written = self.port.write_all(text.as_bytes());
        Ok(written.map_err(FileError::of("write to", &self.path))?)
    }
}

fn carry_out(job: Option<&Path>, host: &mut Host) -> Result<(), AgentError> {
    let text = match job {
        Some(path) => fs::read_to_string(path).map_err(FileError::of("read the job", path))?,
        None => {
            let mailbox = Mailbox::default();
            host.say(&Line::Ready)?;
            mailbox.wait()?
        }
    };
    let job: Job = serde_json::from_str(&text).map_err(AgentError::Job)?;
    let calibration = match &job.calibration {
        Some(known) => known.parse()?,
        None => Calibration::measure(),
    };
    host.say(&Line::Machine(facts(&calibration)?))?;
    for run in &job.runs {
        let line = match carry_out_run(run, calibration) {
            Ok(outcome) => Line::Run(Box::new(outcome)),
            Err(error) => Line::Failed(Failed {
                variant: Some(run.variant.clone()),
                error: error.to_string(),
            }),
        };
        host.say(&line)?;
    }
    Ok(())
}

fn facts(calibration: &Calibration) -> Result<Facts, AgentError> {
    let line = |path: &str| -> Result<String, FileError> {
        let text = fs::read_to_string(path).map_err(FileError::of("read", Path::new(path)))?;
        Ok(text.trim().to_owned())
    };
    let modules = ["kvm_intel", "kvm_amd"];
    let loaded = |name: &&&str| Path::new("/sys/module").join(name).join("parameters").exists();
    // Both modules are built in; the processor's flags tell which one is in use.
    let flags = line("/proc/cpuinfo")?;
    let serves = |name: &&&str| match **name {
        "kvm_intel" => flags.contains(" vmx"),
        _ => flags.contains(" svm"),
    };
    let kvm = modules.iter().filter(loaded).find(serves);
    Ok(Facts {
        release: format!(
            "{} {}",
            line("/proc/sys/kernel/osrelease")?,
            line("/proc/sys/kernel/version")?
        ),
        pcpus: thread::available_parallelism().map_or(0, |n| n.get() as u32),
        kvm: kvm.map_or_else(|| "none".to_owned(), |name| (*name).to_owned()),
        tsc_khz: Calibration::measure().tsc_khz,
        calibration: calibration.to_string(),
    })
}

/// Converts a VM's pins, which are indices among the pCPUs for VMs, to pCPUs.
fn pins(vm: &Vm, open: &PcpuSet) -> Result<Vec<u32>, AgentError> {
    vm.pins
        .iter()
        .map(|&pin| match open.iter().nth(pin as usize) {
            Some(pcpu) => Ok(pcpu.0),
            None => Err(AgentError::Pin { vm: vm.name.clone(), pin, open: open.len() }),
        })
        .collect()
}

/// A running VM and KVM's folder of it.
struct Running {
    vm: Microvm,
    folder: PathBuf,
    timeline: Vec<Sample>,
}

fn carry_out_run(run: &Run, calibration: Calibration) -> Result<Outcome, AgentError> {
    let root = Path::new("/");
    let before = settings::apply(root, &run.settings)?;
    let outcome = run_vms(run, calibration);
    settings::apply(root, &before)?;
    outcome
}

fn run_vms(run: &Run, calibration: Calibration) -> Result<Outcome, AgentError> {
    let mut vms = Vec::new();
    for vm in &run.vms {
        vms.push(start(vm, calibration)?);
    }
    let daemon = match run.daemon.as_slice() {
        [] => None,
        arguments => Some(Daemon::start(arguments)?),
    };
    thread::sleep(seconds(run.warm_up)?);
    if run.trace {
        trace::start()?;
    }
    let first: Vec<(Snapshot, BTreeMap<String, u64>)> = vms.iter().map(Running::read).collect();
    let begin = Instant::now();
    watch(run, &mut vms, &first, begin)?;
    let last: Vec<(Snapshot, BTreeMap<String, u64>)> = vms.iter().map(Running::read).collect();
    if run.trace {
        trace::stop()?;
    }
    daemon.map_or(Ok(()), Daemon::stop)?;
    let parameters = settings::report(Path::new("/"));
    let mut outcomes = Vec::new();
    for (vm, (first, last)) in vms.into_iter().zip(first.iter().zip(&last)) {
        outcomes.push(vm.finish(first, last)?);
    }
    Ok(Outcome {
        variant: run.variant.clone(),
        seed: run.seed,
        parameters,
        seconds: last
            .first()
            .zip(first.first())
            .map_or(0.0, |(last, first)| last.0.t_ns.saturating_sub(first.0.t_ns) as f64 / 1e9),
        vms: outcomes,
        traced: run.trace.then(trace::result).transpose()?,
    })
}

fn seconds(seconds: f64) -> Result<Duration, AgentError> {
    Duration::try_from_secs_f64(seconds).map_err(|source| AgentError::Time { seconds, source })
}

fn start(vm: &Vm, calibration: Calibration) -> Result<Running, AgentError> {
    let mut config = MicrovmConfig::new(vm.name.parse()?, vm.workload);
    config.vcpus = vm.vcpus;
    config.backend = Backend::Kvm;
    config.ring = vm.ring;
    config.seed = vm.seed;
    config.pins = pins(vm, &affinity(Tid(process::id()))?)?;
    config.calibration = Some(calibration);
    for (name, value) in &vm.set {
        config.parameters.set(name, &value.text())?;
    }
    let kvm = Path::new(counters::KVM);
    let before = counters::folders(kvm);
    let running = Microvm::start(config)
        .map_err(|source| AgentError::Start { vm: vm.name.clone(), source })?;
    let folder = counters::appeared(kvm, &before)?;
    for (name, value) in &vm.kvm {
        counters::write(&folder, name, &value.text())?;
    }
    Ok(Running { vm: running, folder, timeline: Vec::new() })
}

/// Waits until the end of the run; samples timelines and checks for failures meanwhile.
fn watch(
    run: &Run,
    vms: &mut [Running],
    first: &[(Snapshot, BTreeMap<String, u64>)],
    begin: Instant,
) -> Result<(), AgentError> {
    let end = begin + seconds(run.seconds)?;
    let period = Duration::from_millis(run.sample_ms);
    let mut next = begin;
    loop {
        next = if period.is_zero() { end } else { (next + period).min(end) };
        thread::sleep(next.saturating_duration_since(Instant::now()));
        for (running, (first, _)) in vms.iter_mut().zip(first) {
            if let Some(failure) = running.vm.failure() {
                return Err(AgentError::Stopped {
                    vm: running.vm.config().name.to_string(),
                    failure: failure.to_string(),
                });
            }
            if !period.is_zero() {
                let sample = running.sample(first);
                running.timeline.push(sample);
            }
        }
        if Instant::now() >= end {
            return Ok(());
        }
    }
}

impl Running {
    fn read(&self) -> (Snapshot, BTreeMap<String, u64>) {
        (self.vm.snapshot(), counters::counters(&self.folder))
    }

    fn sample(&self, first: &Snapshot) -> Sample {
        let now = self.vm.snapshot();
        Sample {
            ms: (now.t_ns.saturating_sub(first.t_ns) / 1000) as f64 / 1e3,
            work: now.work().saturating_sub(first.work()),
            levels: counters::levels(&self.folder),
        }
    }

    fn finish(
        self,
        first: &(Snapshot, BTreeMap<String, u64>),
        last: &(Snapshot, BTreeMap<String, u64>),
    ) -> Result<VmOutcome, AgentError> {
        let levels = counters::levels(&self.folder);
        let config = self.vm.config();
        let (name, workload) = (config.name.to_string(), config.workload());
        let counters = counters::growth(&first.1, &last.1);
        let (first, last) = (&first.0, &last.0);
        let grown = |counter: fn(&tandem_microvm::VcpuSnapshot) -> u64| {
            last.sum(counter).saturating_sub(first.sum(counter))
        };
        let each = last.vcpus.iter().zip(&first.vcpus);
        let span = last.t_ns.saturating_sub(first.t_ns) as f64 / 1e9;
        let work = last.work().saturating_sub(first.work());
        let outcome = VmOutcome {
            name,
            workload,
            work,
            work_per_second: work as f64 / span,
            vcpu_work: each.map(|(last, first)| last.work.saturating_sub(first.work)).collect(),
            cpu_ms: grown(|vcpu| vcpu.cpu_ns) as f64 / 1e6,
            wait_ms: grown(|vcpu| vcpu.wait_ns.unwrap_or_default()) as f64 / 1e6,
            halts: grown(|vcpu| vcpu.halts),
            ipis: grown(|vcpu| vcpu.ipis),
            violations: last.sum(|vcpu| vcpu.violations),
            counters,
            levels,
            timeline: self.timeline,
        };
        let end = self.vm.stop();
        match end.failure {
            Some(failure) => {
                Err(AgentError::Stopped { vm: outcome.name, failure: failure.to_string() })
            }
            None => Ok(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(pins: &str) -> Vm {
        let text = format!(r#"{{"name": "a", "vcpus": 2, "workload": "burn", "pins": {pins}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn pins_are_indices_among_usable_pcpus() {
        let open = "1-4".parse().unwrap();
        assert_eq!(pins(&vm("[3, 0]"), &open).unwrap(), [4, 1]);
        let error = pins(&vm("[4]"), &open).unwrap_err().to_string();
        assert_eq!(error, "VM a: pins has 4, but the machine has 4 pCPUs for VMs, from 0");
    }
}
