//! Delayed scheduling, Gleaner's means for VMs of a single vCPU: a woken thread is held back a little, so that pieces of
//! work run together and the vCPU goes idle less often (Ding et al., USENIX ATC 2014).
//!
//! Only a wake-up that would end an idle period is held back: while the vCPU works, a thread more costs no transition. The
//! interrupt of a timer or device that finds the vCPU halted is kept until [`Guest::wake_delay`] is over since the first one,
//! or until something else wakes the vCPU; then all that were kept are handled as one. So nobody is held back for longer
//! than the bound, and who came last for less.
//!
//! A real kernel would defer the interrupt of its timer by its slack; here it is the same for devices, which from the user
//! level of a live guest cannot be held back.
//!
//! [`Guest::wake_delay`]: crate::scenario::Guest::wake_delay

use crate::queue::Slot;
use crate::trace::VcpuState;

use super::simulation::World;
use super::state::Idle;

impl World {
    /// The bound of the delay in the VM of a vCPU, ns.
    #[inline]
    pub(crate) fn wake_delay(&self, v: u32) -> u64 {
        let vm = self.vcpus[v as usize].vm;
        self.vms[vm as usize].guest.wake_delay.0
    }

    /// Something is due on a vCPU: true if it is kept for now, because the vCPU is idle.
    pub(crate) fn hold_back(&mut self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        let is_halted = matches!(vcpu.state, VcpuState::Halted | VcpuState::HaltPolling);
        if !is_halted || vcpu.idle != Idle::Halted {
            return false;
        }
        let (slot, delay) = (self.delay_slot(v), self.wake_delay(v));
        if !self.queue.is_set(slot) {
            self.queue.set(slot, self.now + delay);
        }
        true
    }

    /// What was kept is handled: it is over with the delay.
    pub(crate) fn end_delay(&mut self, v: u32) {
        let slot = self.delay_slot(v);
        self.queue.cancel(slot);
    }

    /// What was kept first has been kept for as long as it may be.
    pub(crate) fn delay_over(&mut self, v: u32) {
        self.wake_vcpu(v);
    }

    fn delay_slot(&self, v: u32) -> Slot {
        Slot(self.slots.delays + v)
    }
}
