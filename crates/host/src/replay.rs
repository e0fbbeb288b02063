//! `tandem host replay`: the output of `top` and `why` for any time of a record.
//!
//! A range counts as one interval: the sum of the intervals that it overlaps ([`IntervalSum`]).
//! A VM's fair share in it is the sum over these intervals.
//! A VM that was there for a part of the range has the share of that part only.
//! The configuration is that of the last interval.
//!
//! Unreadable parts are skipped and reported ([`Read::damages`]).

mod matches;
mod steps;
pub mod text;
mod why;

use std::collections::BTreeMap;

use tandem_linux::thread::{Pid, StartTime, ThreadRef, Tid};
use tandem_model::states::interval::Interval;
use tandem_model::states::sum::IntervalSum;
use tandem_model::{Nanos, VmId};
use tandem_observe::findings::KnownHost;
use tandem_observe::record::{Damage, Frame, Record, RecordError, RecordedVm, Wanted};
use tandem_policy::assess::lag;
use thiserror::Error;

use crate::discovery::{Scan, VcpuThread, Vm};
use crate::select::VmPattern;
use crate::top::{TopInterval, shown};
use crate::vmm::Vmm;
use crate::watch::assessed;
use tandem_observe::moment::{Moment, printed};

pub(crate) use matches::RecordedMatches;
pub use steps::Steps;
pub use tandem_observe::listing::{ClockSet, Gap, ListedVm, Listing, list};

/// Why a time cannot be replayed.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Relative times need at least one interval.
    #[error("it holds no interval; --list says what it holds")]
    Empty,
    /// The record does not cover the time.
    #[error("the record begins at {from} and ends at {to}; nothing was recorded at {at}")]
    Outside {
        /// The requested time.
        at: String,
        /// Begin of the record.
        from: String,
        /// End of the record.
        to: String,
    },
    /// No interval covers the time.
    #[error("no interval at that time; --list says what it holds")]
    NoInterval,
    /// The interval of that time cannot be read.
    #[error("{0}; --list says what it holds")]
    Lost(Damage),
    /// No VM of that time matches the patterns.
    #[error("none of its {of} VMs at that time matches '{}'", .names.join("' or '"))]
    NoneMatches {
        /// Number of VMs at that time.
        of: usize,
        /// The patterns.
        names: Vec<String>,
    },
    /// The end of the range is not after its begin.
    #[error("--from {from} is not before --to {to}")]
    Backwards {
        /// Begin of the range.
        from: String,
        /// End of the range.
        to: String,
    },
}

impl ReplayError {
    /// Whether the record is readable but has nothing for the request.
    pub fn is_of_nothing(&self) -> bool {
        matches!(
            self,
            ReplayError::NoneMatches { .. } | ReplayError::Outside { .. } | ReplayError::NoInterval
        )
    }
}

/// Returns the requested time: the interval of a moment, or the range between two.
/// Relative moments are in CLOCK_MONOTONIC, so adjustments of the wall clock do not affect them.
pub fn wanted(
    record: &Record,
    at: Option<Moment>,
    from: Option<Moment>,
    to: Option<Moment>,
) -> Result<Wanted, ReplayError> {
    let is_relative = [at, from, to].iter().flatten().any(|m| m.is_relative());
    let mut wanted = Wanted::ALL;
    // Begin of the record by the wall clock, and its range by the steady clock; needed only for relative moments.
    let (begin, steady) = if is_relative {
        let listing = list(record)?;
        let known = listing.from.zip(listing.steady);
        known.ok_or(ReplayError::Empty)?
    } else {
        (Nanos(0), Nanos(0)..Nanos(0))
    };
    let resolved = |moment: Moment| moment.within(steady.start, steady.end);
    let by_wall = |at: Nanos| Nanos(begin.0.saturating_add(at.saturating_sub(steady.start).0));
    if let Some(at) = at {
        let moment = resolved(at);
        if at.is_relative() && !(steady.start..=steady.end).contains(&moment) {
            return Err(ReplayError::Outside {
                at: printed(by_wall(moment)),
                from: printed(begin),
                to: printed(by_wall(steady.end)),
            });
        }
        // The end of the record belongs to its last interval.
        let moment = if at.is_relative() {
            resolved(at).min(steady.end.saturating_sub(Nanos(1)))
        } else {
            resolved(at)
        };
        let range = moment..Nanos(moment.0.saturating_add(1));
        if at.is_relative() {
            wanted.steady = range;
        } else {
            wanted.wall = range;
        }
        return Ok(wanted);
    }
    for (moment, is_begin) in [(from, true), (to, false)] {
        let Some(moment) = moment else { continue };
        let range = if moment.is_relative() { &mut wanted.steady } else { &mut wanted.wall };
        if is_begin { range.start = resolved(moment) } else { range.end = resolved(moment) }
    }
    let Wanted { wall, steady: asked } = &wanted;
    if wall.start >= wall.end || asked.start >= asked.end {
        let (from, to) = if wall.start >= wall.end {
            (wall.start, wall.end)
        } else {
            (by_wall(asked.start), by_wall(asked.end))
        };
        return Err(ReplayError::Backwards { from: printed(from), to: printed(to) });
    }
    Ok(wanted)
}

/// The sum of intervals of a record.
#[derive(Debug)]
pub struct Replayed {
    /// The sum.
    interval: Interval,
    /// The VMs found in any interval, as of the last one that has them.
    vms: BTreeMap<VmId, RecordedVm>,
    due: BTreeMap<VmId, Nanos>,
    unreadable: usize,
    /// The host, as of the last interval that has it.
    host: Option<KnownHost>,
    /// Begin and end, in ns since 1970.
    at: (Nanos, Nanos),
    /// Whether the configuration changed within the range.
    has_changed: bool,
}

