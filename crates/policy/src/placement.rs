//! Placement: moves one pinned vCPU if pins keep VMs from their fair shares.
//!
//! Weights divide each pCPU, but not across pins. Three one-vCPU VMs pinned to pCPU 0 of two get a
//! third each, whatever their weights, while a VM that also has a vCPU on pCPU 1 gets that pCPU.
//! Whether the fair shares of a group are feasible is a flow problem.
//! VM i offers its fair share, at most k·T of it to a pCPU on which k of its vCPUs may run; a pCPU takes T.
//! The shares are feasible if the flow equals their sum.
//! Otherwise the pCPUs on the far side of the minimum cut have too much pinned to them.
//! One vCPU pinned there is moved to the pCPU of the same group where the flow gains most.
//!
//! Only vCPUs pinned to a single pCPU are moved, and only within their accounting group.
//! A move never puts a second vCPU of a VM on a pCPU (no stacking).
//! Moves are made one at a time: the caller lets the weights settle before it asks again.
//!
//! The idea that vCPUs must move between pCPUs for fair shares to exist is from FlexS (Rao &
//! Zhou, PPoPP 2014, section 4.2), which swaps vCPUs on the run queues of Xen.
//! Pins on a Linux host are the operator's, so this policy is used only with the operator's permission.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::flexw::GroupReport;
use tandem_model::decision::{Because, Decision};
use tandem_model::observation::VmObservation;
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, PcpuId, VmId};

/// A vCPU to move to another pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Index of the VM in the list that was given.
    pub vm: usize,
    /// Index of its vCPU.
    pub vcpu: usize,
    /// The pCPU it is pinned to.
    pub from: PcpuId,
    /// The pCPU to pin it to.
    pub to: PcpuId,
    /// CPU time per period that can be divided fairly in addition.
    pub gain: Nanos,
}

/// Decides when to look for a move: only after a lasting shortfall, and not while an earlier move settles.
#[derive(Clone, Debug, Default)]
pub struct Rebalancer {
    /// By pCPU set of the group: periods the shortfall has lasted, periods since the last move.
    groups: BTreeMap<PcpuSet, (u32, u32)>,
}

/// Periods in a row after which a shortfall counts.
const MIN_SHORTFALL_PERIODS: u32 = 3;
/// Minimum number of periods between two moves, for the weights to settle.
const SETTLE: u32 = 10;
/// Minimum shortfall and gain that are worth a move, as a fraction of a period.
const WORTH: f64 = 0.03;

impl Rebalancer {
    /// Adds one period's observations and FlexW's report on them.
    /// Returns the moves to make, at most one per accounting group, and of `movable` VMs only.
    pub fn decide(
        &mut self,
        period: Nanos,
        vms: &[VmObservation],
        groups: &[GroupReport],
        movable: impl Fn(&VmObservation) -> bool,
    ) -> Vec<Decision> {
        let mut decisions = Vec::new();
        let mut memory = BTreeMap::new();
        for group in groups {
            let (mut lasting, mut quiet) =
                self.groups.get(&group.pcpus).copied().unwrap_or((0, SETTLE));
            quiet = quiet.saturating_add(1);
            let least = Nanos((period.0 as f64 * WORTH) as u64);
            let behind = group.saturated
                && group
                    .vms
                    .iter()
                    .any(|account| account.fair.saturating_sub(account.received) > least);
            lasting = if behind { lasting.saturating_add(1) } else { 0 };
            if lasting >= MIN_SHORTFALL_PERIODS
                && quiet >= SETTLE
                && let Some(decision) = group_move(period, vms, group, least, &movable)
            {
                decisions.push(decision);
                (lasting, quiet) = (0, 0);
            }
            memory.insert(group.pcpus.clone(), (lasting, quiet));
        }
        self.groups = memory;
        decisions
    }
}

