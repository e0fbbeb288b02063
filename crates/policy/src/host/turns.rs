//! `turns`: VMs that never sleep take turns, each with a pCPU for every vCPU ([`crate::turns`]).
//!
//! The policy decides the members and their slots; the host keeps the rhythm and moves vCPUs to their pCPUs, because
//! turns are shorter than accounting periods.
//! A member's part is its fair share, corrected by a slow integral of what it received.
//! VMs that sleep run at all times, and `fair` holds them to their share.
//!
//! Next to such VMs a member weighs four times its weight per vCPU in its slots: other VMs run on other pCPUs and in the
//! rest of the rotation.
//! If containers, services or unselected VMs compete, members weigh more as well,
//! so that the rotation has the pCPU time that its members would have without turns.
//!
//! Needs the idle class. Without affinities, only VMs whose vCPUs already have a pCPU each take turns.

use std::collections::{BTreeMap, BTreeSet};

use super::config::{ControllerConfig, Placement};
use super::observation::HostObservation;
use super::policy::{Policy, Registered, Scope, Sight};
use crate::assess::{Assessment, assess};
use crate::flexw::Round;
use crate::turns::rotation::Candidate;
use crate::turns::stays::Stays;
use crate::turns::wakefulness::Wakefulness;
use crate::turns::{Residents, Rotation, TurnsConfig, left_out};
use tandem_model::decision::{Because, Decision, Knob, Target};
use tandem_model::observation::VmObservation;
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, VcpuId, VmId};

/// The registry entry.
pub const ENTRY: Registered = Registered {
    name: "turns",
    about: "VMs that never sleep take turns, so that their vCPUs run together",
    sees: &[Sight::RunAndWait, Sight::Runnable, Sight::Affinity, Sight::IdleTime],
    turns: &[Knob::Idle, Knob::Affinity, Knob::Weight],
    excludes: &[],
    build: |config| Box::new(Turns::new(config)),
};

/// Fraction of its lag by which a period corrects a member's part of the rotation.
const CORRECTION: f64 = 0.02;
/// Maximum total correction, either way.
const MAX_CORRECTION: f64 = 1.5;
/// Weight per vCPU of a member in its slots next to resident VMs, relative to its configured weight.
/// A larger one delays resident VMs that wake up on its pCPUs; a smaller one leaves spinning vCPUs without their siblings.
const SLOT_WEIGHT: f64 = 4.0;
/// Tasks that no policy controls count once they take this fraction of the rotation's pCPUs ...
const OTHERS: f64 = 0.05;
/// ... until they take less than this fraction.
const STILL_OTHERS: f64 = 0.025;
/// Weight of the newest period in the average of their usage, as idle times come in ticks.
const SMOOTHING: f64 = 0.1;
/// Factor of change in a part from which the rotation is rebuilt.
const REBUILD: f64 = 1.02;

#[derive(Debug)]
struct Turns {
    config: TurnsConfig,
    placement: Placement,
    wakefulness: Wakefulness,
    stays: Stays,
    /// VMs that did not sleep as of the last period.
    awake: BTreeSet<VmId>,
    /// The rotation, and the candidates from which it was built.
    rotation: Rotation,
    made_of: (Vec<Candidate>, Residents),
    corrections: BTreeMap<VmId, f64>,
    /// Smoothed fraction of the rotation's pCPUs that tasks take that no policy controls; and whether that counts.
    others: (f64, bool),
}

impl Turns {
    fn new(config: &ControllerConfig) -> Turns {
        Turns {
            config: config.turns,
            placement: config.placement,
            wakefulness: Wakefulness::new(config.turns.periods),
            stays: Stays::default(),
            awake: BTreeSet::new(),
            rotation: Rotation::default(),
            made_of: Default::default(),
            corrections: BTreeMap::new(),
            others: (0.0, false),
        }
    }

