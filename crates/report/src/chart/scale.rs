//! Axis scales with round tick values: steps of 1, 2, 2.5 or 5 times a power of ten.

/// A linear scale from zero to a round maximum.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    step: f64,
    steps: usize,
}

impl Scale {
    /// Returns the smallest scale of at most `most` steps that includes `max`.
    pub fn up_to(max: f64, most: usize) -> Scale {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let most = most.max(1);
        let mut power = 10f64.powf((max / most as f64).log10().floor());
        loop {
            for factor in [1.0, 2.0, 2.5, 5.0] {
                let step = factor * power;
                // A tolerance, so that 0.3 does not need four steps of 0.1.
                let steps = (max / step - 1e-9).ceil().max(1.0) as usize;
                if steps <= most {
                    return Scale { step, steps };
                }
            }
            power *= 10.0;
        }
    }

    /// Returns the largest value on the scale.
    pub fn max(&self) -> f64 {
        self.step * self.steps as f64
    }

    /// Returns the tick values, from zero to the maximum.
    pub fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        (0..=self.steps).map(|i| self.step * i as f64)
    }

    /// Formats a tick value with the decimals of the step, and with a decimal prefix on scales up to 10 000 or more.
    pub fn label(&self, value: f64) -> String {
        let (unit, prefix) = match self.max() {
            max if max >= 1e10 => (1e9, " G"),
            max if max >= 1e7 => (1e6, " M"),
            max if max >= 1e4 => (1e3, " k"),
            _ => (1.0, ""),
        };
        let (step, value) = (self.step / unit, value / unit);
        let decimals = (0..6)
            .find(|&d| {
                let shifted = step * 10f64.powi(d);
                (shifted - shifted.round()).abs() < 1e-6 * shifted
            })
            .unwrap_or(6);
        let prefix = if value == 0.0 { "" } else { prefix };
        format!("{value:.*}{prefix}", decimals as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(max: f64, most: usize) -> String {
        let scale = Scale::up_to(max, most);
        let ticks: Vec<String> = scale.ticks().map(|t| scale.label(t)).collect();
        ticks.join(" ")
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(labels(1.9, 4), "0.0 0.5 1.0 1.5 2.0");
        assert_eq!(labels(0.3, 3), "0.0 0.1 0.2 0.3");
        assert_eq!(labels(130.0, 5), "0 50 100 150");
        assert_eq!(labels(101.0, 5), "0 25 50 75 100 125");
        assert_eq!(labels(12.0, 6), "0 2 4 6 8 10 12");
        assert_eq!(labels(30_000.0, 3), "0 10 k 20 k 30 k");
        assert_eq!(labels(10_000.0, 4), "0.0 2.5 k 5.0 k 7.5 k 10.0 k");
        assert_eq!(labels(0.000_31, 4), "0.0000 0.0001 0.0002 0.0003 0.0004");
    }

    #[test]
    fn scale_without_values_ends_at_one() {
        for max in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Scale::up_to(max, 4).max(), 1.0);
        }
    }
}
