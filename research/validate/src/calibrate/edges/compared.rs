//! Comparison of a measured fraction with a simulated one.

use serde::Serialize;
use tandem_experiment::statistics::Mean;

/// Minimum fraction that is compared; a smaller one may be a single wait.
const MIN_COMPARED: f64 = 0.01;

/// Maximum difference relative to the real fraction.
pub const TOLERANCE: f64 = 0.15;

/// A fraction, real and simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Compared {
    /// Mean of the real runs. `None`: not measured, or the whole is zero.
    pub real: Option<f64>,
    /// Half width of the 95 % interval of `real`; `None` for a single run.
    pub ci95: Option<f64>,
    /// Mean of the simulated seeds.
    pub simulated: Option<f64>,
    /// Simulated ÷ real − 1. `None` if both are below 1 %, one is missing, or the real one is 0.
    pub difference: Option<f64>,
    /// Whether the difference is within the tolerance; `None` if both are below 1 % or one is missing.
    pub is_within: Option<bool>,
}

impl Compared {
    /// Compares the values of the real runs with those of the seeds.
    pub fn of(real: &[f64], simulated: &[f64]) -> Compared {
        let (real, simulated) = (Mean::of(real), Mean::of(simulated));
        let simulated = simulated.map(|mean| mean.mean);
        let both = real.as_ref().map(|mean| mean.mean).zip(simulated);
        let both = both.filter(|(real, simulated)| real.max(*simulated) >= MIN_COMPARED);
        Compared {
            ci95: real.as_ref().and_then(|mean| mean.ci95),
            real: real.map(|mean| mean.mean),
            simulated,
            difference: both
                .filter(|(real, _)| *real > 0.0)
                .map(|(real, simulated)| simulated / real - 1.0),
            is_within: both.map(|(real, simulated)| (simulated - real).abs() <= TOLERANCE * real),
        }
    }

    /// Returns whether either fraction is above 0.
    pub fn is_some(&self) -> bool {
        let any = |part: Option<f64>| part.is_some_and(|part| part > 0.0);
        any(self.real) || any(self.simulated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sided_wait_is_out_of_tolerance() {
        let compared = Compared::of(&[0.0, 0.0], &[0.2]);
        assert_eq!((compared.difference, compared.is_within), (None, Some(false)));
        let compared = Compared::of(&[0.002], &[0.2]);
        assert_eq!(compared.is_within, Some(false));
        let compared = Compared::of(&[0.2], &[0.0]);
        assert_eq!((compared.difference, compared.is_within), (Some(-1.0), Some(false)));
        assert_eq!(Compared::of(&[0.005], &[0.009]).is_within, None, "too little");
        assert_eq!(Compared::of(&[], &[0.5]).is_within, None);
    }
}
