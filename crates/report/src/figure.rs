//! Formatting of figures, common to tables, charts and texts.
//!
//! Shares and idle time are in pCPUs (1.000 = one physical CPU all the time).
//! Lags and comparisons are fractions inside the program, and percentages in output.
//! Work is in items per second, with a decimal prefix for large values.

use tandem_model::Nanos;

/// Text in place of a missing figure.
pub const NOT_MEASURED: &str = "not measured";

/// Formats a number of pCPUs with three decimals.
pub fn pcpus(value: f64) -> String {
    format!("{:.3}", no_negative_zero(value, 3))
}

/// Formats a fraction as a percentage with one decimal: 0.127 is `12.7 %`.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", no_negative_zero(fraction * 100.0, 1))
}

/// Formats a fraction as a signed percentage: 0.127 is `+12.7 %`.
pub fn signed_percent(fraction: f64) -> String {
    format!("{:+.1} %", no_negative_zero(fraction * 100.0, 1))
}

/// Formats a rate with at most four significant digits, and a decimal prefix from 10 000 on: `12.35 k`.
pub fn rate(value: f64) -> String {
    let (scaled, prefix) = match value.abs() {
        v if v >= 1e10 => (value / 1e9, " G"),
        v if v >= 1e7 => (value / 1e6, " M"),
        v if v >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    match scaled.abs() {
        v if v >= 1000.0 => format!("{scaled:.0}{prefix}"),
        v if v >= 100.0 => format!("{scaled:.1}{prefix}"),
        _ => format!("{scaled:.2}{prefix}"),
    }
}

/// Formats a duration; times are in whole ns, so 0 is `< 1 ns`.
pub fn took(time: Nanos) -> String {
    match time {
        Nanos::ZERO => "< 1 ns".to_owned(),
        time => time.to_string(),
    }
}

/// Formats a time with a suitable unit: `950 ns`, `12.3 ms`, `4.20 s`.
pub fn time(ns: f64) -> String {
    let (scaled, unit) = match ns.abs() {
        v if v >= 1e9 => (ns / 1e9, "s"),
        v if v >= 1e6 => (ns / 1e6, "ms"),
        v if v >= 1e3 => (ns / 1e3, "µs"),
        _ => return format!("{ns:.0} ns"),
    };
    match scaled.abs() {
        v if v >= 100.0 => format!("{scaled:.0} {unit}"),
        v if v >= 10.0 => format!("{scaled:.1} {unit}"),
        _ => format!("{scaled:.2} {unit}"),
    }
}

/// Formats a weight or another small number without trailing zeros: `1`, `2.5`.
pub fn plain(value: f64) -> String {
    format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns 0 for values that round to zero, which would print as `-0.0` if negative.
fn no_negative_zero(value: f64, decimals: i32) -> f64 {
    if value.abs() < 0.5 * 10f64.powi(-decimals) { 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_formatted_as_percentages() {
        assert_eq!(percent(0.1274), "12.7 %");
        assert_eq!(signed_percent(0.1274), "+12.7 %");
        assert_eq!(signed_percent(-1.27), "-127.0 %");
        assert_eq!(signed_percent(-0.0001), "+0.0 %");
        assert_eq!(pcpus(-0.0001), "0.000");
    }

    #[test]
    fn zero_duration_is_below_one_ns() {
        assert_eq!(took(Nanos::ZERO), "< 1 ns");
        assert_eq!(took(Nanos(1)), Nanos(1).to_string());
        assert_eq!(took(Nanos(2_500)), Nanos(2_500).to_string());
    }

    #[test]
    fn rates_fit_a_cell() {
        assert_eq!(rate(0.0), "0.00");
        assert_eq!(rate(9_999.4), "9999");
        assert_eq!(rate(12_345.0), "12.35 k");
        assert_eq!(rate(123_456_789.0), "123.5 M");
        assert_eq!(rate(5e12), "5000 G");
    }

    #[test]
    fn times_have_suitable_units() {
        assert_eq!(time(0.0), "0 ns");
        assert_eq!(time(950.4), "950 ns");
        assert_eq!(time(12_345_678.0), "12.3 ms");
        assert_eq!(time(4.2e9), "4.20 s");
        assert_eq!(time(987_654.0), "988 µs");
    }

    #[test]
    fn plain_numbers_lose_trailing_zeros() {
        assert_eq!(plain(1.0), "1");
        assert_eq!(plain(2.5), "2.5");
        assert_eq!(plain(10.0), "10");
        assert_eq!(plain(1.0 / 3.0), "0.333");
    }
}
