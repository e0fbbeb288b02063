//! Tandem's daemon inside an emulated machine, beside the VMs of a run.
//!
//! It is the same binary as the agent, started as an operator would start it (`tandem host run`), for all VMs. The machine has no service manager and no
//! cgroups mounted, so the cpu controller is mounted first, as cgroup v1: the agent's VMs are threads of one process, which v2 would not
//! divide without threaded groups.

use std::fs::File;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::path::Path;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;

use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;
use thiserror::Error;

/// Where the cpu controller is mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Where the daemon keeps its journal.
const STATE: &str = "/run/tandem";
/// What it says.
const LOG: &str = "/tmp/daemon.log";

/// Why there is no daemon.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// A program of the machine cannot be started, or waited for.
    #[error("{what}: {source}")]
    Program {
        /// Which.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel has no cpu controller.
    #[error(
        "cannot mount the cpu controller at {CGROUPS}: does the kernel have CONFIG_FAIR_GROUP_SCHED?"
    )]
    NoController,
    /// It ended before it was told to.
    #[error("tandem host run {arguments} ended: {said}")]
    Ended {
        /// What it was given.
        arguments: String,
        /// Its last words.
        said: String,
    },
}

impl DaemonError {
    fn of(what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
        move |source| DaemonError::Program { what, source }
    }
}

/// A daemon that runs.
pub struct Daemon {
    child: Child,
    arguments: String,
}

impl Daemon {
    /// Starts it with these arguments of `tandem host run`, and waits until it acts.
    pub fn start(arguments: &[String]) -> Result<Daemon, DaemonError> {
        mount()?;
        let log = File::create(LOG).map_err(DaemonError::of(LOG))?;
        let mut child = Command::new("/proc/self/exe")
            .args(["host", "run", "--print-ready", "--select-all"])
            .args(["--state-dir", STATE])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(DaemonError::of("tandem host run"))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let read = BufReader::new(stdout).read_line(&mut line);
            read.map_err(DaemonError::of("tandem host run"))?;
        }
        let arguments = arguments.join(" ");
        match line.trim() {
            "ready" => Ok(Daemon { child, arguments }),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                Err(DaemonError::Ended {
                    arguments,
                    said: last_words(),
                })
            }
        }
    }

    /// Ends it, once it has put everything back. An error: it had ended before, or could not put everything back.
    pub fn stop(mut self) -> Result<(), DaemonError> {
        let pid = Pid::from_child(&self.child);
        // One that is gone is seen by its exit status.
        let _ = kill_process(pid, Signal::INT);
        let status = self
            .child
            .wait()
            .map_err(DaemonError::of("tandem host run"))?;
        match status.success() {
            true => Ok(()),
            false => Err(DaemonError::Ended {
                arguments: std::mem::take(&mut self.arguments),
                said: last_words(),
            }),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After an error elsewhere; after `stop` there is nothing left to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Mounts the cpu controller, unless it is.
fn mount() -> Result<(), DaemonError> {
    if Path::new(CGROUPS).join("cpu.shares").exists() {
        return Ok(());
    }
    let mounted = Command::new("mount")
        .args(["-t", "cgroup", "-o", "cpu", "cgroup", CGROUPS])
        .status()
        .map_err(DaemonError::of("mount"))?;
    match mounted.success() {
        true => Ok(()),
        false => Err(DaemonError::NoController),
    }
}

/// What the daemon said last.
fn last_words() -> String {
    let said = std::fs::read_to_string(LOG).unwrap_or_default();
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    last.unwrap_or("it said nothing").to_owned()
}
