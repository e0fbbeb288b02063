//! Linux as the host: CFS or EEVDF with a group for each VM.
//!
//! A VM is a group of the fair class ([`crate::sched::fair`]), and its vCPUs are the tasks.
//!
//! Placement without a described topology: a woken vCPU goes to its last pCPU if that is idle, else to an idle pCPU of the same
//! last-level cache, else to any idle pCPU, else to its last pCPU (select_idle_sibling).
//! With one, `wake` follows the kernel's steps, and a vCPU next to a busy thread moves to an idle core (`balance`).
//! A pCPU that becomes idle takes a vCPU from the busiest pCPU, first within its innermost domain (sched_balance_newidle).
//! Busy pCPUs compare loads at intervals (see `balance`).
//! Cache hotness is not modelled, and searching costs no time.
//!
//! The idle class (`cpu.idle`, sched_group_set_idle): a group in it weighs 3, never preempts a normal group, and is preempted by one at once.
//! In Linux 7.3 the wake-up rules do not consider the class (see `flat` in [`crate::sched::fair`]).
//! A pCPU that runs only the idle class counts as idle for a vCPU that wakes (sched_idle_cpu).
//! When a group leaves the class, the change takes effect at the next tick or wake-up.
//!
//! A vCPU that is apart has its own group alongside the VMs' groups (see `apart`).
//! Each VM has a group, with the VM's number, and so has each vCPU that was ever apart.

mod apart;
mod balance;
mod domain;
mod wake;

use std::collections::BTreeMap;

use tandem_model::{Level, Nanos, PcpuId, PcpuSet};
use tandem_policy::host::{Knobs, WeightKnob};

use self::balance::Attempt;
use self::domain::Domain;
use self::wake::Wakees;
use super::{Enqueue, Move, Placement, Scheduler, Shape};
use crate::bits::set_bit;
use crate::sched::fair::{Discipline, FairClass, Reweight};
use crate::sched::ids::{EntityId, GroupId, QueueId};

/// The Linux host scheduler.
#[derive(Clone, Debug)]
pub struct LinuxHost {
    shape: Shape,
    discipline: Discipline,
    /// Tasks are vCPUs by number, and the first queues are the pCPUs' own.
    fair: FairClass,
    /// Per vCPU: its group, which is its VM's or its own.
    group_of: Vec<GroupId>,
    /// pCPUs with more than one runnable vCPU, a bit each.
    overloaded: Vec<u64>,
    /// Scheduling domains, from the innermost to the outermost.
    domains: Vec<Domain>,
    /// Per pCPU and scheduling domain: the comparisons of loads.
    attempts: Vec<Attempt>,
    /// Per pCPU: time since which its core has two busy threads while another core is idle; `u64::MAX`: it has not.
    crowded_since: Vec<u64>,
    wakees: Wakees,
    /// Per pCPU: the other thread of its core.
    siblings: Vec<Option<u32>>,
    /// pCPUs of a last-level cache (sd_llc_size).
    cache_size: u32,
    /// Groups of the vCPUs that are or were apart, by vCPU.
    own_groups: BTreeMap<u32, GroupId>,
    /// Per vCPU: the value of `touches` when it was last enqueued or picked.
    touched: Vec<u64>,
    /// Number of enqueues and picks so far.
    touches: u64,
    /// Per pCPU: the last end of a yielder's slice protection, ns.
    forced: Vec<Option<u64>>,
}

/// Minimum time between two ends of slice protection on a pCPU by a credited yield, ns.
const FORCE_INTERVAL: u64 = 6_000_000;

impl LinuxHost {
    /// A host with empty run queues.
    pub fn new(discipline: Discipline, shape: Shape) -> LinuxHost {
        let pcpus = shape.pcpus as usize;
        let domains = Domain::all(&shape);
        LinuxHost {
            fair: FairClass::with_groups(
                discipline,
                shape.pcpus,
                &shape.vcpu_weights,
                &shape.weights,
            ),
            group_of: shape.vm_of.iter().map(|&vm| GroupId(vm)).collect(),
            overloaded: vec![0; pcpus.div_ceil(64)],
            attempts: vec![Attempt::default(); pcpus * domains.len()],
            domains,
            crowded_since: vec![u64::MAX; pcpus],
            wakees: Wakees::new(shape.vm_of.len()),
            siblings: siblings(&shape),
            cache_size: shape.topology.span(PcpuId(0), Level::Cache).len() as u32,
            own_groups: BTreeMap::new(),
            touched: vec![0; shape.vm_of.len()],
            touches: 0,
            forced: vec![None; pcpus],
            discipline,
            shape,
        }
    }

