//! FlexW: weights that give each VM its fair share on a host that schedules per pCPU.
//!
//! Source: Rao & Zhou, "Towards Fair and Efficient SMP Virtual Machine Scheduling", PPoPP 2014,
//! section 4.1. A host scheduler divides each pCPU by the weights of its queued tasks, so equal VMs get
//! unequal shares. Each accounting period T, FlexW measures the CPU time that each VM received, compares
//! it with its GPS share (see [`crate::fair_share`]) and adjusts the VM's real-time weight r_i.
//!
//! Kept from the paper: fair shares by water-filling, lag as the error, weights reset to w_i
//! while pCPU time is left over, clamped weights, the fair window.
//! Changed, with measurements in `docs/decisions/002-flexw-control-law.md`:
//!
//! - **Step.** The paper adds w_i × lag_i. If an equilibrium needs small weights, the same step is a
//!   large relative change, and the weights oscillate. Our step is relative, and divided by the
//!   elasticity of the VM's share: its relative change per relative change of weight. A vCPU with
//!   share s of its pCPU has d ln s / d ln r = 1 − s, so a VM's elasticity is e_i = Σ s_v (1 − s_v) ÷
//!   Σ s_v. It is small if the VM has its pCPUs nearly for itself, and then a large step is needed.
//! - **Smoothing.** A period holds few slices, so received time and elasticity are averaged over
//!   periods before they are used, and lags within a dead band are ignored.
//! - **Sum.** Only the ratios of the r_i matter. For the siblings (in the hierarchy of cgroups) of a group, their sum
//!   is kept at Σ w_i, as the paper's rule does when all weights are feasible. So the VMs keep their place among the
//!   host's other cgroups, even if some have VMs elsewhere. If the smallest would fall below its clamp, all are raised.
//! - **Levels.** Fair shares are divided level by level, as the kernel does
//!   ([`crate::fair_share::fair_shares_by_level`]).
//! - **New VMs.** A VM starts with the mean ratio of weight to configured weight of the VMs that share its pCPUs.
//!   With its configured weight it would rob a VM whose weight is small because it has other pCPUs nearly for itself.
//! - **Fair window.** The paper resets all r_i. We reset only VMs that were not backlogged
//!   throughout the window and whose r_i is above w_i: only these could have hoarded weight.
//! - **Hard caps.** A VM's fair share is at most its quota, and throttled time does not depend on weights, so it is no
//!   lag ([`tandem_model::observation`]). Weight above w_i, from before its quota was known, is removed step by step.
//!
//! Non-goals: placing vCPUs (see [`crate::placement`]), finding spinning vCPUs (FlexS).

use std::collections::BTreeMap;

use serde::Serialize;

use crate::assess::{Assessment, accounting_groups};
use crate::asymmetric::report::LeftAlone;
use crate::fair_share::{Claim, LeveledClaim, fair_shares_by_level};
use crate::flexs::report::SpinReport;
use crate::host::knobs::WeightKnob;
use crate::host::observation::{HostObservation, IdleTimes};
use crate::settings::settings;
use crate::turns::Rotation;
use tandem_model::decision::{Because, Decision, Target};
use tandem_model::observation::VmObservation;
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, VcpuId, VmId, Weight};

