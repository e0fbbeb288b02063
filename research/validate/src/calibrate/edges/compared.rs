//! A part of something, as measured and as simulated.

use serde::Serialize;
use tandem_experiment::statistics::Mean;

/// Of smaller parts, real and simulated, no difference is said: they may be a single wait.
const LEAST: f64 = 0.01;

/// By so much a part may be off.
pub const TOLERANCE: f64 = 0.15;

/// A part of something, real and simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Compared {
    /// Real, the mean of the runs. `None`: not measured, or a part of nothing.
    pub real: Option<f64>,
    /// Its 95 % interval, to both sides; `None` from one run.
    pub ci95: Option<f64>,
    /// Simulated, the mean of the seeds.
    pub simulated: Option<f64>,
    /// Simulated ÷ real − 1. `None` where both are below 1 %, or one is not there.
    pub difference: Option<f64>,
    /// Whether that is within the tolerance; `None` where nothing is compared.
    pub is_within: Option<bool>,
}

impl Compared {
    /// Of what runs and seeds say, those that say something.
    pub fn of(real: &[f64], simulated: &[f64]) -> Compared {
        let (real, simulated) = (Mean::of(real), Mean::of(simulated));
        let simulated = simulated.map(|mean| mean.mean);
        let both = real.as_ref().map(|mean| mean.mean).zip(simulated);
        let both = both.filter(|(real, simulated)| real.max(*simulated) >= LEAST);
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

    /// Whether either has any.
    pub fn is_some(&self) -> bool {
        let any = |part: Option<f64>| part.is_some_and(|part| part > 0.0);
        any(self.real) || any(self.simulated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_only_the_simulator_has_is_not_within() {
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
