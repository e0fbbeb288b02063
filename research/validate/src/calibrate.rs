//! Comparison of simulated VMs with real ones on this machine.
//!
//! MicroVMs run on two pCPUs of this machine's KVM (`real`).
//! The same setups run in the simulator (`simulated`) with the running kernel's scheduler, tick and halt polling.
//! The comparison uses ratios of throughputs (`setup`): two VMs relative to one, spinning to blocking, pinned to unpinned,
//! two vCPUs to one, and weights.
//! Absolute figures are out of scope, because the simulator does not model the speed of a machine.
//!
//! First, probes (`fit`) determine the costs of virtualization on this machine; the costs are part of the output.
//! Workloads without a probe are kept out of the fit and counted separately (`figures`).
//!
//! The simulation of a run starts with the placement of the vCPUs at the start of the real measurement.
//! Two vCPUs of a VM that share a pCPU may stay stacked for seconds.
//! The background load of the machine is measured with VMs that compute alone, and simulated as a VM (`simulated`).
//!
//! Real runs are interleaved, every other round in reverse order, so a slowdown of the machine affects both sides of a ratio.
//! The machine must be quiet nevertheless, because background load takes time on the pCPUs.
//! The report has the load average before the measurement and the steadiness of the machine.

pub mod edges;
mod figures;
mod fit;
mod real;
mod rounds;
mod setup;
mod simulated;

use std::path::Path;

use tandem_linux::interrupt::Interrupt;
use tandem_microvm::Workload;
use tandem_sim::machine::Costs;
use thiserror::Error;

pub use figures::{Calibrated, Ratio, TOLERANCE, Within, text};
pub use fit::Found;
pub use real::{MachineError, SetupError};
pub use setup::{COMPARED, Use};
pub use simulated::SimulatedError;

use crate::event::{Event, Tell};
use crate::this_kernel;
use crate::this_kernel::UnknownRelease;
use real::Machine;
use rounds::Rounds;
use setup::{Comparison, Places};
use simulated::{Host, Kernel};

/// Seeds of each simulated setup, for each real round of it.
const SEEDS: u64 = 3;

/// Options of a calibration, and facts for its report.
#[derive(Clone, Debug)]
pub struct Options {
    /// The workloads whose ratios are compared.
    pub workloads: Vec<Workload>,
    /// Rounds of real runs.
    pub runs: u32,
    /// Length of each run, s.
    pub seconds: f64,
    /// The command line.
    pub command: String,
    /// The release of the running kernel.
    pub kernel: String,
    /// The model of the CPU.
    pub cpu: String,
}

