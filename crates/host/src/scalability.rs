//! `tandem host scalability`: how far a VM scales, and how far it could, from the states of its vCPUs.
//!
//! Source: Shan's dissertation (NJIT 2018), chapter 4, with the formulas and types of [`tandem_policy::scalability`].
//! The hardware figures are derived from the VM, because the program cannot run alone on hardware here:
//!
//! ```text
//! working = time on pCPUs − POLL          idle = HALT + POLL
//! active  = N · working ÷ (working + idle)
//! blocks  = voluntary switches of vCPUs' threads ÷ (working + idle), of vCPUs that ran
//! ```
//!
//! RDY, LIM and CSTP are left out, as hardware has none; without CSTP `active` may be too low on a busy host.
//! In the VM, switching is VMM and POLL, and the unused time is the rest of its fair share by weight
//! (of what it received, if that is more).
//! Pins and quotas are left out.
//! RUN includes spinning, so efficiencies and speedups are upper bounds ([`VmScalability::not_measured`]).

pub mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tandem_model::observation::Level;
use tandem_model::states::interval::{SourceName, VmInterval};
use tandem_model::states::sum::IntervalSum;
use tandem_model::{Nanos, State, VmId, Weight};
use tandem_observe::record::{Damage, Record, RecordError, Wanted};
use tandem_observe::{Interval, Source};
use tandem_policy::fair_share::{Claim, LeveledClaim, fair_shares_by_level};
use tandem_policy::scalability::{
    Features, Fraction, PhysicalRun, Speedup, Type, VirtualRun, potential_efficiency,
};
use thiserror::Error;

use crate::discovery::DiscoveryOptions;
use crate::replay::RecordedMatches;
use crate::select::VmPattern;
use crate::watch::Look as HostLook;
use crate::why::{WhyError, select_vms};

/// The version of the JSON documents.
pub const SCHEMA: u32 = 1;

/// The slice of a thread on one pCPU. Source: kernel/sched/fair.c, `sysctl_sched_base_slice` of 6.6.
const BASE_SLICE: Nanos = Nanos(750_000);

/// Number of pCPUs from which slices no longer grow. Source: kernel/sched/fair.c, `get_update_sysctl_factor`.
const MAX_PCPUS: usize = 8;

/// Why there is no analysis.
#[derive(Debug, Error)]
pub enum ScalabilityError {
    /// The host cannot be observed, or has no such VM.
    #[error(transparent)]
    Look(#[from] WhyError),
    /// The record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record has no interval.
    #[error("{} holds no interval yet; record for some seconds", .0.display())]
    Empty(PathBuf),
    /// The intervals cannot be read.
    #[error("{}: nothing can be read: {damage}", .folder.display())]
    Lost {
        /// The record.
        folder: PathBuf,
        /// The first damage.
        damage: Damage,
    },
}

/// Voluntary switches of the threads of a VM's vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Their number.
    Counted(u64),
    /// Unknown, but at most the number of times that vCPUs were put on pCPUs.
    Unknown,
}

/// Configuration of a VM, apart from its interval.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownVm {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its configured weight.
    pub weight: Weight,
    /// The cgroups above its own, from the top; empty if all VMs share one, or if they are unknown.
    pub levels: Vec<Level>,
    /// Number of times that its vCPUs blocked.
    pub blocks: Blocks,
}

/// The analysis of some VMs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Source of the figures.
    pub source: SourceName,
    /// Length of the interval, in seconds.
    pub seconds: f64,
    /// A vCPU that blocks once within this time synchronizes often, in ns.
    pub timeslice: Nanos,
    /// The VMs, by name.
    pub vms: Vec<VmScalability>,
}