fn group_move(
    period: Nanos,
    vms: &[VmObservation],
    group: &GroupReport,
    least: Nanos,
    movable: &impl Fn(&VmObservation) -> bool,
) -> Option<Decision> {
    let by_id: BTreeMap<VmId, &VmObservation> = vms.iter().map(|vm| (vm.vm, vm)).collect();
    let members: Vec<&VmObservation> =
        group.vms.iter().filter_map(|account| by_id.get(&account.vm).copied()).collect();
    let fair: Vec<Nanos> = group.vms.iter().map(|account| account.fair).collect();
    let found = best_move(period, &group.pcpus, &members, &fair, least, movable)?;
    let gain = found.gain.0 as f64 / period.0 as f64;
    Some(Decision::SetAffinity {
        vm: members[found.vm].vm,
        vcpu: members[found.vm].vcpus[found.vcpu].vcpu,
        pcpus: [found.to].into_iter().collect(),
        because: Because::PinsInfeasible { from: found.from, gain },
    })
}

/// Maximum size of a group, as the search tries each pinned vCPU on each pCPU.
const MAX_PCPUS: usize = 128;

/// Returns the move that gains most, if one gains more than `least`.
///
/// `fair` is each VM's fair share within `period`; `vms` are the members of one accounting group and
/// `pcpus` its pCPUs, and only `movable` VMs' vCPUs are moved. Ties go to the first VM, vCPU and pCPU.
pub fn best_move(
    period: Nanos,
    pcpus: &PcpuSet,
    vms: &[&VmObservation],
    fair: &[Nanos],
    least: Nanos,
    movable: impl Fn(&VmObservation) -> bool,
) -> Option<Move> {
    if pcpus.len() > MAX_PCPUS {
        return None;
    }
    let mut network = Network::new(period, pcpus, vms, fair);
    let before = network.max_flow();
    if fair.iter().copied().sum::<Nanos>().saturating_sub(before) <= least {
        return None;
    }
    let crowded = network.crowded();
    let mut best: Option<Move> = None;
    let candidates = vms.iter().enumerate();
    for (vm, observation) in candidates.filter(|(_, observation)| movable(observation)) {
        let mut pinned: BTreeMap<PcpuId, usize> = BTreeMap::new();
        for vcpu in &observation.vcpus {
            for pcpu in vcpu.allowed.iter() {
                *pinned.entry(pcpu).or_insert(0) += 1;
            }
        }
        for (vcpu, from) in single_pins(observation) {
            if !crowded.contains(&from) {
                continue;
            }
            for to in pcpus.iter().filter(|to| !crowded.contains(to) && !pinned.contains_key(to)) {
                let mut moved = (*observation).clone();
                moved.vcpus[vcpu].allowed = [to].into_iter().collect();
                let mut others = vms.to_vec();
                others[vm] = &moved;
                let flow = Network::new(period, pcpus, &others, fair).max_flow();
                let gain = flow.saturating_sub(before);
                if gain > best.map_or(least, |best| best.gain) {
                    best = Some(Move { vm, vcpu, from, to, gain });
                }
            }
        }
    }
    best
}

/// The vCPUs pinned to one pCPU, one per pCPU: vCPUs of a VM on the same pin are alike.
fn single_pins(vm: &VmObservation) -> Vec<(usize, PcpuId)> {
    let mut seen = BTreeSet::new();
    vm.vcpus
        .iter()
        .enumerate()
        .filter(|(_, vcpu)| vcpu.allowed.len() == 1)
        .filter_map(|(index, vcpu)| vcpu.allowed.iter().next().map(|pcpu| (index, pcpu)))
        .filter(|(_, pcpu)| seen.insert(*pcpu))
        .collect()
}

/// The flow network: source → VMs (fair share) → pCPUs (vCPUs there × T, at most T) → sink (T).
struct Network {
    pcpus: Vec<PcpuId>,
    /// Unused capacity source → VM.
    supply: Vec<u64>,
    /// Unused capacity VM → pCPU, by VM then position in `pcpus`.
    edges: Vec<BTreeMap<usize, u64>>,
    /// Flow VM → pCPU, which can be taken back.
    flows: Vec<BTreeMap<usize, u64>>,
    /// Unused capacity pCPU → sink.
    room: Vec<u64>,
}

