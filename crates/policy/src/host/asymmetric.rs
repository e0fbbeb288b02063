//! `asymmetric`: divides each VM's CPU time among its vCPUs by demand (see [`crate::asymmetric`]).
//!
//! The total of a VM stays the same. With `fair` it is the VM's fair share, divided level by level as in the kernel.
//! The weights of its vCPUs follow their allocations: those of groups if each vCPU has a group
//! (libvirt makes `vcpuN`), otherwise nice values of threads, in steps of 1.25.
//! An urgent vCPU gets a shorter slice or, if slices cannot be set, a higher weight while it is urgent.
//! A VM in turns or apart, in the idle class or with a single vCPU is left as it is.

use std::collections::{BTreeMap, BTreeSet};

use super::config::{ControllerConfig, Placement};
use super::observation::HostObservation;
use super::policy::{Policy, Registered, Scope, Sight};
use super::swaps::{Nudged, READY, exchange, is_ready, moving, waited};
use crate::assess::accounting_groups;
use crate::asymmetric::charge::Switches;
use crate::asymmetric::latency::{Standing, Urgencies};
use crate::asymmetric::report::LeftAlone;
use crate::asymmetric::resolver::{Placed, Swap};
use crate::asymmetric::time::{Allocations, Use};
use crate::asymmetric::{AsymmetricConfig, latency, resolver};
use crate::fair_share::{Claim, LeveledClaim, fair_shares_by_level};
use crate::flexw::{Round, VcpuDemand};
use crate::turns::wakefulness::NEVER_SLEEPS;
use tandem_model::decision::{Because, Decision, Knob, Target};
use tandem_model::observation::{VcpuObservation, VmObservation};
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, Nice, PcpuId, VcpuId, VmId, Weight};

/// The registry entry.
pub const ENTRY: Registered = Registered {
    name: "asymmetric",
    about: "a VM's time goes to those of its vCPUs that need it, when they need it",
    sees: &[Sight::RunAndWait, Sight::Runnable, Sight::Affinity],
    turns: &[Knob::Weight, Knob::Nice, Knob::Slice, Knob::Affinity],
    excludes: &["configured"],
    build: |config| Box::new(Asymmetric::new(config)),
};

/// Weight of the newest period in the averages of a vCPU.
const SMOOTHING: f64 = 0.2;
/// A vCPU that never slept counts as sleeping if it usually could run for less than this fraction of the period.
/// A wait in progress at the end of a period is not counted in it, which costs the average [`SMOOTHING`] at most.
const STILL_AWAKE: f64 = NEVER_SLEEPS - SMOOTHING;
/// Maximum and minimum factor on the usual weight of a vCPU.
const MAX_FACTOR: f64 = 4.0;
const MIN_FACTOR: f64 = 0.5;
/// Factor on the weight per level of urgency, if slices cannot be set.
const PER_LEVEL: f64 = 1.25;
/// Slices by urgency, from level 1; level 0 has the scheduler's own.
const SOONER: [Nanos; latency::MAX_LEVEL as usize] =
    [Nanos(1_000_000), Nanos(500_000), Nanos(200_000), Nanos(100_000)];
/// Factor within which a weight is left as it is.
const NEAR: f64 = 1.15;
/// Difference within which a nice value is left as it is.
const NEAR_NICE: f64 = 0.75;
/// Periods without a short vCPU after which a VM has its usual weights again.
const CALM: u32 = 50;
/// Minimum number of periods between actions of the resolver.
const RESOLVE_EVERY: u32 = 10;

#[derive(Debug)]
struct Asymmetric {
    config: AsymmetricConfig,
    may_move: bool,
    vms: BTreeMap<VmId, VmState>,
    nudged: Nudged,
    since_resolved: u32,
}

