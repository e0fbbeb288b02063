//! Configured weights of VMs, and the cgroups above them that divide CPU time first.
//!
//! All commands that show fair shares (`status`, `top`, `why`, `export`, `record`, `scalability`) use these, so they divide level by level
//! as the daemon does.
//!
//! A VM's weight is the one that a running daemon publishes, else that of its own cgroup unless its tenant can set it
//! (`crate::configured`), else the kernel's default.
//! Only the daemon knows its rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tandem_linux::cgroup::ownership::{Occupants, Residence};
use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::procfs::ProcFs;
use tandem_model::observation::Level;
use tandem_model::{VmId, Weight};

use crate::configured::is_tenants;
use crate::discovery::Vm;
use crate::hierarchy::Hierarchy;
use crate::homes::Homes;
use crate::published;
use crate::published::PublishedVm;

/// A VM's configured weight, and its place in the hierarchy.
#[derive(Clone, Debug)]
pub(crate) struct Weighed {
    /// The configured weight.
    /// A cgroup in the idle class has no weight of its own, so the kernel's default stands for it.
    pub(crate) configured: Weight,
    /// The parent of its own cgroup, or the cgroup that it shares with others; `None` if that cannot be read.
    above: Option<CgroupPath>,
}

#[cfg(test)]
impl Weighed {
    /// Returns this weight without a place.
    pub(crate) fn with(configured: Weight) -> Weighed {
        Weighed { configured, above: None }
    }
}

/// The configured weights of VMs, and the levels above them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weights {
    of_vms: BTreeMap<VmId, Weight>,
    levels: BTreeMap<VmId, Vec<Level>>,
}

/// Returns the weights and places of all VMs of the host.
fn weigh_at(
    controller: &dyn CpuController,
    published: &[PublishedVm],
    vms: &[Vm],
    homes: &Homes,
) -> BTreeMap<VmId, Weighed> {
    let by_process: BTreeMap<_, _> = published.iter().map(|vm| (vm.process, vm)).collect();
    let procfs = ProcFs::host();
    let mut occupants = Occupants::new(controller, &procfs);
    let weighed = vms.iter().map(|vm| {
        let published = by_process.get(&vm.process).copied();
        // The daemon publishes the cgroups of managed VMs.
        let cgroup = match published {
            Some(published) => Some(published.cgroup.clone()),
            None => homes.own_cgroup(vm.id, &mut occupants).ok().flatten(),
        };
        (vm.id, of_vm(controller, cgroup, published, homes.get(vm.id)))
    });
    weighed.collect()
}

fn of_vm(
    controller: &dyn CpuController,
    cgroup: Option<CgroupPath>,
    published: Option<&PublishedVm>,
    home: Option<&Residence>,
) -> Weighed {
    // A VM that takes turns has its weight during its turn only, and divided vCPUs have parts of it.
    let kept = published.filter(|vm| vm.turns || vm.apart).and_then(|vm| vm.weight);
    let read = || controller.weight_outside_idle(cgroup.as_ref()?).ok();
    let weight = kept.map(Some).or_else(read).flatten();
    let counts = |_: &Weight| {
        let cgroup = cgroup.as_ref();
        !cgroup.is_some_and(|cgroup| is_tenants(controller, cgroup).unwrap_or(false))
    };
    let configured = published
        .map(|vm| vm.configured)
        .or_else(|| weight.filter(counts))
        .unwrap_or(controller.default_weight());
    let above = match &cgroup {
        Some(cgroup) => Some(cgroup.parent().unwrap_or_else(CgroupPath::root)),
        None => home.map(|home| {
            let first = home.vcpus.first();
            first.unwrap_or(&home.main).clone()
        }),
    };
    Weighed { configured, above }
}

