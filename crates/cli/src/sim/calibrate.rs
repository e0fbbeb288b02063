//! `tandem sim calibrate`: is what the simulator says of VMs true of real ones on this machine?
//!
//! MicroVMs run on two pCPUs of this machine's KVM ([`real`]), and the same setups in the simulator
//! ([`simulated`]) with the running kernel's scheduler, tick and halt polling. Compared are ratios of
//! throughputs ([`setup`]): two VMs against one, spinning against blocking, pinned against not pinned,
//! two vCPUs against one, weights. Never absolute figures: how fast a machine computes is none of the
//! simulator's business.
//!
//! What virtualization costs here is found first, by probes ([`fit`]), and is part of the output, not
//! of the program. Workloads that no probe consists of were kept out of the fit and are judged by
//! themselves ([`figures`]).
//!
//! Real runs are interleaved, every other round in the reverse order, so that a machine that becomes
//! slower harms both sides of a ratio alike. It needs a quiet machine all the same: what else runs takes
//! its share of the pCPUs. The load before, and how steady the machine was, are part of the report.

mod figures;
mod fit;
mod real;
mod setup;
mod simulated;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use anyhow::ensure;
use clap::Args;
use tandem_microvm::Workload;
use tandem_sim::machine::Costs;

use super::kernel;
use crate::console::print;
use crate::demo::host_facts;
use crate::demo::state_dir;
use crate::demo::state_dir::StateDir;
use crate::output;
use figures::Calibrated;
use figures::Ratio;
use figures::TOLERANCE;
use figures::Within;
use real::Machine;
use real::Rates;
use setup::Comparison;
use setup::Quantity;
use setup::Setup;
use simulated::Host;
use tandem_linux::interrupt::Interrupt;

/// Seeds of each simulated setup.
const SEEDS: u64 = 3;

/// KVM's default of `halt_poll_ns`, for kernels that do not say.
const HALT_POLL_NS: u64 = 200_000;

/// `tandem sim calibrate`
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Real runs of each setup, 2 … 1000
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(2..=1000))]
    runs: u32,
    /// Length of each run, 0.05 … 600 s
    #[arg(
        long,
        value_name = "S",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    seconds: f64,
    /// Only the ratios of these workloads
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Write all figures as JSON; without PATH to standard output, in place of the tables
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Directory for the journal of what is changed meanwhile [default: /run/tandem-demo]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Carries it out.
pub fn main(args: &CalibrateArgs) -> anyhow::Result<()> {
    ensure!(
        (0.05..=600.0).contains(&args.seconds),
        "--seconds {} is not possible: 0.05 … 600",
        args.seconds
    );
    let workloads = workloads(&args.only)?;
    output::check_json(args.json.as_deref())?;
    if let Err(error) = tandem_microvm::kvm::available() {
        // The error ends with what helps to run a VM; it does not help here.
        let error = error.to_string();
        let reason = error.split("; --backend").next().unwrap_or_default();
        bail!(
            "calibration is against real vCPUs, and there are none here: {reason}. Threads in place of \
             vCPUs would not do: nothing of what is to be measured happens to them"
        );
    }
    let facts = host_facts::read();
    let load_average = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let comparisons = setup::comparisons(&workloads);
    let interrupt = Interrupt::watch()?;
    let default = || state_dir::default_for(rustix::process::getuid().as_raw());
    let state = StateDir::open(&args.state_dir.clone().unwrap_or_else(default))?;
    let mut machine = Machine::prepare(&state.groups(), interrupt)?;
    let mut host = Host::new(
        kernel::scheduler(&facts.kernel)?,
        kernel::tick().0,
        halt_poll(),
        machine.calibration,
    );
    let measured = Measured::take(&mut machine, &comparisons, args);
    let left = machine.leave();
    let measured = measured?;
    left?;
    state.finish();

    eprintln!("simulating …");
    let costs = fit::fit(&mut host, &measured.probes()?)?;
    let ratios = ratios(&comparisons, &measured, &host, args.seconds)?;
    let calibrated = Calibrated {
        command: std::env::args()
            .skip(1)
            .fold("tandem".to_owned(), |all, arg| all + " " + &arg),
        kernel: facts.kernel,
        cpu: facts.cpu,
        kvm: module(),
        scheduler: host.scheduler,
        tick_ns: host.tick_ns,
        halt_poll_ns: host.halt_poll_ns,
        tsc_khz: host.calibration.tsc_khz,
        load_average: load_average.trim().to_owned(),
        steadiness: measured.steadiness(),
        runs: args.runs,
        seconds: args.seconds,
        machine_costs: overrides(&host.costs)?,
        costs,
        within: Within::of(&ratios),
        ratios,
        tolerance: TOLERANCE,
    };
    if !output::is_stdout(args.json.as_deref()) {
        print(&figures::text(&calibrated))?;
    }
    output::write_json(args.json.as_deref(), &calibrated)
}

/// The workloads asked for; all, if none was named.
fn workloads(only: &[String]) -> anyhow::Result<Vec<Workload>> {
    if only.is_empty() {
        return Ok(Workload::ALL.to_vec());
    }
    let mut workloads = Vec::new();
    for name in only {
        let workload: Workload = name.parse().context("--only")?;
        if !workloads.contains(&workload) {
            workloads.push(workload);
        }
    }
    Ok(workloads)
}

/// What the real runs gave.
struct Measured {
    setups: Vec<Setup>,
    /// For each round and setup.
    rounds: Vec<Vec<Rates>>,
}

