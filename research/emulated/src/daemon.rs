//! Tandem's daemon inside an emulated machine, for the VMs of a run.
//!
//! It is the agent's binary, started like an operator's daemon (`tandem host run`) and for all VMs.
//! The machine has no service manager and no cgroup mount, so the agent mounts the cpu controller first.
//! It mounts cgroup v1: the agent's VMs are threads of one process, which v2 divides only with threaded groups.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{io, thread};

use rustix::process::{Pid, Signal, kill_process};
use thiserror::Error;

/// Mount point of the cpu controller.
const CGROUPS: &str = "/sys/fs/cgroup";
/// State directory of the daemon.
const STATE: &str = "/run/tandem";
/// Log of the daemon.
const LOG: &str = "/tmp/daemon.log";
/// Maximum time until the daemon is ready; it takes about a second on a slow emulated machine.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Error of the daemon.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// Starting or waiting for a program of the machine failed.
    #[error("{what}: {source}")]
    Program {
        /// The program.
        what: &'static str,
        /// OS error.
        source: io::Error,
    },
    /// The kernel has no cpu controller.
    #[error(
        "cannot mount the cpu controller at {CGROUPS}: does the kernel have CONFIG_FAIR_GROUP_SCHED?"
    )]
    NoController,
    /// The daemon was not ready in time.
    #[error("tandem host run {arguments} was not ready within {READY_WITHIN:?}: {said}")]
    NotReady {
        /// Its arguments.
        arguments: String,
        /// The last line of its log.
        said: String,
    },
    /// The daemon ended early, or with an error.
    #[error("tandem host run {arguments} ended: {said}")]
    Ended {
        /// Its arguments.
        arguments: String,
        /// The last line of its log.
        said: String,
    },
}

impl DaemonError {
    fn of(what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
        move |source| DaemonError::Program { what, source }
    }
}

/// A running daemon.
pub struct Daemon {
    child: Child,
    arguments: String,
}

impl Daemon {
    /// Starts it with these arguments of `tandem host run`, and waits until it is ready.
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
        // Dropping it on an error ends it.
        let daemon = Daemon { child, arguments: arguments.join(" ") };
        let (said, hears) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let read = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
            // Fails if the receiver has timed out.
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

    /// Stops it and waits until it has reverted all changes. Fails if it had ended before, or could not revert all changes.
    pub fn stop(mut self) -> Result<(), DaemonError> {
        let pid = Pid::from_child(&self.child);
        // Fails if it has ended; its exit status tells.
        let _ = kill_process(pid, Signal::INT);
        let status = self.child.wait().map_err(DaemonError::of("tandem host run"))?;
        if status.success() {
            Ok(())
        } else {
            Err(DaemonError::Ended {
                arguments: std::mem::take(&mut self.arguments),
                said: last_words(),
            })
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails after `stop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Mounts the cpu controller, unless it is mounted.
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

/// Returns the last line of the daemon's log.
fn last_words() -> String {
    let said = std::fs::read_to_string(LOG).unwrap_or_default();
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    last.unwrap_or("its log is empty").to_owned()
}
