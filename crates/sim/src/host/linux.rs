//! Linux as the host: CFS or EEVDF with a group for each VM.
//!
//! Each pCPU has a queue of groups and, for each VM with vCPUs there, a queue of these vCPUs.
//! A group's weight on a pCPU is its VM's weight times the part of the VM's load on that pCPU, at least 2 (calc_group_shares of kernel/sched/fair.c).
//! The local load is the load runnable now (with EEVDF its average, if that is larger); the remote load is an average (see `load_average`).
//! Four vCPUs of an equal-weight VM that always run, each on its own pCPU, therefore weigh 256 each.
//! When siblings fall asleep, a vCPU gains their weight only as their load averages decay.
//! As in the kernel, a group's weight on a pCPU is updated by changes there and at the tick.
//! With EEVDF, loads are integers and remote load has a resolution of one part in 64, so a group whose vCPUs always run keeps its weight.
//!
//! Placement: a woken vCPU goes to its last pCPU if that is idle, else to an idle pCPU of the same last-level cache, else to any idle pCPU,
//! else to its last pCPU (select_idle_sibling).
//! A pCPU that becomes idle takes a vCPU from the busiest pCPU, first within its own cache.
//! Busy pCPUs compare loads at intervals (see `balance`).
//! Cache hotness is not modelled, and searching costs no time.
//!
//! Directed yield: the candidate becomes the next buddy at both levels, and the yielder the skip buddy or gets a later deadline (yield_to_task_fair).
//! A custom slice applies to the vCPU within its group.
//!
//! The idle class (`cpu.idle`, sched_group_set_idle): a group in it weighs 3, never preempts a normal group, and is preempted by one at once.
//! A pCPU that runs only the idle class counts as idle for a vCPU that wakes (sched_idle_cpu).
//! When a group leaves the class, the change takes effect at the next tick or wake-up.
//!
//! A vCPU that is apart has its own groups alongside the VMs' groups (see `apart`).
//! The groups on all pCPUs that share a weight are a family, the kernel's task_group.
//! Each VM has a family, with the VM's number, and so has each vCPU that was ever apart.

mod apart;
mod balance;
mod buddies;
mod domain;
mod load_average;
mod slices;

use std::collections::BTreeMap;

use tandem_model::{PcpuId, PcpuSet};
use tandem_policy::host::{Knobs, WeightKnob};

use self::load_average::{Average, Decay};
use super::{Arrival, Move, Placement, Scheduler, Shape};
use crate::bits::set_bit;
use crate::sched::entity::{Entity, FINE};
use crate::sched::fair::{Above, Discipline, Enqueue, FairQueue};

/// No vCPU or group.
const NONE: u32 = u32::MAX;

/// A family's group on a pCPU.
#[derive(Clone, Debug)]
struct Group {
    vcpus: FairQueue,
    /// Average load of the vCPUs that were last queued here.
    average: Average,
    /// Assumed load on the other pCPUs, in whole units of weight (EEVDF).
    elsewhere: u64,
}

/// Load average of a vCPU.
#[derive(Clone, Copy, Debug)]
struct VcpuLoad {
    average: Average,
    /// The group whose average it is part of.
    home: u32,
    queued: bool,
}

