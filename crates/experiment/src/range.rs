//! Ranges of numbers in `--vary`: `2..16:2`, `log:1ms..64ms`.
//!
//! `A..B:STEP` is A, A + STEP, … up to and including B; STEP defaults to 1 if A and B are integers.
//! `log:A..B:FACTOR` is A, A × FACTOR, … up to and including B; FACTOR defaults to 2.
//! Numbers may have a unit (`ms`, `us`, `MiB`), which must be the same for all: `1ms..8ms:1ms`.
//!
//! The arithmetic is decimal, so `0.1..0.3:0.1` ends with 0.3.
//! Products with a factor are rounded to six decimals.
//! A value that is not a range, such as `exp(1us)` or the quoted `"0..3"`, stands for itself.

use thiserror::Error;

/// Maximum number of values of a range.
const MAX_VALUES: usize = 1_000;

/// Maximum number of digits of a number, so that the product of a value and a factor fits into 128 bits.
const DIGITS: usize = 12;

/// Decimals to which products with a factor are rounded.
const DECIMALS: u32 = 6;

/// Error of a range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RangeError {
    /// The text is not a range.
    #[error(
        "{0} is no range: write A..B:STEP or log:A..B:FACTOR, such as 2..16:2 or log:1ms..64ms"
    )]
    Malformed(String),
    /// The units differ.
    #[error("{0}: both ends and the step have the same unit, such as 1ms..8ms:1ms")]
    Units(String),
    /// The end is below the beginning.
    #[error("{0}: the end is below the beginning; write the smaller number first")]
    Backwards(String),
    /// The step is missing, or not above 0.
    #[error("{0}: the step must be above 0, and is needed where a number has a fraction")]
    Step(String),
    /// The factor is not above 1 or has a unit, or the beginning is not above 0.
    #[error("{0}: the beginning must be above 0, and the factor, which has no unit, above 1")]
    Factor(String),
    /// The range has too many values.
    #[error("{0} has more than {MAX_VALUES} values")]
    TooMany(String),
}

/// Returns the values of a range, or the text itself if it is not a range.
pub fn expand(text: &str) -> Result<Vec<String>, RangeError> {
    let malformed = || RangeError::Malformed(text.to_owned());
    let logarithmic = text.strip_prefix("log:");
    let number = text.strip_prefix('-').unwrap_or(text);
    let begins = number.starts_with(|c: char| c.is_ascii_digit());
    if logarithmic.is_none() && !(begins && text.contains("..")) {
        return Ok(vec![text.to_owned()]);
    }
    let range = logarithmic.unwrap_or(text);
    let (begin, rest) = range.split_once("..").ok_or_else(malformed)?;
    let (end, step) = match rest.split_once(':') {
        Some((end, step)) => (end, Some(step)),
        None => (rest, None),
    };
    let begin = Number::parse(begin).ok_or_else(malformed)?;
    let end = Number::parse(end).ok_or_else(malformed)?;
    let step = step.map(|step| Number::parse(step).ok_or_else(malformed));
    let step = step.transpose()?;
    if begin.1 != end.1 {
        return Err(RangeError::Units(text.to_owned()));
    }
    let values = match logarithmic {
        Some(_) => factors(text, begin.0, end.0, step)?,
        None => steps(text, begin, end.0, step)?,
    };
    let unit = begin.1;
    Ok(values.into_iter().map(|value| format!("{}{unit}", value.text())).collect())
}

fn steps(
    text: &str,
    (begin, unit): (Number, &str),
    end: Number,
    step: Option<(Number, &str)>,
) -> Result<Vec<Number>, RangeError> {
    let step = match step {
        Some((_, other)) if other != unit => return Err(RangeError::Units(text.to_owned())),
        Some((step, _)) => step,
        None if begin.decimals == 0 && end.decimals == 0 => Number::whole(1),
        None => return Err(RangeError::Step(text.to_owned())),
    };
    let decimals = begin.decimals.max(end.decimals).max(step.decimals);
    let [begin, end, step] = [begin, end, step].map(|number| number.digits_at(decimals));
    if end < begin {
        return Err(RangeError::Backwards(text.to_owned()));
    }
    if step <= 0 {
        return Err(RangeError::Step(text.to_owned()));
    }
    if (end - begin) / step >= MAX_VALUES as i128 {
        return Err(RangeError::TooMany(text.to_owned()));
    }
    let values = (0..=(end - begin) / step).map(|i| Number { digits: begin + i * step, decimals });
    Ok(values.collect())
}

fn factors(
    text: &str,
    begin: Number,
    end: Number,
    factor: Option<(Number, &str)>,
) -> Result<Vec<Number>, RangeError> {
    let factor = match factor {
        Some((_, unit)) if !unit.is_empty() => return Err(RangeError::Factor(text.to_owned())),
        Some((factor, _)) => factor,
        None => Number::whole(2),
    };
    if begin.digits <= 0 || !factor.is_above(Number::whole(1)) {
        return Err(RangeError::Factor(text.to_owned()));
    }
    if begin.is_above(end) {
        return Err(RangeError::Backwards(text.to_owned()));
    }
    let mut values = vec![begin];
    let mut value = begin;
    loop {
        let next = value.times(factor);
        // The factor is so close to 1 that rounding cancels it.
        if !next.is_above(value) {
            return Err(RangeError::Factor(text.to_owned()));
        }
        if next.is_above(end) {
            return Ok(values);
        }
        if values.len() == MAX_VALUES {
            return Err(RangeError::TooMany(text.to_owned()));
        }
        values.push(next);
        value = next;
    }
}

