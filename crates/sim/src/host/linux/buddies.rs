//! Buddies, yields and wake-up preemption at both levels: vCPUs and their groups.

use super::{Above, Discipline, LinuxHost, NONE};

impl LinuxHost {
    /// Makes a group the next buddy; a group of the idle class is ignored (set_next_buddy since 5.15).
    pub(super) fn nominate(&mut self, p: u32, group: u32) {
        self.roots[p as usize].set_next(&self.group_entities, group);
    }

    /// Makes a vCPU and its group next buddies; a vCPU of the idle class is ignored.
    fn nominate_vcpu(&mut self, v: u32, p: u32, group: u32) {
        if !self.vcpu_entities[v as usize].is_idle() {
            let queue = &mut self.groups[group as usize].vcpus;
            queue.set_next(&self.vcpu_entities, v);
            self.nominate(p, group);
        }
    }

    /// Clears the group's buddy roles that its vCPU has lost (__clear_buddies_next, _skip and _last walk up the hierarchy).
    pub(super) fn forget_above(&mut self, v: u32, p: u32, group: u32, before: [u32; 4]) {
        let now = self.groups[group as usize].vcpus.buddies();
        for which in 0..4 {
            if before[which] == v && now[which] != v {
                self.roots[p as usize].forget_buddy(group, which);
            }
        }
    }

    /// vCPUs that run, wait or sleep in a pCPU's queues (rq->nr_running of 6.12, which counts delayed sleepers).
    fn running(&self, p: u32) -> u32 {
        let groups = self.roots[p as usize].members(&self.group_entities);
        let sleepers: u32 = groups.map(|group| self.groups[group as usize].vcpus.sleepers()).sum();
        self.queued[p as usize] + sleepers
    }

    /// A group's position on its pCPU.
    pub(super) fn above(&self, p: u32, group: u32) -> Above {
        let root = &self.roots[p as usize];
        let entity = &self.group_entities[group as usize];
        let weight = entity.weight();
        let is_there = self.groups[group as usize].vcpus.has_queued() || entity.is_delayed();
        let more = if is_there { 0 } else { weight };
        Above { running: self.queued[p as usize], weight, load: root.load() + more }
    }

    /// Whether a vCPU that was just enqueued preempts the current one.
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
        if self.roots[p as usize].need_resched() || queue.need_resched() {
            return true;
        }
        if of_woken != of_current {
            return self.roots[p as usize].wakeup_preempts(&self.group_entities, of_woken);
        }
        let preempts = queue.wakeup_preempts(&self.vcpu_entities, woken);
        if preempts {
            // The parents become buddies as well (set_next_buddy, set_last_buddy).
            let [next, _, last, _] = queue.buddies();
            if next == woken {
                self.nominate(p, of_woken);
            }
            if last == current {
                self.roots[p as usize].set_last(&self.group_entities);
            }
        }
        preempts
    }

    /// A running vCPU yields to a waiting one (yield_to); false if it has no effect.
    pub(super) fn directed_yield(&mut self, from: u32, p: u32, to: u32, q: u32) -> bool {
        if self.current[q as usize] == to || self.current[p as usize] != from {
            return false;
        }
        let (Some(of_to), Some(of_from)) = (self.group_at(q, to), self.group_at(p, from)) else {
            return false;
        };
        let is_alone = self.running(p) == 1;
        if is_alone && self.running(q) == 1 {
            // Both pCPUs have a single vCPU (yield_to).
            return false;
        }
        self.nominate_vcpu(to, q, of_to);
        if p != q {
            // Later wake-ups there do not preempt: a reschedule is pending (resched_curr in yield_to).
            self.roots[q as usize].set_resched();
        }
        if is_alone {
            // A lone vCPU keeps its deadline (yield_task_fair).
            return true;
        }
        let queue = &mut self.groups[of_from as usize].vcpus;
        let before = queue.buddies();
        queue.yield_current(&mut self.vcpu_entities);
        self.forget_above(from, p, of_from, before);
        // CFS skips at every level; EEVDF delays only the vCPU's deadline.
        if matches!(self.discipline, Discipline::Cfs { .. }) {
            self.roots[p as usize].skip_current();
        }
        true
    }

    /// Makes a queued vCPU the next of its pCPU, regardless of fairness.
    pub(super) fn set_first(&mut self, v: u32, p: u32) {
        if self.current[p as usize] == v {
            return;
        }
        if let Some(group) = self.group_at(p, v) {
            let [.., before] = self.roots[p as usize].buddies();
            if before != NONE && before != group {
                self.groups[before as usize].vcpus.forget_first();
            }
            // Also for the current group: after `put_back`, another group might be picked.
            self.roots[p as usize].set_first(group);
            self.groups[group as usize].vcpus.set_first(v);
        }
    }

    /// Makes a queued vCPU the next buddy of its pCPU.
    pub(super) fn set_next(&mut self, v: u32, p: u32) {
        if self.current[p as usize] == v {
            return;
        }
        if let Some(group) = self.group_at(p, v) {
            self.nominate_vcpu(v, p, group);
        }
    }
}

#[cfg(test)]
mod tests;
