//! Wakefulness: detects VMs whose vCPUs ran or waited to run all the time.
//!
//! Over a window of some periods, the vCPUs of a VM must have been runnable for [`NEVER_SLEEPS`] of the time on average:
//! those of an operating system sleep for moments.
//! vCPUs that slept throughout are ignored: a VM with one busy and three sleeping vCPUs is awake,
//! and only the busy one takes part.
//! A kernel counts a wait when it ends, so a single period shows too little or too much; a window
//! is exact except for its edges.
//! Throttled time is not waiting time: to other VMs a throttled vCPU looks asleep, as they cannot give it their time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tandem_model::observation::{VcpuObservation, VmObservation};
use tandem_model::units::{Nanos, VcpuId, VmId};

/// Fraction of a window for which a VM's vCPUs must have been runnable on average.
pub const NEVER_SLEEPS: f64 = 0.95;
/// A VM that was awake stays so until its vCPUs were runnable for less than this fraction of a window.
/// Waits of whole rotations, and of resident VMs with small weights, count in the period in which they end.
/// So much less than [`NEVER_SLEEPS`] is no sleep yet; sleep of a member is detected at the end
/// of its turn ([`super::sleep`]).
pub const STILL_AWAKE: f64 = 0.5;
/// A VM is not awake if a quota throttled one of its vCPUs for more than this fraction of a window.
const THROTTLED: f64 = 0.05;
/// A vCPU that was runnable for less than this fraction of a window slept throughout.
pub const SLEEPS_THROUGHOUT: f64 = 0.005;

/// Recent periods of each VM.
#[derive(Clone, Debug)]
pub struct Wakefulness {
    periods: usize,
    vms: BTreeMap<VmId, Window>,
}

/// Runnable and throttled time of each vCPU, by period.
type Window = VecDeque<BTreeMap<VcpuId, (Nanos, Nanos)>>;

impl Wakefulness {
    /// Creates a watch over windows of `periods` periods.
    pub fn new(periods: u32) -> Wakefulness {
        Wakefulness { periods: periods.max(1) as usize, vms: BTreeMap::new() }
    }

    /// Adds a period. VMs missing from it are forgotten.
    pub fn observe(&mut self, period: Nanos, vms: &[VmObservation]) {
        let present: BTreeSet<VmId> = vms.iter().map(|vm| vm.vm).collect();
        self.vms.retain(|vm, _| present.contains(vm));
        for vm in vms {
            let window = self.vms.entry(vm.vm).or_default();
            let seen = |vcpu: &VcpuObservation| (vcpu.wanted(period), vcpu.limited);
            let vcpus = vm.vcpus.iter().map(|vcpu| (vcpu.vcpu, seen(vcpu)));
            window.push_back(vcpus.collect());
            while window.len() > self.periods {
                window.pop_front();
            }
        }
    }

    /// Forgets the history of a VM that has slept.
    pub fn slept(&mut self, vm: VmId) {
        self.vms.remove(&vm);
    }

