//! Comparison of the simulator's thread scheduling with the running kernel's.
//!
//! The same thread programs run as plain threads on CPUs 0 and 1 (`real`) and in the simulator (`simulated`).
//! The simulator is in `native` mode with two CPUs and the running kernel's scheduler and tick.
//! First, other programs measure the costs of the kernel's work on this machine (`costs`).
//! The comparison uses ratios: the run time of each role of a program relative to that of two threads that only compute.
//! Real runs of the programs and of this reference are interleaved.
//! Medians of the ratios reduce the effect of a temporary slowdown of the machine.
//!
//! Programs may also run in several cgroups at the same time (`groups`), which needs root.
//! For their roles that sleep, wake-up latencies are compared too.
//!
//! The machine must be quiet, because background load takes time from the real programs only.
//! The report has the load average before the measurement.

mod costs;
mod cpus;
mod groups;
mod naps;
mod objects;
mod places;
mod real;
mod report;
mod simulated;
mod workloads;

use std::io;
use std::path::Path;
use std::time::Duration;

use tandem_model::Nanos;
use tandem_model::averages;
use tandem_sim::machine::TimerSteals;
use tandem_sim::scenario::load::LoadError;
use tandem_sim::workload::{Workload, parse};
use thiserror::Error;

pub use costs::{CostError, Found};
pub use cpus::{CPUS, CpuError};
pub use groups::{Case, Group, GroupsError};
pub use places::PlaceError;
pub use real::RealError;
pub use report::{Comparison, Program, RoleRatio, TOLERANCE, WAKE_TOLERANCE, WakeRatio, text};
pub use simulated::SimulatedError;
pub use workloads::{WorkloadsError, read};

use crate::event::{Event, Tell};
use crate::rest::{Rest, Waits};
use crate::this_kernel;
use cpus::Speed;
use groups::RoleRun;
use naps::{Napped, Naps};
use places::Places;
use real::Nothing;
use simulated::Machine;

/// The reference program.
const REFERENCE: &str = "[[role]]\nname = \"compute\"\nthreads = 2\npins = [0, 1]\n\
                         program = [{ repeat = 20, do = [{ compute = \"5ms\" }] }]";

