//! `tandem host status`: the running daemon and its VMs, or the changes that a killed daemon left.
//!
//! A running daemon answers on its control socket ([`crate::control`]).
//! It also publishes the configured weights and the VMs that take turns in `STATE_DIR/status.json`, for `top`, `why` and `export`.
//! The cgroups hold only the current weights.
//! The file stays after kill -9, and counts only while the process that wrote it lives.
//!
//! A daemon with another state directory appears in the host's file of claims ([`tandem_linux::claims`]), which only root can read.
//!
//! [`HostStatus`] in JSON is an interface: `schema` is raised when a field changes its meaning or is removed; fields may be added.

pub mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tandem_model::VmId;
use thiserror::Error;

pub use crate::published::{DaemonState, Due, Wanted};

use crate::control;
use crate::control::AskError;
use crate::discovery::{Discovery, DiscoveryError, DiscoveryOptions, Vm};
use crate::fleet::Fleet;
use crate::published::{Published, PublishedVm, file, read};
use crate::spins::{SpinAccount, Spins};
use crate::turns::TurnStats;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::claims::{ClaimsReader, HOST_CLAIMS};
use tandem_linux::journal::{is_abandoned, is_pending};
use tandem_linux::procfs::ProcFs;
use tandem_linux::status_file::StatusFileError;
use tandem_linux::thread::{Pid, ThreadRef};

/// The version of the JSON document.
pub const SCHEMA: u32 = 2;

/// Why there is no status.
#[derive(Debug, Error)]
pub enum StatusError {
    /// The daemon's status cannot be written.
    #[error(transparent)]
    File(#[from] StatusFileError),
    /// The daemon does not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Processes cannot be read.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
}

/// A managed or paused VM, as the daemon describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ManagedStatus {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// The number of its vCPUs.
    pub vcpus: usize,
    /// The cgroup whose weight is the VM's; `None` while it is paused.
    pub cgroup: Option<CgroupPath>,
    /// The policies that act on it.
    pub policies: Vec<String>,
    /// Its fair share, in pCPUs; `None` before the first decision.
    pub fair_share: Option<f64>,
    /// CPU time that it received, in pCPUs.
    pub received: Option<f64>,
    /// (fair share − received) ÷ fair share.
    pub lag: Option<f64>,
    /// Mean wait per run over the last second, in ms; `None` if no vCPU ran.
    pub wait_ms: Option<f64>,
    /// Current weight, in the units of the cgroup's knob; `None` while it is paused.
    pub weight: Option<f64>,
    /// Configured weight, in the same units.
    pub configured_weight: Option<f64>,
    /// Whether it takes turns.
    pub turns: bool,
    /// Whether each of its vCPUs has a cgroup of its own.
    pub apart: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// Swaps of the policy flexs; `None` unless it counts branches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flexs: Option<SpinAccount>,
    /// Demand of each vCPU, by its number; empty unless the policy asymmetric acts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub demands: BTreeMap<u32, Wanted>,
}

/// A running daemon, as it describes itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// When it started, in seconds since 1970.
    pub started: u64,
    /// For how long it has been running, in seconds.
    pub uptime: f64,
    /// Its settings file; `None` if it has options only.
    pub settings_file: Option<PathBuf>,
    /// Whether it changes nothing.
    pub dry_run: bool,
    /// Whether its settings select any VM.
    pub selects: bool,
    /// The policies of VMs without a rule.
    pub policies: Vec<String>,
    /// Lateness of turns since the start; `None` if no VM took a turn.
    pub turns: Option<TurnStats>,
    /// Why the policy flexs is off; `None` if it acts or is not selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flexs_off: Option<String>,
    /// The managed and the paused VMs, by name and process.
    pub vms: Vec<ManagedStatus>,
}

/// The service of a state directory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostStatus {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Whether a daemon runs.
    pub daemon: DaemonState,
    /// Whether a daemon that is gone left changes that `tandem host restore` reverts.
    pub unrestored: bool,
    /// The number of VMs that a daemon with another state directory manages, as far as that is known.
    pub elsewhere: usize,
    /// The daemon's own words; `None` if none runs.
    pub service: Option<ServiceStatus>,
}

