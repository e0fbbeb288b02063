//! Selection of intervals of a record.

use std::ops::Range;

use tandem_model::Nanos;

use super::frame::Frame;

/// Selects the intervals that overlap both ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// By the wall clock, in ns since 1970. Times repeat if it was set back.
    pub wall: Range<Nanos>,
    /// By CLOCK_MONOTONIC, which never goes back.
    pub steady: Range<Nanos>,
}

/// The unlimited range.
const ALWAYS: Range<Nanos> = Nanos(0)..Nanos(u64::MAX);

impl Wanted {
    /// All intervals.
    pub const ALL: Wanted = Wanted { wall: ALWAYS, steady: ALWAYS };

    /// Whether it overlaps a range by both clocks, or by the wall clock if the other is unknown.
    pub(super) fn overlaps(&self, wall: &Range<Nanos>, steady: Option<&Range<Nanos>>) -> bool {
        let is_within = |wanted: &Range<Nanos>, range: &Range<Nanos>| {
            range.start < wanted.end && range.end > wanted.start
        };
        is_within(&self.wall, wall) && steady.is_none_or(|range| is_within(&self.steady, range))
    }

    pub(super) fn has(&self, frame: &Frame) -> bool {
        self.overlaps(&(frame.at..frame.end()), Some(&frame.steady()))
    }
}

impl From<Range<Nanos>> for Wanted {
    /// Selects by the wall clock only.
    fn from(wall: Range<Nanos>) -> Wanted {
        Wanted { wall, ..Wanted::ALL }
    }
}
