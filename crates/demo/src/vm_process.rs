//! One microVM in a process of its own, under control through its stdin and stdout ([`crate::control`]).
//!
//! `tandem vm run --control-stdio` boots the VM, prints a line that names its vCPU threads, answers
//! each line on its stdin with a line of counters, and stops when its stdin ends: so it also stops
//! when we are killed. The program is this very one, started again. CPU time is not taken from those
//! counters but from the kernel, for all VMs with one clock ([`crate::cpu_time`]); the counters give
//! the work that was done.

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

/// How long a VM may take to boot, or to answer on a host that is overcommitted many times.
const PATIENCE: Duration = Duration::from_secs(60);

/// What went wrong with a VM.
#[derive(Debug, Error)]
pub enum VmError {
    /// Its log cannot be made.
    #[error("cannot create {}", path.display())]
    Log {
        /// The log.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its process.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// It did not say that it is ready.
    #[error("{what}: unexpected '{line}'")]
    NotReady {
        /// Which VM.
        what: String,
        /// What it said.
        line: String,
    },
    /// It did not answer with counters.
    #[error("{what}: unexpected '{line}'")]
    NoCounters {
        /// Which VM.
        what: String,
        /// What it said.
        line: String,
        /// What is wrong with that.
        source: serde_json::Error,
    },
    /// Its vCPUs' threads are not known.
    #[error("the vCPU threads of {what}")]
    Threads {
        /// Which VM.
        what: String,
        /// Why.
        source: ThreadError,
    },
    /// It was asked after it had been stopped.
    #[error("{0} was stopped")]
    Stopped(String),
    /// It was asked and does not hear.
    #[error("{0} no longer listens")]
    Deaf(String),
    /// It ended in an error.
    #[error("{what} ended with {status}")]
    Ended {
        /// Which VM.
        what: String,
        /// How.
        status: ExitStatus,
    },
    /// It had to be killed.
    #[error("{0} did not stop and was killed")]
    Killed(String),
    /// One of these, with what the VM itself said about it.
    #[error("{}; it said: {said}", explain(&**error))]
    Said {
        /// Which.
        error: Box<VmError>,
        /// What it said.
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
    /// Starts a VM; [`VmProcess::ready`] then waits until it has booted. Many can so boot at once.
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

    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid(self.running.pid())
    }

    /// Its vCPU threads, in the order of their numbers.
    pub fn threads(&self) -> &[ThreadRef] {
        &self.threads
    }

    /// Asks for its counters; [`VmProcess::counters`] then reads them. So all VMs are asked before
    /// the first answer is waited for, and their windows lie as close together as can be.
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

    /// The answer to [`VmProcess::ask`].
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
        let line = self.running.line(PATIENCE);
        line.map_err(|error| self.trouble(error.into()))
    }

    /// What went wrong, with what the VM itself said about it.
    fn trouble(&self, error: VmError) -> VmError {
        match quote(&self.log) {
            Some(said) => VmError::Said { error: Box::new(error), said },
            None => error,
        }
    }

    /// Asks it to stop; [`VmProcess::stop`] then waits for it.
    pub fn ask_to_stop(&mut self) {
        self.running.close_stdin();
    }

    /// Stops it and waits for it.
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

/// Stops all of them at once.
pub fn stop_all(mut vms: Vec<VmProcess>) -> Result<(), VmError> {
    for vm in &mut vms {
        vm.ask_to_stop();
    }
    // Every one is waited for, even after an error.
    let outcomes: Vec<_> = vms.into_iter().map(VmProcess::stop).collect();
    outcomes.into_iter().collect()
}

/// One measure of work for all VMs: two that measured for themselves could differ by a step.
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
    fn arguments_name_every_choice() {
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
