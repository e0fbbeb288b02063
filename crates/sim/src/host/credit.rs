//! Xen's credit scheduler as the host.
//!
//! Source: xen/common/sched/credit.c.
//! Every 30 ms, accounting divides the credits of that time on all pCPUs among the active VMs by weight, each VM limited to its usable part.
//! Within a VM it divides them evenly over the active vCPUs.
//! Running burns credits.
//! A vCPU with credits is UNDER, without credits OVER; a vCPU that wakes while UNDER is BOOSTed until its first tick.
//! A run queue is ordered by class (BOOST, UNDER, OVER), and first come, first served within a class.
//!
//! The meaning of the weight has changed ([`CreditAge`]).
//! Up to Xen 4.0 a weight belongs to the VM, regardless of its number of vCPUs.
//! Since 4.1 every active vCPU has its VM's weight, so a VM with more vCPUs gets more.
//!
//! A running vCPU keeps its pCPU for a time slice of 30 ms.
//! A vCPU of a better class that wakes there preempts it earlier, but not before the rate limit of 1 ms.
//! A vCPU becomes active at its first tick while running.
//! It becomes inactive when its credits exceed a slice's; it then keeps half of them (none up to 4.0).
//! Its debt is limited to the credits of a slice.
//!
//! An idle pCPU takes any waiting vCPU, best class first.
//! A pCPU that picks an OVER vCPU takes an UNDER or BOOSTed one from others, here at the host's next tick.
//!
//! Caps: a VM earns at most its cap.
//! At accounting, a vCPU that owes more than its part of the cap is PARKED, running or not.
//! Once its debt is paid, it is UNDER without a boost.
//!
//! Left out: yield hints, soft affinity, moves to another pCPU at ticks, and redistribution of the credits above the limits (`credit_balance`).
//! Xen has no directed yield; here it reorders the queue.
//!
//! Credits are kept in ns of run time; Xen's unit is 0.1 ms.

use std::collections::VecDeque;

use tandem_model::{Nanos, PcpuId, PcpuSet};
use tandem_policy::host::{Knobs, WeightKnob};

use super::{CreditAge, CreditConfig, Enqueue, Move, Placement, Scheduler, Shape, Starts};

/// No pCPU.
const NONE: u32 = u32::MAX;

/// Classes, best first.
const BOOST: usize = 0;
const UNDER: usize = 1;
const OVER: usize = 2;
/// Over its cap: may not run.
const PARKED: usize = 3;

impl CreditConfig {
    /// Settings of a release; the rate limit came with Xen 4.2.
    pub fn of(age: CreditAge) -> CreditConfig {
        CreditConfig {
            age,
            starts: Starts::Spread,
            tick: Nanos::from_millis(10),
            timeslice: Nanos::from_millis(30),
            ratelimit: match age {
                CreditAge::Xen40 => Nanos::ZERO,
                CreditAge::Xen42 => Nanos::from_millis(1),
            },
        }
    }
}

impl Default for CreditConfig {
    fn default() -> CreditConfig {
        CreditConfig::of(CreditAge::Xen42)
    }
}

#[derive(Clone, Debug)]
struct CreditVcpu {
    vm: u32,
    class: usize,
    credit: i64,
    active: bool,
    /// The pCPU on which it is queued or current.
    pcpu: u32,
}

#[derive(Clone, Debug, Default)]
struct CreditPcpu {
    queues: [VecDeque<u32>; 4],
    current: Option<u32>,
    /// The next vCPU, regardless of the order.
    first: Option<u32>,
    /// Run time of the current vCPU since it was picked, ns.
    ran: u64,
    /// Time of the next tick, ns.
    tick_due: u64,
    /// A vCPU of a better class woke within the rate limit and preempts at its end.
    tickled: bool,
    /// The pCPU has picked and has not yet searched other pCPUs for a better class.
    looks: bool,
    /// `ran` when the current vCPU, alone here, last started a slice.
    chosen: u64,
}

impl CreditPcpu {
    fn waiting(&self) -> usize {
        self.queues[..PARKED].iter().map(VecDeque::len).sum()
    }

    fn best(&self) -> Option<usize> {
        let queues = &self.queues[..PARKED];
        queues.iter().position(|queue| !queue.is_empty())
    }
}

/// The credit scheduler.
#[derive(Clone, Debug)]
pub struct CreditHost {
    config: CreditConfig,
    shape: Shape,
    vcpus: Vec<CreditVcpu>,
    pcpus: Vec<CreditPcpu>,
    /// Per VM: its active vCPUs.
    active: Vec<u32>,
    accounting_due: u64,
    /// Per VM: how many pCPUs it may use; empty without caps.
    caps: Vec<f64>,
}

