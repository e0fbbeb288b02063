//! The figures of a comparison, and their tables.

use serde::Serialize;
use tandem_report::Table;

use super::costs::Found;

/// A ratio may be off by so much.
pub const TOLERANCE: f64 = 0.10;

/// Everything measured.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The kernel's release.
    pub kernel: String,
    /// Its clock tick, ns.
    pub tick_ns: u64,
    /// What it said of the load before the measurement.
    pub load_average: String,
    /// Real runs of each program.
    pub runs: u32,
    /// How long the reference took, ns: the median of its real runs.
    pub reference_real_ns: f64,
    /// And in the simulator.
    pub reference_simulated_ns: f64,
    /// What the kernel's work costs here.
    pub calibration: Vec<Found>,
    /// The programs.
    pub programs: Vec<Program>,
    /// How many of them are within the tolerance.
    pub within: usize,
}

/// One program.
#[derive(Clone, Debug, Serialize)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its roles.
    pub roles: Vec<RoleRatio>,
    /// Whether all its roles are within the tolerance.
    pub within: bool,
}

/// One role of a program.
#[derive(Clone, Debug, Serialize)]
pub struct RoleRatio {
    /// Its name.
    pub role: String,
    /// How long it took, ns: the median of the real runs.
    pub real_ns: f64,
    /// The same over the reference's time.
    pub real_ratio: f64,
    /// Smallest and largest ratio of the real runs.
    pub real_range: (f64, f64),
    /// The simulated ratio.
    pub simulated_ratio: f64,
    /// Simulated over real, less one.
    pub difference: f64,
}

/// The report for a terminal.
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
            let within = match role.difference.abs() <= TOLERANCE {
                true => "yes",
                false => "NO",
            };
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
    format!(
        "Linux {}, tick {} ms, load average before: {}\n\n{costs}\n\nReference: two threads \
         computing, {:.1} ms real, {:.1} ms simulated; medians of {} runs.\n\n{ratios}\n\n{} of {} \
         programs are within {} % in every role.",
        comparison.kernel,
        comparison.tick_ns as f64 / 1e6,
        comparison.load_average,
        comparison.reference_real_ns / 1e6,
        comparison.reference_simulated_ns / 1e6,
        comparison.runs,
        comparison.within,
        comparison.programs.len(),
        TOLERANCE * 100.0,
    )
}
