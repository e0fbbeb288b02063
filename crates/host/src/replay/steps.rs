//! A record in equal steps, for plots over time.
//!
//! Steps have the same length by CLOCK_MONOTONIC.
//! The length of the record is known only at its end, and days of intervals do not fit in memory.
//! When there are too many steps, each pair is merged, which leaves the sums unchanged ([`IntervalSum`]).
//! Steps without an interval are absent.

use std::collections::BTreeMap;

use tandem_linux::thread::Pid;
use tandem_model::states::interval::Interval;
use tandem_model::states::sum::IntervalSum;
use tandem_model::{Nanos, VmId};
use tandem_observe::record::{Frame, Record, RecordError, Wanted};

use super::{Read, RecordedMatches};
use crate::select::VmPattern;
use crate::told_apart::told_apart;

/// The steps of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    /// Begin of each step by the wall clock, in ns since 1970, and the sum of its intervals.
    pub steps: Vec<(Nanos, Interval)>,
    /// The sum of all.
    pub whole: Interval,
    /// Length of a step.
    pub length: Nanos,
    /// Names of all VMs, with the PID if several have the same name.
    pub names: BTreeMap<VmId, String>,
    /// The VMs that match.
    pub selected: Vec<VmId>,
}

impl Steps {
    /// Reads the wanted time in at most `most` steps, and selects the VMs that match, or all without a pattern.
    pub fn read(
        record: &Record,
        wanted: impl Into<Wanted>,
        asked: &[VmPattern],
        most: usize,
    ) -> Result<Read<Steps>, RecordError> {
        let mut growing = Growing { most: most.max(1) as u64, ..Growing::default() };
        let mut matches = RecordedMatches::new(asked);
        let damages = record.read(wanted, |_, frame| {
            frame.vms.iter().for_each(|(vm, known)| matches.add(*vm, known));
            growing.add(&frame);
            Ok::<(), RecordError>(())
        })?;
        Ok(Read { found: growing.finish(&matches), damages })
    }
}

/// The sum of a step so far.
#[derive(Debug, Default)]
struct Step {
    at: Nanos,
    sum: IntervalSum,
}

#[derive(Debug, Default)]
struct Growing {
    most: u64,
    begin: Nanos,
    length: u64,
    /// Steps by their number.
    steps: BTreeMap<u64, Step>,
    names: BTreeMap<VmId, (String, Pid)>,
}

impl Growing {
    fn add(&mut self, frame: &Frame) {
        let interval = &frame.interval;
        if self.steps.is_empty() {
            self.begin = interval.start;
            self.length = interval.length.0.max(1);
        }
        let since = interval.start.saturating_sub(self.begin).0;
        while since / self.length >= self.most {
            self.halve();
        }
        let step = self
            .steps
            .entry(since / self.length)
            .or_insert_with(|| Step { at: frame.at, sum: IntervalSum::new() });
        step.sum.add(interval);
        for (vm, known) in &frame.vms {
            self.names.insert(*vm, (known.name.clone(), Pid(known.pid)));
        }
    }

    /// Merges each pair of steps.
    fn halve(&mut self) {
        self.length = self.length.saturating_mul(2);
        for (number, step) in std::mem::take(&mut self.steps) {
            match self.steps.get_mut(&(number / 2)) {
                Some(first) => {
                    if let Some(second) = step.sum.finish() {
                        first.sum.add(&second);
                    }
                }
                None => {
                    self.steps.insert(number / 2, step);
                }
            }
        }
    }

    fn finish(self, matches: &RecordedMatches<'_>) -> Option<Steps> {
        let mut whole = IntervalSum::new();
        let mut steps = Vec::new();
        for step in self.steps.into_values() {
            let interval = step.sum.finish()?;
            whole.add(&interval);
            steps.push((step.at, interval));
        }
        let selected = self.names.keys().filter(|vm| matches.has(**vm));
        let all = self.names.iter();
        Some(Steps {
            steps,
            whole: whole.finish()?,
            length: Nanos(self.length),
            selected: selected.copied().collect(),
            names: told_apart(all.map(|(vm, (name, pid))| (*vm, name.as_str(), *pid))),
        })
    }
}
