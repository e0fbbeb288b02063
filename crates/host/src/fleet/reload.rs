//! Other settings for VMs that stay managed: rules, policies and weights of a settings file that was read again.
//!
//! A VM keeps its cgroup, its weight and its turns if its new settings only add policies or set another weight. If they take a policy
//! away, or a weight that a rule had set on the VM's own cgroup, its changes are reverted and it is adopted again: only that way
//! the marks of the policy and the earlier weight are known.

use std::cell::OnceCell;

use tandem_model::{PolicySet, VmId};

use super::{Backend, Fleet, FleetError, Left};
use crate::apply::Refused;
use crate::config::VmRule;
use crate::managed::Note;

impl Fleet {
    /// Applies other rules. With `again`, every VM is reverted and adopted again after the next scan.
    pub fn reconfigure(
        &mut self,
        rules: Vec<VmRule>,
        policies: PolicySet,
        weight_per_vcpu: bool,
        again: bool,
    ) -> (Vec<Note>, Vec<Refused>) {
        (self.rules, self.policies) = (rules, policies);
        self.weight_per_vcpu = weight_per_vcpu;
        let (mut notes, mut refused) = (Vec::new(), Vec::new());
        let ids: Vec<VmId> = self.vms.keys().copied().collect();
        for id in ids {
            let Some(mut managed) = self.vms.remove(&id) else { continue };
            let origin = OnceCell::new();
            let policies = self.policies_of(&managed.vm, &origin);
            let times = self.rule(&managed.vm, &origin, |rule| rule.weight);
            let per_vcpu = self.rule(&managed.vm, &origin, |rule| rule.weight_per_vcpu);
            let default = self.controller().default_weight();
            let is_less = managed.policies.and(policies) != managed.policies;
            let was_alone = managed.is_left_alone();
            let is_alone = policies == PolicySet::NONE;
            let loses_weight = managed.has_rule && times.is_none() && !managed.made && !is_alone;
            if again || is_less || was_alone != is_alone || loses_weight {
                self.leave(managed, Left::Unselected, &mut notes);
                continue;
            }
            managed.policies = policies;
            if !is_alone {
                let base = match times {
                    Some(times) => Some(default.times(times)),
                    None => managed.has_rule.then_some(default),
                };
                managed.has_rule = times.is_some();
                managed.worth.reconfigure(base, per_vcpu.unwrap_or(self.weight_per_vcpu));
                self.read_cpusets(&mut managed);
                let actuator = match &mut self.backend {
                    Backend::Live(actuator) => Some(actuator.as_mut()),
                    Backend::Dry(_) => None,
                };
                if let Err(error) = managed.weigh(actuator, &mut notes) {
                    refused.push(FleetError::from(error).refused(&managed.vm.name));
                }
            }
            self.vms.insert(id, managed);
        }
        (notes, refused)
    }
}
