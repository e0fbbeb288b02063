//! Division of a VM's vCPUs into groups of their own, next to the VM's group, and their reunion.
//!
//! ```text
//! parent ─┬─ tandem-db-812         the VM's group: empty while its vCPUs are divided
//!         ├─ tandem-db-812-vcpu0   r × portion of vCPU 0
//!         └─ tandem-db-812-vcpu1   r × portion of vCPU 1
//! ```

use super::{Knobs, Share, VcpuId, VmCpu, Weight};

impl<G, V> VmCpu<G, V> {
    /// Divides the vCPUs into groups with these portions of the VM's weight, or unites them if there are none; false if nothing changed.
    ///
    /// A VM in the idle class, in turns, or in a group that cannot be divided stays undivided.
    /// If one vCPU cannot be moved, all are united.
    pub(super) fn divide<K: Knobs<G, V>>(
        &mut self,
        portions: &[(VcpuId, f64)],
        knobs: &mut K,
    ) -> Result<bool, K::Error> {
        let can = self.divisible && !self.is_idle() && !self.takes_turns();
        if portions.is_empty() || !can {
            return self.unite(knobs);
        }
        let weight = self.weight;
        if !self.is_divided() {
            self.share = Share::PerVcpu { empty: weight, idle: false };
        }
        for (id, portion) in portions {
            let group = &self.group;
            let Some(vcpu) = self.vcpus.iter_mut().find(|vcpu| vcpu.id == *id) else {
                continue;
            };
            if vcpu.settings.portion.is_none() {
                // A group of its own inside the VM's group is removed, with its settings.
                if let Some(inner) = vcpu.group.take() {
                    knobs.remove_group(inner);
                }
                match knobs.separate(group, vcpu, weight.times(*portion)) {
                    Ok(Some((own, written))) => vcpu.on_group(Some((own, written, false))),
                    Ok(None) => continue,
                    Err(error) => {
                        self.unite(knobs)?;
                        return Err(error);
                    }
                }
            }
            vcpu.settings.portion = Some(*portion);
        }
        self.set_portions(weight, knobs)?;
        Ok(true)
    }

    /// Moves the vCPUs into their VM's group and restores its weight; false if they are there.
    /// If others put the group into the idle class, there is no weight to set.
    pub(super) fn unite<K: Knobs<G, V>>(&mut self, knobs: &mut K) -> Result<bool, K::Error> {
        if !self.is_divided() {
            return Ok(false);
        }
        let mut any = false;
        for vcpu in self.vcpus.iter_mut().filter(|vcpu| vcpu.settings.portion.is_some()) {
            any = true;
            knobs.rejoin(&self.group, vcpu)?;
            if let Some(group) = vcpu.group.take() {
                knobs.remove_group(group);
            }
            vcpu.settings.portion = None;
            vcpu.on_group(None);
        }
        let idle = knobs.is_idle(&self.group)?;
        self.share = if idle { Share::Idle } else { Share::Together };
        if !idle {
            self.weight = knobs.set_weight(&self.group, self.weight)?;
        }
        Ok(any)
    }

    /// Takes in that vCPUs ended or were moved by others: without any divided vCPU the VM is undivided.
    pub fn settle_division<K: Knobs<G, V>>(&mut self, knobs: &mut K) -> Result<(), K::Error> {
        let any = self.vcpus.iter().any(|vcpu| vcpu.settings.portion.is_some());
        if self.is_divided() && !any {
            self.unite(knobs)?;
        }
        Ok(())
    }

    /// Sets the weights of the vCPUs' groups to their portions of the VM's weight.
    /// A group that others put into the idle class has no weight to write.
    pub(super) fn set_portions<K: Knobs<G, V>>(
        &mut self,
        weight: Weight,
        knobs: &mut K,
    ) -> Result<(), K::Error> {
        let mut sum = 0.0;
        for vcpu in &mut self.vcpus {
            if let (Some(portion), Some(group)) = (vcpu.settings.portion, &vcpu.group) {
                let part = weight.times(portion);
                let idle = vcpu.settings.idle;
                let written = if idle { part } else { knobs.set_weight(group, part)? };
                vcpu.settings.weight = Some(written);
                sum += written.value();
            }
        }
        self.weight = Weight::saturating(sum);
        Ok(())
    }
}
