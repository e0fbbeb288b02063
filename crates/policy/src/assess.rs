//! Who received what, and who should have: fair shares and lags of VMs over any window.
//!
//! Used by the controller each period, by `host status`, and by experiments over a whole run. The
//! capacity of an accounting group is what its VMs received together: if a VM lacks CPU time, the
//! others have it, or nobody does because pCPUs stood idle or ran something that is no VM. Time
//! taken by the rest of the host is so kept out of the VMs' accounts.
//!
//! lag_i = (S_gps_i − S_i) ÷ S_gps_i: positive for a VM that received too little, 0.05 = 5 %.

use serde::Serialize;

use crate::fair_share::{Claim, LeveledClaim, fair_shares_by_level};
use tandem_model::accounting_group::{Component, components};
use tandem_model::observation::VmObservation;
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, VmId};

/// One VM's account over a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Assessment {
    /// Which VM.
    pub vm: VmId,
    /// Its GPS service over the window.
    pub fair: Nanos,
    /// The CPU time it received.
    pub received: Nanos,
    /// (fair − received) ÷ fair; 0 for a VM that is entitled to nothing.
    pub lag: f64,
}

impl Assessment {
    pub(crate) fn new(vm: VmId, fair: Nanos, received: Nanos) -> Assessment {
        Assessment { vm, fair, received, lag: lag(fair, received) }
    }
}

/// (fair − received) ÷ fair, and 0 where nothing is due.
pub fn lag(fair: Nanos, received: Nanos) -> f64 {
    match fair {
        Nanos::ZERO => 0.0,
        fair => (fair.0 as f64 - received.0 as f64) / fair.0 as f64,
    }
}

/// The accounting groups of `vms`: indices into `vms`, and the pCPUs they share.
pub fn accounting_groups(vms: &[VmObservation]) -> Vec<Component> {
    let allowed: Vec<PcpuSet> = vms.iter().map(VmObservation::allowed).collect();
    components(&allowed.iter().collect::<Vec<_>>())
}

/// Fair shares and lags of `vms` over `window`, in the order given.
///
/// VMs that may run nowhere (no vCPU, empty affinity) are due nothing.
pub fn assess(window: Nanos, vms: &[VmObservation]) -> Vec<Assessment> {
    let mut assessments: Vec<Assessment> =
        vms.iter().map(|vm| Assessment::new(vm.vm, Nanos::ZERO, vm.received())).collect();
    for group in accounting_groups(vms) {
        let members: Vec<&VmObservation> = group.members.iter().map(|&i| &vms[i]).collect();
        for (&i, fair) in group.members.iter().zip(group_shares(window, &members)) {
            assessments[i] = Assessment::new(vms[i].vm, fair, vms[i].received());
        }
    }
    assessments
}