    /// Whether all runnable groups on a pCPU are in the idle class (sched_idle_cpu).
    fn only_idle_class(&self, p: u32) -> bool {
        let root = QueueId(p);
        let mut entities = self.fair.queued(root).chain(self.fair.queue(root).curr.get());
        entities.all(|se| self.fair.is_sched_idle(se))
    }

    fn is_current(&self, v: u32, p: u32) -> bool {
        self.fair.current(QueueId(p)) == Some(EntityId(v))
    }

    /// Updates whether a pCPU has more than one runnable vCPU.
    fn note_load(&mut self, p: u32) {
        let running = self.fair.nr_running(QueueId(p));
        set_bit(&mut self.overloaded, p, running > 1);
    }

    /// Marks a vCPU as the latest to be enqueued or picked.
    fn touch(&mut self, v: u32) {
        self.touches += 1;
        self.touched[v as usize] = self.touches;
    }

    /// Whether two pCPUs meet at a level of the topology.
    fn meet(&self, p: u32, q: u32, level: Level) -> bool {
        self.shape.topology.common(PcpuId(p), PcpuId(q)) <= level
    }

    /// Whether a vCPU may be queued on a pCPU.
    fn may_be_on(&self, v: u32, p: u32) -> bool {
        if !self.shape.allowed[v as usize].contains(PcpuId(p)) {
            return false;
        }
        self.shape.placement != Placement::NoStacking || !self.has_sibling(v, p)
    }

    /// Whether another vCPU of the VM is runnable on a pCPU.
    fn has_sibling(&self, v: u32, p: u32) -> bool {
        let vm = self.shape.vm_of[v as usize];
        self.is_runnable(GroupId(vm), p) || self.has_sibling_apart(vm, p)
    }

    /// Whether any vCPU of a group is runnable on a pCPU.
    fn is_runnable(&self, group: GroupId, p: u32) -> bool {
        self.fair.group_queue(p, group).is_some_and(|rq| self.fair.nr_running(rq) > 0)
    }

    /// The pCPU with the fewest vCPUs on which a vCPU may be queued.
    fn quietest(&self, v: u32) -> Option<u32> {
        (0..self.shape.pcpus).filter(|&p| self.may_be_on(v, p)).min_by_key(|&p| (self.queued(p), p))
    }
}

/// The other thread of each pCPU's core, if the scheduler follows the topology.
fn siblings(shape: &Shape) -> Vec<Option<u32>> {
    if !shape.follows_topology {
        return vec![None; shape.pcpus as usize];
    }
    let sibling = |p: PcpuId| shape.topology.siblings(p).iter().next().map(|sibling| sibling.0);
    shape.topology.pcpus().map(sibling).collect()
}

impl Scheduler for LinuxHost {
    fn enqueue(&mut self, v: u32, p: u32, how: Enqueue, now: u64) {
        self.touch(v);
        let rq = self.fair.group_queue_or_new(p, self.group_of[v as usize]);
        self.fair.enqueue_task(EntityId(v), rq, how, now);
        self.note_load(p);
    }

    fn dequeue(&mut self, v: u32, p: u32, sleeps: bool, now: u64) {
        self.fair.dequeue_task(EntityId(v), sleeps, now);
        self.note_load(p);
    }

    fn pick(&mut self, p: u32, now: u64) -> Option<u32> {
        let EntityId(v) = self.fair.pick_next_task(QueueId(p), now)?;
        self.touch(v);
        Some(v)
    }

    fn pick_of(&mut self, vm: u32, p: u32, now: u64) -> Option<u32> {
        let group = self.fair.group_queue(p, GroupId(vm))?;
        let rq = if self.discipline.is_flat() { QueueId(p) } else { group };
        let v = self.fair.queued(rq).find(|&EntityId(v)| self.shape.vm_of[v as usize] == vm)?.0;
        self.boost(v, p, now);
        self.pick(p, now)
    }

    fn put_back(&mut self, _v: u32, p: u32, _now: u64) {
        self.fair.put_prev_task(QueueId(p));
    }

    fn account(&mut self, _v: u32, p: u32, ran: u64, _now: u64) {
        self.fair.account(QueueId(p), ran);
    }

    fn tick(&mut self, p: u32, now: u64) -> bool {
        self.fair.task_tick(QueueId(p), now)
    }

    fn preempts(&mut self, woken: u32, p: u32, _now: u64) -> bool {
        self.fair.check_preempt(QueueId(p), EntityId(woken))
    }