    /// Returns the VMs that could take turns, with their fair shares, and the VMs that are left
    /// out because of their siblings.
    /// It chooses the set of siblings with the most vCPUs, as a VM in the idle class yields to its siblings only.
    fn candidates(
        &self,
        host: &HostObservation,
        scope: Scope,
        accounts: &BTreeMap<VmId, Assessment>,
    ) -> (Vec<Candidate>, Vec<VmId>) {
        if !host.knobs.idle {
            return (Vec::new(), Vec::new());
        }
        let could = |vm: &&VmObservation| {
            scope.includes(vm) && !vm.in_force.idle && vm.in_force.quota.is_none() && !vm.is_apart()
        };
        let placement = self.placement_on(host);
        let mut sets: BTreeMap<u32, Vec<Candidate>> = BTreeMap::new();
        for vm in host.vms.iter().filter(could) {
            let account = accounts.get(&vm.vm);
            let candidate =
                account.and_then(|account| self.candidate(host.period, placement, vm, account));
            if let Some(candidate) = candidate {
                sets.entry(vm.siblings).or_default().push(candidate);
            }
        }
        left_out::choose(sets)
    }

    /// Returns the demand of other VMs in scope that are no candidates, on the candidates' pCPUs.
    fn residents(
        host: &HostObservation,
        scope: Scope,
        accounts: &BTreeMap<VmId, Assessment>,
        candidates: &[Candidate],
    ) -> Residents {
        let pcpus = Candidate::all_pcpus(candidates);
        let is_resident = |vm: &&VmObservation| {
            scope.includes(vm)
                && !vm.in_force.idle
                && candidates.iter().all(|candidate| candidate.vm != vm.vm)
        };
        let mut residents = Residents::default();
        for vm in host.vms.iter().filter(is_resident).filter(|vm| vm.allowed().overlaps(&pcpus)) {
            let due = accounts.get(&vm.vm).map_or(0, |account| account.fair.0);
            let due = due as f64 / host.period.0 as f64;
            residents.due += due;
            let pins: PcpuSet = vm.vcpus.iter().flat_map(|vcpu| vcpu.home().iter()).collect();
            if vm.vcpus.iter().all(|vcpu| vcpu.home().len() == 1) {
                for pcpu in pins.iter() {
                    *residents.pinned.entry(pcpu).or_default() += due / pins.len() as f64;
                }
            }
        }
        residents
    }

    /// The permitted placement; without affinities no vCPU may be moved.
    fn placement_on(&self, host: &HostObservation) -> Placement {
        if host.knobs.affinity { self.placement } else { Placement::Keep }
    }

    fn candidate(
        &self,
        period: Nanos,
        placement: Placement,
        vm: &VmObservation,
        account: &Assessment,
    ) -> Option<Candidate> {
        if !self.stays.may_join(vm.vm) {
            return None;
        }
        let was_awake = self.awake.contains(&vm.vm);
        let awake = self.wakefulness.awake(period, vm.vm, was_awake);
        let vcpus: Vec<(VcpuId, PcpuSet)> = awake
            .iter()
            .filter_map(|id| {
                let vcpu = vm.vcpu(*id)?;
                let granted = match placement {
                    Placement::Keep => &vcpu.allowed,
                    Placement::Turns | Placement::Rebalance => vcpu.home(),
                };
                Some((*id, granted.clone()))
            })
            .collect();
        // No vCPU is moved: only vCPUs that have a pCPU each already can run together.
        let sit = |(_, set): &(VcpuId, PcpuSet)| set.len() == 1;
        if placement == Placement::Keep && !vcpus.iter().all(sit) {
            return None;
        }
        let correction = self.corrections.get(&vm.vm).copied().unwrap_or(1.0);
        let due = account.fair.0 as f64 / period.0 as f64;
        (!vcpus.is_empty() && due > 0.0).then_some(Candidate { vm: vm.vm, due, correction, vcpus })
    }

    /// Moves each member's part of the rotation towards its fair share.
    fn correct(&mut self, accounts: &BTreeMap<VmId, Assessment>) {
        for member in &self.rotation.members {
            let Some(account) = accounts.get(&member.vm) else {
                continue;
            };
            let correction = self.corrections.entry(member.vm).or_insert(1.0);
            let step = 1.0 + CORRECTION * account.lag.clamp(-1.0, 1.0);
            *correction = (*correction * step).clamp(1.0 / MAX_CORRECTION, MAX_CORRECTION);
        }
    }

