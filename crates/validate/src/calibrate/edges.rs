//! Who makes whom wait: on this machine and in the simulator.
//!
//! A few mixes of microVMs run on two pCPUs of this machine while a source of observation looks, and in the simulator, which answers with the
//! same kind of interval. Compared is, for each VM of a mix, which part of the time that its vCPUs waited for a pCPU each other VM
//! caused: a ratio, so it does not matter how fast the machine is. Of the real runs the mean counts, with its 95 % interval; of the simulated ones
//! the mean over some seeds.
//!
//! What else runs on the host is a culprit too, and is not simulated: it is in the part of *the rest of the host*, and a quiet machine is needed to
//! keep that small. Costs are those of the simulator's table.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tandem_experiment::statistics::Mean;
use tandem_linux::interrupt::Interrupt;
use tandem_microvm::Workload;
use tandem_observe::Choice;
use tandem_observe::ObserveError;
use tandem_observe::Source;
use tandem_policy::Nanos;
use tandem_policy::VmId;
use tandem_policy::states::edges::EdgeKind;
use tandem_policy::states::edges::Party;
use tandem_policy::states::interval::Interval;
use tandem_policy::states::interval::SourceName;
use tandem_sim::World;
use thiserror::Error;

use super::halt_poll;
use super::real::Machine;
use super::real::MachineError;
use super::setup::Guest;
use super::setup::Pinning;
use super::setup::Setup;
use super::simulated;
use super::simulated::Host;
use super::simulated::SimulatedError;
use crate::event::Event;
use crate::event::Tell;
use crate::this_kernel;
use crate::this_kernel::UnknownRelease;

/// Who is no VM of the mix.
const REST: &str = "the rest of the host";

/// Of a smaller real share no difference is said: it may be a single wait.
const LEAST_SHARE: f64 = 0.01;

/// Seeds of each simulated mix.
const SEEDS: u64 = 3;

/// What is to be measured, and what its report says of where.
#[derive(Clone, Debug)]
pub struct Options {
    /// What looks at the real VMs.
    pub source: Choice,
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

/// Why edges were not compared.
#[derive(Debug, Error)]
pub enum EdgesError {
    /// Nothing can look.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// Which scheduler the kernel has cannot be told.
    #[error(transparent)]
    Release(#[from] UnknownRelease),
    /// The machine cannot be prepared, or a mix not run.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A mix cannot be simulated.
    #[error(transparent)]
    Simulated(#[from] SimulatedError),
}

/// All figures, as they are kept as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedEdges {
    /// The command that made it.
    pub command: String,
    /// The kernel.
    pub kernel: String,
    /// The CPU.
    pub cpu: String,
    /// What looked at the real VMs.
    pub source: SourceName,
    /// The scheduler of the kernel, and so of the simulated host.
    pub scheduler: &'static str,
    /// Its tick, ns.
    pub tick_ns: u64,
    /// The load of the machine before.
    pub load_average: String,
    /// Real runs of each mix.
    pub runs: u32,
    /// Their length, s.
    pub seconds: f64,
    /// Simulated runs of each mix.
    pub seeds: u64,
    /// The mixes.
    pub mixes: Vec<Mix>,
}

/// The figures of a mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mix {
    /// Its VMs and where they run.
    pub mix: String,
    /// Each victim and culprit.
    pub edges: Vec<ComparedEdge>,
}

/// What a VM waited for another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedEdge {
    /// Who waited: its letter in the mix, and what it does.
    pub victim: String,
    /// Who had the pCPU.
    pub culprit: String,
    /// How much of its vCPUs' time the victim waited for a pCPU, real.
    pub waited: f64,
    /// The same, simulated.
    pub simulated_waited: f64,
    /// Which part of that wait the culprit caused, real. `None`: it never waited.
    pub share: Option<f64>,
    /// Its 95 % interval, to both sides; `None` from one run.
    pub ci95: Option<f64>,
    /// The same, simulated; `None` of what is not simulated.
    pub simulated: Option<f64>,
    /// Simulated ÷ real − 1; `None` where that is not simulated, or less than 1 % of the wait.
    pub difference: Option<f64>,
}

fn guest(workload: Workload, settings: &'static [&'static str], vcpus: u32, weight: u32) -> Guest {
    Guest {
        workload,
        settings,
        vcpus,
        weight,
    }
}

/// The mixes.
pub fn mixes() -> Vec<Setup> {
    let burn = || guest(Workload::Burn, &[], 2, 1);
    let beside_burn = |other: Guest| Setup {
        guests: vec![burn(), other],
        pinning: Pinning::Spread,
    };
    vec![
        Setup {
            guests: vec![burn(), burn()],
            pinning: Pinning::Free,
        },
        beside_burn(guest(Workload::Mutex, &["spin=0"], 2, 1)),
        beside_burn(guest(Workload::Barrier, &["wait=spin"], 2, 1)),
        beside_burn(guest(Workload::Bursty, &[], 2, 1)),
        Setup {
            guests: [1, 2, 4]
                .map(|weight| guest(Workload::Burn, &[], 1, weight))
                .to_vec(),
            pinning: Pinning::OnePcpu,
        },
    ]
}

