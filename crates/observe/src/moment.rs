//! Moments of a record: parsing of an operator's input, and formatting (UTC).

use std::time::{Duration, SystemTime};

use chrono::{DateTime, NaiveDateTime, SecondsFormat};
use tandem_model::Nanos;
use tandem_model::length::{length, not_possible};

/// The format of moments.
pub const MOMENT: &str = "a time such as 2026-11-23T14:05:00Z, +90s (after the begin of the record) or -10m (before its end)";

/// A moment of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// By the wall clock, in ns since 1970.
    At(Nanos),
    /// After the begin of the record.
    AfterBegin(Duration),
    /// Before the end of the record.
    BeforeEnd(Duration),
}

impl Moment {
    /// Whether it is relative to the record, and so independent of changes of the clock.
    pub fn is_relative(self) -> bool {
        !matches!(self, Moment::At(_))
    }

    /// Returns the time in a record that lasts from `begin` to `end`.
    pub fn within(self, begin: Nanos, end: Nanos) -> Nanos {
        let nanos = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        match self {
            Moment::At(at) => at,
            Moment::AfterBegin(length) => Nanos(begin.0.saturating_add(nanos(length))),
            Moment::BeforeEnd(length) => end.saturating_sub(Nanos(nanos(length))),
        }
    }
}

/// Parses a moment; UTC without a zone.
pub fn moment(text: &str) -> Result<Moment, String> {
    let wrong = |_| not_possible(text, MOMENT);
    if let Some(after) = text.strip_prefix('+') {
        return length(after).map(Moment::AfterBegin).map_err(wrong);
    }
    if let Some(before) = text.strip_prefix('-') {
        return length(before).map(Moment::BeforeEnd).map_err(wrong);
    }
    let nanos = match DateTime::parse_from_rfc3339(text) {
        Ok(time) => time.timestamp_nanos_opt(),
        Err(_) => {
            text.parse::<NaiveDateTime>().ok().and_then(|time| time.and_utc().timestamp_nanos_opt())
        }
    };
    let nanos = nanos.and_then(|nanos| u64::try_from(nanos).ok());
    nanos.map(|nanos| Moment::At(Nanos(nanos))).ok_or_else(|| not_possible(text, MOMENT))
}

/// Returns the wall clock in ns since 1970.
pub fn now() -> Nanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Nanos(since.map_or(0, |since| since.as_nanos() as u64))
}

/// Formats a moment to the ms, so that [`moment`] can parse it.
pub fn printed(at: Nanos) -> String {
    let time = DateTime::from_timestamp_nanos(i64::try_from(at.0).unwrap_or(i64::MAX));
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_moments_can_be_parsed() {
        let at = Nanos(1_795_442_700_250_000_000);
        let text = printed(at);
        assert_eq!(text, "2026-11-23T14:05:00.250Z");
        assert_eq!(moment(&text), Ok(Moment::At(at)));
        assert_eq!(moment("2026-11-23T14:05:00.25"), Ok(Moment::At(at)));
        assert_eq!(moment("2026-11-23T15:05:00.25+01:00"), Ok(Moment::At(at)), "with a zone");
        let within = |text: &str| {
            let moment = moment(text).unwrap();
            moment.within(Nanos::from_secs(100), Nanos::from_secs(1_000)).0 / 1_000_000_000
        };
        assert_eq!(within("+90s"), 190);
        assert_eq!(within("-10m"), 400);
        assert_eq!(within("-2h"), 0);
        for wrong in ["", "+", "noon", "-5x", "1960-01-01T00:00:00Z", "2026-13-01T00:00:00Z", "+-3"]
        {
            let error = moment(wrong).unwrap_err();
            assert!(error.contains("+90s"), "{wrong}: {error}");
        }
    }
}
