//! One microVM in a separate process, controlled through its stdin and stdout ([`crate::control`]).
//!
//! This program starts itself again as `tandem vm run --control-stdio`.
//! The child boots the VM, prints a line with its vCPU threads, and answers each line on its stdin with its counters.
//! It stops when its stdin ends, and so also when this process is killed.
//! The counters provide the work done; CPU time comes from the kernel, for all VMs with one clock ([`crate::cpu_time`]).

use std::fs::File;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::OnceLock;
use std::time::Duration;

use tandem_linux::ProcFs;
use tandem_linux::thread::{Pid, ThreadError, ThreadRef, Tid};
use tandem_microvm::{Backend, Calibration};
use tandem_report::explain;
use thiserror::Error;

use crate::child::{ChildError, Running};
use crate::child_log::quote;
use crate::control::{Ready, Snapshot};
use crate::plan::VmPlan;

/// Time that a VM has to boot or answer, even on a heavily overcommitted host.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A failure of a VM.
#[derive(Debug, Error)]
pub enum VmError {
    /// The log cannot be created.
    #[error("cannot create {}", path.display())]
    Log {
        /// The log.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The process failed.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The first line is not a `Ready` line.
    #[error("{what}: unexpected '{line}'")]
    NotReady {
        /// The VM.
        what: String,
        /// The line.
        line: String,
    },
    /// The answer is not a snapshot of counters.
    #[error("{what}: unexpected '{line}'")]
    NoCounters {
        /// The VM.
        what: String,
        /// The line.
        line: String,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// The vCPU threads could not be identified.
    #[error("cannot identify the vCPU threads of {what}")]
    Threads {
        /// The VM.
        what: String,
        /// The cause.
        source: ThreadError,
    },
    /// The VM was stopped before.
    #[error("{0} was stopped")]
    Stopped(String),
    /// The VM no longer reads its stdin.
    #[error("{0} no longer listens")]
    Deaf(String),
    /// The VM exited with an error.
    #[error("{what} ended with {status}")]
    Ended {
        /// The VM.
        what: String,
        /// Its exit status.
        status: ExitStatus,
    },
    /// The VM had to be killed.
    #[error("{0} did not stop and was killed")]
    Killed(String),
    /// Another error, with the log of the VM.
    #[error("{}; it said: {said}", explain(&**error))]
    Said {
        /// The error.
        error: Box<VmError>,
        /// End of the log.
        said: String,
    },
}

/// A running VM.
#[derive(Debug)]
pub struct VmProcess {
    running: Running,
    log: PathBuf,
    threads: Vec<ThreadRef>,
}

impl VmProcess {
    /// Starts a VM; [`VmProcess::ready`] then waits until it has booted, so that VMs boot in parallel.
    pub fn start(
        vm: &VmPlan,
        backend: Backend,
        seed: u64,
        logs: &Path,
    ) -> Result<VmProcess, VmError> {
        let log = logs.join(format!("{}.log", vm.name));
        let errors =
            File::create(&log).map_err(|source| VmError::Log { path: log.clone(), source })?;
        let mut args = arguments(vm, backend, seed);
        args.extend(["--calibration".to_owned(), calibration().to_owned()]);
        let running = Running::start(&format!("VM '{}'", vm.name), &args, errors)?;
        Ok(VmProcess { running, log, threads: Vec::new() })
    }

    /// Waits until the VM has booted.
    pub fn ready(&mut self) -> Result<(), VmError> {
        let line = self.line()?;
        let ready: Ready = serde_json::from_str(&line)
            .ok()
            .filter(|ready: &Ready| ready.ready)
            .ok_or_else(|| VmError::NotReady { what: self.what(), line })?;
        let mut vcpus = ready.vcpus;
        vcpus.sort_by_key(|vcpu| vcpu.index);
        let procfs = ProcFs::host();
        let pid = self.pid();
        self.threads = vcpus
            .iter()
            .map(|vcpu| ThreadRef::read(&procfs, pid, Tid(vcpu.tid)))
            .collect::<Result<_, _>>()
            .map_err(|source| VmError::Threads { what: self.what(), source })?;
        Ok(())
    }

    /// Returns its process id.
    pub fn pid(&self) -> Pid {
        Pid(self.running.pid())
    }

    /// Returns its vCPU threads in the order of their indices.
    pub fn threads(&self) -> &[ThreadRef] {
        &self.threads
    }

    /// Requests its counters; [`VmProcess::counters`] then reads them.
    /// The caller requests those of all VMs before it waits, so that their windows nearly coincide.
    pub fn ask(&mut self) -> Result<(), VmError> {
        let what = self.what();
        let Some(stdin) = self.running.stdin() else {
            return Err(VmError::Stopped(what));
        };
        if stdin.write_all(b"\n").and_then(|()| stdin.flush()).is_err() {
            return Err(self.trouble(VmError::Deaf(what)));
        }
        Ok(())
    }

    /// Reads the answer to [`VmProcess::ask`].
    pub fn counters(&mut self) -> Result<Snapshot, VmError> {
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|source| VmError::NoCounters {
            what: self.what(),
            line,
            source,
        })
    }

    fn what(&self) -> String {
        self.running.what().to_owned()
    }

    fn line(&mut self) -> Result<String, VmError> {
        let line = self.running.line(TIMEOUT);
        line.map_err(|error| self.trouble(error.into()))
    }

    /// Adds the end of the log to an error.
    fn trouble(&self, error: VmError) -> VmError {
        match quote(&self.log) {
            Some(said) => VmError::Said { error: Box::new(error), said },
            None => error,
        }
    }

    /// Requests a stop; [`VmProcess::stop`] then waits for it.
    pub fn ask_to_stop(&mut self) {
        self.running.close_stdin();
    }

    /// Stops the VM and waits for its exit.
    pub fn stop(mut self) -> Result<(), VmError> {
        self.ask_to_stop();
        match self.running.reap()? {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                let what = self.what();
                Err(self.trouble(VmError::Ended { what, status }))
            }
            None => Err(VmError::Killed(self.what())),
        }
    }
}

