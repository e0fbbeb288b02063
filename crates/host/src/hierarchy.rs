//! The cgroups above those of the VMs: among which weights divide time before a VM's own counts, and whose hard caps bound what is in them.
//!
//! Read when the set of VMs changes and every few updates, since observations come ten times a second. A cgroup that the cpu controller does not
//! reach divides nothing, and is left out.

use std::collections::{BTreeMap, BTreeSet};

use tandem_linux::cgroup::{CgroupPath, CpuController, IDLE_CLASS};
use tandem_model::Weight;
use tandem_model::observation::Level;

use crate::configured::is_tenants;
use crate::quotas::{pcpus, quota};

/// The weights of the cgroups above VMs.
#[derive(Debug, Default)]
pub(crate) struct Hierarchy {
    /// What is known of each cgroup on the way to them; `None`: it divides nothing.
    groups: BTreeMap<CgroupPath, Option<Level>>,
    /// How many were numbered.
    numbered: u32,
    /// By the cgroup right above a VM's, from the top.
    levels: BTreeMap<CgroupPath, Vec<Level>>,
}

impl Hierarchy {
    /// Forgets what was read.
    pub(crate) fn forget(&mut self) {
        *self = Hierarchy::default();
    }

    /// Reads what is not known yet of those above these, which are the cgroups right above VMs'; forgets others.
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

    /// The levels above a VM whose cgroup is right below this one; none where all VMs are in the same, without a hard cap.
    pub(crate) fn levels(&self, above: &CgroupPath) -> Vec<Level> {
        let levels = self.levels.get(above).map_or(&[][..], Vec::as_slice);
        let is_capped = levels.iter().any(|level| level.quota.is_some());
        if self.levels.len() > 1 || is_capped { levels.to_vec() } else { Vec::new() }
    }
}

/// A cgroup's weight among its siblings; `None`: it divides nothing.
fn weight(controller: &dyn CpuController, cgroup: &CgroupPath) -> Option<Weight> {
    let default = controller.default_weight();
    let weight = controller.weight(cgroup).ok()?;
    match controller.is_idle(cgroup) {
        Ok(Some(true)) => Some(default.times(IDLE_CLASS)),
        _ if is_tenants(controller, cgroup).unwrap_or(false) => Some(default),
        _ => Some(weight),
    }
}
