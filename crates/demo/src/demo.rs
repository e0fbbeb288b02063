//! The demo: shares one host among the same VMs in several modes.
//!
//! If requested, each distinct VM is first measured alone ([`crate::alone`]).
//! The same VMs then run through all modes, so that only the mode differs.
//! Each mode is entered, settles for a fixed time that is not counted, is measured over the window, and is left.
//! A mode that this host cannot enter is reported as not measured, with the reason; the other modes continue.
//! An unexpected exit of a VM or an interruption ends the experiment.
//! In every case guards stop the children and revert cgroups ([`crate::child`], [`crate::mode_in_force`]).

use std::time::{Duration, Instant};

use tandem_linux::ProcFs;
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_linux::sampler::{SampleError, Sampler};
use tandem_linux::thread::TaskState;
use tandem_microvm::Backend;
use tandem_report::experiment::{Experiment, Figures, ModeResult, VmDescription};
use tandem_report::explain;
use tandem_report::progress::Progress;
use tandem_report::service::{Alone, Completion};
use thiserror::Error;

use crate::account::Window;
use crate::alone::{AloneError, AloneResults, MeasuredAlone};
use crate::boot::boot;
use crate::control::Snapshot;
use crate::cpu_time::{Reading, ReadingError};
use crate::mode::Mode;
use crate::mode_in_force::{ModeFailure, ModeInForce};
use crate::plan::Plan;
use crate::state_dir::{StateDir, StateDirError};
use crate::timeslices::{TICK, Tick, Timeslices, TimeslicesError};
use crate::vm_process::{VmError, VmProcess, stop_all};
use crate::{account, alone, completion, host_facts, windows};

