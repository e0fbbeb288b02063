//! `apart`: VMs that sleep at times and have more vCPUs than pCPUs get a group per vCPU.
//!
//! The kernel divides a group's weight over pCPUs by what is queued there.
//! Where several vCPUs share a pCPU and block, that weight changes while the group is queued.
//! Kernels that carry lag over such a change (`docs/decisions/016-reweighted-group-lag.md`) then give the VM nearly
//! everything or nothing for hundreds of ms, whatever weight `fair` sets.
//! With a group per vCPU shares hold over 250 ms, measured on two pCPUs (`docs/decisions/018-per-vcpu-groups.md`).
//!
//! `fair` decides the VM's weight r_i; this policy divides it by what each vCPU could run on average.
//! All other VMs keep one group: a VM with little to do wakes with its whole weight, and one that never sleeps takes
//! turns ([`super::turns`]).
//! Groups of libvirt and VMs with a hard cap, their own or above them, stay as they are.

use std::collections::BTreeMap;

use super::knobs::WeightKnob;
use super::observation::HostObservation;
use super::policy::{Policy, Registered, Scope, Sight};
use crate::flexw::Round;
use crate::turns::wakefulness::{SLEEPS_ALL_ALONG, Wakefulness};
use tandem_model::decision::{Because, Decision, Knob};
use tandem_model::observation::VmObservation;
use tandem_model::units::{Nanos, VcpuId, VmId};

/// The entry.
pub const ENTRY: Registered = Registered {
    name: "apart",
    about: "VMs that sleep at times and have more vCPUs than pCPUs: a group for each vCPU",
    sees: &[Sight::RunAndWait, Sight::Runnable, Sight::Affinity],
    turns: &[Knob::Division],
    excludes: &["configured"],
    build: |_| Box::new(Apart::new()),
};

/// The weight of the newest period in the averages. Portions and what vCPUs wait depend on each other, so faster ones swing.
const SMOOTHING: f64 = 0.1;
/// A VM that could run for this part of the time wants what it can get.
const BACKLOGGED: f64 = 0.8;
/// And so much of the time its vCPUs wait, on average, if they do not get it.
const WAITS: f64 = 0.1;
/// Whom a quota keeps off for more than this part of the time has what that leaves it.
const THROTTLED: f64 = 0.05;
/// Only over so many periods is it told who never sleeps: one that takes all and gets nothing in turn, which is what this is for, seems
/// awake for several periods on end while it gets nothing.
const WINDOW: u32 = 15;
/// More periods in which it wanted more than in which it did not, before its vCPUs are put apart.
const PATIENCE: u32 = 5;
/// Each time that its vCPUs are put together again this doubles, up to so many periods. Staying apart for as many halves it.
const MOST_PATIENCE: u32 = 600;
/// More periods in which it was content, or awake all the time, than in which it was not, before they are put together again.
const CALM: u32 = 10;
/// No vCPU has less than this part of what the busiest one has: one that slept wakes with some weight.
const LEAST: f64 = 0.25;
/// Portions follow what vCPUs want when one is off by more than this factor.
const ANEW: f64 = 1.5;
/// A VM is divided where each part of its configured weight is so many steps of the knob: else the parts cannot be told apart.
const STEPS: f64 = 4.0;

/// What is remembered of a VM.
#[derive(Clone, Debug, Default)]
struct State {
    /// Of each vCPU: the parts of the time that it could run and that it waited, smoothed. A wait counts in the period in
    /// which it ends, so in one period it can be more than 1.
    vcpus: BTreeMap<VcpuId, (f64, f64)>,
    /// The part of its vCPUs' time in which a quota kept them off, smoothed.
    limited: f64,
    /// Whether its vCPUs were apart in the last period, or were to be.
    apart: bool,
    /// Periods in which what it wants was not what is in force, less those in which it was.
    otherwise: u32,
    /// Periods seen.
    age: u32,
    /// Periods in a row in which what it wants was what is in force.
    settled: u32,
    /// How often the patience has been doubled.
    doubled: u32,
}

