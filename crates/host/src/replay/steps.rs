//! A record in steps: so many sums, one after the other, for pictures over time.
//!
//! Steps are equally long by CLOCK_MONOTONIC. How long is not known before all is read, and days do not fit: when there are too many steps, each two
//! become one. That does not change the sums ([`IntervalSum`]). A step in which nobody looked is not there.

use std::collections::BTreeMap;

use tandem_linux::thread::Pid;
use tandem_model::states::interval::Interval;
use tandem_model::states::sum::IntervalSum;
use tandem_model::{Nanos, VmId};
use tandem_observe::record::{Frame, Record, RecordError, Wanted};

use super::{Read, RecordedMatches};
use crate::select::VmPattern;
use crate::told_apart::told_apart;

/// Intervals of a record, in steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    /// When each step began by the wall clock, in ns since 1970, and the sum of its intervals.
    pub steps: Vec<(Nanos, Interval)>,
    /// The sum of all.
    pub whole: Interval,
    /// How long a step is.
    pub length: Nanos,
    /// The names of all VMs, with the process where several have the same.
    pub names: BTreeMap<VmId, String>,
    /// Those that match.
    pub selected: Vec<VmId>,
}

impl Steps {
    /// Reads the wanted time in at most `most` steps; selects the VMs that match, or all if there is no pattern.
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

/// One step so far.
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
    /// By their numbers from the begin on.
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

    /// Makes one of each two steps.
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
