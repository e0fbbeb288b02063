//! Who is next or to give way, at both levels: buddies of vCPUs and of their groups.

use super::Discipline;
use super::LinuxHost;
use super::NONE;

impl LinuxHost {
    /// A group is to be the next one as far as that is fair, unless it is of the idle class (set_next_buddy since 5.15).
    pub(super) fn nominate(&mut self, p: u32, group: u32) {
        if !self.group_entities[group as usize].is_idle() {
            self.roots[p as usize].set_next(group);
        }
    }

    /// Whether a vCPU that was just enqueued takes the pCPU from the current one.
    pub(super) fn wakeup_preempts(&mut self, woken: u32, p: u32) -> bool {
        let current = self.current[p as usize];
        if current == NONE {
            return true;
        }
        let (Some(of_woken), Some(of_current)) =
            (self.group_at(p, woken), self.group_at(p, current))
        else {
            return false;
        };
        let queue = &mut self.groups[of_current as usize].vcpus;
        // A CPU has one flag for all its queues (TIF_NEED_RESCHED).
        if self.roots[p as usize].is_to_choose_anew() || queue.is_to_choose_anew() {
            return true;
        }
        if of_woken != of_current {
            return self.roots[p as usize].wakeup_preempts(&self.group_entities, of_woken);
        }
        let preempts = queue.wakeup_preempts(&self.vcpu_entities, woken);
        if preempts && queue.is_next(woken) {
            // Its parents are the next buddies as well (set_next_buddy).
            self.nominate(p, of_woken);
        }
        preempts
    }

    /// A running vCPU gives way to another one that waits (yield_to); false if nothing comes of it.
    pub(super) fn directed_yield(&mut self, from: u32, p: u32, to: u32, q: u32) -> bool {
        if self.current[q as usize] == to || self.current[p as usize] != from {
            return false;
        }
        let (Some(of_to), Some(of_from)) = (self.group_at(q, to), self.group_at(p, from)) else {
            return false;
        };
        self.nominate(q, of_to);
        self.groups[of_to as usize].vcpus.set_next(to);
        if p != q {
            // Who wakes there until it gives way is not looked at (resched_curr in yield_to).
            self.roots[q as usize].set_resched();
        }
        self.groups[of_from as usize]
            .vcpus
            .yield_current(&mut self.vcpu_entities);
        // CFS skips at every level; EEVDF delays the deadline of the vCPU alone.
        if matches!(self.discipline, Discipline::Cfs { .. }) {
            self.roots[p as usize].yield_current(&mut self.group_entities);
        }
        true
    }

    /// A queued vCPU is the next one of its pCPU, fair or not.
    pub(super) fn set_first(&mut self, v: u32, p: u32) {
        if self.current[p as usize] == v {
            return;
        }
        if let Some(group) = self.group_at(p, v) {
            // Also if it is the current one: once it is put back another might be picked.
            self.roots[p as usize].set_first(group);
            self.groups[group as usize].vcpus.set_first(v);
        }
    }

    /// A queued vCPU is the next one of its pCPU as far as that is fair.
    pub(super) fn set_next(&mut self, v: u32, p: u32) {
        if self.current[p as usize] == v {
            return;
        }
        if let Some(group) = self.group_at(p, v) {
            self.nominate(p, group);
            self.groups[group as usize].vcpus.set_next(v);
        }
    }
}