/// The analysis of one VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmScalability {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// vCPUs, N.
    pub n: u32,
    /// Mean number of active vCPUs, as on hardware; `None` for a VM that never ran.
    pub parallelism: Option<f64>,
    /// Voluntary switches of a vCPU per second, as on hardware; `None` if it is not measured.
    pub synchronization: Option<f64>,
    /// Its possible types, 1 … 4; several if a figure is missing.
    pub types: Vec<u8>,
    /// Name of its type, if there is only one.
    pub class: Option<Type>,
    /// Upper bound on hardware.
    pub hardware: Option<Scaling>,
    /// Upper bound in the VM.
    pub vm: Option<VmScaling>,
    /// Figures that are not measured.
    pub not_measured: Vec<NotMeasured>,
}

/// Used and lost time, if none was lost to spinning.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scaling {
    /// Used part of the available CPU time.
    pub efficiency: Fraction,
    /// N times the efficiency.
    pub speedup: Speedup,
}

/// Scaling in the VM.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct VmScaling {
    /// The fair share, in pCPUs.
    pub share: f64,
    /// Received time, in pCPUs.
    pub received: f64,
    /// Used and lost part of the allocated time.
    #[serde(flatten)]
    pub scaling: Scaling,
    /// Maximum efficiency: min(1, utilization on hardware ÷ share).
    pub potential_efficiency: Option<Fraction>,
}

/// A missing figure and its requirement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotMeasured {
    /// The figure.
    pub what: &'static str,
    /// Effect on the other figures, and the requirement.
    pub want: String,
}

/// Returns the slice of a thread on a host with this many pCPUs: 0.75 ms · (1 + log₂ min(pCPUs, 8)).
pub fn timeslice(pcpus: usize) -> Nanos {
    let log = pcpus.clamp(1, MAX_PCPUS).ilog2();
    Nanos(BASE_SLICE.0 * u64::from(1 + log))
}

/// Analyzes the VMs of an interval that `is_asked` selects; all VMs share the host.
pub fn analyze(
    interval: &Interval,
    known: &BTreeMap<VmId, KnownVm>,
    is_asked: impl Fn(VmId) -> bool,
) -> Analysis {
    let weighs = |vm| match known.get(&vm) {
        Some(known) => (known.weight, known.levels.as_slice()),
        None => (Weight::constant(1.0), &[][..]),
    };
    analyze_with(interval, known, &fair(interval, weighs), is_asked)
}

/// Like [`analyze`], with these fair shares as times.
fn analyze_with(
    interval: &Interval,
    known: &BTreeMap<VmId, KnownVm>,
    fair: &BTreeMap<VmId, Nanos>,
    is_asked: impl Fn(VmId) -> bool,
) -> Analysis {
    let timeslice = timeslice(interval.host.pcpus);
    let mut vms: Vec<VmScalability> = interval
        .vms
        .iter()
        .filter(|vm| is_asked(vm.vm))
        .filter_map(|vm| {
            let fair = fair.get(&vm.vm).copied().unwrap_or_default();
            Some(of_vm(vm, known.get(&vm.vm)?, fair, interval, timeslice))
        })
        .collect();
    vms.sort_by(|one, two| (&one.name, one.pid).cmp(&(&two.name, two.pid)));
    Analysis {
        schema: SCHEMA,
        source: interval.source,
        seconds: interval.length.as_secs_f64(),
        timeslice,
        vms,
    }
}

/// Returns the fair share of each VM: by weight, level by level, at most the time that its vCPUs can use.
/// A VM that was there for a part of the interval gets the share of that part.
fn fair<'a>(
    interval: &Interval,
    weighs: impl Fn(VmId) -> (Weight, &'a [Level]),
) -> BTreeMap<VmId, Nanos> {
    let span = interval.length;
    let times = |count: usize| Nanos(span.0.saturating_mul(count as u64));
    let claims: Vec<LeveledClaim<'_>> = interval
        .vms
        .iter()
        .map(|vm| {
            let (weight, levels) = weighs(vm.vm);
            LeveledClaim {
                levels,
                claim: Claim::always_runnable(weight, times(vm.vcpus.len()), span),
            }
        })
        .collect();
    let shares = fair_shares_by_level(times(interval.host.pcpus), span, &claims);
    let while_there = |(vm, share): (&VmInterval, Nanos)| {
        let wall = vm.times().unwrap_or_default().wall();
        let there = wall.0 / (vm.vcpus.len() as u64).max(1);
        let part = there as f64 / span.0.max(1) as f64;
        (vm.vm, Nanos((share.0 as f64 * part) as u64))
    };
    let shares = interval.vms.iter().zip(shares);
    shares.map(while_there).collect()
}