settings! {
    /// Tunables of FlexW.
    pub struct FlexWConfig {
        /// FAIR_WINDOW: interval at which weights saved up by VMs that did not use them are reset, as in the paper.
        /// Shorter forgets the needs of a mostly idle VM sooner.
        pub fair_window: Nanos = Nanos::from_secs(10), (Nanos::from_millis(100), Nanos::from_secs(3600));
        /// Gain g: the fraction of the estimated error that one period corrects.
        /// Higher converges sooner and reacts more to noise; above about 0.7 it oscillates.
        pub gain: f64 = 0.3, (0.001, 1.0);
        /// Smoothing α: the weight of the newest period in the averages. Lower is calmer and slower.
        pub smoothing: f64 = 0.3, (0.001, 1.0);
        /// |lag| that is ignored, as a fraction. Wider writes fewer weights and leaves more unfairness.
        pub dead_band: f64 = 0.01, (0.0, 0.5);
        /// Fraction of a group's pCPU time that may be idle while it still counts as used up; twice that resets the weights.
        pub idle_tolerance: f64 = 0.05, (0.0, 0.5);
        /// r_i stays within w_i ÷ spread … w_i × spread. The default is the range of `cpu.weight` around its default.
        /// It bounds how little a vCPU gets that shares its pCPU with a VM far behind.
        /// Smaller is gentler there, and leaves VMs unfair whose pins need more.
        pub spread: f64 = 100.0, (1.0, 1000.0);
    }
}

/// Maximum relative error that one period acts on; bounds the step after a sudden change.
const MAX_RELATIVE_ERROR: f64 = 1.0;
/// Minimum elasticity; below it, noise would be amplified more than error.
const MIN_ELASTICITY: f64 = 0.05;
/// Maximum factor by which a period changes a weight.
const MAX_STEP: f64 = 2.5;
/// A VM whose vCPUs could run for less than this part of the time is asleep.
const ASLEEP: f64 = 0.005;
/// A VM that could run for at least this part of the time is backlogged throughout.
const BACKLOGGED: f64 = 0.9;
/// A VM that its own quotas throttled for at least this part of a period is held by them.
const HELD: f64 = 0.05;

/// State of a VM.
#[derive(Clone, Debug)]
struct VmState {
    /// Its set of siblings.
    siblings: u32,
    /// Configured weight w_i when last seen.
    configured: f64,
    /// Real-time weight r_i: the current one, or the requested one if a knob shows that rounded.
    real_time: f64,
    /// Whether the weight may be moved.
    adjustable: bool,
    /// Whether the VM is in the idle class, where it gets left-over time and has no claim.
    idle: bool,
    /// Received, smoothed, ns per period.
    received: f64,
    /// Throttled by its own quotas, smoothed, ns per period.
    held: f64,
    /// Charged in addition, smoothed, ns per period. No VM received it, so it is not part of the capacity.
    charged: f64,
    /// Could run, smoothed, ns per period.
    could_run: f64,
    /// Backlogged, smoothed, ns per period.
    backlogged: f64,
    /// Elasticity e_i, smoothed.
    elasticity: f64,
    /// Smallest smoothed backlog, as a part of the period, in this fair window.
    least_backlog: f64,
    /// Periods seen since the VM appeared or woke.
    age: u32,
    /// Whether it is new in this period, next to VMs known before.
    comes: bool,
}

/// One accounting group after a period.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupReport {
    /// The pCPUs the group shares.
    pub pcpus: PcpuSet,
    /// Idle pCPUs, smoothed.
    pub idle: f64,
    /// Whether its pCPUs are used up, so that weights are adjusted.
    pub saturated: bool,
    /// Its VMs.
    pub vms: Vec<Assessment>,
}

/// Result of one period.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Round {
    /// The accounting groups, by their smallest VM.
    pub groups: Vec<GroupReport>,
    /// Changes to make, by VM.
    pub decisions: Vec<Decision>,
    /// The new rotation; `None` if no policy decides on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// VMs that never sleep but are left out of the rotation because its members have cgroups elsewhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out_of_turns: Vec<VmId>,
    /// Whether the next period has work to do even if pCPU time is left over.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub contended: bool,
    /// Charges to VMs in the next period, in addition to the time they receive.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub charges: BTreeMap<VmId, Nanos>,
    /// Demands of vCPUs, from policies that look at single vCPUs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub vcpus: BTreeMap<VmId, Vec<VcpuDemand>>,
    /// VMs that a policy for single vCPUs leaves as they are, and why.
    #[serde(skip)]
    pub left_alone: BTreeMap<VmId, LeftAlone>,
    /// Verdicts on spinning vCPUs, and their outcomes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spins: Vec<SpinReport>,
}