/// An error that ends the experiment.
#[derive(Debug, Error)]
pub enum DemoError {
    /// The state directory is unusable.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// A VM failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// A VM could not be measured alone.
    #[error(transparent)]
    Alone(#[from] AloneError),
    /// CPU time could not be read.
    #[error(transparent)]
    Reading(#[from] ReadingError),
    /// The accounts of the vCPUs could not be read.
    #[error(transparent)]
    Timeslices(#[from] TimeslicesError),
    /// A vCPU's state could not be read.
    #[error(transparent)]
    State(#[from] SampleError),
    /// The user interrupted the experiment.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The changes of a mode could not be reverted.
    #[error("leaving mode {mode}")]
    Leaving {
        /// The mode.
        mode: Mode,
        /// The cause.
        source: ModeFailure,
    },
}

/// Returns the number of progress steps of an experiment, without the measurements of VMs alone.
pub fn steps(plan: &Plan) -> u64 {
    plan.modes.len() as u64 * ticks(plan.settle + plan.window)
}

/// Returns the number of progress steps of the measurements alone: one for each distinct VM.
pub fn steps_alone<'a>(plans: impl IntoIterator<Item = &'a Plan> + Clone) -> u64 {
    alone::distinct(plans.into_iter().filter(|plan| plan.alone.is_some()))
}

fn ticks(time: Duration) -> u64 {
    time.as_nanos().div_ceil(TICK.as_nanos()) as u64
}

/// Runs the experiment; `known` caches the results of VMs alone.
pub fn run(
    plan: &Plan,
    known: &mut AloneResults,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Experiment, DemoError> {
    let dir = StateDir::open(&plan.state_dir)?;
    let alone = match plan.alone {
        Some(time) => Some(known.of(plan, time, &dir, progress, interrupt)?),
        None => None,
    };
    let backend = known.backend().or(plan.backend);
    let booted = boot(&plan.vms, backend, plan.seed, &dir)?;
    let mut notes = known.notes().to_vec();
    notes.extend(booted.note);
    notes.iter().for_each(|note| progress.note(note));
    let mut stage = Stage {
        plan,
        dir: &dir,
        progress,
        interrupt,
        timeslices: Timeslices::open(&booted.vms)?,
        vms: booted.vms,
        sampler: Sampler::new(ProcFs::host()),
        alone: alone.as_deref(),
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
    let mut experiment = describe(plan, booted.backend, notes, alone.as_deref());
    experiment.modes = modes;
    experiment.compare_with_stock();
    Ok(experiment)
}

fn describe(
    plan: &Plan,
    backend: Backend,
    notes: Vec<String>,
    alone: Option<&[MeasuredAlone]>,
) -> Experiment {
    let entitlements = account::entitlements(plan);
    let deserved = alone.map(|alone| account::deserved(plan, alone));
    let alone = |i: usize| {
        let (measured, deserved) = (alone?.get(i)?, deserved.as_ref()?.get(i)?);
        Some(Alone {
            work_per_second: measured.work_per_second,
            share: measured.share,
            deserved: *deserved,
        })
    };
    let vms = plan.vms.iter().zip(entitlements).enumerate();
    let vms = vms.map(|(i, (vm, entitlement))| VmDescription {
        name: vm.name.clone(),
        vcpus: vm.vcpus,
        weight: vm.weight,
        workload: vm.description(),
        pins: vm.pins.iter().map(|pcpu| pcpu.0).collect(),
        entitlement: entitlement.as_secs_f64(),
        alone: alone(i),
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

/// Returns a note if the rest of the host used significant CPU time during a mode.
fn others(plan: &Plan, mode: Mode, figures: &Figures) -> Option<String> {
    let pcpus = plan.pcpus.len();
    let others = account::others_in(pcpus, figures)?;
    Some(format!(
        "In mode {mode}, the rest of the host used {others:.2} of {pcpus} pCPUs; its work and idle time cannot be compared with \
         other modes."
    ))
}

struct Stage<'a> {
    plan: &'a Plan,
    dir: &'a StateDir,
    progress: &'a Progress,
    interrupt: &'a Interrupt,
    vms: Vec<VmProcess>,
    sampler: Sampler,
    timeslices: Timeslices,
    alone: Option<&'a [MeasuredAlone]>,
}

impl Stage<'_> {
    /// Runs one mode. An error ends the experiment; failures of only this mode are in the result.
    fn mode(&mut self, mode: Mode) -> Result<ModeResult, DemoError> {
        self.interrupt.check()?;
        let outcome = match ModeInForce::enter(mode, self.plan, &self.vms, self.dir) {
            Ok(active) => self.measure(mode, active)?,
            Err(error) => {
                self.progress.steps(ticks(self.plan.settle + self.plan.window));
                Err(explain(&error))
            }
        };
        Ok(ModeResult { mode: mode.name().to_owned(), outcome })
    }

    fn measure(
        &mut self,
        mode: Mode,
        mut active: ModeInForce,
    ) -> Result<Result<Figures, String>, DemoError> {
        let settling = format!("{mode}: settling");
        self.progress.say(&settling);
        let entered = Instant::now();
        let begin = entered + self.plan.settle;
        let before = self.watch(entered, begin)?;
        self.progress.say(&format!("{mode}: measuring {} s", self.plan.window.as_secs_f64()));
        if let Err(error) = active.check() {
            self.progress.steps(ticks(self.plan.window));
            return Ok(Err(explain(&error)));
        }
        let (first_counters, first) = self.read()?;
        let ticks = self.watch(begin, begin + self.plan.window)?;
        let runnable = self.runnable()?;
        let (last_counters, last) = self.read()?;
        if let Err(error) = active.check() {
            return Ok(Err(explain(&error)));
        }
        let mut series = windows::series(&before, begin);
        series.extend(windows::series(&ticks, begin));
        let window = Window {
            begin: first,
            end: last,
            runnable,
            work: work(&first_counters, &last_counters),
            completions: completions(self.plan, &first_counters, &last_counters),
            ticks,
            series,
        };
        let mut figures = account::figures(self.plan, window, self.alone);
        for (vm, spins) in figures.vms.iter_mut().zip(active.spins(&self.vms)) {
            vm.spins = spins;
        }
        active.leave().map_err(|source| DemoError::Leaving { mode, source })?;
        Ok(Ok(figures))
    }

    /// Reads the vCPUs' accounts now and every [`TICK`] until `end`; missed ticks are omitted.
    fn watch(&self, begin: Instant, end: Instant) -> Result<Vec<Tick>, DemoError> {
        let mut ticks = vec![self.timeslices.read()?];
        let mut due = begin;
        while due < end {
            let late = Instant::now().saturating_duration_since(due).as_nanos() / TICK.as_nanos();
            let missed = u32::try_from(late).unwrap_or(u32::MAX);
            due = (due + TICK.saturating_mul(missed.saturating_add(1))).min(end);
            self.interrupt.sleep_until(due)?;
            ticks.push(self.timeslices.read()?);
            self.progress.steps(u64::from(missed) + 1);
        }
        Ok(ticks)
    }

    fn reading(&mut self) -> Result<Reading, ReadingError> {
        Reading::take(&mut self.sampler, &self.vms, &self.plan.pcpus)
    }

    /// Reads the kernel's counters and the VMs' own in direct succession.
    fn read(&mut self) -> Result<(Vec<Snapshot>, Reading), DemoError> {
        let reading = self.reading()?;
        for vm in &mut self.vms {
            vm.ask()?;
        }
        let counters = self.vms.iter_mut().map(VmProcess::counters).collect::<Result<_, _>>()?;
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

/// Returns each VM's completion times between two snapshots.
fn completions(plan: &Plan, first: &[Snapshot], last: &[Snapshot]) -> Vec<Option<Completion>> {
    let counts = first.iter().zip(last);
    let vms = plan.vms.iter().zip(counts);
    vms.map(|(vm, (first, last))| completion::between(vm, first, last)).collect()
}

/// Returns each VM's work between two snapshots, and the seconds between them.
fn work(first: &[Snapshot], last: &[Snapshot]) -> Vec<(u64, f64)> {
    let between = |(first, last): (&Snapshot, &Snapshot)| {
        let seconds = last.t_ns.saturating_sub(first.t_ns) as f64 / 1e9;
        (last.work().saturating_sub(first.work()), seconds.max(f64::MIN_POSITIVE))
    };
    first.iter().zip(last).map(between).collect()
}