/// The Linux host scheduler.
#[derive(Clone, Debug)]
pub struct LinuxHost {
    shape: Shape,
    discipline: Discipline,
    /// Per pCPU: its groups.
    roots: Vec<FairQueue>,
    /// Per vCPU: its family, which is its VM's or its own.
    family_of: Vec<u32>,
    /// Per (family, pCPU): the group's number, assigned on first use.
    group_of: Vec<u32>,
    groups: Vec<Group>,
    group_entities: Vec<Entity>,
    vcpu_entities: Vec<Entity>,
    /// Per family: its weight.
    weights: Vec<f64>,
    /// Per family: the load of its runnable vCPUs, and the average of all its load.
    loads: Vec<(u64, Average)>,
    vcpu_loads: Vec<VcpuLoad>,
    decay: Decay,
    /// Per pCPU: its runnable vCPUs.
    queued: Vec<u32>,
    /// Per pCPU: the current vCPU.
    current: Vec<u32>,
    /// pCPUs with more than one runnable vCPU, a bit each.
    overloaded: Vec<u64>,
    /// Per pCPU and scheduling domain: time of the next comparison of loads, ns.
    balance_due: Vec<[u64; 2]>,
    /// Families in the idle class.
    idle_families: Vec<bool>,
    /// Families of the vCPUs that are or were apart, by vCPU.
    own_families: BTreeMap<u32, u32>,
    /// Whether any vCPU ever had a custom slice.
    has_slices: bool,
    /// Per vCPU: the value of `touches` when it was last enqueued or picked.
    touched: Vec<u64>,
    /// Number of enqueues and picks so far.
    touches: u64,
}

/// A group's remote load is updated if it has changed by more than one part in this number.
/// In the kernel each pCPU publishes its own load by that rule (update_tg_load_avg).
/// Here the rule applies to the sum of all others, which is the same for two pCPUs and coarser for VMs on many.
const COARSE: u64 = 64;

/// WEIGHT_IDLEPRIO of kernel/sched/sched.h.
const IDLE_WEIGHT: f64 = 3.0;

impl VcpuLoad {
    /// Load of a vCPU that was never queued.
    const NEW: VcpuLoad = VcpuLoad { average: Average::ZERO, home: NONE, queued: false };
}

impl LinuxHost {
    /// A host with empty run queues.
    pub fn new(discipline: Discipline, shape: Shape) -> LinuxHost {
        let pcpus = shape.pcpus as usize;
        LinuxHost {
            roots: (0..shape.pcpus).map(|p| FairQueue::new(discipline, p).of_groups()).collect(),
            family_of: shape.vm_of.clone(),
            group_of: vec![NONE; pcpus * shape.weights.len()],
            groups: Vec::new(),
            group_entities: Vec::new(),
            vcpu_entities: shape.vcpu_weights.iter().map(|&weight| Entity::new(weight)).collect(),
            weights: shape.weights.clone(),
            loads: vec![(0, Average::ZERO); shape.weights.len()],
            vcpu_loads: shape.vm_of.iter().map(|_| VcpuLoad::NEW).collect(),
            decay: Decay::new(),
            queued: vec![0; pcpus],
            current: vec![NONE; pcpus],
            overloaded: vec![0; pcpus.div_ceil(64)],
            balance_due: vec![domain::intervals(&shape); pcpus],
            idle_families: vec![false; shape.weights.len()],
            own_families: BTreeMap::new(),
            has_slices: false,
            touched: vec![0; shape.vm_of.len()],
            touches: 0,
            discipline,
            shape,
        }
    }

    /// Index of a family's group on a pCPU in `group_of`.
    fn place(&self, p: u32, family: u32) -> usize {
        family as usize * self.shape.pcpus as usize + p as usize
    }

    fn group(&mut self, p: u32, family: u32) -> u32 {
        let place = self.place(p, family);
        if self.group_of[place] == NONE {
            let number = self.groups.len() as u32;
            self.group_of[place] = number;
            self.groups.push(Group {
                vcpus: FairQueue::new(self.discipline, number),
                average: Average::ZERO,
                elsewhere: 0,
            });
            let mut entity = Entity::new(1024);
            entity.set_idle(self.idle_families[family as usize]);
            self.group_entities.push(entity);
        }
        self.group_of[place]
    }

    /// The group of a vCPU on a pCPU where it has been queued.
    fn group_at(&self, p: u32, v: u32) -> Option<u32> {
        let number = self.group_of[self.place(p, self.family_of[v as usize])];
        (number != NONE).then_some(number)
    }

