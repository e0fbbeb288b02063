//! Which vCPUs a pause-loop exit may yield to: KVM's rule, and that of IPI-aware directed yields.
//!
//! Source: kvm_vcpu_on_spin of virt/kvm/kvm_main.c, and "sched/fair, KVM: Semantics-aware directed yield for oversubscribed KVM"
//! (Wanpeng Li, v3 of 2026-06-12; the code of this part is that of v2, 2025-12-19, patches 6 … 9).
//!
//! KVM skips vCPUs that were preempted in user mode, unless they have a pending interrupt that APICv knows of.
//!
//! The series records the receiver of a vCPU's last unicast IPI when software delivers it, so without APICv and posted interrupts only.
//! The receiver's end of interrupt clears the record, and it ages out after 50 ms (`ipi_window_ns`).
//! The search takes the first vCPU of the circle that is such a receiver, has a pending interrupt, or was preempted in the guest's kernel.
//! A vCPU that waits for a pCPU since it woke up was not preempted.
//! If this search yields to no vCPU, a second one accepts all preempted vCPUs (`enable_relaxed_boost`).

use crate::scenario::Apic;

use super::simulation::World;
use super::state::{Doing, Idle, KERNEL, NONE};

/// Time for which an IPI counts as recent, ns (`ipi_window_ns`).
const IPI_WINDOW: u64 = 50_000_000;

impl World {
    /// vCPU `v` has sent an interrupt to a single vCPU `to` (kvm_track_ipi_communication).
    pub(crate) fn track_ipi(&mut self, v: u32, to: u32) {
        let apic = self.vms[self.vcpus[v as usize].vm as usize].guest.apic;
        if self.config.apicv || apic == Apic::Posted || v == to {
            return;
        }
        let vcpu = &mut self.vcpus[v as usize];
        (vcpu.ipi_receiver, vcpu.ipi_at) = (to, self.now);
    }

    /// vCPU `v` has ended an interrupt that vCPU `from` sent (kvm_clear_ipi_on_eoi).
    pub(crate) fn ipi_ended(&mut self, from: u32, v: u32) {
        if from != NONE && self.vcpus[from as usize].ipi_receiver == v {
            self.vcpus[from as usize].ipi_receiver = NONE;
        }
    }

    /// Whether `c` has not ended a recent interrupt of `v` (kvm_vcpu_is_ipi_receiver).
    fn is_ipi_receiver(&self, v: u32, c: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        vcpu.ipi_receiver == c && self.now - vcpu.ipi_at <= IPI_WINDOW
    }

    /// Whether a waiting vCPU was preempted, and did not just wake up (vcpu->preempted).
    pub(crate) fn was_preempted(&self, c: u32) -> bool {
        let vcpu = &self.vcpus[c as usize];
        vcpu.idle != Idle::Halted && !vcpu.pv_halted
    }

    /// Whether KVM knows a pending interrupt of a waiting vCPU (kvm_arch_dy_has_pending_interrupt).
    fn has_pending_interrupt(&self, c: u32) -> bool {
        let vcpu = &self.vcpus[c as usize];
        self.config.apicv
            && (vcpu.resched_pending || !vcpu.flushes.is_empty() || !vcpu.due.is_empty())
    }

    /// Whether a waiting vCPU left its pCPU in the guest's kernel (kvm_arch_vcpu_preempted_in_kernel).
    fn is_in_kernel(&self, c: u32) -> bool {
        let vcpu = &self.vcpus[c as usize];
        if vcpu.thread == NONE || vcpu.owed[KERNEL] > 0 {
            return true;
        }
        let thread = &self.threads[vcpu.thread as usize];
        thread.no_preempt > 0
            || matches!(thread.doing, Doing::Hold | Doing::Spin(_) | Doing::FlushWait)
    }

    /// Whether a vCPU may yield to `c` by KVM's rule.
    pub(crate) fn is_kvm_candidate(&self, c: u32) -> bool {
        !self.was_preempted(c) || self.has_pending_interrupt(c) || self.is_in_kernel(c)
    }

    /// Whether `v` may yield to `c` in the first, strict search (kvm_vcpu_is_good_yield_candidate).
    pub(crate) fn is_good_candidate(&self, v: u32, c: u32) -> bool {
        self.is_ipi_receiver(v, c)
            || self.has_pending_interrupt(c)
            || (self.was_preempted(c) && self.is_in_kernel(c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::load;
    use tandem_model::Nanos;

    /// A VM whose four vCPUs compute on one pCPU; returns the running one and the others, which were preempted in user mode.
    fn world(apicv: bool) -> (World, u32, Vec<u32>) {
        let text = format!(
            "duration = \"1s\"\n[machine]\npcpus = 1\n
            [host]\napicv = {apicv}\npause_loop = {{ candidate = \"ipi-aware\" }}
            [[workload]]\nname = \"w\"\n[[workload.role]]\nthreads = \"1 per vcpu\"
            program = [ {{ forever = [ {{ compute = \"100ms\" }} ] }} ]
            [[vm]]\nname = \"a\"\nvcpus = 4\nworkload = \"w\"\n"
        );
        let mut world = World::new(&load::from_text("s.toml", &text).unwrap());
        world.run_until(Nanos::from_millis(100));
        let v = world.pcpus[0].current;
        let others: Vec<u32> = (1..4).map(|step| (v + step) % 4).collect();
        (world, v, others)
    }

    /// The vCPU that a search from `v` yields to.
    fn yields_to(mut world: World, v: u32) -> u32 {
        world.vms[0].last_boosted = v;
        world.vcpus[v as usize].search = v;
        world.search_over(v);
        world.vms[0].last_boosted
    }

    #[test]
    fn ipi_receiver_is_chosen_before_others() {
        let (mut world, v, others) = world(false);
        world.track_ipi(v, others[2]);
        assert_eq!(yields_to(world, v), others[2]);
    }

    #[test]
    fn relaxed_search_takes_any_preempted_vcpu() {
        let (world, v, others) = world(false);
        assert!(others.iter().all(|&c| !world.is_good_candidate(v, c)));
        assert!(others.iter().all(|&c| !world.is_kvm_candidate(c)));
        assert_eq!(yields_to(world, v), others[0]);
    }

    #[test]
    fn record_ends_with_interrupt_and_with_age() {
        let (mut world, v, others) = world(false);
        world.track_ipi(v, others[0]);
        world.track_ipi(v, others[1]);
        assert!(world.is_good_candidate(v, others[1]));
        assert!(!world.is_good_candidate(v, others[0]), "only the last receiver counts");
        world.ipi_ended(v, others[0]);
        assert!(world.is_good_candidate(v, others[1]), "that was another interrupt");
        world.now += IPI_WINDOW;
        assert!(world.is_good_candidate(v, others[1]));
        world.now += 1;
        assert!(!world.is_good_candidate(v, others[1]));
        world.track_ipi(v, others[1]);
        world.ipi_ended(v, others[1]);
        assert!(!world.is_good_candidate(v, others[1]));
    }

    #[test]
    fn apicv_hides_sent_ipis_and_shows_pending_ones() {
        let (mut world, v, others) = world(true);
        world.track_ipi(v, others[2]);
        assert!(!world.is_good_candidate(v, others[2]));
        world.vcpus[others[2] as usize].resched_pending = true;
        assert_eq!(yields_to(world, v), others[2]);
    }
}
