//! Costs of the kernel's own work on this machine, measured with small programs.
//!
//! Each program consists of one kind of kernel work.
//! It runs on the real machine, and in the simulator with the cost at zero and at 20 µs.
//! Simulated time is linear in a cost, so the line through these two points gives the cost that matches the real time.
//! Each program depends only on the costs before it; a second pass handles the few mutual dependencies.
//!
//! This is calibration: the compared programs do not include these, although naps resemble some of them.
//! It determines costs of the machine, not decisions of its scheduler.

use std::time::Duration;

use serde::Serialize;
use tandem_model::averages;
use tandem_sim::machine::Costs;
use tandem_sim::scenario::load::LoadError;
use tandem_sim::workload::{Workload, parse};
use thiserror::Error;

use super::cpus::{CpuError, Speed};
use super::places::PlaceError;
use super::real;
use super::real::RealError;
use super::simulated::{Machine, SimulatedError};

/// Error in measuring a cost.
#[derive(Debug, Error)]
pub enum CostError {
    /// The program is not a valid workload.
    #[error("calibration of {cost}: {source}")]
    Load {
        /// The cost.
        cost: &'static str,
        /// The cause.
        source: LoadError,
    },
    /// The speed of the CPUs could not be measured.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The real run failed.
    #[error(transparent)]
    Real(#[from] RealError),
    /// The simulated run failed.
    #[error(transparent)]
    Simulated(#[from] SimulatedError),
    /// The cgroups could not be created.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// The larger of the two simulated costs, ns.
const PROBE: u64 = 20_000;

/// Real runs of each program.
const RUNS: usize = 5;

struct Probe {
    cost: &'static str,
    field: fn(&mut Costs) -> &mut u64,
    program: &'static str,
}

/// The probes, in the order of measurement.
const PROBES: [Probe; 7] = [
    Probe {
        cost: "syscall",
        field: |costs| &mut costs.syscall,
        program: "[[role]]\npins = [0]\nprogram = [{ repeat = 100000, do = [\"yield\"] }]",
    },
    Probe {
        cost: "thread_switch",
        field: |costs| &mut costs.thread_switch,
        program: "[[role]]\nthreads = 2\npins = [0]\n\
                  program = [{ repeat = 50000, do = [\"yield\"] }]",
    },
    Probe {
        cost: "queue_work",
        field: |costs| &mut costs.queue_work,
        program: "[objects]\nq = { kind = \"queue\", capacity = 4 }\n[[role]]\npins = [0]\n\
                  program = [{ repeat = 50000, do = [{ put = \"q\" }, { get = \"q\" }] }]",
    },
    Probe {
        cost: "wakeup",
        field: |costs| &mut costs.wakeup,
        program: "[objects]\na = { kind = \"queue\", capacity = 1 }\n\
                  b = { kind = \"queue\", capacity = 1 }\n\
                  [[role]]\nname = \"a\"\npins = [0]\n\
                  program = [{ repeat = 20000, do = [{ put = \"a\" }, { get = \"b\" }] }]\n\
                  [[role]]\nname = \"b\"\npins = [0]\n\
                  program = [{ repeat = 20000, do = [{ get = \"a\" }, { put = \"b\" }] }]",
    },
    Probe {
        cost: "futex_work",
        field: |costs| &mut costs.futex_work,
        program: "[objects]\na = { kind = \"semaphore\", units = 0 }\n\
                  b = { kind = \"semaphore\", units = 0 }\n\
                  [[role]]\nname = \"a\"\npins = [0]\n\
                  program = [{ repeat = 20000, do = [{ release = \"a\" }, { acquire = \"b\" }] }]\n\
                  [[role]]\nname = \"b\"\npins = [0]\n\
                  program = [{ repeat = 20000, do = [{ acquire = \"a\" }, { release = \"b\" }] }]",
    },
    Probe {
        cost: "native_idle_wake",
        field: |costs| &mut costs.native_idle_wake,
        program: "[objects]\na = { kind = \"queue\", capacity = 1 }\n\
                  b = { kind = \"queue\", capacity = 1 }\n\
                  [[role]]\nname = \"a\"\npins = [0]\n\
                  program = [{ repeat = 5000, do = [{ put = \"a\" }, { get = \"b\" }] }]\n\
                  [[role]]\nname = \"b\"\npins = [1]\n\
                  program = [{ repeat = 5000, do = [{ get = \"a\" }, { put = \"b\" }] }]",
    },
    Probe {
        cost: "timer_slack",
        field: |costs| &mut costs.timer_slack,
        program: "[[role]]\npins = [0]\nprogram = [{ repeat = 300, do = [{ sleep = \"500us\" }] }]",
    },
];

/// A measured cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Found {
    /// Key in the table of costs.
    pub cost: &'static str,
    /// Value in the table, ns.
    pub table: u64,
    /// Measured value, ns; `None` if the simulated program does not depend on the cost.
    pub measured: Option<u64>,
}

/// Measures the costs and stores them in the simulated machine.
pub fn find(machine: &mut Machine) -> Result<Vec<Found>, CostError> {
    let table = *machine.costs();
    let mut programs = Vec::new();
    for probe in &PROBES {
        let cost = probe.cost;
        let workload = parse::from_text(cost, probe.program)
            .map_err(|source| CostError::Load { cost, source })?;
        let mut times: Vec<f64> = Vec::new();
        for _ in 0..RUNS {
            let finished = real::run(&workload, Speed::measure(&workload)?)?;
            times.push(last(&finished));
        }
        programs.push((probe, workload, averages::median(times).unwrap_or(0.0)));
    }
    let mut found = [None; PROBES.len()];
    for _ in 0..2 {
        for ((probe, workload, real), found) in programs.iter().zip(&mut found) {
            let low = simulated(machine, probe, workload, 0)?;
            let high = simulated(machine, probe, workload, PROBE)?;
            let per_ns = (high - low) / PROBE as f64;
            *found = (per_ns > 0.0).then(|| ((real - low) / per_ns).max(0.0).round() as u64);
            // Keeps the table's value if the program does not depend on the cost.
            let cost = found.unwrap_or(*(probe.field)(&mut table.clone()));
            *(probe.field)(machine.costs()) = cost;
        }
    }
    let found = PROBES.iter().zip(found).map(|(probe, measured)| Found {
        cost: probe.cost,
        table: *(probe.field)(&mut table.clone()),
        measured,
    });
    Ok(found.collect())
}

/// Returns the end time of the last role, ns.
fn last(finished: &[Duration]) -> f64 {
    finished.iter().max().map_or(0.0, |t| t.as_nanos() as f64)
}

fn simulated(
    machine: &mut Machine,
    probe: &Probe,
    workload: &Workload,
    cost: u64,
) -> Result<f64, SimulatedError> {
    *(probe.field)(machine.costs()) = cost;
    let finished = machine.run(workload)?;
    Ok(finished.iter().map(|t| t.0).max().unwrap_or(0) as f64)
}
