//! The quotas at and above VMs' vCPUs, for `why` and for the daemon.
//!
//! [`Quotas`] holds the time that each quota throttled within an interval.
//! Each cgroup is read once at the begin and once at the end, however many VMs are below it.
//! If a cgroup has no quota at the begin, or cannot be read then, its throttled time is unknown.
//! `fleet::quotas` uses quotas from period to period.

use std::collections::{BTreeMap, BTreeSet};

use tandem_linux::cgroup::{CgroupPath, CpuController, Quota, Throttled};
use tandem_model::Nanos;
use tandem_observe::findings::KnownQuota;

use crate::discovery::Vm;

/// Number of a known quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CapId(pub(crate) u64);

/// Throttled times at the begin of the interval.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    before: BTreeMap<CgroupPath, Throttled>,
    /// Those at the end, once they are read.
    after: BTreeMap<CgroupPath, Option<KnownQuota>>,
}

/// Returns the cgroups of a VM's vCPUs, as far as they can be read.
pub(crate) fn cgroups(controller: &dyn CpuController, vm: &Vm) -> BTreeSet<CgroupPath> {
    let vcpus = vm.vcpus.iter();
    vcpus.filter_map(|vcpu| controller.cgroup_of(&vcpu.thread).ok()).collect()
}

/// Returns these cgroups and their ancestors, without the root, which has no quota.
fn at_and_above(cgroups: &BTreeSet<CgroupPath>) -> BTreeSet<CgroupPath> {
    let mut all = cgroups.clone();
    all.extend(cgroups.iter().flat_map(CgroupPath::ancestors));
    all.retain(|cgroup| !cgroup.is_root());
    all
}

/// Returns a cgroup's hard cap; `None` if it cannot be read.
pub(crate) fn quota(controller: &dyn CpuController, cgroup: &CgroupPath) -> Option<Quota> {
    controller.quota(cgroup).ok()?
}

/// Returns a hard cap in pCPUs.
pub(crate) fn pcpus(quota: Quota) -> f64 {
    quota.quota_us as f64 / quota.period_us.max(1) as f64
}

/// Returns the maximum that quotas below a VM's own cgroup leave to its vCPUs together, in pCPUs, if they bind.
/// libvirt sets such quotas for each vCPU (`vcpu_quota`) and, on cgroup v2, for all of them (`global_quota`).
/// `places` are the cgroups of the vCPUs' threads; threads outside `own` are not bound.
pub(crate) fn left_below(
    own: &CgroupPath,
    places: &[CgroupPath],
    mut quota: impl FnMut(&CgroupPath) -> Option<Quota>,
) -> Option<f64> {
    // Demand of each cgroup, in pCPUs; the deepest come last and are taken first.
    let mut wants: BTreeMap<(usize, CgroupPath), f64> = BTreeMap::new();
    let (mut all, mut binds) = (0.0, false);
    for place in places {
        if place != own && place.is_within(own) {
            let at = (place.ancestors().len(), place.clone());
            *wants.entry(at).or_default() += 1.0;
        } else {
            all += 1.0;
        }
    }
    while let Some(((depth, cgroup), wanted)) = wants.pop_last() {
        let cap = quota(&cgroup).map(pcpus).filter(|cap| *cap < wanted);
        binds |= cap.is_some();
        let left = cap.unwrap_or(wanted);
        match cgroup.parent().filter(|parent| parent != own) {
            Some(parent) => *wants.entry((depth.saturating_sub(1), parent)).or_default() += left,
            None => all += left,
        }
    }
    binds.then_some(all)
}

impl Quotas {
    /// Reads the quotas at and above these VMs at the begin of the interval.
    pub(crate) fn begin(controller: &dyn CpuController, vms: &[Vm]) -> Quotas {
        let leaves = vms.iter().flat_map(|vm| cgroups(controller, vm)).collect();
        let with_quota =
            at_and_above(&leaves).into_iter().filter(|cgroup| quota(controller, cgroup).is_some());
        let before = with_quota.filter_map(|cgroup| {
            let throttled = controller.throttled(&cgroup).ok()??;
            Some((cgroup, throttled))
        });
        Quotas { before: before.collect(), after: BTreeMap::new() }
    }

