//! Load balancing: an idle or busy pCPU takes a waiting vCPU from another pCPU.
//!
//! A busy pCPU compares its load with those of its last-level cache and of the machine at the interval of each domain (`domain`).
//! If the imbalance exceeds 25 %, it takes one vCPU whose move reduces the larger load.

use super::LinuxHost;
use super::domain::Domain;
use crate::bits::next_bit;
use crate::host::Move;
use crate::sched::fair::Discipline;
use crate::sched::ids::{EntityId, QueueId};

impl LinuxHost {
    /// A queued vCPU on `from` that may be moved to `to`, from a group whose weight per vCPU is in `least` … `most`.
    /// With EEVDF it is the least recently enqueued or picked vCPU, with CFS the first in queue order.
    /// Since 4.16, detach_tasks takes the tail of a list that enqueued and picked tasks enter at the head.
    pub(super) fn movable(&self, from: u32, to: u32, least: u64, most: u64) -> Option<u32> {
        let (fair, root) = (&self.fair, QueueId(from));
        // The current vCPU's group is out of the tree, but may have waiting vCPUs.
        let groups = fair.queued(root).chain(fair.queue(root).curr()).map(|id| fair.entity(id));
        let mut vcpus = groups
            .filter_map(|group| {
                let members = fair.queue(group.my_q()).h_nr_queued();
                let weight = group.weight() / u64::from(members.max(1));
                (least..=most).contains(&weight).then_some(group.my_q())
            })
            .flat_map(|rq| fair.queued(rq).map(|EntityId(v)| v))
            .filter(|&v| self.may_be_on(v, to));
        match self.discipline {
            Discipline::Eevdf { .. } => vcpus.min_by_key(|&v| self.touched[v as usize]),
            Discipline::Cfs { .. } => vcpus.next(),
        }
    }

    pub(super) fn load(&self, p: u32) -> u64 {
        self.fair.queue(QueueId(p)).load()
    }

    /// The pCPU with the largest load among those with more than one vCPU, except `p`.
    fn busiest(&self, p: u32, near: bool) -> Option<u32> {
        let mut best: Option<(u64, u32)> = None;
        let mut at = 0;
        while let Some(q) = next_bit(&self.overloaded, at, self.shape.pcpus) {
            if q < at {
                break;
            }
            at = q + 1;
            if q != p && (!near || self.llc(q) == self.llc(p)) {
                let load = self.load(q);
                if best.is_none_or(|(most, _)| load > most) {
                    best = Some((load, q));
                }
            }
            if at >= self.shape.pcpus {
                break;
            }
        }
        best.map(|(_, q)| q)
    }

    /// A waiting vCPU of the busiest pCPU that has a movable one (LBF_ALL_PINNED).
    pub(super) fn take_from_busiest(&self, p: u32, near: bool) -> Option<Move> {
        let mut best: Option<(u64, Move)> = None;
        let mut at = 0;
        while at < self.shape.pcpus
            && let Some(from) = next_bit(&self.overloaded, at, self.shape.pcpus)
            && from >= at
        {
            at = from + 1;
            let load = self.load(from);
            let is_candidate = from != p
                && (!near || self.llc(from) == self.llc(p))
                && best.is_none_or(|(most, _)| load > most);
            if is_candidate && let Some(vcpu) = self.movable(from, p, 0, u64::MAX) {
                best = Some((load, Move { vcpu, from, to: p }));
            }
        }
        best.map(|(_, taken)| taken)
    }

    /// The move to a busy pCPU that reduces the larger load, if there is one.
    fn balancing_move(&self, p: u32, near: bool) -> Option<Move> {
        let from = self.busiest(p, near)?;
        let (more, less) = (self.load(from), self.load(p));
        if more <= less + less / 4 {
            return None;
        }
        // After the move, both loads must be below the larger one of before.
        let vcpu = self.movable(from, p, 1, (more - less).saturating_sub(1))?;
        Some(Move { vcpu, from, to: p })
    }

    /// Compares the loads of the domains whose interval has expired, until one has a move.
    pub(super) fn compare_loads(&mut self, p: u32, now: u64) -> Option<Move> {
        for domain in Domain::ALL {
            if domain.is_redundant(&self.shape) {
                continue;
            }
            let next = now + domain.interval(&self.shape);
            let due = &mut self.balance_due[p as usize][domain as usize];
            if now < *due {
                continue;
            }
            *due = next;
            let found = self.balancing_move(p, domain == Domain::Cache);
            if found.is_some() {
                return found;
            }
        }
        None
    }
}