/// Error of a comparison.
#[derive(Debug, Error)]
pub enum CompareError {
    /// This process may use too few CPUs.
    #[error("the comparison needs CPUs 0 and 1; this process may use {0} CPU")]
    Cpus(usize),
    /// The kernel release cannot be read.
    #[error("cannot read the release of the running kernel: {0}")]
    Release(#[source] io::Error),
    /// A built-in program is not a valid workload.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The costs of the kernel's work could not be measured.
    #[error(transparent)]
    Costs(#[from] CostError),
    /// The speed of the CPUs could not be measured.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// A real run failed.
    #[error(transparent)]
    Real(#[from] RealError),
    /// A simulated run failed.
    #[error(transparent)]
    Simulated(#[from] SimulatedError),
    /// Cgroups could not be created or removed.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// Compares the cases that [`read`] accepted, with `runs` real runs of each.
///
/// Cgroups are journaled in `state_dir`.
/// If they cannot be created, the cases that need them are omitted and the comparison has the reason.
pub fn compare(
    cases: &[Case],
    runs: u32,
    state_dir: &Path,
    tell: Tell,
) -> Result<Comparison, CompareError> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < CPUS as usize {
        return Err(CompareError::Cpus(cpus));
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_err(CompareError::Release)?
        .trim()
        .to_owned();
    let load_average = this_kernel::load_average();
    let (mut places, left_out) = places(cases, state_dir);
    let cases: Vec<&Case> =
        cases.iter().filter(|case| places.is_some() || matches!(case, Case::Threads(_))).collect();
    let mut machine = Machine::new(&release)?;
    tell(Event::Costs);
    let mut calibration = costs::find(&mut machine)?;
    let naps = cases.iter().map(|case| match case {
        Case::Threads(_) => Ok(None),
        Case::Groups { groups, .. } => Naps::like(groups),
    });
    let naps = naps.collect::<Result<Vec<Option<Naps>>, _>>()?;
    let reference = parse::from_text("reference", REFERENCE)?;
    let rounds = measure(&cases, &reference, &naps, runs, &mut places, tell);
    let left = places.map_or(Ok(()), Places::leave);
    let rounds = rounds?;
    left?;
    machine.rest = Rest::of(rounds.iter().map(|r| r.waits).fold(Waits::default(), Waits::and));
    let mut steals: Vec<Vec<TimerSteals>> = Vec::new();
    for (number, naps) in naps.iter().enumerate() {
        let napped: Vec<&Napped> = rounds.iter().map(|round| &round.naps[number]).collect();
        steals.push(match naps {
            Some(naps) => naps.steals(&machine, &napped)?,
            None => Vec::new(),
        });
    }
    calibration.extend(naps::found(steals.iter().flatten()));
    let reference_simulated = last(&simulated_ends(&machine, &reference)?);
    let (mut programs, mut wakes) = (Vec::new(), Vec::new());
    for (number, case) in cases.iter().enumerate() {
        let real: Vec<(&[RoleRun], f64)> =
            rounds.iter().map(|round| (round.roles[number].as_slice(), round.reference)).collect();
        machine.steals = steals[number].clone();
        let simulated = simulated_roles(&machine, case, runs)?;
        let mut roles = Vec::new();
        for (r, role) in names(case).into_iter().enumerate() {
            let woken: Vec<&[u64]> = real.iter().map(|(roles, _)| &*roles[r].wakes).collect();
            let in_simulator: Vec<&[u64]> = simulated.iter().map(|run| &*run[r].wakes).collect();
            wakes.extend(WakeRatio::of(name(case), &role, &woken, &in_simulator));
            let ends = simulated.iter().map(|run| run[r].finished.0 as f64);
            let simulated_ratio = median(ends) / reference_simulated;
            roles.push(ratio(role, r, &real, simulated_ratio));
        }
        programs.push(Program {
            name: name(case).to_owned(),
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
        wakes,
        rest: machine.rest,
        left_out,
    })
}

/// Opens the place for cgroups if a case needs them; returns the reason if that fails.
fn places(cases: &[Case], state_dir: &Path) -> (Option<Places>, Option<String>) {
    let needs = |case: &&Case| matches!(case, Case::Groups { .. });
    let needing = cases.iter().filter(needs).count();
    if needing == 0 {
        return (None, None);
    }
    match Places::open(state_dir) {
        Ok(places) => (Some(places), None),
        Err(error) => {
            (None, Some(format!("{needing} cases with cgroups are not measured: {error}")))
        }
    }
}

fn name(case: &Case) -> &str {
    match case {
        Case::Threads(workload) => &workload.name,
        Case::Groups { name, .. } => name,
    }
}

/// Returns the names of a case's roles, prefixed with those of their groups.
fn names(case: &Case) -> Vec<String> {
    match case {
        Case::Threads(workload) => workload.roles.iter().map(|r| r.name.clone()).collect(),
        Case::Groups { groups, .. } => groups
            .iter()
            .map(|group| &group.workload)
            .flat_map(|workload| {
                workload.roles.iter().map(|r| format!("{}/{}", workload.name, r.name))
            })
            .collect(),
    }
}

/// Returns a role's real figures over all runs, with the simulated ratio.
fn ratio(
    role: String,
    number: usize,
    real: &[(&[RoleRun], f64)],
    simulated_ratio: f64,
) -> RoleRatio {
    let ratios = real.iter().map(|(roles, reference)| roles[number].finished.0 as f64 / reference);
    let real_ratio = median(ratios.clone());
    RoleRatio {
        role,
        real_ns: median(real.iter().map(|(roles, _)| roles[number].finished.0 as f64)),
        real_ratio,
        real_range: (ratios.clone().fold(f64::INFINITY, f64::min), ratios.fold(0.0, f64::max)),
        simulated_ratio,
        difference: simulated_ratio / real_ratio - 1.0,
    }
}

/// One real run of everything.
struct Round {
    reference: f64,
    /// Waits of the reference's threads for their CPUs, which background load caused.
    waits: Waits,
    /// Wake-up latencies before each case, of a thread that sleeps as long as the case's threads; empty if none of them sleeps.
    naps: Vec<Napped>,
    /// Results of the roles of each case.
    roles: Vec<Vec<RoleRun>>,
}

fn measure(
    cases: &[&Case],
    reference: &Workload,
    naps: &[Option<Naps>],
    runs: u32,
    places: &mut Option<Places>,
    tell: Tell,
) -> Result<Vec<Round>, CompareError> {
    let mut rounds = Vec::new();
    for run in 1..=runs {
        tell(Event::RealRun { run, runs });
        let mut roles = Vec::new();
        let mut references = Vec::new();
        let mut napped = Vec::new();
        let mut waits = Waits::default();
        for (number, case) in cases.iter().enumerate() {
            let speed = Speed::measure(reference)?;
            let ran = real::run_together(&[reference], speed, &mut Nothing, false)?;
            let ran = ran.into_iter().flatten().reduce(|all, role| RoleRun {
                finished: all.finished.max(role.finished),
                waits: all.waits.and(role.waits),
                ..all
            });
            let ran = ran.unwrap_or_default();
            references.push(ran.finished.0 as f64);
            waits = waits.and(ran.waits);
            napped.push(match (&naps[number], &mut *places) {
                (Some(naps), Some(places)) => naps.run(places, cases.len())?,
                _ => Napped::default(),
            });
            roles.push(match (case, &mut *places) {
                (Case::Groups { groups, .. }, Some(places)) => {
                    let mut inside = places.of(number, groups)?;
                    let ran = real::run_together(&case.workloads(), speed, &mut inside, true)?;
                    ran.into_iter().flatten().collect()
                }
                (Case::Threads(workload), _) => {
                    let speed = Speed::measure(workload)?;
                    alone(nanos(&real::run(workload, speed)?))
                }
                // `compare` omits these cases if there are no places.
                (Case::Groups { .. }, None) => Vec::new(),
            });
        }
        rounds.push(Round { reference: median(references), waits, naps: napped, roles });
    }
    Ok(rounds)
}

/// Returns role results with end times only, for threads without a group.
fn alone(ends: Vec<f64>) -> Vec<RoleRun> {
    let run = |finished: f64| RoleRun { finished: Nanos(finished as u64), ..RoleRun::default() };
    ends.into_iter().map(run).collect()
}

fn nanos(finished: &[Duration]) -> Vec<f64> {
    finished.iter().map(|t| t.as_nanos() as f64).collect()
}

fn last(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// Simulates a case and returns its role results by run: one run for threads without groups, `runs` for groups.
fn simulated_roles(
    machine: &Machine,
    case: &Case,
    runs: u32,
) -> Result<Vec<Vec<RoleRun>>, SimulatedError> {
    match case {
        Case::Threads(workload) => Ok(vec![alone(simulated_ends(machine, workload)?)]),
        Case::Groups { name, groups } => {
            let runs = machine.run_groups(name, groups, runs)?.into_iter();
            Ok(runs.map(|groups| groups.into_iter().flatten().collect()).collect())
        }
    }
}

fn simulated_ends(machine: &Machine, workload: &Workload) -> Result<Vec<f64>, SimulatedError> {
    let ends = machine.run(workload)?;
    Ok(ends.iter().map(|end| end.0 as f64).collect())
}

/// Returns the median, or 0 for no values.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    averages::median(values).unwrap_or(0.0)
}