/// What one interval says of a victim.
#[derive(Clone, Debug, Default, PartialEq)]
struct Waited {
    /// The part of its vCPUs' time.
    of_time: f64,
    /// By culprit: each VM of the mix, then the rest. `None`: it never waited.
    shares: Option<Vec<f64>>,
}

/// Each VM's waits, by VM; VMs are numbered from 0.
fn waits(interval: &Interval, vms: usize) -> Vec<Waited> {
    let edges = interval.edges.by_vm();
    let of_vm = |number: usize| {
        let id = VmId(number as u64);
        let wall = interval.vms.iter().filter(|vm| vm.vm == id);
        let wall: Nanos = wall
            .flat_map(|vm| &vm.vcpus)
            .map(|vcpu| vcpu.times.wall())
            .sum();
        let mut times = vec![0.0; vms + 1];
        for edge in edges.of(&Party::Vm(id), EdgeKind::Pcpu) {
            let place = match edge.culprit {
                Party::Vm(VmId(culprit)) => (*culprit as usize).min(vms),
                _ => vms,
            };
            times[place] += edge.time().0 as f64;
        }
        let sum: f64 = times.iter().sum();
        Waited {
            of_time: sum / wall.0.max(1) as f64,
            shares: (sum > 0.0).then(|| times.into_iter().map(|time| time / sum).collect()),
        }
    };
    (0..vms).map(of_vm).collect()
}

/// The mean of what several intervals say of a victim, and of a culprit's share among those in which it waited.
fn mean(of_runs: &[Vec<Waited>], victim: usize, culprit: usize) -> (f64, Option<Mean>) {
    let waited = of_runs.iter().map(|run| run[victim].of_time);
    let waited: Vec<f64> = waited.collect();
    let shares = of_runs.iter().filter_map(|run| run[victim].shares.as_ref());
    let shares: Vec<f64> = shares.map(|shares| shares[culprit]).collect();
    let of_time = Mean::of(&waited).map_or(0.0, |mean| mean.mean);
    (of_time, Mean::of(&shares))
}

/// A VM's name: its letter, and what it does.
fn name(setup: &Setup, at: usize) -> String {
    match setup.guests.get(at) {
        Some(guest) => format!("{} {}", char::from(b'A' + at as u8), guest.workload),
        None => REST.to_owned(),
    }
}

fn compare(setup: &Setup, real: &[Vec<Waited>], simulated: &[Vec<Waited>]) -> Mix {
    let vms = setup.guests.len();
    let mut edges = Vec::new();
    for victim in 0..vms {
        for culprit in 0..=vms {
            let (waited, share) = mean(real, victim, culprit);
            let (simulated_waited, simulated) = mean(simulated, victim, culprit);
            let is = |mean: &Option<Mean>| mean.as_ref().is_some_and(|mean| mean.mean > 0.0);
            // What neither has is no edge.
            if !is(&share) && !is(&simulated) {
                continue;
            }
            // The rest of the host is not simulated.
            let simulated = simulated.map(|mean| mean.mean).filter(|_| culprit < vms);
            let compared = share.as_ref().filter(|share| share.mean >= LEAST_SHARE);
            let both = compared.zip(simulated);
            edges.push(ComparedEdge {
                victim: name(setup, victim),
                culprit: name(setup, culprit),
                waited,
                simulated_waited,
                difference: both.map(|(share, simulated)| simulated / share.mean - 1.0),
                ci95: share.as_ref().and_then(|share| share.ci95),
                share: share.map(|share| share.mean),
                simulated,
            });
        }
    }
    Mix {
        mix: setup.to_string(),
        edges,
    }
}

/// A mix in the simulator.
fn simulate(host: &Host, setup: &Setup, seconds: f64) -> Result<Vec<Vec<Waited>>, SimulatedError> {
    let of_seed = |seed| {
        let mut scenario = simulated::scenario(host, setup, seconds)?;
        scenario.seed = seed;
        let mut world = World::new(&scenario);
        world.record_waits();
        let observed = world.run().observed;
        let interval = observed.map(|observed| observed.interval);
        let vms = setup.guests.len();
        Ok(interval.map_or_else(
            || vec![Waited::default(); vms],
            |interval| waits(&interval, vms),
        ))
    };
    (1..=SEEDS).map(of_seed).collect()
}

