//! Quotas (hard caps) of the fleet's VMs, and the part of their vCPUs' wait time that is throttling instead of waiting for a pCPU.
//!
//! The quotas at and above a vCPU's cgroup are read when the fleet takes the vCPU, and again with the other settings that others may change.
//! Each cgroup is read at most once in an update.
//!
//! `cpu.stat` is read only of cgroups with quotas, at most [`MAX_LOOKS`] per period, in turn.
//! The kernel counts a throttled thread as waiting.
//! So a quota's throttled time is subtracted in proportion from the wait times of vCPUs below it, as [`tandem_observe::plain`] does for LIM.
//! The subtraction goes from the lowest cgroup up, since a quota above counts only the rest.
//!
//! The kernel adds throttled time and wait time when they end, which may be in different periods, and a period reads only some quotas.
//! So the proportion is a decaying average over several reads ([`FADES`]).
//! It also applies to a wait that lasts longer than a period.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use tandem_linux::cgroup::{CgroupPath, CpuController, Quota, Throttled};
use tandem_model::{Nanos, VmId, VmObservation};

use crate::managed::ManagedVm;
use crate::quotas::{CapId, left_below, pcpus, quota};

/// Maximum number of quotas read per period.
/// One read takes a few µs, on cgroup v2 tens of µs on hosts with many pCPUs.
const MAX_LOOKS: usize = 64;
/// Weight of an earlier read at the next one.
const FADES: f64 = 0.8;

/// A cgroup with a quota.
#[derive(Debug)]
struct Cap {
    cgroup: CgroupPath,
    /// Its statistics at the last read.
    seen: Option<Throttled>,
    /// Wait time of vCPUs below since then, in ns.
    waiting: f64,
    /// Decaying sums of its throttled time and of the wait time of vCPUs below, in ns.
    throttled: f64,
    waited: f64,
}

/// The quotas at and above vCPUs, and how much of their waits each throttles.
#[derive(Debug, Default)]
pub(crate) struct Throttling {
    caps: BTreeMap<CapId, Cap>,
    ids: BTreeMap<CgroupPath, CapId>,
    made: u64,
    /// The last one read.
    looked: Option<CapId>,
    /// Quotas read in this update.
    read: BTreeMap<CgroupPath, Option<Quota>>,
}

impl Cap {
    /// Returns the throttled part of the wait time of vCPUs below, 0 to 1.
    fn share(&self) -> f64 {
        match (self.throttled > 0.0, self.waited > self.throttled) {
            (false, _) => 0.0,
            (true, true) => self.throttled / self.waited,
            (true, false) => 1.0,
        }
    }

    fn look(&mut self, controller: &dyn CpuController) {
        let Ok(Some(now)) = controller.throttled(&self.cgroup) else {
            return;
        };
        if let Some(seen) = self.seen.replace(now) {
            let grown = now.time.saturating_sub(seen.time).0 as f64;
            self.throttled = FADES * self.throttled + grown;
            self.waited = FADES * self.waited + self.waiting;
        }
        self.waiting = 0.0;
    }
}

impl Throttling {
    /// Drops the quotas read in the last update.
    pub(super) fn begin_update(&mut self) {
        self.read.clear();
    }

    fn quota(&mut self, controller: &dyn CpuController, cgroup: &CgroupPath) -> Option<Quota> {
        if let Some(known) = self.read.get(cgroup) {
            return *known;
        }
        let read = quota(controller, cgroup);
        self.read.insert(cgroup.clone(), read);
        read
    }

    /// Returns the quotas at and above a cgroup, the lowest first.
    fn caps_of(&mut self, controller: &dyn CpuController, place: &CgroupPath) -> Vec<CapId> {
        let mut caps = Vec::new();
        for cgroup in std::iter::successors(Some(place.clone()), CgroupPath::parent) {
            if !cgroup.is_root() && self.quota(controller, &cgroup).is_some() {
                caps.push(self.id(cgroup));
            }
        }
        caps
    }

    fn id(&mut self, cgroup: CgroupPath) -> CapId {
        if let Some(known) = self.ids.get(&cgroup) {
            return *known;
        }
        self.made += 1;
        let id = CapId(self.made);
        let cap =
            Cap { cgroup: cgroup.clone(), seen: None, waiting: 0.0, throttled: 0.0, waited: 0.0 };
        self.caps.insert(id, cap);
        self.ids.insert(cgroup, id);
        id
    }

    /// Forgets all but these.
    fn retain(&mut self, used: &BTreeSet<CapId>) {
        self.caps.retain(|id, _| used.contains(id));
        self.ids.retain(|_, id| used.contains(id));
    }

