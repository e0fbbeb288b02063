//! What the kernel's own work costs on this machine, measured by small programs.
//!
//! Each program consists of one kind of kernel work. It is run for real, and in the simulator with the
//! cost in question at zero and at 20 µs; simulated time is linear in a cost, so the line through these
//! two gives the cost at which the simulated time is the real one. Costs are found in an order in
//! which each program needs only those before it, twice over, since a few depend on each other.
//!
//! This is calibration: the programs here are not among those that are compared. It finds what a
//! machine costs, not how its scheduler decides.

use std::time::Duration;

use serde::Serialize;
use tandem_experiment::averages;
use tandem_sim::machine::Costs;
use tandem_sim::scenario::load::LoadError;
use tandem_sim::workload::Workload;
use tandem_sim::workload::parse;
use thiserror::Error;

use super::cpus::CpuError;
use super::cpus::Speed;
use super::groups::Group;
use super::groups::RoleRun;
use super::groups::USUAL_WEIGHT;
use super::places::PlaceError;
use super::places::Places;
use super::real;
use super::real::RealError;
use super::simulated::Machine;
use super::simulated::SimulatedError;

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

/// A thread that sleeps, on one CPU with a thread of another cgroup that computes. It sleeps for as long as programs do of which wake-ups are compared:
/// the longer, the colder are its caches and the kernel's.
const NAPS: [&str; 2] = [
    "[[role]]\nname = \"sleeper\"\npins = [0]\nprogram = [{ repeat = 100, do = [{ compute = \"20us\" }, { sleep = \"3ms\" }] }]",
    "[[role]]\nname = \"hog\"\npins = [0]\nprogram = [{ repeat = 85, do = [{ compute = \"4ms\" }] }]",
];

/// Groups that show how much later than it is due a timer wakes a thread on a busy CPU that wants to be woken on time.
pub struct Naps {
    groups: [Group; 2],
}

impl Naps {
    const COST: &str = "timer_late";

    /// The groups, each with the usual weight.
    pub fn new() -> Result<Naps, CostError> {
        let group = |text: &str| -> Result<Group, CostError> {
            let workload = parse::from_text(Naps::COST, text);
            Ok(Group {
                weight: USUAL_WEIGHT,
                workload: workload.map_err(|source| CostError::Load {
                    cost: Naps::COST,
                    source,
                })?,
            })
        };
        let [sleeper, hog] = NAPS;
        Ok(Naps {
            groups: [group(sleeper)?, group(hog)?],
        })
    }

    /// What a wake-up takes here, ns: the median of one run. Its cgroups are made as those of a case of this number.
    pub fn run(&self, places: &mut Places, number: usize) -> Result<Option<f64>, CostError> {
        let workloads: Vec<&Workload> = self.groups.iter().map(|group| &group.workload).collect();
        let speed = Speed::measure(&self.groups[1].workload)?;
        let mut inside = places.of(number, &self.groups)?;
        let ran = real::run_together(&workloads, speed, &mut inside, true)?;
        Ok(median_wake(&ran))
    }

    /// What that is beyond what waking and switching cost, put into the simulated machine.
    pub fn timer_late(&self, machine: &mut Machine, real: f64) -> Result<Found, CostError> {
        machine.timer_late = 0;
        let simulated = machine.run_groups(Naps::COST, &self.groups, 1)?;
        let simulated = simulated.first().and_then(|run| median_wake(run));
        let late = real - simulated.unwrap_or(0.0);
        machine.timer_late = late.max(0.0).round() as u64;
        Ok(Found {
            cost: Naps::COST,
            table: 0,
            measured: Some(machine.timer_late),
        })
    }
}

/// The median of what the first role waited after its sleeps, ns.
fn median_wake(ran: &[Vec<RoleRun>]) -> Option<f64> {
    let wakes = &ran.first()?.first()?.wakes;
    averages::median(wakes.iter().map(|&wake| wake as f64))
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
