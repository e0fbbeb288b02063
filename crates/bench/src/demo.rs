//! The demo: one host divided among the same VMs in several ways. Start the VMs, go through the modes, stop everything.
//!
//! The same VMs run through all modes, so that nothing but the mode differs. In each mode: enter,
//! let it settle (not counted, the same time for every mode), count over the window, leave. A mode
//! that this host cannot enter is reported as not measured, with the reason, and the others go on; a
//! VM that ends by itself, or an interruption, ends the experiment. Whatever ends it, guards stop the
//! children and put cgroups back ([`crate::child`], [`crate::groups`], [`crate::daemon_process`]).

use std::time::Duration;
use std::time::Instant;

use tandem_linux::ProcFs;
use tandem_linux::interrupt::Interrupt;
use tandem_linux::interrupt::Interrupted;
use tandem_linux::sampler::SampleError;
use tandem_linux::sampler::Sampler;
use tandem_linux::thread::TaskState;
use tandem_microvm::Backend;
use tandem_report::experiment::Experiment;
use tandem_report::experiment::Figures;
use tandem_report::experiment::ModeResult;
use tandem_report::experiment::Sample;
use tandem_report::experiment::VmDescription;
use tandem_report::explain;
use tandem_report::progress::Progress;
use thiserror::Error;

use crate::account;
use crate::account::Window;
use crate::control::Snapshot;
use crate::cpu_time::Reading;
use crate::cpu_time::ReadingError;
use crate::daemon_process::DaemonError;
use crate::daemon_process::DaemonProcess;
use crate::daemon_process::Selected;
use crate::groups::Groups;
use crate::groups::GroupsError;
use crate::host_facts;
use crate::mode::Mode;
use crate::plan::Plan;
use crate::state_dir::StateDir;
use crate::state_dir::StateDirError;
use crate::vm_process::VmError;
use crate::vm_process::VmProcess;
use crate::vm_process::stop_all;

/// Time between two samples of the series.
pub const SAMPLE: Duration = Duration::from_millis(250);

/// CPU time of the host outside the VMs from which on a note tells of it, as a part of the pCPUs.
const OTHERS: f64 = 0.05;

