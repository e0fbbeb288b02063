//! What a record holds: from when to when, which VMs, when nobody looked, what cannot be read, and what the clock did.
//!
//! Times are by the wall clock, as the record has them, and gaps by CLOCK_MONOTONIC, which nobody sets: a clock that is set makes no gap and hides
//! none.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::record::{Damage, End, Frame, Record, RecordError, Wanted};
use serde::Serialize;
use tandem_model::{Nanos, VmId};

/// An interval begins when the one before ends. What is more than this nobody looked at.
const GAP: Nanos = Nanos::from_millis(1);

/// A wall clock that went so much more or less than CLOCK_MONOTONIC was set, or the host slept. Clocks are read one after the other, and
/// corrected by a little now and then.
const SET: i128 = 1_000_000_000;

/// A VM of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedVm {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// The most vCPUs that it had.
    pub vcpus: usize,
    /// In how many intervals it was found.
    pub intervals: u64,
    /// When the first of them began and the last ended, in ns since 1970.
    pub from: Nanos,
    /// See `from`.
    pub to: Nanos,
}

/// A time between two intervals that is in none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// When it began, in ns since 1970, by the clock at its end.
    pub from: Nanos,
    /// When it ended.
    pub to: Nanos,
    /// Looks that failed in it.
    pub failed: u64,
    /// What the last of them said.
    pub why: Option<String>,
}

/// Between two intervals the wall clock was set, or the host slept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClockSet {
    /// When, in ns since 1970, by the clock after that.
    pub at: Nanos,
    /// By how many ns; negative: back, so that times come again.
    pub by: i64,
}

/// What a record holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// When the first interval began and the last ended, in ns since 1970; `None` of an empty record.
    pub from: Option<Nanos>,
    /// See `from`.
    pub to: Option<Nanos>,
    /// The same by CLOCK_MONOTONIC.
    #[serde(skip)]
    pub steady: Option<Range<Nanos>>,
    /// How many intervals there are.
    pub intervals: u64,
    /// How many of the oldest went to make room.
    pub dropped: u64,
    /// Looks that failed.
    pub failed: u64,
    /// What the last of them said.
    pub failure: Option<String>,
    /// vCPUs, summed over the intervals.
    pub vcpu_intervals: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Whether it was ended as somebody asked, and all of it can be read: not cut off, not ended by an error, not being written, not damaged.
    pub complete: bool,
    /// The error that ended it.
    pub error: Option<String>,
    /// Whether it is written now.
    pub written: bool,
    /// The VMs, in the order in which they were first seen.
    pub vms: Vec<ListedVm>,
    /// Times without intervals.
    pub gaps: Vec<Gap>,
    /// When the clock was set.
    pub clock_set: Vec<ClockSet>,
    /// What cannot be read.
    pub damaged: Vec<Damage>,
    /// Whether it was ended, well or not, or it cannot be known that it was not.
    #[serde(skip)]
    pub was_ended: bool,
    /// Where the interval before ended by both clocks.
    #[serde(skip)]
    before: Option<(Nanos, Nanos)>,
}

/// Looks through a record.
pub fn list(record: &Record) -> Result<Listing, RecordError> {
    let written = record.is_written();
    let mut listing = Listing {
        bytes: record.bytes()?,
        complete: !written && record.is_complete()?,
        written,
        ..Listing::default()
    };
    let mut vms: BTreeMap<VmId, ListedVm> = BTreeMap::new();
    listing.damaged = record.read(Wanted::ALL, |number, frame| {
        listing.add(number, &frame);
        for (id, known) in &frame.vms {
            let vm = vms.entry(*id).or_insert_with(|| ListedVm {
                name: known.name.clone(),
                pid: known.pid,
                vcpus: 0,
                intervals: 0,
                from: frame.at,
                to: frame.end(),
            });
            vm.vcpus = vm.vcpus.max(known.tids.len());
            vm.intervals += 1;
            vm.to = frame.end();
        }
        Ok::<(), RecordError>(())
    })?;
    // An end that cannot be read is among the damages.
    if let Ok(Some(end)) = record.end() {
        listing.ended(end);
    }
    listing.was_ended = listing.complete || !matches!(record.end(), Ok(None));
    listing.complete &= listing.damaged.is_empty();
    listing.vms = vms.into_values().collect();
    Ok(listing)
}

impl Listing {
    fn add(&mut self, number: u64, frame: &Frame) {
        let steady = frame.steady();
        match self.before {
            None => self.dropped = number,
            Some((wall, end)) => self.between(wall, end, frame),
        }
        self.before = Some((frame.end(), steady.end));
        self.intervals += 1;
        let vcpus = frame.interval.vms.iter().map(|vm| vm.vcpus.len() as u64);
        self.vcpu_intervals += vcpus.sum::<u64>();
        self.failed += frame.failed;
        if frame.failure.is_some() {
            self.failure.clone_from(&frame.failure);
        }
        self.from = self.from.or(Some(frame.at));
        self.to = Some(frame.end());
        let begin = self.steady.as_ref().map_or(steady.start, |all| all.start);
        self.steady = Some(begin..steady.end);
    }

    /// What was between two intervals, of which the first ended so by both clocks.
    fn between(&mut self, wall: Nanos, steady: Nanos, frame: &Frame) {
        let gap = frame.interval.start.saturating_sub(steady);
        if gap > GAP {
            self.gaps.push(Gap {
                from: frame.at.saturating_sub(gap),
                to: frame.at,
                failed: frame.failed,
                why: frame.failure.clone(),
            });
        }
        let by = i128::from(frame.at.0) - i128::from(wall.0) - i128::from(gap.0);
        if by.abs() > SET {
            self.clock_set.push(ClockSet {
                at: frame.at,
                by: by.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
            });
        }
    }

    fn ended(&mut self, end: End) {
        self.failed += end.failed;
        if end.failure.is_some() {
            self.failure = end.failure;
        }
        self.error = end.error;
    }
}