    /// Updates the rotation; it is kept while it serves these candidates, so that slots do not change needlessly.
    fn rotate(&mut self, candidates: Vec<Candidate>, residents: Residents) {
        let differ = |a: f64, b: f64| a > b * REBUILD || b > a * REBUILD;
        let (before, next_to) = &self.made_of;
        let is_alike = |(a, b): (&Candidate, &Candidate)| {
            (a.vm, &a.vcpus) == (b.vm, &b.vcpus)
                && !differ(a.due * a.correction, b.due * b.correction)
        };
        let serves = before.len() == candidates.len()
            && before.iter().zip(&candidates).all(is_alike)
            && !differ(next_to.due, residents.due);
        if !serves {
            self.rotation = Rotation::of(&self.config, &candidates, &residents);
            self.made_of = (candidates, residents);
        }
    }

    /// Measures the time of the rotation's pCPUs that is neither idle nor of a VM in scope: that
    /// of tasks no policy controls.
    fn measure_others(&mut self, host: &HostObservation, scope: Scope) {
        let pcpus = self.rotation.pcpus();
        let idle: Option<Vec<Nanos>> = pcpus.iter().map(|p| host.idle.get(&p).copied()).collect();
        let Some(idle) = idle.filter(|idle| !idle.is_empty()) else {
            // There is no rotation, or idle times are unknown.
            self.others = (0.0, false);
            return;
        };
        let all = (host.period.0 * pcpus.len() as u64) as f64;
        // VMs in the idle class take left-over time.
        let is_held = |vm: &&VmObservation| scope.includes(vm) || vm.in_force.idle;
        let held = host.vms.iter().filter(is_held);
        let held = held.filter(|vm| vm.allowed().overlaps(&pcpus));
        let held: u64 = held.map(|vm| vm.received().0).sum();
        let idle: u64 = idle.iter().map(|idle| idle.0).sum();
        let now = ((all - idle as f64 - held as f64) / all).max(0.0);
        let (before, counted) = self.others;
        let part = before + SMOOTHING * (now - before);
        let limit = if counted { STILL_OTHERS } else { OTHERS };
        self.others = (part, part > limit);
    }

    /// Decides the weight of a VM.
    fn weigh(&mut self, raise: f64, vm: &VmObservation) -> Option<Decision> {
        let set =
            |weight, because| Decision::SetWeight { target: Target::Vm(vm.vm), weight, because };
        let Some(member) = self.rotation.member(vm.vm) else {
            return self.stays.leave(vm).map(|weight| set(weight, Because::LeftTurns));
        };
        self.stays.join(vm);
        // A candidate without slots has the weight that `fair` gives it, which is high if its fair share is a whole pCPU.
        let raise = if self.rotation.next_to_residents {
            raise.max(SLOT_WEIGHT * member.vcpus().count() as f64)
        } else {
            raise
        };
        Some(set(vm.weight.times(raise), Because::TakesTurns { raise }))
    }
}

/// Returns the total configured weight of the members relative to the average weight of those in their slots; 1 without members.
/// A member's weight is raised by this factor in its slots.
/// Next to other tasks, the rotation then gets as much of its pCPUs as its members would without turns.
///
/// Example: 4 for four VMs of weight 1 that have a quarter of the rotation each.
fn raise(rotation: &Rotation, host: &HostObservation) -> f64 {
    let (mut all, mut in_slots) = (0.0, 0.0);
    for member in &rotation.members {
        let weight = host.vm(member.vm).map_or(0.0, |vm| vm.weight.value());
        all += weight;
        in_slots += weight * rotation.part(member);
    }
    if in_slots > 0.0 { (all / in_slots).max(1.0) } else { 1.0 }
}

/// Returns each VM's account: smoothed, from `fair`, or else of this period alone.
fn accounts(host: &HostObservation, round: &Round) -> BTreeMap<VmId, Assessment> {
    let of_period;
    let accounts: &mut dyn Iterator<Item = Assessment> = if round.groups.is_empty() {
        of_period = assess(host.period, &host.vms);
        &mut of_period.into_iter()
    } else {
        &mut round.groups.iter().flat_map(|group| group.vms.clone())
    };
    accounts.map(|account| (account.vm, account)).collect()
}