/// Error of a calibration.
#[derive(Debug, Error)]
pub enum CalibrateError {
    /// The length of a run is out of range.
    #[error("--seconds {0} is not possible: 0.05 … 600")]
    Seconds(f64),
    /// KVM is not available.
    #[error(
        "calibration needs real vCPUs, and this machine has none: {0}. Threads cannot replace vCPUs, \
         because they have none of the costs to be measured"
    )]
    NoKvm(String),
    /// The scheduler of the kernel is unknown.
    #[error(transparent)]
    Release(#[from] UnknownRelease),
    /// The machine cannot be prepared, or a setup cannot run.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A setup cannot be simulated.
    #[error(transparent)]
    Simulated(#[from] SimulatedError),
    /// A probe did no work.
    #[error("the probe for {0} did no work")]
    Probe(&'static str),
    /// A VM of a ratio did no work.
    #[error("{workload}, {what}: a VM did no work; increase --seconds")]
    Ratio {
        /// The workload.
        workload: Workload,
        /// The ratio.
        what: &'static str,
    },
    /// The fitted costs cannot be written.
    #[error("cannot write the costs: {0}")]
    Costs(#[source] toml::ser::Error),
}

/// Checks the length of a run, s.
pub fn check_seconds(seconds: f64) -> Result<(), CalibrateError> {
    if (0.05..=600.0).contains(&seconds) { Ok(()) } else { Err(CalibrateError::Seconds(seconds)) }
}

/// Checks that this machine has KVM.
pub fn check_machine() -> Result<(), CalibrateError> {
    tandem_microvm::kvm::available().map_err(|error| {
        // Removes the hint about `--backend`, an option that this command does not have.
        let error = error.to_string();
        let reason = error.split("; --backend").next().unwrap_or_default();
        CalibrateError::NoKvm(reason.to_owned())
    })
}

/// The real runs, and the description of the machine for the simulator.
#[derive(Debug)]
pub struct Measurement {
    options: Options,
    load_average: String,
    comparisons: Vec<Comparison>,
    rounds: Rounds,
    host: Host,
}

impl Measurement {
    /// Runs all setups.
    ///
    /// Changes to the host are first recorded in a journal in `state_dir`, and reverted at the end or after `interrupt`.
    pub fn take(
        options: Options,
        state_dir: &Path,
        interrupt: Interrupt,
        tell: Tell,
    ) -> Result<Measurement, CalibrateError> {
        let load_average = this_kernel::load_average();
        let comparisons = setup::comparisons(&options.workloads);
        let mut machine = Machine::prepare(state_dir, interrupt)?;
        let kernel = Kernel::here(&options.kernel)?;
        let host = Host::new(kernel, machine.weight_range(), machine.calibration);
        let rounds = Rounds::take(&mut machine, &comparisons, options.runs, options.seconds, tell);
        let left = machine.leave();
        let rounds = rounds?;
        left?;
        Ok(Measurement { options, load_average, comparisons, rounds, host })
    }

    /// Fits the machine's costs and compares the simulator's ratios with the real ones.
    pub fn calibrate(self, tell: Tell) -> Result<Calibrated, CalibrateError> {
        tell(Event::Simulating);
        let Measurement { options, rounds, mut host, .. } = self;
        // Probes use their fastest rounds, so their simulation has no background load.
        let costs = fit::fit(&mut host, &probes(&rounds)?)?;
        host.rest = rounds.rest();
        let ratios = ratios(&self.comparisons, &rounds, &host, options.seconds)?;
        Ok(Calibrated {
            command: options.command,
            kernel: options.kernel,
            cpu: options.cpu,
            kvm: module(),
            scheduler: host.kernel.scheduler,
            reweight: host.kernel.reweight,
            tick_ns: host.kernel.tick_ns,
            halt_poll_ns: host.kernel.halt_poll_ns,
            rest: host.rest,
            tsc_khz: host.calibration.tsc_khz,
            load_average: self.load_average,
            steadiness: rounds.steadiness(),
            runs: options.runs,
            seconds: options.seconds,
            machine_costs: overrides(&host.costs)?,
            costs,
            within: Within::of(&ratios),
            ratios,
            tolerance: TOLERANCE,
        })
    }
}

/// Returns the speeds of the probes relative to computing.
///
/// Both are those of the fastest round, because background load can only reduce a speed.
fn probes(rounds: &Rounds) -> Result<Vec<f64>, CalibrateError> {
    let reference = rounds.fastest(&setup::reference());
    let probes = fit::probes().into_iter().map(|probe| {
        let speed = rounds.fastest(&probe.quantity) / reference;
        if speed.is_finite() && speed > 0.0 {
            Ok(speed)
        } else {
            Err(CalibrateError::Probe(probe.cost))
        }
    });
    probes.collect()
}

/// Returns the real and simulated ratios.
fn ratios(
    comparisons: &[Comparison],
    rounds: &Rounds,
    host: &Host,
    seconds: f64,
) -> Result<Vec<Ratio>, CalibrateError> {
    let ratio = |comparison: &Comparison| {
        let Comparison { workload, what, over, under } = comparison;
        let real: Vec<(f64, f64)> = rounds.of(over).into_iter().zip(rounds.of(under)).collect();
        let places = rounds.places(&over.setup);
        let stacked = places.iter().filter(|places| is_stacked(places, over.guest));
        let stacked = stacked.count();
        let both = places.iter().zip(rounds.places(&under.setup)).zip(0u64..);
        let both = both.map(|((of_over, of_under), round)| {
            let seeds = round * SEEDS + 1..(round + 1) * SEEDS + 1;
            let simulate = |quantity, places| {
                simulated::mean_rate(host, quantity, Some(places), seconds, seeds.clone())
            };
            Ok((simulate(over, of_over)?, simulate(under, of_under)?))
        });
        let simulated: Vec<(f64, f64)> = both.collect::<Result<_, CalibrateError>>()?;
        let figures = Ratio::figures(&real, &simulated);
        let (real, simulated, error) =
            figures.ok_or(CalibrateError::Ratio { workload: *workload, what })?;
        Ok(Ratio {
            workload: workload.to_string(),
            what,
            over: over.setup.to_string(),
            under: under.setup.to_string(),
            used: comparison.kept(),
            real,
            simulated,
            stacked,
            error,
            within: error.abs() <= TOLERANCE,
        })
    };
    comparisons.iter().map(ratio).collect()
}

/// Returns the names of KVM's kernel modules, or "kvm built in".
fn module() -> String {
    let modules = std::fs::read_to_string("/proc/modules").unwrap_or_default();
    let mut names: Vec<&str> = modules
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| name.starts_with("kvm"))
        .collect();
    if names.is_empty() {
        names.extend(
            ["kvm_intel", "kvm_amd", "kvm_pvm"]
                .into_iter()
                .filter(|name| std::path::Path::new("/sys/module").join(name).exists()),
        );
    }
    if names.is_empty() { "kvm built in".to_owned() } else { names.join(" ") }
}

/// Returns whether two vCPUs of a VM are on one pCPU.
fn is_stacked(places: &Places, vm: usize) -> bool {
    let places = places.get(vm).map_or(&[][..], Vec::as_slice);
    (1..places.len()).any(|at| places[..at].contains(&places[at]))
}

/// Returns the costs that differ from the defaults, as a scenario's `[machine.costs]`.
fn overrides(costs: &Costs) -> Result<String, CalibrateError> {
    let table = |costs: &Costs| toml::Table::try_from(costs).map_err(CalibrateError::Costs);
    let (here, usual) = (table(costs)?, table(&Costs::default())?);
    let differs = here.iter().filter(|(key, value)| usual.get(*key) != Some(*value));
    let lines = differs.map(|(key, value)| format!("{key} = {value}\n"));
    Ok("[machine.costs]\n".to_owned() + &lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_written_as_scenario_overrides() {
        let costs = Costs { halt_wake: 12_345, syscall: 0, ..Costs::default() };
        assert_eq!(overrides(&costs).unwrap(), "[machine.costs]\nhalt_wake = 12345\nsyscall = 0\n");
        assert_eq!(overrides(&Costs::default()).unwrap(), "[machine.costs]\n");
    }

    #[test]
    fn invalid_lengths_are_rejected() {
        for seconds in [0.0, -1.0, 601.0, f64::NAN] {
            let error = check_seconds(seconds).unwrap_err().to_string();
            assert!(error.contains("0.05 … 600"), "{error}");
        }
        assert!(check_seconds(1.0).is_ok());
    }
}
