//! Knobs of a host: ranges, resolution, and the nearest possible value.

use serde::{Deserialize, Serialize};

use tandem_model::decision::{Decision, Target};
use tandem_model::observation::VmObservation;
use tandem_model::units::{Nanos, Nice, Weight};

/// A knob for weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightKnob {
    /// Its minimum.
    pub least: Weight,
    /// Its maximum.
    pub most: Weight,
    /// Its resolution; 0: any value in range.
    pub step: f64,
    /// The weight of a group that was given none.
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
    /// Any weight, for tests of policies alone.
    pub const ANY: WeightKnob = WeightKnob {
        least: Weight::LEAST,
        most: Weight::MOST,
        step: 0.0,
        default: Weight::constant(1024.0),
    };

    /// Returns the nearest weight that the knob can take.
    pub fn round(&self, weight: Weight) -> Weight {
        let rounded = if self.step > 0.0 {
            (weight.value() / self.step).round() * self.step
        } else {
            weight.value()
        };
        Weight::saturating(rounded.clamp(self.least.value(), self.most.value()))
    }

    /// Returns the weight that a VM has once this one is written: the nearest that the knob can take.
    /// For vCPUs that are apart it is the sum of those nearest to their parts.
    pub fn written(&self, vm: &VmObservation, weight: Weight) -> Weight {
        let weight = self.round(weight);
        let portions = vm.vcpus.iter().filter_map(|vcpu| vcpu.in_force.portion);
        if !vm.is_apart() {
            return weight;
        }
        Weight::saturating(
            portions
                .map(|part| self.round(Weight::saturating(weight.value() * part)).value())
                .sum(),
        )
    }
}

/// Knobs of a host, with their resolutions.
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
    /// Slices that threads can have (EEVDF of Linux 6.12 and later); `None`: only the scheduler's own.
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

    /// Returns the decision with its value rounded to the knob; `None` if the host has no such knob.
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
    fn weights_are_rounded_and_clamped() {
        let knob = WeightKnob::CGROUP_V2;
        assert_eq!(knob.round(Weight::constant(133.5)), Weight::constant(134.0));
        assert_eq!(knob.round(Weight::constant(0.2)), Weight::constant(1.0));
        assert_eq!(knob.round(Weight::constant(1e9)), Weight::constant(10_000.0));
        assert_eq!(WeightKnob::ANY.round(Weight::constant(0.2)), Weight::constant(0.2));
    }

    #[test]
    fn slices_are_clamped_or_dropped() {
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
    fn vcpu_weights_need_vcpu_groups() {
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
