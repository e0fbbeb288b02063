//! The figures of a comparison, and their tables.

use serde::Serialize;
use tandem_model::averages;
use tandem_report::Table;

use super::costs::Found;
use crate::rest::Rest;

/// Maximum difference of a ratio.
pub const TOLERANCE: f64 = 0.10;

/// Run time of the reference relative to the simulated one above which the machine counts as busy.
const BUSY: f64 = 1.15;

/// Maximum difference of a quantile of wake-up latency.
pub const WAKE_TOLERANCE: f64 = 0.25;

/// Everything measured.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The kernel release.
    pub kernel: String,
    /// Clock tick of the kernel, ns.
    pub tick_ns: u64,
    /// The load average before the measurement.
    pub load_average: String,
    /// Real runs of each program.
    pub runs: u32,
    /// Run time of the reference, ns: median of its real runs.
    pub reference_real_ns: f64,
    /// Simulated run time of the reference, ns.
    pub reference_simulated_ns: f64,
    /// Costs of the kernel's work on this machine.
    pub calibration: Vec<Found>,
    /// The programs.
    pub programs: Vec<Program>,
    /// Number of programs within the tolerance.
    pub within: usize,
    /// Wake-up latencies after sleeps, where measured.
    pub wakes: Vec<WakeRatio>,
    /// Background load, as simulated next to cgroups. `None`: no load was seen, or the kernel does not account for it.
    pub rest: Option<Rest>,
    /// Reason for omitted cases.
    pub left_out: Option<String>,
}

/// One program.
#[derive(Clone, Debug, Serialize)]
pub struct Program {
    /// Name of the program.
    pub name: String,
    /// Roles of the program.
    pub roles: Vec<RoleRatio>,
    /// Whether all roles are within the tolerance.
    pub within: bool,
}

/// One role of a program.
#[derive(Clone, Debug, Serialize)]
pub struct RoleRatio {
    /// Name of the role.
    pub role: String,
    /// Run time, ns: median of the real runs.
    pub real_ns: f64,
    /// Median over the real runs of the run time relative to the reference.
    pub real_ratio: f64,
    /// Smallest and largest ratio of the real runs.
    pub real_range: (f64, f64),
    /// The simulated ratio.
    pub simulated_ratio: f64,
    /// Simulated ÷ real − 1.
    pub difference: f64,
}

/// Wake-up latency: time from the end of a sleep to the thread's next instruction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WakeRatio {
    /// The program.
    pub program: String,
    /// The role.
    pub role: String,
    /// Median over the real runs of each run's median, ns.
    pub real_p50_ns: f64,
    /// The same in the simulator.
    pub simulated_p50_ns: f64,
    /// Median over the real runs of each run's 99th percentile, ns.
    pub real_p99_ns: f64,
    /// The same in the simulator.
    pub simulated_p99_ns: f64,
    /// Mean number per real run of latencies of at least 0.2 ms, which are waits for a slice or the tick.
    pub real_late: f64,
    /// The same in the simulator.
    pub simulated_late: f64,
    /// Mean number of wake-ups per real run.
    pub of: f64,
    /// Whether both quantiles are within the tolerance.
    pub within: bool,
}

/// Latency from which a wake-up counts as late, ns; on an uncontended CPU hardly any is.
pub(super) const LATE: u64 = 200_000;

impl WakeRatio {
    /// Compares real and simulated runs; `None` if one of them has no wake-ups.
    pub(super) fn of(
        program: &str,
        role: &str,
        real: &[&[u64]],
        simulated: &[&[u64]],
    ) -> Option<WakeRatio> {
        let of = |runs: &[&[u64]], part: f64| -> Option<f64> {
            let each: Option<Vec<f64>> = runs.iter().map(|run| quantile(run, part)).collect();
            averages::median(each?)
        };
        let (real_p50_ns, real_p99_ns) = (of(real, 0.5)?, of(real, 0.99)?);
        let (simulated_p50_ns, simulated_p99_ns) = (of(simulated, 0.5)?, of(simulated, 0.99)?);
        let mean = |runs: &[&[u64]], least: u64| {
            let counts = runs.iter().map(|run| run.iter().filter(|&&wake| wake >= least).count());
            counts.sum::<usize>() as f64 / runs.len().max(1) as f64
        };
        let is_near = |simulated: f64, real: f64| (simulated / real - 1.0).abs() <= WAKE_TOLERANCE;
        Some(WakeRatio {
            program: program.to_owned(),
            role: role.to_owned(),
            real_p50_ns,
            simulated_p50_ns,
            real_p99_ns,
            simulated_p99_ns,
            real_late: mean(real, LATE),
            simulated_late: mean(simulated, LATE),
            of: mean(real, 0),
            within: is_near(simulated_p50_ns, real_p50_ns)
                && is_near(simulated_p99_ns, real_p99_ns),
        })
    }
}

/// Returns the `part` quantile (nearest rank).
fn quantile(times: &[u64], part: f64) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(place.max(1) - 1).map(|&time| time as f64)
}