#[derive(Debug)]
struct Apart {
    wakefulness: Wakefulness,
    vms: BTreeMap<VmId, State>,
}

/// How a VM is to be divided, and whether that can wait for another period.
struct Wish {
    portions: Vec<(VcpuId, f64)>,
    because: Because,
    /// Periods since it was wished; `None`: it cannot wait.
    waited: Option<u32>,
}

impl Wish {
    fn together(waited: Option<u32>) -> Wish {
        Wish { portions: Vec::new(), because: Because::Together, waited }
    }
}

impl State {
    fn follow(&mut self, period: Nanos, vm: &VmObservation) {
        let part = |time: Nanos| time.0 as f64 / period.0 as f64;
        let before = std::mem::take(&mut self.vcpus);
        let follow = |average: f64, now: f64| average + SMOOTHING * (now - average);
        let limited = part(vm.limited()) / vm.vcpus.len().max(1) as f64;
        self.limited = follow(self.limited, limited);
        for vcpu in &vm.vcpus {
            let now = (part(vcpu.wanted(period)), part(vcpu.wanted_in_vain(period)));
            let average = before
                .get(&vcpu.vcpu)
                .map_or(now, |before| (follow(before.0, now.0), follow(before.1, now.1)));
            self.vcpus.insert(vcpu.vcpu, average);
        }
    }

    /// Why the VM's vCPUs should be apart, if they should.
    fn wants_more(&self) -> Option<Because> {
        if self.limited > THROTTLED {
            return None;
        }
        let active = self.vcpus.values().filter(|(could, _)| *could >= SLEEPS_ALL_ALONG);
        let active: Vec<(f64, f64)> = active.copied().collect();
        let backlogged = active.iter().map(|(could, _)| could).sum::<f64>().min(1.0);
        let waited =
            active.iter().map(|(_, waited)| waited).sum::<f64>() / active.len().max(1) as f64;
        (active.len() > 1 && backlogged >= BACKLOGGED && waited >= WAITS)
            .then_some(Because::WantsMore { backlogged, waited })
    }

    /// Each vCPU's part of the VM's weight: what it could run.
    fn portions(&self) -> Vec<(VcpuId, f64)> {
        let most = self.vcpus.values().map(|(could, _)| *could).fold(0.0, f64::max);
        let worth = |could: f64| could.max(LEAST * most).max(f64::MIN_POSITIVE);
        let sum: f64 = self.vcpus.values().map(|(could, _)| worth(*could)).sum();
        let vcpus = self.vcpus.iter();
        vcpus.map(|(&vcpu, (could, _))| (vcpu, worth(*could) / sum)).collect()
    }

    /// Takes in whether its vCPUs are apart now, and whether that is what it wants.
    fn settle(&mut self, is_apart: bool, wants: bool) {
        // Put together, or never put apart although that was asked for.
        if self.apart && !is_apart {
            self.doubled = (self.doubled + 1).min(MOST_PATIENCE.ilog2());
        }
        self.apart = is_apart;
        (self.otherwise, self.settled) = match wants == is_apart {
            true => (self.otherwise.saturating_sub(1), self.settled.saturating_add(1)),
            false => (self.otherwise + 1, 0),
        };
        if is_apart && self.settled >= MOST_PATIENCE {
            (self.doubled, self.settled) = (self.doubled.saturating_sub(1), 0);
        }
    }
}

/// Whether the knob can tell these parts of a weight apart.
fn can_tell(knob: &WeightKnob, weight: f64, portions: &[(VcpuId, f64)]) -> bool {
    let least = STEPS * knob.step.max(knob.least.value());
    portions.iter().all(|(_, portion)| weight * portion >= least)
}

/// Whether the portions in force are still of use: of exactly these vCPUs, and none far off.
fn serve(vm: &VmObservation, portions: &[(VcpuId, f64)]) -> bool {
    let in_force = |id| vm.vcpu(id).and_then(|vcpu| vcpu.in_force.portion);
    let sum: f64 = portions.iter().filter_map(|(id, _)| in_force(*id)).sum();
    (sum - 1.0).abs() < 1e-6
        && portions.iter().all(|(id, portion)| {
            in_force(*id).is_some_and(|now| (now / portion).max(portion / now) < ANEW)
        })
}

