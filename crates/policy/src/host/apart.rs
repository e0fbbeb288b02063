//! `apart`: VMs that sleep at times, with more vCPUs than pCPUs for them, have each vCPU in a group of its own, beside the other VMs' groups.
//!
//! In a group of the whole VM, the kernel divides the group's weight over pCPUs by what is queued there at the moment. Where several of
//! its vCPUs share a pCPU and block, that weight changes all the time while the group is queued, and on kernels that carry lag
//! over such a change (`docs/decisions/016-lag-of-a-reweighted-group.md`) the VM receives nearly everything or
//! nearly nothing for hundreds of ms, whatever weight `fair` gives it. The kernel never reweights groups of
//! single vCPUs. Measured on two pCPUs (`docs/decisions/018-vcpus-apart.md`): there it brings shares over 250 ms from
//! 0.05 … 1.8 of what is due to 0.84 … 1.07, and does nothing for VMs whose vCPUs have a pCPU each.
//!
//! The VM's weight r_i stays what `fair` decides; here it is only divided, by what each vCPU could run on average. The kernel
//! would divide it anew at each wake-up, so all others are better off in one group: a VM with little to do wakes with all its weight,
//! and one whose vCPUs never sleep is to take turns ([`super::turns`]), which needs a group for all.
//!
//! Only groups that were made for a VM are divided. libvirt's own stay as they are.

use std::collections::BTreeMap;

use super::observation::HostObservation;
use super::policy::Policy;
use super::policy::Registered;
use super::policy::Scope;
use super::policy::Sight;
use crate::decision::Because;
use crate::decision::Decision;
use crate::decision::Knob;
use crate::flexw::Round;
use crate::observation::VmObservation;
use crate::turns::wakefulness::NEVER_SLEEPS;
use crate::turns::wakefulness::SLEEPS_ALL_ALONG;
use crate::units::Nanos;
use crate::units::VcpuId;
use crate::units::VmId;

/// The entry.
pub const ENTRY: Registered = Registered {
    name: "apart",
    about: "VMs that sleep at times and have more vCPUs than pCPUs: a group for each vCPU",
    sees: &[Sight::RunAndWait, Sight::Runnable, Sight::Affinity],
    turns: &[Knob::Division],
    excludes: &["configured"],
    build: |_| Box::new(Apart::default()),
};

/// The weight of the newest period in the averages.
const SMOOTHING: f64 = 0.2;
/// A VM that could run for this part of the time wants what it can get.
const BACKLOGGED: f64 = 0.8;
/// And so much of the time its vCPUs wait, on average, if they do not get it.
const WAITS: f64 = 0.1;
/// Periods in a row that a VM has to want more before its vCPUs are put apart.
const PATIENCE: u32 = 5;
/// Periods in a row that it has to be content, or awake all the time, before they are put together again.
const CALM: u32 = 10;
/// No vCPU has less than this part of what the busiest one has: one that slept wakes with some weight.
const LEAST: f64 = 0.25;
/// Portions follow what vCPUs want when one is off by more than this factor.
const ANEW: f64 = 1.25;

/// What is remembered of a VM.
#[derive(Clone, Debug, Default)]
struct State {
    /// Of each vCPU: the parts of the time that it could run and that it waited, smoothed.
    vcpus: BTreeMap<VcpuId, (f64, f64)>,
    /// Periods in a row in which what it wants was not what is in force.
    otherwise: u32,
}

#[derive(Debug, Default)]
struct Apart {
    vms: BTreeMap<VmId, State>,
}

impl State {
    fn follow(&mut self, period: Nanos, vm: &VmObservation) {
        let part = |time: Nanos| time.0 as f64 / period.0 as f64;
        let before = std::mem::take(&mut self.vcpus);
        let follow = |average: f64, now: f64| average + SMOOTHING * (now - average);
        for vcpu in &vm.vcpus {
            let could = vcpu.could_run(period);
            let now = (part(could), part(could.saturating_sub(vcpu.ran)));
            let average = before.get(&vcpu.vcpu).map_or(now, |before| {
                (follow(before.0, now.0), follow(before.1, now.1))
            });
            self.vcpus.insert(vcpu.vcpu, average);
        }
    }

