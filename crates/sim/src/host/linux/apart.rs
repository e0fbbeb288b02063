//! vCPUs apart: a vCPU with its own groups, alongside the VMs' groups.
//!
//! A vCPU changes its family as in the kernel (sched_move_task).
//! It is dequeued, its load average moves with it, and it is queued in the other group on the same pCPU with its lag and deadline.
//! A running vCPU keeps running until the tick or a wake-up preempts it.
//!
//! The family of a vCPU is created on first use and kept.

use super::{Arrival, Average, LinuxHost, NONE, Scheduler};

impl LinuxHost {
    /// Moves a vCPU to its own family with this weight, or back to its VM's family.
    pub(super) fn divide(&mut self, v: u32, weight: Option<f64>, now: u64) {
        let family = match weight {
            None => self.shape.vm_of[v as usize],
            Some(weight) => {
                let family = self.own_family(v);
                self.weights[family as usize] = weight;
                family
            }
        };
        if self.family_of[v as usize] == family {
            self.reweigh_family(family, now)
        } else {
            self.change_family(v, family, now)
        }
    }

    /// Whether a vCPU of the VM that is apart is runnable on a pCPU.
    pub(super) fn has_sibling_apart(&self, vm: u32, p: u32) -> bool {
        let own = self.own_families.iter();
        own.filter(|(v, _)| self.shape.vm_of[**v as usize] == vm)
            .any(|(_, &family)| self.is_runnable(family, p))
    }

    /// A vCPU's own family.
    fn own_family(&mut self, v: u32) -> u32 {
        if let Some(&family) = self.own_families.get(&v) {
            return family;
        }
        let family = self.loads.len() as u32;
        self.weights.push(0.0);
        self.loads.push((0, Average::ZERO));
        self.idle_families.push(false);
        let places = self.group_of.len() + self.shape.pcpus as usize;
        self.group_of.resize(places, NONE);
        self.own_families.insert(v, family);
        family
    }

    fn change_family(&mut self, v: u32, family: u32, now: u64) {
        let before = self.family_of[v as usize];
        let home = self.vcpu_loads[v as usize].home;
        let at = (0..self.shape.pcpus).find(|&p| self.group_of[self.place(p, before)] == home);
        let (Some(p), true) = (at, home != NONE) else {
            // It was never queued.
            self.family_of[v as usize] = family;
            return;
        };
        self.forget(v, now);
        let is_queued = self.vcpu_loads[v as usize].queued;
        let is_current = self.current[p as usize] == v;
        if is_queued {
            self.dequeue(v, p, false, now);
        }
        self.advance(v, home, before, now);
        let average = self.vcpu_loads[v as usize].average.value();
        self.loads[before as usize].1.add(-average);
        let (load, all) = &mut self.loads[family as usize];
        all.advance(&self.decay, *load, now);
        all.add(average);
        self.family_of[v as usize] = family;
        let group = self.group(p, family);
        self.attach_load(v, group, family, Arrival::Migrated, now);
        self.vcpu_loads[v as usize].queued = false;
        if is_queued {
            self.enqueue(v, p, Arrival::Migrated, now);
        }
        if is_current {
            self.boost(v, p, now);
            let picked = self.pick(p, now);
            debug_assert_eq!(picked, Some(v), "the running vCPU stays current");
        }
    }
}