impl CreditHost {
    /// A host with empty run queues.
    pub fn new(config: CreditConfig, shape: Shape) -> CreditHost {
        let vcpu =
            |&vm: &u32| CreditVcpu { vm, class: UNDER, credit: 0, active: false, pcpu: NONE };
        CreditHost {
            vcpus: shape.vm_of.iter().map(vcpu).collect(),
            pcpus: vec![CreditPcpu::default(); shape.pcpus as usize],
            active: vec![0; shape.weights.len()],
            accounting_due: config.timeslice.0,
            caps: Vec::new(),
            config,
            shape,
        }
    }

    fn push(&mut self, v: u32, p: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.pcpu = p;
        self.pcpus[p as usize].queues[vcpu.class].push_back(v);
    }

    fn take(&mut self, v: u32, p: u32) {
        let pcpu = &mut self.pcpus[p as usize];
        if pcpu.first == Some(v) {
            pcpu.first = None;
        }
        for queue in &mut pcpu.queues {
            if let Some(at) = queue.iter().position(|&queued| queued == v) {
                queue.remove(at);
                return;
            }
        }
    }

    fn activate(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        if !vcpu.active {
            vcpu.active = true;
            self.active[vcpu.vm as usize] += 1;
        }
    }

    /// csched_acct: distributes the credits of a time slice.
    fn account_all(&mut self, now: u64) {
        let slice = self.config.timeslice.0;
        self.accounting_due = now + slice - (now - self.accounting_due) % slice;
        let slice = self.config.timeslice.0 as f64;
        let count = |vm: usize| f64::from(self.active[vm]);
        let weight = |vm: usize| match self.config.age {
            CreditAge::Xen40 => self.shape.weights[vm],
            CreditAge::Xen42 => self.shape.weights[vm] * count(vm),
        };
        let mut order: Vec<usize> =
            (0..self.active.len()).filter(|&vm| self.active[vm] > 0).collect();
        let cap = |vm: usize| slice * self.caps.get(vm).copied().unwrap_or(f64::INFINITY);
        let peak = |vm: usize| (slice * count(vm)).min(cap(vm));
        // A VM that cannot use its part leaves the rest to the others.
        // The VM with the largest weight relative to its limit is limited first.
        let reach = |vm: usize| weight(vm) / peak(vm);
        order.sort_by(|&a, &b| reach(b).total_cmp(&reach(a)).then(a.cmp(&b)));
        let mut left: f64 = order.iter().map(|&vm| weight(vm)).sum();
        let mut total = slice * self.pcpus.len() as f64;
        let mut fair = vec![0.0; self.active.len()];
        for vm in order {
            let own = weight(vm);
            let share = (total * own / left).min(peak(vm));
            fair[vm] = share / count(vm);
            total -= share;
            left -= own;
        }
        let slice = self.config.timeslice.0 as i64;
        for vcpu in self.vcpus.iter_mut().filter(|vcpu| vcpu.active) {
            vcpu.credit = (vcpu.credit + fair[vcpu.vm as usize] as i64).max(-slice);
            let most_owed = self.caps.get(vcpu.vm as usize).map(|cap| {
                let active = f64::from(self.active[vcpu.vm as usize]);
                (slice as f64 * cap / active) as i64
            });
            if vcpu.credit >= 0 {
                vcpu.class = vcpu.class.min(UNDER);
            } else if vcpu.class != PARKED {
                vcpu.class = match most_owed {
                    Some(most) if vcpu.credit < -most => PARKED,
                    _ => OVER,
                };
            }
            if vcpu.credit > slice {
                vcpu.credit = match self.config.age {
                    CreditAge::Xen40 => 0,
                    CreditAge::Xen42 => vcpu.credit / 2,
                };
                vcpu.active = false;
                self.active[vcpu.vm as usize] -= 1;
            }
        }
        for p in 0..self.pcpus.len() {
            self.sort(p);
        }
    }

    /// Requeues waiting vCPUs by their present class; the order within a class stays.
    fn sort(&mut self, p: usize) {
        let vcpus = &self.vcpus;
        let queues = &mut self.pcpus[p].queues;
        for class in [BOOST, UNDER, OVER, PARKED] {
            for _ in 0..queues[class].len() {
                let Some(v) = queues[class].pop_front() else {
                    break;
                };
                // vCPUs of this class rotate once through the queue, so their order stays.
                // The others join the end of their class's queue in a deterministic order.
                queues[vcpus[v as usize].class].push_back(v);
            }
        }
    }

