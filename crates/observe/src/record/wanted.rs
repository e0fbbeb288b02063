//! Which intervals of a record somebody asks for.

use std::ops::Range;

use tandem_model::Nanos;

use super::frame::Frame;

/// Intervals that overlap both times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// By the wall clock, in ns since 1970. Where it was set back, a time may be there twice.
    pub wall: Range<Nanos>,
    /// By CLOCK_MONOTONIC, in which nobody goes back.
    pub steady: Range<Nanos>,
}

/// All the time there is.
const ALWAYS: Range<Nanos> = Nanos(0)..Nanos(u64::MAX);

impl Wanted {
    /// All intervals.
    pub const ALL: Wanted = Wanted { wall: ALWAYS, steady: ALWAYS };

    /// Whether it wants something of a time by both clocks; by one, where the other is not known.
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
    /// By the wall clock.
    fn from(wall: Range<Nanos>) -> Wanted {
        Wanted { wall, ..Wanted::ALL }
    }
}