/// Result of reading a record.
#[derive(Debug)]
pub struct Read<T> {
    /// The result; `None` if the record has no interval of that time.
    pub found: Option<T>,
    /// Damages, which may have removed parts of the result.
    pub damages: Vec<Damage>,
}

impl<T> Read<T> {
    /// Returns the result with its damages, or an error if there is none.
    pub fn some(self, wanted: &Wanted) -> Result<(T, Vec<Damage>), ReplayError> {
        match (self.found, self.damages) {
            (Some(found), damages) => Ok((found, damages)),
            (None, mut damages) if !damages.is_empty() => {
                Err(ReplayError::Lost(damages.swap_remove(0)))
            }
            (None, _) if *wanted == Wanted::ALL => Err(ReplayError::Empty),
            (None, _) => Err(ReplayError::NoInterval),
        }
    }
}

/// Reads the wanted intervals and adds them up.
pub fn replay(record: &Record, wanted: impl Into<Wanted>) -> Result<Read<Replayed>, RecordError> {
    let mut growing = Growing::default();
    let damages = record.read(wanted, |_, frame| {
        growing.add(frame);
        Ok::<(), RecordError>(())
    })?;
    Ok(Read { found: growing.finish(), damages })
}

/// The sum so far.
#[derive(Debug, Default)]
struct Growing {
    sum: IntervalSum,
    vms: BTreeMap<VmId, RecordedVm>,
    due: BTreeMap<VmId, Nanos>,
    unreadable: usize,
    host: Option<KnownHost>,
    at: Option<(Nanos, Nanos)>,
    has_changed: bool,
}

impl Growing {
    fn add(&mut self, frame: Frame) {
        self.sum.add(&frame.interval);
        self.unreadable = self.unreadable.max(frame.unreadable);
        let begin = self.at.map_or(frame.at, |(begin, _)| begin);
        self.at = Some((begin, frame.end()));
        if frame.host.is_some() {
            self.has_changed |= self.host.is_some() && self.host != frame.host;
            self.host = frame.host;
        }
        for (vm, mut known) in frame.vms {
            if let Some(due) = known.due {
                *self.due.entry(vm).or_default() += due;
            }
            let before = self.vms.remove(&vm).and_then(|before| before.settings);
            match (&before, &known.settings) {
                (Some(before), Some(now)) => self.has_changed |= before != now,
                (Some(_), None) => known.settings = before,
                (None, _) => {}
            }
            self.vms.insert(vm, known);
        }
    }

    fn finish(self) -> Option<Replayed> {
        Some(Replayed {
            interval: self.sum.finish()?,
            vms: self.vms,
            due: self.due,
            unreadable: self.unreadable,
            host: self.host,
            at: self.at?,
            has_changed: self.has_changed,
        })
    }
}

impl Replayed {
    /// Returns the VMs that match, or all without a pattern.
    fn matching<'a>(&self, asked: &'a [VmPattern]) -> RecordedMatches<'a> {
        let mut matches = RecordedMatches::new(asked);
        self.vms.iter().for_each(|(id, known)| matches.add(*id, known));
        matches
    }

    /// Returns the sum as an interval of `top`, with the VMs that match, or all without a pattern.
    pub fn shown(&self, asked: &[VmPattern]) -> TopInterval {
        let matches = self.matching(asked);
        let interval = &self.interval;
        let scan = Scan {
            vms: self.vms.iter().map(|(id, known)| found(*id, known)).collect(),
            unreadable_vmms: self.unreadable,
            ..Scan::default()
        };
        let weights = self.vms.iter();
        let weights = weights.filter_map(|(id, known)| Some((*id, known.weight?)));
        let mut accounts = assessed(interval, &weights.collect());
        for (id, account) in &mut accounts {
            if let Some(due) = self.due.get(id) {
                account.fair = *due;
                account.lag = lag(*due, self.received(*id));
            }
        }
        shown(&scan, interval, &accounts, |vm| matches.has(vm.id))
    }

    /// Like [`Self::shown`], but fails if no VM matches.
    pub fn shown_if_any(&self, asked: &[VmPattern]) -> Result<TopInterval, ReplayError> {
        let shown = self.shown(asked);
        let names = || asked.iter().map(ToString::to_string).collect();
        if shown.vms.is_empty() && !asked.is_empty() {
            Err(ReplayError::NoneMatches { of: shown.found, names: names() })
        } else {
            Ok(shown)
        }
    }

    /// Returns the time that the vCPUs of a VM ran.
    fn received(&self, id: VmId) -> Nanos {
        let measured = self.interval.vms.iter().filter(|vm| vm.vm == id);
        measured.flat_map(|vm| &vm.vcpus).map(|vcpu| vcpu.ran).sum()
    }
}

/// Returns a VM in the form of the discovery. Its start times are unknown.
fn found(id: VmId, known: &RecordedVm) -> Vm {
    let thread = |tid| ThreadRef { pid: Pid(known.pid), tid: Tid(tid), start: StartTime(0) };
    let vmm = serde_json::from_value(serde_json::Value::from(known.program.as_str()));
    Vm {
        user: None,
        id,
        process: thread(known.pid),
        name: known.name.clone(),
        vmm: vmm.unwrap_or(Vmm::Other),
        vcpus: known
            .tids
            .iter()
            .map(|(index, tid)| VcpuThread { index: *index, thread: thread(*tid) })
            .collect(),
        unidentified: 0,
    }
}

#[cfg(test)]
mod tests;
