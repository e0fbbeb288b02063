//! What the kernel's own work costs on this machine, measured by small programs.
//!
//! Each program consists of one kind of kernel work. It is run for real, and in the simulator with the
//! cost in question at zero and at 20 µs; simulated time is linear in a cost, so the line through these
//! two gives the cost at which the simulated time is the real one. Costs are found in an order in
//! which each program needs only those before it, twice over, since a few depend on each other.
//!
//! This is calibration: the programs here are not among those that are compared, though naps are much like some. It finds what a
//! machine costs, not how its scheduler decides.

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

/// Why a cost was not found.
#[derive(Debug, Error)]
pub enum CostError {
    /// Its program is no workload.
    #[error("calibration of {cost}: {source}")]
    Load {
        /// Which cost.
        cost: &'static str,
        /// What is wrong with it.
        source: LoadError,
    },
    /// How fast the CPUs are could not be measured.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// Its program did not run here.
    #[error(transparent)]
    Real(#[from] RealError),
    /// Its program did not run in the simulator.
    #[error(transparent)]
    Simulated(#[from] SimulatedError),
    /// Its cgroups could not be made.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// The upper of the two values that the line goes through, ns.
const PROBE: u64 = 20_000;

/// Real runs of each program.
const RUNS: usize = 5;

struct Probe {
    cost: &'static str,
    field: fn(&mut Costs) -> &mut u64,
    program: &'static str,
}

/// In the order in which they are found.
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

/// A cost that was found.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Found {
    /// Its key in the table of costs.
    pub cost: &'static str,
    /// In the table, ns.
    pub table: u64,
    /// Measured here, ns; none where the simulated program does not depend on it.
    pub measured: Option<u64>,
}

/// Finds the costs and puts them into the simulated machine.
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
            // Where nothing depends on it, the table's value is as good as any.
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

/// When the last role ended, ns.
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
