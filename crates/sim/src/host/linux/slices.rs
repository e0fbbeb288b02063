//! Slices of groups: what a vCPU's own slice means among the groups of a pCPU.

use super::{Discipline, LinuxHost};

impl LinuxHost {
    /// A group from which a vCPU has gone stays queued: its slice and weight change, and if the vCPU sleeps, the group is to be next as
    /// far as that is fair, since who sleeps has not used up its slice ("bias pick_next": set_next_buddy in dequeue_task_fair since 3.0, in
    /// dequeue_entities of 6.12).
    pub(super) fn stay(&mut self, v: u32, p: u32, group: u32, family: u32, sleeps: bool, now: u64) {
        self.hand_up_slice(v, group);
        if sleeps {
            self.nominate(p, group);
        }
        self.reweigh(p, group, family, now);
    }

    /// A group has the shortest slice of its vCPUs that are queued, asleep or not (enqueue_task_fair and dequeue_entities of 6.12), in a prototype of
    /// wake-up granularities that of the vCPU that has just come.
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
