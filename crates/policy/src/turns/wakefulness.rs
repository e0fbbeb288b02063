//! Who never sleeps: the VMs whose vCPUs ran or waited to run all the time.
//!
//! Over a window of some periods, each of a VM's vCPUs must have been runnable for [`NEVER_SLEEPS`] of the time, but for those that
//! slept all along: a VM with one busy vCPU and three that sleep never sleeps either, and only the busy one takes part. A kernel
//! counts a wait when it is over, so a single period shows too little or too much; a window shows the truth but for its
//! edges. What a quota throttles is no waiting to run, and whom it throttles sleeps, as far as others can tell: its time is not theirs to give.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tandem_model::observation::{VcpuObservation, VmObservation};
use tandem_model::units::{Nanos, VcpuId, VmId};

/// The part of a window that a vCPU must have been runnable.
pub const NEVER_SLEEPS: f64 = 0.95;
/// A VM that was awake stays so until one of its vCPUs was runnable for less than this part of a window. Waits of whole rotations, and of
/// who stays on at a small weight, count in the period in which they end, so much less than [`NEVER_SLEEPS`] is no sleep yet; a member of the
/// rotation that really sleeps is seen at the end of its turn ([`super::sleep`]).
pub const STILL_AWAKE: f64 = 0.5;
/// A VM one of whose vCPUs a quota kept off for more than this part of a window is not awake, whatever it was.
const THROTTLED: f64 = 0.05;
/// A vCPU that was runnable for less than this part of a window sleeps all along.
pub const SLEEPS_ALL_ALONG: f64 = 0.005;

/// The last periods of every VM.
#[derive(Clone, Debug)]
pub struct Wakefulness {
    periods: usize,
    vms: BTreeMap<VmId, Window>,
}

/// In some periods, for how long each vCPU was runnable, and for how long a quota kept it off.
type Window = VecDeque<BTreeMap<VcpuId, (Nanos, Nanos)>>;

impl Wakefulness {
    /// Watches windows of so many periods.
    pub fn new(periods: u32) -> Wakefulness {
        Wakefulness { periods: periods.max(1) as usize, vms: BTreeMap::new() }
    }

    /// Takes in a period. VMs that are not in it are forgotten.
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

    /// Whatever a VM did before counts no longer: it has slept.
    pub fn slept(&mut self, vm: VmId) {
        self.vms.remove(&vm);
    }

    /// The vCPUs that never sleep of a VM all of whose vCPUs either never sleep or sleep all along. Empty: the VM
    /// sleeps at times, or was seen too shortly. To one that `was_awake` in the period before a gentler limit applies.
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
        for vcpu in newest.keys() {
            let seen = window.iter().map(|period| period.get(vcpu));
            // One that was plugged in within the window is too new to tell.
            let Some(seen) = seen.collect::<Option<Vec<_>>>() else {
                return Vec::new();
            };
            let part = |time: Nanos| time.0 as f64 / length;
            if part(seen.iter().map(|(_, limited)| *limited).sum()) > THROTTLED {
                return Vec::new();
            }
            match part(seen.iter().map(|(runnable, _)| *runnable).sum()) {
                part if part >= limit => awake.push(*vcpu),
                part if part < SLEEPS_ALL_ALONG => {}
                _ => return Vec::new(),
            }
        }
        awake
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
    fn five_periods_without_sleep_are_enough_and_four_are_not() {
        assert_eq!(awake([&[100, 100]; 4], false), [0u32; 0]);
        assert_eq!(awake([&[100, 100]; 5], false), [0, 1]);
    }

    #[test]
    fn a_wait_that_straddles_periods_is_no_sleep() {
        // A wait of 20 ms counts in the period in which it ends.
        let periods: [&[u64]; 5] = [&[85], &[115], &[100], &[82], &[118]];
        assert_eq!(awake(periods, false), [0]);
    }

    #[test]
    fn one_vcpu_that_sleeps_at_times_keeps_the_vm_out() {
        assert_eq!(awake([&[100, 60]; 5], false), [0u32; 0]);
        assert_eq!(awake([&[100, 0]; 5], false), [0], "it sleeps all along");
        assert_eq!(awake([&[0, 0]; 5], false), [0u32; 0]);
    }

    #[test]
    fn who_was_awake_stays_so_until_a_lower_limit_than_others() {
        assert_eq!(awake([&[90]; 5], false), [0u32; 0]);
        assert_eq!(awake([&[90]; 5], true), [0]);
        assert_eq!(awake([&[64], &[80], &[156], &[64], &[60]], true), [0]);
        assert_eq!(awake([&[40]; 5], true), [0u32; 0]);
    }

    #[test]
    fn whom_a_quota_throttles_is_not_awake() {
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
        // One that is throttled all along, a wait that is not over.
        let mut watch = Wakefulness::new(2);
        let mut throttled = vm(&[0]);
        (throttled.vcpus[0].runnable, throttled.vcpus[0].limited) = (true, T);
        for _ in 0..2 {
            watch.observe(T, std::slice::from_ref(&throttled));
        }
        assert_eq!(watch.awake(T, VmId(1), true), []);
    }

    #[test]
    fn a_starved_vcpu_does_not_sleep() {
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
