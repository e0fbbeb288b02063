//! Validates what-if simulations of recorded hosts: compares predictions with the effect on the host.
//!
//! Each mix of microVMs runs on this host, each VM in its own cgroup, and is recorded as `tandem host record` does.
//! The record becomes a scenario ([`tandem_observe::recorded`]).
//! Each [`WhatIf`] is applied both to the scenario and to the mix on this host.
//! The trial compares each VM's throughput relative to the unchanged mix.
//! Throughput is the compute time of its threads in the simulator, and its own counter of work on the host.
//! The baseline is a naive prediction without simulation ([`WhatIf::naive`]); a correct prediction is informative if the naive one is wrong.
//!
//! Rounds run all cases in turn, every other round in reverse order, so that a drift of the machine affects both sides of a ratio alike.
//! In addition to the record, the simulator gets this host's scheduler and tick.
//! It needs an otherwise idle machine: other tasks appear in the record as background, but vary in later runs.

mod figures;
mod outcome;

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tandem_host::config::Placement;
use tandem_host::discovery::DiscoveryOptions;
use tandem_host::record::{Frames, HostFrames};
use tandem_host::why::WhyError;
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_model::{Nanos, PcpuId, PcpuSet, PolicySet};
use tandem_observe::findings::KnownHost;
use tandem_observe::recorded::{Recorded, RecordedError, RecordedHost, Topology};
use tandem_observe::{Choice, ObserveError};
use tandem_policy::host::registry;
use tandem_report::progress::Progress;
use tandem_sim::scenario::load;
use tandem_sim::scenario::load::LoadError;
use tandem_sim::{Results, Scenario, World};
use tandem_validate::this_kernel;
use tandem_validate::this_kernel::UnknownRelease;
use tandem_validate::what_if::{self, NoSuchVm};
use thiserror::Error;

pub use figures::{Row, Share, TOLERANCE, WhatIfs, text};
pub use outcome::{Outcome, Round, WhatIf};

use tandem_demo::boot::boot;
use tandem_demo::control::Snapshot;
use tandem_demo::host_facts;
use tandem_demo::mode::Mode;
use tandem_demo::mode_in_force::{ModeFailure, ModeInForce};
use tandem_demo::plan::{DaemonPlan, Pinning, Plan, PlanError, place};
use tandem_demo::state_dir::{StateDir, StateDirError};
use tandem_demo::vm_process::{VmError, VmProcess, stop_all};
use tandem_demo::vm_spec::VmSpecError;

/// Length of a recorded interval.
const INTERVAL: Duration = Duration::from_secs(1);

/// Seeds of each simulation.
const SEEDS: u64 = 3;

/// A mix of VMs; what-ifs concern the first VM.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Name of the mix.
    pub name: &'static str,
    /// Description of the VMs.
    pub what: &'static str,
    vms: &'static [&'static str],
    pinning: Pinning,
}

/// The mixes.
pub const MIXES: [Mix; 3] = [
    Mix {
        name: "bursty",
        what: "a VM that a clock wakes beside two that compute, two vCPUs each, pinned",
        vms: &["name=bursty,vcpus=2,workload=bursty", "name=burn1,vcpus=2", "name=burn2,vcpus=2"],
        pinning: Pinning::RoundRobin,
    },
    Mix {
        name: "server",
        what: "a server that computes for 0.3 s and then serves requests for 0.15 s, beside two VMs that compute, two vCPUs each, free",
        vms: &[
            "name=server,vcpus=2,workload=server,set.busy=300000,set.serve=150000",
            "name=burn1,vcpus=2",
            "name=burn2,vcpus=2",
        ],
        pinning: Pinning::None,
    },
    Mix {
        name: "mutex",
        what: "a VM whose two vCPUs share a mutex, one that a clock wakes, one that computes, two vCPUs each, free",
        vms: &[
            "name=mutex,vcpus=2,workload=mutex",
            "name=bursty,vcpus=2,workload=bursty",
            "name=burn,vcpus=2",
        ],
        pinning: Pinning::None,
    },
];