    /// calc_group_shares: the weight of a group on its pCPU.
    fn group_weight(&mut self, group: u32, family: u32, now: u64) -> u64 {
        let (load, average) = &mut self.loads[family as usize];
        let all = average.advance(&self.decay, *load, now);
        let group = &mut self.groups[group as usize];
        let load = group.vcpus.load();
        let was_here = group.average.advance(&self.decay, load, now);
        let elsewhere = (all - was_here).max(0.0);
        let (here, elsewhere) = match self.discipline {
            Discipline::Cfs { .. } => (load as f64, elsewhere),
            Discipline::Eevdf { .. } => {
                let elsewhere = (elsewhere / FINE as f64) as u64;
                if group.elsewhere.abs_diff(elsewhere) > group.elsewhere / COARSE {
                    group.elsewhere = elsewhere;
                }
                let here = was_here.max(load as f64) / FINE as f64;
                (here.floor(), group.elsewhere as f64)
            }
        };
        let part = here / (here + elsewhere).max(1.0);
        let weight = if self.idle_families[family as usize] {
            IDLE_WEIGHT
        } else {
            self.weights[family as usize]
        };
        (weight * FINE as f64 * part) as u64
    }

    /// Whether all runnable groups on a pCPU are in the idle class (sched_idle_cpu).
    fn only_idle_class(&self, p: u32) -> bool {
        let root = &self.roots[p as usize];
        let entities = &self.group_entities;
        root.queued(entities).chain(root.current()).all(|group| entities[group as usize].is_idle())
    }

    /// Updates the weights of a family's groups.
    fn reweigh_family(&mut self, family: u32, now: u64) {
        for p in 0..self.shape.pcpus {
            let group = self.group_of[self.place(p, family)];
            if group != NONE && self.groups[group as usize].vcpus.has_queued() {
                self.reweigh(p, group, family, now);
            }
        }
    }

    /// Advances all averages that include a vCPU on a pCPU to now.
    fn advance(&mut self, v: u32, group: u32, family: u32, now: u64) {
        let (load, average) = &mut self.loads[family as usize];
        average.advance(&self.decay, *load, now);
        let group = &mut self.groups[group as usize];
        group.average.advance(&self.decay, group.vcpus.load(), now);
        let of_vcpu = &mut self.vcpu_loads[v as usize];
        let load = if of_vcpu.queued { self.vcpu_entities[v as usize].weight() } else { 0 };
        of_vcpu.average.advance(&self.decay, load, now);
    }

    /// Moves a vCPU's load average to the group in which it is about to be queued.
    fn attach_load(&mut self, v: u32, group: u32, family: u32, arrival: Arrival, now: u64) {
        self.advance(v, group, family, now);
        let of_vcpu = &mut self.vcpu_loads[v as usize];
        if arrival == Arrival::New {
            // A new entity starts with the average of one that always ran (init_task_runnable_average).
            let weight = self.vcpu_entities[v as usize].weight();
            let gained = weight as f64 - of_vcpu.average.value();
            of_vcpu.average.add(gained);
            self.loads[family as usize].1.add(gained);
            if of_vcpu.home == group {
                self.groups[group as usize].average.add(gained);
            }
        }
        let average = of_vcpu.average.value();
        let before = std::mem::replace(&mut of_vcpu.home, group);
        of_vcpu.queued = true;
        if before == group {
            return;
        }
        self.groups[group as usize].average.add(average);
        if before != NONE {
            let before = &mut self.groups[before as usize];
            before.average.advance(&self.decay, before.vcpus.load(), now);
            before.average.add(-average);
        }
    }

    /// Updates a queued group's weight.
    fn reweigh(&mut self, p: u32, group: u32, family: u32, now: u64) {
        let weight = self.group_weight(group, family, now);
        self.roots[p as usize].set_weight(&mut self.group_entities, group, weight, true);
    }