    fn may_be_on(&self, v: u32, p: u32) -> bool {
        if !self.shape.allowed[v as usize].contains(PcpuId(p)) {
            return false;
        }
        let vm = self.vcpus[v as usize].vm;
        let pcpu = &self.pcpus[p as usize];
        let of_vm = |&other: &u32| other != v && self.vcpus[other as usize].vm == vm;
        self.shape.placement != Placement::NoStacking
            || !pcpu.queues.iter().flatten().chain(&pcpu.current).any(of_vm)
    }

    /// The first waiting vCPU of a class that may move to `p`, searched on the pCPUs after it, wrapping around.
    fn steal(&self, p: u32, class: usize) -> Option<Move> {
        let count = self.shape.pcpus;
        (1..count).map(|step| (p + step) % count).find_map(|from| {
            let queue = &self.pcpus[from as usize].queues[class];
            let vcpu = queue.iter().copied().find(|&v| self.may_be_on(v, p))?;
            Some(Move { vcpu, from, to: p })
        })
    }
}

impl Scheduler for CreditHost {
    fn enqueue(&mut self, v: u32, p: u32, how: Enqueue, _now: u64) {
        let vcpu = &mut self.vcpus[v as usize];
        if how == Enqueue::Wakeup && vcpu.class == UNDER {
            vcpu.class = BOOST;
        }
        self.push(v, p);
    }

    fn dequeue(&mut self, v: u32, p: u32, _sleeps: bool, _now: u64) {
        if self.pcpus[p as usize].current == Some(v) {
            self.pcpus[p as usize].current = None;
        } else {
            self.take(v, p);
        }
        self.vcpus[v as usize].pcpu = NONE;
    }

    fn pick(&mut self, p: u32, now: u64) -> Option<u32> {
        let tick = self.config.tick.0;
        let pcpu = &mut self.pcpus[p as usize];
        let next = match pcpu.first.take() {
            Some(first) => first,
            None => {
                let class = pcpu.best()?;
                *pcpu.queues[class].front()?
            }
        };
        self.take(next, p);
        let pcpu = &mut self.pcpus[p as usize];
        pcpu.current = Some(next);
        pcpu.ran = 0;
        pcpu.tickled = false;
        (pcpu.looks, pcpu.chosen) = (true, 0);
        if pcpu.tick_due <= now {
            pcpu.tick_due = now + tick;
        }
        Some(next)
    }

    fn put_back(&mut self, v: u32, p: u32, _now: u64) {
        self.pcpus[p as usize].current = None;
        self.push(v, p);
    }

    fn account(&mut self, v: u32, p: u32, ran: u64, _now: u64) {
        self.vcpus[v as usize].credit -= ran as i64;
        self.pcpus[p as usize].ran += ran;
    }

    fn tick(&mut self, p: u32, now: u64) -> bool {
        if let Some(current) = self.pcpus[p as usize].current
            && self.pcpus[p as usize].tick_due <= now
        {
            self.pcpus[p as usize].tick_due = now + self.config.tick.0;
            self.activate(current);
            let vcpu = &mut self.vcpus[current as usize];
            if vcpu.class == BOOST {
                vcpu.class = UNDER;
            }
        }
        if now >= self.accounting_due {
            self.account_all(now);
        }
        if self.pcpus[p as usize].current.is_some_and(|v| self.parked(v)) {
            return true;
        }
        let pcpu = &mut self.pcpus[p as usize];
        let slice = if pcpu.tickled { self.config.ratelimit.0 } else { self.config.timeslice.0 };
        if pcpu.waiting() > 0 {
            return pcpu.ran >= slice;
        }
        if pcpu.ran - pcpu.chosen >= self.config.timeslice.0 {
            pcpu.chosen = pcpu.ran;
            pcpu.looks = true;
        }
        false
    }

    fn preempts(&mut self, woken: u32, p: u32, _now: u64) -> bool {
        let pcpu = &mut self.pcpus[p as usize];
        let Some(current) = pcpu.current else {
            return true;
        };
        let is_better = self.vcpus[woken as usize].class < self.vcpus[current as usize].class;
        pcpu.tickled |= is_better;
        is_better && pcpu.ran >= self.config.ratelimit.0
    }