    /// Returns the vCPUs of a VM that never sleep, if its other vCPUs sleep throughout.
    /// Empty if a vCPU sleeps at times, or if the VM's history is too short.
    /// A lower limit applies to a VM that `was_awake` in the period before.
    pub fn awake(&self, period: Nanos, vm: VmId, was_awake: bool) -> Vec<VcpuId> {
        let Some(window) = self.vms.get(&vm).filter(|w| w.len() >= self.periods) else {
            return Vec::new();
        };
        let Some(newest) = window.back() else {
            return Vec::new();
        };
        let limit = if was_awake { STILL_AWAKE } else { NEVER_SLEEPS };
        let length = period.0 as f64 * window.len() as f64;
        let mut awake = Vec::new();
        let mut all = 0.0;
        for vcpu in newest.keys() {
            let seen = window.iter().map(|period| period.get(vcpu));
            // A vCPU that was hotplugged within the window is too new to judge.
            let Some(seen) = seen.collect::<Option<Vec<_>>>() else {
                return Vec::new();
            };
            let part = |time: Nanos| time.0 as f64 / length;
            if part(seen.iter().map(|(_, limited)| *limited).sum()) > THROTTLED {
                return Vec::new();
            }
            let part = part(seen.iter().map(|(runnable, _)| *runnable).sum());
            if part >= SLEEPS_THROUGHOUT {
                awake.push(*vcpu);
                all += part;
            }
        }
        if all >= limit * awake.len() as f64 { awake } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_model::pcpu_set::PcpuSet;
    use tandem_model::units::Weight;

    const T: Nanos = Nanos::from_millis(100);

    fn vm(runnable_ms: &[u64]) -> VmObservation {
        let vcpus = (0u32..).zip(runnable_ms).map(|(n, &ms)| VcpuObservation {
            ran: Nanos::from_millis(ms / 2),
            waited: Nanos::from_millis(ms - ms / 2),
            ..VcpuObservation::new(VcpuId(n), PcpuSet::default())
        });
        VmObservation::new(VmId(1), Weight::constant(1.0), vcpus.collect())
    }

    fn awake<const N: usize>(periods: [&[u64]; N], was_awake: bool) -> Vec<u32> {
        let mut watch = Wakefulness::new(5);
        for period in periods {
            watch.observe(T, &[vm(period)]);
        }
        let awake = watch.awake(T, VmId(1), was_awake);
        awake.into_iter().map(|vcpu| vcpu.0).collect()
    }

    #[test]
    fn five_periods_without_sleep_suffice() {
        assert_eq!(awake([&[100, 100]; 4], false), [0u32; 0]);
        assert_eq!(awake([&[100, 100]; 5], false), [0, 1]);
    }

    #[test]
    fn wait_across_periods_is_no_sleep() {
        // A wait of 20 ms counts in the period in which it ends.
        let periods: [&[u64]; 5] = [&[85], &[115], &[100], &[82], &[118]];
        assert_eq!(awake(periods, false), [0]);
    }

    #[test]
    fn partly_sleeping_vcpu_excludes_vm() {
        assert_eq!(awake([&[100, 60]; 5], false), [0u32; 0]);
        assert_eq!(awake([&[100, 0]; 5], false), [0], "it sleeps all along");
        assert_eq!(awake([&[0, 0]; 5], false), [0u32; 0]);
    }

    #[test]
    fn awake_vm_has_lower_limit() {
        assert_eq!(awake([&[90]; 5], false), [0u32; 0]);
        assert_eq!(awake([&[90]; 5], true), [0]);
        assert_eq!(awake([&[64], &[80], &[156], &[64], &[60]], true), [0]);
        assert_eq!(awake([&[40]; 5], true), [0u32; 0]);
    }

    #[test]
    fn throttled_vm_is_not_awake() {
        let awake = |limited: u64, was_awake| {
            let mut watch = Wakefulness::new(5);
            let mut throttled = vm(&[100 - limited, 100]);
            throttled.vcpus[0].limited = Nanos::from_millis(limited);
            for _ in 0..5 {
                watch.observe(T, std::slice::from_ref(&throttled));
            }
            watch.awake(T, VmId(1), was_awake).len()
        };
        assert_eq!((awake(0, false), awake(3, false)), (2, 2));
        assert_eq!((awake(20, false), awake(20, true)), (0, 0));
        // A vCPU that is throttled throughout, with a wait in progress.
        let mut watch = Wakefulness::new(2);
        let mut throttled = vm(&[0]);
        (throttled.vcpus[0].runnable, throttled.vcpus[0].limited) = (true, T);
        for _ in 0..2 {
            watch.observe(T, std::slice::from_ref(&throttled));
        }
        assert_eq!(watch.awake(T, VmId(1), true), []);
    }

    #[test]
    fn starved_vcpu_is_awake() {
        let mut watch = Wakefulness::new(2);
        let mut starved = vm(&[0]);
        starved.vcpus[0].runnable = true;
        watch.observe(T, std::slice::from_ref(&starved));
        watch.observe(T, &[starved]);
        assert_eq!(watch.awake(T, VmId(1), false), [VcpuId(0)]);
        watch.slept(VmId(1));
        assert_eq!(watch.awake(T, VmId(1), false), []);
    }
}
