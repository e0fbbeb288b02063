//! `turns`: VMs that never sleep take turns, each with a pCPU for every vCPU ([`crate::turns`]).
//!
//! The policy decides the members, their slots and their parts of all rows; the host keeps the rhythm, because turns are
//! shorter than accounting periods.
//! A member's part is its fair share, corrected by a slow integral of what it received.
//! Weights of members stay as configured; VMs that sleep run in all rows, and `fair` holds them to their share.
//!
//! If containers, services or unselected VMs compete, the members of a row weigh more
//! ([`Rotation::raise`]), so that the rotation has the pCPU time that its members would have without turns.
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
use crate::turns::{Member, Rotation, TurnsConfig, left_out};
use tandem_model::decision::{Because, Decision, Knob, Target};
use tandem_model::observation::{VcpuObservation, VmObservation};
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, PcpuId, VcpuId, VmId, Weight};

/// The registry entry.
pub const ENTRY: Registered = Registered {
    name: "turns",
    about: "VMs that never sleep take turns, so that their vCPUs run together",
    sees: &[Sight::RunAndWait, Sight::Runnable, Sight::Affinity, Sight::IdleTime],
    turns: &[Knob::Idle, Knob::Affinity, Knob::Weight],
    excludes: &[],
    build: |config| Box::new(Turns::new(config)),
};

/// Fraction of its lag by which a period corrects a member's share of all rows.
const CORRECTION: f64 = 0.05;
/// Maximum total correction, either way.
const MAX_CORRECTION: f64 = 1.5;
/// A member that lags by more than this fraction of its fair share ...
const NOT_SERVED: f64 = 0.05;
/// ... for this many periods in a row is not served by rows: resident VMs take time from them
/// that the trial did not know of.
const PERIODS_BEHIND: u32 = 50;
/// A resident VM with this fraction of the candidates' fair shares takes much of the rows ...
const PRESSES: f64 = 0.1;
/// ... until its fair share falls below this fraction.
const STILL_PRESSES: f64 = 0.05;
/// Tasks that no policy controls count once they take this fraction of the rotation's pCPUs ...
const OTHERS: f64 = 0.05;
/// ... until they take less than this fraction.
const STILL_OTHERS: f64 = 0.025;
/// Weight of the newest period in the average of their usage, as idle times come in ticks.
const SMOOTHING: f64 = 0.1;
/// Factor of change in a fair share from which the rotation is rebuilt.
const REBUILD: f64 = 1.15;

#[derive(Debug)]
struct Turns {
    config: TurnsConfig,
    placement: Placement,
    wakefulness: Wakefulness,
    stays: Stays,
    /// VMs that did not sleep as of the last period.
    awake: BTreeSet<VmId>,
    /// Pinned resident VMs that take much of the rows.
    pressing: BTreeSet<VmId>,
    /// The rotation, and the candidates from which it was built.
    rotation: Rotation,
    made_of: Vec<Candidate>,
    corrections: BTreeMap<VmId, f64>,
    /// Smoothed fraction of the rotation's pCPUs that tasks take that no policy controls; and whether that counts.
    others: (f64, bool),
    /// Consecutive periods in which a member was behind.
    behind: BTreeMap<VmId, u32>,
    /// VMs that have been given slots, until an observation shows that they have the operator's affinity again.
    seated: BTreeSet<VmId>,
}

