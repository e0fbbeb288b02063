//! Summary of a record: its time range, VMs, gaps, unreadable parts, and changes of the clock.
//!
//! Times are by the wall clock, as in the record. Gaps are by CLOCK_MONOTONIC, which cannot be set, so setting the wall clock neither creates
//! nor hides a gap.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::record::{Damage, End, Frame, Record, RecordError, Wanted};
use serde::Serialize;
use tandem_model::{Nanos, VmId};

/// Maximum distance of two intervals that is not a gap; usually an interval begins when the previous one ends.
const GAP: Nanos = Nanos::from_millis(1);

/// Difference of wall clock and CLOCK_MONOTONIC above which the wall clock was set, or the host slept. Smaller ones come from reading the
/// clocks one after the other, and from small corrections.
const SET: i128 = 1_000_000_000;

/// A VM of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedVm {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Maximum number of its vCPUs.
    pub vcpus: usize,
    /// Number of intervals with the VM.
    pub intervals: u64,
    /// Begin of the first and end of the last of them, in ns since 1970.
    pub from: Nanos,
    /// See `from`.
    pub to: Nanos,
}

/// A time between two intervals that no interval covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// Its begin, in ns since 1970, by the clock at its end.
    pub from: Nanos,
    /// Its end.
    pub to: Nanos,
    /// Number of failed readings in it.
    pub failed: u64,
    /// The last of these errors.
    pub why: Option<String>,
}

/// A change of the wall clock between two intervals, or a sleep of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClockSet {
    /// Its time in ns since 1970, by the clock after it.
    pub at: Nanos,
    /// The change in ns; if negative, times repeat.
    pub by: i64,
}

/// Summary of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// Begin of the first and end of the last interval, in ns since 1970; `None` if the record is empty.
    pub from: Option<Nanos>,
    /// See `from`.
    pub to: Option<Nanos>,
    /// The same by CLOCK_MONOTONIC.
    #[serde(skip)]
    pub steady: Option<Range<Nanos>>,
    /// Number of intervals.
    pub intervals: u64,
    /// Number of old intervals dropped for space.
    pub dropped: u64,
    /// Number of failed readings.
    pub failed: u64,
    /// The last of these errors.
    pub failure: Option<String>,
    /// vCPUs, summed over the intervals.
    pub vcpu_intervals: u64,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// Whether it ended on request and is fully readable: not cut off, ended by an error, being written or damaged.
    pub complete: bool,
    /// The error that ended it.
    pub error: Option<String>,
    /// Whether it is being written.
    pub written: bool,
    /// The VMs, in the order in which they were first seen.
    pub vms: Vec<ListedVm>,
    /// Times without intervals.
    pub gaps: Vec<Gap>,
    /// Changes of the clock.
    pub clock_set: Vec<ClockSet>,
    /// Unreadable parts.
    pub damaged: Vec<Damage>,
    /// Whether it was ended, for whatever reason, or its end is unreadable.
    #[serde(skip)]
    pub was_ended: bool,
    /// End of the previous interval by both clocks.
    #[serde(skip)]
    before: Option<(Nanos, Nanos)>,
}

/// Summarizes a record.
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
    // An unreadable end is listed as damage.
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

    /// Adds the gap between two intervals, of which the first ended at these times of both clocks.
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