/// Demand of a vCPU for its VM's time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct VcpuDemand {
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Time it consumed in the period, ns.
    pub ran: Nanos,
    /// Its demand, ns: the time it consumed, or more than its allocation if it used that up and is still ready.
    pub demand: Nanos,
    /// Its allocation in the next period, ns.
    pub allocation: Nanos,
    /// Its urgency: 0 is normal, more if it gets its time too late.
    pub urgency: u8,
    /// Whether it usually is still ready to run when a period ends, and wants more than it gets.
    #[serde(skip)]
    pub wants_more: bool,
}

#[derive(Clone, Debug, Default)]
struct GroupState {
    idle: f64,
    saturated: bool,
}

/// The controller. The caller passes one set of observations per period and applies the result.
#[derive(Clone, Debug)]
pub struct FlexW {
    config: FlexWConfig,
    vms: BTreeMap<VmId, VmState>,
    groups: BTreeMap<PcpuSet, GroupState>,
    window: Nanos,
}

impl FlexW {
    /// Creates a controller without observations.
    pub fn new(config: FlexWConfig) -> FlexW {
        FlexW { config, vms: BTreeMap::new(), groups: BTreeMap::new(), window: Nanos::ZERO }
    }

    /// The VM's real-time weight r_i, if it was in the last period.
    pub fn real_time_weight(&self, vm: VmId) -> Option<Weight> {
        self.vms.get(&vm).map(|state| Weight::saturating(state.real_time))
    }

    /// Adds a period and decides the next period's weights of the VMs that are `adjustable`.
    /// The other VMs take part in the division with their current weights.
    ///
    /// VMs missing from the observation are forgotten.
    pub fn decide(
        &mut self,
        host: &HostObservation,
        adjustable: impl Fn(&VmObservation) -> bool,
    ) -> Round {
        let HostObservation { period, vms, idle, .. } = host;
        let period = *period;
        if period == Nanos::ZERO {
            return Round::default();
        }
        self.observe(period, vms, &host.knobs.weight, adjustable);
        self.window += period;
        let window_over = self.window >= self.config.fair_window;
        let mut round = Round::default();
        let mut groups = BTreeMap::new();
        for group in accounting_groups(vms) {
            let members: Vec<&VmObservation> = group.members.iter().map(|&i| &vms[i]).collect();
            let state = self.group_state(period, &group.pcpus, &members, idle);
            let vms = self.divide(period, &members, &state, &mut round.decisions, window_over);
            round.groups.push(GroupReport {
                pcpus: group.pcpus.clone(),
                idle: state.idle,
                saturated: state.saturated,
                vms,
            });
            groups.insert(group.pcpus, state);
        }
        self.groups = groups;
        if window_over {
            self.window = Nanos::ZERO;
            for state in self.vms.values_mut() {
                state.least_backlog = 1.0;
            }
        }
        round.decisions.sort_by_key(Decision::vm);
        round
    }

    /// Updates the averages, and forgets VMs that are gone.
    fn observe(
        &mut self,
        period: Nanos,
        vms: &[VmObservation],
        knob: &WeightKnob,
        adjustable: impl Fn(&VmObservation) -> bool,
    ) {
        let mut seen = BTreeMap::new();
        let is_first = self.vms.is_empty();
        for vm in vms {
            let now = VmState::first(period, vm);
            let mut state = match self.vms.remove(&vm.vm) {
                Some(mut state) => {
                    if state.could_run < ASLEEP * period.0 as f64 {
                        state.wake();
                    }
                    state.follow(&now, self.config.smoothing);
                    state.comes = false;
                    state
                }
                None => VmState { comes: !is_first, ..now },
            };
            // Steps too small for the knob add up. Otherwise a current weight other than the requested one counts.
            if vm.in_force.rotating {
                // In its slots it may weigh more, on behalf of members that wait.
                state.real_time = vm.weight.value();
            } else if knob.written(vm, Weight::saturating(state.real_time)) != vm.in_force.weight {
                state.real_time = vm.in_force.weight.value();
            }
            // Beyond the knob's range, an excess would build up that has to be undone first.
            state.real_time = state.real_time.clamp(knob.least.value(), knob.most.value());
            state.configured = vm.weight.value();
            state.siblings = vm.siblings;
            state.idle = vm.in_force.idle;
            state.adjustable = !state.idle && !vm.in_force.rotating && adjustable(vm);
            let backlog = state.backlogged / period.0 as f64;
            state.least_backlog = state.least_backlog.min(backlog);
            seen.insert(vm.vm, state);
        }
        self.vms = seen;
    }