    /// csched_schedule of Xen 4.2 continues a vCPU that has run less than the rate limit, and sets its timer to the full rate limit.
    fn looks_again_after(&self, p: u32) -> Option<u64> {
        let is_due = self.pcpus[p as usize].tickled && self.config.ratelimit.0 > 0;
        is_due.then_some(self.config.ratelimit.0)
    }

    fn looks_again(&mut self, p: u32) -> bool {
        let pcpu = &self.pcpus[p as usize];
        pcpu.tickled && pcpu.waiting() > 0 && pcpu.ran >= self.config.ratelimit.0
    }

    fn select(&mut self, v: u32, last: u32, _: Option<u32>, idle: &PcpuSet, _now: u64) -> u32 {
        if idle.contains(PcpuId(last)) && self.may_be_on(v, last) {
            return last;
        }
        if let Some(p) = idle.iter().find(|p| self.may_be_on(v, p.0)) {
            return p.0;
        }
        if self.may_be_on(v, last) {
            return last;
        }
        (0..self.shape.pcpus)
            .filter(|&p| self.may_be_on(v, p))
            .min_by_key(|&p| (self.queued(p), p))
            .or_else(|| self.shape.allowed[v as usize].iter().next().map(|p| p.0))
            .unwrap_or(last)
    }

    fn pull(&mut self, p: u32, _now: u64) -> Option<Move> {
        [BOOST, UNDER, OVER].into_iter().find_map(|class| self.steal(p, class))
    }

    fn balance(&mut self, p: u32, _now: u64) -> Option<Move> {
        let pcpu = &mut self.pcpus[p as usize];
        let current = pcpu.current.map(|v| self.vcpus[v as usize].class);
        let looks = std::mem::take(&mut pcpu.looks);
        if !looks || current != Some(OVER) || pcpu.best().is_some_and(|class| class < OVER) {
            return None;
        }
        [BOOST, UNDER].into_iter().find_map(|class| self.steal(p, class))
    }

    fn yield_to(&mut self, from: u32, p: u32, to: u32, q: u32, _now: u64) -> bool {
        let is_waiting = self.vcpus[to as usize].pcpu == q
            && !self.parked(to)
            && self.pcpus[q as usize].current != Some(to)
            && self.pcpus[p as usize].current == Some(from);
        if is_waiting {
            self.pcpus[q as usize].first = Some(to);
        }
        is_waiting
    }

    fn boost(&mut self, v: u32, p: u32, _now: u64) {
        if self.pcpus[p as usize].current != Some(v) && !self.parked(v) {
            self.pcpus[p as usize].first = Some(v);
        }
    }

    fn exchange(&mut self, left: u32, p: u32, queued: u32, q: u32, _now: u64) {
        let vcpus = &mut self.vcpus;
        let class = vcpus[queued as usize].class;
        // The place in the queue includes the class; each vCPU keeps its credits.
        vcpus[queued as usize].class = vcpus[left as usize].class;
        vcpus[left as usize].class = class;
        vcpus[left as usize].pcpu = q;
        let other = &mut self.pcpus[q as usize];
        if other.first == Some(queued) {
            other.first = Some(left);
        }
        let places = other.queues.iter_mut().flatten();
        for place in places.filter(|place| **place == queued) {
            *place = left;
        }
        self.push(queued, p);
        self.pcpus[p as usize].first = Some(queued);
    }

    fn set_weight(&mut self, vm: u32, weight: f64, _now: u64) {
        self.shape.weights[vm as usize] = weight;
    }

    /// VM weights and affinities; credit has neither an idle class nor vCPU weights.
    fn knobs(&self, weight: WeightKnob) -> Knobs {
        Knobs { vcpu_groups: false, idle: false, nice: false, slice: None, ..Knobs::all(weight) }
    }

    fn set_affinity(&mut self, v: u32, allowed: &PcpuSet) {
        self.shape.allowed[v as usize] = allowed.clone();
    }

    fn set_slice(&mut self, _v: u32, _slice: u64) {}

    fn caps_itself(&self) -> bool {
        true
    }

    fn set_caps(&mut self, caps: &[f64], now: u64) {
        self.caps.clear();
        self.caps.extend_from_slice(caps);
        if now >= self.accounting_due {
            self.account_all(now);
        }
    }

    fn parked(&self, v: u32) -> bool {
        self.vcpus[v as usize].class == PARKED
    }

    fn queued(&self, p: u32) -> u32 {
        let pcpu = &self.pcpus[p as usize];
        pcpu.waiting() as u32 + u32::from(pcpu.current.is_some())
    }
}
