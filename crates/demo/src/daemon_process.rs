//! Tandem's daemon as a separate process, started as an operator starts it.
//!
//! It has its own state directory, so it does not interfere with the daemon of the host.
//! Its stderr goes to a file, which errors quote.
//! SIGTERM stops it; the daemon reverts its changes before it exits.
//! If it fails or has to be killed, this process reverts its changes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tandem_host::spins::SpinAccount;
use tandem_host::status;
use tandem_linux::thread::Pid;
use tandem_model::PolicySet;
use tandem_policy::asymmetric::AsymmetricConfig;
use tandem_policy::host::registry;
use tandem_report::explain;
use thiserror::Error;

use crate::child::{ChildError, Running};
use crate::child_log::quote;
use crate::plan::{DaemonPlan, placement_name};
use crate::put_back::{PutBackError, put_back};

/// Time that the daemon has to find the VMs and report ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A failure of the daemon.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// A file or directory could not be created.
    #[error("cannot create {}", path.display())]
    Create {
        /// Its path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The log could not be read.
    #[error("cannot read {}", path.display())]
    Log {
        /// The log.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The process failed.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The daemon was stopped before.
    #[error("the daemon was stopped")]
    Stopped,
    /// The daemon exited while it was needed.
    #[error("the daemon exited unexpectedly with {0}")]
    EndedByItself(ExitStatus),
    /// The daemon reported an error.
    #[error("the daemon said: {0}")]
    Reported(String),
    /// The daemon exited with an error.
    #[error("the daemon ended with {0}")]
    Ended(ExitStatus),
    /// The daemon had to be killed.
    #[error("the daemon did not stop and was killed")]
    Killed,
    /// The changes of the daemon could not be reverted.
    #[error(transparent)]
    PutBack(#[from] PutBackError),
    /// Another error, with the log of the daemon.
    #[error("{}; it said: {said}", explain(&**error))]
    Said {
        /// The error.
        error: Box<DaemonError>,
        /// End of the log.
        said: String,
    },
}

/// The VMs that the daemon manages.
#[derive(Clone, Debug)]
pub enum Selected {
    /// Processes with their weights.
    Pids(Vec<(Pid, f64)>),
    /// VMs with names that match this glob.
    Names(String),
}

/// A running daemon.
#[derive(Debug)]
pub struct DaemonProcess {
    running: Option<Running>,
    state_dir: PathBuf,
    log: PathBuf,
}

impl DaemonProcess {
    /// Starts the daemon and waits until it is ready.
    pub fn start(
        selected: &Selected,
        plan: &DaemonPlan,
        extra: &[&str],
        state_dir: &Path,
    ) -> Result<DaemonProcess, DaemonError> {
        let creating = |path: &Path, source| DaemonError::Create { path: path.to_owned(), source };
        std::fs::create_dir_all(state_dir).map_err(|error| creating(state_dir, error))?;
        let log = state_dir.join("daemon.log");
        let errors = File::create(&log).map_err(|error| creating(&log, error))?;
        let config = state_dir.join("tandem.toml");
        std::fs::write(&config, settings(plan)).map_err(|error| creating(&config, error))?;
        let mut args = arguments(selected, plan, &config, state_dir);
        args.extend(extra.iter().map(|&arg| arg.to_owned()));
        let running = Running::start("the daemon", &args, errors)?;
        let mut daemon =
            DaemonProcess { running: Some(running), state_dir: state_dir.to_owned(), log };
        daemon.ready()?;
        Ok(daemon)
    }

    fn ready(&mut self) -> Result<(), DaemonError> {
        let running = self.running.as_mut().ok_or(DaemonError::Stopped)?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match running.line(left) {
                Ok(line) if line.trim() == "ready" => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(self.trouble(error.into())),
            }
        }
    }

    /// Returns its process id, or 0 if it was stopped.
    pub fn pid(&self) -> Pid {
        Pid(self.running.as_ref().map_or(0, Running::pid))
    }

    /// Returns the path of its journal.
    pub fn journal(&self) -> PathBuf {
        self.state_dir.join("journal")
    }

    /// Returns the figures of the policy `flexs` by VM process, as of the last discovery.
    /// Only VMs with counted branches have them.
    pub fn spins(&self) -> BTreeMap<Pid, SpinAccount> {
        status::spins(&self.state_dir)
    }

    /// Returns an error if the daemon has exited.
    pub fn check_alive(&mut self) -> Result<(), DaemonError> {
        let running = self.running.as_mut().ok_or(DaemonError::Stopped)?;
        match running.ended()? {
            None => Ok(()),
            Some(status) => Err(self.trouble(DaemonError::EndedByItself(status))),
        }
    }

    /// Returns an error if the daemon has exited or reported an error.
    pub fn check(&mut self) -> Result<(), DaemonError> {
        self.check_alive()?;
        match self.errors()?.into_iter().next() {
            None => Ok(()),
            Some(error) => Err(DaemonError::Reported(error)),
        }
    }

    /// Returns the error lines of the log so far.
    pub fn errors(&self) -> Result<Vec<String>, DaemonError> {
        let text = std::fs::read(&self.log)
            .map_err(|source| DaemonError::Log { path: self.log.clone(), source })?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().filter(|line| line.starts_with("error")).map(str::to_owned).collect())
    }

    /// Stops the daemon and waits until its changes are reverted.
    pub fn stop(mut self) -> Result<(), DaemonError> {
        self.halt()
    }

    fn halt(&mut self) -> Result<(), DaemonError> {
        let Some(mut running) = self.running.take() else {
            return Ok(());
        };
        running.terminate()?;
        match running.reap()? {
            Some(status) if status.success() => Ok(()),
            ended => {
                put_back(&self.state_dir)?;
                Err(self.trouble(match ended {
                    Some(status) => DaemonError::Ended(status),
                    None => DaemonError::Killed,
                }))
            }
        }
    }

    /// Adds the end of the log to an error.
    fn trouble(&self, error: DaemonError) -> DaemonError {
        match quote(&self.log) {
            Some(said) => DaemonError::Said { error: Box::new(error), said },
            None => error,
        }
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        if let Err(error) = self.halt() {
            // stderr may be closed.
            let _ = writeln!(std::io::stderr(), "error: {}", explain(&error));
        }
    }
}

