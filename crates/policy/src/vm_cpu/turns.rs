//! A VM's way into a rotation and out of it.
//!
//! [`VmCpu::prepare_turns`] lets the host journal the keeper's coming changes.
//! From [`VmCpu::on_turns`] on only the keeper writes, until the next read after [`VmCpu::on_end_of_turns`].

use super::{Knob, Knobs, PcpuSet, Share, VcpuCpu, VmCpu};
use crate::turns::Member;

impl<G, V> VmCpu<G, V> {
    /// Prepares it for turns, or for going on with them at its current weight; `None` if a thread has ended.
    pub fn prepare_turns<K: Knobs<G, V>>(
        &mut self,
        member: &Member,
        knobs: &mut K,
    ) -> Result<Option<K::Switch>, K::Error> {
        self.unite(knobs)?;
        let switch = knobs.prepare_turns(&self.group, self.weight, self.takes_turns())?;
        let slotted = self.vcpus.iter_mut().filter(|_| member.moves);
        for vcpu in slotted {
            let slots = member.places(vcpu.id);
            if slots.is_empty() || slots == vcpu.slots {
                continue;
            }
            // The keeper takes it over with the operator's affinity.
            if let Some(granted) = &vcpu.granted {
                let Some(now) = knobs.set_affinity(&vcpu.host, granted)? else {
                    return Ok(None);
                };
                (vcpu.allowed, vcpu.granted) = (now, None);
            }
            if !knobs.prepare_slots(&vcpu.host, &slots)? {
                return Ok(None);
            }
            vcpu.ours.insert(Knob::Affinity);
            vcpu.slots = slots;
        }
        Ok(Some(switch))
    }

    /// Prepares for the end of its turns at its current weight; `None` if it takes none.
    pub fn prepare_end_of_turns<K: Knobs<G, V>>(
        &self,
        knobs: &mut K,
    ) -> Result<Option<K::Switch>, K::Error> {
        if !self.takes_turns() {
            return Ok(None);
        }
        knobs.prepare_turns(&self.group, self.weight, true).map(Some)
    }

    /// Records that it takes turns now.
    pub fn on_turns(&mut self) {
        self.share = Share::Rotation;
    }

    /// Records that it takes no more turns.
    pub fn on_end_of_turns(&mut self, slept: bool) {
        if self.takes_turns() {
            self.share = Share::Ended { slept };
        }
    }

    /// Whether it has left its turns, and its group is to be read again.
    pub fn has_ended_turns(&self) -> bool {
        matches!(self.share, Share::Ended { .. })
    }

    /// Takes it out of the idle class after the keeper ended without doing so, and sets its weight.
    pub fn recover_from_turns<K: Knobs<G, V>>(&mut self, knobs: &mut K) -> Result<(), K::Error> {
        if !self.takes_turns() && !self.has_ended_turns() {
            return Ok(());
        }
        self.share = Share::Together;
        knobs.set_idle(&self.group, false)?;
        self.weight = knobs.set_weight(&self.group, self.weight)?;
        Ok(())
    }
}

impl<G, V> VcpuCpu<G, V> {
    /// Restores its affinity after the keeper ended in a slot; `now` is its current affinity.
    /// An affinity that others set stays.
    pub fn recover_from_slot<K: Knobs<G, V>>(
        &mut self,
        now: &PcpuSet,
        knobs: &mut K,
    ) -> Result<(), K::Error> {
        let slots = std::mem::take(&mut self.slots);
        // It has a single pCPU in a slot.
        if now.len() == 1 && now.overlaps(&slots) {
            knobs.set_affinity(&self.host, &self.allowed)?;
        }
        Ok(())
    }
}
