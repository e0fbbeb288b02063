//! Status of a running agent, in `STATE_DIR/status.json`, and report of a finished one.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tandem_linux::ProcFs;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::journal::is_pending;
use tandem_linux::status_file::{StatusFile, StatusFileError};
use tandem_linux::thread::ThreadRef;

use crate::cpusets::Cpusets;
use crate::retention::Haltpoll;

/// Status of a running agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The agent's process.
    pub agent: ThreadRef,
    /// The workload.
    pub workload: String,
    /// The workload's cgroup; none in a dry run.
    pub cgroup: Option<String>,
    /// vCPUs that it could use.
    pub vcpus: String,
    /// vCPUs that it may use now.
    pub active: String,
    /// Retention: for how long an idle vCPU is kept awake, ns.
    pub retention_ns: u64,
    /// The means of retention.
    pub means: String,
    /// Reason for the number of vCPUs.
    #[serde(alias = "packing")]
    pub consolidation: String,
    /// Reason for the retention.
    #[serde(alias = "awake")]
    pub retention: String,
    /// Part of the vCPUs' time that the host took in the last period, 0 … 1.
    pub stolen: f64,
    /// Part of the time in which an active vCPU worked, 0 … 1.
    pub utilization: f64,
    /// Periods so far.
    pub periods: u64,
    /// The agent's own CPU time, ns.
    pub agent_cpu_ns: u64,
    /// Delayed scheduling: current setting and its reason.
    #[serde(default)]
    pub delay: String,
}

/// A change of delayed scheduling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayChanged {
    /// When, since the agent began, ms.
    pub at_ms: u64,
    /// Timer slack from then on, ns; zero: as the workload has it.
    pub slack_ns: u64,
    /// Whether woken threads do not preempt from then on.
    pub batch: bool,
    /// Why.
    pub because: String,
}

/// A decision that changed something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// When, since the agent began, ms.
    pub at_ms: u64,
    /// vCPUs that the workload may use from then on.
    pub vcpus: u32,
    /// Retention from then on, ns.
    pub retention_ns: u64,
    /// Why.
    pub because: Vec<String>,
}

/// A setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// vCPUs that the workload may use.
    pub vcpus: u32,
    /// Retention: for how long an idle vCPU is kept awake, ns.
    pub retention_ns: u64,
}

/// Report of an agent's run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Every change, the first ones if there were very many.
    pub decisions: Vec<Changed>,
    /// The setting under which the workload worked longest.
    pub choice: Setting,
    /// First use of that setting, ms after the start.
    pub settled_ms: u64,
    /// The means of retention.
    pub means: String,
    /// The agent's own CPU time, ns.
    pub agent_cpu_ns: u64,
    /// Idle time that retention burnt, ns.
    pub retention_burnt_ns: u64,
    /// How long it lasted, ns.
    pub lasted_ns: u64,
    /// Periods.
    pub periods: u64,
    /// Threads that were bound to a vCPU of their own as they were born.
    #[serde(default)]
    pub bound_at_birth: u64,
    /// Threads that were bound at the next period.
    #[serde(default)]
    pub bound_later: u64,
    /// Delayed scheduling: the timer slack in the end, ns; zero: as the workload has it.
    #[serde(default)]
    pub delay_slack_ns: u64,
    /// Whether woken threads did not preempt in the end.
    #[serde(default)]
    pub delay_batch: bool,
    /// Every change of delayed scheduling, the first ones if there were very many.
    #[serde(default)]
    pub delays: Vec<DelayChanged>,
}

/// Summarizes the run in one line.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let Setting { vcpus, retention_ns } = self.choice;
        let choice = match self.periods {
            0 => "nothing was observed".to_owned(),
            _ => format!(
                "most of the work was done on {vcpus} vCPUs with a retention of {:.0} us",
                retention_ns as f64 / 1e3
            ),
        };
        write!(
            f,
            "after {:.1} s: {choice}; {} changes; retention burnt {:.2} s of idle time, the agent took {:.2} s of CPU time",
            seconds(self.lasted_ns),
            self.decisions.len(),
            seconds(self.retention_burnt_ns),
            seconds(self.agent_cpu_ns),
        )
    }
}

/// Returns the state directories of all agents: of a manually started one, and of systemd units (`/run/tandem-guest-NAME`).
pub fn state_dirs(run: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> = entries
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name == "tandem-guest" || name.starts_with("tandem-guest-")
        })
        .map(|entry| entry.path())
        .collect();
    dirs.sort();
    dirs
}

