//! Parsing of times, distributions and sizes: `"4ms"`, `"exp(2us)"`, `"64KiB"`.
//!
//! Times are kept in whole nanoseconds.
//! A number without a unit is an error: 100 that means milliseconds must not run as nanoseconds.

use tandem_model::Nanos;

use crate::random::Dist;

/// Maximum time: longer simulations would take months.
pub const MAX_TIME: Nanos = Nanos::from_secs(4_000);

const UNITS: [(&str, f64); 6] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9)];

/// Parses a time; the error describes the valid form.
pub fn time(text: &str) -> Result<Nanos, String> {
    let text = text.trim();
    let wrong = || "a time has a number and a unit, such as 500ns, 1.5us, 4ms or 2s".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = UNITS.iter().find(|(name, _)| *name == unit.trim_start());
    let (_, factor) = factor.ok_or_else(wrong)?;
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let nanos = (number * factor).round();
    if nanos <= MAX_TIME.0 as f64 {
        Ok(Nanos(nanos as u64))
    } else {
        Err(format!("at most {}", MAX_TIME.in_whole_units()))
    }
}

/// Parses a distribution; the error describes the valid forms.
pub fn dist(text: &str) -> Result<Dist, String> {
    let text = text.trim();
    let Some((name, rest)) = text.split_once('(') else {
        return Ok(Dist::Constant(
            time(text)
                .map_err(|expected| {
                    if text.starts_with(|c: char| c.is_ascii_digit()) {
                        expected
                    } else {
                        FORMS.to_owned()
                    }
                })?
                .0,
        ));
    };
    let arguments = rest.strip_suffix(')').ok_or("the closing parenthesis is missing")?;
    let arguments: Vec<&str> = arguments.split(',').map(str::trim).collect();
    match (name.trim(), arguments.as_slice()) {
        ("constant", [value]) => Ok(Dist::Constant(time(value)?.0)),
        ("exp", [mean]) => Ok(Dist::Exponential(time(mean)?.0)),
        ("uniform", [least, most]) => {
            let (least, most) = (time(least)?, time(most)?);
            if least <= most {
                Ok(Dist::Uniform(least.0, most.0))
            } else {
                Err(format!(
                    "the smaller time comes first: uniform({}, {})",
                    most.in_whole_units(),
                    least.in_whole_units()
                ))
            }
        }
        ("normal", [mean, deviation]) => Ok(Dist::Normal(time(mean)?.0, time(deviation)?.0)),
        ("pareto", [least, shape]) => {
            let right = "pareto(LEAST, SHAPE) has a time above 0 and a shape of 0.1 … 100, such \
                         as pareto(1us, 1.5)";
            let least = time(least)?;
            let shape: f64 = shape.parse().map_err(|_| right.to_owned())?;
            if least > Nanos::ZERO && (0.1..=100.0).contains(&shape) {
                Ok(Dist::Pareto(least.0, shape))
            } else {
                Err(right.to_owned())
            }
        }
        _ => Err(FORMS.to_owned()),
    }
}

const FORMS: &str = "a time such as 4us, or exp(MEAN), uniform(LEAST, MOST), \
                     normal(MEAN, DEVIATION), pareto(LEAST, SHAPE)";

/// Whether a distribution can yield a positive time.
pub fn takes_time(dist: Dist) -> bool {
    match dist {
        Dist::Constant(time) | Dist::Exponential(time) | Dist::Pareto(time, _) => time > 0,
        Dist::Uniform(_, most) => most > 0,
        Dist::Normal(mean, deviation) => mean > 0 || deviation > 0,
    }
}

/// Parses a size in KiB; the error describes the valid form.
pub fn kib(text: &str) -> Result<u32, String> {
    let wrong = || "a size such as 64KiB or 2MiB, at most 1024MiB".to_owned();
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit.trim_start() {
        "KiB" => 1,
        "MiB" => 1024,
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).filter(|&kib| kib <= 1024 * 1024).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (text, nanos) in [
            ("500ns", 500),
            ("1us", 1_000),
            ("1.5 µs", 1_500),
            ("0.1ms", 100_000),
            ("2s", 2_000_000_000),
            ("0s", 0),
        ] {
            assert_eq!(time(text), Ok(Nanos(nanos)), "{text}");
        }
        for text in ["", "4", "ms", "-1ms", "1e3ms", "4 m", "1.2.3s", "inf s"] {
            assert!(time(text).unwrap_err().contains("unit"), "{text}");
        }
        assert!(time("1000000s").unwrap_err().contains("at most 4000s"));
    }

    #[test]
    fn distributions_are_read() {
        assert_eq!(dist("3us"), Ok(Dist::Constant(3_000)));
        assert_eq!(dist("exp(2us)"), Ok(Dist::Exponential(2_000)));
        assert_eq!(dist("uniform(1us,3us)"), Ok(Dist::Uniform(1_000, 3_000)));
        assert_eq!(dist("normal( 1ms, 0.1ms )"), Ok(Dist::Normal(1_000_000, 100_000)));
        assert_eq!(dist("pareto(1us, 1.5)"), Ok(Dist::Pareto(1_000, 1.5)));
        for (text, said) in [
            ("uniform(3us, 1us)", "uniform(1us, 3us)"),
            ("exp(2)", "unit"),
            ("exp(2us", "closing"),
            ("gauss(1us)", "normal(MEAN"),
            ("exp(1us, 2us)", "exp(MEAN)"),
            ("pareto(1us, 0)", "0.1 … 100"),
            ("soon", "exp(MEAN)"),
        ] {
            assert!(dist(text).unwrap_err().contains(said), "{text}");
        }
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(kib("64KiB"), Ok(64));
        assert_eq!(kib("2 MiB"), Ok(2048));
        assert!(kib("64").is_err() && kib("2GiB").is_err() && kib("99999999MiB").is_err());
    }
}
