//! Lengths, sizes and moments as an operator types them, and moments as they are printed: UTC.

use std::fmt::Display;
use std::time::Duration;
use std::time::SystemTime;

use chrono::DateTime;
use chrono::NaiveDateTime;
use chrono::SecondsFormat;
use tandem_policy::Nanos;

/// How moments are written.
pub const MOMENT: &str = "a time such as 2026-11-23T14:05:00Z, +90s (after the begin of the record) or -10m (before its end)";

/// How lengths are written, for errors.
const LENGTH: &str = "a time such as 90s, 10m, 2h or 7d";

/// A length: a number with s, m, h or d; without a unit, seconds.
pub fn length(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let seconds = match unit {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(not_possible(text, LENGTH)),
    };
    let number: f64 = number.parse().map_err(|_| not_possible(text, LENGTH))?;
    let length = Duration::try_from_secs_f64(number * seconds);
    length.map_err(|_| not_possible(text, LENGTH))
}

/// Bytes: a whole number with K, M or G (powers of 1024), `least` at least.
pub fn bytes(least: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let expected = format!("a size such as 256M or 2G, {}M at least", least >> 20);
        let (number, unit) = split(text);
        let shift = match unit.trim_end_matches("iB") {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            _ => return Err(not_possible(text, expected)),
        };
        let number: Option<u64> = number.parse().ok();
        let bytes = number.and_then(|number| number.checked_mul(1 << shift));
        match bytes {
            Some(bytes) if bytes >= least => Ok(bytes),
            _ => Err(not_possible(text, expected)),
        }
    }
}

/// A value that cannot be, and what can.
fn not_possible(value: &str, expected: impl Display) -> String {
    format!("{value} is not possible: {expected}")
}

/// A number and what follows it.
fn split(text: &str) -> (&str, &str) {
    let unit = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    text.split_at(unit)
}

/// A moment of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// By the wall clock, in ns since 1970.
    At(Nanos),
    /// After the begin of the record.
    AfterBegin(Duration),
    /// Before its end.
    BeforeEnd(Duration),
}

impl Moment {
    /// Whether it is one of the record, whatever the clock was set to.
    pub fn is_relative(self) -> bool {
        !matches!(self, Moment::At(_))
    }

    /// In a record that lasts from `begin` to `end`.
    pub fn within(self, begin: Nanos, end: Nanos) -> Nanos {
        let nanos = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        match self {
            Moment::At(at) => at,
            Moment::AfterBegin(length) => Nanos(begin.0.saturating_add(nanos(length))),
            Moment::BeforeEnd(length) => end.saturating_sub(Nanos(nanos(length))),
        }
    }
}

/// A moment; one without a zone is UTC.
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
        Err(_) => text
            .parse::<NaiveDateTime>()
            .ok()
            .and_then(|time| time.and_utc().timestamp_nanos_opt()),
    };
    let nanos = nanos.and_then(|nanos| u64::try_from(nanos).ok());
    nanos
        .map(|nanos| Moment::At(Nanos(nanos)))
        .ok_or_else(|| not_possible(text, MOMENT))
}

/// Now, by the wall clock, in ns since 1970.
pub fn now() -> Nanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Nanos(since.map_or(0, |since| since.as_nanos() as u64))
}

/// A moment as text, to the ms, as it can be given again.
pub fn printed(at: Nanos) -> String {
    let time = DateTime::from_timestamp_nanos(i64::try_from(at.0).unwrap_or(i64::MAX));
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_they_are_printed() {
        let at = Nanos(1_795_442_700_250_000_000);
        let text = printed(at);
        assert_eq!(text, "2026-11-23T14:05:00.250Z");
        assert_eq!(moment(&text), Ok(Moment::At(at)));
        assert_eq!(moment("2026-11-23T14:05:00.25"), Ok(Moment::At(at)));
        assert_eq!(
            moment("2026-11-23T15:05:00.25+01:00"),
            Ok(Moment::At(at)),
            "with a zone"
        );
        let within = |text: &str| {
            let moment = moment(text).unwrap();
            moment
                .within(Nanos::from_secs(100), Nanos::from_secs(1_000))
                .0
                / 1_000_000_000
        };
        assert_eq!(within("+90s"), 190);
        assert_eq!(within("-10m"), 400);
        assert_eq!(within("-2h"), 0);
        for wrong in [
            "",
            "+",
            "noon",
            "-5x",
            "1960-01-01T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "+-3",
        ] {
            let error = moment(wrong).unwrap_err();
            assert!(error.contains("+90s"), "{wrong}: {error}");
        }
    }

    #[test]
    fn lengths_and_sizes_have_units() {
        assert_eq!(length("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(length("7d"), Ok(Duration::from_secs(604_800)));
        assert_eq!(length("3"), Ok(Duration::from_secs(3)));
        for wrong in ["", "s", "3w", "1e400", "-1s", "nans"] {
            assert!(length(wrong).is_err(), "{wrong}");
        }
        let size = bytes(1 << 20);
        assert_eq!(size("256M"), Ok(256 << 20));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        for wrong in ["12K", "99999999999G", "M", "1.5M", "-1"] {
            let error = size(wrong).unwrap_err();
            assert!(error.contains("1M at least"), "{wrong}: {error}");
        }
    }
}
