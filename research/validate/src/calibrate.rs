//! Is what the simulator says of VMs true of real ones on this machine?
//!
//! MicroVMs run on two pCPUs of this machine's KVM (`real`), and the same setups in the simulator
//! (`simulated`) with the running kernel's scheduler, tick and halt polling. Compared are ratios of
//! throughputs (`setup`): two VMs against one, spinning against blocking, pinned against not pinned,
//! two vCPUs against one, weights. Never absolute figures: how fast a machine computes is none of the
//! simulator's business.
//!
//! What virtualization costs here is found first, by probes (`fit`), and is part of the output, not
//! of the program. Workloads that no probe consists of were kept out of the fit and are judged by
//! themselves (`figures`).
//!
//! Each real run of a setup is simulated from where its vCPUs were when counting began: where two vCPUs of a VM share a pCPU, no scheduler may move
//! them for seconds. What else runs on the machine is measured beside VMs that compute alone, and simulated as a VM (`simulated`).
//!
//! Real runs are interleaved, every other round in the reverse order, so that a machine that becomes
//! slower harms both sides of a ratio alike. It needs a quiet machine all the same: what else runs takes
//! its share of the pCPUs. The load before, and how steady the machine was, are part of the report.

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

/// What is to be measured, and what its report says of where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The workloads whose ratios are taken.
    pub workloads: Vec<Workload>,
    /// Rounds of real runs.
    pub runs: u32,
    /// Length of each run, s.
    pub seconds: f64,
    /// The command that asked for it.
    pub command: String,
    /// The release of the kernel that runs here.
    pub kernel: String,
    /// The model of its CPU.
    pub cpu: String,
}

/// Why a machine was not calibrated.
#[derive(Debug, Error)]
pub enum CalibrateError {
    /// So long cannot be run.
    #[error("--seconds {0} is not possible: 0.05 … 600")]
    Seconds(f64),
    /// There are no real vCPUs.
    #[error(
        "calibration is against real vCPUs, and there are none here: {0}. Threads in place of vCPUs \
         would not do: nothing of what is to be measured happens to them"
    )]
    NoKvm(String),
    /// Which scheduler the kernel has cannot be told.
    #[error(transparent)]
    Release(#[from] UnknownRelease),
    /// The machine cannot be prepared, or a setup not run.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A setup cannot be simulated.
    #[error(transparent)]
    Simulated(#[from] SimulatedError),
    /// A probe shows nothing.
    #[error("the probe for {0} got nothing done")]
    Probe(&'static str),
    /// A ratio would mean nothing.
    #[error("{workload}, {what}: a VM got nothing done; give --seconds more")]
    Ratio {
        /// Of which workload.
        workload: Workload,
        /// Of what.
        what: &'static str,
    },
    /// The costs that were found cannot be written.
    #[error("cannot write the costs: {0}")]
    Costs(#[source] toml::ser::Error),
}

/// Whether runs can be so long, s.
pub fn check_seconds(seconds: f64) -> Result<(), CalibrateError> {
    if (0.05..=600.0).contains(&seconds) { Ok(()) } else { Err(CalibrateError::Seconds(seconds)) }
}

/// Whether this machine has real vCPUs.
pub fn check_machine() -> Result<(), CalibrateError> {
    tandem_microvm::kvm::available().map_err(|error| {
        // The error ends with what helps to run a VM; it does not help here.
        let error = error.to_string();
        let reason = error.split("; --backend").next().unwrap_or_default();
        CalibrateError::NoKvm(reason.to_owned())
    })
}

/// The real runs, and the machine as the simulator is to be told of it.
#[derive(Debug)]
pub struct Measurement {
    options: Options,
    load_average: String,
    comparisons: Vec<Comparison>,
    rounds: Rounds,
    host: Host,
}

impl Measurement {
    /// Runs all setups. What is changed meanwhile is in a journal in `state_dir` first, and put back in the
    /// end, or after `interrupt`.
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

    /// Finds the machine's costs, and compares the simulator's ratios with the real ones.
    pub fn calibrate(self, tell: Tell) -> Result<Calibrated, CalibrateError> {
        tell(Event::Simulating);
        let Measurement { options, rounds, mut host, .. } = self;
        // The probes' fastest rounds count, so nothing else runs there.
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

/// How fast the probes are relative to computing. The fastest round of either counts: what else
/// happens on the machine can only make it slower.
fn probes(rounds: &Rounds) -> Result<Vec<f64>, CalibrateError> {
    let reference = rounds.fastest(&setup::reference());
    let probes = fit::probes().into_iter().map(|probe| {
        let speed = rounds.fastest(&probe.quantity) / reference;
        match speed.is_finite() && speed > 0.0 {
            true => Ok(speed),
            false => Err(CalibrateError::Probe(probe.cost)),
        }
    });
    probes.collect()
}

/// The ratios, real and simulated.
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

/// The kernel modules of KVM, or that it is part of the kernel.
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

/// Whether two vCPUs of a VM are on one pCPU.
fn is_stacked(places: &Places, vm: usize) -> bool {
    let places = places.get(vm).map_or(&[][..], Vec::as_slice);
    (1..places.len()).any(|at| places[..at].contains(&places[at]))
}

/// What differs from the table of costs, as a scenario has it.
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
    fn the_costs_of_a_machine_are_written_as_a_scenario_has_them() {
        let costs = Costs { halt_wake: 12_345, syscall: 0, ..Costs::default() };
        assert_eq!(overrides(&costs).unwrap(), "[machine.costs]\nhalt_wake = 12345\nsyscall = 0\n");
        assert_eq!(overrides(&Costs::default()).unwrap(), "[machine.costs]\n");
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for seconds in [0.0, -1.0, 601.0, f64::NAN] {
            let error = check_seconds(seconds).unwrap_err().to_string();
            assert!(error.contains("0.05 … 600"), "{error}");
        }
        assert!(check_seconds(1.0).is_ok());
    }
}