/// Times of a VM, for the formulas.
struct Spent {
    wall: Nanos,
    received: Nanos,
    working: Nanos,
    idle: Nanos,
    switching: Nanos,
    halted: Nanos,
}

impl Spent {
    fn of(vm: &VmInterval) -> Spent {
        let sum = vm.times().unwrap_or_default();
        let get = |state| sum.get(state).unwrap_or_default();
        let received: Nanos = vm.vcpus.iter().map(|vcpu| vcpu.ran).sum();
        Spent {
            wall: sum.wall(),
            received,
            working: received.saturating_sub(get(State::Poll)),
            idle: get(State::Halted) + get(State::Poll),
            switching: (get(State::Vmm) + get(State::Poll)).min(received),
            halted: get(State::Halted),
        }
    }

    /// Returns the equivalent run on hardware; `None` if it neither worked nor idled.
    fn physical(&self, cores: u32) -> Option<PhysicalRun> {
        let execution = Nanos((self.working + self.idle).0 / u64::from(cores.max(1)));
        (execution > Nanos::ZERO).then(|| PhysicalRun {
            cores,
            execution,
            idle: self.idle.min(Nanos(execution.0 * u64::from(cores))),
            busy_waiting: Nanos::ZERO,
        })
    }
}

fn of_vm(
    vm: &VmInterval,
    known: &KnownVm,
    fair: Nanos,
    interval: &Interval,
    timeslice: Nanos,
) -> VmScalability {
    let n = vm.vcpus.len() as u32;
    let spent = Spent::of(vm);
    let span = Nanos(spent.wall.0 / u64::from(n.max(1)));
    let physical = spent.physical(n);
    let utilization = physical.and_then(|run| run.efficiency().ok());
    let hardware = physical.and_then(|run| {
        Some(Scaling { efficiency: run.efficiency().ok()?, speedup: run.speedup().ok()? })
    });
    let parallelism = utilization.map(|used| used.get() * f64::from(n));
    let synchronization =
        parallelism.and_then(|_| blocks_per_second(vm, known.blocks, &spent, timeslice));
    let mut types =
        parallelism.map_or_else(Vec::new, |active| types(n, active, synchronization, timeslice));
    types.sort_by_key(|class| class.number());
    VmScalability {
        name: known.name.clone(),
        pid: known.pid,
        n,
        parallelism,
        synchronization: match synchronization {
            Some(Rate::Measured(rate)) => Some(rate),
            _ => None,
        },
        class: match types.as_slice() {
            [only] => Some(*only),
            _ => None,
        },
        types: types.into_iter().map(Type::number).collect(),
        hardware,
        vm: in_vm(n, &spent, fair, utilization, span),
        not_measured: not_measured(vm, synchronization, physical.is_some(), interval.source),
    }
}

/// Blocks of a vCPU per second.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rate {
    Measured(f64),
    /// Not measured, but rare.
    Seldom,
}

fn blocks_per_second(
    vm: &VmInterval,
    blocks: Blocks,
    spent: &Spent,
    timeslice: Nanos,
) -> Option<Rate> {
    let ran = vm.vcpus.iter().filter(|vcpu| vcpu.ran > Nanos::ZERO);
    // Only vCPUs that ran: one without a thread never blocks.
    let time: Nanos = ran
        .clone()
        .map(|vcpu| {
            let waits = [State::Ready, State::Limited, State::Costop];
            let waits = waits.map(|state| vcpu.times.get(state).unwrap_or_default());
            vcpu.times.wall().saturating_sub(waits.into_iter().sum())
        })
        .sum();
    if time == Nanos::ZERO {
        return None;
    }
    let per_second = |count: u64| count as f64 / time.as_secs_f64();
    match blocks {
        Blocks::Counted(count) => Some(Rate::Measured(per_second(count))),
        Blocks::Unknown if spent.halted == Nanos::ZERO => Some(Rate::Seldom),
        Blocks::Unknown => {
            let most = per_second(ran.map(|vcpu| vcpu.runs).sum());
            (most * timeslice.as_secs_f64() < 1.0).then_some(Rate::Seldom)
        }
    }
}

