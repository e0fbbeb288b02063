//! Parsers for times and sizes as typed by an operator: `200ms`, `90s`, `7d`, `256M`.

use std::fmt::Display;
use std::time::Duration;

/// Valid form of a time, for errors.
const LENGTH: &str = "a time such as 200ms, 90s, 10m, 2h or 7d";

/// Units of time with their lengths, ns.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Parses a time: a number with ns, us, ms, s, m, h or d, or seconds without a unit.
pub fn length(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let unit = if unit.is_empty() { "s" } else { unit };
    let nanos = nanos_of(unit).ok_or_else(|| not_possible(text, LENGTH))?;
    let number: f64 = number.parse().map_err(|_| not_possible(text, LENGTH))?;
    let length = Duration::try_from_secs_f64(number * (nanos as f64 / 1e9));
    length.map_err(|_| not_possible(text, LENGTH))
}

fn nanos_of(unit: &str) -> Option<u64> {
    let known = UNITS.iter().find(|(name, _)| *name == unit);
    known.map(|(_, nanos)| *nanos)
}

/// Converts an argument with a unit of time (`1s`, `200ms`) to a number of `unit`s.
/// Returns other text unchanged.
pub fn in_units(text: &str, unit: &str) -> String {
    let wanted = match unit {
        "milliseconds" => nanos_of("ms"),
        "seconds" => nanos_of("s"),
        _ => None,
    };
    let (number, given) = split(text);
    match (number.parse::<f64>(), nanos_of(given), wanted) {
        (Ok(number), Some(given), Some(wanted)) => {
            // Rounding to whole ns keeps 1.1 s at 1100 ms.
            let nanos = (number * given as f64).round();
            (nanos / wanted as f64).to_string()
        }
        _ => text.to_owned(),
    }
}

/// Returns a parser of sizes: a whole number with K, M or G (powers of 1024), at least `least` bytes.
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

/// Returns the error for an invalid value: the value and the valid form.
pub fn not_possible(value: impl Display, expected: impl Display) -> String {
    format!("{value} is not possible: {expected}")
}

/// Splits a text into number and unit.
fn split(text: &str) -> (&str, &str) {
    let unit = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    text.split_at(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_convert_to_the_wanted_unit() {
        let cases = [
            ("200ms", "milliseconds", "200"),
            ("1s", "milliseconds", "1000"),
            ("1.1s", "milliseconds", "1100"),
            ("1500us", "milliseconds", "1.5"),
            ("200ms", "seconds", "0.2"),
            ("2m", "seconds", "120"),
            ("5", "seconds", "5"),
            ("-1", "seconds", "-1"),
            ("nan", "seconds", "nan"),
            ("5s", "culprits", "5s"),
            ("5x", "seconds", "5x"),
        ];
        for (text, unit, wanted) in cases {
            assert_eq!(in_units(text, unit), wanted, "{text} in {unit}");
        }
    }

    #[test]
    fn lengths_and_sizes_have_units() {
        assert_eq!(length("200ms"), Ok(Duration::from_millis(200)));
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
