//! The simulated world: one clock, one event queue, and everything that reacts.
//!
//! Life: [`World::new`] builds pCPUs, VMs, vCPUs and threads from a scenario → [`World::run`]
//! handles events until the duration is over or every thread has ended → [`World::results`].
//!
//! How an event is handled: it concerns one pCPU, vCPU or thread; the handler first brings the
//! account of the vCPU concerned up to date (`sync`), changes state, and then plans the vCPU's next
//! own event (`plan`). What a handler causes elsewhere (a lock granted to a thread on another vCPU,
//! a pCPU that must choose again) is put on a list of `Work` that is emptied before the clock
//! moves, first in, first out. So nothing recurses and the order is always the same.
//!
//! The rooms: `build` makes the world, `execute` is what vCPUs do with their time, `program`
//! interprets the threads' programs, `locks`, `blocking` and `flush` are the primitives, `wake` and
//! `idle` are the guest's scheduler, `interrupts` are IPIs and timers, `pcpus` is the host,
//! `pause_loop` KVM's handling of spinning, `overlays` caps and co-scheduling, `policies`, `flexs`
//! and `gleaner` the adapters for Tandem's policies, `measure` the results, `waits` who waited for whom, `check` the
//! invariants.

use tandem_policy::Nanos;
use tandem_policy::PcpuSet;

use crate::host::AnyScheduler;
use crate::host::HostConfig;
use crate::machine::Costs;
use crate::queue::EventQueue;
use crate::queue::Slot;
use crate::results::Results;
use crate::scenario::Mode;
use crate::scenario::Scenario;
use crate::sched::fair::Entity;
use crate::trace::TraceEvent;
use crate::trace::Tracks;

mod blocking;
mod build;
mod caches;
mod check;
mod execute;
mod flexs;
mod flush;
mod gleaner;
mod idle;
mod interrupts;
mod locks;
mod measure;
mod overlays;
mod pause_loop;
mod pcpus;
mod policies;
mod program;
mod state;
mod tracing;
mod waits;
mod wake;

use program::Instr;
use state::Message;
use state::Object;
use state::Pcpu;
use state::Thread;
use state::Vcpu;
use state::Vm;
use state::Work;

/// Where each kind of event has its slots.
#[derive(Clone, Copy, Debug, Default)]
struct Slots {
    guest_ticks: u32,
    timers: u32,
    host_ticks: u32,
    polls: u32,
    starts: u32,
    caps: u32,
    cap_period: u32,
    policies: u32,
    plugs: u32,
    flexs: u32,
    agents: u32,
    rescheds: u32,
    messages: u32,
}

/// A simulation.
pub struct World {
    name: String,
    seed: u64,
    now: u64,
    end: u64,
    warmup: u64,
    measured_from: u64,
    events: u64,
    finished: bool,
    native: bool,
    pcpus_per_llc: u32,
    costs: Costs,
    config: HostConfig,
    /// The loop's window in ns for each window in cycles, last one asked for.
    window_cache: (u32, Option<u64>),
    queue: EventQueue,
    slots: Slots,
    host: AnyScheduler,
    idle_pcpus: PcpuSet,
    pcpus: Vec<Pcpu>,
    vms: Vec<Vm>,
    vcpus: Vec<Vcpu>,
    threads: Vec<Thread>,
    entities: Vec<Entity>,
    objects: Vec<Object>,
    code: Vec<Instr>,
    messages: Vec<Message>,
    free_messages: Vec<u32>,
    work: Vec<Work>,
    work_done: usize,
    alive: u32,
    roles: Vec<Vec<String>>,
    names: Vec<String>,
    object_names: Vec<Vec<String>>,
    weights: Vec<f64>,
    allowed: Vec<PcpuSet>,
    policies: policies::Policies,
    flexs: Option<Box<flexs::Swapper>>,
    /// Of each VM.
    agents: Vec<Option<Box<gleaner::Agent>>>,
    trace: Option<tracing::Recorder>,
    waits: Option<Box<waits::Recorder>>,
    /// Whether the invariants are looked at while the world runs: in debug builds, unless a test
    /// asks not to.
    checks: bool,
}

impl World {
    /// Builds the world of a scenario.
    pub fn new(scenario: &Scenario) -> World {
        build::build(scenario)
    }

    /// Runs to the end.
    pub fn run(&mut self) -> Results {
        self.run_until(Nanos(self.end));
        self.results()
    }