    /// Counts the wait time of a vCPU below these, which was scaled by `scale`.
    pub(super) fn count(&mut self, caps: &[CapId], waited: Nanos, scale: f64) {
        for id in caps {
            if let Some(cap) = self.caps.get_mut(id) {
                cap.waiting += waited.0 as f64 / scale.max(f64::MIN_POSITIVE);
            }
        }
    }

    /// Reads the statistics of the next [`MAX_LOOKS`] quotas.
    fn look(&mut self, controller: &dyn CpuController) {
        let after = self.looked.map_or(Unbounded, Excluded);
        let ids: Vec<CapId> = self
            .caps
            .range((after, Unbounded))
            .chain(&self.caps)
            .map(|(id, _)| *id)
            .take(self.caps.len().min(MAX_LOOKS))
            .collect();
        for id in &ids {
            if let Some(cap) = self.caps.get_mut(id) {
                cap.look(controller);
            }
        }
        self.looked = ids.last().copied();
    }

    /// Returns the throttled part of the wait time of a vCPU below these, 0 to 1.
    fn share(&self, caps: &[CapId]) -> f64 {
        let caps = caps.iter().filter_map(|id| self.caps.get(id));
        1.0 - caps.map(|cap| 1.0 - cap.share()).product::<f64>()
    }
}

impl Throttling {
    /// Reads the quotas that bound a VM.
    /// A vCPU whose thread is gone has no known quotas.
    pub(super) fn read_quotas(&mut self, controller: &dyn CpuController, managed: &mut ManagedVm) {
        let mut places = Vec::with_capacity(managed.vcpu_count());
        for vcpu in managed.cpu.vcpus.iter_mut().map(|vcpu| &mut vcpu.host) {
            let place = controller.cgroup_of(&vcpu.thread).ok();
            let caps = |place: &CgroupPath| self.caps_of(controller, place);
            vcpu.quotas = place.as_ref().map(caps);
            places.extend(place);
        }
        let own = managed.cgroup().clone();
        managed.left_below = left_below(&own, &places, |at| self.quota(controller, at));
        managed.own_quota = self.quota(controller, &own).map(pcpus);
    }

    /// Forgets quotas that bound no VM any more.
    pub(super) fn forget_quotas(&mut self, vms: &BTreeMap<VmId, ManagedVm>) {
        if self.caps.is_empty() {
            return;
        }
        let vcpus = vms.values().flat_map(|managed| &managed.cpu.vcpus);
        let used = vcpus.flat_map(|vcpu| vcpu.host.caps()).copied().collect();
        self.retain(&used);
    }

