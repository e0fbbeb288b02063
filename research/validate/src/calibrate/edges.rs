//! Wait edges between VMs, on this machine and in the simulator.
//!
//! A few mixes of microVMs run on two pCPUs of this machine under an observation source.
//! The same mixes run in the simulator, which returns the same kind of interval.
//! Each mix has at least three VMs, so that a wait can be attributed to the wrong one.
//! Two figures of each VM are compared:
//!
//! - RDY: the fraction of its vCPUs' time that it waited for a pCPU;
//! - its edges: the fraction of its waits for VMs of the mix that each VM caused, itself included.
//!
//! Both are ratios, so the speed of the machine does not matter.
//! Real figures are means over the runs with 95 % intervals; simulated figures are means over seeds.
//!
//! Background load of the host also makes VMs wait.
//! It is excluded from the shares on both sides, and the report has its fraction of the real waits.
//! Costs are those of the simulator's table.

mod compared;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tandem_experiment::statistics::Mean;
use tandem_linux::interrupt::Interrupt;
use tandem_microvm::Workload;
use tandem_model::states::edges::{EdgeKind, Party};
use tandem_model::states::interval::{Interval, SourceName};
use tandem_model::{State, VmId};
use tandem_observe::{Choice, ObserveError, Source};
use tandem_report::Table;
use tandem_sim::World;
use thiserror::Error;

use compared::{Compared, TOLERANCE};

use super::real::{Machine, MachineError};
use super::setup::{Guest, Pinning, Places, Setup, reference};
use super::simulated;
use super::simulated::{Host, Kernel, SimulatedError};
use crate::event::{Event, Tell};
use crate::rest::{Rest, Waits};
use crate::this_kernel;
use crate::this_kernel::UnknownRelease;

/// Options of a comparison, and facts for its report.
#[derive(Clone, Debug)]
pub struct Options {
    /// The observation source for the real VMs.
    pub source: Choice,
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

/// Error of a comparison of edges.
#[derive(Debug, Error)]
pub enum EdgesError {
    /// The observation source failed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The scheduler of the kernel is unknown.
    #[error(transparent)]
    Release(#[from] UnknownRelease),
    /// The machine cannot be prepared, or a mix cannot run.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A mix cannot be simulated.
    #[error(transparent)]
    Simulated(#[from] SimulatedError),
}

/// All figures, as stored in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedEdges {
    /// The command line.
    pub command: String,
    /// The kernel release.
    pub kernel: String,
    /// The model of the CPU.
    pub cpu: String,
    /// The observation source for the real VMs.
    pub source: SourceName,
    /// The scheduler of the kernel and of the simulated host.
    pub scheduler: &'static str,
    /// Treatment of lag when a group's weight changes, as simulated.
    pub reweight: &'static str,
    /// The tick of the kernel, ns.
    pub tick_ns: u64,
    /// Background load of the host. `None`: no load was seen.
    pub rest: Option<Rest>,
    /// The load average before the measurement.
    pub load_average: String,
    /// Number of real and of simulated runs of each mix.
    pub runs: u32,
    /// Length of a run, s.
    pub seconds: f64,
    /// Maximum difference of a simulated fraction, relative to the real one.
    pub tolerance: f64,
    /// Number of VMs whose RDY is compared.
    pub waits: usize,
    /// Number of these within the tolerance.
    pub waits_within: usize,
    /// Number of edges that are compared.
    pub edges: usize,
    /// Number of these within the tolerance.
    pub edges_within: usize,
    /// The mixes.
    pub mixes: Vec<Mix>,
}

/// The figures of a mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mix {
    /// The VMs and their placement.
    pub mix: String,
    /// The ready time of each VM.
    pub waits: Vec<ComparedWait>,
    /// Each pair of victim and culprit.
    pub edges: Vec<ComparedEdge>,
}

/// The ready time of a VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedWait {
    /// The VM: its letter in the mix, and its workload.
    pub victim: String,
    /// RDY as a fraction of its vCPUs' time, real and simulated.
    #[serde(flatten)]
    pub rdy: Compared,
    /// Fraction of the real wait that background load caused. `None`: the VM never waited.
    pub rest: Option<f64>,
}

/// The share of one culprit in the waits of a VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedEdge {
    /// The VM that waited.
    pub victim: String,
    /// The VM that had the pCPU.
    pub culprit: String,
    /// Fraction of the victim's waits for VMs of the mix that the culprit caused, real and simulated.
    #[serde(flatten)]
    pub share: Compared,
}

fn guest(workload: Workload, settings: &'static [&'static str], vcpus: u32, weight: u32) -> Guest {
    Guest { workload, settings, vcpus, weight }
}