/// Returns the value of `--policies`.
pub fn policy_names(policies: PolicySet) -> String {
    let names = registry::entries(policies).map(|(_, policy)| policy.name);
    match names.collect::<Vec<_>>().join(",") {
        none if none.is_empty() => "none".to_owned(),
        names => names,
    }
}

/// Returns a settings file with the settings that have no option of the daemon; unset ones keep their defaults.
fn settings(plan: &DaemonPlan) -> String {
    let lines = [
        plan.period_ms.map(|ms| format!("period_ms = {ms}")),
        plan.scan_ms.map(|ms| format!("scan_ms = {ms}")),
        plan.asymmetric.map(|AsymmetricConfig { time, latency, resolver }| {
            format!("asymmetric = {{ time = {time}, latency = {latency}, resolver = {resolver} }}")
        }),
        plan.counters.map(|counters| format!("counters = \"{counters}\"")),
    ];
    let lines = lines.into_iter().flatten();
    lines.fold("[host]\n".to_owned(), |text, line| text + &line + "\n")
}

fn arguments(
    selected: &Selected,
    plan: &DaemonPlan,
    config: &Path,
    state_dir: &Path,
) -> Vec<String> {
    let mut args: Vec<String> = [
        "host",
        "run",
        "--print-ready",
        "--placement",
        placement_name(plan.placement),
        "--config",
        &config.to_string_lossy(),
        "--state-dir",
        &state_dir.to_string_lossy(),
    ]
    .map(str::to_owned)
    .to_vec();
    if let Some(policies) = plan.policies {
        args.extend(["--policies".to_owned(), policy_names(policies)]);
    }
    // Benchmarks run VMs on plain threads if KVM is unavailable.
    match selected {
        Selected::Names(glob) => {
            let user = rustix::process::getuid().as_raw();
            args.extend(["--without-kvm".to_owned(), format!("uid:{user}"), glob.clone()]);
        }
        Selected::Pids(pids) => {
            for (pid, weight) in pids {
                args.extend(["--without-kvm".to_owned(), pid.to_string()]);
                args.extend(["--weight".to_owned(), format!("{pid}={weight}"), pid.to_string()]);
            }
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use tandem_host::config::{HostConfig, Placement};

    use super::*;

    #[test]
    fn arguments_select_vms_and_policies() {
        let plan = DaemonPlan {
            period_ms: Some(50),
            scan_ms: None,
            placement: Placement::Rebalance,
            policies: Some(registry::set(["turns", "fair"]).unwrap()),
            asymmetric: Some(AsymmetricConfig::parse("time,latency").unwrap()),
            counters: None,
        };
        let pids = Selected::Pids(vec![(Pid(7), 1.0), (Pid(8), 2.5)]);
        let arguments_of = |plan: &DaemonPlan| {
            arguments(&pids, plan, Path::new("/run/x/tandem.toml"), Path::new("/run/x")).join(" ")
        };
        assert_eq!(
            arguments_of(&plan),
            "host run --print-ready --placement rebalance --config /run/x/tandem.toml --state-dir /run/x \
             --policies fair,turns --without-kvm 7 --weight 7=1 7 --without-kvm 8 --weight 8=2.5 8"
        );
        let plan = DaemonPlan {
            policies: Some(registry::set(["fair"]).unwrap()),
            placement: Placement::Keep,
            asymmetric: None,
            ..plan
        };
        let flexs = arguments_of(&plan.with_flexs());
        assert!(
            flexs.contains("--placement rebalance") && flexs.contains("--policies fair,flexs"),
            "{flexs}"
        );
    }

    #[test]
    fn other_settings_go_to_the_file() {
        let plan = DaemonPlan {
            period_ms: Some(50),
            scan_ms: Some(100),
            placement: Placement::Rebalance,
            policies: Some(registry::set(["turns", "fair"]).unwrap()),
            asymmetric: Some(AsymmetricConfig::parse("time,latency").unwrap()),
            counters: None,
        };
        let dir = tempfile::tempdir().unwrap();
        let read = |plan: &DaemonPlan| {
            let path = dir.path().join("tandem.toml");
            std::fs::write(&path, settings(plan)).unwrap();
            HostConfig::read(&path).unwrap()
        };
        let config = read(&plan);
        assert_eq!((config.period_ms, config.scan_ms), (50, 100));
        assert_eq!(Some(config.asymmetric), plan.asymmetric);
        assert_eq!(Some(read(&plan.with_flexs()).counters), plan.with_flexs().counters);
    }
}