/// State of a VM.
#[derive(Debug)]
struct VmState {
    allocations: Allocations,
    urgencies: Urgencies,
    switches: Switches,
    /// Settings of each vCPU without our changes.
    usual: BTreeMap<VcpuId, (Option<Weight>, Nice, Option<Nanos>)>,
    /// Settings that were changed.
    changed: BTreeSet<(VcpuId, Knob)>,
    /// Allocation of each vCPU in the last period, and the demand that it showed.
    had: Allocations,
    demands: BTreeMap<VcpuId, Nanos>,
    /// Time that each vCPU consumes and waits per period, smoothed, ns.
    usual_use: BTreeMap<VcpuId, (f64, f64)>,
    /// Levels of urgency that act: those of vCPUs without rivals.
    acting: BTreeMap<VcpuId, u8>,
    /// Per vCPU: a bit for each recent period, the newest lowest, in which it was urgent and still too late.
    late: BTreeMap<VcpuId, u16>,
    /// The vCPUs that never sleep.
    awake: BTreeSet<VcpuId>,
    /// Whether the policy changes anything for the VM.
    acts: bool,
    /// Periods since a vCPU was last short.
    calm: u32,
}

impl Default for VmState {
    fn default() -> VmState {
        VmState {
            allocations: Allocations::default(),
            urgencies: Urgencies::default(),
            switches: Switches::default(),
            usual: BTreeMap::new(),
            changed: BTreeSet::new(),
            had: Allocations::default(),
            demands: BTreeMap::new(),
            usual_use: BTreeMap::new(),
            acting: BTreeMap::new(),
            late: BTreeMap::new(),
            awake: BTreeSet::new(),
            acts: false,
            calm: CALM,
        }
    }
}

/// Fair shares of VMs by their weights and those of the cgroups above, if all are always runnable.
/// Time left by VMs that are not comes in addition.
fn shares(host: &HostObservation) -> BTreeMap<VmId, Nanos> {
    let mut due = BTreeMap::new();
    for group in accounting_groups(&host.vms) {
        let members = || group.members.iter().map(|&i| &host.vms[i]);
        let claims: Vec<LeveledClaim<'_>> = members()
            .map(|vm| LeveledClaim {
                levels: &vm.levels,
                claim: Claim::always_runnable(vm.weight, vm.peak(host.period), host.period),
            })
            .collect();
        let capacity = Nanos(host.period.0 * group.pcpus.len() as u64);
        let shares = fair_shares_by_level(capacity, host.period, &claims);
        due.extend(members().map(|vm| vm.vm).zip(shares));
    }
    due
}

/// Whether a vCPU that waited this long in a period, in ns, was still ready to run.
fn is_long(period: Nanos, waited: f64) -> bool {
    waited > READY * period.0 as f64
}

/// Reason for leaving a VM as it is, whatever its vCPUs demand.
fn left_alone(vm: &VmObservation, takes_turns: bool) -> Option<LeftAlone> {
    let whys = [
        (vm.vcpus.len() < 2, LeftAlone::OneVcpu),
        (takes_turns, LeftAlone::TakesTurns),
        (vm.in_force.idle, LeftAlone::IdleClass),
        (vm.is_apart(), LeftAlone::Apart),
    ];
    let mut whys = whys.into_iter().filter(|(is_so, _)| *is_so);
    whys.next().map(|(_, why)| why)
}

fn pcpus(time: Nanos, period: Nanos) -> f64 {
    time.0 as f64 / period.0.max(1) as f64
}

/// VMs with urgent vCPUs, by pCPU.
type Rivals = BTreeMap<PcpuId, BTreeSet<VmId>>;

/// Returns the VMs with urgent vCPUs on each pCPU, of the vCPUs that may run on one pCPU only.
fn rivals(vms: &[VmObservation], states: &BTreeMap<VmId, VmState>) -> Rivals {
    let mut rivals = Rivals::new();
    for vm in vms {
        let Some(state) = states.get(&vm.vm) else {
            continue;
        };
        for vcpu in vm.vcpus.iter().filter(|vcpu| vcpu.allowed.len() == 1) {
            let is_urgent = state.urgencies.of(vcpu.vcpu) > 0;
            for pcpu in vcpu.allowed.iter().filter(|_| is_urgent) {
                rivals.entry(pcpu).or_default().insert(vm.vm);
            }
        }
    }
    rivals
}

/// The level that acts for a vCPU: 0 if an urgent vCPU of another VM is on the same pCPU.
/// If all are urgent none can run sooner, and short slices only make all of them finish late.
/// Two VMs with alternating serial parts, pinned to the same pCPUs, lost a tenth of their work.
fn acting_level(vm: VmId, vcpu: &VcpuObservation, level: u8, rivals: &Rivals) -> u8 {
    if vcpu.allowed.len() != 1 {
        return level;
    }
    let mut here = vcpu.allowed.iter().filter_map(|pcpu| rivals.get(&pcpu));
    let has_rival = here.any(|urgent| urgent.iter().any(|other| *other != vm));
    if has_rival { 0 } else { level }
}