/// Returns the mixes.
pub fn mixes() -> Vec<Setup> {
    let burn = |weight| guest(Workload::Burn, &[], 2, weight);
    let mutex = || guest(Workload::Mutex, &["spin=0"], 2, 1);
    let bursty = || guest(Workload::Bursty, &[], 2, 1);
    let spread = |guests: Vec<Guest>| Setup { guests, pinning: Pinning::Spread };
    vec![
        Setup { guests: vec![burn(1), burn(1), bursty()], pinning: Pinning::Free },
        spread(vec![burn(1), mutex(), burn(2)]),
        spread(vec![burn(1), guest(Workload::Barrier, &["wait=spin"], 2, 1), bursty()]),
        spread(vec![burn(1), mutex(), bursty()]),
        Setup {
            guests: [1, 2, 4].map(|weight| guest(Workload::Burn, &[], 1, weight)).to_vec(),
            pinning: Pinning::OnePcpu,
        },
    ]
}

/// The waits of a VM in one interval.
#[derive(Clone, Debug, Default, PartialEq)]
struct Waited {
    /// RDY as a fraction of its vCPUs' time. `None`: not measured.
    rdy: Option<f64>,
    /// Fraction of its waits that no VM of the mix caused. `None`: it never waited.
    rest: Option<f64>,
    /// Each VM's fraction of the waits that the mix caused. `None`: it never waited for the mix.
    shares: Option<Vec<f64>>,
}

/// Returns the waits of each VM; VMs are numbered from 0.
fn waits(interval: &Interval, vms: usize) -> Vec<Waited> {
    let edges = interval.edges.by_vm();
    let of_vm = |number: usize| {
        let id = VmId(number as u64);
        let vm = interval.vms.iter().find(|vm| vm.vm == id);
        let times = vm.and_then(|vm| vm.times());
        let rdy = times.and_then(|times| {
            let ready = times.get(State::Ready)?;
            Some(ready.0 as f64 / times.wall().0.max(1) as f64)
        });
        let (mut times, mut rest) = (vec![0.0; vms], 0.0);
        for edge in edges.of(&Party::Vm(id), EdgeKind::Pcpu) {
            let time = edge.time().0 as f64;
            let place = match edge.culprit {
                Party::Vm(VmId(culprit)) => times.get_mut(*culprit as usize),
                _ => None,
            };
            *place.unwrap_or(&mut rest) += time;
        }
        let sum: f64 = times.iter().sum();
        Waited {
            rdy,
            rest: (sum + rest > 0.0).then(|| rest / (sum + rest)),
            shares: (sum > 0.0).then(|| times.into_iter().map(|time| time / sum).collect()),
        }
    };
    (0..vms).map(of_vm).collect()
}

/// Returns the name of a VM: its letter and its workload.
fn name(setup: &Setup, at: usize) -> String {
    let workload = setup.guests.get(at).map(|guest| guest.workload);
    let workload = workload.map_or_else(String::new, |workload| workload.to_string());
    format!("{} {workload}", char::from(b'A' + at as u8))
}

fn compare(setup: &Setup, real: &[Vec<Waited>], simulated: &[Vec<Waited>]) -> Mix {
    let vms = setup.guests.len();
    let (mut waits, mut edges) = (Vec::new(), Vec::new());
    for victim in 0..vms {
        let of = |runs: &[Vec<Waited>], part: &dyn Fn(&Waited) -> Option<f64>| {
            let parts = runs.iter().filter_map(|run| part(&run[victim]));
            parts.collect::<Vec<f64>>()
        };
        let compared = |part: &dyn Fn(&Waited) -> Option<f64>| {
            Compared::of(&of(real, part), &of(simulated, part))
        };
        waits.push(ComparedWait {
            victim: name(setup, victim),
            rdy: compared(&|waited| waited.rdy),
            rest: Mean::of(&of(real, &|waited| waited.rest)).map(|mean| mean.mean),
        });
        for culprit in 0..vms {
            let share = compared(&|waited| Some(waited.shares.as_ref()?[culprit]));
            // An edge exists if it was measured or simulated.
            if share.is_some() {
                edges.push(ComparedEdge {
                    victim: name(setup, victim),
                    culprit: name(setup, culprit),
                    share,
                });
            }
        }
    }
    Mix { mix: setup.to_string(), waits, edges }
}

/// Returns the number of compared figures, and the number of these within the tolerance.
fn count<'a>(all: impl Iterator<Item = &'a Compared>) -> (usize, usize) {
    let compared: Vec<bool> = all.filter_map(|one| one.is_within).collect();
    let within = compared.iter().filter(|is_within| **is_within);
    (compared.len(), within.count())
}