/// Fair shares within one accounting group.
fn group_shares(window: Nanos, members: &[&VmObservation]) -> Vec<Nanos> {
    let claims: Vec<LeveledClaim<'_>> = members
        .iter()
        .map(|vm| LeveledClaim {
            levels: &vm.levels,
            claim: Claim {
                weight: vm.weight,
                peak: vm.peak(window),
                received: vm.received(),
                could_run: vm.could_run(window),
                backlogged: vm.backlogged(window),
            },
        })
        .collect();
    let capacity = members.iter().map(|vm| vm.received()).sum();
    fair_shares_by_level(capacity, window, &claims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_model::observation::VcpuObservation;
    use tandem_model::units::{VcpuId, Weight};

    const T: Nanos = Nanos::from_millis(100);

    /// A VM of two vCPUs on two pCPUs that ran and waited so many ms each.
    fn vm(id: u64, vcpus: [(u64, u64); 2]) -> VmObservation {
        let vcpus = (0u32..).zip(vcpus).map(|(n, (ran, waited))| VcpuObservation {
            ran: Nanos::from_millis(ran),
            waited: Nanos::from_millis(waited),
            ..VcpuObservation::new(VcpuId(n), (0..2).map(tandem_model::units::PcpuId).collect())
        });
        VmObservation::new(VmId(id), Weight::constant(1.0), vcpus.collect())
    }

    /// What is due to it, in ms, beside a VM that computes on both pCPUs.
    fn due(vcpus: [(u64, u64); 2]) -> u64 {
        let left = |at: usize| 100 - vcpus[at].0;
        let burn = vm(2, [(left(0), 100 - left(0)), (left(1), 100 - left(1))]);
        (assess(T, &[vm(1, vcpus), burn])[0].fair.0 + 500_000) / 1_000_000
    }

    #[test]
    fn vcpus_that_pass_a_token_are_due_the_vms_share() {
        assert_eq!(due([(25, 25), (25, 25)]), 100);
    }

    #[test]
    fn phases_one_after_the_other_are_backlogged_all_the_time() {
        assert_eq!(due([(50, 40), (15, 5)]), 100);
    }

    #[test]
    fn vcpus_runnable_at_the_same_time_are_said_to_be_due_more_than_gps_at_the_others_cost() {
        // Both vCPUs of the first could run in the same 50 ms of 100; the others never sleep. GPS: 40, 80 and 80 ms, and that is what they
        // received. From sums its backlog looks like 100 ms.
        let vms = [vm(1, [(20, 30); 2]), vm(2, [(40, 60); 2]), vm(3, [(40, 60); 2])];
        let ms = |time: Nanos| time.0 as f64 / 1e6;
        for account in assess(T, &vms) {
            assert!((ms(account.fair) - 200.0 / 3.0).abs() < 0.01, "{account:?}");
        }
    }

    #[test]
    fn who_takes_turns_is_due_its_share_in_a_period_in_which_it_had_none() {
        // The third waited all along; that counts when it is over.
        let mut vms = [vm(1, [(60, 40); 2]), vm(2, [(40, 60); 2]), vm(3, [(0, 5); 2])];
        let due = |vms: &[VmObservation]| assess(T, vms)[2].fair.0 / 1_000_000;
        assert!(due(&vms) < 10);
        for vm in &mut vms {
            vm.in_force.rotating = true;
        }
        assert_eq!(due(&vms), 66);
    }

    #[test]
    fn a_capped_vm_is_due_its_cap_and_the_other_has_the_rest() {
        // Two vCPUs each on two pCPUs; the first may use half a pCPU, and was throttled for half of the time.
        let mut vms = [vm(1, [(25, 25); 2]), vm(2, [(75, 25); 2])];
        let due = |vms: &[VmObservation]| -> Vec<u64> {
            let due = assess(T, vms);
            due.iter().map(|account| account.fair.0 / 1_000_000).collect()
        };
        assert_eq!(due(&vms), [100, 100], "without the cap");
        vms[0].in_force.quota = Some(0.5);
        for vcpu in &mut vms[0].vcpus {
            vcpu.limited = Nanos::from_millis(50);
        }
        assert_eq!(due(&vms), [50, 150]);
        // A cap above it does the same, though nothing is known of its throttling.
        let beside = [vm(1, [(25, 75); 2]), vms[1].clone()];
        let [mut below, mut other] = beside;
        let level = |group, quota| tandem_model::observation::Level {
            group,
            weight: Weight::constant(1.0),
            quota,
        };
        below.levels = vec![level(1, Some(0.5))];
        other.levels = vec![level(2, None)];
        assert_eq!(due(&[below, other]), [50, 150]);
    }

    #[test]
    fn a_vm_that_has_less_than_its_cap_leaves_for_want_of_weight_is_behind() {
        // Nothing of its waits was throttled.
        let mut vms = [vm(1, [(10, 90); 2]), vm(2, [(90, 10); 2])];
        vms[0].in_force.quota = Some(0.5);
        let account = assess(T, &vms)[0];
        assert_eq!(account.fair, Nanos::from_millis(50));
        assert!(account.lag > 0.5);
    }

    #[test]
    fn bursts_are_due_what_they_waited_and_no_more() {
        assert_eq!(due([(12, 2), (12, 2)]), 28);
        assert_eq!(due([(12, 0), (12, 0)]), 24);
    }
}