impl Turns {
    fn new(config: &ControllerConfig) -> Turns {
        Turns {
            config: config.turns,
            placement: config.placement,
            wakefulness: Wakefulness::new(config.turns.periods),
            stays: Stays::default(),
            awake: BTreeSet::new(),
            pressing: BTreeSet::new(),
            rotation: Rotation::default(),
            made_of: Vec::new(),
            corrections: BTreeMap::new(),
            others: (0.0, false),
            behind: BTreeMap::new(),
            seated: BTreeSet::new(),
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

    /// Removes pinned candidates that cannot take turns next to pinned resident VMs.
    /// Such a resident VM has more of its pCPUs in rows that leave some of them to it than in rows that take all.
    /// So if rows are not equally wide, VMs with narrow rows lack time that no correction of their share finds.
    fn exclude_next_to_pinned(
        &mut self,
        host: &HostObservation,
        accounts: &BTreeMap<VmId, Assessment>,
        candidates: &mut Vec<Candidate>,
    ) {
        let all: f64 = candidates.iter().map(|candidate| candidate.due).sum();
        let is_resident = |vm: &&VmObservation| candidates.iter().all(|c| c.vm != vm.vm);
        let pressing = host.vms.iter().filter(is_resident).filter(|vm| {
            let due = accounts.get(&vm.vm).map_or(0, |account| account.fair.0);
            let limit = if self.pressing.contains(&vm.vm) { STILL_PRESSES } else { PRESSES };
            let is_pinned = vm.vcpus.iter().all(|vcpu| vcpu.home().len() == 1);
            is_pinned
                && !vm.in_force.idle
                && due as f64 >= limit * all * host.period.0 as f64
                && due > 0
        });
        let pressing: Vec<&VmObservation> = pressing.collect();
        self.pressing = pressing.iter().map(|vm| vm.vm).collect();
        for vm in pressing {
            let theirs = vm.allowed();
            let meets = |c: &Candidate| reach(c).overlaps(&theirs);
            let widths = |list: &[Candidate]| -> BTreeSet<usize> {
                let pinned = list.iter().filter(|c| is_pinned(c) && meets(c));
                pinned.map(|c| reach(c).len()).collect()
            };
            if widths(candidates).len() > 1 {
                candidates.retain(|c| !(is_pinned(c) && meets(c)));
            }
        }
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

    /// Moves each member's share of all rows towards its fair share.
    fn correct(&mut self, accounts: &BTreeMap<VmId, Assessment>) {
        for member in &self.rotation.members {
            let Some(account) = accounts.get(&member.vm) else {
                continue;
            };
            let correction = self.corrections.entry(member.vm).or_insert(1.0);
            let behind = self.behind.entry(member.vm).or_default();
            *behind = if account.lag > NOT_SERVED { *behind + 1 } else { 0 };
            let step = 1.0 + CORRECTION * account.lag.clamp(-1.0, 1.0);
            *correction = (*correction * step).clamp(1.0 / MAX_CORRECTION, MAX_CORRECTION);
        }
    }

    /// Removes a member that rows do not serve, if others have more slots: the narrowest need co-scheduling least.
    fn drop_unserved(&mut self) {
        let seats = |member: &Member| member.seats.len();
        let widest = self.rotation.members.iter().map(seats).max().unwrap_or(0);
        let is_behind = |member: &&Member| {
            let periods = self.behind.get(&member.vm);
            seats(member) < widest && periods.is_some_and(|periods| *periods >= PERIODS_BEHIND)
        };
        let behind = self.rotation.members.iter().filter(is_behind);
        if let Some(member) = behind.min_by_key(|member| (seats(member), member.vm)) {
            let vm = member.vm;
            self.stays.not_served(vm);
            self.behind.remove(&vm);
        }
    }

    /// Updates the rotation; it is kept while it serves these candidates, so that slots do not change needlessly.
    fn rotate(&mut self, candidates: Vec<Candidate>) {
        let is_alike = |(a, b): (&Candidate, &Candidate)| {
            let change = (a.due / b.due).max(b.due / a.due);
            a.vm == b.vm && a.vcpus == b.vcpus && change < REBUILD
        };
        let serves = self.made_of.len() == candidates.len()
            && self.made_of.iter().zip(&candidates).all(is_alike);
        if !serves {
            self.rotation = Rotation::after(&self.rotation, &self.config, &candidates);
            self.made_of = candidates;
            return;
        }
        self.rotation.renew(&candidates);
    }

    /// Measures the time of the rotation's pCPUs that is neither idle nor of a VM in scope: that
    /// of tasks no policy controls.
    fn measure_others(&mut self, host: &HostObservation, scope: Scope) {
        let mut pcpus = PcpuSet::default();
        for member in &self.rotation.members {
            pcpus.extend(member.roams.as_ref().unwrap_or(&member.pcpus()));
        }
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

    /// Decides the changes to a VM.
    fn settle(
        &mut self,
        placement: Placement,
        raise: f64,
        vm: &VmObservation,
        decisions: &mut Vec<Decision>,
    ) {
        let Some(member) = self.rotation.member(vm.vm) else {
            if let Some(weight) = self.stays.leave(vm) {
                decisions.push(Decision::SetWeight {
                    target: Target::Vm(vm.vm),
                    weight,
                    because: Because::LeftTurns,
                });
            }
            if self.seated.contains(&vm.vm) {
                self.unseat(vm, decisions);
            }
            return;
        };
        self.stays.join(vm);
        if placement != Placement::Keep {
            self.seated.insert(vm.vm);
            // A vCPU that `fair` moves now has another slot in the next rotation.
            let is_moved = |decision: &Decision, vcpu: VcpuId| {
                decision.knob() == Knob::Affinity
                    && (decision.vm(), decision.vcpu()) == (vm.vm, Some(vcpu))
            };
            let seats: Vec<(VcpuId, PcpuId)> = member
                .seats
                .iter()
                // Roaming VMs are moved by the host that keeps the turns.
                .filter(|_| member.roams.is_none())
                .map(|(&vcpu, &pcpu)| (vcpu, pcpu))
                .filter(|(vcpu, _)| !decisions.iter().any(|d| is_moved(d, *vcpu)))
                .collect();
            decisions.extend(seats.into_iter().map(|(vcpu, pcpu)| Decision::SetAffinity {
                vm: vm.vm,
                vcpu,
                pcpus: [pcpu].into_iter().collect(),
                because: Because::Seat,
            }));
            // A vCPU that sleeps throughout has no slot.
            let others = vm.vcpus.iter().filter(|vcpu| !member.seats.contains_key(&vcpu.vcpu));
            decisions.extend(others.map(|vcpu| back(vm.vm, vcpu.vcpu, vcpu.home())));
        }
        decisions.push(Decision::SetWeight {
            target: Target::Vm(vm.vm),
            weight: vm.weight.times(raise),
            because: Because::TakesTurns { raise },
        });
    }

    /// Restores the affinities that the operator allowed for a VM's vCPUs.
    fn unseat(&mut self, vm: &VmObservation, decisions: &mut Vec<Decision>) {
        let away = |vcpu: &&VcpuObservation| vcpu.allowed != *vcpu.home();
        let before = decisions.len();
        let away = vm.vcpus.iter().filter(away);
        decisions.extend(away.map(|vcpu| back(vm.vm, vcpu.vcpu, vcpu.home())));
        if decisions.len() == before {
            self.seated.remove(&vm.vm);
        }
    }
}

/// The pCPUs that a candidate's vCPUs may use.
fn reach(candidate: &Candidate) -> PcpuSet {
    let mut all = PcpuSet::default();
    for (_, pcpus) in &candidate.vcpus {
        all.extend(pcpus);
    }
    all
}

/// Whether each of its vCPUs may use one pCPU only.
fn is_pinned(candidate: &Candidate) -> bool {
    candidate.vcpus.iter().all(|(_, pcpus)| pcpus.len() == 1)
}

fn back(vm: VmId, vcpu: VcpuId, granted: &PcpuSet) -> Decision {
    Decision::SetAffinity { vm, vcpu, pcpus: granted.clone(), because: Because::LeftTurns }
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
        let rotation = &self.rotation;
        self.behind.retain(|vm, _| rotation.member(*vm).is_some());
        self.corrections.retain(|vm, _| present.contains(vm));
        let accounts = accounts(host, round);
        self.correct(&accounts);
        self.drop_unserved();
        let (mut candidates, left_out) = self.candidates(host, scope, &accounts);
        round.left_out_of_turns = left_out;
        self.awake = candidates.iter().map(|candidate| candidate.vm).collect();
        self.exclude_next_to_pinned(host, &accounts, &mut candidates);
        self.rotate(candidates);
        self.seated.retain(|vm| present.contains(vm));
        self.measure_others(host, scope);
        let raise = match self.others {
            (_, true) => {
                let weights: BTreeMap<VmId, Weight> =
                    host.vms.iter().map(|vm| (vm.vm, vm.weight)).collect();
                self.rotation.raise(|vm| weights.get(&vm).copied())
            }
            (_, false) => 1.0,
        };
        let placement = self.placement_on(host);
        for vm in &host.vms {
            self.settle(placement, raise, vm, &mut round.decisions);
        }
        round.rotation = Some(self.rotation.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::observation::IdleTimes;
    use crate::host::registry;
    use tandem_model::policy_set::PolicySet;

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

    /// The members of the rotation after some periods, and the number of affinities that `turns`
    /// sets in the last of them.
    fn decide(host: &HostObservation) -> (usize, usize) {
        let (mut turns, scope) = turns();
        let mut round = Round::default();
        for _ in 0..8 {
            round = Round::default();
            turns.decide(host, scope, &mut round);
        }
        let affinities = round.decisions.iter();
        let affinities = affinities.filter(|decision| decision.knob() == Knob::Affinity);
        (turns.rotation.members.len(), affinities.count())
    }

    #[test]
    fn unfinished_wait_forms_no_rotation() {
        let (mut turns, scope) = turns();
        // VM 3 repeatedly waits for 60 ms beyond a period's end; it never sleeps, so the others alone form no rows.
        for last in [100, 100, 100, 100, 100, 40, 160, 100, 100, 40, 160, 100] {
            let mut round = Round::default();
            let host = pinned([(4, 100), (2, 100), (1, last)]);
            turns.decide(&host, scope, &mut round);
            assert!(turns.rotation.is_empty(), "{:?}", turns.rotation);
        }
    }

    /// The members of a rotation of pinned VMs of 2 and 1 vCPUs that never sleep.
    /// Next to them is a VM whose four vCPUs could run for `could_run` ms of 100, in the idle class or not.
    fn members_next_to(could_run: u64, is_idle: bool) -> usize {
        let mut host = pinned([(2, 100), (1, 100), (4, could_run)]);
        host.vms[2].in_force.idle = is_idle;
        decide(&host).0
    }

    #[test]
    fn pinned_resident_vm_needs_equally_wide_rows() {
        assert_eq!(members_next_to(60, false), 0);
        assert_eq!(members_next_to(2, false), 2);
        assert_eq!(members_next_to(60, true), 2, "an idle VM takes nothing");
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
    fn no_slots_without_affinity_knob() {
        let mut host = pinned([(2, 100), (2, 100)]);
        assert_eq!(decide(&host), (2, 4));
        host.knobs.affinity = false;
        assert_eq!(decide(&host), (2, 0), "they sit already");
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