    /// Whether the group's pCPU time is used up, with hysteresis because idle time is coarsely measured.
    fn group_state(
        &self,
        period: Nanos,
        pcpus: &PcpuSet,
        members: &[&VmObservation],
        idle: &IdleTimes,
    ) -> GroupState {
        let total = period.0 as f64 * pcpus.len() as f64;
        let received: f64 = members.iter().map(|vm| self.vms[&vm.vm].received).sum();
        let idle: u64 = pcpus.iter().filter_map(|pcpu| idle.get(&pcpu)).map(|t| t.0).sum();
        let idle_now = idle as f64 / period.0 as f64;
        let before = self.groups.get(pcpus);
        let idle = match before {
            Some(before) => before.idle + self.config.smoothing * (idle_now - before.idle),
            None => idle_now,
        };
        let idle_part = idle / pcpus.len() as f64;
        let was_saturated = before.is_some_and(|before| before.saturated);
        let tolerance = self.config.idle_tolerance * if was_saturated { 2.0 } else { 1.0 };
        let saturated = idle_part <= tolerance || received >= total * (1.0 - tolerance);
        GroupState { idle, saturated }
    }

    /// Computes the accounts of a group, and its new weights.
    fn divide(
        &mut self,
        period: Nanos,
        members: &[&VmObservation],
        group: &GroupState,
        decisions: &mut Vec<Decision>,
        window_over: bool,
    ) -> Vec<Assessment> {
        let (idle, members): (Vec<&VmObservation>, Vec<&VmObservation>) =
            members.iter().partition(|vm| self.vms[&vm.vm].idle);
        let claims: Vec<LeveledClaim<'_>> = members
            .iter()
            .map(|vm| LeveledClaim {
                levels: &vm.levels,
                claim: self.vms[&vm.vm].claim(period, vm),
            })
            .collect();
        let capacity = claims.iter().map(|leveled| leveled.claim.received).sum();
        let shares = fair_shares_by_level(capacity, period, &claims);
        let mut wanted: Vec<(VmId, f64, Option<Because>)> = Vec::new();
        let as_received = |vm: &&VmObservation| {
            let received = Nanos(self.vms[&vm.vm].received.round() as u64);
            Assessment::new(vm.vm, received, received)
        };
        let mut assessments: Vec<Assessment> = idle.iter().map(as_received).collect();
        // Per set of siblings: the VMs that compete, and whether one of them has a fixed weight.
        let mut active: BTreeMap<u32, (Vec<usize>, bool)> = BTreeMap::new();
        for (vm, fair) in members.iter().zip(shares) {
            let state = &self.vms[&vm.vm];
            let received = Nanos(state.received.round() as u64);
            assessments.push(Assessment::new(vm.vm, fair, received));
            let charged = Nanos(state.charged.round() as u64);
            let account = Assessment::new(vm.vm, fair, received + charged);
            let (r, because) = match self.among_others(vm, &members).filter(|_| group.saturated) {
                Some(r) => (r, Some(Because::Came)),
                None => self.next_weight(period, state, &account, group, window_over),
            };
            if state.could_run >= ASLEEP * period.0 as f64 {
                // A satisfied VM with a fixed weight does not affect the steps of others.
                let is_behind = account.lag.abs() > self.config.dead_band;
                let competes = is_behind || state.backlogged >= BACKLOGGED * period.0 as f64;
                let (active, held) = active.entry(state.siblings).or_default();
                if state.adjustable { active.push(wanted.len()) } else { *held |= competes }
            }
            wanted.push((vm.vm, r, because));
        }
        for (active, held) in active.values() {
            self.keep_sum(&mut wanted, active, *held);
        }
        for (vm, r, because) in wanted {
            let Some(state) = self.vms.get_mut(&vm) else {
                continue;
            };
            let changed = r != state.real_time;
            state.real_time = r;
            if changed {
                let because = because.unwrap_or(Because::KeepSum);
                decisions.push(Decision::SetWeight {
                    target: Target::Vm(vm),
                    weight: Weight::saturating(r),
                    because,
                });
            }
        }
        assessments
    }

