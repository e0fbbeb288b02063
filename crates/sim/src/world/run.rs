//! The event loop, and the dispatch of events to their handlers.
//!
//! An event is a slot of the queue, whose number tells its kind ([`Slots`](super::slots::Slots)).
//! Effects of a handler elsewhere go to the list `work`, and are done before the clock moves, first in, first out.

use tandem_model::Nanos;

use crate::queue::Slot;
use crate::results::Results;
use crate::trace::{TraceEvent, Tracks};

use super::simulation::World;
use super::state::Work;
use super::trace_recorder::TraceRecorder;

impl World {
    /// Runs to the end, and returns the results.
    pub fn run(&mut self) -> Results {
        self.run_until(Nanos(self.end));
        self.results()
    }

    /// Runs up to `time`; returns whether the simulation is over.
    pub fn run_until(&mut self, time: Nanos) -> bool {
        let limit = time.0.min(self.end);
        while !self.finished {
            match self.queue.pop_until(limit) {
                Some((time, slot)) => self.step(time, slot),
                None => {
                    // No event is due until the limit.
                    self.end_warmup(limit);
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

    /// Number of pending events.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Disables the invariant checks. For tests that measure the world itself.
    #[doc(hidden)]
    pub fn without_checks(&mut self) {
        self.checks = false;
    }

    /// Number of handled events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Starts recording a trace of at most `limit` events.
    pub fn record_trace(&mut self, limit: usize) {
        self.trace = Some(TraceRecorder::new(limit));
    }

    /// Stops the recording, and returns the trace.
    pub fn take_trace(&mut self) -> (Tracks, Vec<TraceEvent>) {
        let events = self.trace.take().map_or_else(Vec::new, |r| r.events);
        (self.tracks(), events)
    }

    /// Begins to measure at the end of the warm-up, if that is not after `time`.
    #[inline(always)]
    fn end_warmup(&mut self, time: u64) {
        if self.now < self.warmup && time >= self.warmup {
            self.now = self.warmup;
            self.begin_measuring();
        }
    }

    #[inline(always)]
    fn step(&mut self, time: u64, slot: Slot) {
        debug_assert!(time >= self.now, "time went back");
        self.end_warmup(time);
        self.now = time;
        self.events += 1;
        if slot.0 < self.slots.guest_ticks {
            self.executed(slot.0);
        } else {
            self.dispatch(slot.0);
        }
        if !self.work.is_empty() {
            self.drain();
        }
        if self.checks {
            self.check();
        }
    }

    /// Calls the handler of a slot that is not a vCPU's own.
    #[inline(never)]
    fn dispatch(&mut self, slot: u32) {
        let s = self.slots;
        if slot < s.timers {
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
        } else if slot < s.turns {
            self.policies();
        } else if slot < s.plugs {
            self.turn();
        } else if slot < s.flexs {
            self.plug(slot - s.plugs);
        } else if slot < s.agents {
            self.flexs_tick(slot - s.flexs);
        } else if slot < s.rescheds {
            self.agent(slot - s.agents);
        } else if slot < s.delays {
            self.host_resched_arrived(slot - s.rescheds);
        } else if slot < s.second_looks {
            self.delay_over(slot - s.delays);
        } else if slot < s.messages {
            self.second_look(slot - s.second_looks);
        } else {
            self.message(slot - s.messages);
        }
    }

    /// Does the work that the last handler caused, first in, first out.
    #[inline(never)]
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
    pub(super) fn exec_slot(&self, vcpu: u32) -> Slot {
        Slot(vcpu)
    }

    #[inline]
    pub(super) fn guest_tick_slot(&self, vcpu: u32) -> Slot {
        Slot(self.slots.guest_ticks + vcpu)
    }

    #[inline]
    pub(super) fn timer_slot(&self, thread: u32) -> Slot {
        Slot(self.slots.timers + thread)
    }

    #[inline]
    pub(super) fn host_tick_slot(&self, pcpu: u32) -> Slot {
        Slot(self.slots.host_ticks + pcpu)
    }

    #[inline]
    pub(super) fn poll_slot(&self, pcpu: u32) -> Slot {
        Slot(self.slots.polls + pcpu)
    }

    #[inline]
    pub(super) fn llc(&self, pcpu: u32) -> u32 {
        pcpu / self.pcpus_per_llc
    }
}