impl Measured {
    fn take(
        machine: &mut Machine,
        comparisons: &[Comparison],
        args: &CalibrateArgs,
    ) -> anyhow::Result<Measured> {
        let (reference, probes) = (setup::reference(), fit::probes());
        let probes = probes.iter().map(|probe| &probe.quantity);
        let compared = comparisons.iter().flat_map(|c| [&c.over, &c.under]);
        let setups = setup::setups([&reference].into_iter().chain(probes).chain(compared));
        let time = Duration::from_secs_f64(args.seconds);
        let mut rounds = Vec::new();
        for round in 0..args.runs {
            eprintln!(
                "round {} of {}: {} setups, about {:.0} s …",
                round + 1,
                args.runs,
                setups.len(),
                setups.len() as f64 * (args.seconds + 0.15)
            );
            let mut rates = vec![Rates::default(); setups.len()];
            let mut order: Vec<usize> = (0..setups.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                rates[at] = machine.run(&setups[at], time)?;
            }
            rounds.push(rates);
        }
        Ok(Measured { setups, rounds })
    }

    /// A quantity in each round.
    fn of(&self, quantity: &Quantity) -> Vec<f64> {
        let at = self.setups.iter().position(|s| *s == quantity.setup);
        let rounds = self.rounds.iter();
        rounds
            .filter_map(|rates| Some(rates.get(at?)?.of(quantity)))
            .collect()
    }

    /// How fast the probes are relative to computing. The fastest round of either counts: what else
    /// happens on the machine can only make it slower.
    fn probes(&self) -> anyhow::Result<Vec<f64>> {
        let fastest = |quantity: &Quantity| self.of(quantity).into_iter().fold(0.0, f64::max);
        let reference = fastest(&setup::reference());
        let probes = fit::probes().into_iter().map(|probe| {
            let speed = fastest(&probe.quantity) / reference;
            ensure!(
                speed.is_finite() && speed > 0.0,
                "the probe for {} got nothing done",
                probe.cost
            );
            Ok(speed)
        });
        probes.collect()
    }

    /// The lowest speed of computing alone over the highest.
    fn steadiness(&self) -> f64 {
        let mut speeds = self.of(&setup::reference());
        speeds.sort_by(f64::total_cmp);
        match (speeds.first(), speeds.last()) {
            (Some(least), Some(&most)) if most > 0.0 => least / most,
            _ => 0.0,
        }
    }
}

/// The ratios, real and simulated.
fn ratios(
    comparisons: &[Comparison],
    measured: &Measured,
    host: &Host,
    seconds: f64,
) -> anyhow::Result<Vec<Ratio>> {
    let ratio = |comparison: &Comparison| {
        let Comparison {
            workload,
            what,
            over,
            under,
        } = comparison;
        let real: Vec<(f64, f64)> = measured
            .of(over)
            .into_iter()
            .zip(measured.of(under))
            .collect();
        let simulate = |quantity| simulated::mean_rate(host, quantity, seconds, SEEDS);
        let simulated = (simulate(over)?, simulate(under)?);
        let figures = Ratio::figures(&real, simulated);
        let (real, simulated, error) = figures.with_context(|| {
            format!("{workload}, {what}: a VM got nothing done; give --seconds more")
        })?;
        Ok(Ratio {
            workload: workload.to_string(),
            what,
            over: over.setup.to_string(),
            under: under.setup.to_string(),
            used: comparison.kept(),
            real,
            simulated,
            error,
            within: error.abs() <= TOLERANCE,
        })
    };
    comparisons.iter().map(ratio).collect()
}

/// How long KVM polls at most, as its module says.
fn halt_poll() -> u64 {
    let text = std::fs::read_to_string("/sys/module/kvm/parameters/halt_poll_ns");
    let value = text.ok().and_then(|text| text.trim().parse().ok());
    value.unwrap_or(HALT_POLL_NS)
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
    match names.is_empty() {
        true => "kvm built in".to_owned(),
        false => names.join(" "),
    }
}

/// What differs from the table of costs, as a scenario has it.
fn overrides(costs: &Costs) -> anyhow::Result<String> {
    let table = |costs: &Costs| toml::Table::try_from(costs).context("cannot write the costs");
    let (here, usual) = (table(costs)?, table(&Costs::default())?);
    let differs = here
        .iter()
        .filter(|(key, value)| usual.get(*key) != Some(*value));
    let lines = differs.map(|(key, value)| format!("{key} = {value}\n"));
    Ok("[machine.costs]\n".to_owned() + &lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_costs_of_a_machine_are_written_as_a_scenario_has_them() {
        let costs = Costs {
            halt_wake: 12_345,
            syscall: 0,
            ..Costs::default()
        };
        assert_eq!(
            overrides(&costs).unwrap(),
            "[machine.costs]\nhalt_wake = 12345\nsyscall = 0\n"
        );
        assert_eq!(overrides(&Costs::default()).unwrap(), "[machine.costs]\n");
    }

    #[test]
    fn workloads_are_named_once_and_wrong_names_refused() {
        let named =
            |names: &[&str]| workloads(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            named(&["mutex", "burn", "mutex"]).unwrap(),
            [Workload::Mutex, Workload::Burn]
        );
        assert_eq!(named(&[]).unwrap(), Workload::ALL);
        let error = format!("{:#}", named(&["sleep"]).unwrap_err());
        assert!(error.contains("no workload 'sleep'"), "{error}");
    }

    #[test]
    fn impossible_lengths_are_refused_before_anything_starts() {
        for seconds in [0.0, -1.0, 601.0, f64::NAN] {
            let args = CalibrateArgs {
                runs: 2,
                seconds,
                only: Vec::new(),
                json: None,
                state_dir: None,
            };
            let error = main(&args).unwrap_err().to_string();
            assert!(error.contains("0.05 … 600"), "{error}");
        }
    }
}
