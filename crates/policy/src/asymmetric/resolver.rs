//! Resolver of conflicts: swaps vCPUs between two pCPUs if one has too much allocated time or too many urgent vCPUs.
//!
//! Source: Shan (NJIT 2018), chapter 5.
//!
//! - **Demand** ([`balance`]): the usable parts of the allocations are summed per pCPU.
//!   Two vCPUs swap if the largest sum exceeds the smallest by more than 10 %, and exceeds the time of one pCPU.
//!   The pair that brings the sums closest is chosen; it must bring them closer by a tenth of the larger.
//! - **Urgency** ([`spread`]): the pCPU with the most conflicts of urgent vCPUs is compared with
//!   the one with the fewest.
//!   If it has more than twice as many, up to half of its urgent vCPUs swap with non-urgent vCPUs of the other.
//!
//! A swap keeps the number of vCPUs on each pCPU.
//! It never puts two vCPUs of a VM on one pCPU, or a vCPU on a pCPU where it may not run.

use std::collections::BTreeMap;

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, PcpuId, VcpuId, VmId};

/// Tolerated excess of the largest sum over the smallest, relative to the smallest.
pub const UNEVEN: f64 = 0.10;
/// Minimum gain of a swap, relative to the larger sum, as a vCPU that moves loses its caches.
/// Ours; the source has none.
pub const WORTH: f64 = 0.10;
/// Tolerated ratio of the most conflicts to the fewest.
pub const CROWDED: u64 = 2;
/// Minimum number of conflicts on a pCPU to act on.
pub const FEW: u64 = 4;

/// A vCPU on its pCPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed<'a> {
    /// Its VM.
    pub vm: VmId,
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Its pCPU.
    pub pcpu: PcpuId,
    /// Usable part of its allocation.
    pub load: Nanos,
    /// Whether it is urgent.
    pub urgent: bool,
    /// Number of recent periods in which it was urgent and still too late.
    pub conflicts: u64,
    /// pCPUs it may move to; `None` if it must stay.
    pub may_be_on: Option<&'a PcpuSet>,
}

impl Placed<'_> {
    fn may_go(&self, pcpu: PcpuId) -> bool {
        self.may_be_on.is_some_and(|pcpus| pcpus.contains(pcpu))
    }
}

/// Two vCPUs that exchange their pCPUs, as indices into the list given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// One of them.
    pub one: usize,
    /// The other.
    pub other: usize,
}

/// The vCPUs of each pCPU.
struct Host<'a, 'b> {
    placed: &'a [Placed<'b>],
    on: BTreeMap<PcpuId, Vec<usize>>,
}

impl<'a, 'b> Host<'a, 'b> {
    fn new(placed: &'a [Placed<'b>]) -> Host<'a, 'b> {
        let mut on: BTreeMap<PcpuId, Vec<usize>> = BTreeMap::new();
        for (at, vcpu) in placed.iter().enumerate() {
            on.entry(vcpu.pcpu).or_default().push(at);
        }
        for there in on.values_mut() {
            there.sort_by_key(|&at| (placed[at].vm, placed[at].vcpu));
        }
        Host { placed, on }
    }

    /// Returns the pCPUs with the largest and the smallest sum; on a tie the lower number.
    fn extremes(&self, of: impl Fn(&Placed<'_>) -> u64) -> Option<((PcpuId, u64), (PcpuId, u64))> {
        let sums = self.on.iter().map(|(pcpu, there)| {
            let sum: u64 = there.iter().map(|&at| of(&self.placed[at])).sum();
            (*pcpu, sum)
        });
        let sums: Vec<(PcpuId, u64)> = sums.collect();
        let most = sums.iter().rev().max_by_key(|(_, sum)| *sum)?;
        let least = sums.iter().min_by_key(|(_, sum)| *sum)?;
        Some((*most, *least))
    }

    fn there(&self, pcpu: PcpuId) -> &[usize] {
        self.on.get(&pcpu).map_or(&[], Vec::as_slice)
    }

    /// Whether two vCPUs may exchange their pCPUs without putting two of a VM on one.
    fn may_swap(&self, one: usize, other: usize) -> bool {
        let (a, b) = (&self.placed[one], &self.placed[other]);
        let stacks = |vcpu: &Placed<'_>, there: PcpuId, leaves: usize| {
            let others = self.there(there).iter();
            others.filter(|&&at| at != leaves).any(|&at| self.placed[at].vm == vcpu.vm)
        };
        a.may_go(b.pcpu) && b.may_go(a.pcpu) && !stacks(a, b.pcpu, other) && !stacks(b, a.pcpu, one)
    }
}