impl Apart {
    fn new() -> Apart {
        Apart { wakefulness: Wakefulness::new(WINDOW), vms: BTreeMap::new() }
    }

    /// What should become of a VM's vCPUs, if anything should.
    fn wish(
        &mut self,
        host: &HostObservation,
        vm: &VmObservation,
        is_used_up: bool,
    ) -> Option<Wish> {
        let awake = self.wakefulness.awake(host.period, vm.vm, false);
        let state = self.vms.get_mut(&vm.vm)?;
        let is_apart = vm.is_apart();
        let portions = state.portions();
        // Some of its vCPUs share pCPUs, if all of them want to run.
        let is_crowded = vm.peak(host.period).0 < host.period.0 * vm.vcpus.len() as u64;
        let in_force = &vm.in_force;
        let can = vm.divisible
            && is_crowded
            && !(in_force.idle || in_force.rotating || in_force.quota.is_some())
            && can_tell(&host.knobs.weight, vm.weight.value(), &portions);
        let sleeps = awake.is_empty() && state.age >= WINDOW;
        let wanted = state.wants_more().filter(|_| can && is_used_up && sleeps);
        state.settle(is_apart, wanted.is_some());
        if is_apart && !can {
            return Some(Wish::together(None));
        }
        let waited = Some(state.otherwise);
        let patience = (PATIENCE << state.doubled).min(MOST_PATIENCE);
        match wanted {
            Some(because) if !is_apart => {
                (state.otherwise >= patience).then_some(Wish { portions, because, waited })
            }
            None if is_apart && state.otherwise >= CALM => Some(Wish::together(waited)),
            // vCPUs have come or gone, or want something else.
            wanted if is_apart && !serve(vm, &portions) => {
                Some(Wish { portions, because: wanted.unwrap_or(Because::Portions), waited: None })
            }
            _ => None,
        }
    }
}

impl Policy for Apart {
    /// Of those who can wait, one a period is put apart or together: each costs some moves of threads.
    fn decide(&mut self, host: &HostObservation, scope: Scope, round: &mut Round) {
        self.wakefulness.observe(host.period, &host.vms);
        let takes_turns =
            |vm: VmId| round.rotation.as_ref().is_some_and(|turns| turns.member(vm).is_some());
        let mut before = std::mem::take(&mut self.vms);
        let mut vms = Vec::new();
        for vm in host.vms.iter().filter(|vm| scope.includes(vm)) {
            let mut state = before.remove(&vm.vm).unwrap_or_default();
            if !takes_turns(vm.vm) {
                vms.push(vm);
            }
            state.age = state.age.saturating_add(1);
            state.follow(host.period, vm);
            self.vms.insert(vm.vm, state);
        }
        let used_up: Vec<VmId> = round
            .groups
            .iter()
            .filter(|group| group.saturated)
            .flat_map(|group| group.vms.iter().map(|account| account.vm))
            .collect();
        // Without `fair` nobody says what is used up; who waits does.
        let is_used_up = |vm: VmId| round.groups.is_empty() || used_up.contains(&vm);
        let wishes =
            vms.iter().filter_map(|vm| Some((vm.vm, self.wish(host, vm, is_used_up(vm.vm))?)));
        let (waiting, urgent): (Vec<_>, Vec<_>) =
            wishes.partition(|(_, wish)| wish.waited.is_some());
        // The first of those who waited longest.
        let next = waiting.into_iter().rev().max_by_key(|(_, wish)| wish.waited);
        for (vm, wish) in urgent.into_iter().chain(next) {
            if let Some(state) = self.vms.get_mut(&vm) {
                (state.apart, state.otherwise) = (!wish.portions.is_empty(), 0);
                if !state.apart {
                    state.doubled = (state.doubled + 1).min(MOST_PATIENCE.ilog2());
                }
            }
            round.decisions.push(Decision::Divide {
                vm,
                portions: wish.portions,
                because: wish.because,
            });
        }
    }
}