impl Network {
    fn new(period: Nanos, pcpus: &PcpuSet, vms: &[&VmObservation], fair: &[Nanos]) -> Network {
        let pcpus: Vec<PcpuId> = pcpus.iter().collect();
        let edges: Vec<BTreeMap<usize, u64>> = vms
            .iter()
            .map(|vm| {
                let allowed = vm.allowed();
                let reach = pcpus.iter().enumerate().filter(|(_, pcpu)| allowed.contains(**pcpu));
                reach.map(|(position, _)| (position, period.0)).collect()
            })
            .collect();
        Network {
            room: vec![period.0; pcpus.len()],
            supply: fair.iter().map(|share| share.0).collect(),
            flows: vec![BTreeMap::new(); vms.len()],
            edges,
            pcpus,
        }
    }

    /// Saturates the network (augmenting shortest paths, Edmonds & Karp) and returns the flow.
    fn max_flow(&mut self) -> Nanos {
        let mut total = 0;
        while let Some(path) = self.path() {
            total += self.push(&path);
        }
        Nanos(total)
    }

    /// A shortest path with unused capacity: VM, pCPU, VM, pCPU, … as alternating indices.
    fn path(&self) -> Option<Vec<usize>> {
        let (came_to_pcpu, came_to_vm, end) = self.search();
        let mut pcpu = end?;
        let mut path = Vec::new();
        loop {
            path.push(pcpu);
            let vm = came_to_pcpu[pcpu]?;
            path.push(vm);
            match came_to_vm[vm] {
                Some(previous) => pcpu = previous,
                None => break,
            }
        }
        path.reverse();
        Some(path)
    }

    /// Breadth-first search of the residual network. Returns the VM from which each pCPU was reached,
    /// the pCPU from which each VM was reached against existing flow, and the first pCPU with room.
    #[allow(clippy::type_complexity)]
    fn search(&self) -> (Vec<Option<usize>>, Vec<Option<usize>>, Option<usize>) {
        let mut came_to_pcpu = vec![None; self.pcpus.len()];
        let mut came_to_vm = vec![None; self.supply.len()];
        let mut reached: Vec<bool> = self.supply.iter().map(|&supply| supply > 0).collect();
        let mut queue: VecDeque<usize> = (0..reached.len()).filter(|&vm| reached[vm]).collect();
        while let Some(vm) = queue.pop_front() {
            for (&pcpu, &capacity) in &self.edges[vm] {
                if capacity == 0 || came_to_pcpu[pcpu].is_some() {
                    continue;
                }
                came_to_pcpu[pcpu] = Some(vm);
                if self.room[pcpu] > 0 {
                    return (came_to_pcpu, came_to_vm, Some(pcpu));
                }
                for other in 0..reached.len() {
                    let flows_here = self.flows[other].get(&pcpu).is_some_and(|&flow| flow > 0);
                    if !reached[other] && flows_here {
                        reached[other] = true;
                        came_to_vm[other] = Some(pcpu);
                        queue.push_back(other);
                    }
                }
            }
        }
        (came_to_pcpu, came_to_vm, None)
    }

    /// Sends as much as fits along `path` (VM, pCPU, VM, …, pCPU).
    fn push(&mut self, path: &[usize]) -> u64 {
        let last = path[path.len() - 1];
        let mut amount = self.supply[path[0]].min(self.room[last]);
        for (step, pair) in path.windows(2).enumerate() {
            let capacity = match step % 2 {
                0 => self.edges[pair[0]][&pair[1]],
                _ => self.flows[pair[1]][&pair[0]],
            };
            amount = amount.min(capacity);
        }
        for (step, pair) in path.windows(2).enumerate() {
            let (vm, pcpu, forward) =
                if step % 2 == 0 { (pair[0], pair[1], true) } else { (pair[1], pair[0], false) };
            let edge = self.edges[vm].entry(pcpu).or_insert(0);
            let flow = self.flows[vm].entry(pcpu).or_insert(0);
            if forward {
                *edge -= amount;
                *flow += amount;
            } else {
                *edge += amount;
                *flow -= amount;
            }
        }
        self.supply[path[0]] -= amount;
        self.room[last] -= amount;
        amount
    }