/// The slice of a level of urgency; `None`: the scheduler's own.
fn slice(level: u8) -> Option<Nanos> {
    let at = usize::from(level).checked_sub(1)?;
    SOONER.get(at).copied()
}

impl VmState {
    /// Keeps the settings that vCPUs had before our changes, and forgets vCPUs that are gone.
    fn remember(&mut self, vm: &VmObservation) {
        let before = std::mem::take(&mut self.usual);
        // A setting counts as changed until its old value is current again, whatever was requested.
        let is_as_it_was = |vcpu: &VcpuObservation, knob| {
            let now = &vcpu.in_force;
            let before = before.get(&vcpu.vcpu);
            before.is_none_or(|(weight, nice, slice)| match knob {
                Knob::Weight => now.weight == *weight,
                Knob::Nice => now.nice == *nice,
                Knob::Slice => now.slice == *slice,
                _ => true,
            })
        };
        self.changed
            .retain(|(id, knob)| vm.vcpu(*id).is_some_and(|vcpu| !is_as_it_was(vcpu, *knob)));
        for vcpu in &vm.vcpus {
            let now = &vcpu.in_force;
            let mut usual = (now.weight, now.nice, now.slice);
            if let Some(before) = before.get(&vcpu.vcpu) {
                let is_changed = |knob| self.changed.contains(&(vcpu.vcpu, knob));
                if is_changed(Knob::Weight) {
                    usual.0 = before.0;
                }
                if is_changed(Knob::Nice) {
                    usual.1 = before.1;
                }
                if is_changed(Knob::Slice) {
                    usual.2 = before.2;
                }
            }
            self.usual.insert(vcpu.vcpu, usual);
        }
    }

    /// Whether to request a setting: if it is not the usual one, or if the usual one is to be restored.
    /// A host may refuse to restore it, so the mark is removed only when the usual one is
    /// observed ([`VmState::remember`]).
    fn asks(&mut self, vcpu: VcpuId, knob: Knob, is_usual: bool) -> bool {
        if is_usual {
            return self.changed.contains(&(vcpu, knob));
        }
        self.changed.insert((vcpu, knob));
        true
    }

    /// Adds a period of a VM that has `total` to divide; returns its charge.
    fn follow(&mut self, period: Nanos, vm: &VmObservation, total: Nanos) -> Nanos {
        let mut before = std::mem::take(&mut self.usual_use);
        for vcpu in &vm.vcpus {
            let now = (vcpu.ran.0 as f64, waited(period, vcpu));
            let smoothed = match before.remove(&vcpu.vcpu) {
                Some((ran, waited)) => {
                    (ran + SMOOTHING * (now.0 - ran), waited + SMOOTHING * (now.1 - waited))
                }
                None => now,
            };
            self.usual_use.insert(vcpu.vcpu, smoothed);
        }
        let uses: Vec<Use> = self
            .usual_use
            .iter()
            .map(|(&vcpu, &(ran, waited))| Use {
                vcpu,
                ran: Nanos(ran as u64),
                ready: is_long(period, waited),
            })
            .collect();
        let even = Nanos(total.0 / uses.len().max(1) as u64);
        self.notice_sleep(period);
        let had = |vcpu: VcpuId| self.allocations.of(vcpu).unwrap_or(even);
        let standings: Vec<Standing> = uses
            .iter()
            .zip(&vm.vcpus)
            .map(|(used, vcpu)| Standing {
                vcpu: used.vcpu,
                used_up: used.has_used_up(had(used.vcpu)),
                ready: used.ready,
                sleeps: !self.awake.contains(&used.vcpu),
                woken_by: vcpu.woken_by.clone(),
            })
            .collect();
        let short = self.allocations.is_short(total, &uses);
        self.calm = if short { 0 } else { self.calm.saturating_add(1) };
        let before = std::mem::take(&mut self.late);
        for standing in &standings {
            let periods = before.get(&standing.vcpu).copied().unwrap_or_default();
            let is_urgent = self.urgencies.of(standing.vcpu) > 0;
            let is_late = u16::from(is_urgent && standing.is_late());
            self.late.insert(standing.vcpu, periods << 1 | is_late);
        }
        let acting = &self.acting;
        let urgent = |vcpu: VcpuId| acting.get(&vcpu).is_some_and(|level| *level > 0);
        let runs =
            vm.vcpus.iter().filter_map(|vcpu| Some((vcpu.vcpu, vcpu.runs?, urgent(vcpu.vcpu))));
        let charge = self.switches.charge(runs);
        self.had = self.allocations.clone();
        self.demands = self.allocations.divide(total, period, &uses);
        self.urgencies.follow(&standings);
        charge
    }

