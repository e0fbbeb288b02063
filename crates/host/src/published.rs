//! The daemon's view of its VMs in `STATE_DIR/status.json`: configured weights, turns and fair shares.
//! The cgroups hold only the current weights.
//!
//! The file stays after kill -9, so it counts only while the daemon that wrote it lives.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tandem_model::Weight;

use crate::spins::SpinAccount;
use crate::turns::TurnStats;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::procfs::ProcFs;
use tandem_linux::status_file::StatusFile;
use tandem_linux::thread::ThreadRef;

/// The daemon's view.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Published {
    /// Its process; `None` from a daemon of an earlier version.
    #[serde(default)]
    pub(crate) daemon: Option<ThreadRef>,
    /// The managed VMs.
    pub(crate) vms: Vec<PublishedVm>,
    /// Punctuality of the turns; `None` before the first turn.
    #[serde(default)]
    pub(crate) turns: Option<TurnStats>,
    /// Why the policy `flexs` is off; `None` if it is on or not configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) flexs_off: Option<String>,
}

/// The daemon's view of a VM.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PublishedVm {
    /// Its process.
    pub(crate) process: ThreadRef,
    /// The cgroup whose weight is the VM's.
    pub(crate) cgroup: CgroupPath,
    /// The configured weight.
    pub(crate) configured: Weight,
    /// The current weight outside the idle class.
    #[serde(default)]
    pub(crate) weight: Option<Weight>,
    /// Whether it takes turns.
    #[serde(default)]
    pub(crate) turns: bool,
    /// Whether each of its vCPUs has a cgroup of its own.
    #[serde(default)]
    pub(crate) apart: bool,
    /// The last account; `None` before the first.
    #[serde(default, flatten)]
    pub(crate) account: Option<Due>,
    /// Account of FlexS; `None` unless branches are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) flexs: Option<SpinAccount>,
    /// Demand of its vCPUs; empty unless a policy treats single vCPUs.
    #[serde(default)]
    pub(crate) vcpus: BTreeMap<u32, Wanted>,
}

/// Demand of a vCPU, as seen by the policy `asymmetric`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// Its part of the VM's fair share, in pCPUs.
    pub due: f64,
    /// Its demand, in pCPUs.
    pub demand: f64,
    /// Its urgency: 0 is normal, up to 4 if it receives its time too late.
    pub urgency: u8,
}

/// The daemon's account of a VM, smoothed as for its policies.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Due {
    /// Fair share, in pCPUs.
    pub due: f64,
    /// Received time, in pCPUs.
    pub received: f64,
    /// (due − received) ÷ due.
    pub lag: f64,
    /// Mean wait per run over the last second, in ms; `None` if the VM did not run.
    pub wait_ms: Option<f64>,
}

/// Returns the file.
pub(crate) fn file(state_dir: &Path) -> StatusFile {
    StatusFile::new(state_dir, "daemon")
}

/// Whether a daemon acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DaemonState {
    /// No daemon has published anything.
    None,
    /// The daemon that published lives.
    Running,
    /// The daemon that published was killed.
    Gone,
    /// No daemon left changes here, and one with another state directory manages some of the VMs.
    Elsewhere,
}

/// Returns the published view if its daemon lives.
pub(crate) fn read(state_dir: &Path) -> (DaemonState, Published) {
    // An absent or unreadable file counts as no daemon.
    let published: Option<Published> = file(state_dir).read().ok().flatten();
    let Some(published) = published else {
        return (DaemonState::None, Published::default());
    };
    let lives = |daemon: ThreadRef| daemon.is_alive(&ProcFs::host());
    if published.daemon.is_none_or(lives) {
        (DaemonState::Running, published)
    } else {
        (DaemonState::Gone, Published::default())
    }
}