impl Weights {
    /// Reads the weights of all VMs of the host, from a running daemon or their cgroups.
    pub(crate) fn read(
        controller: &dyn CpuController,
        state_dir: &Path,
        vms: &[Vm],
        homes: &Homes,
    ) -> Weights {
        let (_, published) = published::read(state_dir);
        let weighed = weigh_at(controller, &published.vms, vms, homes);
        Weights::new(controller, &weighed)
    }

    /// Returns the weights of these VMs, with the current weights of the cgroups above them.
    pub(crate) fn new(
        controller: &dyn CpuController,
        weighed: &BTreeMap<VmId, Weighed>,
    ) -> Weights {
        let above = weighed.iter();
        let above: BTreeMap<VmId, &CgroupPath> =
            above.filter_map(|(vm, weighed)| Some((*vm, weighed.above.as_ref()?))).collect();
        let places: BTreeSet<CgroupPath> = above.values().copied().cloned().collect();
        let mut hierarchy = Hierarchy::default();
        // VMs that are all in one cgroup are siblings.
        if places.len() > 1 {
            hierarchy.read(controller, places);
        }
        let levels = above.iter();
        let of_vms = weighed.iter();
        Weights {
            levels: levels.map(|(vm, above)| (*vm, hierarchy.levels(above))).collect(),
            of_vms: of_vms.map(|(vm, weighed)| (*vm, weighed.configured)).collect(),
        }
    }

    /// Replaces the values of VMs that are also in `others`.
    pub(crate) fn replace(&mut self, others: &Weights) {
        for (vm, weight) in &mut self.of_vms {
            if let Some(other) = others.of_vms.get(vm) {
                *weight = *other;
            }
        }
        for (vm, levels) in &mut self.levels {
            if let Some(others) = others.levels.get(vm) {
                levels.clone_from(others);
            }
        }
    }

    /// Returns a VM's weight; `None` if it is unknown.
    pub(crate) fn get(&self, vm: &VmId) -> Option<&Weight> {
        self.of_vms.get(vm)
    }

    /// Returns the cgroups above a VM's, from the top; none if all VMs share one.
    pub(crate) fn levels(&self, vm: VmId) -> &[Level] {
        self.levels.get(&vm).map_or(&[], Vec::as_slice)
    }
}

/// Collects the weights of VMs that are siblings.
impl FromIterator<(VmId, Weight)> for Weights {
    fn from_iter<I: IntoIterator<Item = (VmId, Weight)>>(weights: I) -> Weights {
        Weights { of_vms: weights.into_iter().collect(), levels: BTreeMap::new() }
    }
}

#[cfg(test)]
mod many;

#[cfg(test)]
mod tests {
    use std::fs;

    use tandem_linux::cgroup::open;
    use tandem_model::states::interval::{HostTotals, VmInterval};
    use tandem_model::{Nanos, State};

    use super::*;
    use crate::fixtures::intervals::{interval, vcpu_on, vm_interval};
    use crate::watch::assessed;

    fn path(text: &str) -> CgroupPath {
        CgroupPath(text.to_owned())
    }

    /// A hierarchy of cgroup v2 with these weights.
    fn tree(groups: &[(&str, &str)]) -> (tempfile::TempDir, Box<dyn CpuController>) {
        let root = tempfile::tempdir().unwrap();
        let cg = root.path().join("cg");
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/mounts"), "cgroup2 /cg cgroup2 rw 0 0\n").unwrap();
        for place in [""].into_iter().chain(groups.iter().map(|(place, _)| *place)) {
            let folder = cg.join(place);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cgroup.controllers"), "cpuset cpu\n").unwrap();
            fs::write(folder.join("cgroup.subtree_control"), "cpu\n").unwrap();
        }
        for (place, weight) in groups {
            fs::write(cg.join(place).join("cpu.weight"), format!("{weight}\n")).unwrap();
        }
        let controller = open(&ProcFs::at(root.path())).unwrap();
        (root, controller)
    }

    fn weighed(configured: f64, above: &str) -> Weighed {
        Weighed { above: Some(path(above)), ..Weighed::with(Weight::constant(configured)) }
    }

