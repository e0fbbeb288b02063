//! `flexs`: a vCPU that busy-waits swaps pCPUs with a sibling that waits with work ([`crate::flexs`]).
//!
//! Source: Rao & Zhou, PPoPP 2014, section 4.2, with the accounting period in place of the 10 ms tick.
//! Counters are read once a period, so only spinning that lasts for a period is found.
//! A sibling is a candidate if it waited for more than a tenth of the period, and a tenth more than the spinning vCPU.
//!
//! The two swap pCPUs, and weights or nice values where these differ, all or nothing ([`Decision::swap`]).
//! A vCPU whose cpuset lacks the other's pCPU is not swapped.
//! Our limits: one swap of a VM in [`EVERY`] periods, one of an accounting group in a period, none while another policy moves vCPUs there.
//!
//! It acts with `Placement::Rebalance` only; otherwise it reports spinning vCPUs.
//! VMs that take turns, are apart, or are in the idle class stay as they are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::config::{ControllerConfig, Placement};
use super::observation::HostObservation;
use super::policy::{Policy, Registered, Scope, Sight};
use super::swaps::{Nudged, READY, exchange, is_ready, moving, waited};
use crate::assess::accounting_groups;
use crate::flexs::{Basis, FlexS, RunQueues, SwapAction, VcpuKey, Verdict};
use crate::flexw::Round;
use tandem_model::branch_counters::Counted;
use tandem_model::decision::{Because, Decision, Knob, Target};
use tandem_model::observation::{VcpuObservation, VmObservation};
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, PcpuId, VcpuId, VmId};

pub use crate::flexs::report::{Left, Refusal, SpinOutcome, SpinReport};

/// The registry entry.
pub const ENTRY: Registered = Registered {
    name: "flexs",
    about: "a vCPU that busy-waits changes places with a sibling that waits with work; needs a PMU",
    sees: &[Sight::RunAndWait, Sight::Runnable, Sight::Affinity, Sight::Branches],
    turns: &[Knob::Weight, Knob::Nice, Knob::Affinity],
    excludes: &["asymmetric"],
    build: |config| Box::new(Swapper::new(config)),
};

/// Minimum number of periods between swaps of a VM.
pub const EVERY: u32 = 3;
/// Fixed seed of the random choices, so that the daemon's decisions can be reproduced from its observations.
const SEED: u64 = 0x7a9d_e300;

#[derive(Debug)]
struct Swapper {
    /// `None` if its settings are out of their ranges, which their parser rejects.
    flexs: Option<FlexS>,
    may_move: bool,
    /// Total time of the observed periods.
    now: Nanos,
    /// Periods since each VM was first seen or swapped.
    since: BTreeMap<VmId, u32>,
    nudged: Nudged,
}

/// Possible partners of a vCPU for a swap: siblings that wait longer than it, by pCPU.
#[derive(Default)]
struct Places<'a> {
    pcpus: Vec<PcpuId>,
    queued: BTreeMap<PcpuId, Vec<VcpuKey>>,
    observed: BTreeMap<VcpuKey, &'a VcpuObservation>,
    /// Siblings that were rejected before the search.
    refused: Vec<(VcpuId, Refusal)>,
}

impl<'a> Places<'a> {
    fn of(
        period: Nanos,
        vm: &'a VmObservation,
        spins: &'a VcpuObservation,
        look_on: &PcpuSet,
    ) -> Places<'a> {
        let key = |vcpu: VcpuId| VcpuKey { vm: vm.vm, vcpu };
        let least = waited(period, spins) + READY * period.0 as f64;
        let mut queued: BTreeMap<PcpuId, Vec<VcpuKey>> = BTreeMap::new();
        let mut refused = Vec::new();
        for sibling in vm.vcpus.iter().filter(|vcpu| vcpu.vcpu != spins.vcpu) {
            match sibling.position() {
                None => refused.push((sibling.vcpu, Refusal::NoPlace)),
                // If two vCPUs of a VM share a pCPU, a swap does not help.
                on if on == spins.position() => {
                    refused.push((sibling.vcpu, Refusal::SamePcpu));
                }
                Some(_) if waited(period, sibling) <= least => {
                    refused.push((sibling.vcpu, Refusal::WaitsTooLittle));
                }
                Some(pcpu) => queued.entry(pcpu).or_default().push(key(sibling.vcpu)),
            }
        }
        Places {
            pcpus: look_on.iter().collect(),
            queued,
            observed: vm.vcpus.iter().map(|vcpu| (key(vcpu.vcpu), vcpu)).collect(),
            refused,
        }
    }

    /// Returns the reason for rejecting each sibling, after a failed search by the vCPU on `on`.
    fn refusals(
        &self,
        flexs: &FlexS,
        spins: VcpuKey,
        on: Option<PcpuId>,
    ) -> Vec<(VcpuId, Refusal)> {
        let waiting =
            self.queued.iter().flat_map(|(pcpu, keys)| keys.iter().map(move |key| (*pcpu, *key)));
        let refusal = |(pcpu, key): (PcpuId, VcpuKey)| {
            let fits = self.allowed(spins, pcpu) && on.is_some_and(|on| self.allowed(key, on));
            let why = if flexs.is_marked(key) {
                Refusal::Spins
            } else if !fits {
                Refusal::Cpuset
            } else {
                Refusal::NotLooked
            };
            (key.vcpu, why)
        };
        let waiting = waiting.map(refusal);
        self.refused.iter().copied().chain(waiting).collect()
    }
}