    /// Dequeues a vCPU with delayed dequeue; no effect on others.
    fn forget(&mut self, v: u32, now: u64) {
        let entity = &self.vcpu_entities[v as usize];
        let (Some(group), true) = (entity.home(), entity.is_delayed()) else {
            return;
        };
        let family = self.family_of[v as usize];
        let home = (0..self.shape.pcpus).find(|&p| self.group_of[self.place(p, family)] == group);
        if let Some(p) = home {
            self.leave(v, p, group, family, now);
        }
    }

    /// Dequeues a delayed vCPU from its group, and the group from its pCPU if that was its last vCPU.
    fn leave(&mut self, v: u32, p: u32, group: u32, family: u32, now: u64) {
        self.advance(v, group, family, now);
        self.vcpu_loads[v as usize].queued = false;
        let queue = &mut self.groups[group as usize].vcpus;
        queue.forget(&mut self.vcpu_entities, v);
        self.loads[family as usize].0 -= self.vcpu_entities[v as usize].weight();
        if queue.has_queued() {
            self.update_left_group(v, p, group, family, true, now)
        } else {
            self.roots[p as usize].dequeue(&mut self.group_entities, group, true)
        }
    }

    fn count(&mut self, p: u32, more: i32) {
        let queued = &mut self.queued[p as usize];
        *queued = queued.wrapping_add_signed(more);
        set_bit(&mut self.overloaded, p, *queued > 1);
    }

    /// Marks a vCPU as the latest to be enqueued or picked.
    fn touch(&mut self, v: u32) {
        self.touches += 1;
        self.touched[v as usize] = self.touches;
    }

    fn llc(&self, p: u32) -> u32 {
        p / self.shape.pcpus_per_llc.max(1)
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
        self.is_runnable(vm, p) || self.has_sibling_apart(vm, p)
    }

    /// Whether any vCPU of a family is runnable on a pCPU.
    fn is_runnable(&self, family: u32, p: u32) -> bool {
        let group = self.group_of[self.place(p, family)];
        group != NONE && !self.groups[group as usize].vcpus.is_empty()
    }

    /// The pCPU with the fewest vCPUs on which a vCPU may be queued.
    fn quietest(&self, v: u32) -> Option<u32> {
        (0..self.shape.pcpus)
            .filter(|&p| self.may_be_on(v, p))
            .min_by_key(|&p| (self.queued[p as usize], p))
    }
}

impl Scheduler for LinuxHost {
    fn enqueue(&mut self, v: u32, p: u32, arrival: Arrival, now: u64) {
        let family = self.family_of[v as usize];
        let group = self.group(p, family);
        let how = match arrival {
            Arrival::New => Enqueue::New,
            Arrival::Wakeup => Enqueue::Wakeup,
            Arrival::Migrated => Enqueue::Migrated,
        };
        self.touch(v);
        let entity = &self.vcpu_entities[v as usize];
        if entity.is_delayed() && entity.home() == Some(group) {
            // Its load never left the group (enqueue_task_fair with ENQUEUE_DELAYED).
            let queue = &mut self.groups[group as usize].vcpus;
            queue.enqueue(&mut self.vcpu_entities, v, how);
            self.count(p, 1);
            self.hand_up_slice(v, group);
            return;
        }
        self.forget(v, now);
        self.attach_load(v, group, family, arrival, now);
        let above = self.above(p, group);
        let queue = &mut self.groups[group as usize].vcpus;
        let was_empty = !queue.has_queued();
        queue.enqueue_within(&mut self.vcpu_entities, v, how, above);
        self.loads[family as usize].0 += self.vcpu_entities[v as usize].weight();
        self.count(p, 1);
        let weight = self.group_weight(group, family, now);
        self.hand_up_slice(v, group);
        let root = &mut self.roots[p as usize];
        let is_delayed = self.group_entities[group as usize].is_delayed();
        if is_delayed {
            root.enqueue(&mut self.group_entities, group, Enqueue::Wakeup);
        }
        let is_there = !was_empty || is_delayed;
        root.set_weight(&mut self.group_entities, group, weight, is_there);
        if !is_there {
            // For the group this is always a wake-up (enqueue_task_fair).
            root.enqueue(&mut self.group_entities, group, Enqueue::Wakeup);
        }
    }