impl Policy for Turns {
    fn decide(&mut self, host: &HostObservation, scope: Scope, round: &mut Round) {
        let present: BTreeSet<VmId> = host.vms.iter().map(|vm| vm.vm).collect();
        self.wakefulness.observe(host.period, &host.vms);
        self.stays.observe(host.period, &present);
        for vm in host.vms.iter().filter(|vm| vm.in_force.left_turns) {
            self.wakefulness.slept(vm.vm);
            self.stays.slept(vm.vm);
        }
        self.corrections.retain(|vm, _| present.contains(vm));
        let accounts = accounts(host, round);
        self.correct(&accounts);
        let (candidates, left_out) = self.candidates(host, scope, &accounts);
        round.left_out_of_turns = left_out;
        self.awake = candidates.iter().map(|candidate| candidate.vm).collect();
        let residents = Turns::residents(host, scope, &accounts, &candidates);
        self.rotate(candidates, residents);
        self.measure_others(host, scope);
        let raise = if self.others.1 { raise(&self.rotation, host) } else { 1.0 };
        for vm in &host.vms {
            let decision = self.weigh(raise, vm);
            round.decisions.extend(decision);
        }
        round.rotation = Some(self.rotation.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::observation::IdleTimes;
    use crate::host::registry;
    use tandem_model::observation::VcpuObservation;
    use tandem_model::policy_set::PolicySet;
    use tandem_model::units::{PcpuId, Weight};

    /// VMs by their numbers of vCPUs, vCPU i on pCPU i mod 2, each known to be runnable for this many ms of 100.
    fn pinned<const N: usize>(vms: [(u32, u64); N]) -> HostObservation {
        let vm = |(id, (vcpus, seen)): (u64, (u32, u64))| {
            let vcpu = |n: u32| VcpuObservation {
                ran: Nanos::from_millis(seen / 3),
                waited: Nanos::from_millis(seen - seen / 3),
                runnable: true,
                ..VcpuObservation::new(VcpuId(n), [PcpuId(n % 2)].into_iter().collect())
            };
            VmObservation::new(VmId(id), Weight::constant(1024.0), (0..vcpus).map(vcpu).collect())
        };
        let vms = (1..).zip(vms).map(vm).collect();
        HostObservation::with_any_knobs(Nanos::from_millis(100), vms, IdleTimes::new())
    }

    /// The policy, and its scope.
    fn turns() -> (Turns, Scope) {
        let policies = registry::set(["turns"]).unwrap();
        let (id, _) = registry::entries(policies).next().unwrap();
        (Turns::new(&ControllerConfig::new(policies)), Scope(id))
    }

    /// The rotation after some periods.
    fn decide(host: &HostObservation) -> Rotation {
        let (mut turns, scope) = turns();
        for _ in 0..8 {
            turns.decide(host, scope, &mut Round::default());
        }
        turns.rotation
    }

    #[test]
    fn unfinished_wait_is_no_sleep() {
        let (mut turns, scope) = turns();
        // VM 3 repeatedly waits for 60 ms beyond a period's end.
        for (period, last) in (1..).zip([100, 100, 100, 100, 100, 40, 160, 100, 100, 40, 160, 100])
        {
            let host = pinned([(2, 100), (2, 100), (1, last)]);
            turns.decide(&host, scope, &mut Round::default());
            assert_eq!(turns.awake.len(), if period < 5 { 0 } else { 3 }, "period {period}");
        }
    }

    /// The part of the rotation that slots leave on pCPU 0, in per cent.
    /// Next to the members is a pinned VM whose two vCPUs could run for `could_run` ms of 100, in the idle class or not.
    fn rest_for(could_run: u64, is_idle: bool) -> u64 {
        let mut host = pinned([(2, 100), (2, 100), (2, could_run)]);
        host.vms[2].in_force.idle = is_idle;
        let rotation = decide(&host);
        assert_eq!(rotation.members.len(), 2);
        let slots: u64 = rotation.members.iter().map(|member| member.length().0).sum();
        100 - (100 * slots).div_ceil(rotation.length.0)
    }

    #[test]
    fn pinned_resident_vm_keeps_its_part() {
        // A third of the 1.73 pCPUs that the three VMs receive.
        assert_eq!(rest_for(60, false), 28);
        assert_eq!(rest_for(60, true), 0, "an idle VM takes nothing");
    }

    /// The weights of four VMs of two vCPUs that never sleep, on two pCPUs, after `periods` periods.
    /// Other tasks keep each pCPU busy for `others` ms of 100.
    fn weights_next_to(others: u64, periods: u32) -> BTreeSet<u32> {
        let (mut turns, scope) = turns();
        let mut host = pinned([(2, 100), (2, 100), (2, 100), (2, 100)]);
        for vcpu in host.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
            vcpu.ran = Nanos::from_millis((100 - others) / 4);
            vcpu.waited = Nanos::from_millis(100) - vcpu.ran;
        }
        host.idle = (0..2).map(|p| (PcpuId(p), Nanos::ZERO)).collect();
        let mut round = Round::default();
        for _ in 0..periods {
            round = Round::default();
            turns.decide(&host, scope, &mut round);
        }
        let weights = round.decisions.iter().filter_map(|decision| match decision {
            Decision::SetWeight { weight, .. } => Some(weight.value().round() as u32),
            _ => None,
        });
        weights.collect()
    }

    #[test]
    fn row_weight_rises_next_to_uncontrolled_tasks() {
        assert_eq!(weights_next_to(0, 50), [1024].into());
        assert_eq!(weights_next_to(4, 50), [1024].into(), "too little to count");
        assert_eq!(weights_next_to(60, 50), [4096].into());
    }

    #[test]
    fn uncontrolled_vm_counts_unless_idle() {
        for (is_idle, weight) in [(false, 3072), (true, 1024)] {
            let (mut turns, scope) = turns();
            let mut host = pinned([(2, 75), (2, 75), (2, 75), (2, 75)]);
            host.vms[3].policies = PolicySet::NONE;
            host.vms[3].in_force.idle = is_idle;
            for vcpu in host.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
                vcpu.ran = Nanos::from_millis(25);
                vcpu.waited = Nanos::from_millis(75);
            }
            host.idle = (0..2).map(|p| (PcpuId(p), Nanos::ZERO)).collect();
            let mut round = Round::default();
            for _ in 0..50 {
                round = Round::default();
                turns.decide(&host, scope, &mut round);
            }
            let of_first = round.decisions.iter().find_map(|decision| match decision {
                Decision::SetWeight { weight, .. } if decision.vm() == VmId(1) => Some(*weight),
                _ => None,
            });
            assert_eq!(of_first, Some(Weight::constant(f64::from(weight))));
        }
    }