    /// Updates the set of vCPUs that never sleep from the averages.
    /// A vCPU stays in the set while only a wait in progress, which is not counted yet, can be missing.
    fn notice_sleep(&mut self, period: Nanos) {
        let is_awake = |vcpu: &VcpuId, could_run: f64| {
            let least = if self.awake.contains(vcpu) { STILL_AWAKE } else { NEVER_SLEEPS };
            could_run >= least * period.0 as f64
        };
        let uses = self.usual_use.iter();
        let awake = uses.filter(|(vcpu, (ran, waited))| is_awake(vcpu, ran + waited));
        self.awake = awake.map(|(vcpu, _)| *vcpu).collect();
    }

    /// The usable part of a vCPU's allocation, if it is known.
    fn load(&self, vcpu: VcpuId) -> Option<Nanos> {
        let (ran, waited) = self.usual_use.get(&vcpu)?;
        Some(self.allocations.of(vcpu)?.min(Nanos((ran + waited) as u64)))
    }

    /// The level of urgency that acts for a vCPU.
    fn acting(&self, vcpu: VcpuId) -> u8 {
        self.acting.get(&vcpu).copied().unwrap_or_default()
    }

    /// Reason for a vCPU's weight.
    fn because(
        &self,
        period: Nanos,
        vm: &VmObservation,
        vcpu: &VcpuObservation,
        even: Nanos,
    ) -> Because {
        let had = |id| self.had.of(id).unwrap_or(even);
        let others = || vm.vcpus.iter().filter(|other| other.vcpu != vcpu.vcpu);
        let ran: Nanos = others().map(|other| other.ran).sum();
        let of: Nanos = others().map(|other| had(other.vcpu)).sum();
        Because::Demand {
            used: pcpus(vcpu.ran, period),
            of: pcpus(had(vcpu.vcpu), period),
            ready: is_ready(period, vcpu),
            siblings: ran.0 as f64 / of.0.max(1) as f64,
            gets: pcpus(self.allocations.of(vcpu.vcpu).unwrap_or(even), period),
        }
    }

    /// Whether a vCPU usually waits so long that it wants more than it gets.
    fn wants_more(&self, period: Nanos, vcpu: VcpuId) -> bool {
        let usual = self.usual_use.get(&vcpu);
        usual.is_some_and(|(_, waited)| is_long(period, *waited))
    }

    /// Whether all of its vCPUs are to have their usual weights and slices.
    fn is_usual(&self) -> bool {
        let urgent = |vcpu: &VcpuId| self.urgencies.of(*vcpu) > 0;
        self.calm >= CALM && !self.usual_use.keys().any(urgent)
    }

    /// Factor on the usual weight of a vCPU.
    fn factor(&self, vcpu: VcpuId, even: Nanos, config: AsymmetricConfig, has_slices: bool) -> f64 {
        let mut factor = 1.0;
        if config.time
            && self.calm < CALM
            && let Some(allocation) = self.allocations.of(vcpu)
            && even > Nanos::ZERO
        {
            factor = allocation.0 as f64 / even.0 as f64;
        }
        if config.latency && !has_slices {
            factor *= PER_LEVEL.powi(i32::from(self.acting(vcpu)));
        }
        factor.clamp(MIN_FACTOR, MAX_FACTOR)
    }
}

impl Asymmetric {
    fn new(config: &ControllerConfig) -> Asymmetric {
        Asymmetric {
            config: config.asymmetric,
            may_move: config.placement == Placement::Rebalance,
            vms: BTreeMap::new(),
            nudged: Nudged::default(),
            since_resolved: 0,
        }
    }

