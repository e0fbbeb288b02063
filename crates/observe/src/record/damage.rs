//! Unreadable parts of a record, and the resulting losses.

use std::fmt;
use std::ops::Range;

use serde::Serialize;
use tandem_model::Nanos;

use super::segment::Summary;
use super::wanted::Wanted;

/// A file of a record, or lines of one, that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file and its problem.
    pub what: String,
    /// The number of the first lost interval.
    pub first: u64,
    /// Number of lost intervals; `None` if unknown.
    pub intervals: Option<u64>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; ", self.what)?;
        match self.intervals {
            Some(1) => write!(f, "1 interval is lost, number {}", self.first),
            Some(lost) => write!(f, "{lost} intervals are lost, from number {} on", self.first),
            None => write!(
                f,
                "how many intervals are lost is not known; they begin with number {}",
                self.first
            ),
        }
    }
}

/// A time range by both clocks.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) wall: Range<Nanos>,
    /// `None` if unknown.
    pub(super) steady: Option<Range<Nanos>>,
}

impl Span {
    /// Returns the range of a part.
    pub(super) fn of(summary: &Summary) -> Span {
        Span { wall: summary.from..summary.to, steady: summary.steady.clone() }
    }
}

/// Damages, each with the readable parts around it.
#[derive(Debug, Default)]
pub(super) struct Damages {
    before: Option<Span>,
    /// Damages without a readable part after them so far.
    open: Vec<Damage>,
    closed: Vec<Damage>,
}

impl Damages {
    pub(super) fn add(&mut self, damage: Damage) {
        self.open.push(damage);
    }

    /// Adds a damage within a part of this range.
    pub(super) fn add_within(&mut self, damage: Damage, span: &Span, wanted: &Wanted) {
        if wanted.overlaps(&span.wall, span.steady.as_ref()) {
            self.closed.push(damage);
        }
    }

    /// Adds a readable part.
    pub(super) fn read(&mut self, span: Span, wanted: &Wanted) {
        self.close(Some(&span), wanted);
        self.before = Some(span);
    }

    /// Returns the damages that may affect the wanted intervals.
    pub(super) fn finish(mut self, wanted: &Wanted) -> Vec<Damage> {
        self.close(None, wanted);
        self.closed
    }

    fn close(&mut self, after: Option<&Span>, wanted: &Wanted) {
        let open = std::mem::take(&mut self.open);
        if open.is_empty() {
            return;
        }
        let before = self.before.as_ref();
        let between = |of: fn(&Span) -> Option<&Range<Nanos>>| {
            let from = before.and_then(of).map_or(Nanos(0), |range| range.end);
            let to = after.and_then(of).map_or(Nanos(u64::MAX), |range| range.start);
            // If the clock was set back meanwhile, its times are ambiguous.
            if from <= to {
                from..to.max(Nanos(from.0.saturating_add(1)))
            } else {
                Nanos(0)..Nanos(u64::MAX)
            }
        };
        let wall = between(|span| Some(&span.wall));
        let steady = between(|span| span.steady.as_ref());
        let is_wanted = wanted.overlaps(&wall, Some(&steady));
        if is_wanted {
            self.closed.extend(open);
        }
    }
}