/// Runs all mixes here and in the simulator. What is changed meanwhile is in a journal in `state_dir` first, and put back in the end, or
/// after `interrupt`.
pub fn measure(
    options: Options,
    state_dir: &Path,
    interrupt: Interrupt,
    tell: Tell,
) -> Result<ComparedEdges, EdgesError> {
    let load_average = this_kernel::load_average();
    let scheduler = this_kernel::scheduler(&options.kernel)?;
    let mut source = options.source.open()?;
    let mixes = mixes();
    let mut machine = Machine::prepare(state_dir, interrupt)?;
    let host = Host::new(
        scheduler,
        this_kernel::tick().0,
        halt_poll(),
        machine.calibration,
    );
    let real = rounds(&mut machine, &mixes, source.as_mut(), &options, tell);
    let left = machine.leave();
    let real = real?;
    left?;
    tell(Event::Simulating);
    let compared = mixes.iter().enumerate().map(|(at, setup)| {
        let of_runs: Vec<Vec<Waited>> = real.iter().map(|round| round[at].clone()).collect();
        let simulated = simulate(&host, setup, options.seconds)?;
        Ok(compare(setup, &of_runs, &simulated))
    });
    Ok(ComparedEdges {
        mixes: compared.collect::<Result<_, SimulatedError>>()?,
        command: options.command,
        kernel: options.kernel,
        cpu: options.cpu,
        source: source.name(),
        scheduler,
        tick_ns: host.tick_ns,
        load_average,
        runs: options.runs,
        seconds: options.seconds,
        seeds: SEEDS,
    })
}

/// What was seen in each round of each mix; every other round in the reverse order.
fn rounds(
    machine: &mut Machine,
    mixes: &[Setup],
    source: &mut dyn Source,
    options: &Options,
    tell: Tell,
) -> Result<Vec<Vec<Vec<Waited>>>, MachineError> {
    let time = Duration::from_secs_f64(options.seconds);
    let mut rounds = Vec::new();
    for round in 0..options.runs {
        tell(Event::Round {
            round: round + 1,
            rounds: options.runs,
            setups: mixes.len(),
            seconds: mixes.len() as f64 * (options.seconds + 0.15),
        });
        let mut seen = vec![Vec::new(); mixes.len()];
        let mut order: Vec<usize> = (0..mixes.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let interval = machine.observe(&mixes[at], time, source)?;
            seen[at] = waits(&interval, mixes[at].guests.len());
        }
        rounds.push(seen);
    }
    Ok(rounds)
}