/// Returns the types that match the known figures.
fn types(n: u32, active: f64, rate: Option<Rate>, timeslice: Nanos) -> Vec<Type> {
    let of = |voluntary_switches_per_second: f64| {
        let features = Features { units: n, active, voluntary_switches_per_second, timeslice };
        features.class()
    };
    match rate {
        Some(Rate::Measured(rate)) => vec![of(rate)],
        Some(Rate::Seldom) => vec![of(0.0)],
        None => vec![of(0.0), of(f64::INFINITY)],
    }
}

fn in_vm(
    n: u32,
    spent: &Spent,
    fair: Nanos,
    utilization: Option<Fraction>,
    span: Nanos,
) -> Option<VmScaling> {
    let run = VirtualRun {
        vcpus: n,
        allocated: fair.max(spent.received),
        switching: spent.switching,
        unused: fair.saturating_sub(spent.received),
    };
    let in_pcpus = |time: Nanos| time.0 as f64 / span.0.max(1) as f64;
    let share = Fraction::new((in_pcpus(fair) / f64::from(n.max(1))).min(1.0));
    let possible = share.ok().zip(utilization);
    let possible = possible.and_then(|(share, used)| potential_efficiency(used, share).ok());
    Some(VmScaling {
        share: in_pcpus(fair),
        received: in_pcpus(spent.received),
        scaling: Scaling { efficiency: run.efficiency().ok()?, speedup: run.speedup().ok()? },
        potential_efficiency: possible,
    })
}

fn not_measured(
    vm: &VmInterval,
    rate: Option<Rate>,
    ran: bool,
    source: SourceName,
) -> Vec<NotMeasured> {
    let times = vm.times().unwrap_or_default();
    let mut list = Vec::new();
    let mut say = |what, want: String| list.push(NotMeasured { what, want });
    if !ran {
        say("parallelism", "the VM neither ran nor halted: it waited all the time".to_owned());
    }
    say(
        "spinning",
        "it is in RUN, so efficiencies and speedups are at most what is shown; it takes the guest's own account, or counters of branches: BPF \
         sees pause exits, not how long was spun"
            .to_owned(),
    );
    if ran && !matches!(rate, Some(Rate::Measured(_))) {
        let so = match rate {
            Some(_) => "seldom for certain, as its vCPUs were seldom put on a pCPU or never halted",
            None => "how often vCPUs blocked was not counted all the time",
        };
        say("blocks", format!("{so}; tandem host scalability without --from counts them"));
    }
    let bpf = match source {
        SourceName::Plain => "; --source bpf may tell it",
        SourceName::Bpf | SourceName::Simulator => "",
    };
    for (state, what, means) in [
        (State::Poll, "halt polling", "it counts as work"),
        (State::Vmm, "the host's work for the guest", "it counts as used"),
        (
            State::Costop,
            "co-stop",
            "vCPUs that halt because a sibling waits for a pCPU count as idle, so active may be too low",
        ),
    ] {
        if times.get(state).is_none() {
            say(what, format!("{means}{bpf}"));
        }
    }
    list
}

/// Observes the host and changes nothing.
pub struct Look(HostLook);

impl Look {
    /// Opens the source.
    pub fn open(
        source: Box<dyn Source>,
        options: DiscoveryOptions,
        state_dir: &Path,
    ) -> Result<Look, ScalabilityError> {
        let mut look = HostLook::open(source, options, state_dir).map_err(WhyError::from)?;
        look.source.count_wakeups();
        Ok(Look(look))
    }

