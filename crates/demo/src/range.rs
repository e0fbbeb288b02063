//! Ranges of numeric arguments, with one form of error for all benchmarks.
//!
//! An error names the flag, the value and the range, as in `--runs 0 is not possible: 1 … 100`.

use std::time::Duration;

use thiserror::Error;

/// A number is out of range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{flag} {value} is not possible: {range}")]
pub struct RangeError {
    /// The argument.
    pub flag: &'static str,
    /// The given value.
    pub value: String,
    /// The valid range.
    pub range: String,
}

/// Checks a whole number.
pub fn whole(flag: &'static str, value: u32, least: u32, most: u32) -> Result<u32, RangeError> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(RangeError { flag, value: value.to_string(), range: format!("{least} … {most}") })
    }
}

/// Checks the daemon's accounting period.
pub fn period_ms(value: u64) -> Result<u64, RangeError> {
    if (30..=1000).contains(&value) {
        Ok(value)
    } else {
        Err(RangeError {
            flag: "--period-ms",
            value: value.to_string(),
            range: "30 … 1000 milliseconds".to_owned(),
        })
    }
}

/// Checks a time in seconds.
pub fn seconds(
    flag: &'static str,
    value: f64,
    least: f64,
    most: f64,
) -> Result<Duration, RangeError> {
    if value.is_finite() && (least..=most).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err(RangeError {
            flag,
            value: value.to_string(),
            range: format!("{least} … {most} seconds"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_bounds() {
        assert!(seconds("--seconds", f64::NAN, 0.5, 60.0).is_err());
        let error = seconds("--seconds", 0.0, 0.5, 60.0).unwrap_err().to_string();
        assert_eq!(error, "--seconds 0 is not possible: 0.5 … 60 seconds");
    }

    #[test]
    fn numbers_have_bounds() {
        assert_eq!(whole("--runs", 100, 1, 100), Ok(100));
        let error = whole("--runs", 101, 1, 100).unwrap_err().to_string();
        assert_eq!(error, "--runs 101 is not possible: 1 … 100");
    }
}
