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
use crate::turns::wakefulness::{SLEEPS_THROUGHOUT, Wakefulness};
use tandem_model::decision::{Because, Decision, Knob};
use tandem_model::observation::VmObservation;
use tandem_model::units::{Nanos, VcpuId, VmId};

/// The registry entry.
pub const ENTRY: Registered = Registered {
    name: "apart",
    about: "VMs that sleep at times and have more vCPUs than pCPUs: a group for each vCPU",
    sees: &[Sight::RunAndWait, Sight::Runnable, Sight::Affinity],
    turns: &[Knob::Division],
    excludes: &["configured"],
    build: |_| Box::new(Apart::new()),
};

/// Weight of the newest period in the averages. Portions and waits of vCPUs depend on each other,
/// so faster averages oscillate.
const SMOOTHING: f64 = 0.1;
/// Fraction of the time for which a VM must be able to run to want all it can get.
const BACKLOGGED: f64 = 0.8;
/// Fraction of the time for which its vCPUs must wait, on average, for lack of CPU time.
const WAITS: f64 = 0.1;
/// A VM throttled for more than this fraction of the time gets what its quota leaves.
const THROTTLED: f64 = 0.05;
/// Periods over which wakefulness is judged.
/// A VM that takes everything and gets nothing in turn, which this policy is for, seems awake for
/// several periods while it gets nothing.
const WINDOW: u32 = 15;
/// Periods in which a VM wanted more, less those in which it did not, before its vCPUs are put apart.
const DIVIDE_AFTER: u32 = 5;
/// Maximum of that: it doubles each time the vCPUs are put together again, and halves after as many periods apart.
const MAX_DIVIDE_AFTER: u32 = 600;
/// Periods in which a VM was content or always awake, less those in which it was not, before its
/// vCPUs are put together.
const CALM: u32 = 10;
/// Minimum portion of a vCPU relative to the busiest one, so that one that slept wakes with some weight.
const MIN_PORTION: f64 = 0.25;
/// Factor by which a portion may be off before the portions are updated.
const MAX_DRIFT: f64 = 1.5;
/// Minimum steps of the knob in each part of the configured weight; with fewer, the parts cannot be distinguished.
const STEPS: f64 = 4.0;

/// State of a VM.
#[derive(Clone, Debug, Default)]
struct State {
    /// Per vCPU: the fractions of the time that it could run and that it waited, smoothed.
    /// A wait counts in the period in which it ends, so in one period it can be more than 1.
    vcpus: BTreeMap<VcpuId, (f64, f64)>,
    /// Throttled fraction of its vCPUs' time, smoothed.
    limited: f64,
    /// Whether its vCPUs were apart in the last period, or were to be.
    apart: bool,
    /// Periods in which the desired state was not the current one, less those in which it was.
    otherwise: u32,
    /// Periods seen.
    age: u32,
    /// Consecutive periods in which the desired state was the current one.
    settled: u32,
    /// Number of times that [`DIVIDE_AFTER`] has been doubled.
    doubled: u32,
}

#[derive(Debug)]
struct Apart {
    wakefulness: Wakefulness,
    vms: BTreeMap<VmId, State>,
}

/// Desired division of a VM, and whether it can wait for another period.
struct Wish {
    portions: Vec<(VcpuId, f64)>,
    because: Because,
    /// Periods for which it has been desired; `None`: it cannot wait.
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

    /// Returns the reason for putting the VM's vCPUs apart, if there is one.
    fn wants_more(&self) -> Option<Because> {
        if self.limited > THROTTLED {
            return None;
        }
        let active = self.vcpus.values().filter(|(could, _)| *could >= SLEEPS_THROUGHOUT);
        let active: Vec<(f64, f64)> = active.copied().collect();
        let backlogged = active.iter().map(|(could, _)| could).sum::<f64>().min(1.0);
        let waited =
            active.iter().map(|(_, waited)| waited).sum::<f64>() / active.len().max(1) as f64;
        (active.len() > 1 && backlogged >= BACKLOGGED && waited >= WAITS)
            .then_some(Because::WantsMore { backlogged, waited })
    }