    /// Runs up to `time`; true if the simulation is over.
    pub fn run_until(&mut self, time: Nanos) -> bool {
        let limit = time.0.min(self.end);
        while !self.finished {
            match self.queue.pop_until(limit) {
                Some((time, slot)) => self.step(time, slot),
                None => {
                    // Nothing happens until then.
                    self.now = limit;
                    self.finished = limit == self.end;
                    break;
                }
            }
        }
        if self.finished {
            self.settle();
        }
        self.finished
    }

    /// The simulated time.
    pub fn now(&self) -> Nanos {
        Nanos(self.now)
    }

    /// How many events are pending.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Leaves the invariants unchecked. For tests that measure the world itself.
    #[doc(hidden)]
    pub fn without_checks(&mut self) {
        self.checks = false;
    }

    /// How many events have been handled.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Records what happens from now on, at most so many events.
    pub fn record_trace(&mut self, limit: usize) {
        self.trace = Some(tracing::Recorder::new(limit));
    }

    /// What was recorded.
    pub fn take_trace(&mut self) -> (Tracks, Vec<TraceEvent>) {
        let events = self.trace.take().map_or_else(Vec::new, |r| r.events);
        (self.tracks(), events)
    }

    #[inline]
    fn step(&mut self, time: u64, slot: Slot) {
        debug_assert!(time >= self.now, "time went back");
        if self.now < self.warmup && time >= self.warmup {
            self.now = self.warmup;
            self.begin_measuring();
        }
        self.now = time;
        self.events += 1;
        self.dispatch(slot.0);
        self.drain();
        if self.checks {
            self.check();
        }
    }

    #[inline]
    fn dispatch(&mut self, slot: u32) {
        let s = self.slots;
        if slot < s.guest_ticks {
            self.executed(slot);
        } else if slot < s.timers {
            self.guest_tick(slot - s.guest_ticks);
        } else if slot < s.host_ticks {
            self.timer(slot - s.timers);
        } else if slot < s.polls {
            self.host_tick(slot - s.host_ticks);
        } else if slot < s.starts {
            self.halt_poll_over(slot - s.polls);
        } else if slot < s.caps {
            self.start_vm(slot - s.starts);
        } else if slot < s.cap_period {
            self.cap_used_up(slot - s.caps);
        } else if slot < s.policies {
            self.cap_period();
        } else if slot < s.plugs {
            self.policies();
        } else if slot < s.flexs {
            self.plug(slot - s.plugs);
        } else if slot < s.agents {
            self.flexs_tick(slot - s.flexs);
        } else if slot < s.rescheds {
            self.agent(slot - s.agents);
        } else if slot < s.messages {
            self.told_to_reschedule(slot - s.rescheds);
        } else {
            self.message(slot - s.messages);
        }
    }

    /// Does what the last handler caused, first in, first out.
    #[inline]
    fn drain(&mut self) {
        while self.work_done < self.work.len() {
            let work = self.work[self.work_done];
            self.work_done += 1;
            match work {
                Work::Go(thread) => self.go_on(thread),
                Work::Guest(vcpu) => self.guest_may_schedule(vcpu),
                Work::Pcpu(pcpu) => self.choose(pcpu),
            }
        }
        self.work.clear();
        self.work_done = 0;
    }

    /// The slot of a vCPU's own next event.
    #[inline]
    fn exec_slot(&self, vcpu: u32) -> Slot {
        Slot(vcpu)
    }

    #[inline]
    fn guest_tick_slot(&self, vcpu: u32) -> Slot {
        Slot(self.slots.guest_ticks + vcpu)
    }

    #[inline]
    fn timer_slot(&self, thread: u32) -> Slot {
        Slot(self.slots.timers + thread)
    }

    #[inline]
    fn host_tick_slot(&self, pcpu: u32) -> Slot {
        Slot(self.slots.host_ticks + pcpu)
    }

    #[inline]
    fn poll_slot(&self, pcpu: u32) -> Slot {
        Slot(self.slots.polls + pcpu)
    }

    #[inline]
    fn llc(&self, pcpu: u32) -> u32 {
        pcpu / self.pcpus_per_llc
    }
}

/// Whether there is a hypervisor.
fn is_native(scenario: &Scenario) -> bool {
    scenario.machine.mode == Mode::Native
}
