//! vCPUs apart: a vCPU with its own group, alongside the VMs' groups.
//!
//! A vCPU changes its group as in the kernel (sched_move_task).
//! It is dequeued, its load average moves with it, and it is queued in the other group on the same pCPU with its lag and deadline.
//! A running vCPU keeps running until the tick or a wake-up preempts it.
//!
//! The group of a vCPU is created on first use and kept.

use super::{Enqueue, EntityId, GroupId, LinuxHost, Scheduler};

impl LinuxHost {
    /// Moves a vCPU to its own group with this weight, or back to its VM's group.
    pub(super) fn divide(&mut self, v: u32, weight: Option<f64>, now: u64) {
        let mut group = GroupId(self.shape.vm_of[v as usize]);
        if let Some(weight) = weight {
            group = *self
                .own_groups
                .entry(v)
                .or_insert_with(|| self.fair.add_group(weight, GroupId::NIL));
            self.fair.set_group_weight(group, weight);
        }
        if self.group_of[v as usize] == group {
            self.fair.update_group(group, now);
        } else {
            self.change_group(v, group, now);
        }
    }

    /// Whether a vCPU of the VM that is apart is runnable on a pCPU.
    pub(super) fn has_sibling_apart(&self, vm: u32, p: u32) -> bool {
        let own = self.own_groups.iter();
        own.filter(|(v, _)| self.shape.vm_of[**v as usize] == vm)
            .any(|(_, &group)| self.is_runnable(group, p))
    }

    fn change_group(&mut self, v: u32, group: GroupId, now: u64) {
        let task = EntityId(v);
        self.group_of[v as usize] = group;
        let Some(p) = self.fair.load_cpu(task) else {
            // It was never queued.
            return;
        };
        self.fair.dequeue_delayed(task, now);
        let is_queued = self.fair.entity(task).on_rq;
        let is_current = self.is_current(v, p);
        if is_queued {
            self.dequeue(v, p, false, now);
        }
        self.fair.move_load(task, p, group, now);
        if is_queued {
            self.enqueue(v, p, Enqueue::Migrated, now);
        }
        if is_current {
            self.boost(v, p, now);
            let picked = self.pick(p, now);
            debug_assert_eq!(picked, Some(v), "the running vCPU stays current");
        }
    }
}