/// A decimal number: digits ÷ 10^decimals.
#[derive(Clone, Copy, Debug)]
struct Number {
    digits: i128,
    decimals: u32,
}

impl Number {
    fn whole(digits: i128) -> Number {
        Number { digits, decimals: 0 }
    }

    /// Parses a number with its unit, which may be empty.
    fn parse(text: &str) -> Option<(Number, &str)> {
        let text = text.trim();
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        let ends = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = unsigned.split_at(ends.unwrap_or(unsigned.len()));
        let unit = unit.trim();
        if !unit.chars().all(char::is_alphabetic) {
            return None;
        }
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{fraction}");
        if whole.is_empty() || fraction.contains('.') || digits.len() > DIGITS {
            return None;
        }
        let digits: i128 = digits.parse().ok()?;
        let number = Number {
            digits: if unsigned.len() < text.len() { -digits } else { digits },
            decimals: fraction.len() as u32,
        };
        Some((number, unit))
    }

    /// Returns the digits at a number of decimals, which is at least its own and at most [`DIGITS`] more.
    fn digits_at(self, decimals: u32) -> i128 {
        self.digits * 10_i128.pow(decimals - self.decimals)
    }

    fn is_above(self, other: Number) -> bool {
        let decimals = self.decimals.max(other.decimals);
        self.digits_at(decimals) > other.digits_at(decimals)
    }

    /// Returns the product, rounded half up.
    fn times(self, factor: Number) -> Number {
        let mut product = Number {
            digits: self.digits * factor.digits,
            decimals: self.decimals + factor.decimals,
        };
        while product.decimals > DECIMALS.max(self.decimals) {
            product.digits = (product.digits + 5) / 10;
            product.decimals -= 1;
        }
        product
    }

    fn text(self) -> String {
        let scale = 10_i128.pow(self.decimals);
        let (sign, digits) = (if self.digits < 0 { "-" } else { "" }, self.digits.abs());
        let fraction = format!("{:0width$}", digits % scale, width = self.decimals as usize);
        match fraction.trim_end_matches('0') {
            "" => format!("{sign}{}", digits / scale),
            fraction => format!("{sign}{}.{fraction}", digits / scale),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> String {
        expand(text).unwrap().join(" ")
    }

    #[test]
    fn steps_and_factors() {
        assert_eq!(values("2..16:2"), "2 4 6 8 10 12 14 16");
        assert_eq!(values("2..5"), "2 3 4 5");
        assert_eq!(values("3..3"), "3");
        assert_eq!(values("1..10:4"), "1 5 9");
        assert_eq!(values("-2..2:2"), "-2 0 2");
        assert_eq!(values("0.1..0.3:0.1"), "0.1 0.2 0.3");
        assert_eq!(values("1ms..3ms:0.5ms"), "1ms 1.5ms 2ms 2.5ms 3ms");
        assert_eq!(values("log:1..64"), "1 2 4 8 16 32 64");
        assert_eq!(values("log:1..1000:10"), "1 10 100 1000");
        assert_eq!(values("log:64KiB..300KiB:2"), "64KiB 128KiB 256KiB");
        assert_eq!(values("log:1..4:1.5"), "1 1.5 2.25 3.375");
        assert_eq!(values("log:0.001..1:10"), "0.001 0.01 0.1 1");
    }

    #[test]
    fn other_values_stand_for_themselves() {
        for text in
            ["8", "cfs", "exp(1us)", "\"0..3\"", "0-3", "[1, 2]", "a..b", "../a.toml", "./a.toml"]
        {
            assert_eq!(values(text), text);
        }
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        let error = |text: &str| expand(text).unwrap_err().to_string();
        for text in ["2..", "log:2", "2..x", "2..4:", "2...4", "1..2..3", "log:cfs", "2..4:1:1"] {
            assert!(error(text).contains("A..B:STEP"), "{text}");
        }
        assert!(error("9999999999999999..2").contains("A..B:STEP"));
        assert!(error("1ms..2us:1ms").contains("same unit"));
        assert!(error("1ms..2ms:1").contains("same unit"));
        assert!(error("4..2").contains("below the beginning"));
        assert!(error("log:4..2").contains("below the beginning"));
        assert!(error("1..2:0").contains("above 0"));
        assert!(error("0.5..2").contains("is needed"));
        assert!(error("log:0..8").contains("above 0"));
        assert!(error("log:1..8:1").contains("above 1"));
        assert!(error("log:1ms..8ms:2ms").contains("no unit"));
        assert!(error("log:1..8:1.0000001").contains("above 1"));
        assert!(error("1..1001").contains("more than 1000"));
        assert_eq!(expand("1..1000").unwrap().len(), 1000);
    }
}
