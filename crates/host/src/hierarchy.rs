//! The cgroups above those of the VMs: their weights divide time before a VM's own weight does, and their hard caps apply.
//!
//! They are read when the set of VMs changes and every few updates, since observations come ten times a second.
//! A cgroup without the cpu controller divides nothing, and is left out.

use std::collections::{BTreeMap, BTreeSet};

use tandem_linux::cgroup::{CgroupPath, CpuController, IDLE_CLASS};
use tandem_model::Weight;
use tandem_model::observation::Level;

use crate::configured::is_tenants;
use crate::quotas::{pcpus, quota};

/// The weights of the cgroups above VMs.
#[derive(Debug, Default)]
pub(crate) struct Hierarchy {
    /// Known cgroups above VMs; `None` if one divides nothing.
    groups: BTreeMap<CgroupPath, Option<Level>>,
    /// Number of numbered cgroups.
    numbered: u32,
    /// Levels from the top, by the parent of a VM's cgroup.
    levels: BTreeMap<CgroupPath, Vec<Level>>,
}

impl Hierarchy {
    /// Clears the cache.
    pub(crate) fn forget(&mut self) {
        *self = Hierarchy::default();
    }

    /// Reads unknown ancestors of these parents of VMs' cgroups, and forgets others.
    pub(crate) fn read(&mut self, controller: &dyn CpuController, above: BTreeSet<CgroupPath>) {
        self.levels.retain(|place, _| above.contains(place));
        for place in above {
            if self.levels.contains_key(&place) {
                continue;
            }
            let way = place.ancestors().into_iter().chain([place.clone()]);
            let way = way.filter(|cgroup| !cgroup.is_root());
            let levels = way.filter_map(|cgroup| self.level(controller, cgroup));
            let levels = levels.collect();
            self.levels.insert(place, levels);
        }
    }

    fn level(&mut self, controller: &dyn CpuController, cgroup: CgroupPath) -> Option<Level> {
        if let Some(known) = self.groups.get(&cgroup) {
            return *known;
        }
        let group = self.numbered;
        self.numbered += 1;
        let level = weight(controller, &cgroup).map(|weight| Level {
            group,
            weight,
            quota: quota(controller, &cgroup).map(pcpus),
        });
        self.groups.insert(cgroup, level);
        level
    }

    /// Returns the levels above a VM with this parent cgroup; empty if all VMs share one without a hard cap.
    pub(crate) fn levels(&self, above: &CgroupPath) -> Vec<Level> {
        let levels = self.levels.get(above).map_or(&[][..], Vec::as_slice);
        let is_capped = levels.iter().any(|level| level.quota.is_some());
        if self.levels.len() > 1 || is_capped { levels.to_vec() } else { Vec::new() }
    }
}

/// Returns a cgroup's weight among its siblings; `None` if it divides nothing.
fn weight(controller: &dyn CpuController, cgroup: &CgroupPath) -> Option<Weight> {
    let default = controller.default_weight();
    let weight = controller.weight(cgroup).ok()?;
    match controller.is_idle(cgroup) {
        Ok(Some(true)) => Some(default.times(IDLE_CLASS)),
        _ if is_tenants(controller, cgroup).unwrap_or(false) => Some(default),
        _ => Some(weight),
    }
}
