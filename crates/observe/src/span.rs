//! Time ranges of a record: a moment, or a range of moments, as an operator types it.

use std::ops::Range;

use crate::record::{Record, RecordError, Wanted};
use tandem_model::Nanos;
use thiserror::Error;

use crate::listing::list;
use crate::moment::{Moment, moment, printed};

/// Error of a time range.
#[derive(Debug, Error)]
pub enum SpanError {
    /// The record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record is empty.
    #[error("the record holds no interval")]
    Empty,
    /// The range is outside of the record.
    #[error("nothing was recorded then: the record is from {} to {}", printed(.held.start), printed(.held.end))]
    Outside {
        /// The range of the record.
        held: Range<Nanos>,
    },
    /// The end precedes the begin.
    #[error("{} is not before {}", printed(.0.start), printed(.0.end))]
    Backwards(Range<Nanos>),
}

/// A time range of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Span {
    /// The whole record.
    #[default]
    All,
    /// The interval at a moment.
    At(Moment),
    /// From a moment, or the begin, to a moment, or the end.
    Range(Option<Moment>, Option<Moment>),
}

/// Parses a moment, or two with `..` between them. The first defaults to the begin of the record, the second to its end.
pub fn span(text: &str) -> Result<Span, String> {
    let Some((from, to)) = text.split_once("..") else {
        return moment(text).map(Span::At);
    };
    let end = |text: &str| match text {
        "" => Ok(None),
        text => moment(text).map(Some),
    };
    Ok(Span::Range(end(from)?, end(to)?))
}

impl Span {
    /// Returns the range by the wall clock.
    pub fn of(self, record: &Record) -> Result<Range<Nanos>, SpanError> {
        if self == Span::All {
            return Ok(Wanted::ALL.wall);
        }
        let listing = list(record)?;
        let (begin, end) = listing.from.zip(listing.to).ok_or(SpanError::Empty)?;
        self.within(begin, end)
    }

    fn within(self, begin: Nanos, end: Nanos) -> Result<Range<Nanos>, SpanError> {
        let resolved = |moment: Moment| moment.within(begin, end);
        let range = match self {
            Span::All => Wanted::ALL.wall,
            Span::At(at) if !(begin..=end).contains(&resolved(at)) => {
                return Err(SpanError::Outside { held: begin..end });
            }
            Span::At(at) => {
                // The end of a record belongs to its last interval.
                let at = resolved(at).min(end.saturating_sub(Nanos(1)));
                at..Nanos(at.0.saturating_add(1))
            }
            Span::Range(from, to) => from.map_or(begin, resolved)..to.map_or(end, resolved),
        };
        if range.start >= range.end {
            Err(SpanError::Backwards(range))
        } else if self != Span::All && (range.end <= begin || range.start >= end) {
            Err(SpanError::Outside { held: begin..end })
        } else {
            Ok(range)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lie_within_the_record() {
        let within = |span: Result<Span, String>| {
            let (begin, end) = (Nanos::from_secs(100), Nanos::from_secs(1_000));
            let range = span.unwrap().within(begin, end);
            range.map(|range| (range.start.0 / 1_000_000_000, range.end.0 / 1_000_000_000))
        };
        assert_eq!(within(span("+60s..-10m")).unwrap(), (160, 400));
        assert_eq!(within(span("..+5s")).unwrap(), (100, 105));
        assert_eq!(within(span("-5s..")).unwrap(), (995, 1_000));
        assert_eq!(within(span("..")).unwrap(), (100, 1_000));
        assert_eq!(within(span("-0s")).unwrap().0, 999, "the last interval");
        for outside in ["+901s", "2030-01-01T00:00:00Z", "+20m..+30m"] {
            let refused = within(span(outside));
            assert!(matches!(refused, Err(SpanError::Outside { .. })), "{outside}");
        }
        let error = within(span("-5s..+5s")).unwrap_err().to_string();
        assert!(error.contains("is not before"), "{error}");
        for wrong in ["", "now..", "+5s...-5s"] {
            let error = span(wrong).unwrap_err();
            assert!(error.contains("is not possible"), "{wrong}: {error}");
        }
    }
}