    fn dequeue(&mut self, v: u32, p: u32, sleeps: bool, now: u64) {
        let family = self.family_of[v as usize];
        let Some(group) = self.group_at(p, v) else {
            return;
        };
        self.advance(v, group, family, now);
        let queue = &mut self.groups[group as usize].vcpus;
        let before = queue.buddies();
        queue.dequeue(&mut self.vcpu_entities, v, sleeps);
        self.forget_above(v, p, group, before);
        let queue = &self.groups[group as usize].vcpus;
        if self.vcpu_entities[v as usize].is_delayed() {
            // The group keeps its load and weight.
            self.count(p, -1);
            if self.current[p as usize] == v {
                self.roots[p as usize].put_back(&mut self.group_entities);
                self.current[p as usize] = NONE;
            }
            return;
        }
        let is_empty = !queue.has_queued();
        self.vcpu_loads[v as usize].queued = false;
        self.loads[family as usize].0 -= self.vcpu_entities[v as usize].weight();
        self.count(p, -1);
        if !is_empty {
            // In the kernel the group stays current until another is picked, so update it before `put_back`.
            self.update_left_group(v, p, group, family, sleeps, now);
        }
        let root = &mut self.roots[p as usize];
        if is_empty {
            // For the group this is a sleep, even if its last vCPU migrates (dequeue_entities).
            root.dequeue(&mut self.group_entities, group, true);
        } else if self.current[p as usize] == v {
            root.put_back(&mut self.group_entities);
        }
        if self.current[p as usize] == v {
            self.current[p as usize] = NONE;
        }
    }

    fn pick(&mut self, p: u32, now: u64) -> Option<u32> {
        let group = loop {
            let group = self.roots[p as usize].choose(&mut self.group_entities)?;
            let queue = &self.groups[group as usize].vcpus;
            let Some(sleeper) = queue.next_sleeper(&self.vcpu_entities) else {
                break group;
            };
            // The picked entity sleeps: dequeue it and pick again (pick_task_fair).
            let family = self.family_of[sleeper as usize];
            self.leave(sleeper, p, group, family, now);
        };
        let root = &mut self.roots[p as usize];
        if let Some(left) = root.kept().filter(|&kept| kept != group) {
            // The vCPU that ran in the other group is no longer current there, either (put_prev_entity).
            self.groups[left as usize].vcpus.forget_kept();
        }
        root.take(&mut self.group_entities, group);
        let queue = &mut self.groups[group as usize].vcpus;
        let before = queue.buddies();
        let v = queue.pick(&mut self.vcpu_entities);
        debug_assert!(v.is_some(), "a queued group has a vCPU");
        if let Some(v) = v {
            self.forget_above(v, p, group, before);
            self.touch(v);
        }
        self.current[p as usize] = v.unwrap_or(NONE);
        v
    }

    fn put_back(&mut self, v: u32, p: u32, _now: u64) {
        if let Some(group) = self.group_at(p, v) {
            self.groups[group as usize].vcpus.put_back(&mut self.vcpu_entities);
        }
        self.roots[p as usize].put_back(&mut self.group_entities);
        self.current[p as usize] = NONE;
    }

    fn account(&mut self, v: u32, p: u32, ran: u64, _now: u64) {
        self.roots[p as usize].account(&mut self.group_entities, ran);
        if let Some(group) = self.group_at(p, v) {
            self.groups[group as usize].vcpus.account(&mut self.vcpu_entities, ran);
        }
    }

    fn tick(&mut self, p: u32, now: u64) -> bool {
        let v = self.current[p as usize];
        if v == NONE {
            return false;
        }
        let Some(group) = self.group_at(p, v) else {
            return false;
        };
        self.reweigh(p, group, self.family_of[v as usize], now);
        let above = self.above(p, group);
        let queue = &mut self.groups[group as usize].vcpus;
        let before = queue.buddies();
        let within = queue.tick_preempts_within(&self.vcpu_entities, above);
        self.forget_above(v, p, group, before);
        let root = &mut self.roots[p as usize];
        root.tick_preempts_within(&self.group_entities, Above::none(above.running)) || within
    }