    #[test]
    fn only_movable_vcpus_move_to_slots() {
        let mut host = pinned([(2, 100), (2, 100)]);
        let moves = |host: &HostObservation| -> Vec<bool> {
            decide(host).members.iter().map(|member| member.moves).collect()
        };
        assert_eq!(moves(&host), [false, false]);
        host.vms[1].vcpus.iter_mut().for_each(|vcpu| vcpu.allowed = "0-1".parse().unwrap());
        assert_eq!(moves(&host), [false, true]);
        host.knobs.affinity = false;
        assert_eq!(moves(&host), [false], "VM 2 has no pCPU for each vCPU");
    }

    #[test]
    fn members_weigh_more_next_to_residents() {
        let (mut turns, scope) = turns();
        let mut round = Round::default();
        for _ in 0..8 {
            round = Round::default();
            turns.decide(&pinned([(2, 100), (2, 100), (2, 50)]), scope, &mut round);
        }
        let weights = round.decisions.iter().filter_map(|decision| match decision {
            Decision::SetWeight { weight, .. } => Some(weight.value()),
            _ => None,
        });
        assert_eq!(weights.collect::<Vec<_>>(), [8192.0; 2]);
    }

    #[test]
    fn awake_vm_of_other_cgroup_is_reported() {
        let mut host = pinned([(2, 100), (2, 100), (2, 100)]);
        host.vms[2].siblings = 1;
        let (mut turns, scope) = turns();
        let mut reported = Vec::new();
        for _ in 0..8 {
            let mut round = Round::default();
            turns.decide(&host, scope, &mut round);
            reported.push(round.left_out_of_turns);
        }
        assert_eq!(turns.rotation.members.len(), 2);
        assert_eq!(reported.first(), Some(&vec![]), "it may sleep yet");
        assert_eq!(reported.last(), Some(&vec![VmId(3)]));
    }
}