impl RunQueues for Places<'_> {
    fn pcpus(&self) -> &[PcpuId] {
        &self.pcpus
    }

    fn queued(&self, pcpu: PcpuId) -> &[VcpuKey] {
        self.queued.get(&pcpu).map_or(&[], Vec::as_slice)
    }

    /// The pin of a vCPU on one pCPU may be changed, within the group and its cpuset.
    fn allowed(&self, vcpu: VcpuKey, pcpu: PcpuId) -> bool {
        self.observed.get(&vcpu).is_some_and(|vcpu| {
            let granted = vcpu.granted();
            vcpu.reaches(pcpu) && (granted.len() == 1 || granted.contains(pcpu))
        })
    }
}

/// Whether the vCPUs of a VM may swap.
fn acts(vm: &VmObservation, takes_turns: bool) -> bool {
    vm.vcpus.len() > 1 && !(vm.in_force.idle || vm.is_apart() || takes_turns)
}

/// Exchanges the weights of two vCPUs' own groups, or otherwise their nice values.
fn exchange_weights(
    vm: VmId,
    one: &VcpuObservation,
    other: &VcpuObservation,
    because: &[Because; 2],
) -> Vec<Decision> {
    let (a, b) = (&one.in_force, &other.in_force);
    let ids = [one.vcpu, other.vcpu];
    match (a.weight, b.weight) {
        (Some(of_one), Some(of_other)) if of_one != of_other => {
            let weights = [of_other, of_one];
            let both = ids.into_iter().zip(weights).zip(because);
            both.map(|((vcpu, weight), because)| Decision::SetWeight {
                target: Target::Vcpu(vm, vcpu),
                weight,
                because: because.clone(),
            })
            .collect()
        }
        (None, None) if a.nice != b.nice => {
            let both = ids.into_iter().zip([b.nice, a.nice]).zip(because);
            both.map(|((vcpu, nice), because)| Decision::SetNice {
                vm,
                vcpu,
                nice,
                because: because.clone(),
            })
            .collect()
        }
        _ => Vec::new(),
    }
}

impl Swapper {
    fn new(config: &ControllerConfig) -> Swapper {
        Swapper {
            flexs: FlexS::new(config.flexs.clone(), SEED).ok(),
            may_move: config.placement == Placement::Rebalance,
            now: Nanos::ZERO,
            since: BTreeMap::new(),
            nudged: Nudged::default(),
        }
    }

    /// Counts periods, and forgets VMs that are gone.
    fn begin(&mut self, flexs: &mut FlexS, host: &HostObservation) {
        self.now = Nanos(self.now.0.saturating_add(host.elapsed().0));
        self.since.retain(|vm, _| {
            let is_there = host.vm(*vm).is_some();
            if !is_there {
                flexs.forget(*vm);
            }
            is_there
        });
        for vm in &host.vms {
            let since = self.since.entry(vm.vm).or_default();
            *since = since.saturating_add(1);
        }
    }

    /// Returns the decisions that swap a spinning vCPU and its sibling.
    fn swap(
        host: &HostObservation,
        vm: &VmObservation,
        report: &SpinReport,
        with: VcpuId,
    ) -> Option<Vec<Decision>> {
        let (spins, sibling) = (vm.vcpu(report.vcpu)?, vm.vcpu(with)?);
        let (from, to) = (spins.position()?, sibling.position()?);
        let (bpi, bmpr) = report.verdict.ratios()?;
        let (max_bpi, min_bmpr) = report.extremes?;
        let because = [
            Because::BusyWaits {
                with,
                from,
                to,
                bpi: bpi.as_f64(),
                max_bpi: max_bpi.as_f64(),
                bmpr: bmpr.as_f64(),
                min_bmpr: min_bmpr.as_f64(),
                by: report.counted.source,
            },
            Because::TakesPlace {
                of: report.vcpu,
                from: to,
                to: from,
                waited: (waited(host.period, sibling) / host.period.0.max(1) as f64).min(1.0),
            },
        ];
        let moves = exchange((vm.vm, report.vcpu, from), (vm.vm, with, to), |leaves, _| {
            because[usize::from(leaves != from)].clone()
        });
        let mut decisions = exchange_weights(vm.vm, spins, sibling, &because);
        decisions.extend(moves);
        Some(decisions)
    }
}