/// Stops all VMs in parallel.
pub fn stop_all(mut vms: Vec<VmProcess>) -> Result<(), VmError> {
    for vm in &mut vms {
        vm.ask_to_stop();
    }
    // `collect` first, so that an error does not skip the remaining VMs.
    let outcomes: Vec<_> = vms.into_iter().map(VmProcess::stop).collect();
    outcomes.into_iter().collect()
}

/// Returns the calibration for all VMs: separate calibrations could differ by a step.
fn calibration() -> &'static str {
    static MEASURED: OnceLock<String> = OnceLock::new();
    MEASURED.get_or_init(|| Calibration::measure().to_string())
}

fn arguments(vm: &VmPlan, backend: Backend, seed: u64) -> Vec<String> {
    let mut args: Vec<String> = [
        "vm",
        "run",
        "--control-stdio",
        "--name",
        &vm.name,
        "--vcpus",
        &vm.vcpus.to_string(),
        "--workload",
        &vm.workload,
        "--backend",
        &backend.to_string(),
        "--seed",
        &seed.to_string(),
    ]
    .map(str::to_owned)
    .to_vec();
    for setting in &vm.settings {
        args.extend(["--set".to_owned(), setting.clone()]);
    }
    if !vm.pins.is_empty() {
        let pins: Vec<String> = vm.pins.iter().map(ToString::to_string).collect();
        args.extend(["--pin".to_owned(), pins.join(",")]);
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_cover_all_settings() {
        let vm = VmPlan {
            name: "a".to_owned(),
            vcpus: 2,
            weight: 1.0,
            workload: "bursty".to_owned(),
            settings: vec!["period=5".to_owned()],
            pins: vec![tandem_model::PcpuId(0), tandem_model::PcpuId(1)],
        };
        assert_eq!(
            arguments(&vm, Backend::Threads, 7).join(" "),
            "vm run --control-stdio --name a --vcpus 2 --workload bursty --backend threads --seed 7 \
             --set period=5 --pin 0,1"
        );
    }
}
