//! Load balancing: an idle or busy pCPU takes a waiting vCPU from another pCPU.
//!
//! A busy pCPU compares its load with those of its last-level cache and of the machine at the interval of each domain (`domain`).
//! If the imbalance exceeds 25 %, it takes one vCPU whose move reduces the larger load.
//! For Linux 7.3 the imbalance within a cache is 17 %, as in the kernel, and failed attempts permit larger moves (nr_balance_failed).

use super::LinuxHost;
use super::domain::Domain;
use crate::bits::next_bit;
use crate::host::Move;
use crate::host::Shape;
use crate::sched::fair::Discipline;
use crate::sched::ids::{EntityId, QueueId};

/// Failed attempts after which the kernel migrates the running task (need_active_balance: cache_nice_tries + 2), which is left out.
const MAX_FAILED: u8 = 3;

/// State of a pCPU's balancing within a domain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// Time of the next comparison of loads, ns.
    due: u64,
    /// Failed attempts since the last move (nr_balance_failed).
    failed: u8,
}

impl Attempt {
    pub(super) fn first(domain: Domain, shape: &Shape) -> Attempt {
        Attempt { due: domain.interval(shape), failed: 0 }
    }
}

impl LinuxHost {
    /// A queued vCPU on `from` that may be moved to `to`, from a group whose weight per vCPU is in `least` … `most`.
    /// With EEVDF it is the least recently enqueued or picked vCPU, with CFS the first in queue order.
    /// Since 4.16, detach_tasks takes the tail of a list that enqueued and picked tasks enter at the head.
    pub(super) fn movable(&self, from: u32, to: u32, least: u64, most: u64) -> Option<u32> {
        let (fair, root) = (&self.fair, QueueId(from));
        if self.discipline.is_flat() {
            return fair
                .queued_tasks(root)
                .filter(|(_, weight)| (least..=most).contains(weight))
                .map(|(EntityId(v), _)| v)
                .filter(|&v| self.may_be_on(v, to))
                .min_by_key(|&v| self.touched[v as usize]);
        }
        // The current vCPU's group is out of the tree, but may have waiting vCPUs.
        let groups = fair.queued(root).chain(fair.queue(root).curr.get()).map(|id| fair.entity(id));
        let mut vcpus = groups
            .filter_map(|group| {
                let members = fair.queue(group.my_q).h_nr_queued;
                let weight = group.weight / u64::from(members.max(1));
                (least..=most).contains(&weight).then_some(group.my_q)
            })
            .flat_map(|rq| fair.queued(rq).map(|EntityId(v)| v))
            .filter(|&v| self.may_be_on(v, to));
        match self.discipline {
            Discipline::Eevdf { .. } => vcpus.min_by_key(|&v| self.touched[v as usize]),
            Discipline::Cfs { .. } => vcpus.next(),
        }
    }

    pub(super) fn load(&self, p: u32) -> u64 {
        self.fair.queue(QueueId(p)).load
    }

    /// Load and number of the pCPUs with more than one vCPU, except `p`, in its cache (`near`) or anywhere.
    fn overloaded(&self, p: u32, near: bool) -> impl Iterator<Item = (u64, u32)> {
        let pcpus = self.shape.pcpus;
        let next = move |at: u32| {
            let next = if at < pcpus { next_bit(&self.overloaded, at, pcpus) } else { None };
            next.filter(|&q| q >= at)
        };
        std::iter::successors(next(0), move |&q| next(q + 1))
            .filter(move |&q| q != p && (!near || self.llc(q) == self.llc(p)))
            .map(|q| (self.load(q), q))
    }

    /// A waiting vCPU of the busiest pCPU that has a movable one (LBF_ALL_PINNED).
    pub(super) fn take_from_busiest(&self, p: u32, near: bool) -> Option<Move> {
        let mut best: Option<(u64, Move)> = None;
        for (load, from) in self.overloaded(p, near) {
            if best.is_none_or(|(most, _)| load > most)
                && let Some(vcpu) = self.movable(from, p, 0, u64::MAX)
            {
                best = Some((load, Move { vcpu, from, to: p }));
            }
        }
        best.map(|(_, taken)| taken)
    }

    /// The move to a busy pCPU that reduces the larger load, if there is one.
    ///
    /// Linux 7.3 moves at most half of the imbalance, and after failed attempts twice that for each (detach_tasks, nr_balance_failed).
    fn balancing_move(&mut self, p: u32, domain: Domain) -> Option<Move> {
        let near = domain == Domain::Cache;
        let busier =
            |best: (u64, u32), other: (u64, u32)| if other.0 > best.0 { other } else { best };
        let (more, from) = self.overloaded(p, near).reduce(busier)?;
        let less = self.load(p);
        // imbalance_pct of sd_init.
        let percent = if near && self.discipline.is_flat() { 117 } else { 125 };
        if more * 100 <= less * percent {
            return None;
        }
        // After the move, both loads must be below the larger one of before.
        let mut most = (more - less).saturating_sub(1);
        if self.discipline.is_flat() {
            let failed = self.balance_due[p as usize][domain as usize].failed;
            most = ((more - less) / 2) << failed;
        }
        let found = self.movable(from, p, 1, most);
        let failed = &mut self.balance_due[p as usize][domain as usize].failed;
        *failed = if found.is_some() { 0 } else { (*failed + 1).min(MAX_FAILED) };
        found.map(|vcpu| Move { vcpu, from, to: p })
    }

    /// Compares the loads of the domains whose interval has expired, until one has a move.
    pub(super) fn compare_loads(&mut self, p: u32, now: u64) -> Option<Move> {
        for domain in Domain::ALL {
            if domain.is_redundant(&self.shape) {
                continue;
            }
            let next = now + domain.interval(&self.shape);
            let due = &mut self.balance_due[p as usize][domain as usize].due;
            if now < *due {
                continue;
            }
            *due = next;
            let found = self.balancing_move(p, domain);
            if found.is_some() {
                return found;
            }
        }
        None
    }
}
