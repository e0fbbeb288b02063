//! Does the simulator schedule threads as the kernel that runs here does?
//!
//! The same thread programs run as plain threads on CPUs 0 and 1 (`real`) and in the simulator's
//! `native` mode with two CPUs and the running kernel's scheduler and tick (`simulated`). What the
//! kernel's work costs on this machine is measured first by other programs (`costs`). Compared
//! are ratios: each program's run time, and that of each of its roles, over the run time of two
//! threads that only compute. Real runs are interleaved, the reference with them, and medians of the
//! ratios are taken, so that a machine that is slower for a while matters little.
//!
//! It needs a quiet machine: whatever else runs takes time from the real programs only. The load
//! before the measurement is part of the report.

mod costs;
mod cpus;
mod objects;
mod real;
mod report;
mod simulated;
mod workloads;

use std::io;

use tandem_experiment::averages;
use tandem_sim::scenario::load::LoadError;
use tandem_sim::workload::Workload;
use tandem_sim::workload::parse;
use thiserror::Error;

pub use costs::CostError;
pub use costs::Found;
pub use cpus::CPUS;
pub use cpus::CpuError;
pub use real::RealError;
pub use report::Comparison;
pub use report::Program;
pub use report::RoleRatio;
pub use report::TOLERANCE;
pub use report::text;
pub use simulated::SimulatedError;
pub use workloads::WorkloadsError;
pub use workloads::read;

use crate::event::Event;
use crate::event::Tell;
use crate::this_kernel;
use cpus::Speed;
use simulated::Machine;

/// The program that others are set against.
const REFERENCE: &str = "[[role]]\nname = \"compute\"\nthreads = 2\npins = [0, 1]\n\
                         program = [{ repeat = 20, do = [{ compute = \"5ms\" }] }]";

/// Why nothing was compared.
#[derive(Debug, Error)]
pub enum CompareError {
    /// There are too few CPUs.
    #[error("the comparison needs CPUs 0 and 1; this process may use {0} CPU")]
    Cpus(usize),
    /// The kernel does not say which it is.
    #[error("cannot read which kernel runs here: {0}")]
    Release(#[source] io::Error),
    /// A program of this crate is no workload.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// What the kernel's work costs could not be found.
    #[error(transparent)]
    Costs(#[from] CostError),
    /// How fast the CPUs are could not be measured.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// A program did not run here.
    #[error(transparent)]
    Real(#[from] RealError),
    /// A program did not run in the simulator.
    #[error(transparent)]
    Simulated(#[from] SimulatedError),
}

/// Compares workloads that [`read`] accepted, by so many real runs of each.
pub fn compare(workloads: &[Workload], runs: u32, tell: Tell) -> Result<Comparison, CompareError> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < CPUS as usize {
        return Err(CompareError::Cpus(cpus));
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_err(CompareError::Release)?
        .trim()
        .to_owned();
    let load_average = this_kernel::load_average();
    let mut machine = Machine::new(&release)?;
    tell(Event::Costs);
    let calibration = costs::find(&mut machine)?;
    let reference = parse::from_text("reference", REFERENCE)?;
    let rounds = measure(workloads, &reference, runs, tell)?;
    let reference_simulated = last(&simulated_ends(&machine, &reference)?);
    let mut programs = Vec::new();
    for (w, workload) in workloads.iter().enumerate() {
        let simulated = simulated_ends(&machine, workload)?;
        let roles = workload.roles.iter().enumerate().map(|(r, role)| {
            let ratios = rounds.iter().map(|x| x.times[w][r] / x.reference);
            let real_ratio = median(ratios.clone());
            let simulated_ratio = simulated[r] / reference_simulated;
            RoleRatio {
                role: role.name.clone(),
                real_ns: median(rounds.iter().map(|x| x.times[w][r])),
                real_ratio,
                real_range: (
                    ratios.clone().fold(f64::INFINITY, f64::min),
                    ratios.fold(0.0, f64::max),
                ),
                simulated_ratio,
                difference: simulated_ratio / real_ratio - 1.0,
            }
        });
        let roles: Vec<RoleRatio> = roles.collect();
        programs.push(Program {
            name: workload.name.clone(),
            within: roles.iter().all(|r| r.difference.abs() <= TOLERANCE),
            roles,
        });
    }
    Ok(Comparison {
        kernel: release,
        tick_ns: this_kernel::tick().0,
        load_average,
        runs,
        reference_real_ns: median(rounds.iter().map(|round| round.reference)),
        reference_simulated_ns: reference_simulated,
        calibration,
        within: programs.iter().filter(|p| p.within).count(),
        programs,
    })
}

/// One real run of everything.
struct Round {
    reference: f64,
    /// For each workload and role when it ended, ns.
    times: Vec<Vec<f64>>,
}

fn measure(
    workloads: &[Workload],
    reference: &Workload,
    runs: u32,
    tell: Tell,
) -> Result<Vec<Round>, CompareError> {
    let mut rounds = Vec::new();
    for run in 1..=runs {
        tell(Event::RealRun { run, runs });
        let mut times = Vec::new();
        let mut references = Vec::new();
        for workload in workloads {
            let speed = Speed::measure(reference)?;
            references.push(last(&nanos(&real::run(reference, speed)?)));
            let speed = Speed::measure(workload)?;
            times.push(nanos(&real::run(workload, speed)?));
        }
        rounds.push(Round {
            reference: median(references),
            times,
        });
    }
    Ok(rounds)
}

fn nanos(finished: &[std::time::Duration]) -> Vec<f64> {
    finished.iter().map(|t| t.as_nanos() as f64).collect()
}

fn last(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

fn simulated_ends(machine: &Machine, workload: &Workload) -> Result<Vec<f64>, SimulatedError> {
    let ends = machine.run(workload)?;
    Ok(ends.iter().map(|end| end.0 as f64).collect())
}

/// The median, zero of nothing.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    averages::median(values).unwrap_or(0.0)
}
