//! Tandem's daemon as a process of its own, exactly as an operator would start it.
//!
//! It gets a state directory for itself, so that it neither waits for nor disturbs a daemon of the
//! host, and its error output goes to a file that is quoted when something goes wrong. Stopping it
//! is a SIGTERM: it puts everything back before it ends. Should it have to be killed, we put back
//! what it left.

use std::fs::File;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use tandem_linux::ProcFs;
use tandem_linux::actuator::restore_all;
use tandem_linux::cgroup;
use tandem_linux::thread::Pid;

use super::child::Running;
use super::plan::DaemonPlan;
use super::vm_process::with_log;
use crate::console::explain;

/// How long the daemon may take to find the VMs and to say that it acts.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which VMs the daemon acts on.
#[derive(Clone, Debug)]
pub enum Selected {
    /// These processes, with these weights.
    Pids(Vec<(Pid, f64)>),
    /// VMs whose name matches this glob.
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
    /// Starts the daemon and waits until it acts.
    pub fn start(
        selected: &Selected,
        plan: &DaemonPlan,
        extra: &[&str],
        state_dir: &Path,
    ) -> anyhow::Result<DaemonProcess> {
        std::fs::create_dir_all(state_dir)
            .with_context(|| format!("cannot create {}", state_dir.display()))?;
        let log = state_dir.join("daemon.log");
        let errors =
            File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut args = arguments(selected, plan, state_dir);
        args.extend(extra.iter().map(|&arg| arg.to_owned()));
        let running = Running::start("the daemon", &args, errors)?;
        let mut daemon = DaemonProcess {
            running: Some(running),
            state_dir: state_dir.to_owned(),
            log,
        };
        daemon.ready()?;
        Ok(daemon)
    }

    fn ready(&mut self) -> anyhow::Result<()> {
        let running = self.running.as_mut().context("the daemon was stopped")?;
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            match running.line(left) {
                Ok(line) if line.trim() == "ready" => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(with_log(error, &self.log)),
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid(self.running.as_ref().map_or(0, Running::pid))
    }

    /// Where it keeps its journal.
    pub fn journal(&self) -> PathBuf {
        self.state_dir.join("journal")
    }

    /// An error if it has ended by itself.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        let running = self.running.as_mut().context("the daemon was stopped")?;
        match running.ended()? {
            None => Ok(()),
            Some(status) => {
                let error = anyhow::anyhow!("the daemon ended by itself with {status}");
                Err(with_log(error, &self.log))
            }
        }
    }

    /// An error if it has ended by itself or reported that it could not do something.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.check_alive()?;
        match self.errors()?.first() {
            None => Ok(()),
            Some(error) => bail!("the daemon said: {error}"),
        }
    }

    /// The lines in which it reported errors so far.
    pub fn errors(&self) -> anyhow::Result<Vec<String>> {
        let text = std::fs::read(&self.log)
            .with_context(|| format!("cannot read {}", self.log.display()))?;
        let text = String::from_utf8_lossy(&text);
        Ok(text
            .lines()
            .filter(|line| line.starts_with("error"))
            .map(str::to_owned)
            .collect())
    }

    /// Stops it; everything it changed is put back when this returns.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.halt()
    }

    fn halt(&mut self) -> anyhow::Result<()> {
        let Some(mut running) = self.running.take() else {
            return Ok(());
        };
        running.terminate()?;
        match running.reap()? {
            Some(status) if status.success() => Ok(()),
            ended => {
                self.put_back()?;
                let how = match ended {
                    Some(status) => format!("the daemon ended with {status}"),
                    None => "the daemon did not stop and was killed".to_owned(),
                };
                Err(with_log(anyhow::anyhow!(how), &self.log))
            }
        }
    }

    fn put_back(&self) -> anyhow::Result<()> {
        let report = restore_all(cgroup::open(&ProcFs::host())?, &self.state_dir)?;
        if let Some(failure) = report.failures.first() {
            bail!("could not put back {}: {}", failure.what, failure.error);
        }
        Ok(())
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        if let Err(error) = self.halt() {
            eprintln!("error: {}", explain(&error));
        }
    }
}

fn arguments(selected: &Selected, plan: &DaemonPlan, state_dir: &Path) -> Vec<String> {
    let mut args: Vec<String> = [
        "host",
        "run",
        "--print-ready",
        "--placement",
        plan.placement.name(),
        "--state-dir",
    ]
    .map(str::to_owned)
    .to_vec();
    args.push(state_dir.to_string_lossy().into_owned());
    if let Some(period) = plan.period_ms {
        args.extend(["--period-ms".to_owned(), period.to_string()]);
    }
    match selected {
        Selected::Names(glob) => args.extend(["--select-name".to_owned(), glob.clone()]),
        Selected::Pids(pids) => {
            for (pid, weight) in pids {
                args.extend(["--select-pid".to_owned(), pid.to_string()]);
                args.extend(["--weight".to_owned(), format!("{pid}={weight}")]);
            }
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::plan::Placement;

    #[test]
    fn arguments_are_those_of_an_operator() {
        let plan = DaemonPlan {
            period_ms: Some(50),
            placement: Placement::Rebalance,
        };
        let pids = Selected::Pids(vec![(Pid(7), 1.0), (Pid(8), 2.5)]);
        assert_eq!(
            arguments(&pids, &plan, Path::new("/run/x")).join(" "),
            "host run --print-ready --placement rebalance --state-dir /run/x --period-ms 50 \
             --select-pid 7 --weight 7=1 --select-pid 8 --weight 8=2.5"
        );
    }
}
