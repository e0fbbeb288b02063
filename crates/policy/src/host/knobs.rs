//! What a host's knobs can take: ranges and resolution, and the nearest value that is possible.

use serde::{Deserialize, Serialize};

use tandem_model::decision::{Decision, Target};
use tandem_model::observation::VmObservation;
use tandem_model::units::{Nanos, Nice, Weight};

/// A knob for weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightKnob {
    /// The least it takes.
    pub least: Weight,
    /// The most it takes.
    pub most: Weight,
    /// It takes multiples of this; 0: anything in range.
    pub step: f64,
    /// What a group has unless somebody sets another.
    pub default: Weight,
}

impl WeightKnob {
    /// `cpu.shares` of cgroup v1.
    pub const CGROUP_V1: WeightKnob = WeightKnob {
        least: Weight::constant(2.0),
        most: Weight::constant(262_144.0),
        step: 1.0,
        default: Weight::constant(1024.0),
    };
    /// `cpu.weight` of cgroup v2.
    pub const CGROUP_V2: WeightKnob = WeightKnob {
        least: Weight::constant(1.0),
        most: Weight::constant(10_000.0),
        step: 1.0,
        default: Weight::constant(100.0),
    };
    /// Any weight: for tests of policies alone.
    pub const ANY: WeightKnob = WeightKnob {
        least: Weight::LEAST,
        most: Weight::MOST,
        step: 0.0,
        default: Weight::constant(1024.0),
    };

    /// The nearest weight that the knob takes.
    pub fn round(&self, weight: Weight) -> Weight {
        let rounded = match self.step > 0.0 {
            true => (weight.value() / self.step).round() * self.step,
            false => weight.value(),
        };
        Weight::saturating(rounded.clamp(self.least.value(), self.most.value()))
    }

    /// What is in force for a VM once this weight is asked for: the nearest that the knob takes or, where the vCPUs are apart, the
    /// sum of those nearest to their parts of it.
    pub fn written(&self, vm: &VmObservation, weight: Weight) -> Weight {
        let weight = self.round(weight);
        let portions = vm.vcpus.iter().filter_map(|vcpu| vcpu.in_force.portion);
        match vm.is_apart() {
            false => weight,
            true => Weight::saturating(
                portions
                    .map(|part| self.round(Weight::saturating(weight.value() * part)).value())
                    .sum(),
            ),
        }
    }
}

/// What can be changed on a host, and how finely.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knobs {
    /// Weights of groups.
    pub weight: WeightKnob,
    /// Whether single vCPUs can have groups of their own.
    pub vcpu_groups: bool,
    /// Whether groups can be put into the idle class.
    pub idle: bool,
    /// Whether threads' nice values can be set.
    pub nice: bool,
    /// The slices that threads can have (EEVDF of Linux 6.12 and later); `None`: the scheduler's own only.
    pub slice: Option<(Nanos, Nanos)>,
    /// Whether affinities can be set.
    pub affinity: bool,
}

impl Knobs {
    /// Slices that sched_setattr(2) accepts: 0.1 … 100 ms (kernel/sched/syscalls.c, `__setparam_fair`).
    pub const SLICES: (Nanos, Nanos) = (Nanos(100_000), Nanos(100_000_000));

    /// Every knob, with this one for weights.
    pub const fn all(weight: WeightKnob) -> Knobs {
        Knobs {
            weight,
            vcpu_groups: true,
            idle: true,
            nice: true,
            slice: Some(Knobs::SLICES),
            affinity: true,
        }
    }

    /// The decision with its value as the knob takes it; `None` where the host has no such knob.
    pub fn round(&self, decision: Decision) -> Option<Decision> {
        let has_group = |target: Target| matches!(target, Target::Vm(_)) || self.vcpu_groups;
        match decision {
            Decision::SetWeight { target, weight, because } => has_group(target).then(|| {
                Decision::SetWeight { target, weight: self.weight.round(weight), because }
            }),
            Decision::SetIdle { target, .. } => {
                (self.idle && has_group(target)).then_some(decision)
            }
            Decision::SetNice { vm, vcpu, nice, because } => self.nice.then(|| Decision::SetNice {
                vm,
                vcpu,
                nice: nice.clamp(Nice::LEAST, Nice::MOST),
                because,
            }),
            Decision::SetSlice { vm, vcpu, slice, because } => {
                self.slice.map(|(least, most)| Decision::SetSlice {
                    vm,
                    vcpu,
                    slice: slice.map(|slice| slice.clamp(least, most)),
                    because,
                })
            }
            Decision::Divide { .. } => self.vcpu_groups.then_some(decision),
            Decision::SetAffinity { .. } => self.affinity.then_some(decision),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_model::decision::Because;
    use tandem_model::units::{VcpuId, VmId};

    #[test]
    fn weights_are_rounded_and_brought_into_range() {
        let knob = WeightKnob::CGROUP_V2;
        assert_eq!(knob.round(Weight::constant(133.5)), Weight::constant(134.0));
        assert_eq!(knob.round(Weight::constant(0.2)), Weight::constant(1.0));
        assert_eq!(knob.round(Weight::constant(1e9)), Weight::constant(10_000.0));
        assert_eq!(WeightKnob::ANY.round(Weight::constant(0.2)), Weight::constant(0.2));
    }

    #[test]
    fn slices_are_brought_into_the_kernels_range_and_what_cannot_be_set_is_dropped() {
        let decision = |slice| Decision::SetSlice {
            vm: VmId(1),
            vcpu: VcpuId(0),
            slice,
            because: Because::Configured,
        };
        let knobs = Knobs::all(WeightKnob::CGROUP_V1);
        assert_eq!(knobs.round(decision(Some(Nanos(5)))), Some(decision(Some(Nanos(100_000)))));
        let old = Knobs { slice: None, ..knobs };
        assert_eq!(old.round(decision(None)), None);
    }

    #[test]
    fn without_groups_of_vcpus_only_vms_have_weights() {
        let decision = |target| Decision::SetWeight {
            target,
            weight: Weight::constant(7.0),
            because: Because::Configured,
        };
        let knobs = Knobs { vcpu_groups: false, ..Knobs::all(WeightKnob::CGROUP_V1) };
        assert_eq!(knobs.round(decision(Target::Vcpu(VmId(1), VcpuId(0)))), None);
        assert!(knobs.round(decision(Target::Vm(VmId(1)))).is_some());
    }
}