/// Asks the daemon of a state directory; without one, reads what it left.
pub fn look(state_dir: &Path) -> Result<HostStatus, StatusError> {
    match control::status(state_dir) {
        Ok(service) => Ok(HostStatus {
            schema: SCHEMA,
            daemon: DaemonState::Running,
            unrestored: false,
            elsewhere: 0,
            service: Some(service),
        }),
        Err(AskError::NoDaemon(_)) => without_answer(state_dir),
        Err(error) => Err(error.into()),
    }
}

/// The status if no daemon listens.
fn without_answer(state_dir: &Path) -> Result<HostStatus, StatusError> {
    let daemon = read(state_dir).0;
    let unrestored = match daemon {
        DaemonState::Running | DaemonState::Elsewhere => false,
        DaemonState::Gone => is_pending(state_dir),
        DaemonState::None => is_abandoned(state_dir),
    };
    let scan = Discovery::new(DiscoveryOptions::default(), ProcFs::host())?.scan()?;
    let elsewhere = managed_elsewhere(Path::new(HOST_CLAIMS), daemon, &scan.vms);
    Ok(HostStatus {
        schema: SCHEMA,
        daemon: state_of(daemon, unrestored, elsewhere > 0),
        unrestored,
        elsewhere,
        service: None,
    })
}

/// Publishes the daemon's view.
pub(crate) fn write(
    state_dir: &Path,
    fleet: &Fleet,
    accounts: &BTreeMap<VmId, Due>,
    wanted: &BTreeMap<VmId, BTreeMap<u32, Wanted>>,
    turns: Option<TurnStats>,
    spins: &Spins,
) -> Result<(), StatusError> {
    // A VM without changes is fully described by its cgroup.
    let vms = fleet
        .vms()
        .filter(|managed| !managed.is_left_alone())
        .map(|managed| PublishedVm {
            process: managed.vm.process,
            cgroup: managed.cgroup().clone(),
            configured: managed.configured,
            weight: Some(managed.weight()),
            turns: managed.takes_turns(),
            apart: managed.is_divided(),
            account: accounts.get(&managed.vm.id).cloned(),
            flexs: spins.of(managed.vm.id).cloned(),
            vcpus: wanted.get(&managed.vm.id).cloned().unwrap_or_default(),
        })
        .collect();
    let daemon = ThreadRef::of_process(&ProcFs::host(), Pid(std::process::id())).ok();
    let flexs_off = spins.off.clone();
    Ok(file(state_dir).write(&Published { daemon, vms, turns, flexs_off })?)
}

/// Returns the FlexS accounts by process; empty without a daemon that counts branches.
pub fn spins(state_dir: &Path) -> BTreeMap<Pid, SpinAccount> {
    let vms = read(state_dir).1.vms.into_iter();
    let of = |vm: PublishedVm| Some((vm.process.pid, vm.flexs?));
    vms.filter_map(of).collect()
}

/// Removes the daemon's view, if there is one.
pub fn remove(state_dir: &Path) {
    file(state_dir).remove();
}

/// Removes the view of a killed daemon, after its changes were reverted.
pub fn remove_of_gone(state_dir: &Path) {
    if read(state_dir).0 == DaemonState::Gone {
        remove(state_dir);
    }
}

/// Combines the states: `unrestored` changes of a killed daemon precede a daemon `elsewhere`, which precedes `here`.
/// This also holds if the daemon was killed before it published anything.
fn state_of(here: DaemonState, unrestored: bool, elsewhere: bool) -> DaemonState {
    match (unrestored, elsewhere) {
        (true, _) => DaemonState::Gone,
        (false, true) => DaemonState::Elsewhere,
        (false, false) => here,
    }
}

/// Returns the number of VMs that a daemon with another state directory manages, if the host tells: the kernel does not say whose a
/// claim is, so if a daemon runs here, all claims count as its own.
fn managed_elsewhere(claims: &Path, daemon: DaemonState, vms: &[Vm]) -> usize {
    let reader = match daemon {
        DaemonState::Running => None,
        // Only root may read it.
        _ => ClaimsReader::open(claims).ok().flatten(),
    };
    let Some(reader) = reader else {
        return 0;
    };
    vms.iter().filter(|vm| reader.is_claimed(vm.process.pid).unwrap_or(false)).count()
}

