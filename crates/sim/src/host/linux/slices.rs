//! Slices of groups: what a vCPU's own slice means among the groups of a pCPU.

use super::Discipline;
use super::LinuxHost;

impl LinuxHost {
    /// A group has the shortest slice of its runnable vCPUs (enqueue_task_fair and dequeue_entities of 6.12), in a prototype of
    /// wake-up granularities that of the vCPU that has just come.
    pub(super) fn hand_up_slice(&mut self, v: u32, group: u32) {
        if !self.has_slices {
            return;
        }
        let slice = match self.discipline {
            Discipline::Cfs { .. } => self.vcpu_entities[v as usize].slice(),
            Discipline::Eevdf { base_slice, .. } => {
                let queue = &self.groups[group as usize].vcpus;
                let runnable = queue.queued(&self.vcpu_entities).chain(queue.current());
                let slices = runnable.map(|v| match self.vcpu_entities[v as usize].slice() {
                    0 => base_slice.0,
                    own => own,
                });
                slices.min().unwrap_or(0)
            }
        };
        self.group_entities[group as usize].set_slice(slice);
    }
}