/// Observation of a mix: the initial placement of its vCPUs, and the waits of its VMs.
type Seen = (Places, Vec<Waited>);

/// Simulates a mix once for each real run, from the initial placement of its vCPUs.
fn simulate(
    host: &Host,
    setup: &Setup,
    real: &[Seen],
    seconds: f64,
) -> Result<Vec<Vec<Waited>>, SimulatedError> {
    let of_run = |(places, seed): (&Places, u64)| {
        let mut scenario = simulated::scenario(host, setup, Some(places), seconds)?;
        scenario.seed = seed;
        let mut world = World::new(&scenario);
        world.record_waits();
        let observed = world.run().observed;
        let interval = observed.map(|observed| observed.interval);
        let vms = setup.guests.len();
        Ok(interval.map_or_else(|| vec![Waited::default(); vms], |interval| waits(&interval, vms)))
    };
    // Runs are independent, so results do not depend on their parallelism.
    std::thread::scope(|scope| {
        let of_run = &of_run;
        let places = real.iter().map(|(places, _)| places);
        let runs: Vec<_> = places.zip(1..).map(|run| scope.spawn(move || of_run(run))).collect();
        let ended = runs.into_iter().map(|run| run.join());
        ended.map(|one| one.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Runs all mixes here and in the simulator.
///
/// Changes to the host are first recorded in a journal in `state_dir`, and reverted at the end or after `interrupt`.
pub fn measure(
    options: Options,
    state_dir: &Path,
    interrupt: Interrupt,
    tell: Tell,
) -> Result<ComparedEdges, EdgesError> {
    let load_average = this_kernel::load_average();
    let kernel = Kernel::here(&options.kernel)?;
    let mut source = options.source.open()?;
    let mixes = mixes();
    let mut machine = Machine::prepare(state_dir, interrupt)?;
    let mut host = Host::new(kernel, machine.weight_range(), machine.calibration);
    let real = rounds(&mut machine, &mixes, source.as_mut(), &options, tell);
    let left = machine.leave();
    let (real, rest) = real?;
    left?;
    host.rest = rest;
    tell(Event::Simulating);
    let mixes = mixes.iter().enumerate().map(|(at, setup)| {
        let of_runs: Vec<Seen> = real.iter().map(|round| round[at].clone()).collect();
        let simulated = simulate(&host, setup, &of_runs, options.seconds)?;
        let real: Vec<Vec<Waited>> = of_runs.into_iter().map(|(_, waited)| waited).collect();
        Ok(compare(setup, &real, &simulated))
    });
    let mixes: Vec<Mix> = mixes.collect::<Result<_, SimulatedError>>()?;
    let rdy = mixes.iter().flat_map(|mix| &mix.waits);
    let (waits, waits_within) = count(rdy.map(|wait| &wait.rdy));
    let shares = mixes.iter().flat_map(|mix| &mix.edges);
    let (edges, edges_within) = count(shares.map(|edge| &edge.share));
    Ok(ComparedEdges {
        tolerance: TOLERANCE,
        waits,
        waits_within,
        edges,
        edges_within,
        mixes,
        command: options.command,
        kernel: options.kernel,
        cpu: options.cpu,
        source: source.name(),
        scheduler: host.kernel.scheduler,
        reweight: host.kernel.reweight,
        tick_ns: host.kernel.tick_ns,
        rest: host.rest,
        load_average,
        runs: options.runs,
        seconds: options.seconds,
    })
}

/// Runs all rounds, every other one in reverse order, and returns the observations and the background load.
///
/// The background load is measured with VMs that compute alone, once in each round.
fn rounds(
    machine: &mut Machine,
    mixes: &[Setup],
    source: &mut dyn Source,
    options: &Options,
    tell: Tell,
) -> Result<(Vec<Vec<Seen>>, Option<Rest>), MachineError> {
    let time = Duration::from_secs_f64(options.seconds);
    let mut rounds = Vec::new();
    let mut alone = Waits::default();
    for round in 0..options.runs {
        tell(Event::Round {
            round: round + 1,
            rounds: options.runs,
            setups: mixes.len() + 1,
            seconds: (mixes.len() + 1) as f64 * (options.seconds + 0.15),
        });
        alone = alone.and(machine.run(&reference().setup, time)?.waits);
        let mut seen = vec![Seen::default(); mixes.len()];
        let mut order: Vec<usize> = (0..mixes.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let (began, interval) = machine.observe(&mixes[at], time, source)?;
            seen[at] = (began, waits(&interval, mixes[at].guests.len()));
        }
        rounds.push(seen);
    }
    Ok((rounds, Rest::of(alone)))
}

impl fmt::Display for ComparedEdges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |value: f64| format!("{:.1} %", value * 100.0);
        let maybe = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), percent);
        let figures = |compared: &Compared| {
            let mark = if compared.is_within == Some(false) { " !" } else { "" };
            [
                maybe(compared.real),
                maybe(compared.ci95),
                maybe(compared.simulated),
                maybe(compared.difference) + mark,
            ]
        };
        let first = |at: usize, mix: &Mix| {
            if at == 0 { mix.mix.clone() } else { String::new() }
        };
        let parts = ["±", "simulated", "difference"];
        let mut waits =
            Table::new(&[&["mix", "waited", "RDY"][..], &parts, &["rest of the host"]].concat());
        let mut edges = Table::new(&[&["mix", "waited", "for", "share"][..], &parts].concat());
        for mix in &self.mixes {
            for (at, wait) in mix.waits.iter().enumerate() {
                let [real, ci95, simulated, difference] = figures(&wait.rdy);
                let victim = wait.victim.clone();
                let (mix, rest) = (first(at, mix), maybe(wait.rest));
                waits.row([mix, victim, real, ci95, simulated, difference, rest]);
            }
            for (at, edge) in mix.edges.iter().enumerate() {
                let [real, ci95, simulated, difference] = figures(&edge.share);
                let (victim, culprit) = (edge.victim.clone(), edge.culprit.clone());
                let mix = first(at, mix);
                edges.row([mix, victim, culprit, real, ci95, simulated, difference]);
            }
        }
        write!(
            f,
            "Linux {}, {}, source {}, load before {}; {} runs of {} s; {}\n\n{waits}\n\n{edges}\n\n\
             within {:.0} %: RDY of {} of {} VMs, {} of {} edges",
            self.kernel,
            self.scheduler,
            self.source,
            self.load_average,
            self.runs,
            self.seconds,
            Rest::describe(self.rest),
            self.tolerance * 100.0,
            self.waits_within,
            self.waits,
            self.edges_within,
            self.edges
        )
    }
}