    /// After [`Network::max_flow`]: the pCPUs that VMs with unmet shares can still reach, all full.
    fn crowded(&self) -> BTreeSet<PcpuId> {
        let (came_to_pcpu, _, _) = self.search();
        let reached = self.pcpus.iter().zip(&came_to_pcpu);
        reached.filter(|(_, came)| came.is_some()).map(|(&pcpu, _)| pcpu).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_model::observation::VcpuObservation;
    use tandem_model::units::{VcpuId, VmId, Weight};

    const T: Nanos = Nanos::from_millis(100);

    fn vm(id: u64, pins: &[&str]) -> VmObservation {
        let vcpus = pins
            .iter()
            .zip(0..)
            .map(|(list, number)| VcpuObservation {
                waited: T,
                runnable: true,
                ..VcpuObservation::new(VcpuId(number), list.parse().unwrap())
            })
            .collect();
        VmObservation::new(VmId(id), Weight::constant(1.0), vcpus)
    }

    fn halves(shares: &[u64]) -> Vec<Nanos> {
        shares.iter().map(|&half| Nanos(T.0 / 2 * half)).collect()
    }

    fn find(pcpus: &str, vms: &[VmObservation], fair: &[Nanos]) -> Option<Move> {
        let members: Vec<&VmObservation> = vms.iter().collect();
        best_move(T, &pcpus.parse().unwrap(), &members, fair, Nanos(T.0 / 100), |_| true)
    }

    #[test]
    fn crowded_pcpu_needs_a_move() {
        let vms = [vm(1, &["0", "1"]), vm(2, &["0"]), vm(3, &["0"]), vm(4, &["0"])];
        let moved = find("0-1", &vms, &halves(&[1, 1, 1, 1])).unwrap();
        assert_eq!((moved.vm, moved.from, moved.to), (1, PcpuId(0), PcpuId(1)));
        assert_eq!(moved.gain, Nanos(T.0 / 2));
    }

    #[test]
    fn feasible_division_moves_no_vcpu() {
        let vms = [vm(1, &["0", "1"]), vm(2, &["0"]), vm(3, &["1"]), vm(4, &["0"])];
        assert_eq!(find("0-1", &vms, &halves(&[1, 1, 1, 1])), None);
        let vms = [vm(1, &["0", "1", "0"]), vm(2, &["0"])];
        assert_eq!(find("0-1", &vms, &halves(&[2, 2])), None);
    }

    #[test]
    fn feasible_flow_needs_chain_of_vms() {
        // VM 3 is confined to pCPU 0, VM 2 may use 0 and 1, VM 1 may use 1 and 2.
        // Shares of one pCPU each fit only if all of them shift.
        let vms = [vm(1, &["1", "2"]), vm(2, &["0", "1"]), vm(3, &["0"])];
        let members: Vec<&VmObservation> = vms.iter().collect();
        let pcpus = "0-2".parse().unwrap();
        let flow = |fair| Network::new(T, &pcpus, &members, &halves(fair)).max_flow();
        assert_eq!(flow(&[2, 2, 2]), Nanos(T.0 * 3));
        assert_eq!(flow(&[2, 2, 3]), Nanos(T.0 * 3));
    }

    #[test]
    fn unpinned_vcpus_are_never_moved() {
        let vms = [vm(1, &["0-1"]), vm(2, &["0"]), vm(3, &["0"]), vm(4, &["0"])];
        let moved = find("0-1", &vms, &halves(&[1, 1, 1, 1])).unwrap();
        assert_eq!(moved.vm, 1);
    }

    #[test]
    fn move_never_stacks_vcpus() {
        // Only VM 1 could move, and it already has a vCPU on pCPU 1.
        let vms = [vm(1, &["0", "1"]), vm(2, &["0-1"])];
        let pcpus: PcpuSet = "0-1".parse().unwrap();
        let members: Vec<&VmObservation> = vms.iter().collect();
        assert_eq!(best_move(T, &pcpus, &members, &halves(&[4, 4]), Nanos(1), |_| true), None);
    }
}
