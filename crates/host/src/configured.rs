//! The configured weight w_i of a VM: what its operator says it is worth.
//!
//! It is the weight of the rule that names the VM (1 = the kernel's default), else that of the VM's own cgroup if that is the operator's word
//! (`is_tenants`), else the default. With
//! `weight_per_vcpu` that counts for each of its vCPUs, as operators need it who sell vCPUs: w_i = base × vCPUs, and it follows vCPUs
//! that are plugged in or out. What is beyond the range of the cgroup's knob cannot be written, so the limit counts.

use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController};
use tandem_model::Weight;

/// Whether a cgroup's weight is what a tenant says of himself among others: its file is his, and the cgroup above is root's. Who
/// delegates a cgroup leaves its knobs root's; but not everybody knows. Below a cgroup that was given to him a tenant may set what he
/// likes: that divides his own share.
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

/// How the weight comes about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Configured {
    /// The VM's weight, or that of one vCPU, in the knob's units.
    base: Weight,
    /// Whether it is that of one vCPU.
    per_vcpu: bool,
    /// The least and the most that the knob takes.
    range: (Weight, Weight),
    /// Whether it was said that the knob cannot take it.
    said: bool,
}

impl Configured {
    /// A weight of the VM, or of each of its vCPUs.
    pub fn new(base: Weight, per_vcpu: bool, range: (Weight, Weight)) -> Configured {
        Configured { base, per_vcpu, range, said: false }
    }

    /// Other settings apply: a weight if it is given, and whether it is that of each vCPU.
    pub fn reconfigure(&mut self, base: Option<Weight>, per_vcpu: bool) {
        self.base = base.unwrap_or(self.base);
        self.per_vcpu = per_vcpu;
        self.said = false;
    }

    /// The weight of a VM of so many vCPUs; one without vCPUs yet counts as one of one.
    pub fn weight(&self, vcpus: usize) -> Weight {
        let wanted = self.wanted(vcpus);
        match self.per_vcpu {
            true => Weight::saturating(wanted.clamp(self.range.0.value(), self.range.1.value())),
            false => Weight::saturating(wanted),
        }
    }

    fn wanted(&self, vcpus: usize) -> f64 {
        if self.per_vcpu { self.base.value() * vcpus.max(1) as f64 } else { self.base.value() }
    }

    /// Somebody else set the VM's weight, and it has so many vCPUs: from now on that counts.
    pub fn replace(&mut self, weight: Weight, vcpus: usize) {
        self.base = match self.per_vcpu {
            true => Weight::saturating(weight.value() / vcpus.max(1) as f64),
            false => weight,
        };
    }

    /// What an operator should know, once: the knob cannot take the weight.
    pub fn news(&mut self, vm: &str, vcpus: usize) -> Option<String> {
        let (wanted, counts) = (self.wanted(vcpus), self.weight(vcpus));
        if wanted == counts.value() || std::mem::replace(&mut self.said, true) {
            return None;
        }
        let (base, least, most) = (self.base.value(), self.range.0.value(), self.range.1.value());
        Some(format!(
            "VM {vm}: {vcpus} vCPUs of weight {base} each are {wanted}, and the cgroup's knob takes {least} … {most}: {} counts",
            counts.value()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: (Weight, Weight) = (Weight::constant(1.0), Weight::constant(10_000.0));

    #[test]
    fn a_vm_that_is_paid_by_vcpu_weighs_by_vcpu() {
        let configured = Configured::new(Weight::constant(200.0), true, V2);
        assert_eq!(configured.weight(1), Weight::constant(200.0));
        assert_eq!(configured.weight(4), Weight::constant(800.0));
        assert_eq!(configured.weight(0), Weight::constant(200.0));
        let whole = Configured::new(Weight::constant(200.0), false, V2);
        assert_eq!(whole.weight(4), Weight::constant(200.0));
    }

    #[test]
    fn the_knobs_limit_counts_and_is_said_once() {
        let mut configured = Configured::new(Weight::constant(200.0), true, V2);
        assert_eq!(configured.news("db", 50), None);
        assert_eq!(configured.weight(64), Weight::constant(10_000.0));
        let said = configured.news("db", 64).unwrap();
        assert!(said.contains("12800") && said.contains("1 … 10000"), "{said}");
        assert_eq!(configured.news("db", 65), None);
    }

    #[test]
    fn what_somebody_else_sets_is_the_whole_vms() {
        let mut configured = Configured::new(Weight::constant(100.0), true, V2);
        configured.replace(Weight::constant(600.0), 4);
        assert_eq!(configured.weight(4), Weight::constant(600.0));
        assert_eq!(configured.weight(8), Weight::constant(1200.0));
    }
}