/// What ends the experiment.
#[derive(Debug, Error)]
pub enum DemoError {
    /// It has nowhere to work.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// A VM failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// CPU time could not be read.
    #[error(transparent)]
    Reading(#[from] ReadingError),
    /// A vCPU's state could not be read.
    #[error(transparent)]
    State(#[from] SampleError),
    /// Somebody asked for the end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// What a mode had put in place could not be taken away.
    #[error("leaving mode {mode}")]
    Leaving {
        /// Which.
        mode: Mode,
        /// Why.
        source: ModeFailure,
    },
}

/// What merely ends a mode.
#[derive(Debug, Error)]
pub enum ModeFailure {
    /// The VMs' cgroups.
    #[error(transparent)]
    Groups(#[from] GroupsError),
    /// The daemon.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

/// How many steps of progress an experiment has.
pub fn steps(plan: &Plan) -> u64 {
    plan.modes.len() as u64 * samples(plan.settle + plan.window)
}

fn samples(time: Duration) -> u64 {
    time.as_nanos().div_ceil(SAMPLE.as_nanos()) as u64
}

/// Runs the experiment.
pub fn run(
    plan: &Plan,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Experiment, DemoError> {
    let dir = StateDir::open(&plan.state_dir)?;
    let (vms, backend, mut notes) = boot(plan, &dir, progress)?;
    let sampler = Sampler::new(ProcFs::host());
    let mut stage = Stage {
        plan,
        dir: &dir,
        progress,
        interrupt,
        vms,
        sampler,
    };
    let mut modes = Vec::new();
    for &mode in &plan.modes {
        let result = stage.mode(mode)?;
        if let Err(reason) = &result.outcome {
            progress.note(&format!("{mode}: not measured: {reason}"));
        }
        if let Ok(figures) = &result.outcome {
            notes.extend(others(plan, mode, figures));
        }
        modes.push(result);
    }
    stop_all(stage.vms)?;
    dir.finish();
    let mut experiment = describe(plan, backend, notes);
    experiment.modes = modes;
    experiment.compare_with_stock();
    Ok(experiment)
}

fn describe(plan: &Plan, backend: Backend, notes: Vec<String>) -> Experiment {
    let due = account::entitlements(plan);
    let vms = plan.vms.iter().zip(due).map(|(vm, due)| VmDescription {
        name: vm.name.clone(),
        vcpus: vm.vcpus,
        weight: vm.weight,
        workload: match vm.settings.as_slice() {
            [] => vm.workload.clone(),
            settings => format!("{} ({})", vm.workload, settings.join(", ")),
        },
        pins: vm.pins.iter().map(|pcpu| pcpu.0).collect(),
        entitlement: due.as_secs_f64(),
    });
    Experiment {
        backend: backend.to_string(),
        pcpus: plan.pcpus.len(),
        seconds: plan.window.as_secs_f64(),
        settle_seconds: plan.settle.as_secs_f64(),
        mix: plan.vms.iter().map(|vm| vm.vcpus).collect(),
        weights: plan.vms.iter().map(|vm| vm.weight).collect(),
        pinned: plan.vms.iter().all(|vm| !vm.pins.is_empty()),
        host: host_facts::read(),
        vms: vms.collect(),
        notes,
        modes: Vec::new(),
    }
}

/// CPU time that went neither to VMs nor to idleness makes figures harder to compare.
fn others(plan: &Plan, mode: Mode, figures: &Figures) -> Option<String> {
    let pcpus = plan.pcpus.len() as f64;
    let vms: f64 = figures.vms.iter().map(|vm| vm.share).sum();
    let others = pcpus - vms - figures.idle;
    (others > OTHERS * pcpus).then(|| {
        format!("In mode {mode}, {others:.2} of {pcpus} pCPUs went to the rest of the host; its work and idle \
             time cannot be compared with other modes.")
    })
}

/// Starts the VMs, on KVM if there is KVM; says in the notes if there is none.
fn boot(
    plan: &Plan,
    dir: &StateDir,
    progress: &Progress,
) -> Result<(Vec<VmProcess>, Backend, Vec<String>), VmError> {
    let wanted = plan.backend.unwrap_or(Backend::Kvm);
    match (start(plan, dir, wanted), plan.backend) {
        (Ok(vms), _) => Ok((vms, wanted, Vec::new())),
        (Err(error), Some(_)) => Err(error),
        (Err(error), None) => {
            let note = format!(
                "KVM could not be used, so the workloads ran on plain threads: {}.",
                explain(&error)
            );
            progress.note(&note);
            Ok((
                start(plan, dir, Backend::Threads)?,
                Backend::Threads,
                vec![note],
            ))
        }
    }
}

fn start(plan: &Plan, dir: &StateDir, backend: Backend) -> Result<Vec<VmProcess>, VmError> {
    let mut vms = Vec::with_capacity(plan.vms.len());
    for (i, vm) in plan.vms.iter().enumerate() {
        vms.push(VmProcess::start(
            vm,
            backend,
            plan.seed + i as u64,
            dir.logs(),
        )?);
    }
    for vm in &mut vms {
        vm.ready()?;
    }
    Ok(vms)
}

/// What a mode has put in place; dropping it takes it away.
enum Guard {
    Nothing,
    Groups(Box<Groups>),
    Daemon(DaemonProcess),
}

impl Guard {
    fn check(&mut self) -> Result<(), ModeFailure> {
        match self {
            Guard::Daemon(daemon) => Ok(daemon.check()?),
            Guard::Nothing | Guard::Groups(_) => Ok(()),
        }
    }

    fn leave(self) -> Result<(), ModeFailure> {
        match self {
            Guard::Nothing => Ok(()),
            Guard::Groups(groups) => Ok(groups.leave()?),
            Guard::Daemon(daemon) => Ok(daemon.stop()?),
        }
    }
}

struct Stage<'a> {
    plan: &'a Plan,
    dir: &'a StateDir,
    progress: &'a Progress,
    interrupt: &'a Interrupt,
    vms: Vec<VmProcess>,
    sampler: Sampler,
}

impl Stage<'_> {
    /// Goes through one mode. An error ends the experiment; what merely ends the mode is in the
    /// result.
    fn mode(&mut self, mode: Mode) -> Result<ModeResult, DemoError> {
        self.interrupt.check()?;
        let outcome = match self.enter(mode) {
            Ok(guard) => self.measure(mode, guard)?,
            Err(error) => {
                self.progress
                    .steps(samples(self.plan.settle + self.plan.window));
                Err(explain(&error))
            }
        };
        Ok(ModeResult {
            mode: mode.name().to_owned(),
            outcome,
        })
    }

    fn enter(&self, mode: Mode) -> Result<Guard, ModeFailure> {
        let plan = self.plan;
        let groups = |caps: Option<&[_]>| {
            let groups = Groups::enter(plan, &self.vms, caps, &self.dir.groups())?;
            Ok(Guard::Groups(Box::new(groups)))
        };
        match mode {
            Mode::AsIs => Ok(Guard::Nothing),
            Mode::EqualWeights => groups(None),
            Mode::HardCap => groups(Some(&account::entitlements(plan))),
            Mode::Tandem => {
                let weights = plan.vms.iter().map(|vm| vm.weight);
                let pids = self.vms.iter().map(VmProcess::pid).zip(weights).collect();
                let dir = self.dir.daemon();
                let daemon = DaemonProcess::start(&Selected::Pids(pids), &plan.daemon, &[], &dir)?;
                Ok(Guard::Daemon(daemon))
            }
        }
    }

    fn measure(
        &mut self,
        mode: Mode,
        mut guard: Guard,
    ) -> Result<Result<Figures, String>, DemoError> {
        let settling = format!("{mode}: settling");
        self.progress.say(&settling);
        let entered = Instant::now();
        let begin = entered + self.plan.settle;
        let mut series = Vec::new();
        self.watch(begin, begin, &mut series)?;
        self.progress.say(&format!(
            "{mode}: measuring {} s",
            self.plan.window.as_secs_f64()
        ));
        if let Err(error) = guard.check() {
            self.progress.steps(samples(self.plan.window));
            return Ok(Err(explain(&error)));
        }
        let (first_counters, first) = self.read()?;
        self.watch(begin, begin + self.plan.window, &mut series)?;
        let runnable = self.runnable()?;
        let (last_counters, last) = self.read()?;
        if let Err(error) = guard.check() {
            return Ok(Err(explain(&error)));
        }
        let window = Window {
            begin: first,
            end: last,
            runnable,
            work: work(&first_counters, &last_counters),
            series,
        };
        let figures = account::figures(self.plan, window);
        guard
            .leave()
            .map_err(|source| DemoError::Leaving { mode, source })?;
        Ok(Ok(figures))
    }

    /// Samples the shares until `end`, with times relative to `zero`.
    fn watch(
        &mut self,
        zero: Instant,
        end: Instant,
        series: &mut Vec<Sample>,
    ) -> Result<(), DemoError> {
        let mut before = self.reading()?;
        while Instant::now() < end {
            self.interrupt.sleep_until((before.at + SAMPLE).min(end))?;
            let now = self.reading()?;
            // What is left at the end may be too short for a rate that means anything.
            if now.at.duration_since(before.at) >= SAMPLE / 2 {
                series.push(Sample {
                    t: since(zero, now.at) - now.seconds_since(&before) / 2.0,
                    shares: now.shares_since(&before),
                });
            }
            before = now;
            self.progress.step();
        }
        Ok(())
    }

    fn reading(&mut self) -> Result<Reading, ReadingError> {
        Reading::take(&mut self.sampler, &self.vms, &self.plan.pcpus)
    }

    /// The VMs' own counters and the kernel's, as close together as can be.
    fn read(&mut self) -> Result<(Vec<Snapshot>, Reading), DemoError> {
        let reading = self.reading()?;
        for vm in &mut self.vms {
            vm.ask()?;
        }
        let counters = self
            .vms
            .iter_mut()
            .map(VmProcess::counters)
            .collect::<Result<_, _>>()?;
        Ok((counters, reading))
    }

    fn runnable(&self) -> Result<Vec<Vec<bool>>, SampleError> {
        let mut runnable = Vec::with_capacity(self.vms.len());
        for vm in &self.vms {
            let mut states = Vec::with_capacity(vm.threads().len());
            for thread in vm.threads() {
                states.push(self.sampler.read_state(thread)? == TaskState::Running);
            }
            runnable.push(states);
        }
        Ok(runnable)
    }
}

/// Seconds from `zero` to `at`, negative before it.
fn since(zero: Instant, at: Instant) -> f64 {
    if at >= zero {
        at.duration_since(zero).as_secs_f64()
    } else {
        -zero.duration_since(at).as_secs_f64()
    }
}

/// Each VM's work between two counts, and the time between them.
fn work(first: &[Snapshot], last: &[Snapshot]) -> Vec<(u64, f64)> {
    let between = |(first, last): (&Snapshot, &Snapshot)| {
        let seconds = last.t_ns.saturating_sub(first.t_ns) as f64 / 1e9;
        (
            last.work().saturating_sub(first.work()),
            seconds.max(f64::MIN_POSITIVE),
        )
    };
    first.iter().zip(last).map(between).collect()
}