/// Returns the report for a terminal.
pub fn text(comparison: &Comparison) -> String {
    let mut costs = Table::new(&["cost, ns", "table", "measured here"]);
    for found in &comparison.calibration {
        let measured = found.measured.map_or("—".to_owned(), |ns| ns.to_string());
        costs.row([found.cost.to_owned(), found.table.to_string(), measured]);
    }
    let mut ratios = Table::new(&[
        "program",
        "role",
        "real",
        "real ratio",
        "real runs",
        "simulated ratio",
        "difference",
        "within 10 %",
    ]);
    for program in &comparison.programs {
        for role in &program.roles {
            let within = if role.difference.abs() <= TOLERANCE { "yes" } else { "NO" };
            ratios.row([
                program.name.clone(),
                role.role.clone(),
                format!("{:.1} ms", role.real_ns / 1e6),
                format!("{:.3}", role.real_ratio),
                format!("{:.3} … {:.3}", role.real_range.0, role.real_range.1),
                format!("{:.3}", role.simulated_ratio),
                format!("{:+.1} %", role.difference * 100.0),
                within.to_owned(),
            ]);
        }
    }
    let wakes = wakes(comparison);
    let busy = match comparison.reference_real_ns / comparison.reference_simulated_ns {
        longer if longer > BUSY => format!(
            " **The machine was busy: the reference took {longer:.1} times its run time on two idle CPUs. The figures below are unreliable; \
             stop other programs and repeat the measurement.**"
        ),
        _ => String::new(),
    };
    let left_out = comparison.left_out.iter();
    let left_out: String = left_out.map(|why| format!("\n\n{why}")).collect();
    format!(
        "Linux {}, tick {} ms, load average before: {}\n\n{costs}\n\nReference: two threads \
         computing, {:.1} ms real, {:.1} ms simulated; medians of {} runs; {}.{busy}\n\n{ratios}\n\n{} of {} \
         programs are within {} % in every role.{wakes}{left_out}",
        comparison.kernel,
        comparison.tick_ns as f64 / 1e6,
        comparison.load_average,
        comparison.reference_real_ns / 1e6,
        comparison.reference_simulated_ns / 1e6,
        comparison.runs,
        Rest::describe(comparison.rest),
        comparison.within,
        comparison.programs.len(),
        TOLERANCE * 100.0,
    )
}

/// Returns the table of wake-up latencies, or an empty text if there are none.
fn wakes(comparison: &Comparison) -> String {
    let mut table = Table::new(&[
        "program",
        "role",
        "p50, µs",
        "simulated",
        "p99, µs",
        "simulated",
        "over 0.2 ms",
        "simulated",
        "within 25 %",
    ]);
    for wake in &comparison.wakes {
        let us = |ns: f64| format!("{:.1}", ns / 1e3);
        table.row([
            wake.program.clone(),
            wake.role.clone(),
            us(wake.real_p50_ns),
            us(wake.simulated_p50_ns),
            us(wake.real_p99_ns),
            us(wake.simulated_p99_ns),
            format!("{:.1} of {:.0}", wake.real_late, wake.of),
            format!("{:.1}", wake.simulated_late),
            if wake.within { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    if comparison.wakes.is_empty() {
        String::new()
    } else {
        format!("\n\nFrom the end of a sleep to the thread's next instruction:\n\n{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_values() {
        let hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(quantile(&hundred, 0.5), Some(50.0));
        assert_eq!(quantile(&hundred, 0.99), Some(99.0));
        assert_eq!(quantile(&[7], 0.5), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    /// Returns whether the report marks a machine as busy on which the reference took `times` its simulated run time.
    fn is_marked_busy(times: f64) -> bool {
        let comparison = Comparison {
            kernel: "6.12".to_owned(),
            tick_ns: 4_000_000,
            load_average: "0.00".to_owned(),
            runs: 3,
            reference_real_ns: 1e8 * times,
            reference_simulated_ns: 1e8,
            calibration: Vec::new(),
            programs: Vec::new(),
            within: 0,
            wakes: Vec::new(),
            rest: None,
            left_out: None,
        };
        text(&comparison).contains(&format!("busy: the reference took {times:.1} times"))
    }

    #[test]
    fn busy_machine_is_marked() {
        assert!(!is_marked_busy(0.9) && !is_marked_busy(1.1));
        assert!(is_marked_busy(1.2) && is_marked_busy(3.0));
    }

    #[test]
    fn both_quantiles_must_be_within_tolerance() {
        let real = [vec![100, 100, 1000], vec![120, 120, 1000], vec![110, 110, 1000]];
        let real: Vec<&[u64]> = real.iter().map(|run| &**run).collect();
        let of = |simulated: &[u64]| WakeRatio::of("a", "b", &real, &[simulated]);
        let near = of(&[100, 100, 1200]).unwrap();
        assert_eq!((near.real_p50_ns, near.real_p99_ns), (110.0, 1000.0));
        assert!(near.within);
        assert_eq!((near.real_late, near.simulated_late, near.of), (0.0, 0.0, 3.0));
        let late = of(&[100, 200_000, 300_000]).unwrap();
        assert_eq!((late.real_late, late.simulated_late), (0.0, 2.0));
        assert!(!of(&[100, 100, 1300]).unwrap().within);
        assert!(!of(&[50, 50, 1000]).unwrap().within);
        assert_eq!(of(&[]), None);
    }
}