    fn preempts(&mut self, woken: u32, p: u32, _now: u64) -> bool {
        self.wakeup_preempts(woken, p)
    }

    fn select(&mut self, v: u32, last: u32, idle: &PcpuSet, _now: u64) -> u32 {
        if self.vcpu_entities[v as usize].is_delayed() && self.may_be_on(v, last) {
            // It is still queued and wakes in place (ttwu_runnable).
            return last;
        }
        let with_idle_class;
        let idle = if self.idle_families.contains(&true) {
            let only_idle = (0..self.shape.pcpus).filter(|&p| self.only_idle_class(p));
            with_idle_class = only_idle.map(PcpuId).chain(idle.iter()).collect();
            &with_idle_class
        } else {
            idle
        };
        if idle.contains(PcpuId(last)) && self.may_be_on(v, last) {
            return last;
        }
        let cache = self.llc(last);
        let mut far = None;
        for p in idle.iter().filter(|p| self.may_be_on(v, p.0)) {
            if self.llc(p.0) == cache {
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
        self.take_from_busiest(p, true).or_else(|| self.take_from_busiest(p, false))
    }

    fn balance(&mut self, p: u32, now: u64) -> Option<Move> {
        self.compare_loads(p, now)
    }

    fn yield_to(&mut self, from: u32, p: u32, to: u32, q: u32, _now: u64) -> bool {
        self.directed_yield(from, p, to, q)
    }

    fn boost(&mut self, v: u32, p: u32, _now: u64) {
        self.set_first(v, p);
    }

    fn prefer(&mut self, v: u32, p: u32) {
        self.set_next(v, p);
    }

    fn set_weight(&mut self, vm: u32, weight: f64, now: u64) {
        self.weights[vm as usize] = weight;
        self.reweigh_family(vm, now);
    }

    fn set_idle(&mut self, vm: u32, idle: bool, now: u64) {
        self.idle_families[vm as usize] = idle;
        for p in 0..self.shape.pcpus {
            let group = self.group_of[self.place(p, vm)];
            if group != NONE {
                self.group_entities[group as usize].set_idle(idle);
            }
        }
        self.reweigh_family(vm, now);
    }

    fn set_vcpu(&mut self, v: u32, weight: u32, idle: bool, now: u64) {
        let family = self.family_of[v as usize];
        let weight = if idle { IDLE_WEIGHT as u64 } else { u64::from(weight.max(2)) } * FINE;
        let queued = self.vcpu_loads[v as usize].queued;
        let home = self.vcpu_loads[v as usize].home;
        self.vcpu_entities[v as usize].set_idle(idle);
        if home == NONE {
            self.vcpu_entities[v as usize].set_weight(weight);
            return;
        }
        self.advance(v, home, family, now);
        let before = self.vcpu_entities[v as usize].weight();
        let queue = &mut self.groups[home as usize].vcpus;
        queue.set_weight(&mut self.vcpu_entities, v, weight, queued);
        if queued {
            let load = &mut self.loads[family as usize].0;
            *load = *load - before + self.vcpu_entities[v as usize].weight();
            self.reweigh_family(family, now);
        }
    }

    fn inflates_lag(&self) -> bool {
        use crate::sched::fair::Reweight::Placed;
        let discipline = self.discipline;
        matches!(discipline, Discipline::Eevdf { reweight: Placed, .. })
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
        self.has_slices |= slice > 0;
        self.vcpu_entities[v as usize].set_slice(slice);
        let home = self.vcpu_loads[v as usize].home;
        if home != NONE {
            self.hand_up_slice(v, home);
        }
    }

    fn queued(&self, p: u32) -> u32 {
        self.queued[p as usize]
    }
}

#[cfg(test)]
mod tests;
