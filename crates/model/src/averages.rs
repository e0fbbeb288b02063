//! Medians and geometric means of repeated measurements.
//!
//! A median is the middle of the sorted values, or the mean of the two in the middle; one slow run does not affect it.
//! Ratios are averaged geometrically: twice as fast in one case and half as fast in another averages to 1.
//! Means with confidence intervals are in `tandem_experiment::statistics`.

/// Returns the middle of sorted values; `None` if there are none.
pub fn middle(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    match n % 2 {
        1 => sorted.get(n / 2).copied(),
        _ => Some((sorted.get((n / 2).checked_sub(1)?)? + sorted.get(n / 2)?) / 2.0),
    }
}

/// Returns the median; `None` if there are no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    middle(&values)
}

/// Returns the geometric mean, which is zero if a value is.
/// Returns `None` if there are no values, or one is negative or NaN.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0u32);
    for value in values {
        if value.is_nan() || value < 0.0 {
            return None;
        }
        sum += libm::log(value);
        count += 1;
    }
    (count > 0).then(|| libm::exp(sum / f64::from(count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_of_ratios_are_geometric() {
        assert_eq!(geometric_mean([4.0, 0.25]), Some(1.0));
        assert_eq!(geometric_mean([1.0, 0.0]), Some(0.0));
        assert_eq!(geometric_mean([]), None);
        assert_eq!(geometric_mean([1.0, -1.0]), None);
        assert_eq!(geometric_mean([1.0, f64::NAN]), None);
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median([3.0, 1.0]), Some(2.0));
        assert_eq!(median([3.0, 1.0, 9.0]), Some(3.0));
        assert_eq!(median([]), None);
    }
}