    #[test]
    fn idle_cgroup_counts_with_default_weight() {
        let (root, controller) = tree(&[("vm", "1"), ("light", "1")]);
        let knob = |place: &str, idle: &str| {
            fs::write(root.path().join("cg").join(place).join("cpu.idle"), idle).unwrap();
        };
        knob("vm", "1\n");
        knob("light", "0\n");
        let of = |place: &str, published: Option<&PublishedVm>| {
            let cgroup = published.map_or_else(|| path(place), |vm| vm.cgroup.clone());
            let weighed = of_vm(controller.as_ref(), Some(cgroup), published, None);
            weighed.configured.value()
        };
        assert_eq!(of("/vm", None), 100.0);
        assert_eq!(of("/light", None), 1.0);
        // A VM that takes turns is in the idle class at times; its daemon publishes its weight.
        let text = r#"{"process":{"pid":7,"tid":7,"start":99},"cgroup":"/vm","configured":300.0,
            "weight":250.0,"turns":true}"#;
        let published: PublishedVm = serde_json::from_str(text).unwrap();
        assert_eq!(of("/vm", Some(&published)), 300.0);
    }

    #[test]
    fn siblings_have_no_levels_above() {
        let (_root, controller) = tree(&[("a", "300"), ("b", "100"), ("b/c", "50")]);
        let weights = |above: &[&str]| {
            let vms = above.iter().zip(1..);
            let vms = vms.map(|(above, n)| (VmId(n), weighed(100.0, above)));
            Weights::new(controller.as_ref(), &vms.collect())
        };
        let of = |weights: &Weights, vm| -> Vec<f64> {
            let levels = weights.levels(VmId(vm)).iter();
            levels.map(|level| level.weight.value()).collect()
        };
        let apart = weights(&["/a", "/b/c", "/b/c", "/"]);
        assert_eq!(of(&apart, 1), [300.0]);
        assert_eq!(of(&apart, 2), [100.0, 50.0]);
        assert_eq!(apart.levels(VmId(2)), apart.levels(VmId(3)));
        assert_ne!(apart.levels(VmId(1))[0].group, apart.levels(VmId(2))[0].group);
        assert!(of(&apart, 4).is_empty());
        assert!(of(&apart, 9).is_empty(), "an unknown VM");
        let siblings = weights(&["/b/c", "/b/c"]);
        assert!(of(&siblings, 1).is_empty());
        assert_eq!(siblings.get(&VmId(2)), Some(&Weight::constant(100.0)));
        assert_eq!(siblings.get(&VmId(3)), None);
    }

    /// A VM that never slept, on a pCPU shared with others like it.
    fn burner(vm: u64, ran: u64) -> VmInterval {
        let parts = [(State::Run, ran), (State::Ready, 1_000 - ran)];
        vm_interval(vm, vec![vcpu_on("0", 0, &parts, 9)])
    }

    #[test]
    fn tenants_cannot_reduce_others_fair_share() {
        let (_root, controller) = tree(&[("ours", "300"), ("his", "100")]);
        let vms = vec![burner(1, 200), burner(2, 400), burner(3, 400)];
        let interval = interval(Nanos::ZERO, vms, Default::default(), HostTotals::default());
        let due = |weight: f64, above: &str| {
            let vms = [
                (VmId(1), weighed(100.0, "/ours")),
                (VmId(2), weighed(weight, above)),
                (VmId(3), weighed(weight, above)),
            ];
            let weights = Weights::new(controller.as_ref(), &vms.into());
            assessed(&interval, &weights)[&VmId(1)].fair.0 as f64 / 1e9
        };
        assert!((due(10_000.0, "/his") - 0.75).abs() < 1e-3);
        assert!((due(1.0, "/his") - 0.75).abs() < 1e-3);
        // Among siblings weights count.
        assert!((due(50.0, "/ours") - 0.5).abs() < 1e-3);
    }
}