impl WhatIf {
    /// Applies the what-if to the plan for this host.
    fn plan(self, recorded: &Plan) -> Plan {
        let mut plan = recorded.clone();
        match self {
            WhatIf::Fair => {}
            WhatIf::Neighbours => plan.vms.truncate(1 + plan.vms.len().saturating_sub(1) / 2),
            WhatIf::Vcpu => {
                if let Some(first) = plan.vms.first_mut() {
                    first.vcpus += 1;
                    if !first.pins.is_empty() {
                        let all: Vec<PcpuId> = plan.pcpus.iter().collect();
                        first.pins.push(all[first.pins.len() % all.len()]);
                    }
                }
            }
        }
        plan
    }

    /// Applies the what-if to the recorded host for the simulator.
    fn host(self, recorded: &RecordedHost, plan: &Plan) -> Result<RecordedHost, NoSuchVm> {
        let (mut host, then) = (recorded.clone(), self.plan(plan));
        match self {
            WhatIf::Fair => host.policies.push("fair".to_owned()),
            WhatIf::Neighbours => {
                for vm in &plan.vms[then.vms.len()..] {
                    what_if::remove(&mut host, &vm.name)?;
                }
            }
            WhatIf::Vcpu => {
                for vm in then.vms.iter().take(1) {
                    let pins = vm.pins.last().map(|pcpu| PcpuSet::from_iter([*pcpu]));
                    what_if::add_vcpu(&mut host, &vm.name, pins)?;
                }
            }
        }
        Ok(host)
    }

    fn mode(this: Option<WhatIf>) -> Mode {
        match this {
            Some(WhatIf::Fair) => Mode::Tandem,
            _ => Mode::EqualWeights,
        }
    }
}

/// Settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of rounds, each with its own record.
    pub rounds: u32,
    /// Length of the record and of the measured time, in whole seconds.
    pub seconds: u64,
    /// Run time of the VMs before that.
    pub settle: Duration,
    /// Directory for journals and logs.
    pub state_dir: PathBuf,
}

