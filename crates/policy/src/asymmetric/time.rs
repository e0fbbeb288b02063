//! Time: divides a VM's CPU time among its vCPUs by demand.
//!
//! Source: Shan (NJIT 2018), chapter 5. Given its allocation of the last period, the demand of vCPU v is
//!
//! - the time it consumed, if it was idle or satisfied at the end;
//! - 1.1 × its allocation, if it used that up and is still ready to run;
//! - its allocation, if it is ready and has not used that up.
//!   Its time came too late, so the period does not show its demand (see [`super::latency`]).
//!   The source leaves this case open.
//!
//! Then allocation_v = T × demand_v ÷ Σ demand, where T is the VM's time.
//! The allocation stands for its demand until the next measurement.
//! A vCPU cannot use more than one pCPU, so its allocation is at most a period; the excess goes
//! to its siblings by demand (water-filling).
//! Allocations are whole ns and add up to T exactly: the rest of the division goes to the largest
//! remainders, on a tie to the lower vCPU.

use std::collections::BTreeMap;

use tandem_model::units::{Nanos, VcpuId};

/// Growth of the allocation of a vCPU that is short, in percent of its last one.
pub const GROWTH_PERCENT: u64 = 110;
/// Percentage of an allocation from which it counts as used up, as accounts are precise to a clock tick only.
pub const USED_UP_PERCENT: u64 = 99;

/// One vCPU's use of its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Time it consumed in the period.
    pub ran: Nanos,
    /// Whether it was ready to run at the end of the period.
    pub ready: bool,
}

impl Use {
    /// Whether it used up its allocation.
    pub fn has_used_up(&self, allocation: Nanos) -> bool {
        let least = u128::from(allocation.0) * u128::from(USED_UP_PERCENT) / 100;
        u128::from(self.ran.0) >= least
    }

    /// Whether it used up its allocation and wants more.
    pub fn is_short(&self, allocation: Nanos) -> bool {
        self.ready && self.has_used_up(allocation)
    }

    /// Its demand, given its allocation.
    pub fn demand(&self, allocation: Nanos) -> Nanos {
        match (self.ready, self.has_used_up(allocation)) {
            (true, true) => Nanos(allocation.0 * GROWTH_PERCENT / 100),
            (true, false) => allocation,
            (false, _) => self.ran,
        }
    }
}

/// Time allocated to each vCPU of a VM per period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocations(BTreeMap<VcpuId, Nanos>);

impl Allocations {
    /// Returns the allocation of a vCPU, if it has been seen.
    pub fn of(&self, vcpu: VcpuId) -> Option<Nanos> {
        self.0.get(&vcpu).copied()
    }

    /// Iterates over all allocations, by vCPU.
    pub fn iter(&self) -> impl Iterator<Item = (VcpuId, Nanos)> + '_ {
        self.0.iter().map(|(vcpu, time)| (*vcpu, *time))
    }

    /// Equal share of each vCPU, assumed for vCPUs without an allocation.
    fn even(total: Nanos, uses: &[Use]) -> Nanos {
        Nanos(total.0 / uses.len().max(1) as u64)
    }

    /// Whether any vCPU used up its allocation and wants more; only then does a division gain anything.
    pub fn is_short(&self, total: Nanos, uses: &[Use]) -> bool {
        let even = Allocations::even(total, uses);
        uses.iter().any(|used| used.is_short(self.of(used.vcpu).unwrap_or(even)))
    }

    /// Divides the VM's time of the next period by its vCPUs' use of the last one, at most `most` for each.
    /// vCPUs missing from `uses` are forgotten; without any demand all get the same. Returns their demands.
    pub fn divide(&mut self, total: Nanos, most: Nanos, uses: &[Use]) -> BTreeMap<VcpuId, Nanos> {
        let even = Allocations::even(total, uses);
        let demands: BTreeMap<VcpuId, Nanos> = uses
            .iter()
            .map(|used| (used.vcpu, used.demand(self.of(used.vcpu).unwrap_or(even))))
            .collect();
        self.0 = at_most(total, most, &demands);
        demands
    }
}

/// Divides a time in proportion to `parts`, exactly, at most `most` for each; the excess is divided among the others.
/// Entries of 0 share equally once all others are at `most`.
/// If the time is too long for all of them at `most`, each gets an equal share.
pub fn at_most(
    total: Nanos,
    most: Nanos,
    parts: &BTreeMap<VcpuId, Nanos>,
) -> BTreeMap<VcpuId, Nanos> {
    let most = most.max(Nanos(total.0.div_ceil(parts.len().max(1) as u64)));
    let mut full = BTreeMap::new();
    let (mut left, mut others) = (total, parts.clone());
    loop {
        if others.values().all(|part| *part == Nanos::ZERO) {
            others.values_mut().for_each(|part| *part = Nanos(1));
        }
        let mut divided = in_proportion(left, &others);
        let before = full.len();
        for (vcpu, time) in &divided {
            if *time > most {
                full.insert(*vcpu, most);
                others.remove(vcpu);
                left = left.saturating_sub(most);
            }
        }
        if full.len() == before {
            divided.append(&mut full);
            return divided;
        }
    }
}