    /// Measures the VMs that match, or all without a pattern, for `length`.
    pub fn look(
        &mut self,
        asked: &[VmPattern],
        length: Duration,
    ) -> Result<Analysis, ScalabilityError> {
        let before = self.0.begin().map_err(WhyError::from)?;
        // A pattern without a match fails before the wait.
        select_vms(asked, &before, self.0.controller.as_ref())?;
        std::thread::sleep(length);
        let (scan, interval) = self.0.interval().map_err(WhyError::from)?;
        let vms = scan.vms;
        let weights = self.0.weights(&vms);
        let known = vms.iter().map(|vm| {
            let known = KnownVm {
                name: vm.name.clone(),
                pid: vm.process.pid.0,
                weight: weights.get(&vm.id).copied().unwrap_or(Weight::constant(1.0)),
                levels: without_caps(weights.levels(vm.id)),
                blocks: blocks(interval.vms.iter().find(|measured| measured.vm == vm.id)),
            };
            (vm.id, known)
        });
        let asked = select_vms(asked, &vms, self.0.controller.as_ref())?;
        Ok(analyze(&interval, &known.collect(), |vm| asked.contains(&vm)))
    }
}

/// Returns the levels without their hard caps.
fn without_caps(levels: &[Level]) -> Vec<Level> {
    let levels = levels.iter().map(|level| Level { quota: None, ..*level });
    levels.collect()
}

/// Returns the number of blocks of a VM's vCPUs, if all of them were counted.
fn blocks(vm: Option<&VmInterval>) -> Blocks {
    let counted = vm.and_then(|vm| vm.vcpus.iter().map(|vcpu| vcpu.wakeups).sum::<Option<u64>>());
    counted.map_or(Blocks::Unknown, Blocks::Counted)
}

/// Analyzes a whole record for the VMs that match, or all without a pattern.
/// A VM's fair share is the sum over the intervals, so VMs that never ran at the same time do not compete.
/// Also returns the damages of the record.
pub fn of_record(
    folder: &Path,
    asked: &[VmPattern],
) -> Result<(Analysis, Vec<Damage>), ScalabilityError> {
    let mut sum = IntervalSum::new();
    let mut known: BTreeMap<VmId, KnownVm> = BTreeMap::new();
    let mut due: BTreeMap<VmId, Nanos> = BTreeMap::new();
    let mut matches = RecordedMatches::new(asked);
    let damages = Record::open(folder)?.read(Wanted::ALL, |_, frame| {
        sum.add(&frame.interval);
        let weighs = |vm| {
            let known = frame.vms.get(&vm).and_then(|known| known.weight);
            // A record has no levels above a VM's cgroup.
            (known.unwrap_or(Weight::constant(1.0)), &[][..])
        };
        for (vm, fair) in fair(&frame.interval, weighs) {
            *due.entry(vm).or_default() += fair;
        }
        for (id, vm) in frame.vms {
            matches.add(id, &vm);
            let vm = KnownVm {
                name: vm.name,
                pid: vm.pid,
                weight: vm.weight.unwrap_or(Weight::constant(1.0)),
                // A record has none.
                levels: Vec::new(),
                blocks: Blocks::Unknown,
            };
            known.insert(id, vm);
        }
        Ok::<(), RecordError>(())
    })?;
    let Some(interval) = sum.finish() else {
        let folder = folder.to_owned();
        return Err(match damages.into_iter().next() {
            Some(damage) => ScalabilityError::Lost { folder, damage },
            None => ScalabilityError::Empty(folder),
        });
    };
    for vm in &interval.vms {
        if let Some(known) = known.get_mut(&vm.vm) {
            known.blocks = blocks(Some(vm));
        }
    }
    if let Some(pattern) = matches.unmatched().first() {
        let names = known.values().map(|vm| vm.name.as_str());
        return Err(WhyError::no_such_vm(pattern, names).into());
    }
    let analysis = analyze_with(&interval, &known, &due, |vm| matches.has(vm));
    Ok((analysis, damages))
}

#[cfg(test)]
mod tests;