impl Policy for Swapper {
    fn decide(&mut self, host: &HostObservation, scope: Scope, round: &mut Round) {
        let Some(mut flexs) = self.flexs.take() else {
            return;
        };
        self.begin(&mut flexs, host);
        let rotation = round.rotation.clone().unwrap_or_default();
        let takes_turns =
            |vm: &VmObservation| vm.in_force.rotating || rotation.member(vm.vm).is_some();
        let roams = self.nudged.release(|vm| host.vm(vm).is_some_and(takes_turns));
        round.decisions.extend(roams);
        // All vCPUs are judged before any searches for a sibling.
        let mut verdicts: BTreeMap<VcpuKey, (Counted, Verdict)> = BTreeMap::new();
        for vm in &host.vms {
            if !scope.includes(vm) || !acts(vm, takes_turns(vm)) {
                continue;
            }
            round.contended |= vm.vcpus.iter().any(|vcpu| is_ready(host.period, vcpu));
            for vcpu in &vm.vcpus {
                let key = VcpuKey { vm: vm.vm, vcpu: vcpu.vcpu };
                let Some(counted) = vcpu.branches else {
                    if vcpu.ran == Nanos::ZERO {
                        flexs.unmark(key);
                    }
                    continue;
                };
                let verdict = flexs.account(self.now, key, &counted.counts);
                verdicts.insert(key, (counted, verdict));
            }
        }
        let new: BTreeSet<VmId> = verdicts
            .iter()
            .filter(|(_, (_, verdict))| verdict.basis == Basis::WarmingUp)
            .map(|(key, _)| key.vm)
            .collect();
        let moved = moving(host, &round.decisions);
        let nowhere = PcpuSet::default();
        let mut swaps = Vec::new();
        for group in accounting_groups(&host.vms) {
            let members = || group.members.iter().map(|&i| &host.vms[i]);
            let is_moving = members().any(|vm| moved.contains(&vm.vm));
            let mut has_swapped = false;
            // The VM whose last swap is longest ago comes first: a group swaps once in a period,
            // and each of its VMs gets its turn.
            let mut order: Vec<&VmObservation> = members().collect();
            order.sort_by_key(|vm| Reverse(self.since.get(&vm.vm).copied()));
            let waits: BTreeSet<VmId> = members()
                .filter(|vm| vm.vcpus.iter().any(|vcpu| is_ready(host.period, vcpu)))
                .map(|vm| vm.vm)
                .collect();
            for (vm, vcpu) in order.into_iter().flat_map(|vm| vm.vcpus.iter().map(move |v| (vm, v)))
            {
                let key = VcpuKey { vm: vm.vm, vcpu: vcpu.vcpu };
                let Some(&(counted, verdict)) = verdicts.get(&key) else {
                    continue;
                };
                let rests = self.since.get(&vm.vm).is_none_or(|since| *since < EVERY);
                let mut refused = Vec::new();
                let outcome = match vcpu.position() {
                    _ if verdict.busy_waiting && !self.may_move => {
                        SpinOutcome::Left(Left::Placement)
                    }
                    None if verdict.busy_waiting => SpinOutcome::Left(Left::NoPlace),
                    _ if verdict.busy_waiting && is_moving => SpinOutcome::Left(Left::Moving),
                    _ if verdict.busy_waiting && new.contains(&vm.vm) => {
                        SpinOutcome::Left(Left::New)
                    }
                    _ if verdict.busy_waiting && (has_swapped || rests) => {
                        SpinOutcome::Left(Left::Recent)
                    }
                    on => {
                        // If no vCPU of its VM waits, there is no pCPU to search.
                        let look_on = if waits.contains(&vm.vm) { &group.pcpus } else { &nowhere };
                        let places = if verdict.busy_waiting {
                            Places::of(host.period, vm, vcpu, look_on)
                        } else {
                            Places::default()
                        };
                        let at = on.unwrap_or(PcpuId(u32::MAX));
                        let outcome = flexs.act(self.now, key, at, verdict, &places);
                        if verdict.busy_waiting && matches!(outcome.action, SwapAction::GoOn { .. })
                        {
                            refused = places.refusals(&flexs, key, on);
                        }
                        SpinOutcome::Decided(outcome.action)
                    }
                };
                let detector = flexs.detector(vm.vm);
                let report = SpinReport {
                    vm: vm.vm,
                    vcpu: vcpu.vcpu,
                    counted,
                    verdict,
                    extremes: detector.and_then(|d| d.max_bpi().zip(d.min_bmpr())),
                    outcome,
                    refused,
                };
                if let SpinOutcome::Decided(SwapAction::Swap { with, .. }) = outcome
                    && let Some(decisions) = Swapper::swap(host, vm, &report, with)
                {
                    has_swapped = true;
                    self.since.insert(vm.vm, 0);
                    swaps.extend(decisions);
                }
                round.spins.push(report);
            }
        }
        self.nudged.note(host, &swaps);
        round.decisions.extend(swaps);
        self.flexs = Some(flexs);
    }
}