    /// Decides the weights and slices of a VM from its state.
    fn settings(
        &self,
        host: &HostObservation,
        vm: &VmObservation,
        state: &mut VmState,
        total: Nanos,
    ) -> Vec<Decision> {
        let even = Nanos(total.0 / vm.vcpus.len().max(1) as u64);
        let has_slices = host.knobs.slice.is_some();
        let mut decisions = Vec::new();
        for vcpu in &vm.vcpus {
            let Some(&(weight, nice, own_slice)) = state.usual.get(&vcpu.vcpu) else {
                continue;
            };
            let id = vcpu.vcpu;
            let factor = state.factor(id, even, self.config, has_slices);
            let is_usual = factor == 1.0;
            match (weight, vcpu.in_force.weight) {
                (Some(usual), Some(now)) => {
                    let wanted = usual.value() * factor;
                    let ratio = wanted / now.value();
                    let is_near = ratio.max(1.0 / ratio) < NEAR;
                    if (is_usual || !is_near) && state.asks(id, Knob::Weight, is_usual) {
                        decisions.push(Decision::SetWeight {
                            target: Target::Vcpu(vm.vm, id),
                            weight: Weight::saturating(wanted),
                            because: state.because(host.period, vm, vcpu, even),
                        });
                    }
                }
                _ => {
                    let wanted = f64::from(nice.0) - libm::log(factor) / libm::log(PER_LEVEL);
                    let is_near = (wanted - f64::from(vcpu.in_force.nice.0)).abs() < NEAR_NICE;
                    let wanted = Nice(wanted.round().clamp(-20.0, 19.0) as i8);
                    let is_usual = wanted == nice;
                    if (is_usual || !is_near) && state.asks(id, Knob::Nice, is_usual) {
                        decisions.push(Decision::SetNice {
                            vm: vm.vm,
                            vcpu: id,
                            nice: wanted,
                            because: state.because(host.period, vm, vcpu, even),
                        });
                    }
                }
            }
            let level = state.acting(id);
            if self.config.latency && has_slices && state.asks(id, Knob::Slice, level == 0) {
                decisions.push(Decision::SetSlice {
                    vm: vm.vm,
                    vcpu: id,
                    slice: slice(level).or(own_slice),
                    because: Because::Urgency { level },
                });
            }
        }
        decisions
    }

    /// Returns the swaps of a period: per accounting group one that evens out loads, otherwise
    /// those that spread urgent vCPUs.
    /// A group waits while another policy moves one of its VMs, because positions are not known then.
    fn resolve(&mut self, host: &HostObservation, others: &[Decision]) -> Vec<Decision> {
        let moved = moving(host, others);
        let mut decisions = Vec::new();
        for group in accounting_groups(&host.vms) {
            let members: Vec<&VmObservation> =
                group.members.iter().map(|&i| &host.vms[i]).collect();
            if members.iter().any(|vm| moved.contains(&vm.vm)) {
                continue;
            }
            let placed = self.placed(&members, &group.pcpus);
            let even = resolver::balance(host.period, &placed);
            let swaps: Vec<Swap> = match even {
                Some(swap) => vec![swap],
                None => resolver::spread(&placed),
            };
            for swap in swaps {
                let (one, other) = (&placed[swap.one], &placed[swap.other]);
                let one = (one.vm, one.vcpu, one.pcpu);
                let other = (other.vm, other.vcpu, other.pcpu);
                let because = |from, to| Because::Swap { from, to };
                decisions.extend(exchange(one, other, because));
            }
        }
        self.nudged.note(host, &decisions);
        decisions
    }

