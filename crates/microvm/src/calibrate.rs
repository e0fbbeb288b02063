//! Measures the speed of this machine: the TSC's frequency, and the undisturbed speed of the workloads' dependent chain (`guest/compute.h`).
//!
//! The chain is timed in short runs and the fastest counts, as a disturbance can only prolong a run.
//! The frequency is the TSC relative to CLOCK_MONOTONIC over the whole measurement; the two are read as closely together as possible.
//! The measurement takes about 10 ms of one pCPU.
//!
//! It does not follow changes of a core's frequency relative to the TSC.
//! "Cycles" are then those at the time of the measurement, the same for all later items.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::host_library;
use crate::thread_time::monotonic_ns;

/// Length of a run: long compared with reading the TSC, short compared with a timer tick.
const STEPS_PER_RUN: u64 = 10_000;

/// Duration of the comparison of TSC and clock.
const SPAN_NS: u64 = 10_000_000;

/// Maximum number of steps in 2^20 cycles: four per cycle, which no dependent chain can reach.
const MAX_STEPS: u64 = 1 << 22;

/// Maximum frequency of the TSC: 100 GHz.
const MAX_KHZ: u64 = 100_000_000;

/// A text that is not a calibration.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "'{0}' is not a calibration; write KHZ:STEPS (the TSC's frequency, and the steps of the chain \
     in 2^20 cycles) as a ready line or a report gave it, such as 2445423:348248"
)]
pub struct NotACalibration(String);

/// Result of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    /// Frequency of the TSC in kHz.
    pub tsc_khz: u64,
    /// Steps of the dependent chain in 2^20 TSC cycles.
    pub steps_per_mebicycle: u64,
}

impl Calibration {
    /// Measures this machine.
    pub fn measure() -> Calibration {
        let (first_tsc, first_ns) = clocks();
        let mut fastest = u64::MAX;
        let (tsc, ns) = loop {
            fastest = fastest.min(host_library::time_chain(STEPS_PER_RUN)).max(1);
            let (tsc, ns) = clocks();
            if ns - first_ns >= SPAN_NS {
                break (tsc - first_tsc, ns - first_ns);
            }
        };
        let khz = u128::from(tsc) * 1_000_000 / u128::from(ns);
        Calibration {
            tsc_khz: u64::try_from(khz).map_or(MAX_KHZ, |khz| khz.clamp(1, MAX_KHZ)),
            steps_per_mebicycle: ((STEPS_PER_RUN << 20) / fastest).clamp(1, MAX_STEPS),
        }
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.tsc_khz, self.steps_per_mebicycle)
    }
}

impl FromStr for Calibration {
    type Err = NotACalibration;

    fn from_str(text: &str) -> Result<Calibration, NotACalibration> {
        let number = |text: &str, most: u64| {
            let value: u64 = text.parse().ok()?;
            (1..=most).contains(&value).then_some(value)
        };
        text.split_once(':')
            .and_then(|(khz, steps)| {
                Some(Calibration {
                    tsc_khz: number(khz, MAX_KHZ)?,
                    steps_per_mebicycle: number(steps, MAX_STEPS)?,
                })
            })
            .ok_or_else(|| NotACalibration(text.to_owned()))
    }
}

/// Reads the TSC and the clock at one time: of several pairs, the one with the shortest gap.
fn clocks() -> (u64, u64) {
    let pair = || {
        let before = host_library::tsc();
        let ns = monotonic_ns();
        (host_library::tsc().wrapping_sub(before), before, ns)
    };
    let (gap, before, ns) = (0..5).map(|_| pair()).min().unwrap_or_else(pair);
    (before + gap / 2, ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_speeds_are_plausible() {
        let c = Calibration::measure();
        // 100 MHz to 10 GHz; one multiplication and one addition take 1 to 100 cycles.
        assert!((100_000..10_000_000).contains(&c.tsc_khz), "{c:?}");
        assert!(((1 << 20) / 100..1 << 20).contains(&c.steps_per_mebicycle), "{c:?}");
    }
}
