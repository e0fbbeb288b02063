//! One microVM in a process of its own, under control through its stdin and stdout.
//!
//! `tandem vm run --control-stdio` boots the VM, prints a line that names its vCPU threads, answers
//! each line on its stdin with a line of counters, and stops when its stdin ends: so it also stops
//! when we are killed. CPU time is not taken from those counters but from the kernel, for all VMs
//! with one clock (see [`super::cpu_time`]); the counters give the work that was done.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use serde::Deserialize;
use tandem_linux::ProcFs;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_microvm::Calibration;

use super::child::Running;
use super::plan::Backend;
use super::plan::VmPlan;
use crate::console::explain;

/// How long a VM may take to boot, or to answer on a host that is overcommitted many times.
const PATIENCE: Duration = Duration::from_secs(60);

/// Most of an error log that is quoted.
const QUOTED: usize = 2000;

#[derive(Deserialize)]
struct Ready {
    ready: bool,
    vcpus: Vec<ReadyVcpu>,
}

#[derive(Deserialize)]
struct ReadyVcpu {
    index: u32,
    tid: u32,
}

/// What a VM has done since it started.
#[derive(Debug, Deserialize)]
pub struct Counters {
    /// When, on CLOCK_MONOTONIC, in nanoseconds.
    pub t_ns: u64,
    vcpus: Vec<VcpuCounters>,
}

#[derive(Debug, Deserialize)]
struct VcpuCounters {
    work: u64,
}

impl Counters {
    /// Items of work that all vCPUs finished.
    pub fn work(&self) -> u64 {
        self.vcpus.iter().map(|vcpu| vcpu.work).sum()
    }
}

/// A running VM.
#[derive(Debug)]
pub struct VmProcess {
    running: Running,
    log: std::path::PathBuf,
    threads: Vec<ThreadRef>,
}

impl VmProcess {
    /// Starts a VM; [`VmProcess::ready`] then waits until it has booted. Many can so boot at once.
    pub fn start(
        vm: &VmPlan,
        backend: Backend,
        seed: u64,
        logs: &Path,
    ) -> anyhow::Result<VmProcess> {
        let log = logs.join(format!("{}.log", vm.name));
        let errors =
            File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut args = arguments(vm, backend, seed);
        args.extend(["--calibration".to_owned(), calibration().to_owned()]);
        let running = Running::start(&format!("VM '{}'", vm.name), &args, errors)?;
        Ok(VmProcess {
            running,
            log,
            threads: Vec::new(),
        })
    }

    /// Waits until the VM has booted.
    pub fn ready(&mut self) -> anyhow::Result<()> {
        let line = self.line()?;
        let ready: Ready = serde_json::from_str(&line)
            .ok()
            .filter(|ready: &Ready| ready.ready)
            .with_context(|| format!("{}: unexpected '{line}'", self.running.what()))?;
        let mut vcpus = ready.vcpus;
        vcpus.sort_by_key(|vcpu| vcpu.index);
        let procfs = ProcFs::host();
        let pid = self.pid();
        self.threads = vcpus
            .iter()
            .map(|vcpu| ThreadRef::read(&procfs, pid, Tid(vcpu.tid)))
            .collect::<Result<_, _>>()
            .with_context(|| format!("the vCPU threads of {}", self.running.what()))?;
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
    pub fn ask(&mut self) -> anyhow::Result<()> {
        let what = self.running.what().to_owned();
        let stdin = self
            .running
            .stdin()
            .with_context(|| format!("{what} was stopped"))?;
        if stdin.write_all(b"\n").and_then(|()| stdin.flush()).is_err() {
            bail!(
                "{}",
                self.trouble(anyhow::anyhow!("{what} no longer listens"))
            );
        }
        Ok(())
    }

    /// The answer to [`VmProcess::ask`].
    pub fn counters(&mut self) -> anyhow::Result<Counters> {
        let line = self.line()?;
        serde_json::from_str(&line)
            .with_context(|| format!("{}: unexpected '{line}'", self.running.what()))
    }

    fn line(&mut self) -> anyhow::Result<String> {
        self.running
            .line(PATIENCE)
            .map_err(|error| self.trouble(error))
    }

    /// What went wrong, with what the VM itself said about it.
    fn trouble(&self, error: anyhow::Error) -> anyhow::Error {
        with_log(error, &self.log)
    }

    /// Asks it to stop; [`VmProcess::stop`] then waits for it.
    pub fn ask_to_stop(&mut self) {
        self.running.close_stdin();
    }

    /// Stops it and waits for it.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.ask_to_stop();
        match self.running.reap()? {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                let what = self.running.what();
                Err(self.trouble(anyhow::anyhow!("{what} ended with {status}")))
            }
            None => bail!("{} did not stop and was killed", self.running.what()),
        }
    }
}

/// Stops all of them at once.
pub fn stop_all(mut vms: Vec<VmProcess>) -> anyhow::Result<()> {
    for vm in &mut vms {
        vm.ask_to_stop();
    }
    // Every one is waited for, even after an error.
    let outcomes: Vec<_> = vms.into_iter().map(VmProcess::stop).collect();
    outcomes.into_iter().collect()
}

/// The error, with what the child wrote to its log before.
pub fn with_log(error: anyhow::Error, log: &Path) -> anyhow::Error {
    match quote(log) {
        Some(said) => anyhow::anyhow!("{}; it said: {said}", explain(&error)),
        None => error,
    }
}

/// The end of a log, on one line.
fn quote(log: &Path) -> Option<String> {
    let text = std::fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    // Every message of the program begins with its name.
    let text = text.replace("tandem: ", "");
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let said = lines.join("; ");
    let start = said
        .char_indices()
        .rev()
        .nth(QUOTED)
        .map_or(0, |(at, _)| at);
    (!said.is_empty()).then(|| said[start..].to_owned())
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
        backend.name(),
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
            pins: vec![tandem_policy::PcpuId(0), tandem_policy::PcpuId(1)],
        };
        assert_eq!(
            arguments(&vm, Backend::Threads, 7).join(" "),
            "vm run --control-stdio --name a --vcpus 2 --workload bursty --backend threads --seed 7 \
             --set period=5 --pin 0,1"
        );
    }

    #[test]
    fn counters_add_up_over_vcpus() {
        let line = r#"{"t_ns":5,"vcpus":[{"index":0,"tid":1,"work":2,"cpu_ns":3,"wait_ns":4,
            "halts":0,"ipis":0},{"index":1,"tid":2,"work":40,"cpu_ns":3,"wait_ns":4,"halts":0,
            "ipis":0}]}"#;
        let counters: Counters = serde_json::from_str(line).unwrap();
        assert_eq!((counters.t_ns, counters.work()), (5, 42));
    }

    #[test]
    fn a_log_is_quoted_on_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("vm.log");
        assert_eq!(quote(&log), None);
        std::fs::write(&log, "error: no /dev/kvm\n\n  try --backend threads\n").unwrap();
        assert_eq!(
            quote(&log).unwrap(),
            "error: no /dev/kvm; try --backend threads"
        );
        std::fs::write(&log, "é".repeat(5000)).unwrap();
        assert_eq!(quote(&log).unwrap().chars().count(), QUOTED + 1);
    }
}