    fn preempts_lazily(&self) -> bool {
        self.discipline.is_flat()
    }

    fn select(&mut self, v: u32, last: u32, waker: Option<u32>, idle: &PcpuSet, now: u64) -> u32 {
        if self.fair.entity(EntityId(v)).sched_delayed && self.may_be_on(v, last) {
            // It is still queued and wakes in place (ttwu_runnable).
            return last;
        }
        let with_idle_class;
        let idle = if self.fair.has_idle_groups() {
            let only_idle = (0..self.shape.pcpus).filter(|&p| self.only_idle_class(p));
            with_idle_class = only_idle.map(PcpuId).chain(idle.iter()).collect();
            &with_idle_class
        } else {
            idle
        };
        if self.shape.follows_topology
            && let Some(p) = self.select_in_cache(v, last, waker, idle, now)
        {
            return p;
        }
        if idle.contains(PcpuId(last)) && self.may_be_on(v, last) {
            return last;
        }
        let mut far = None;
        for p in idle.iter().filter(|p| self.may_be_on(v, p.0)) {
            if self.meet(p.0, last, Level::Cache) {
                return p.0;
            }
            far = far.or(Some(p.0));
        }
        if let Some(p) = far {
            return p;
        }
        if self.may_be_on(v, last) {
            return last;
        }
        let anywhere = self.shape.allowed[v as usize].iter().next();
        self.quietest(v).or(anywhere.map(|p| p.0)).unwrap_or(last)
    }

    fn pull(&mut self, p: u32, _now: u64) -> Option<Move> {
        self.domains.iter().find_map(|domain| self.take_from_busiest(p, domain.level))
    }

    fn balance(&mut self, p: u32, now: u64) -> Option<Move> {
        self.compare_loads(p, now)
    }

    fn spread(&mut self, p: u32, idle: &PcpuSet, now: u64) -> Option<u32> {
        self.move_to_idle_core(p, idle, now)
    }

    fn yield_to(&mut self, from: u32, p: u32, to: u32, q: u32, _now: u64) -> bool {
        if self.is_current(to, q) || !self.is_current(from, p) {
            return false;
        }
        self.fair.yield_to(QueueId(p), QueueId(q), EntityId(to))
    }

    fn credit_lag(&mut self, to: u32, p: u32, margin: Nanos, now: u64) {
        self.fair.credit_lag(EntityId(to), margin);
        let last = &mut self.forced[p as usize];
        if last.is_none_or(|last| now - last >= FORCE_INTERVAL) {
            *last = Some(now);
            self.fair.cancel_protection(QueueId(p));
        }
    }

    fn boost(&mut self, v: u32, p: u32, _now: u64) {
        if !self.is_current(v, p) {
            self.fair.set_first(EntityId(v));
        }
    }

    fn prefer(&mut self, v: u32, p: u32) {
        if !self.is_current(v, p) {
            self.fair.set_next_buddy(EntityId(v));
        }
    }

    fn set_weight(&mut self, vm: u32, weight: f64, now: u64) {
        self.fair.set_group_weight(GroupId(vm), weight);
        self.fair.update_group(GroupId(vm), now);
    }

    fn set_idle(&mut self, vm: u32, idle: bool, now: u64) {
        self.fair.set_group_idle(GroupId(vm), idle, now);
    }

    fn set_vcpu(&mut self, v: u32, weight: u32, idle: bool, now: u64) {
        self.fair.set_member(EntityId(v), weight, idle, now);
    }

    fn inflates_lag(&self) -> bool {
        matches!(self.discipline, Discipline::Eevdf { reweight: Reweight::Placed, .. })
    }

    fn is_divisible(&self) -> bool {
        true
    }

    fn set_own_group(&mut self, v: u32, weight: Option<f64>, now: u64) {
        self.divide(v, weight, now);
    }

    fn knobs(&self, weight: WeightKnob) -> Knobs {
        let all = Knobs::all(weight);
        match self.discipline {
            Discipline::Eevdf { .. } => all,
            Discipline::Cfs { own_granularity: true, .. } => all,
            Discipline::Cfs { .. } => Knobs { slice: None, ..all },
        }
    }

    fn set_affinity(&mut self, v: u32, allowed: &PcpuSet) {
        self.shape.allowed[v as usize] = allowed.clone();
    }

    fn set_slice(&mut self, v: u32, slice: u64) {
        self.fair.set_slice(EntityId(v), slice);
    }

    fn queued(&self, p: u32) -> u32 {
        self.fair.nr_running(QueueId(p))
    }
}

#[cfg(test)]
mod tests;