    /// Subtracts the throttled part from the vCPUs' wait times of a period.
    pub(super) fn take_out_throttled(
        &mut self,
        controller: &dyn CpuController,
        vms: &BTreeMap<VmId, ManagedVm>,
        period: Nanos,
        observed: &mut [VmObservation],
    ) {
        if self.caps.is_empty() {
            return;
        }
        self.look(controller);
        for vm in observed {
            let Some(managed) = vms.get(&vm.vm) else {
                continue;
            };
            for vcpu in &mut vm.vcpus {
                // vCPUs are sorted by index.
                let vcpus = &managed.cpu.vcpus;
                let place = vcpus.binary_search_by_key(&vcpu.vcpu, |vcpu| vcpu.id);
                let caps = place.ok().and_then(|place| vcpus.get(place));
                let share = self.share(caps.map_or(&[], |vcpu| vcpu.host.caps()));
                let part = |time: Nanos| Nanos((time.0 as f64 * share) as u64);
                // The kernel has not counted a wait that goes on.
                vcpu.limited = if vcpu.is_starved() { part(period) } else { part(vcpu.waited) };
                vcpu.waited = vcpu.waited.saturating_sub(vcpu.limited);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tandem_linux::cgroup;
    use tandem_linux::procfs::ProcFs;

    use super::*;

    /// A hierarchy of cgroup v1 in a folder, without quotas.
    struct Tree {
        root: tempfile::TempDir,
        controller: Box<dyn CpuController>,
    }

    impl Tree {
        fn new() -> Tree {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("proc")).unwrap();
            fs::create_dir_all(root.path().join("sys/fs/cgroup/cpu")).unwrap();
            let mount = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n";
            fs::write(root.path().join("proc/mounts"), mount).unwrap();
            let controller = cgroup::open(&ProcFs::at(root.path())).unwrap();
            Tree { root, controller }
        }

        fn folder(&self, cgroup: &str) -> std::path::PathBuf {
            let cpu: &Path = &self.root.path().join("sys/fs/cgroup/cpu");
            cpu.join(cgroup)
        }

        /// Sets a cgroup's quota, in µs per 100 ms, and its throttled time.
        fn place(&self, cgroup: &str, quota: i64, throttled_ms: u64) {
            let folder = self.folder(cgroup);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpu.cfs_quota_us"), format!("{quota}\n")).unwrap();
            fs::write(folder.join("cpu.cfs_period_us"), "100000\n").unwrap();
            let time = throttled_ms * 1_000_000;
            let stat = format!("nr_periods 9\nnr_throttled 3\nthrottled_time {time}\n");
            fs::write(folder.join("cpu.stat"), stat).unwrap();
        }
    }

    fn path(path: &str) -> CgroupPath {
        CgroupPath(path.to_owned())
    }

    /// Returns the share after each period, given as the cgroup's throttled time and the wait time of a vCPU below it, in ms.
    fn shares<const N: usize>(periods: [(u64, u64); N]) -> Vec<f64> {
        let tree = Tree::new();
        tree.place("vm", 50_000, 0);
        let mut throttling = Throttling::default();
        let caps = throttling.caps_of(tree.controller.as_ref(), &path("/vm"));
        throttling.look(tree.controller.as_ref());
        let mut all = 0;
        let mut shares = Vec::new();
        for (throttled, waited) in periods {
            all += throttled;
            tree.place("vm", 50_000, all);
            throttling.count(&caps, Nanos::from_millis(waited), 1.0);
            throttling.look(tree.controller.as_ref());
            shares.push((throttling.share(&caps) * 100.0).round() / 100.0);
        }
        shares
    }

    #[test]
    fn share_is_throttled_part_of_waits() {
        assert_eq!(shares([(60, 80)]), [0.75]);
        assert_eq!(shares([(90, 80), (0, 0)]), [1.0, 1.0], "at most 1");
        assert_eq!(shares([(0, 80), (0, 0)]), [0.0, 0.0]);
        // Throttled time and wait time are counted in alternate periods.
        let straddling = shares([(50, 0), (0, 100), (50, 0), (0, 100), (50, 0), (0, 100)]);
        assert!(straddling[5] > 0.3, "{straddling:?}");
        // Earlier throttling decays within 25 periods.
        let mut periods = [(0, 50); 25];
        periods[0] = (100, 100);
        let last = shares(periods)[24];
        assert!(last < 0.01, "{last}");
    }

    #[test]
    fn upper_quotas_share_the_rest_of_waits() {
        let tree = Tree::new();
        let controller = tree.controller.as_ref();
        for (cgroup, throttled) in [("a", 0), ("a/vm", 0)] {
            tree.place(cgroup, 50_000, throttled);
        }
        tree.place("a/vm/vcpu0", -1, 0);
        let mut throttling = Throttling::default();
        let caps = throttling.caps_of(controller, &path("/a/vm/vcpu0"));
        assert_eq!(caps.len(), 2, "only cgroups with a quota");
        throttling.look(controller);
        tree.place("a", 50_000, 25);
        tree.place("a/vm", 50_000, 50);
        throttling.count(&caps, Nanos::from_millis(200), 2.0);
        throttling.look(controller);
        // Half of 100 ms, and a quarter of the rest.
        assert!((throttling.share(&caps) - 0.625).abs() < 1e-9);
        // Only the first one still has vCPUs below it.
        throttling.retain(&caps[..1].iter().copied().collect());
        assert_eq!((throttling.caps.len(), throttling.ids.len()), (1, 1));
        // The next update sees that a quota was removed.
        tree.place("a/vm", -1, 50);
        assert_eq!(throttling.caps_of(controller, &path("/a/vm")).len(), 2);
        throttling.begin_update();
        assert_eq!(throttling.caps_of(controller, &path("/a/vm")).len(), 1);
    }

    #[test]
    fn quotas_are_read_in_turn() {
        let tree = Tree::new();
        let controller = tree.controller.as_ref();
        let mut throttling = Throttling::default();
        for vm in 0..100 {
            tree.place(&format!("vm{vm}"), 50_000, 0);
            throttling.caps_of(controller, &path(&format!("/vm{vm}")));
        }
        let looked = |throttling: &Throttling| {
            let caps = throttling.caps.values();
            caps.filter(|cap| cap.seen.is_some()).count()
        };
        throttling.look(controller);
        assert_eq!(looked(&throttling), MAX_LOOKS);
        throttling.look(controller);
        assert_eq!(looked(&throttling), 100);
    }
}
