//! The event loop.
//!
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
            match self.calendar.pop_until(limit) {
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
        self.calendar.len()
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
        self.handle(slot);
        if !self.work.is_empty() {
            self.drain();
        }
        if self.checks {
            self.check();
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
                Work::Speed(pcpu) => self.change_speed(pcpu),
            }
        }
        self.work.clear();
        self.work_done = 0;
    }
}
