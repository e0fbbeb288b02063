//! Charge for urgency: an urgent vCPU preempts others more often when it wakes, and its VM pays for that.
//!
//! While a vCPU is not urgent, the rate at which it is scheduled in is learned.
//! While it is urgent, each switch beyond that rate costs its VM [`SWITCH`] of its fair share.
//! Shan (NJIT 2018, chapter 5) charges a VM for the extra switches; the cost of one is our estimate.
//!
//! The learned rate falls fast and rises slowly, and while the vCPU is urgent it only falls.
//! Otherwise a VM that wakes often for a while before it becomes urgent would escape the charge.

use std::collections::BTreeMap;

use tandem_model::units::{Nanos, VcpuId};

/// Cost of an extra switch to the other VMs: two context switches and their cache misses. Estimate: 5 µs.
pub const SWITCH: Nanos = Nanos(5_000);
/// Weight of the newest period in the learned rate if the rate falls ...
const FALLS: f64 = 0.2;
/// ... and if it rises.
const RISES: f64 = 0.02;

/// Usual schedule-ins of each vCPU of a VM per period, learned while it is not urgent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Switches(BTreeMap<VcpuId, f64>);

impl Switches {
    /// Adds a period: for each vCPU its schedule-ins and whether it was urgent. Returns the VM's charge.
    pub fn charge(&mut self, runs: impl IntoIterator<Item = (VcpuId, u64, bool)>) -> Nanos {
        let before = std::mem::take(&mut self.0);
        let mut extra = 0.0;
        for (vcpu, runs, is_urgent) in runs {
            let runs = runs as f64;
            let usual = before.get(&vcpu).copied().unwrap_or(runs);
            let more = runs - usual;
            let learned = if is_urgent {
                extra += more.max(0.0);
                FALLS * more.min(0.0)
            } else {
                FALLS * more.min(0.0) + RISES * more.max(0.0)
            };
            self.0.insert(vcpu, usual + learned);
        }
        Nanos((extra * SWITCH.0 as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: VcpuId = VcpuId(1);

    #[test]
    fn extra_switches_are_charged_while_urgent() {
        let mut switches = Switches::default();
        assert_eq!(switches.charge([(ONE, 10, false)]), Nanos::ZERO);
        assert_eq!(switches.charge([(ONE, 10, false)]), Nanos::ZERO);
        assert_eq!(switches.charge([(ONE, 14, true)]), Nanos(4 * SWITCH.0));
        assert_eq!(switches.charge([(ONE, 10, true)]), Nanos::ZERO);
        // No longer urgent: free.
        assert_eq!(switches.charge([(ONE, 14, false)]), Nanos::ZERO);
    }

    #[test]
    fn frequent_early_wakeups_do_not_avoid_charge() {
        let mut switches = Switches::default();
        for _ in 0..50 {
            switches.charge([(ONE, 100, false)]);
        }
        for _ in 0..5 {
            switches.charge([(ONE, 1000, false)]);
        }
        let charge = switches.charge([(ONE, 400, true)]);
        assert!(charge > Nanos(200 * SWITCH.0), "{charge}");
        // The rate cannot rise while the vCPU is urgent; it falls if the vCPU wakes less often.
        assert_eq!(switches.charge([(ONE, 400, true)]), charge);
        for _ in 0..50 {
            assert_eq!(switches.charge([(ONE, 50, true)]), Nanos::ZERO);
        }
        let charge = switches.charge([(ONE, 400, true)]);
        assert!(charge > Nanos(349 * SWITCH.0), "{charge}");
    }

    #[test]
    fn initially_urgent_vcpu_uses_first_rate() {
        let mut switches = Switches::default();
        assert_eq!(switches.charge([(ONE, 10, true)]), Nanos::ZERO);
        assert_eq!(switches.charge([(ONE, 11, true)]), SWITCH);
    }
}
