//! Load balancing: an idle or busy pCPU takes a waiting vCPU from another pCPU.
//!
//! A busy pCPU compares its load with those of its scheduling domains at their intervals (`domain`),
//! and one that runs only the idle class at the intervals of idle pCPUs (sched_balance_domains).
//! If the imbalance exceeds 25 %, it takes one vCPU whose move reduces the larger load.
//! For Linux 7.3 the imbalance is 17 %, within a core 10 %, as in the kernel (imbalance_pct of sd_init), and failed attempts permit larger moves (nr_balance_failed).
//!
//! A core with two busy threads loses one of their vCPUs to an idle core (SD_PREFER_SIBLING, group_smt_balance; active_load_balance_cpu_stop).
//! The kernel's idle pCPU tries once per interval of the domain, and moves a running task after more than `cache_nice_tries + 2` failures:
//! here, after that time.

use tandem_model::{Level, PcpuId, PcpuSet};

use super::LinuxHost;
use super::domain::Domain;
use crate::bits::next_bit;
use crate::host::Move;
use crate::sched::fair::Discipline;
use crate::sched::ids::{EntityId, QueueId};

/// Failed attempts of which one more migrates the running task (need_active_balance: cache_nice_tries + 2; cache_nice_tries is 1).
/// Busy pCPUs never migrate it here.
const MAX_FAILED: u8 = 3;

/// State of a pCPU's balancing within a domain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempt {
    /// Time of the last comparison of loads, ns.
    last: u64,
    /// Failed attempts since the last move (nr_balance_failed).
    failed: u8,
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

    /// Load and number of the pCPUs with more than one vCPU, except `p`, that meet it at a level.
    fn overloaded(&self, p: u32, level: Level) -> impl Iterator<Item = (u64, u32)> {
        let pcpus = self.shape.pcpus;
        let next = move |at: u32| {
            let next = if at < pcpus { next_bit(&self.overloaded, at, pcpus) } else { None };
            next.filter(|&q| q >= at)
        };
        std::iter::successors(next(0), move |&q| next(q + 1))
            .filter(move |&q| q != p && (level == Level::Machine || self.meet(p, q, level)))
            .map(|q| (self.load(q), q))
    }

    /// A waiting vCPU of the busiest pCPU that has a movable one (LBF_ALL_PINNED).
    pub(super) fn take_from_busiest(&self, p: u32, level: Level) -> Option<Move> {
        let mut best: Option<(u64, Move)> = None;
        for (load, from) in self.overloaded(p, level) {
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
    fn balancing_move(&mut self, p: u32, level: Level, attempt: usize) -> Option<Move> {
        let busier =
            |best: (u64, u32), other: (u64, u32)| if other.0 > best.0 { other } else { best };
        let (more, from) = self.overloaded(p, level).reduce(busier)?;
        let less = self.load(p);
        let percent = match level {
            _ if !self.discipline.is_flat() => 125,
            Level::Core => 110,
            _ => 117,
        };
        if more * 100 <= less * percent {
            return None;
        }
        // After the move, both loads must be below the larger one of before.
        let mut most = (more - less).saturating_sub(1);
        if self.discipline.is_flat() {
            most = ((more - less) / 2) << self.attempts[attempt].failed;
        }
        let found = self.movable(from, p, 1, most);
        let failed = &mut self.attempts[attempt].failed;
        *failed = if found.is_some() { 0 } else { (*failed + 1).min(MAX_FAILED) };
        found.map(|vcpu| Move { vcpu, from, to: p })
    }

    /// Compares the loads of the domains whose interval has expired, until one has a move.
    pub(super) fn compare_loads(&mut self, p: u32, now: u64) -> Option<Move> {
        let is_busy = !(self.only_idle_class(p) && self.fair.has_idle_groups());
        let first = p as usize * self.domains.len();
        for number in 0..self.domains.len() {
            let Domain { level, interval, idle_interval } = self.domains[number];
            let attempt = &mut self.attempts[first + number];
            if now < attempt.last + if is_busy { interval } else { idle_interval } {
                continue;
            }
            attempt.last = now;
            let found = self.balancing_move(p, level, first + number);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// An idle pCPU of an idle core to which the vCPU on `p`, whose core has two busy threads, moves.
    pub(super) fn move_to_idle_core(&mut self, p: u32, idle: &PcpuSet, now: u64) -> Option<u32> {
        let since = std::mem::replace(&mut self.crowded_since[p as usize], u64::MAX);
        let sibling = self.sibling(p)?;
        if idle.is_empty() || idle.contains(PcpuId(sibling)) {
            return None;
        }
        let v = self.fair.current(QueueId(p))?.0;
        let idle_core = |domain: &&Domain| {
            let mut near = idle.iter().map(|q| q.0).filter(|&q| self.meet(p, q, domain.level));
            near.find(|&q| self.is_idle_core(q, idle) && self.may_be_on(v, q))
        };
        let (domain, q) = self.domains.iter().find_map(|d| Some((d, idle_core(&d)?)))?;
        let since = since.min(now);
        if now - since >= u64::from(MAX_FAILED + 1) * domain.idle_interval {
            return Some(q);
        }
        self.crowded_since[p as usize] = since;
        None
    }
}
