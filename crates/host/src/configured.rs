//! The configured weight w_i of a VM, set by its operator.
//!
//! It is the weight of the rule that names the VM (1 = the kernel's default), else that of the VM's own cgroup, else the default.
//! A cgroup's weight that its tenant can set does not count (`is_tenants`).
//!
//! With `weight_per_vcpu`, for operators that sell vCPUs, w_i = base × vCPUs, and it follows vCPU hot-plug.
//! A weight beyond the range of the cgroup's knob is clamped to it.

use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController};
use tandem_model::Weight;

/// Whether a tenant can set a cgroup's weight relative to other tenants: the tenant owns its file, and root the cgroup above.
///
/// Delegation of a cgroup should leave its knobs to root, but some hosts do not do that.
/// Within a delegated cgroup, tenants may set any weight, since that only divides their own share.
pub(crate) fn is_tenants(
    controller: &dyn CpuController,
    cgroup: &CgroupPath,
) -> Result<bool, CgroupError> {
    let Some(above) = cgroup.parent() else {
        return Ok(false);
    };
    let is_his = controller.owners(cgroup)?.weight.is_some_and(|user| user != 0);
    Ok(is_his && controller.owners(&above)?.folder == 0)
}

/// The source of a VM's weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Configured {
    /// The VM's weight, or that of one vCPU, in the knob's units.
    base: Weight,
    /// Whether it is that of one vCPU.
    per_vcpu: bool,
    /// Minimum and maximum of the knob.
    range: (Weight, Weight),
    /// Whether a weight beyond the knob's range was reported.
    said: bool,
}

impl Configured {
    /// Returns a weight of the VM, or of each of its vCPUs.
    pub fn new(base: Weight, per_vcpu: bool, range: (Weight, Weight)) -> Configured {
        Configured { base, per_vcpu, range, said: false }
    }

    /// Applies other settings: a weight, if there is one, and whether it is per vCPU.
    pub fn reconfigure(&mut self, base: Option<Weight>, per_vcpu: bool) {
        self.base = base.unwrap_or(self.base);
        self.per_vcpu = per_vcpu;
        self.said = false;
    }

    /// Returns the weight of a VM with this number of vCPUs; 0 counts as 1.
    pub fn weight(&self, vcpus: usize) -> Weight {
        let wanted = self.wanted(vcpus);
        if self.per_vcpu {
            Weight::saturating(wanted.clamp(self.range.0.value(), self.range.1.value()))
        } else {
            Weight::saturating(wanted)
        }
    }

    fn wanted(&self, vcpus: usize) -> f64 {
        if self.per_vcpu { self.base.value() * vcpus.max(1) as f64 } else { self.base.value() }
    }

    /// Adopts a foreign weight of the VM, which has this number of vCPUs.
    pub fn replace(&mut self, weight: Weight, vcpus: usize) {
        self.base = if self.per_vcpu {
            Weight::saturating(weight.value() / vcpus.max(1) as f64)
        } else {
            weight
        };
    }

    /// Returns once a line for the operator if the weight is beyond the knob's range.
    pub fn news(&mut self, vm: &str, vcpus: usize) -> Option<String> {
        let (wanted, counts) = (self.wanted(vcpus), self.weight(vcpus));
        if wanted == counts.value() || std::mem::replace(&mut self.said, true) {
            return None;
        }
        let (base, least, most) = (self.base.value(), self.range.0.value(), self.range.1.value());
        Some(format!(
            "VM {vm}: {vcpus} vCPUs of weight {base} each need {wanted}, but the cgroup's knob takes {least} … {most}: the VM gets {}",
            counts.value()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: (Weight, Weight) = (Weight::constant(1.0), Weight::constant(10_000.0));

    #[test]
    fn weight_per_vcpu_follows_vcpus() {
        let configured = Configured::new(Weight::constant(200.0), true, V2);
        assert_eq!(configured.weight(1), Weight::constant(200.0));
        assert_eq!(configured.weight(4), Weight::constant(800.0));
        assert_eq!(configured.weight(0), Weight::constant(200.0));
        let whole = Configured::new(Weight::constant(200.0), false, V2);
        assert_eq!(whole.weight(4), Weight::constant(200.0));
    }

    #[test]
    fn knob_limit_is_reported_once() {
        let mut configured = Configured::new(Weight::constant(200.0), true, V2);
        assert_eq!(configured.news("db", 50), None);
        assert_eq!(configured.weight(64), Weight::constant(10_000.0));
        let said = configured.news("db", 64).unwrap();
        assert!(said.contains("12800") && said.contains("1 … 10000"), "{said}");
        assert_eq!(configured.news("db", 65), None);
    }

    #[test]
    fn foreign_weight_is_the_whole_vms() {
        let mut configured = Configured::new(Weight::constant(100.0), true, V2);
        configured.replace(Weight::constant(600.0), 4);
        assert_eq!(configured.weight(4), Weight::constant(600.0));
        assert_eq!(configured.weight(8), Weight::constant(1200.0));
    }
}
