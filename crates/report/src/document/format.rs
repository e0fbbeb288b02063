//! How a figure is written.
//!
//! `.2` has two decimals; `.1%` is a part in per cent, without the sign %; `+` before it shows the
//! sign, `,` thousands; `/1e6` or `*1e3` behind it scales. `plain` has as many decimals as the
//! value, three at most; `sig3` keeps three digits that matter; `si` one decimal and k or M. `as
//! true=yes;false=NO` replaces values by words. Without a format a text or a whole number stands as
//! it is, and any other number is an error: its digits are nobody's choice.

use serde_json::Value;

use super::data::Error;
use crate::figure;
use crate::figure::three_digits;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Format {
    AsIs,
    Plain {
        sign: bool,
    },
    Sig3,
    Si,
    Words(Vec<(String, String)>),
    Decimals {
        digits: usize,
        sign: bool,
        thousands: bool,
        scale: f64,
    },
}

impl Format {
    /// `value=word;value=word`.
    pub(super) fn words(text: &str) -> Result<Format, Error> {
        let pair = |pair: &str| {
            let (from, to) = pair.split_once('=')?;
            Some((from.to_owned(), to.to_owned()))
        };
        let pairs: Option<Vec<_>> = text.trim().split(';').map(pair).collect();
        let pairs = pairs.ok_or_else(|| Error::syntax(text, "words are value=word;value=word"))?;
        Ok(Format::Words(pairs))
    }

    /// A format as it is written.
    pub(super) fn parse(text: &str) -> Result<Format, Error> {
        match text {
            "sig3" => return Ok(Format::Sig3),
            "si" => return Ok(Format::Si),
            "plain" => return Ok(Format::Plain { sign: false }),
            "+plain" => return Ok(Format::Plain { sign: true }),
            _ => {}
        }
        let unknown = || {
            Error::syntax(
                text,
                "a format is .2, .1%, +.1, ,.0, .1/1e6, plain, sig3 or si",
            )
        };
        let (sign, rest) = prefixed(text, '+');
        let (thousands, rest) = prefixed(rest, ',');
        let rest = rest.strip_prefix('.').ok_or_else(unknown)?;
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let digits = rest[..end].parse().map_err(|_| unknown())?;
        let factor = |text: &str| text.parse::<f64>().map_err(|_| unknown());
        let scale = match rest[end..].split_at_checked(1) {
            None => 1.0,
            Some(("%", "")) => 100.0,
            Some(("*", by)) => factor(by)?,
            Some(("/", by)) => 1.0 / factor(by)?,
            Some(_) => return Err(unknown()),
        };
        Ok(Format::Decimals {
            digits,
            sign,
            thousands,
            scale,
        })
    }

    /// A value in this format; `path` is for errors.
    pub(super) fn write(&self, path: &str, value: &Value) -> Result<String, Error> {
        Ok(match self {
            Format::Words(words) => {
                let text = plain(value);
                let word = words.iter().find(|(from, _)| *from == text);
                let listed = || {
                    words
                        .iter()
                        .map(|(from, _)| from.as_str())
                        .collect::<Vec<_>>()
                };
                word.ok_or_else(|| {
                    let why = format!("{path} has no word here: {}", listed().join(", "));
                    Error::syntax(&text, why)
                })?
                .1
                .clone()
            }
            Format::AsIs => match value {
                Value::String(text) => text.clone(),
                Value::Number(number) if number.as_f64().is_some_and(|n| n.fract() == 0.0) => {
                    format!("{:.0}", number.as_f64().unwrap_or_default())
                }
                Value::Number(number) => {
                    let why = format!("{path} needs a format, as in .2");
                    return Err(Error::syntax(&number.to_string(), why));
                }
                other => return Err(number(path, other).unwrap_err()),
            },
            Format::Plain { sign } => {
                let value = number(path, value)?;
                let plus = if *sign && value > 0.0 { "+" } else { "" };
                format!("{plus}{}", figure::plain(value))
            }
            Format::Sig3 => three_digits(number(path, value)?),
            Format::Si => prefix(number(path, value)?),
            Format::Decimals {
                digits,
                sign,
                thousands,
                scale,
            } => decimals(number(path, value)? * scale, *digits, *sign, *thousands),
        })
    }
}

fn prefixed(text: &str, sign: char) -> (bool, &str) {
    text.strip_prefix(sign)
        .map_or((false, text), |rest| (true, rest))
}

fn decimals(value: f64, digits: usize, sign: bool, thousands: bool) -> String {
    let mut text = format!("{:.digits$}", value.abs());
    if thousands {
        let mut at = text.find('.').unwrap_or(text.len());
        while at > 3 {
            at -= 3;
            text.insert(at, ',');
        }
    }
    let zero = text.chars().all(|c| matches!(c, '0' | '.' | ','));
    match (value < 0.0 && !zero, sign) {
        (true, _) => format!("-{text}"),
        (false, true) => format!("+{text}"),
        (false, false) => text,
    }
}

fn prefix(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.1} M", value / 1e6),
        size if size >= 1e3 => format!("{:.1} k", value / 1e3),
        _ => format!("{value:.1}"),
    }
}

/// A value that must be a number.
pub(super) fn number(path: &str, value: &Value) -> Result<f64, Error> {
    value.as_f64().ok_or_else(|| Error::NoNumber {
        path: path.to_owned(),
        value: value.to_string(),
    })
}

/// A value without the quotes of a text.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