/// Returns the swap that best evens out the two pCPUs whose loads differ most, if its gain is large enough.
/// Returns `None` if the larger load fits into a period.
pub fn balance(period: Nanos, placed: &[Placed<'_>]) -> Option<Swap> {
    let host = Host::new(placed);
    let ((from, most), (to, least)) = host.extremes(|vcpu| vcpu.load.0)?;
    if most <= period.0 || most as f64 <= least as f64 * (1.0 + UNEVEN) {
        return None;
    }
    let before = most - least;
    let mut best: Option<(u64, Swap)> = None;
    for &one in host.there(from) {
        for &other in host.there(to) {
            let (more, less) = (placed[one].load.0, placed[other].load.0);
            if more <= less || !host.may_swap(one, other) {
                continue;
            }
            let after = before.abs_diff(2 * (more - less));
            if after < best.map_or(before, |(least, _)| least) {
                best = Some((after, Swap { one, other }));
            }
        }
    }
    let (after, swap) = best?;
    let is_worth = (before - after) as f64 >= most as f64 * WORTH;
    is_worth.then_some(swap)
}

/// Returns swaps of up to half of the urgent vCPUs, from the pCPU with the most conflicts to the one with the fewest.
pub fn spread(placed: &[Placed<'_>]) -> Vec<Swap> {
    let host = Host::new(placed);
    let conflicts = |vcpu: &Placed<'_>| if vcpu.urgent { vcpu.conflicts } else { 0 };
    let Some(((from, most), (to, fewest))) = host.extremes(conflicts) else {
        return Vec::new();
    };
    if most < FEW || most <= CROWDED * fewest {
        return Vec::new();
    }
    let mut urgent: Vec<usize> = host.there(from).to_vec();
    urgent.retain(|&at| placed[at].urgent);
    let mut calm: Vec<usize> = host.there(to).to_vec();
    calm.retain(|&at| !placed[at].urgent);
    let mut swaps: Vec<Swap> = Vec::new();
    for &one in &urgent {
        if swaps.len() * 2 + 1 >= urgent.len() {
            break;
        }
        // A VM takes part in one swap only, as `may_swap` checks the places before the first swap.
        let is_going = |at: usize| {
            let vm = placed[at].vm;
            let goes = |swap: &Swap| placed[swap.one].vm == vm || placed[swap.other].vm == vm;
            swaps.iter().any(goes)
        };
        let may = |other: usize| !is_going(one) && !is_going(other) && host.may_swap(one, other);
        let Some(at) = calm.iter().position(|&other| may(other)) else {
            continue;
        };
        swaps.push(Swap { one, other: calm.remove(at) });
    }
    swaps
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Nanos = Nanos::from_millis(50);

    fn placed<'a>(vm: u64, vcpu: u32, pcpu: u32, ms: u64, all: &'a PcpuSet) -> Placed<'a> {
        Placed {
            vm: VmId(vm),
            vcpu: VcpuId(vcpu),
            pcpu: PcpuId(pcpu),
            load: Nanos::from_millis(ms),
            urgent: false,
            conflicts: 0,
            may_be_on: Some(all),
        }
    }

    #[test]
    fn evening_pair_is_swapped() {
        let all: PcpuSet = "0-1".parse().unwrap();
        // pCPU 0 has 100 + 60 ms, pCPU 1 has 20 + 60 ms: swapping a difference of 40 ms makes them even.
        let host = [
            placed(1, 0, 0, 100, &all),
            placed(2, 0, 0, 60, &all),
            placed(3, 0, 1, 20, &all),
            placed(4, 0, 1, 60, &all),
        ];
        let swap = balance(T, &host).unwrap();
        assert!([(0, 3), (1, 2)].contains(&(swap.one, swap.other)));
        let (a, b) = (host[swap.one].load.0, host[swap.other].load.0);
        assert_eq!(a - b, 40_000_000);
    }

    #[test]
    fn even_loads_and_pinned_vcpus_stay() {
        let all: PcpuSet = "0-1".parse().unwrap();
        let even = [placed(1, 0, 0, 54, &all), placed(2, 0, 1, 50, &all)];
        assert_eq!(balance(T, &even), None);
        // A swap would only reverse the difference.
        let single = [placed(1, 0, 0, 90, &all), placed(2, 0, 1, 50, &all)];
        assert_eq!(balance(T, &single), None);
        let mut pinned =
            [placed(1, 0, 0, 60, &all), placed(2, 0, 0, 60, &all), placed(3, 0, 1, 20, &all)];
        assert!(balance(T, &pinned).is_some());
        // Each load fits into a period.
        assert_eq!(balance(Nanos::from_millis(120), &pinned), None);
        pinned[2].may_be_on = None;
        assert_eq!(balance(T, &pinned), None);
    }

    #[test]
    fn low_gain_swap_is_rejected() {
        let all: PcpuSet = "0-1".parse().unwrap();
        // The only possible swap turns 100 and 60 into 97 and 63.
        let mut host = [
            placed(1, 0, 0, 97, &all),
            placed(2, 0, 0, 3, &all),
            placed(3, 0, 1, 60, &all),
            placed(4, 0, 1, 0, &all),
        ];
        host[0].may_be_on = None;
        host[2].may_be_on = None;
        assert_eq!(balance(T, &host), None);
        // This one turns them into 90 and 70.
        (host[0].load, host[1].load) = (Nanos::from_millis(90), Nanos::from_millis(10));
        assert!(balance(T, &host).is_some());
    }

    #[test]
    fn siblings_are_never_stacked() {
        let all: PcpuSet = "0-1".parse().unwrap();
        let host = [
            placed(1, 0, 0, 60, &all),
            placed(2, 0, 0, 60, &all),
            placed(1, 1, 1, 10, &all),
            placed(2, 1, 1, 10, &all),
        ];
        // vCPUs of one VM may swap with each other: they remain on different pCPUs.
        let swap = balance(T, &host).unwrap();
        assert_eq!(host[swap.one].vm, host[swap.other].vm);
    }

    #[test]
    fn half_of_urgent_vcpus_move() {
        let all: PcpuSet = "0-1".parse().unwrap();
        let urgent = |vm: u64, pcpu: u32| Placed {
            urgent: true,
            conflicts: 3,
            ..placed(vm, 0, pcpu, 25, &all)
        };
        let host = [
            urgent(1, 0),
            urgent(2, 0),
            urgent(3, 0),
            urgent(4, 0),
            placed(5, 0, 1, 25, &all),
            placed(6, 0, 1, 25, &all),
            urgent(7, 1),
        ];
        let swaps = spread(&host);
        assert_eq!(swaps.len(), 2);
        assert!(swaps.iter().all(|s| host[s.one].pcpu == PcpuId(0)));
        assert!(swaps.iter().all(|s| !host[s.other].urgent));
        // Twice as many conflicts are tolerated.
        let even = [urgent(1, 0), urgent(2, 0), urgent(3, 1)];
        assert!(spread(&even).is_empty());
    }
}
