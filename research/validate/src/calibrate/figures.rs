//! The figures of a calibration: ratios with their intervals, errors, and who judges what.
//!
//! A ratio is taken within each round of real runs, so that what makes the machine slower for a while
//! makes both of its sides slower; its mean and interval are those of the rounds. The error is the
//! simulated ratio over the mean of the real ones, less one.

use serde::Serialize;
use tandem_experiment::statistics::Mean;
use tandem_report::Table;

use super::fit::Found;
use super::setup::Use;
use crate::rest::Rest;

/// A ratio may be off by so much.
pub const TOLERANCE: f64 = 0.15;

/// Everything measured.
#[derive(Clone, Debug, Serialize)]
pub struct Calibrated {
    /// The command that measured it.
    pub command: String,
    /// The kernel that ran.
    pub kernel: String,
    /// The model of its CPU.
    pub cpu: String,
    /// The KVM module in use.
    pub kvm: String,
    /// The host's scheduler as simulated.
    pub scheduler: &'static str,
    /// What becomes of lag when a group's weight changes, as simulated.
    pub reweight: &'static str,
    /// The clock tick, ns.
    pub tick_ns: u64,
    /// The longest halt polling, ns.
    pub halt_poll_ns: u64,
    /// What else ran on the host. `None`: nothing was seen.
    pub rest: Option<Rest>,
    /// Frequency of the TSC, kHz.
    pub tsc_khz: u64,
    /// What the kernel said of the load before the measurement.
    pub load_average: String,
    /// The pCPUs' speed while they computed alone, lowest over highest round: 1 on a quiet machine.
    pub steadiness: f64,
    /// Rounds of real runs.
    pub runs: u32,
    /// Length of each run, s.
    pub seconds: f64,
    /// What virtualization costs here.
    pub costs: Vec<Found>,
    /// The same as a scenario's `[machine.costs]`.
    pub machine_costs: String,
    /// The ratios.
    pub ratios: Vec<Ratio>,
    /// How many are within the tolerance, and of how many: all, those of workloads that helped to
    /// find the costs, and those kept out.
    pub within: Within,
    /// The tolerance.
    pub tolerance: f64,
}

/// One ratio.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// The workload.
    pub workload: String,
    /// What is set against what.
    pub what: &'static str,
    /// The setup of the numerator.
    pub over: String,
    /// The setup of the denominator.
    pub under: String,
    /// Whether the workload helped to find the costs.
    pub used: Use,
    /// Mean of the real ratios.
    pub real: Mean,
    /// Mean of the simulated ratios.
    pub simulated: f64,
    /// In how many rounds the numerator's VM had two vCPUs on one pCPU when counting began.
    pub stacked: usize,
    /// Simulated over real, less one.
    pub error: f64,
    /// Whether it is within the tolerance.
    pub within: bool,
}

impl Ratio {
    /// Of pairs of real speeds and pairs of simulated ones; `None` where a VM that others are set against got nothing done, or all real ones:
    /// their ratio would mean nothing.
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

/// How many of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Within {
    /// Of all: within, and in all.
    pub all: (usize, usize),
    /// Of those that helped to find the costs.
    pub fitted: (usize, usize),
    /// Of those kept out.
    pub kept_out: (usize, usize),
}

impl Within {
    /// Counts them.
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

/// The report for a terminal, and for a page of documentation.
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
         slowest round of computing alone: {:.0} % of the fastest; {}\n\nWhat virtualization costs here, \
         by the speed of probes relative to computing:\n\n{costs}\n\n{} runs of {} s of each setup, \
         interleaved; stacked: how often two vCPUs began on one pCPU.\n\n{ratios}\n\nWithin {:.0} %: {} of {}; of workloads that served to find the \
         costs {} of {}, of those kept out {} of {}.",
        calibrated.kernel,
        calibrated.cpu,
        calibrated.kvm,
        calibrated.scheduler,
        calibrated.tick_ns as f64 / 1e6,
        calibrated.halt_poll_ns as f64 / 1e3,
        calibrated.load_average,
        calibrated.steadiness * 100.0,
        Rest::say(calibrated.rest),
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
    fn a_ratio_is_taken_round_by_round() {
        // Half as fast in every round, however fast the machine was.
        let real = [(50.0, 100.0), (20.0, 40.0), (35.0, 70.0)];
        let (mean, simulated, error) = Ratio::figures(&real, &[(6.0, 10.0), (3.0, 5.0)]).unwrap();
        assert_eq!((mean.mean, mean.ci95), (0.5, Some(0.0)));
        assert!((simulated - 0.6).abs() < 1e-12);
        assert!((error - 0.2).abs() < 1e-12, "{error}");
    }

    #[test]
    fn a_vm_that_got_nothing_done_has_no_ratio() {
        assert_eq!(Ratio::figures(&[(0.0, 1.0)], &[(1.0, 1.0)]), None);
        assert_eq!(Ratio::figures(&[(1.0, 1.0)], &[(1.0, 0.0)]), None);
        assert_eq!(Ratio::figures(&[], &[(1.0, 1.0)]), None);
        // In one round of two it stood still: that is a measurement.
        let (mean, _, _) = Ratio::figures(&[(0.0, 1.0), (1.0, 1.0)], &[(1.0, 1.0)]).unwrap();
        assert_eq!(mean.mean, 0.5);
    }

    #[test]
    fn kept_out_workloads_are_judged_by_themselves() {
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