    /// The weight of a new VM among those that share its pCPUs.
    /// Its ratio to the configured weight is the geometric mean of theirs. `None` if the VM is
    /// not new, or there are none.
    fn among_others(&self, vm: &VmObservation, members: &[&VmObservation]) -> Option<f64> {
        let state = self.vms.get(&vm.vm).filter(|state| state.comes && state.adjustable)?;
        let pcpus = allowed(vm);
        let others = members.iter().filter(|other| allowed(other).overlaps(&pcpus));
        let ratios: Vec<f64> = others
            .filter_map(|other| self.vms.get(&other.vm))
            .filter(|other| other.adjustable && !other.comes)
            .map(|other| libm::log(other.real_time / other.configured))
            .collect();
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        (!ratios.is_empty()).then(|| state.configured * libm::exp(mean))
    }

    /// r_i for the next period, before the sum is restored.
    fn next_weight(
        &self,
        period: Nanos,
        state: &VmState,
        account: &Assessment,
        group: &GroupState,
        window_over: bool,
    ) -> (f64, Option<Because>) {
        let w = state.configured;
        if !state.adjustable {
            return (state.real_time, None);
        }
        if !group.saturated {
            return (w, Some(Because::WorkConserving { idle: group.idle }));
        }
        if state.could_run < ASLEEP * period.0 as f64 {
            return (w, Some(Because::Asleep));
        }
        // A weight below w_i was not saved up, and a reset to w_i would be a gift every window.
        if window_over && state.least_backlog < BACKLOGGED && state.real_time > w {
            return (w, Some(Because::FairWindow));
        }
        if account.lag.abs() <= self.config.dead_band {
            if state.real_time > w && state.held >= HELD * period.0 as f64 {
                let back = libm::pow(w / state.real_time, self.config.gain);
                return (state.real_time * back, Some(Because::Held));
            }
            return (state.real_time, None);
        }
        let per_pcpu = period.0 as f64;
        let because = Because::Lag {
            lag: account.lag,
            fair: account.fair.0 as f64 / per_pcpu,
            received: account.received.0 as f64 / per_pcpu,
        };
        let factor = self.step(state, account);
        (state.real_time * factor, Some(because))
    }

    /// The factor by which r_i changes: g × error ÷ elasticity, symmetric in shortage and excess.
    fn step(&self, state: &VmState, account: &Assessment) -> f64 {
        let fair = account.fair.0.max(1) as f64;
        let received = account.received.0.max(1) as f64;
        let error = (fair.max(received) / fair.min(received) - 1.0).min(MAX_RELATIVE_ERROR);
        let elasticity = state.elasticity.max(MIN_ELASTICITY);
        let factor = (1.0 + self.config.gain * error / elasticity).min(MAX_STEP);
        if received < fair { factor } else { 1.0 / factor }
    }

