//! The resolver of conflicts: vCPUs of two pCPUs swap places where too much time is allocated on one of them, or too many are urgent there.
//!
//! Source: Shan (NJIT 2018), chapter 5.
//!
//! - **Demand** ([`balance`]): allocations are summed per pCPU, of each what the vCPU can use. If the largest sum exceeds the smallest by more
//!   than 10 %, and is more than a pCPU gives, two vCPUs of these pCPUs swap, those that bring the sums closest, if that is nearer by a tenth
//!   of the larger.
//! - **Urgency** ([`spread`]): if the pCPU with the most conflicts of urgent vCPUs has more than twice those of the one with the fewest, half
//!   of its urgent vCPUs swap with as many that are not urgent there.
//!
//! A swap leaves every pCPU with as many vCPUs as it had. No VM gets two vCPUs on one pCPU by it, and no vCPU goes where it may not run.

use std::collections::BTreeMap;

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, PcpuId, VcpuId, VmId};

/// The largest sum may exceed the smallest by this part of it.
pub const UNEVEN: f64 = 0.10;
/// A swap must bring the two sums nearer by this part of the larger: a vCPU that moves loses its caches. Ours; the source has none.
pub const WORTH: f64 = 0.10;
/// The most conflicts may be this many times the fewest.
pub const CROWDED: u64 = 2;
/// Fewer conflicts than this on a pCPU are nothing to act on.
pub const FEW: u64 = 4;

/// A vCPU on its pCPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed<'a> {
    /// Whose.
    pub vm: VmId,
    /// Which.
    pub vcpu: VcpuId,
    /// Where it runs.
    pub pcpu: PcpuId,
    /// What it can use of what it is allocated.
    pub load: Nanos,
    /// Whether it is urgent.
    pub urgent: bool,
    /// In how many of the last periods it was urgent, and came too late all the same.
    pub conflicts: u64,
    /// Where it may be put; `None`: it stays where it is.
    pub may_be_on: Option<&'a PcpuSet>,
}

impl Placed<'_> {
    fn may_go(&self, pcpu: PcpuId) -> bool {
        self.may_be_on.is_some_and(|pcpus| pcpus.contains(pcpu))
    }
}

/// Two vCPUs, by their positions in the list that was given, that exchange their pCPUs.
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

    /// The pCPUs with the most and the least of something; of equal ones the lower.
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

    /// Whether two vCPUs may exchange their pCPUs without any VM getting two on one.
    fn may_swap(&self, one: usize, other: usize) -> bool {
        let (a, b) = (&self.placed[one], &self.placed[other]);
        let stacks = |vcpu: &Placed<'_>, there: PcpuId, leaves: usize| {
            let others = self.there(there).iter();
            others.filter(|&&at| at != leaves).any(|&at| self.placed[at].vm == vcpu.vm)
        };
        a.may_go(b.pcpu) && b.may_go(a.pcpu) && !stacks(a, b.pcpu, other) && !stacks(b, a.pcpu, one)
    }
}

/// The swap that evens out the loads of the two pCPUs that differ most, if any does enough. Where the larger fits into a period there is
/// room for all.
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

/// The swaps that bring half of the urgent vCPUs of the pCPU with the most conflicts to the one with the fewest.
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
        // Of a VM one vCPU goes each way: places are checked as they were before the first swap.
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
    fn the_pair_that_evens_out_the_sums_swaps() {
        let all: PcpuSet = "0-1".parse().unwrap();
        // 100 + 60 on pCPU 0, 20 + 60 on pCPU 1: the 60 of VM 2 against the 20 of VM 3 makes it even.
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
    fn nearly_even_sums_and_vcpus_that_must_stay_are_left_alone() {
        let all: PcpuSet = "0-1".parse().unwrap();
        let even = [placed(1, 0, 0, 54, &all), placed(2, 0, 1, 50, &all)];
        assert_eq!(balance(T, &even), None);
        // A swap would only turn the difference around.
        let single = [placed(1, 0, 0, 90, &all), placed(2, 0, 1, 50, &all)];
        assert_eq!(balance(T, &single), None);
        let mut pinned =
            [placed(1, 0, 0, 60, &all), placed(2, 0, 0, 60, &all), placed(3, 0, 1, 20, &all)];
        assert!(balance(T, &pinned).is_some());
        // There is room for all.
        assert_eq!(balance(Nanos::from_millis(120), &pinned), None);
        pinned[2].may_be_on = None;
        assert_eq!(balance(T, &pinned), None);
    }

    #[test]
    fn a_swap_that_hardly_helps_is_not_made() {
        let all: PcpuSet = "0-1".parse().unwrap();
        // 100 on pCPU 0, 60 on pCPU 1, and the swap that there is leaves 97 and 63.
        let mut host = [
            placed(1, 0, 0, 97, &all),
            placed(2, 0, 0, 3, &all),
            placed(3, 0, 1, 60, &all),
            placed(4, 0, 1, 0, &all),
        ];
        host[0].may_be_on = None;
        host[2].may_be_on = None;
        assert_eq!(balance(T, &host), None);
        // This one leaves 90 and 70.
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
        // A VM's own vCPUs may change places; they are on different pCPUs after that as before.
        let swap = balance(T, &host).unwrap();
        assert_eq!(host[swap.one].vm, host[swap.other].vm);
    }

    #[test]
    fn half_of_the_urgent_go_where_nobody_is() {
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
        // Twice as many are no more than twice.
        let even = [urgent(1, 0), urgent(2, 0), urgent(3, 1)];
        assert!(spread(&even).is_empty());
    }
}
