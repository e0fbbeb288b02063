//! Parsers of numeric arguments. Errors state the valid range; clap adds the option's name.

use std::str::FromStr;
use std::time::Duration;

pub use tandem_model::length::not_possible;
use tandem_model::length::{in_units, length};

/// Returns a parser of times with a unit, such as 500ms or 10s, within these limits; without a unit, seconds.
pub fn duration(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let wrong =
            || format!("{text} is not possible: a time such as 500ms or 10s, {least:?} … {most:?}");
        length(text).ok().filter(|time| (least..=most).contains(time)).ok_or_else(wrong)
    }
}

/// Returns a parser of a number of milliseconds or seconds, or a time with a unit: 1s, 200ms.
pub fn time<T: FromStr>(unit: &'static str) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let wrong =
            |_| format!("'{text}' is not a number of {unit}, nor a time such as 1s or 200ms");
        in_units(text, unit).parse().map_err(wrong)
    }
}

/// Returns a parser of whole numbers within these limits, such as milliseconds.
pub fn whole(
    (least, most): (u64, u64),
    unit: &'static str,
) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| match in_units(text, unit).parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Ok(_) => Err(not_possible(text, format!("{least} … {most} {unit}"))),
        Err(_) => Err(format!("'{text}' is not a whole number: {least} … {most} {unit}")),
    }
}
