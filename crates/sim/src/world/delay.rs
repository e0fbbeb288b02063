//! Delayed scheduling, Gleaner's remedy for VMs of a single vCPU (Ding et al., USENIX ATC 2014).
//!
//! A woken thread is delayed a little, so that pieces of work run together and the vCPU goes idle less often.
//! Only a wake-up that would end an idle period is delayed: while the vCPU works, another thread costs no transition.
//! An interrupt of a timer or device that finds the vCPU halted is held until [`Guest::wake_delay`] has passed since the first held one,
//! or until another event wakes the vCPU.
//! All held interrupts are then handled as one.
//! The delay of a thread is therefore at most the bound, and less for later interrupts.
//!
//! A real kernel would defer its timer interrupt by the timer's slack.
//! The simulation delays device interrupts in the same way; user space of a live guest cannot.
//!
//! [`Guest::wake_delay`]: crate::scenario::Guest::wake_delay

use crate::trace::VcpuState;

use super::calendar::Event;
use super::simulation::World;
use super::state::{Idle, NONE};

impl World {
    /// Maximum delay in the VM of a vCPU, ns.
    #[inline]
    pub(crate) fn wake_delay(&self, v: u32) -> u64 {
        let vm = self.vcpus[v as usize].vm;
        self.vms[vm as usize].guest.wake_delay.0
    }

    /// An interrupt is due on a vCPU: returns whether it is held, which requires an idle vCPU.
    pub(crate) fn hold_back(&mut self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        let is_halted = matches!(vcpu.state, VcpuState::Halted | VcpuState::HaltPolling);
        if !is_halted || vcpu.idle != Idle::Halted {
            return false;
        }
        if !self.calendar.is_set(Event::DelayEnd, v) {
            let delay = self.wake_delay(v);
            self.calendar.set(Event::DelayEnd, v, self.now + delay);
        }
        true
    }

    /// Ends the delay, as the held interrupts are handled.
    pub(crate) fn end_delay(&mut self, v: u32) {
        self.calendar.cancel(Event::DelayEnd, v);
    }

    /// The first held interrupt has reached the maximum delay.
    pub(crate) fn delay_over(&mut self, v: u32) {
        self.wake_vcpu(v, NONE);
    }
}
