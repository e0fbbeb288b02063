//! What a running agent says of itself, in `STATE_DIR/status.json`, and what it reports in the end.

use std::io;
use std::path::Path;
use std::path::PathBuf;

use serde::Deserialize;
use serde::Serialize;
use tandem_linux::replace::replace;
use tandem_linux::thread::ThreadRef;
use thiserror::Error;

/// The status could not be written or read.
#[derive(Debug, Error)]
#[error("cannot {action} the agent's status {path}: {source}")]
pub struct StatusError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

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
    /// For how long an idle vCPU stays awake, ns.
    pub retention_ns: u64,
    /// How vCPUs are kept awake.
    pub means: String,
    /// Why as many vCPUs.
    pub packing: String,
    /// Why they stay awake, or do not.
    pub awake: String,
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
    /// For how long an idle vCPU stays awake from then on, ns.
    pub retention_ns: u64,
    /// Why.
    pub because: Vec<String>,
}

/// A setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// vCPUs that the workload may use.
    pub vcpus: u32,
    /// For how long an idle vCPU stays awake, ns.
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
    /// How vCPUs were kept awake.
    pub means: String,
    /// The agent's own CPU time, ns.
    pub agent_cpu_ns: u64,
    /// Idle time for which vCPUs were kept awake, ns.
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

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("status.json")
}

/// Publishes the status, replacing the file whole.
pub fn write(state_dir: &Path, status: &Status) -> Result<(), StatusError> {
    let path = path(state_dir);
    let text = serde_json::to_string(status).unwrap_or_default();
    replace(&path, &text).map_err(|source| StatusError {
        action: "write",
        path,
        source,
    })
}

/// Takes the status away; nobody minds if there was none.
pub fn remove(state_dir: &Path) {
    let _ = std::fs::remove_file(path(state_dir));
}

/// What the agent of this state directory said last; `None` without one. Whether it still runs is told by
/// [`Status::agent`].
pub fn read(state_dir: &Path) -> Result<Option<Status>, StatusError> {
    let path = path(state_dir);
    let failed = |source| StatusError {
        action: "read",
        path: path.clone(),
        source,
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| failed(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}
