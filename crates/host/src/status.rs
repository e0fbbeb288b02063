//! `tandem host status`: what every VM and vCPU on the host receives, with or without a daemon.
//!
//! One interval of [`tandem_observe`], and the same fair shares as the policy's, level by level, beside all VMs of the host, also those that are not
//! selected. A running daemon
//! publishes in `STATE_DIR/status.json` which weights are configured, because the cgroups hold the
//! real-time ones, and which VMs take turns; without it, a VM's own cgroup says what its weight is, and a VM that has none
//! counts with the kernel's default. The file stays after kill -9: what it says counts for as long as the daemon lives that wrote it.
//!
//! What a daemon with another state directory published is not known here. That it looks after a VM shows in the host's file of claims
//! ([`tandem_linux::claims`]), which only root can read. Such a VM's cgroup has the weight that the daemon keeps in force, so neither what is
//! configured nor what the VM is due is known; nor is it of a VM that is in the idle class, where a cgroup has no weight.
//!
//! The file also has the daemon's own, smoothed figures, for other programs: `due`, `received` (pCPUs), `lag`, `wait_ms` of each VM.

pub mod text;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tandem_observe::Source;
use tandem_policy::Nanos;
use tandem_policy::PcpuSet;
use tandem_policy::VcpuId;
use tandem_policy::VmId;
use tandem_policy::states::interval::VmInterval;
use thiserror::Error;

pub use crate::published::DaemonState;
pub use crate::published::Due;
pub use crate::published::Wanted;

use crate::discovery::DiscoveryOptions;
use crate::discovery::Vm;
use crate::fleet::Fleet;
use crate::published::Published;
use crate::published::PublishedVm;
use crate::published::file;
use crate::published::read;
use crate::select::Selector;
use crate::spins::SpinAccount;
use crate::spins::Spins;
use crate::turns::TurnStats;
use crate::waits::mean;
use crate::watch::Look;
use crate::watch::LookError;
use crate::watch::assessed;
use crate::weights::Weighed;
use crate::weights::Weights;
use crate::weights::weigh;
use tandem_linux::cgroup;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::claims::ClaimsReader;
use tandem_linux::claims::HOST_CLAIMS;
use tandem_linux::journal::is_abandoned;
use tandem_linux::journal::is_pending;
use tandem_linux::procfs::ProcFs;
use tandem_linux::status_file::StatusFileError;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;