    /// Scales the weights of the active VMs so that they add up to Σ w_i again.
    /// If that would press the smallest below its clamp, ratios take precedence over the sum: all
    /// are raised, up to the other clamp.
    /// They also do if some weights are `held`, as scaling the others would undo their steps relative to these.
    fn keep_sum(&self, wanted: &mut [(VmId, f64, Option<Because>)], active: &[usize], held: bool) {
        let w = |vm: &VmId| self.vms[vm].configured;
        let configured: f64 = active.iter().map(|&i| w(&wanted[i].0)).sum();
        let sum: f64 = active.iter().map(|&i| wanted[i].1).sum();
        let moved = active.iter().any(|&i| wanted[i].1 != self.vms[&wanted[i].0].real_time);
        if !moved || sum <= 0.0 {
            return;
        }
        let spread = self.config.spread;
        let least =
            active.iter().map(|&i| wanted[i].1 / w(&wanted[i].0)).fold(f64::INFINITY, f64::min);
        let scale = if held { 1.0 } else { (configured / sum).max(1.0 / (spread * least)) };
        for &i in active {
            let w = w(&wanted[i].0);
            wanted[i].1 = (wanted[i].1 * scale).clamp(w / spread, w * spread);
        }
    }
}

impl VmState {
    fn first(period: Nanos, vm: &VmObservation) -> VmState {
        VmState {
            siblings: vm.siblings,
            configured: vm.weight.value(),
            real_time: vm.in_force.weight.value(),
            adjustable: true,
            idle: false,
            received: vm.received().0 as f64,
            held: match vm.in_force.quota {
                Some(_) => vm.limited().0 as f64,
                None => 0.0,
            },
            charged: vm.charged.0 as f64,
            could_run: vm.could_run(period).0 as f64,
            backlogged: vm.backlogged(period).0 as f64,
            elasticity: elasticity(period, vm),
            least_backlog: 1.0,
            age: 1,
            comes: false,
        }
    }

    /// Restarts the averages, because those from before a long sleep say nothing about now.
    fn wake(&mut self) {
        self.age = 0;
        (
            self.received,
            self.held,
            self.charged,
            self.could_run,
            self.backlogged,
            self.elasticity,
        ) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    }

    /// The VM's claim in the division, from the averages.
    fn claim(&self, period: Nanos, vm: &VmObservation) -> Claim {
        let nanos = |average: f64| Nanos(average.round() as u64);
        let received = nanos(self.received);
        Claim {
            weight: Weight::saturating(self.configured),
            peak: vm.peak_of(period, received),
            received,
            could_run: nanos(self.could_run),
            backlogged: nanos(self.backlogged),
        }
    }

    /// Moves each average towards the newest period. The averages start as a plain mean, so that a
    /// VM's first periods count in full.
    fn follow(&mut self, now: &VmState, smoothing: f64) {
        let alpha = smoothing.max(1.0 / f64::from(self.age + 1));
        self.age = self.age.saturating_add(1).min(1 << 20);
        let follow = |average: &mut f64, now: f64| *average += alpha * (now - *average);
        follow(&mut self.received, now.received);
        follow(&mut self.held, now.held);
        follow(&mut self.charged, now.charged);
        follow(&mut self.could_run, now.could_run);
        follow(&mut self.backlogged, now.backlogged);
        follow(&mut self.elasticity, now.elasticity);
    }
}

/// pCPUs where any vCPU of a VM may run.
fn allowed(vm: &VmObservation) -> PcpuSet {
    let sets = vm.vcpus.iter().map(|vcpu| &vcpu.allowed);
    sets.flat_map(PcpuSet::iter).collect()
}

/// e_i = Σ s_v × (waiting part of v) ÷ Σ s_v, with s_v the part of the period that v ran.
fn elasticity(period: Nanos, vm: &VmObservation) -> f64 {
    let t = period.0 as f64;
    let (mut weighted, mut total) = (0.0, 0.0);
    for vcpu in &vm.vcpus {
        let share = vcpu.ran.0 as f64 / t;
        let waiting = vcpu.could_run(period).saturating_sub(vcpu.ran).0 as f64 / t;
        weighted += share * waiting;
        total += share;
    }
    // A VM that received no time responds to any weight.
    if total > 0.0 { weighted / total } else { 1.0 }
}
