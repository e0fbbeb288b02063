//! The figures of a calibration: ratios with their intervals and errors.
//!
//! A ratio is taken within each round of real runs, so a temporary slowdown of the machine affects both of its sides.
//! Its mean and interval are over the rounds.
//! The error is the simulated ratio ÷ the mean of the real ratios − 1.

use serde::Serialize;
use tandem_experiment::statistics::Mean;
use tandem_report::Table;

use super::fit::Found;
use super::setup::Use;
use crate::rest::Rest;

/// Maximum error of a ratio.
pub const TOLERANCE: f64 = 0.15;

/// Everything measured.
#[derive(Clone, Debug, Serialize)]
pub struct Calibrated {
    /// The command line.
    pub command: String,
    /// The kernel release.
    pub kernel: String,
    /// The model of the CPU.
    pub cpu: String,
    /// The KVM module in use.
    pub kvm: String,
    /// The host's scheduler as simulated.
    pub scheduler: &'static str,
    /// Treatment of lag when a group's weight changes, as simulated.
    pub reweight: &'static str,
    /// The clock tick, ns.
    pub tick_ns: u64,
    /// Maximum halt polling, ns.
    pub halt_poll_ns: u64,
    /// Background load of the host. `None`: no load was seen.
    pub rest: Option<Rest>,
    /// Frequency of the TSC, kHz.
    pub tsc_khz: u64,
    /// The load average before the measurement.
    pub load_average: String,
    /// Lowest ÷ highest speed of computing alone over the rounds: 1 on a quiet machine.
    pub steadiness: f64,
    /// Rounds of real runs.
    pub runs: u32,
    /// Length of each run, s.
    pub seconds: f64,
    /// The fitted costs of virtualization.
    pub costs: Vec<Found>,
    /// The same as a scenario's `[machine.costs]`.
    pub machine_costs: String,
    /// The ratios.
    pub ratios: Vec<Ratio>,
    /// Counts of ratios within the tolerance.
    pub within: Within,
    /// The tolerance.
    pub tolerance: f64,
}

/// One ratio.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// The workload.
    pub workload: String,
    /// The two sides of the ratio.
    pub what: &'static str,
    /// The setup of the numerator.
    pub over: String,
    /// The setup of the denominator.
    pub under: String,
    /// Whether the workload was used in the fit.
    pub used: Use,
    /// Mean of the real ratios.
    pub real: Mean,
    /// Mean of the simulated ratios.
    pub simulated: f64,
    /// Number of rounds in which the numerator's VM started with two vCPUs on one pCPU.
    pub stacked: usize,
    /// Simulated ÷ real − 1.
    pub error: f64,
    /// Whether the error is within the tolerance.
    pub within: bool,
}

impl Ratio {
    /// Returns the mean real ratio, the mean simulated ratio and the error, from pairs of real and of simulated speeds.
    ///
    /// Returns `None` if a denominator is 0, or the mean real ratio is 0.
    pub fn figures(real: &[(f64, f64)], simulated: &[(f64, f64)]) -> Option<(Mean, f64, f64)> {
        let ratio = |&(over, under): &(f64, f64)| (under > 0.0).then(|| over / under);
        let mean = |pairs: &[(f64, f64)]| {
            let ratios: Option<Vec<f64>> = pairs.iter().map(ratio).collect();
            Mean::of(&ratios?)
        };
        let (real, simulated) = (mean(real)?, mean(simulated)?.mean);
        let error = (real.mean > 0.0).then(|| simulated / real.mean - 1.0)?;
        Some((real, simulated, error))
    }
}

/// Counts of ratios: within the tolerance, and in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Within {
    /// All ratios.
    pub all: (usize, usize),
    /// Ratios of workloads that were used in the fit.
    pub fitted: (usize, usize),
    /// Ratios of workloads that were kept out of the fit.
    pub kept_out: (usize, usize),
}

impl Within {
    /// Counts the ratios.
    pub fn of(ratios: &[Ratio]) -> Within {
        let count = |wanted: Option<Use>| {
            let mine = ratios.iter().filter(|r| wanted.is_none_or(|w| r.used == w));
            let within = mine.clone().filter(|r| r.within).count();
            (within, mine.count())
        };
        Within {
            all: count(None),
            fitted: count(Some(Use::Fitted)),
            kept_out: count(Some(Use::KeptOut)),
        }
    }
}