/// Returns the selected state directories: `dir`, that of the unit's agent, or those of all agents.
pub fn dirs_of(dir: Option<&Path>, unit: Option<&str>) -> Vec<PathBuf> {
    let of_unit = unit.map(state_dir_of_unit);
    match dir.map(Path::to_owned).or(of_unit) {
        Some(dir) => vec![dir],
        None => state_dirs(Path::new("/run")),
    }
}

/// Describes the state of agents and the means that this VM offers.
pub fn of_vm(procfs: &ProcFs, running: &[Status], dirs: &[PathBuf]) -> String {
    let mut lines = Vec::new();
    if running.is_empty() {
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        lines.push(if dirs.is_empty() {
            "no agent runs here (there is no state directory /run/tandem-guest*)".to_owned()
        } else {
            format!("no agent runs here (none with the state directory {})", dirs.join(", "))
        });
    }
    let is_left =
        |dir: &&PathBuf| is_pending(dir) && !matches!(self::running(dir, procfs), Ok(Some(_)));
    lines.extend(dirs.iter().filter(is_left).map(|dir| {
        format!(
            "an agent was killed: `tandem guest restore --state-dir {}` reverts its changes",
            dir.display()
        )
    }));
    lines.push(match Haltpoll::find(procfs) {
        Ok(_) => "idle vCPUs can be kept awake by the kernel's haltpoll".to_owned(),
        Err(why) => format!("idle vCPUs can be kept awake by yielding threads only: {why}"),
    });
    lines.push(match Cpusets::open(procfs) {
        Ok(cpusets) => format!(
            "vCPUs are set by cgroup {} at {}",
            cpusets.version(),
            cpusets.mount().display()
        ),
        Err(error) => format!("vCPUs cannot be set: {error}"),
    });
    lines.join("\n")
}

/// Returns the state directory of a unit's agent, as in `packaging/systemd/tandem-guest@.service`.
pub fn state_dir_of_unit(unit: &str) -> PathBuf {
    PathBuf::from(format!("/run/tandem-guest-{}", bare(unit)))
}

/// Returns the cgroup of a unit in the default slice.
pub fn cgroup_of_unit(unit: &str) -> CgroupPath {
    CgroupPath(format!("/system.slice/{}.service", bare(unit)))
}

fn bare(unit: &str) -> &str {
    unit.strip_suffix(".service").unwrap_or(unit)
}

/// Returns the status file in this state directory; [`Status::agent`] shows whether its writer still runs.
pub fn file(state_dir: &Path) -> StatusFile {
    StatusFile::new(state_dir, "agent")
}

/// Returns the status of the running agent with this state directory, if any.
pub fn running(state_dir: &Path, procfs: &ProcFs) -> Result<Option<Status>, StatusFileError> {
    let published: Option<Status> = file(state_dir).read()?;
    Ok(published.filter(|status| status.agent.is_alive(procfs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_of_units_are_found() {
        let run = tempfile::tempdir().unwrap();
        for name in ["tandem-guest-web", "tandem", "tandem-guest", "other"] {
            std::fs::create_dir(run.path().join(name)).unwrap();
        }
        let found = state_dirs(run.path());
        let wanted = ["tandem-guest", "tandem-guest-web"].map(|name| run.path().join(name));
        assert_eq!(found, wanted);
        assert_eq!(state_dirs(Path::new("/nowhere")), Vec::<PathBuf>::new());
        for unit in ["web", "web.service"] {
            assert_eq!(state_dir_of_unit(unit), Path::new("/run/tandem-guest-web"));
            assert_eq!(cgroup_of_unit(unit).0, "/system.slice/web.service");
        }
    }

    #[test]
    fn summary_has_choice_and_duration() {
        let report = Report {
            choice: Setting { vcpus: 2, retention_ns: 200_000 },
            periods: 30,
            lasted_ns: 3_200_000_000,
            ..Report::default()
        };
        let said = report.to_string();
        assert!(said.contains("after 3.2 s"), "{said}");
        assert!(said.contains("2 vCPUs with a retention of 200 us"), "{said}");
        let said = Report::default().to_string();
        assert!(said.contains("nothing was observed"), "{said}");
    }

    #[test]
    fn status_of_earlier_version_is_read() {
        let text = r#"{"agent":{"pid":1,"tid":1,"start":2},"workload":"make","cgroup":null,"vcpus":"0-1",
            "active":"0","retention_ns":0,"means":"","packing":"fits","awake":"off","stolen":0.0,
            "utilization":0.5,"periods":3,"agent_cpu_ns":4}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!((&*status.consolidation, &*status.retention), ("fits", "off"));
        let text = serde_json::to_string(&status).unwrap();
        assert!(text.contains(r#""consolidation":"fits","retention":"off""#), "{text}");
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    }
}