    /// Returns the quotas at and above these cgroups at the end of the interval.
    pub(crate) fn of(
        &mut self,
        controller: &dyn CpuController,
        cgroups: &BTreeSet<CgroupPath>,
    ) -> Vec<KnownQuota> {
        let mut quotas = Vec::new();
        for cgroup in at_and_above(cgroups) {
            let before = self.before.get(&cgroup);
            let read = || {
                let quota = quota(controller, &cgroup)?;
                let now = controller.throttled(&cgroup).ok().flatten();
                let grown = |(now, before): (Throttled, &Throttled)| -> Nanos {
                    now.time.saturating_sub(before.time)
                };
                Some(KnownQuota {
                    quota,
                    throttled: now.zip(before).map(grown),
                    cgroup: cgroup.clone(),
                })
            };
            let known = self.after.entry(cgroup.clone()).or_insert_with(read);
            quotas.extend(known.clone());
        }
        quotas
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tandem_linux::cgroup;
    use tandem_linux::procfs::ProcFs;

    use crate::fixtures::vm;

    use super::*;

    #[test]
    fn inner_quotas_add_up_to_their_bound() {
        let path = |path: &str| CgroupPath(path.to_owned());
        let left = |caps: &[(&str, u64)]| {
            let places = ["/vm/all/vcpu0", "/vm/all/vcpu1", "/vm/vcpu2", "/elsewhere"].map(path);
            left_below(&path("/vm"), &places, |cgroup| {
                let (_, percent) = caps.iter().find(|(capped, _)| cgroup.0 == *capped)?;
                Some(Quota { quota_us: percent * 1_000, period_us: 100_000 })
            })
        };
        assert_eq!(left(&[]), None);
        assert_eq!(left(&[("/vm", 10)]), None, "its own is not below");
        assert_eq!(left(&[("/vm/all", 200)]), None, "all that they can use");
        assert_eq!(left(&[("/vm/all/vcpu0", 25)]), Some(3.25));
        assert_eq!(left(&[("/vm/all/vcpu0", 25), ("/vm/all", 50)]), Some(2.5));
        let each = [("/vm/all/vcpu0", 25), ("/vm/all/vcpu1", 50), ("/vm/vcpu2", 75)];
        assert_eq!(left(&each), Some(2.5));
    }

    #[test]
    fn throttled_time_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let cpu = root.join("sys/fs/cgroup/cpu");
        let place = |cgroup: &str, quota: &str, throttled: u64| {
            let folder = cpu.join(cgroup);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpu.cfs_quota_us"), quota).unwrap();
            fs::write(folder.join("cpu.cfs_period_us"), "100000\n").unwrap();
            let stat = format!("nr_periods 9\nnr_throttled 3\nthrottled_time {throttled}\n");
            fs::write(folder.join("cpu.stat"), stat).unwrap();
        };
        fs::create_dir_all(root.join("proc")).unwrap();
        let mount = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n";
        fs::write(root.join("proc/mounts"), mount).unwrap();
        place("", "-1\n", 0);
        place("vms", "20000\n", 500);
        place("vms/free", "-1\n", 0);
        let vms = [vm(1, "a", 1), vm(2, "b", 1)];
        for vm in &vms {
            let thread = vm.vcpus[0].thread;
            let task = root.join(format!("proc/{}/task/{}", thread.pid, thread.tid));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("cgroup"), "2:cpu:/vms/free\n").unwrap();
        }
        let controller = cgroup::open(&ProcFs::at(root)).unwrap();
        let mut quotas = Quotas::begin(&*controller, &vms);
        place("vms", "20000\n", 800);
        let of = |quotas: &mut Quotas, vm: &Vm| quotas.of(&*controller, &cgroups(&*controller, vm));
        let first = of(&mut quotas, &vms[0]);
        assert_eq!(first.len(), 1, "{first:?}");
        assert_eq!(first[0].cgroup.0, "/vms");
        assert_eq!(first[0].throttled, Some(Nanos(300)));
        place("vms", "20000\n", 900);
        assert_eq!(of(&mut quotas, &vms[1]), first, "read once");
        let mut late = Quotas::default();
        assert_eq!(of(&mut late, &vms[0])[0].throttled, None);
    }
}