impl fmt::Display for ComparedEdges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = tandem_report::table::Table::new(&[
            "mix",
            "waited",
            "for",
            "RDY",
            "simulated",
            "share",
            "±",
            "simulated",
            "difference",
        ]);
        let percent = |value: f64| format!("{:.1} %", value * 100.0);
        let maybe = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), percent);
        for mix in &self.mixes {
            for (at, edge) in mix.edges.iter().enumerate() {
                table.row([
                    match at {
                        0 => mix.mix.clone(),
                        _ => String::new(),
                    },
                    edge.victim.clone(),
                    edge.culprit.clone(),
                    percent(edge.waited),
                    percent(edge.simulated_waited),
                    maybe(edge.share),
                    maybe(edge.ci95),
                    maybe(edge.simulated),
                    maybe(edge.difference),
                ]);
            }
        }
        write!(
            f,
            "Linux {}, {}, source {}, load before {}; {} runs of {} s\n\n{table}",
            self.kernel, self.scheduler, self.source, self.load_average, self.runs, self.seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use tandem_microvm::Calibration;
    use tandem_policy::State;
    use tandem_policy::VcpuId;
    use tandem_policy::VcpuTimes;
    use tandem_policy::states::edges::Amount;
    use tandem_policy::states::edges::EdgesBuilder;
    use tandem_policy::states::edges::Evidence;
    use tandem_policy::states::interval::HostTotals;
    use tandem_policy::states::interval::VcpuInterval;
    use tandem_policy::states::interval::VmInterval;

    use super::*;

    fn host() -> Host {
        let calibration = Calibration {
            tsc_khz: 2_000_000,
            steps_per_mebicycle: 300_000,
        };
        Host::new("eevdf", 4_000_000, 200_000, calibration)
    }

    /// A second of two VMs of one vCPU on one pCPU; VM 0 waited so long for these.
    fn interval(waits: &[(Party, u64)]) -> Interval {
        let vm = |number| VmInterval {
            vm: VmId(number),
            vcpus: vec![VcpuInterval {
                vcpu: VcpuId(0),
                times: VcpuTimes::from_parts(Nanos::from_secs(1), [(State::Run, Nanos(5))])
                    .unwrap(),
                ran: Nanos(5),
                waited: Nanos(0),
                runs: 1,
                wakeups: None,
                runnable: true,
                allowed: "0".parse().unwrap(),
            }],
            threads: Vec::new(),
        };
        let mut edges = EdgesBuilder::new();
        let victim = edges.party(&Party::Vcpu {
            vm: VmId(0),
            vcpu: VcpuId(0),
        });
        for (culprit, ms) in waits {
            let culprit = edges.party(culprit);
            let amount = Amount::time(Nanos::from_millis(*ms));
            edges.add(victim, culprit, EdgeKind::Pcpu, Evidence::Measured, amount);
        }
        Interval {
            source: SourceName::Plain,
            start: Nanos(0),
            length: Nanos::from_secs(1),
            vms: vec![vm(0), vm(1)],
            edges: edges.all(),
            host: HostTotals::default(),
            missing: Vec::new(),
            programs: None,
        }
    }

    #[test]
    fn a_share_is_a_part_of_all_that_the_victim_waited() {
        let process = Party::Process {
            name: "cc1".to_owned(),
            cgroup: None,
        };
        let seen = interval(&[
            (Party::Vm(VmId(1)), 300),
            (process, 60),
            (Party::Unseen, 40),
        ]);
        let waited = waits(&seen, 2);
        assert!((waited[0].of_time - 0.4).abs() < 1e-9);
        let shares = waited[0].shares.as_ref().unwrap();
        assert!((shares[1] - 0.75).abs() < 1e-9 && (shares[2] - 0.25).abs() < 1e-9);
        assert_eq!(
            waited[1],
            Waited::default(),
            "who never waited has no shares"
        );
    }

    #[test]
    fn what_both_have_is_compared_and_what_neither_has_is_left_out() {
        let setup = &mixes()[0];
        let of = |shares: [f64; 3]| {
            let one = Waited {
                of_time: 0.5,
                shares: Some(shares.to_vec()),
            };
            vec![one, Waited::default()]
        };
        let real = [of([0.0, 0.8, 0.2]), of([0.0, 0.6, 0.4])];
        let mix = compare(setup, &real, &[of([0.0, 1.0, 0.0])]);
        let pairs: Vec<(&str, &str)> = mix
            .edges
            .iter()
            .map(|edge| (edge.victim.as_str(), edge.culprit.as_str()))
            .collect();
        assert_eq!(pairs, [("A burn", "B burn"), ("A burn", REST)]);
        let edge = &mix.edges[0];
        assert!((edge.share.unwrap() - 0.7).abs() < 1e-9);
        assert!((edge.difference.unwrap() - (1.0 / 0.7 - 1.0)).abs() < 1e-9);
        assert!(edge.ci95.is_some());
        let rest = &mix.edges[1];
        assert_eq!(
            (rest.simulated, rest.difference),
            (None, None),
            "it is not simulated"
        );
    }

    #[test]
    fn each_mix_is_simulated_and_the_weights_are_the_shares() {
        let all = mixes();
        assert!((3..=5).contains(&all.len()));
        for setup in &all {
            let simulated = simulate(&host(), setup, 0.3).unwrap();
            assert_eq!(simulated.len(), SEEDS as usize, "{setup}");
            for run in &simulated {
                assert!(run.iter().any(|waited| waited.of_time > 0.01), "{setup}");
                for shares in run.iter().filter_map(|waited| waited.shares.as_ref()) {
                    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                }
            }
        }
        // The lightest of 1, 2 and 4 waits a third for the second and two thirds for the heaviest.
        let simulated = simulate(&host(), all.last().unwrap(), 5.0).unwrap();
        let shares = simulated[0][0].shares.as_ref().unwrap();
        assert!((shares[1] - 1.0 / 3.0).abs() < 0.02, "{shares:?}");
        assert!((shares[2] - 2.0 / 3.0).abs() < 0.02, "{shares:?}");
    }

    #[test]
    fn real_vcpus_wait_for_each_other() {
        if let Err(error) = tandem_microvm::kvm::available() {
            eprintln!("skipped: {error}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::watch().unwrap();
        let mut machine = match Machine::prepare(dir.path(), interrupt) {
            Ok(machine) => machine,
            Err(error) => {
                eprintln!("skipped: {error}");
                return;
            }
        };
        let mut source = Choice::Plain.open().unwrap();
        let weights = mixes().pop().unwrap();
        let time = Duration::from_millis(600);
        let interval = match machine.observe(&weights, time, source.as_mut()) {
            Ok(interval) => interval,
            // A user who may not make cgroups.
            Err(error) if rustix::process::getuid().as_raw() != 0 => {
                eprintln!("skipped: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        machine.leave().unwrap();
        let waited = waits(&interval, 3);
        let shares = waited[0].shares.as_ref().expect("three share a pCPU");
        assert!(waited[0].of_time > 0.3, "{waited:?}");
        assert!(shares[2] > shares[1] && shares[1] > 0.05, "{waited:?}");
        assert!(waited[0].of_time > waited[2].of_time, "{waited:?}");
    }
}