#[cfg(test)]
mod tests {
    use tandem_microvm::Calibration;
    use tandem_model::states::edges::{Amount, EdgesBuilder, Evidence};
    use tandem_model::states::interval::{HostTotals, VcpuInterval, VmInterval};
    use tandem_model::{Nanos, VcpuId, VcpuTimes};

    use super::super::real::testing::{machine as machine_for_tests, unless_not_root};
    use super::super::simulated::testing::kernel;
    use super::*;

    fn host() -> Host {
        let calibration = Calibration { tsc_khz: 2_000_000, steps_per_mebicycle: 300_000 };
        Host::new(kernel(), 256.0, calibration)
    }

    /// A real run whose vCPUs start on their pinned pCPUs, or alternate over the two pCPUs.
    fn spread(setup: &Setup) -> Vec<Seen> {
        let of_guest = |guest: &Guest| {
            let place = |vcpu| setup.pinning.pcpu(vcpu).unwrap_or(vcpu % 2);
            (0..guest.vcpus).map(place).collect()
        };
        let places = setup.guests.iter().map(of_guest).collect();
        vec![(places, Vec::new())]
    }

    /// A second of two VMs of one vCPU on one pCPU; `waits` has the waits of VM 0 by culprit, ms.
    fn interval(waits: &[(Party, u64)]) -> Interval {
        let all: u64 = waits.iter().map(|(_, ms)| ms).sum();
        let ready = |number| match number {
            0 => Nanos::from_millis(all),
            _ => Nanos::ZERO,
        };
        let vm = |number| VmInterval {
            vm: VmId(number),
            vcpus: vec![VcpuInterval {
                vcpu: VcpuId(0),
                times: VcpuTimes::from_parts(
                    Nanos::from_secs(1),
                    [(State::Run, Nanos(5)), (State::Ready, ready(number))],
                )
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
        let victim = edges.party(&Party::Vcpu { vm: VmId(0), vcpu: VcpuId(0) });
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
    fn shares_divide_waits_for_the_mix() {
        let process = Party::Process { name: "cc1".to_owned(), cgroup: None };
        let seen = interval(&[
            (Party::Vm(VmId(0)), 75),
            (Party::Vm(VmId(1)), 225),
            (process, 60),
            // A VM outside the mix.
            (Party::Vm(VmId(9)), 20),
            (Party::Unseen, 20),
        ]);
        let waited = waits(&seen, 2);
        assert!((waited[0].rdy.unwrap() - 0.4).abs() < 1e-9);
        assert!((waited[0].rest.unwrap() - 0.25).abs() < 1e-9);
        let shares = waited[0].shares.as_ref().unwrap();
        assert_eq!(shares.len(), 2);
        assert!((shares[0] - 0.25).abs() < 1e-9 && (shares[1] - 0.75).abs() < 1e-9);
        let never = Waited { rdy: Some(0.0), ..Waited::default() };
        assert_eq!(waited[1], never, "a VM that never waited has no shares");
    }

    #[test]
    fn edges_without_waits_are_omitted() {
        let setup = &mixes()[0];
        let of = |rdy: f64, shares: [f64; 3]| {
            let one = Waited { rdy: Some(rdy), rest: Some(0.1), shares: Some(shares.to_vec()) };
            vec![one, Waited::default(), Waited::default()]
        };
        let real = [of(0.5, [0.0, 0.8, 0.2]), of(0.5, [0.0, 0.6, 0.4])];
        let mix = compare(setup, &real, &[of(0.6, [0.0, 0.72, 0.28])]);
        let pairs: Vec<(&str, &str)> =
            mix.edges.iter().map(|edge| (edge.victim.as_str(), edge.culprit.as_str())).collect();
        assert_eq!(pairs, [("A burn", "B burn"), ("A burn", "C bursty")]);
        let share = &mix.edges[0].share;
        assert!((share.real.unwrap() - 0.7).abs() < 1e-9 && share.ci95.is_some());
        assert!((share.difference.unwrap() - (0.72 / 0.7 - 1.0)).abs() < 1e-9);
        assert_eq!(share.is_within, Some(true));
        let wait = &mix.waits[0];
        assert!((wait.rdy.difference.unwrap() - 0.2).abs() < 1e-9);
        assert_eq!(wait.rdy.is_within, Some(false));
        assert!((wait.rest.unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(mix.waits[1].rdy, Compared::default(), "not measured");
        let shares = mix.edges.iter().map(|edge| &edge.share);
        assert_eq!(count(shares), (2, 2));
        assert_eq!(count(mix.waits.iter().map(|wait| &wait.rdy)), (1, 0));
    }

    #[test]
    fn simulated_mixes_have_several_culprits() {
        let all = mixes();
        assert!((3..=5).contains(&all.len()));
        for setup in &all {
            assert!(setup.guests.len() >= 3, "{setup}");
            let simulated = simulate(&host(), setup, &spread(setup), 0.3).unwrap();
            assert_eq!(simulated.len(), 1, "{setup}");
            for run in &simulated {
                let mut most = 0;
                for (victim, waited) in run.iter().enumerate() {
                    let Some(shares) = &waited.shares else {
                        continue;
                    };
                    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                    let others = shares.iter().enumerate();
                    let others = others.filter(|(at, share)| *at != victim && **share > 0.05);
                    most = most.max(others.count());
                    assert!(waited.rdy.unwrap() > 0.0, "{setup}");
                }
                assert!(most >= 2, "{setup}: no victim has two culprits: {run:?}");
            }
        }
        // With weights 1, 2 and 4, the lightest VM waits 1/3 of the time for the second and 2/3 for the heaviest.
        let last = all.last().unwrap();
        let simulated = simulate(&host(), last, &spread(last), 5.0).unwrap();
        let shares = simulated[0][0].shares.as_ref().unwrap();
        assert!((shares[1] - 1.0 / 3.0).abs() < 0.02, "{shares:?}");
        assert!((shares[2] - 2.0 / 3.0).abs() < 0.02, "{shares:?}");
        let rdy = simulated[0][0].rdy.unwrap();
        assert!((rdy - 6.0 / 7.0).abs() < 0.02, "{rdy}");
    }

    #[test]
    fn real_vcpus_wait_for_each_other() {
        let Some((mut machine, _dir)) = machine_for_tests() else {
            return;
        };
        let mut source = Choice::Plain.open().unwrap();
        let weights = mixes().pop().unwrap();
        let time = Duration::from_millis(600);
        let observed = machine.observe(&weights, time, source.as_mut());
        let Some((began, interval)) = unless_not_root(observed) else {
            return;
        };
        machine.leave().unwrap();
        assert_eq!(began, [[0], [0], [0]], "all on one pCPU");
        let waited = waits(&interval, 3);
        let shares = waited[0].shares.as_ref().expect("three share a pCPU");
        assert!(waited[0].rdy > Some(0.3), "{waited:?}");
        assert!(shares[2] > shares[1] && shares[1] > 0.05, "{waited:?}");
        assert!(waited[0].rdy > waited[2].rdy, "{waited:?}");
    }
}
