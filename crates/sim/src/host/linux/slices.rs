//! Slices of groups: the effect of a vCPU's custom slice on its group.

use super::{Discipline, LinuxHost};

impl LinuxHost {
    /// Updates the slice and weight of a group that stays queued after a vCPU has left it.
    /// If the vCPU sleeps, the group becomes the next buddy, because the sleeper has not used up its slice.
    /// Source: "bias pick_next", set_next_buddy in dequeue_task_fair since 3.0, in dequeue_entities of 6.12.
    pub(super) fn update_left_group(
        &mut self,
        v: u32,
        p: u32,
        group: u32,
        family: u32,
        sleeps: bool,
        now: u64,
    ) {
        self.hand_up_slice(v, group);
        if sleeps {
            self.nominate(p, group);
        }
        self.reweigh(p, group, family, now);
    }

    /// Sets a group's slice.
    /// Under EEVDF it is the shortest slice of its queued vCPUs, asleep or not (enqueue_task_fair and dequeue_entities of 6.12).
    /// Under CFS, in the prototype with wake-up granularities, it is the slice of vCPU `v`.
    pub(super) fn hand_up_slice(&mut self, v: u32, group: u32) {
        if !self.has_slices {
            return;
        }
        let slice = match self.discipline {
            Discipline::Cfs { .. } => self.vcpu_entities[v as usize].slice(),
            Discipline::Eevdf { base_slice, .. } => {
                let queue = &self.groups[group as usize].vcpus;
                let members = queue.members(&self.vcpu_entities);
                let slices = members.map(|v| match self.vcpu_entities[v as usize].slice() {
                    0 => base_slice.0,
                    own => own,
                });
                slices.min().unwrap_or(0)
            }
        };
        self.group_entities[group as usize].set_slice(slice);
    }
}
