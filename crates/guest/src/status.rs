//! What a running agent says of itself, in `STATE_DIR/status.json`, and what it reports in the end.

use std::path::Path;

use serde::Deserialize;
use serde::Serialize;
use tandem_linux::status_file::StatusFile;
use tandem_linux::thread::ThreadRef;

/// What an agent does now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The agent's process.
    pub agent: ThreadRef,
    /// Whom it helps.
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
    /// Why so many vCPUs.
    #[serde(alias = "packing")]
    pub consolidation: String,
    /// Why such a retention.
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

/// What an agent did, from beginning to end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Every change, the first ones if there were very many.
    pub decisions: Vec<Changed>,
    /// The setting in force for most of the time in which the workload worked.
    pub choice: Setting,
    /// When that setting was first in force, ms after the beginning.
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
}

/// The agent's status file in this state directory. Whether the agent that wrote it still runs is told by
/// [`Status::agent`].
pub fn file(state_dir: &Path) -> StatusFile {
    StatusFile::new(state_dir, "agent")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_an_earlier_agent_is_still_read() {
        let text = r#"{"agent":{"pid":1,"tid":1,"start":2},"workload":"make","cgroup":null,"vcpus":"0-1",
            "active":"0","retention_ns":0,"means":"","packing":"fits","awake":"off","stolen":0.0,
            "utilization":0.5,"periods":3,"agent_cpu_ns":4}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!(
            (&*status.consolidation, &*status.retention),
            ("fits", "off")
        );
        let text = serde_json::to_string(&status).unwrap();
        assert!(
            text.contains(r#""consolidation":"fits","retention":"off""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    }
}