    /// The vCPUs of an accounting group whose pCPUs are known. Those of VMs on which the policy
    /// does not act stay where they are.
    fn placed<'a>(&self, members: &[&'a VmObservation], all: &'a PcpuSet) -> Vec<Placed<'a>> {
        let mut placed = Vec::new();
        for vm in members {
            let state = self.vms.get(&vm.vm).filter(|state| state.acts);
            for vcpu in &vm.vcpus {
                let Some(pcpu) = vcpu.position() else {
                    continue;
                };
                let load = state.and_then(|state| state.load(vcpu.vcpu));
                let late = state.and_then(|state| state.late.get(&vcpu.vcpu));
                placed.push(Placed {
                    vm: vm.vm,
                    vcpu: vcpu.vcpu,
                    pcpu,
                    load: load.unwrap_or(vcpu.ran),
                    urgent: state.is_some_and(|state| state.urgencies.of(vcpu.vcpu) > 0),
                    conflicts: late.map_or(0, |periods| u64::from(periods.count_ones())),
                    may_be_on: state.is_some().then_some(match vcpu.granted().len() {
                        // Pinned: the operator lets pins be changed, within the group.
                        1 => all,
                        _ => vcpu.granted(),
                    }),
                });
            }
        }
        placed
    }
}

impl Policy for Asymmetric {
    fn decide(&mut self, host: &HostObservation, scope: Scope, round: &mut Round) {
        let period = host.period;
        let mut due = shares(host);
        for account in round.groups.iter().flat_map(|group| &group.vms) {
            let due = due.entry(account.vm).or_default();
            *due = (*due).max(account.fair);
        }
        let rotation = round.rotation.clone().unwrap_or_default();
        let takes_turns =
            |vm: &VmObservation| vm.in_force.rotating || rotation.member(vm.vm).is_some();
        let mut before = std::mem::take(&mut self.vms);
        let mut totals: BTreeMap<VmId, Nanos> = BTreeMap::new();
        for vm in host.vms.iter().filter(|vm| scope.includes(vm)) {
            let mut state = before.remove(&vm.vm).unwrap_or_default();
            state.remember(vm);
            let left = left_alone(vm, takes_turns(vm));
            state.acts = left.is_none();
            let due = due.get(&vm.vm).copied().unwrap_or_default();
            let total = due.max(vm.received());
            if state.acts {
                let charge = state.follow(period, vm, total);
                if self.config.latency && charge > Nanos::ZERO {
                    round.charges.insert(vm.vm, charge);
                }
                round.contended |= vm.vcpus.iter().any(|vcpu| is_ready(period, vcpu));
                let demands = vm.vcpus.iter().map(|vcpu| VcpuDemand {
                    vcpu: vcpu.vcpu,
                    ran: vcpu.ran,
                    demand: state.demands.get(&vcpu.vcpu).copied().unwrap_or_default(),
                    allocation: state.allocations.of(vcpu.vcpu).unwrap_or_default(),
                    urgency: state.urgencies.of(vcpu.vcpu),
                    wants_more: state.wants_more(period, vcpu.vcpu),
                });
                round.vcpus.insert(vm.vm, demands.collect());
                if state.is_usual() {
                    round.left_alone.insert(vm.vm, LeftAlone::NoneShort);
                }
            } else {
                // Only its usual settings and our changes are kept until the policy acts again.
                state =
                    VmState { usual: state.usual, changed: state.changed, ..VmState::default() };
            }
            round.left_alone.extend(left.map(|why| (vm.vm, why)));
            totals.insert(vm.vm, total);
            self.vms.insert(vm.vm, state);
        }
        let rivals = rivals(&host.vms, &self.vms);
        for vm in &host.vms {
            let Some(mut state) = self.vms.remove(&vm.vm) else {
                continue;
            };
            let levels = vm.vcpus.iter().map(|vcpu| {
                let level = state.urgencies.of(vcpu.vcpu);
                (vcpu.vcpu, acting_level(vm.vm, vcpu, level, &rivals))
            });
            state.acting = levels.collect();
            let total = totals.get(&vm.vm).copied().unwrap_or_default();
            let decisions = self.settings(host, vm, &mut state, total);
            round.decisions.extend(decisions);
            self.vms.insert(vm.vm, state);
        }
        let roams = self.nudged.release(|vm| host.vm(vm).is_some_and(takes_turns));
        round.decisions.extend(roams);
        self.since_resolved = self.since_resolved.saturating_add(1);
        if self.config.resolver && self.may_move && self.since_resolved >= RESOLVE_EVERY {
            let swaps = self.resolve(host, &round.decisions);
            if !swaps.is_empty() {
                self.since_resolved = 0;
                for state in self.vms.values_mut() {
                    state.late.clear();
                }
            }
            round.decisions.extend(swaps);
        }
    }
}
