//! How long VMs stay in turns and out of them, so that going in and out gains nothing.
//!
//! A VM out of turns with its configured weight has half of the rotation until [`crate::flexw`] has found the right weight.
//! A VM that sleeps for 15 ms whenever it takes turns, and spins otherwise, would live on these periods. So:
//!
//! - a VM leaves turns with the weight that it had when it was last out of them;
//! - a VM that slept within [`QUICK`], or sooner than it was last kept out, is kept out for twice as long, from
//!   [`FIRST_PAUSE`] to [`MAX_PAUSE`]; a longer stay resets that time;
//! - the correction of its part waits until it is back.
//!
//! Times are those of periods with decisions.

use std::collections::{BTreeMap, BTreeSet};

use tandem_model::observation::VmObservation;
use tandem_model::units::{Nanos, VmId, Weight};

/// A VM that sleeps within this time of joining joined too early.
/// Longer keeps a VM out that sleeps every few seconds; shorter lets one in that gains by it.
pub const QUICK: Nanos = Nanos::from_secs(2);
/// The first time a VM is kept out: the time it takes to see that it never sleeps.
pub const FIRST_PAUSE: Nanos = Nanos::from_millis(500);
/// Maximum time that a VM is kept out.
pub const MAX_PAUSE: Nanos = Nanos::from_secs(10);
/// One VM.
#[derive(Clone, Copy, Debug, Default)]
struct Stay {
    /// When it joined; `None` if it is outside the rotation.
    joined: Option<Nanos>,
    /// The last time for which it was kept out.
    pause: Nanos,
    /// When it may join again.
    back: Nanos,
    /// Its weight when it was last outside the rotation, relative to the configured one.
    outside: f64,
}

/// All VMs that have been in the rotation.
#[derive(Clone, Debug, Default)]
pub struct Stays {
    now: Nanos,
    vms: BTreeMap<VmId, Stay>,
}

impl Stays {
    /// Adds a period and forgets VMs that are not `present`.
    pub fn observe(&mut self, period: Nanos, present: &BTreeSet<VmId>) {
        self.now += period;
        self.vms.retain(|vm, _| present.contains(vm));
    }

    /// Whether a VM may join the rotation.
    pub fn may_join(&self, vm: VmId) -> bool {
        self.vms.get(&vm).is_none_or(|stay| self.now >= stay.back)
    }

    /// Records that a VM is in the rotation.
    pub fn join(&mut self, vm: &VmObservation) {
        let stay = self.vms.entry(vm.vm).or_default();
        if stay.joined.is_none() {
            stay.joined = Some(self.now);
            stay.outside = vm.in_force.weight.value() / vm.weight.value();
        }
    }

    /// Records that a member slept.
    pub fn slept(&mut self, vm: VmId) {
        let Some(stay) = self.vms.get_mut(&vm) else {
            return;
        };
        let Some(joined) = stay.joined else { return };
        let stayed = self.now.saturating_sub(joined);
        stay.pause = if stayed < stay.pause.max(QUICK) {
            Nanos(2 * stay.pause.0).clamp(FIRST_PAUSE, MAX_PAUSE)
        } else {
            Nanos::ZERO
        };
        stay.back = self.now + stay.pause;
    }

    /// Records that a VM is outside the rotation, for any reason. A member's new weight is returned.
    pub fn leave(&mut self, vm: &VmObservation) -> Option<Weight> {
        let stay = self.vms.get_mut(&vm.vm)?;
        stay.joined.take()?;
        Some(Weight::saturating(stay.outside * vm.weight.value()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: VmId = VmId(1);

    fn vm(configured: f64, in_force: f64) -> VmObservation {
        let mut vm = VmObservation::new(VM, Weight::saturating(configured), Vec::new());
        vm.in_force.weight = Weight::saturating(in_force);
        vm
    }

    /// Joins as soon as possible, stays for `stay_ms` and sleeps; returns the time in ms for which it is kept out.
    fn kept_out(stays: &mut Stays, stay_ms: u64) -> u64 {
        let present = BTreeSet::from([VM]);
        while !stays.may_join(VM) {
            stays.observe(Nanos::from_millis(100), &present);
        }
        stays.join(&vm(1.0, 1.0));
        stays.observe(Nanos::from_millis(stay_ms), &present);
        stays.slept(VM);
        stays.leave(&vm(1.0, 1.0));
        let mut pause = 0;
        while !stays.may_join(VM) {
            stays.observe(Nanos::from_millis(100), &present);
            pause += 100;
        }
        pause
    }

    #[test]
    fn quick_sleeper_is_kept_out_ever_longer() {
        let mut stays = Stays::default();
        let pauses = [100; 7].map(|stay| kept_out(&mut stays, stay));
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    }

    #[test]
    fn long_stay_resets_pause() {
        let mut stays = Stays::default();
        assert_eq!([100; 4].map(|stay| kept_out(&mut stays, stay))[3], 4000);
        assert_eq!(kept_out(&mut stays, 3900), 8000, "not quite");
        assert_eq!(kept_out(&mut stays, 8000), 0);
        assert_eq!(kept_out(&mut stays, 100), 500);
    }

    #[test]
    fn leaving_vm_resumes_its_weight() {
        let mut stays = Stays::default();
        assert_eq!(stays.leave(&vm(1024.0, 256.0)), None, "it took no turns");
        stays.join(&vm(1024.0, 256.0));
        stays.join(&vm(1024.0, 1024.0));
        assert_eq!(stays.leave(&vm(1024.0, 1024.0)), Some(Weight::constant(256.0)));
        assert_eq!(stays.leave(&vm(1024.0, 1024.0)), None, "once");
        stays.join(&vm(1024.0, 256.0));
        let doubled = vm(2048.0, 2048.0);
        assert_eq!(stays.leave(&doubled), Some(Weight::constant(512.0)));
    }

    #[test]
    fn gone_vm_is_forgotten() {
        let mut stays = Stays::default();
        kept_out(&mut stays, 100);
        stays.join(&vm(1.0, 1.0));
        stays.slept(VM);
        assert!(!stays.may_join(VM));
        stays.observe(Nanos::from_millis(100), &BTreeSet::new());
        assert!(stays.may_join(VM));
    }
}