/// Returns the report for a terminal and for documentation.
pub fn text(calibrated: &Calibrated) -> String {
    let mut costs = Table::new(&["cost, ns", "table", "here", "found by", "real", "simulated"]);
    for found in &calibrated.costs {
        costs.row([
            found.cost.to_owned(),
            found.table.to_string(),
            found.found.to_string(),
            found.probe.to_owned(),
            format!("{:.4}", found.real),
            format!("{:.4}", found.simulated),
        ]);
    }
    let mut ratios = Table::new(&[
        "workload",
        "ratio of throughputs",
        "workload was",
        "real",
        "± 95 %",
        "simulated",
        "error",
        "stacked",
        "within 15 %",
    ]);
    for ratio in &calibrated.ratios {
        ratios.row([
            ratio.workload.clone(),
            ratio.what.to_owned(),
            ratio.used.name().to_owned(),
            format!("{:.3}", ratio.real.mean),
            ratio.real.ci95.map_or("—".to_owned(), |ci| format!("{ci:.3}")),
            format!("{:.3}", ratio.simulated),
            format!("{:+.1} %", ratio.error * 100.0),
            format!("{} of {}", ratio.stacked, calibrated.runs),
            if ratio.within { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    let Within { all, fitted, kept_out } = calibrated.within;
    format!(
        "Linux {}, {}, {}; {}, tick {} ms, halt polling up to {} µs\nload average before: {}; \
         slowest round of computing alone: {:.0} % of the fastest; {}\n\nCosts of virtualization on this machine, \
         fitted to the speed of probes relative to computing:\n\n{costs}\n\n{} runs of {} s of each setup, \
         interleaved; stacked: rounds that started with two vCPUs on one pCPU.\n\n{ratios}\n\nWithin {:.0} %: {} of {}; of workloads used in the \
         fit {} of {}, of those kept out {} of {}.",
        calibrated.kernel,
        calibrated.cpu,
        calibrated.kvm,
        calibrated.scheduler,
        calibrated.tick_ns as f64 / 1e6,
        calibrated.halt_poll_ns as f64 / 1e3,
        calibrated.load_average,
        calibrated.steadiness * 100.0,
        Rest::describe(calibrated.rest),
        calibrated.runs,
        calibrated.seconds,
        calibrated.tolerance * 100.0,
        all.0,
        all.1,
        fitted.0,
        fitted.1,
        kept_out.0,
        kept_out.1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_per_round() {
        // The ratio is 0.5 in every round, at different speeds of the machine.
        let real = [(50.0, 100.0), (20.0, 40.0), (35.0, 70.0)];
        let (mean, simulated, error) = Ratio::figures(&real, &[(6.0, 10.0), (3.0, 5.0)]).unwrap();
        assert_eq!((mean.mean, mean.ci95), (0.5, Some(0.0)));
        assert!((simulated - 0.6).abs() < 1e-12);
        assert!((error - 0.2).abs() < 1e-12, "{error}");
    }

    #[test]
    fn ratio_needs_work_of_denominator() {
        assert_eq!(Ratio::figures(&[(0.0, 1.0)], &[(1.0, 1.0)]), None);
        assert_eq!(Ratio::figures(&[(1.0, 1.0)], &[(1.0, 0.0)]), None);
        assert_eq!(Ratio::figures(&[], &[(1.0, 1.0)]), None);
        // A numerator of 0 in one of two rounds is a valid measurement.
        let (mean, _, _) = Ratio::figures(&[(0.0, 1.0), (1.0, 1.0)], &[(1.0, 1.0)]).unwrap();
        assert_eq!(mean.mean, 0.5);
    }

    #[test]
    fn kept_out_workloads_are_counted_separately() {
        let ratio = |used, within| Ratio {
            workload: "burn".to_owned(),
            what: "a ÷ b",
            over: String::new(),
            under: String::new(),
            used,
            real: Mean { mean: 1.0, ci95: None },
            simulated: 1.0,
            stacked: 0,
            error: 0.0,
            within,
        };
        let ratios =
            [ratio(Use::Fitted, true), ratio(Use::KeptOut, false), ratio(Use::KeptOut, true)];
        let within = Within::of(&ratios);
        assert_eq!(within.all, (2, 3));
        assert_eq!(within.fitted, (1, 1));
        assert_eq!(within.kept_out, (1, 2));
    }
}
