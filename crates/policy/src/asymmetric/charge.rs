//! The charge for urgency: a vCPU that runs sooner after it wakes takes its pCPU from another more often, and its VM pays for that.
//!
//! While a vCPU is not urgent the rate at which it is put on a pCPU is learned; while it is, each time beyond that rate costs its VM
//! [`SWITCH`] of what it is due (Shan, NJIT 2018, chapter 5, charges a VM for the extra switches; what one costs is ours).
//!
//! The rate falls soon and rises slowly, and while the vCPU is urgent it only falls. Else a VM that wakes often for a while before it is
//! urgent would not be charged after that.

use std::collections::BTreeMap;

use tandem_model::units::{Nanos, VcpuId};

/// What a switch costs the others: two of them, and what their caches lose. An estimate: 5 µs.
pub const SWITCH: Nanos = Nanos(5_000);
/// The weight of the newest period in the rate that is learned, if it falls ...
const FALLS: f64 = 0.2;
/// ... and if it rises.
const RISES: f64 = 0.02;

/// How often each vCPU of a VM is put on a pCPU while it is not urgent, per period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Switches(BTreeMap<VcpuId, f64>);

impl Switches {
    /// Takes in how often each vCPU was put on a pCPU in a period, and whether it was urgent; returns what the VM is charged.
    pub fn charge(&mut self, runs: impl IntoIterator<Item = (VcpuId, u64, bool)>) -> Nanos {
        let before = std::mem::take(&mut self.0);
        let mut extra = 0.0;
        for (vcpu, runs, is_urgent) in runs {
            let runs = runs as f64;
            let usual = before.get(&vcpu).copied().unwrap_or(runs);
            let more = runs - usual;
            let learned = match is_urgent {
                true => {
                    extra += more.max(0.0);
                    FALLS * more.min(0.0)
                }
                false => FALLS * more.min(0.0) + RISES * more.max(0.0),
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
    fn switches_beyond_the_usual_are_charged_while_a_vcpu_is_urgent() {
        let mut switches = Switches::default();
        assert_eq!(switches.charge([(ONE, 10, false)]), Nanos::ZERO);
        assert_eq!(switches.charge([(ONE, 10, false)]), Nanos::ZERO);
        assert_eq!(switches.charge([(ONE, 14, true)]), Nanos(4 * SWITCH.0));
        assert_eq!(switches.charge([(ONE, 10, true)]), Nanos::ZERO);
        // Not urgent any more: free.
        assert_eq!(switches.charge([(ONE, 14, false)]), Nanos::ZERO);
    }

    #[test]
    fn waking_often_before_it_is_urgent_does_not_spare_a_vm_the_charge() {
        let mut switches = Switches::default();
        for _ in 0..50 {
            switches.charge([(ONE, 100, false)]);
        }
        for _ in 0..5 {
            switches.charge([(ONE, 1000, false)]);
        }
        let charge = switches.charge([(ONE, 400, true)]);
        assert!(charge > Nanos(200 * SWITCH.0), "{charge}");
        // It cannot rise while the vCPU is urgent, and falls if it wakes less often.
        assert_eq!(switches.charge([(ONE, 400, true)]), charge);
        for _ in 0..50 {
            assert_eq!(switches.charge([(ONE, 50, true)]), Nanos::ZERO);
        }
        let charge = switches.charge([(ONE, 400, true)]);
        assert!(charge > Nanos(349 * SWITCH.0), "{charge}");
    }

    #[test]
    fn one_that_is_urgent_from_the_start_is_charged_by_what_it_began_with() {
        let mut switches = Switches::default();
        assert_eq!(switches.charge([(ONE, 10, true)]), Nanos::ZERO);
        assert_eq!(switches.charge([(ONE, 11, true)]), SWITCH);
    }
}
