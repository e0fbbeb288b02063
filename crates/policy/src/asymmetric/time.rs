//! Time: within a VM, to each vCPU by its demand.
//!
//! Source: Shan (NJIT 2018), chapter 5. With the allocation of the period that is over,
//!
//! - demand_v is what v consumed, if v was idle or satisfied at its end;
//! - 1.1 × its allocation, if it used that up and is still ready to run;
//! - its allocation, if it is ready and has not used that up: what it wants cannot be told from a period in which its time came too late
//!   (see [`super::latency`]). The source leaves this case open.
//!
//! Then allocation_v = T × demand_v ÷ Σ demand, with T the VM's time, and that is its demand until it is seen again. A vCPU cannot use
//! more than one pCPU, so none is allocated more than a period: what it would have beyond that goes to its siblings, by their
//! demands (water-filling). Allocations are whole ns and add up to T exactly: what division leaves over goes to the largest remainders, of
//! equal ones to the lower vCPU.

use std::collections::BTreeMap;

use tandem_model::units::{Nanos, VcpuId};

/// A vCPU that is short is allocated so many percent of what it had.
pub const GROWTH_PERCENT: u64 = 110;
/// An allocation counts as used up from this part on, in percent: accounts are up to date to a clock tick only.
pub const USED_UP_PERCENT: u64 = 99;

/// What a vCPU did with its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Which.
    pub vcpu: VcpuId,
    /// What it consumed in the period.
    pub ran: Nanos,
    /// Whether it was still ready to run at its end.
    pub ready: bool,
}

impl Use {
    /// Whether the vCPU used up what it was allocated.
    pub fn has_used_up(&self, allocation: Nanos) -> bool {
        let least = u128::from(allocation.0) * u128::from(USED_UP_PERCENT) / 100;
        u128::from(self.ran.0) >= least
    }

    /// Whether it used that up and wants more.
    pub fn is_short(&self, allocation: Nanos) -> bool {
        self.ready && self.has_used_up(allocation)
    }

    /// Its demand, having been allocated this.
    pub fn demand(&self, allocation: Nanos) -> Nanos {
        match (self.ready, self.has_used_up(allocation)) {
            (true, true) => Nanos(allocation.0 * GROWTH_PERCENT / 100),
            (true, false) => allocation,
            (false, _) => self.ran,
        }
    }
}

/// What each vCPU of a VM is allocated per period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocations(BTreeMap<VcpuId, Nanos>);

impl Allocations {
    /// Of a vCPU, if it has been seen.
    pub fn of(&self, vcpu: VcpuId) -> Option<Nanos> {
        self.0.get(&vcpu).copied()
    }

    /// All of them, by vCPU.
    pub fn iter(&self) -> impl Iterator<Item = (VcpuId, Nanos)> + '_ {
        self.0.iter().map(|(vcpu, time)| (*vcpu, *time))
    }

    /// What each vCPU would have, were all alike: what one counts as allocated that is new.
    fn even(total: Nanos, uses: &[Use]) -> Nanos {
        Nanos(total.0 / uses.len().max(1) as u64)
    }

    /// Whether any vCPU used up what it has and wants more, which is when a division gains anything.
    pub fn is_short(&self, total: Nanos, uses: &[Use]) -> bool {
        let even = Allocations::even(total, uses);
        uses.iter().any(|used| used.is_short(self.of(used.vcpu).unwrap_or(even)))
    }

    /// Divides the VM's time of the next period by what its vCPUs did with that of the last one, to none more than `most`. vCPUs that
    /// are not in `uses` are forgotten; where nobody wants anything all get the same. Returns their demands.
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

/// Divides a time in these proportions, exactly, to none more than `most`: what one would have beyond that is divided among the
/// others again. Those who want nothing get the same each, of what the others leave. Of a time that is too long for all of
/// them at `most`, each gets the same.
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

/// Divides a time in these proportions, exactly.
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
    fn spec_40_two_vcpus_of_which_one_is_short() {
        let mut allocations = Allocations::default();
        allocations.divide(TOTAL, TOTAL, &[used(0, 35_000, false), used(1, 40_000, true)]);
        // Demands of 35 and 44 ms.
        assert_eq!(ms(&allocations), [35.4, 44.6]);
        // They are the next demands: with nothing new to say, nothing moves.
        allocations.divide(TOTAL, TOTAL, &[used(0, 20_000, true), used(1, 20_000, true)]);
        assert_eq!(ms(&allocations), [35.4, 44.6]);
    }

    #[test]
    fn a_serial_phase_takes_the_vms_time_within_some_periods() {
        let mut allocations = Allocations::default();
        for _ in 0..40 {
            let has = allocations.of(VcpuId(0)).unwrap_or(Nanos(40_000_000));
            let all = Use { vcpu: VcpuId(0), ran: has, ready: true };
            allocations.divide(TOTAL, TOTAL, &[all, used(1, 100, false)]);
        }
        assert_eq!(ms(&allocations), [79.9, 0.1]);
    }

    #[test]
    fn nobody_who_wants_anything_means_all_alike() {
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
    fn nothing_to_divide_is_divided_into_nothing() {
        let mut allocations = Allocations::default();
        allocations.divide(TOTAL, TOTAL, &[]);
        assert_eq!(allocations, Allocations::default());
        allocations.divide(Nanos::ZERO, TOTAL, &[used(0, 5, true)]);
        assert_eq!(allocations.of(VcpuId(0)), Some(Nanos::ZERO));
    }

    #[test]
    fn nobody_is_allocated_more_than_a_pcpu() {
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
        // What is beyond its pCPU goes to the siblings, as they want it.
        assert_eq!(ms(&allocations), [40.0, 30.0, 10.0]);
        let asleep = [used(0, 40_000, false), used(1, 0, false), used(2, 0, false)];
        allocations.divide(TOTAL, period, &asleep);
        assert_eq!(ms(&allocations), [40.0, 20.0, 20.0]);
    }

    #[test]
    fn a_time_too_long_for_all_is_divided_all_the_same() {
        let parts = [(VcpuId(0), Nanos(7)), (VcpuId(1), Nanos(1))].into();
        let divided = at_most(Nanos(11), Nanos(5), &parts);
        assert_eq!(divided.values().map(|time| time.0).sum::<u64>(), 11);
        assert_eq!(divided[&VcpuId(0)], Nanos(6));
    }
}
