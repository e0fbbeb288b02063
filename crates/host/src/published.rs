//! What a running daemon says of its VMs in `STATE_DIR/status.json`: which weights are configured, since the cgroups hold those that are in force,
//! which VMs take turns, and what they are due.
//!
//! The file stays after kill -9: what it says counts for as long as the daemon lives that wrote it.

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

/// What a running daemon says of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Published {
    /// Its process; none from a daemon of an earlier version.
    #[serde(default)]
    pub(crate) daemon: Option<ThreadRef>,
    /// The VMs that it looks after.
    pub(crate) vms: Vec<PublishedVm>,
    /// How well the rhythm of turns is kept; none before anybody took one.
    #[serde(default)]
    pub(crate) turns: Option<TurnStats>,
    /// Why the policy `flexs` is off; none if it is not, or nobody asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) flexs_off: Option<String>,
}

/// What it says of a VM.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PublishedVm {
    /// Its process.
    pub(crate) process: ThreadRef,
    /// The cgroup whose weight is the VM's.
    pub(crate) cgroup: CgroupPath,
    /// The weight that counts.
    pub(crate) configured: Weight,
    /// The weight in force outside the idle class.
    #[serde(default)]
    pub(crate) weight: Option<Weight>,
    /// Whether it takes turns.
    #[serde(default)]
    pub(crate) turns: bool,
    /// Whether its vCPUs are apart.
    #[serde(default)]
    pub(crate) apart: bool,
    /// The newest account; none before the first.
    #[serde(default, flatten)]
    pub(crate) account: Option<Due>,
    /// What FlexS did for it; none unless its branches are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) flexs: Option<SpinAccount>,
    /// What its vCPUs want of its time; none unless a policy looks at single vCPUs.
    #[serde(default)]
    pub(crate) vcpus: BTreeMap<u32, Wanted>,
}

/// What a vCPU wants of its VM's time, as the policy `asymmetric` has it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// Due, of what is due to the VM, in pCPUs.
    pub due: f64,
    /// What it showed to want, in pCPUs.
    pub demand: f64,
    /// How urgent it is: 0 as any, up to 4 if it gets its time too late.
    pub urgency: u8,
}

/// The daemon's account of a VM, smoothed as its policies have it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Due {
    /// Due, in pCPUs.
    pub due: f64,
    /// Received, in pCPUs.
    pub received: f64,
    /// (due − received) ÷ due.
    pub lag: f64,
    /// Mean wait per run over the last second, in ms; none for a VM that did not run.
    pub wait_ms: Option<f64>,
}

/// Where it is.
pub(crate) fn file(state_dir: &Path) -> StatusFile {
    StatusFile::new(state_dir, "daemon")
}

/// Whether a daemon acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DaemonState {
    /// None has published anything.
    None,
    /// One that published lives.
    Running,
    /// The one that published was killed.
    Gone,
    /// None has left anything to put back here, and one that keeps its state elsewhere looks after some of the VMs.
    Elsewhere,
}

/// What the daemon published that is still there; of one that is gone nothing counts any more.
pub(crate) fn read(state_dir: &Path) -> (DaemonState, Published) {
    // Without a daemon there is none; one that cannot be read tells nothing.
    let published: Option<Published> = file(state_dir).read().ok().flatten();
    let Some(published) = published else {
        return (DaemonState::None, Published::default());
    };
    let lives = |daemon: ThreadRef| daemon.is_alive(&ProcFs::host());
    match published.daemon.is_none_or(lives) {
        true => (DaemonState::Running, published),
        false => (DaemonState::Gone, Published::default()),
    }
}
