//! Fair shares and lags of VMs over any window.
//!
//! The controller uses it each period, `host status` on demand, and experiments over a whole run.
//! The capacity of an accounting group is the CPU time that its VMs received together.
//! Idle time and the time of host processes are therefore not part of it.
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
    /// The VM.
    pub vm: VmId,
    /// Its GPS service over the window.
    pub fair: Nanos,
    /// The CPU time it received.
    pub received: Nanos,
    /// (fair − received) ÷ fair; 0 for a VM whose fair share is 0.
    pub lag: f64,
}

impl Assessment {
    pub(crate) fn new(vm: VmId, fair: Nanos, received: Nanos) -> Assessment {
        Assessment { vm, fair, received, lag: lag(fair, received) }
    }
}

/// (fair − received) ÷ fair; 0 if the fair share is 0.
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
/// The fair share of a VM without vCPUs or with an empty affinity is 0.
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

    /// A VM of two vCPUs on two pCPUs; `vcpus` holds the running and waiting time of each in ms.
    fn vm(id: u64, vcpus: [(u64, u64); 2]) -> VmObservation {
        let vcpus = (0u32..).zip(vcpus).map(|(n, (ran, waited))| VcpuObservation {
            ran: Nanos::from_millis(ran),
            waited: Nanos::from_millis(waited),
            ..VcpuObservation::new(VcpuId(n), (0..2).map(tandem_model::units::PcpuId).collect())
        });
        VmObservation::new(VmId(id), Weight::constant(1.0), vcpus.collect())
    }

    /// Fair share in ms of a VM with these vCPUs, next to a VM that computes on both pCPUs.
    fn fair(vcpus: [(u64, u64); 2]) -> u64 {
        let left = |at: usize| 100 - vcpus[at].0;
        let burn = vm(2, [(left(0), 100 - left(0)), (left(1), 100 - left(1))]);
        (assess(T, &[vm(1, vcpus), burn])[0].fair.0 + 500_000) / 1_000_000
    }

    #[test]
    fn token_passing_vcpus_get_full_share() {
        assert_eq!(fair([(25, 25), (25, 25)]), 100);
    }

    #[test]
    fn alternating_phases_count_as_backlogged() {
        assert_eq!(fair([(50, 40), (15, 5)]), 100);
    }

    #[test]
    fn concurrent_vcpus_get_more_than_gps() {
        // Both vCPUs of VM 1 could run in the same 50 ms of 100; the other VMs never sleep.
        // GPS gives 40, 80 and 80 ms, which is also the received time.
        // From sums, the backlog of VM 1 looks like 100 ms.
        let vms = [vm(1, [(20, 30); 2]), vm(2, [(40, 60); 2]), vm(3, [(40, 60); 2])];
        let ms = |time: Nanos| time.0 as f64 / 1e6;
        for account in assess(T, &vms) {
            assert!((ms(account.fair) - 200.0 / 3.0).abs() < 0.01, "{account:?}");
        }
    }

    #[test]
    fn rotating_vm_keeps_share_while_waiting() {
        // VM 3 waited all the time; its wait counts when it ends.
        let mut vms = [vm(1, [(60, 40); 2]), vm(2, [(40, 60); 2]), vm(3, [(0, 5); 2])];
        let fair = |vms: &[VmObservation]| assess(T, vms)[2].fair.0 / 1_000_000;
        assert!(fair(&vms) < 10);
        for vm in &mut vms {
            vm.in_force.rotating = true;
        }
        assert_eq!(fair(&vms), 66);
    }

    #[test]
    fn capped_vm_leaves_the_rest_to_others() {
        // Two vCPUs each on two pCPUs. VM 1 is capped at half a pCPU and was throttled half of the time.
        let mut vms = [vm(1, [(25, 25); 2]), vm(2, [(75, 25); 2])];
        let fair = |vms: &[VmObservation]| -> Vec<u64> {
            let fair = assess(T, vms);
            fair.iter().map(|account| account.fair.0 / 1_000_000).collect()
        };
        assert_eq!(fair(&vms), [100, 100], "without the cap");
        vms[0].in_force.quota = Some(0.5);
        for vcpu in &mut vms[0].vcpus {
            vcpu.limited = Nanos::from_millis(50);
        }
        assert_eq!(fair(&vms), [50, 150]);
        // A cap on a cgroup above has the same effect, even if its throttled time is unknown.
        let uncapped = [vm(1, [(25, 75); 2]), vms[1].clone()];
        let [mut below, mut other] = uncapped;
        let level = |group, quota| tandem_model::observation::Level {
            group,
            weight: Weight::constant(1.0),
            quota,
        };
        below.levels = vec![level(1, Some(0.5))];
        other.levels = vec![level(2, None)];
        assert_eq!(fair(&[below, other]), [50, 150]);
    }

    #[test]
    fn unthrottled_capped_vm_lags() {
        // None of its waiting time was throttled.
        let mut vms = [vm(1, [(10, 90); 2]), vm(2, [(90, 10); 2])];
        vms[0].in_force.quota = Some(0.5);
        let account = assess(T, &vms)[0];
        assert_eq!(account.fair, Nanos::from_millis(50));
        assert!(account.lag > 0.5);
    }

    #[test]
    fn bursty_vm_is_limited_to_runnable_time() {
        assert_eq!(fair([(12, 2), (12, 2)]), 28);
        assert_eq!(fair([(12, 0), (12, 0)]), 24);
    }
}
