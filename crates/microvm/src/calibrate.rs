//! How fast this machine is: the TSC's frequency, and how many steps of the workloads' dependent
//! chain (`guest/compute.h`) take how many TSC cycles when nothing disturbs them.
//!
//! The chain is timed in short runs and the fastest counts: a disturbance can only make a run
//! longer. The frequency is the TSC against CLOCK_MONOTONIC over the whole measurement, each read
//! together with the other as closely as could be had. The measurement takes some 10 ms of one pCPU.
//!
//! What it does not do: follow a core whose frequency changes relative to the TSC. Then "cycles"
//! are those of the moment of the measurement, the same for every item that is computed after.

use serde::Deserialize;
use serde::Serialize;

use crate::shared;
use crate::thread_time::monotonic_ns;

/// One run: long against reading the TSC, short against a timer tick.
const STEPS_PER_RUN: u64 = 10_000;

/// How long the TSC is compared with the clock.
const SPAN_NS: u64 = 10_000_000;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    /// Frequency of the TSC in kHz.
    pub tsc_khz: u64,
    /// Steps of the dependent chain in 2^20 TSC cycles.
    pub steps_per_mebicycle: u64,
}

impl Calibration {
    /// Measures this machine now.
    pub fn measure() -> Calibration {
        let (first_tsc, first_ns) = clocks();
        let mut fastest = u64::MAX;
        let (tsc, ns) = loop {
            fastest = fastest.min(shared::time_chain(STEPS_PER_RUN)).max(1);
            let (tsc, ns) = clocks();
            if ns - first_ns >= SPAN_NS {
                break (tsc - first_tsc, ns - first_ns);
            }
        };
        let khz = u128::from(tsc) * 1_000_000 / u128::from(ns);
        Calibration {
            tsc_khz: u64::try_from(khz).unwrap_or(u64::MAX).max(1),
            steps_per_mebicycle: ((STEPS_PER_RUN << 20) / fastest).max(1),
        }
    }
}

/// The TSC and the clock at one moment: the pair with the shortest time in between of a few.
fn clocks() -> (u64, u64) {
    let pair = || {
        let before = shared::tsc();
        let ns = monotonic_ns();
        (shared::tsc().wrapping_sub(before), before, ns)
    };
    let (gap, before, ns) = (0..5).map(|_| pair()).min().unwrap_or_else(pair);
    (before + gap / 2, ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_some_cycles_and_the_tsc_runs_at_a_plausible_speed() {
        let c = Calibration::measure();
        // 100 MHz to 10 GHz; one multiplication and one addition take 1 to 100 cycles.
        assert!((100_000..10_000_000).contains(&c.tsc_khz), "{c:?}");
        assert!(
            ((1 << 20) / 100..1 << 20).contains(&c.steps_per_mebicycle),
            "{c:?}"
        );
    }
}