/// Divides a time in proportion to `parts`, exactly; all get 0 if all parts are 0.
pub fn in_proportion(total: Nanos, parts: &BTreeMap<VcpuId, Nanos>) -> BTreeMap<VcpuId, Nanos> {
    let sum: u128 = parts.values().map(|part| u128::from(part.0)).sum();
    if sum == 0 {
        return parts.keys().map(|vcpu| (*vcpu, Nanos::ZERO)).collect();
    }
    let mut divided = BTreeMap::new();
    let mut remainders = Vec::new();
    let mut left = total.0;
    for (vcpu, part) in parts {
        let product = u128::from(total.0) * u128::from(part.0);
        let whole = (product / sum) as u64;
        left -= whole;
        divided.insert(*vcpu, Nanos(whole));
        remainders.push((std::cmp::Reverse(product % sum), *vcpu));
    }
    remainders.sort_unstable();
    for (_, vcpu) in remainders.into_iter().take(left as usize) {
        if let Some(time) = divided.get_mut(&vcpu) {
            time.0 += 1;
        }
    }
    divided
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(vcpu: u32, ran_us: u64, ready: bool) -> Use {
        Use { vcpu: VcpuId(vcpu), ran: Nanos(ran_us * 1000), ready }
    }

    fn ms(allocations: &Allocations) -> Vec<f64> {
        let tenths = |time: Nanos| (time.0 as f64 / 1e5).round() / 10.0;
        allocations.iter().map(|(_, time)| tenths(time)).collect()
    }

    const TOTAL: Nanos = Nanos::from_millis(80);

    #[test]
    fn spec_40_short_vcpu_gets_more_time() {
        let mut allocations = Allocations::default();
        allocations.divide(TOTAL, TOTAL, &[used(0, 35_000, false), used(1, 40_000, true)]);
        // Demands of 35 and 44 ms.
        assert_eq!(ms(&allocations), [35.4, 44.6]);
        // Allocations are the next demands: they stay while nothing new is measured.
        allocations.divide(TOTAL, TOTAL, &[used(0, 20_000, true), used(1, 20_000, true)]);
        assert_eq!(ms(&allocations), [35.4, 44.6]);
    }

    #[test]
    fn serial_phase_takes_vms_time() {
        let mut allocations = Allocations::default();
        for _ in 0..40 {
            let has = allocations.of(VcpuId(0)).unwrap_or(Nanos(40_000_000));
            let all = Use { vcpu: VcpuId(0), ran: has, ready: true };
            allocations.divide(TOTAL, TOTAL, &[all, used(1, 100, false)]);
        }
        assert_eq!(ms(&allocations), [79.9, 0.1]);
    }

    #[test]
    fn idle_vcpus_share_equally() {
        let mut allocations = Allocations::default();
        allocations.divide(
            TOTAL,
            TOTAL,
            &[used(0, 0, false), used(1, 0, false), used(2, 0, false)],
        );
        let all: Vec<u64> = allocations.iter().map(|(_, time)| time.0).collect();
        assert_eq!(all, [26_666_667, 26_666_667, 26_666_666]);
        assert!(!allocations.is_short(TOTAL, &[used(0, 0, false)]));
    }

    #[test]
    fn vcpus_come_and_go() {
        let mut allocations = Allocations::default();
        allocations.divide(TOTAL, TOTAL, &[used(0, 40_000, true), used(1, 40_000, true)]);
        allocations.divide(TOTAL, TOTAL, &[used(0, 40_000, true), used(2, 40_000, true)]);
        assert_eq!(allocations.of(VcpuId(1)), None);
        assert_eq!(ms(&allocations), [40.0, 40.0]);
    }

    #[test]
    fn empty_division_is_valid() {
        let mut allocations = Allocations::default();
        allocations.divide(TOTAL, TOTAL, &[]);
        assert_eq!(allocations, Allocations::default());
        allocations.divide(Nanos::ZERO, TOTAL, &[used(0, 5, true)]);
        assert_eq!(allocations.of(VcpuId(0)), Some(Nanos::ZERO));
    }

    #[test]
    fn allocation_is_at_most_one_pcpu() {
        let period = Nanos::from_millis(40);
        let mut allocations = Allocations::default();
        for _ in 0..40 {
            let has = allocations.of(VcpuId(0)).unwrap_or(period);
            let uses = [
                Use { vcpu: VcpuId(0), ran: has, ready: true },
                used(1, 3_000, false),
                used(2, 1_000, false),
            ];
            allocations.divide(TOTAL, period, &uses);
        }
        // The excess over one pCPU goes to the siblings by demand.
        assert_eq!(ms(&allocations), [40.0, 30.0, 10.0]);
        let asleep = [used(0, 40_000, false), used(1, 0, false), used(2, 0, false)];
        allocations.divide(TOTAL, period, &asleep);
        assert_eq!(ms(&allocations), [40.0, 20.0, 20.0]);
    }

    #[test]
    fn excess_over_all_limits_is_shared() {
        let parts = [(VcpuId(0), Nanos(7)), (VcpuId(1), Nanos(1))].into();
        let divided = at_most(Nanos(11), Nanos(5), &parts);
        assert_eq!(divided.values().map(|time| time.0).sum::<u64>(), 11);
        assert_eq!(divided[&VcpuId(0)], Nanos(6));
    }
}