/// Error that ends the measurement.
#[derive(Debug, Error)]
pub enum WhatIfError {
    /// Too few rounds or seconds.
    #[error("{rounds} rounds of {seconds} s are not possible: at least 1 round of at least 8 s")]
    Settings {
        /// Number of rounds.
        rounds: u32,
        /// Seconds of a round.
        seconds: u64,
    },
    /// Opening the state directory failed.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The VMs of a mix are invalid.
    #[error(transparent)]
    Spec(#[from] VmSpecError),
    /// The VMs of a mix do not fit this host.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Reading the usable pCPUs failed.
    #[error(transparent)]
    Pcpus(#[from] host_facts::PcpusError),
    /// The scheduler of this kernel is unknown.
    #[error(transparent)]
    Release(#[from] UnknownRelease),
    /// A VM failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The VMs' cgroups or the daemon failed.
    #[error(transparent)]
    Mode(#[from] ModeFailure),
    /// Opening the source of measurements failed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// Recording the host failed.
    #[error(transparent)]
    Look(#[from] WhyError),
    /// The record yields no scenario.
    #[error(transparent)]
    Recorded(#[from] RecordedError),
    /// A VM is not in the record.
    #[error(transparent)]
    NoSuchVm(#[from] NoSuchVm),
    /// Loading the scenario failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A VM did no work.
    #[error("in mix {mix}, {vm} got nothing done; record for longer")]
    NoWork {
        /// The mix.
        mix: &'static str,
        /// The VM.
        vm: String,
    },
    /// Interrupted by a signal.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Work per second of the VMs of a plan, in their order, and the record, if the run was recorded.
struct Live {
    work: Vec<f64>,
    recorded: Option<Recorded>,
}

/// Measures all mixes.
pub fn measure(
    settings: &Settings,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<WhatIfs, WhatIfError> {
    if settings.rounds == 0 || settings.seconds < 8 {
        return Err(WhatIfError::Settings { rounds: settings.rounds, seconds: settings.seconds });
    }
    let host = host_facts::read();
    let scheduler = this_kernel::scheduler(&host.kernel)?;
    let mut figures = WhatIfs {
        scheduler: scheduler.to_owned(),
        tick_ns: this_kernel::tick().0,
        load_average: this_kernel::load_average(),
        pcpus: host_facts::usable_pcpus()?.len(),
        rounds: settings.rounds,
        seconds: settings.seconds,
        settle_seconds: settings.settle.as_secs_f64(),
        ..WhatIfs::new(host)
    };
    let dir = StateDir::open(&settings.state_dir)?;
    let stage = Stage { settings, scheduler, dir: &dir, progress, interrupt };
    for mix in MIXES {
        let plan = plan(&mix, settings)?;
        let mut rounds = Vec::new();
        for round in 1..=settings.rounds {
            let part = format!("{}, round {round}", mix.name);
            rounds.push(stage.round(&mix, &plan, u64::from(round), &part)?);
        }
        figures.add(mix.name, mix.what, &rounds);
    }
    dir.finish();
    Ok(figures)
}

/// Places a mix on this host.
fn plan(mix: &Mix, settings: &Settings) -> Result<Plan, WhatIfError> {
    let pcpus = host_facts::usable_pcpus()?;
    let specs = mix.vms.iter().map(|text| text.parse());
    let specs: Vec<_> = specs.collect::<Result<_, VmSpecError>>()?;
    Ok(Plan {
        vms: place(specs, &pcpus, mix.pinning)?,
        modes: vec![Mode::EqualWeights],
        window: Duration::from_secs(settings.seconds),
        settle: settings.settle,
        backend: None,
        seed: 1,
        daemon: DaemonPlan {
            period_ms: None,
            scan_ms: None,
            placement: Placement::Turns,
            policies: Some(registry::set(["fair"]).unwrap_or(PolicySet::NONE)),
            asymmetric: None,
            counters: None,
        },
        state_dir: settings.state_dir.clone(),
        pcpus,
        alone: None,
    })
}

struct Stage<'a> {
    settings: &'a Settings,
    scheduler: &'static str,
    dir: &'a StateDir,
    progress: &'a Progress,
    interrupt: &'a Interrupt,
}

impl Stage<'_> {
    /// Records the mix, and applies all what-ifs to the host and to the scenario.
    fn round(&self, mix: &Mix, plan: &Plan, round: u64, part: &str) -> Result<Round, WhatIfError> {
        let mut cases = vec![None];
        cases.extend(WhatIf::ALL.map(Some));
        if round.is_multiple_of(2) {
            cases.reverse();
        }
        let mut live: Vec<(Option<WhatIf>, Live)> = Vec::new();
        for case in cases {
            let words = case.map_or("as it is", WhatIf::words);
            self.progress.say(&format!("{part}: {words}"));
            live.push((case, self.live(case, plan, round)?));
            self.progress.step();
        }
        let mut of = |case: Option<WhatIf>| {
            let at = live.iter().position(|(other, _)| *other == case);
            at.map(|at| live.swap_remove(at).1)
        };
        let Some((before, recorded)) = of(None).and_then(|live| Some((live.work, live.recorded?)))
        else {
            return Err(RecordedError::Empty.into());
        };
        let host = self.host(recorded)?;
        let simulated = simulate(&host)?;
        let mut all = Round::default();
        for vm in &plan.vms {
            let found = host.vms.iter().find(|other| other.name == vm.name);
            let vcpus = found.iter().flat_map(|vm| &vm.vcpus);
            let share = |vcpu: &tandem_observe::recorded::HostVcpu| {
                vcpu.demand.ran.0 as f64 / vcpu.demand.wall.0.max(1) as f64
            };
            let recorded = vcpus.map(share).sum();
            let received = mean(&simulated, |results| received(results, &vm.name));
            all.shares.push((vm.name.clone(), recorded, received));
        }
        for what_if in WhatIf::ALL {
            let Some(after) = of(Some(what_if)).map(|live| live.work) else {
                continue;
            };
            let then = simulate(&what_if.host(&host, plan)?)?;
            // Removed VMs are not compared.
            for (at, ((vm, before), after)) in plan.vms.iter().zip(&before).zip(&after).enumerate()
            {
                let throughput = |all: &[Results]| {
                    mean(all, |results| results.throughput(&vm.name).unwrap_or(0.0))
                };
                let ratio = |after: f64, before: f64| {
                    if before > 0.0 && after > 0.0 {
                        Ok(after / before)
                    } else {
                        Err(WhatIfError::NoWork { mix: mix.name, vm: vm.name.clone() })
                    }
                };
                all.outcomes.push(Outcome {
                    what_if,
                    vm: vm.name.clone(),
                    live: ratio(*after, *before)?,
                    simulated: ratio(throughput(&then), throughput(&simulated))?,
                    naive: what_if.naive(at == 0, vm.vcpus),
                });
            }
        }
        Ok(all)
    }

    /// Converts the record to a host with this kernel's scheduler and tick.
    fn host(&self, recorded: Recorded) -> Result<RecordedHost, WhatIfError> {
        let settle = Nanos(self.settings.settle.as_nanos() as u64);
        Ok(RecordedHost {
            scheduler: self.scheduler,
            tick: Some(this_kernel::tick()),
            warmup: settle,
            duration: settle + Nanos::from_secs(self.settings.seconds),
            ..recorded.host("microVMs")?
        })
    }

    /// Runs the mix on this host; records it if there is no what-if.
    fn live(&self, case: Option<WhatIf>, plan: &Plan, seed: u64) -> Result<Live, WhatIfError> {
        let plan = case.map_or_else(|| plan.clone(), |case| case.plan(plan));
        let mut vms = boot(&plan.vms, plan.backend, seed, self.dir)?.vms;
        let mut mode = ModeInForce::enter(WhatIf::mode(case), &plan, &vms, self.dir)?;
        self.interrupt.sleep(plan.settle)?;
        let mut recording = match case {
            Some(_) => None,
            None => {
                let source = Choice::Plain.open()?;
                let pids = vms.iter().map(|vm| vm.pid().to_string());
                let options =
                    DiscoveryOptions { without_kvm: pids.collect(), ..DiscoveryOptions::default() };
                let frames = HostFrames::begin(source, options, &self.dir.daemon())?;
                Some((frames, Recorded::new()))
            }
        };
        let before = counters(&mut vms)?;
        let begin = Instant::now();
        let mut until = begin;
        while until < begin + plan.window {
            until += INTERVAL;
            self.interrupt.sleep_until(until)?;
            if let Some((frames, recorded)) = &mut recording {
                let frame = frames.frame()?;
                for (vm, known) in &frame.vms {
                    recorded.name(*vm, &known.name, known.weight);
                }
                if let Some(KnownHost { caches, cores, .. }) = frame.host {
                    recorded.topology(Topology { caches, cores });
                }
                recorded.add(&frame.interval);
            }
        }
        let after = counters(&mut vms)?;
        mode.check()?;
        mode.leave()?;
        stop_all(vms)?;
        let work = before.iter().zip(&after).map(|(before, after)| {
            let seconds = after.t_ns.saturating_sub(before.t_ns) as f64 / 1e9;
            after.work().saturating_sub(before.work()) as f64 / seconds.max(f64::MIN_POSITIVE)
        });
        Ok(Live { work: work.collect(), recorded: recording.map(|(_, recorded)| recorded) })
    }
}

fn counters(vms: &mut [VmProcess]) -> Result<Vec<Snapshot>, VmError> {
    vms.iter_mut().try_for_each(VmProcess::ask)?;
    vms.iter_mut().map(VmProcess::counters).collect()
}

/// Simulates a host with several seeds.
fn simulate(host: &RecordedHost) -> Result<Vec<Results>, LoadError> {
    let scenario = load::from_text("what-if", &host.toml())?;
    let run = |seed| {
        let scenario = Scenario { seed, ..scenario.clone() };
        World::new(&scenario).run()
    };
    // The seeds are independent, so the results do not depend on parallelism.
    let all = std::thread::scope(|scope| {
        let run = &run;
        let seeds: Vec<_> = (1..=SEEDS).map(|seed| scope.spawn(move || run(seed))).collect();
        let ended = seeds.into_iter().map(|seed| seed.join());
        let results = ended.map(|one| one.unwrap_or_else(|panic| resume_unwind(panic)));
        results.collect()
    });
    Ok(all)
}

fn mean(all: &[Results], of: impl Fn(&Results) -> f64) -> f64 {
    all.iter().map(of).sum::<f64>() / all.len().max(1) as f64
}

/// Returns the CPU time that a VM received, in pCPUs.
fn received(results: &Results, name: &str) -> f64 {
    let vm = results.vms.iter().find(|vm| vm.name == name);
    let received = vm.map_or(Nanos::ZERO, |vm| vm.received);
    received.as_secs_f64() / results.measured.as_secs_f64().max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use tandem_observe::recorded::{Demand, HostVcpu, HostVm};

    use super::*;
    use tandem_demo::test_plan;

    fn host(plan: &Plan) -> RecordedHost {
        let vm = |vm: &tandem_demo::plan::VmPlan| HostVm {
            name: vm.name.clone(),
            weight: 1024.0,
            vcpus: vec![
                HostVcpu {
                    demand: Demand {
                        wall: Nanos::from_secs(1),
                        ran: Nanos::from_secs(1),
                        cycles: 1,
                        ..Demand::default()
                    },
                    pins: None,
                };
                vm.vcpus as usize
            ],
            is_background: false,
            threads_of: None,
            remarks: Vec::new(),
        };
        RecordedHost { pcpus: 2, vms: plan.vms.iter().map(vm).collect(), ..RecordedHost::default() }
    }

    #[test]
    fn changes_apply_to_host_and_scenario_alike() {
        let plan = test_plan::plan("2,2,1", "1,1,1", "burn", "0-1");
        let recorded = host(&plan);
        for what_if in WhatIf::ALL {
            let (live, simulated) = (what_if.plan(&plan), what_if.host(&recorded, &plan).unwrap());
            let vcpus =
                |plan: &Plan| plan.vms.iter().map(|vm| vm.vcpus as usize).collect::<Vec<_>>();
            let of_host: Vec<usize> = simulated.vms.iter().map(|vm| vm.vcpus.len()).collect();
            assert_eq!(vcpus(&live), of_host, "{what_if:?}");
            assert_ne!((simulated, vcpus(&live)), (recorded.clone(), vcpus(&live)), "{what_if:?}");
        }
        let live = WhatIf::Vcpu.plan(&plan);
        assert_eq!(live.vms[0].pins, [PcpuId(0), PcpuId(1), PcpuId(0)]);
        let simulated = WhatIf::Vcpu.host(&recorded, &plan).unwrap();
        assert_eq!(simulated.vms[0].vcpus[2].pins, Some("0".parse().unwrap()));
        assert_eq!(WhatIf::Neighbours.plan(&plan).vms.len(), 2);
        assert_eq!(WhatIf::Fair.host(&recorded, &plan).unwrap().policies, ["fair"]);
    }

    #[test]
    fn mixes_can_be_placed_and_simulated() {
        for mix in MIXES {
            let specs = mix.vms.iter().map(|text| text.parse().unwrap()).collect();
            let pcpus = "0-1".parse().unwrap();
            let vms = place(specs, &pcpus, mix.pinning).unwrap();
            assert_eq!(vms.len(), 3, "{}", mix.name);
            let plan = Plan { vms, ..test_plan::plan("1", "1", "burn", "0-1") };
            let mut host = host(&plan);
            (host.warmup, host.duration) = (Nanos::ZERO, Nanos::from_millis(50));
            let results = simulate(&host).unwrap();
            assert_eq!(results.len() as u64, SEEDS);
            assert!(mean(&results, |results| received(results, &plan.vms[0].name)) > 0.3);
        }
    }
}