    /// Why the VM's vCPUs should be apart, if they should.
    fn wants_more(&self) -> Option<Because> {
        let active = self
            .vcpus
            .values()
            .filter(|(could, _)| *could >= SLEEPS_ALL_ALONG);
        let active: Vec<(f64, f64)> = active.copied().collect();
        let backlogged = active.iter().map(|(could, _)| could).sum::<f64>().min(1.0);
        let waited =
            active.iter().map(|(_, waited)| waited).sum::<f64>() / active.len().max(1) as f64;
        let sleeps = active.iter().any(|(could, _)| *could < NEVER_SLEEPS);
        (active.len() > 1 && sleeps && backlogged >= BACKLOGGED && waited >= WAITS)
            .then_some(Because::WantsMore { backlogged, waited })
    }

    /// Each vCPU's part of the VM's weight: what it could run.
    fn portions(&self) -> Vec<(VcpuId, f64)> {
        let most = self
            .vcpus
            .values()
            .map(|(could, _)| *could)
            .fold(0.0, f64::max);
        let worth = |could: f64| could.max(LEAST * most).max(f64::MIN_POSITIVE);
        let sum: f64 = self.vcpus.values().map(|(could, _)| worth(*could)).sum();
        let vcpus = self.vcpus.iter();
        vcpus
            .map(|(&vcpu, (could, _))| (vcpu, worth(*could) / sum))
            .collect()
    }
}

/// Whether these portions are still those in force.
fn serve(vm: &VmObservation, portions: &[(VcpuId, f64)]) -> bool {
    portions.iter().all(|(id, portion)| {
        let now = vm.vcpu(*id).and_then(|vcpu| vcpu.in_force.portion);
        now.is_some_and(|now| (now / portion).max(portion / now) < ANEW)
    })
}

impl Apart {
    fn settle(&mut self, period: Nanos, vm: &VmObservation, is_used_up: bool) -> Option<Decision> {
        let state = self.vms.get_mut(&vm.vm)?;
        let is_apart = vm.is_apart();
        // Some of its vCPUs share pCPUs, if all of them want to run.
        let is_crowded = vm.peak(period).0 < period.0 * vm.vcpus.len() as u64;
        let can = vm.divisible
            && is_crowded
            && !(vm.in_force.idle || vm.in_force.rotating || vm.in_force.quota.is_some());
        let wanted = state.wants_more().filter(|_| can && is_used_up);
        let patience = if is_apart { CALM } else { PATIENCE };
        state.otherwise = match wanted.is_some() == is_apart {
            true => 0,
            false => state.otherwise + 1,
        };
        let together = |because| Decision::Divide {
            vm: vm.vm,
            portions: Vec::new(),
            because,
        };
        if is_apart && !can {
            return Some(together(Because::Together));
        }
        if state.otherwise >= patience {
            state.otherwise = 0;
            return Some(match wanted {
                None => together(Because::Together),
                Some(because) => Decision::Divide {
                    vm: vm.vm,
                    portions: state.portions(),
                    because,
                },
            });
        }
        let portions = state.portions();
        let because = wanted.filter(|_| is_apart && !serve(vm, &portions))?;
        Some(Decision::Divide {
            vm: vm.vm,
            portions,
            because,
        })
    }
}

impl Policy for Apart {
    fn decide(&mut self, host: &HostObservation, scope: Scope, round: &mut Round) {
        let mut before = std::mem::take(&mut self.vms);
        for vm in host.vms.iter().filter(|vm| scope.includes(vm)) {
            let mut state = before.remove(&vm.vm).unwrap_or_default();
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
        let vms = host.vms.iter();
        let decisions: Vec<Decision> = vms
            .filter_map(|vm| self.settle(host.period, vm, is_used_up(vm.vm)))
            .collect();
        round.decisions.extend(decisions);
    }
}