/// Returns the VMs that a running daemon manages, by process, and whether each takes turns.
pub(crate) fn managed(state_dir: &Path) -> BTreeMap<ThreadRef, bool> {
    let (_, published) = read(state_dir);
    let vms = published.vms.into_iter();
    vms.map(|vm| (vm.process, vm.turns)).collect()
}

#[cfg(test)]
mod tests {
    use tandem_linux::claims::Claims;
    use tandem_model::Weight;

    use super::*;
    use crate::fixtures;

    const PROCESS: &str = r#"{"pid":7,"tid":7,"start":99}"#;

    fn published(vm: &str) -> Published {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(r#"{{"vms":[{{"process":{PROCESS},{vm}}}]}}"#);
        std::fs::write(dir.path().join("status.json"), text).unwrap();
        file(dir.path()).read().unwrap().unwrap()
    }

    #[test]
    fn a_file_of_an_earlier_daemon_is_read() {
        let old = published(r#""cgroup":"/a","configured":512.0"#);
        assert_eq!(old.vms[0].configured, Weight::constant(512.0));
        assert!(!old.vms[0].turns && old.vms[0].account.is_none() && old.turns.is_none());
    }

    #[test]
    fn view_counts_while_its_daemon_lives() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).0, DaemonState::None);
        let me = ThreadRef::of_process(&ProcFs::host(), Pid(std::process::id())).unwrap();
        let mut published = published(r#""cgroup":"/a","configured":512.0,"turns":true"#);
        let mut state_of = |daemon: Option<ThreadRef>| {
            published.daemon = daemon;
            file(dir.path()).write(&published).unwrap();
            let (state, published) = read(dir.path());
            (state, published.vms.len())
        };
        assert_eq!(state_of(None), (DaemonState::Running, 1));
        assert_eq!(state_of(Some(me)), (DaemonState::Running, 1));
        remove_of_gone(dir.path());
        assert_eq!(read(dir.path()).0, DaemonState::Running);
        // The PID was reused.
        let mut earlier = me;
        earlier.start.0 -= 1;
        assert_eq!(state_of(Some(earlier)), (DaemonState::Gone, 0));
        remove_of_gone(dir.path());
        assert_eq!(read(dir.path()).0, DaemonState::None);
    }

    #[test]
    fn account_and_configuration_are_published() {
        let vm = r#""cgroup":"/a","configured":512.0,"weight":300.0,"turns":true,
                    "due":1.0,"received":0.9,"lag":0.1,"wait_ms":null"#;
        let vms = published(vm).vms;
        let account = vms[0].account.as_ref().unwrap();
        assert_eq!((account.due, account.received, account.wait_ms), (1.0, 0.9, None));
        let text = serde_json::to_value(&vms[0]).unwrap();
        assert_eq!((&text["due"], &text["turns"]), (&1.0.into(), &true.into()));
    }

    #[test]
    fn vms_of_other_state_directory_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vms.lock");
        let vms = [fixtures::vm(1, "a", 1), fixtures::vm(2, "b", 1)];
        let of = |daemon| managed_elsewhere(&path, daemon, &vms);
        assert_eq!(of(DaemonState::None), 0, "no daemon ever ran");
        let mut claims = Claims::open(&path).unwrap();
        assert_eq!(of(DaemonState::None), 0);
        assert!(claims.claim(vms[1].process.pid).unwrap());
        assert_eq!(of(DaemonState::None), 1);
        assert_eq!(of(DaemonState::Gone), 1);
        assert_eq!(of(DaemonState::Running), 0, "they may be its own");
        drop(claims);
        assert_eq!(of(DaemonState::None), 0);
    }

    #[test]
    fn changes_of_killed_daemon_are_reported_first() {
        let (gone, elsewhere) = (DaemonState::Gone, DaemonState::Elsewhere);
        assert_eq!(state_of(gone, true, true), gone);
        assert_eq!(state_of(gone, false, true), elsewhere);
        assert_eq!(state_of(DaemonState::None, false, true), elsewhere);
        assert_eq!(state_of(DaemonState::None, true, true), gone);
        assert_eq!(state_of(DaemonState::None, false, false), DaemonState::None);
    }
}