    /// Each vCPU's part of the VM's weight, by the time it could run.
    fn portions(&self) -> Vec<(VcpuId, f64)> {
        let most = self.vcpus.values().map(|(could, _)| *could).fold(0.0, f64::max);
        let worth = |could: f64| could.max(MIN_PORTION * most).max(f64::MIN_POSITIVE);
        let sum: f64 = self.vcpus.values().map(|(could, _)| worth(*could)).sum();
        let vcpus = self.vcpus.iter();
        vcpus.map(|(&vcpu, (could, _))| (vcpu, worth(*could) / sum)).collect()
    }

    /// Updates the state with whether the vCPUs are apart now, and whether they should be.
    fn settle(&mut self, is_apart: bool, wants: bool) {
        // Put together, or never put apart although that was requested.
        if self.apart && !is_apart {
            self.doubled = (self.doubled + 1).min(MAX_DIVIDE_AFTER.ilog2());
        }
        self.apart = is_apart;
        (self.otherwise, self.settled) = if wants == is_apart {
            (self.otherwise.saturating_sub(1), self.settled.saturating_add(1))
        } else {
            (self.otherwise + 1, 0)
        };
        if is_apart && self.settled >= MAX_DIVIDE_AFTER {
            (self.doubled, self.settled) = (self.doubled.saturating_sub(1), 0);
        }
    }
}

/// Whether the resolution of the knob is sufficient for these parts of a weight.
fn is_expressible(knob: &WeightKnob, weight: f64, portions: &[(VcpuId, f64)]) -> bool {
    let least = STEPS * knob.step.max(knob.least.value());
    portions.iter().all(|(_, portion)| weight * portion >= least)
}

/// Whether the current portions are still useful: for exactly these vCPUs, and none far off.
fn serve(vm: &VmObservation, portions: &[(VcpuId, f64)]) -> bool {
    let in_force = |id| vm.vcpu(id).and_then(|vcpu| vcpu.in_force.portion);
    let sum: f64 = portions.iter().filter_map(|(id, _)| in_force(*id)).sum();
    (sum - 1.0).abs() < 1e-6
        && portions.iter().all(|(id, portion)| {
            in_force(*id).is_some_and(|now| (now / portion).max(portion / now) < MAX_DRIFT)
        })
}

impl Apart {
    fn new() -> Apart {
        Apart { wakefulness: Wakefulness::new(WINDOW), vms: BTreeMap::new() }
    }

    /// Returns the desired change of a VM's division, if there is one.
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
            && is_expressible(&host.knobs.weight, vm.weight.value(), &portions);
        let sleeps = awake.is_empty() && state.age >= WINDOW;
        let wanted = state.wants_more().filter(|_| can && is_used_up && sleeps);
        state.settle(is_apart, wanted.is_some());
        if is_apart && !can {
            return Some(Wish::together(None));
        }
        let waited = Some(state.otherwise);
        let divide_after = (DIVIDE_AFTER << state.doubled).min(MAX_DIVIDE_AFTER);
        match wanted {
            Some(because) if !is_apart => {
                (state.otherwise >= divide_after).then_some(Wish { portions, because, waited })
            }
            None if is_apart && state.otherwise >= CALM => Some(Wish::together(waited)),
            // vCPUs have come or gone, or their demands have changed.
            wanted if is_apart && !serve(vm, &portions) => {
                Some(Wish { portions, because: wanted.unwrap_or(Because::Portions), waited: None })
            }
            _ => None,
        }
    }
}

impl Policy for Apart {
    /// One VM per period that can wait is put apart or together, as each costs migrations of threads.
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
        // Without `fair` it is unknown which groups are used up, but waiting VMs show it.
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
                    state.doubled = (state.doubled + 1).min(MAX_DIVIDE_AFTER.ilog2());
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
