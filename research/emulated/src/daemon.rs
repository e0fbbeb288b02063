//! Tandem's daemon inside an emulated machine, beside the VMs of a run.
//!
//! It is the same binary as the agent, started as an operator would start it (`tandem host run`), for all VMs. The machine has no service manager and no
//! cgroups mounted, so the cpu controller is mounted first, as cgroup v1: the agent's VMs are threads of one process, which v2 would not
//! divide without threaded groups.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{io, thread};

use rustix::process::{Pid, Signal, kill_process};
use thiserror::Error;

/// Where the cpu controller is mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Where the daemon keeps its journal.
const STATE: &str = "/run/tandem";
/// What it says.
const LOG: &str = "/tmp/daemon.log";
/// It acts within a second on a slow emulated machine.
const READY_WITHIN: Duration = Duration::from_secs(60);

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
    /// It does not say that it acts.
    #[error("tandem host run {arguments} was not ready within {READY_WITHIN:?}: {said}")]
    NotReady {
        /// What it was given.
        arguments: String,
        /// Its last words.
        said: String,
    },
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
        let stdout = child.stdout.take();
        // Dropped on an error, it is ended.
        let daemon = Daemon { child, arguments: arguments.join(" ") };
        let (said, hears) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let read = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
            // Whoever waited for this has given up.
            let _ = said.send(read.transpose().map(|_| line));
        });
        match hears.recv_timeout(READY_WITHIN) {
            Ok(Ok(line)) if line.trim() == "ready" => Ok(daemon),
            Ok(Ok(_)) => {
                Err(DaemonError::Ended { arguments: daemon.arguments.clone(), said: last_words() })
            }
            Ok(Err(error)) => Err(DaemonError::of("tandem host run")(error)),
            Err(_) => Err(DaemonError::NotReady {
                arguments: daemon.arguments.clone(),
                said: last_words(),
            }),
        }
    }

    /// Ends it, once it has put everything back. An error: it had ended before, or could not put everything back.
    pub fn stop(mut self) -> Result<(), DaemonError> {
        let pid = Pid::from_child(&self.child);
        // One that is gone is seen by its exit status.
        let _ = kill_process(pid, Signal::INT);
        let status = self.child.wait().map_err(DaemonError::of("tandem host run"))?;
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
    if mounted.success() { Ok(()) } else { Err(DaemonError::NoController) }
}

/// What the daemon said last.
fn last_words() -> String {
    let said = std::fs::read_to_string(LOG).unwrap_or_default();
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    last.unwrap_or("it said nothing").to_owned()
}