/// Why there is no status.
#[derive(Debug, Error)]
pub enum StatusError {
    /// The daemon's status cannot be written.
    #[error(transparent)]
    File(#[from] StatusFileError),
    /// The host cannot be looked at.
    #[error(transparent)]
    Look(#[from] LookError),
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
    // Of a VM that is left as it is there is nothing to tell that its cgroup does not.
    let vms = fleet
        .vms()
        .filter(|managed| !managed.is_left_alone())
        .map(|managed| PublishedVm {
            process: managed.vm.process,
            cgroup: managed.cgroup.clone(),
            configured: managed.configured,
            weight: Some(managed.in_force.weight),
            turns: managed.in_force.rotating,
            apart: managed.is_apart(),
            account: accounts.get(&managed.vm.id).cloned(),
            flexs: spins.of(managed.vm.id).cloned(),
            vcpus: wanted.get(&managed.vm.id).cloned().unwrap_or_default(),
        })
        .collect();
    let daemon = ThreadRef::of_process(&ProcFs::host(), Pid(std::process::id())).ok();
    let flexs_off = spins.off.clone();
    Ok(file(state_dir).write(&Published {
        daemon,
        vms,
        turns,
        flexs_off,
    })?)
}

/// What the policy `flexs` did for each VM, by its process; empty without a daemon that counts branches.
pub fn spins(state_dir: &Path) -> BTreeMap<Pid, SpinAccount> {
    let vms = read(state_dir).1.vms.into_iter();
    let of = |vm: PublishedVm| Some((vm.process.pid, vm.flexs?));
    vms.filter_map(of).collect()
}

/// Takes the daemon's view away; nobody minds if there was none.
pub fn remove(state_dir: &Path) {
    file(state_dir).remove();
}

/// Takes away the view of a daemon that is gone, once what it changed is put back.
pub fn remove_of_gone(state_dir: &Path) {
    if read(state_dir).0 == DaemonState::Gone {
        remove(state_dir);
    }
}

/// One vCPU over the interval.
#[derive(Clone, Debug, Serialize)]
pub struct VcpuStatus {
    /// Its number in the VM.
    pub index: VcpuId,
    /// Its thread.
    pub tid: u32,
    /// Part of the interval it ran.
    pub cpu: f64,
    /// Part of the interval it was runnable without running (steal).
    pub wait: f64,
    /// Mean wait per run, in ms; none if it did not run.
    pub wait_ms: Option<f64>,
    /// Where it may run.
    pub allowed: PcpuSet,
    /// What it wants of its VM's time; none unless a running daemon looks at single vCPUs (policy `asymmetric`).
    #[serde(flatten)]
    pub wanted: Option<Wanted>,
}

/// One VM over the interval.
#[derive(Clone, Debug, Serialize)]
pub struct VmStatus {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// What kind of VMM runs it.
    pub vmm: String,
    /// The cgroup whose weight is the VM's; none if its vCPUs share a cgroup with others.
    pub cgroup: Option<CgroupPath>,
    /// Whether a running daemon looks after it.
    pub managed: bool,
    /// Whether a daemon that keeps its state elsewhere looks after it.
    pub elsewhere: bool,
    /// Configured weight w_i, in the knob's units; none if that is not known.
    pub configured: Option<f64>,
    /// The weight in force, in the knob's units; none without a cgroup, and in the idle class.
    pub weight: Option<f64>,
    /// Whether its cgroup is in the idle class, other than for turns.
    pub idle: bool,
    /// Whether it takes turns (a running daemon says so).
    pub turns: bool,
    /// Whether each of its vCPUs has a group of its own beside the VM's, with a part of its weight (a running daemon says so).
    pub apart: bool,
    /// What FlexS did for it; none unless a running daemon counts branches (policy `flexs`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flexs: Option<SpinAccount>,
    /// Received, in pCPUs.
    pub received: f64,
    /// Due, in pCPUs: its fair share by weights of what it could use; none if its weight is not known, or if it was not measured.
    pub due: Option<f64>,
    /// (due − received) ÷ due.
    pub lag: Option<f64>,
    /// Mean wait per run of its vCPUs, in ms; none if none of them ran.
    pub wait_ms: Option<f64>,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuStatus>,
}

/// The whole host over the interval.
#[derive(Clone, Debug, Serialize)]
pub struct HostStatus {
    /// `v1` or `v2`: which interface holds the cpu controller.
    pub cgroup: cgroup::Version,
    /// Length of the interval, in seconds.
    pub seconds: f64,
    /// Idle pCPUs over the interval; none if that is not measured.
    pub idle: Option<f64>,
    /// Whether a daemon acts.
    pub daemon: DaemonState,
    /// Whether a daemon that is gone left changes that `tandem host restore` puts back.
    pub unrestored: bool,
    /// How well the rhythm of turns is kept since the daemon started; none without a daemon, or before anybody took one.
    pub turns: Option<TurnStats>,
    /// Why the policy `flexs` of a running daemon is off, such as for want of a PMU; none if it is not, or nobody asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flexs_off: Option<String>,
    /// The selected VMs, by process id.
    pub vms: Vec<VmStatus>,
    /// How many VMs there are, selected or not.
    #[serde(skip)]
    pub found: usize,
}

/// Observes the host again and again.
pub struct Watcher {
    look: Look,
    selector: Selector,
}

impl Watcher {
    /// Opens what is needed to look, with this source; nothing is changed.
    pub fn open(
        source: Box<dyn Source>,
        options: DiscoveryOptions,
        selector: Selector,
        state_dir: &Path,
    ) -> Result<Watcher, StatusError> {
        Ok(Watcher {
            look: Look::open(source, options, state_dir)?,
            selector,
        })
    }

    /// Watches for `interval` and reports.
    pub fn observe(&mut self, interval: Duration) -> Result<HostStatus, StatusError> {
        let all = self.look.begin()?;
        std::thread::sleep(interval);
        let interval = self.look.interval_with(&all)?;
        let controller = self.look.controller.as_ref();
        let (daemon, published) = read(&self.look.state_dir);
        let by_process: BTreeMap<_, _> = published.vms.iter().map(|vm| (vm.process, vm)).collect();
        let published_of = |vm: &Vm| by_process.get(&vm.process).copied();
        let elsewhere = looked_after_elsewhere(Path::new(HOST_CLAIMS), daemon, &all);
        let weighed = weigh(controller, &published.vms, &all);
        let accounts = assessed(&interval, &Weights::new(controller, &weighed));
        let measured: BTreeMap<VmId, &VmInterval> =
            interval.vms.iter().map(|vm| (vm.vm, vm)).collect();
        let selected = all
            .iter()
            .filter(|vm| self.selector.matches(vm, controller));
        let pcpus = |time: Nanos| time.0 as f64 / interval.length.0.max(1) as f64;
        let vms: Vec<VmStatus> = selected
            .filter_map(|vm| {
                let mut status = status_of(
                    vm,
                    measured.get(&vm.id).copied(),
                    weighed.get(&vm.id)?,
                    published_of(vm),
                    elsewhere.contains(&vm.process),
                );
                if let Some(account) = accounts.get(&vm.id) {
                    status.received = pcpus(account.received);
                    if status.configured.is_some() {
                        status.due = Some(pcpus(account.fair));
                        status.lag = Some(account.lag);
                    }
                }
                Some(status)
            })
            .collect();
        let unrestored = match daemon {
            DaemonState::Running | DaemonState::Elsewhere => false,
            DaemonState::Gone => is_pending(&self.look.state_dir),
            DaemonState::None => is_abandoned(&self.look.state_dir),
        };
        let elsewhere = vms.iter().any(|vm| vm.elsewhere);
        Ok(HostStatus {
            cgroup: controller.version(),
            seconds: interval.length.as_secs_f64(),
            idle: interval.host.idle.map(pcpus),
            daemon: state_of(daemon, unrestored, elsewhere),
            unrestored,
            turns: published.turns.clone(),
            flexs_off: published.flexs_off.clone(),
            vms,
            found: all.len(),
        })
    }
}

/// Whether a daemon acts on VMs, which another one `elsewhere` looks after or not. What one that is gone left behind here is not forgotten over that, nor
/// where it was gone before it said that it is there.
fn state_of(here: DaemonState, unrestored: bool, elsewhere: bool) -> DaemonState {
    match (unrestored, elsewhere) {
        (true, _) => DaemonState::Gone,
        (false, true) => DaemonState::Elsewhere,
        (false, false) => here,
    }
}

/// The processes whose VMs a daemon looks after that keeps its state elsewhere, as far as that can be told: the kernel does not say whose a claim
/// is, so where a daemon runs that is known all claims are taken for its.
fn looked_after_elsewhere(claims: &Path, daemon: DaemonState, vms: &[Vm]) -> BTreeSet<ThreadRef> {
    let reader = match daemon {
        DaemonState::Running => None,
        // Who may not read it, as who is not root, is told nothing.
        _ => ClaimsReader::open(claims).ok().flatten(),
    };
    let processes = vms.iter().map(|vm| vm.process);
    let Some(reader) = reader else {
        return BTreeSet::new();
    };
    processes
        .filter(|process| reader.is_claimed(process.pid).unwrap_or(false))
        .collect()
}

/// What was measured of a VM, without what it is due.
fn status_of(
    vm: &Vm,
    measured: Option<&VmInterval>,
    weighed: &Weighed,
    published: Option<&PublishedVm>,
    elsewhere: bool,
) -> VmStatus {
    let is_known = published.is_some() || !(elsewhere || weighed.is_idle);
    let measured = measured.map_or(&[][..], |measured| &measured.vcpus);
    let vcpus = measured.iter().map(|vcpu| {
        let thread = vm.vcpus.iter().find(|known| known.index == vcpu.vcpu);
        let part = |time: Nanos| time.0 as f64 / vcpu.times.wall().0.max(1) as f64;
        VcpuStatus {
            index: vcpu.vcpu,
            tid: thread.map_or(0, |known| known.thread.tid.0),
            cpu: part(vcpu.ran),
            wait: part(vcpu.waited),
            wait_ms: wait_ms(vcpu.waited, vcpu.runs),
            allowed: vcpu.allowed.clone(),
            wanted: published.and_then(|vm| vm.vcpus.get(&vcpu.vcpu.0).copied()),
        }
    });
    let waited: Nanos = measured.iter().map(|vcpu| vcpu.waited).sum();
    let runs = measured.iter().map(|vcpu| vcpu.runs).sum();
    VmStatus {
        name: vm.name.clone(),
        pid: vm.process.pid.0,
        vmm: vm.vmm.to_string(),
        managed: published.is_some(),
        elsewhere,
        configured: is_known.then(|| weighed.configured.value()),
        idle: weighed.is_idle,
        weight: weighed.weight.map(|weight| weight.value()),
        cgroup: weighed.cgroup.clone(),
        turns: published.is_some_and(|vm| vm.turns),
        apart: published.is_some_and(|vm| vm.apart),
        flexs: published.and_then(|vm| vm.flexs.clone()),
        received: 0.0,
        due: None,
        lag: None,
        wait_ms: wait_ms(waited, runs),
        vcpus: vcpus.collect(),
    }
}

/// The VMs that a running daemon looks after, by process, and whether each takes turns.
pub(crate) fn managed(state_dir: &Path) -> BTreeMap<ThreadRef, bool> {
    let (_, published) = read(state_dir);
    let vms = published.vms.into_iter();
    vms.map(|vm| (vm.process, vm.turns)).collect()
}

/// Mean wait per run, in ms.
fn wait_ms(waited: Nanos, runs: u64) -> Option<f64> {
    mean(waited, runs).map(|mean| mean.0 as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use tandem_linux::claims::Claims;
    use tandem_policy::Weight;

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
    fn what_a_daemon_said_counts_for_as_long_as_it_lives() {
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
        // Its number belongs to another process by now.
        let mut earlier = me;
        earlier.start.0 -= 1;
        assert_eq!(state_of(Some(earlier)), (DaemonState::Gone, 0));
        remove_of_gone(dir.path());
        assert_eq!(read(dir.path()).0, DaemonState::None);
    }

    #[test]
    fn the_account_stands_beside_what_is_configured() {
        let vm = r#""cgroup":"/a","configured":512.0,"weight":300.0,"turns":true,
                    "due":1.0,"received":0.9,"lag":0.1,"wait_ms":null"#;
        let vms = published(vm).vms;
        let account = vms[0].account.as_ref().unwrap();
        assert_eq!(
            (account.due, account.received, account.wait_ms),
            (1.0, 0.9, None)
        );
        let text = serde_json::to_value(&vms[0]).unwrap();
        assert_eq!((&text["due"], &text["turns"]), (&1.0.into(), &true.into()));
    }

    #[test]
    fn vms_of_a_daemon_with_another_state_directory_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vms.lock");
        let vms = [fixtures::vm(1, "a", 1), fixtures::vm(2, "b", 1)];
        let of = |daemon| looked_after_elsewhere(&path, daemon, &vms);
        assert!(of(DaemonState::None).is_empty(), "no daemon ever ran");
        let mut claims = Claims::open(&path).unwrap();
        assert!(of(DaemonState::None).is_empty());
        assert!(claims.claim(vms[1].process.pid).unwrap());
        assert_eq!(of(DaemonState::None), BTreeSet::from([vms[1].process]));
        assert_eq!(of(DaemonState::Gone).len(), 1);
        assert!(of(DaemonState::Running).is_empty(), "they may be its own");
        drop(claims);
        assert!(of(DaemonState::None).is_empty());
    }

    #[test]
    fn what_a_killed_daemon_left_is_told_beside_another_daemon() {
        let (gone, elsewhere) = (DaemonState::Gone, DaemonState::Elsewhere);
        assert_eq!(state_of(gone, true, true), gone);
        assert_eq!(state_of(gone, false, true), elsewhere);
        assert_eq!(state_of(DaemonState::None, false, true), elsewhere);
        assert_eq!(state_of(DaemonState::None, true, true), gone);
        assert_eq!(state_of(DaemonState::None, false, false), DaemonState::None);
    }

    #[test]
    fn without_a_known_weight_nothing_is_said_to_be_due() {
        let vm = fixtures::vm(1, "a", 1);
        let weighed = |is_idle| {
            let mut weighed = Weighed::with(Weight::constant(100.0));
            weighed.is_idle = is_idle;
            weighed
        };
        let known = |is_idle, published: Option<&PublishedVm>, elsewhere| {
            let status = status_of(&vm, None, &weighed(is_idle), published, elsewhere);
            (status.configured, status.due)
        };
        assert_eq!(known(false, None, false), (Some(100.0), None));
        assert_eq!(known(true, None, false), (None, None));
        assert_eq!(known(false, None, true), (None, None));
        let ours = published(r#""cgroup":"/a","configured":512.0"#);
        assert_eq!(known(true, Some(&ours.vms[0]), false).0, Some(100.0));
    }

    #[test]
    fn a_wait_is_per_run() {
        assert_eq!(wait_ms(Nanos::from_millis(10), 4), Some(2.5));
        assert_eq!(wait_ms(Nanos::ZERO, 0), None);
    }
}
