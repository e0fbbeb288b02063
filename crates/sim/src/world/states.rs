//! Where the time of vCPUs goes and who waits for whom, as the model of [`tandem_model::states`] has it.
//!
//! | state | here |
//! |---|---|
//! | RUN | on a pCPU, but for what follows |
//! | POLL | halted, while the host polls on the pCPU |
//! | VMM | exits and entries, with what the hypervisor does between them |
//! | RDY | queued on a pCPU that somebody else has |
//! | LIM | runnable and in no queue: the VM has used up its cap |
//! | CSTP | spinning or halted because of a sibling that was kept off pCPUs |
//! | HALT | halted otherwise |
//!
//! All but CSTP are what the results have, cut in other places, so times sum to what was measured, to the ns. Who waits for a pCPU
//! waits for whoever is on it: what a vCPU was RDY is the sum of its edges.
//!
//! Co-stop is charged to the sibling that ends the wait, by its clock of stolen time: as long as that sibling was kept off while
//! the victim waited, so long the wait would not have been. That is for
//! - a spin lock: its holder, piece by piece (see `waits`);
//! - a barrier or semaphore that is spun at, a TLB flush: the last that comes or answers;
//! - a halted vCPU: the sibling whose interrupt wakes it.
//!
//! Only what the victim really spun counts, not its exits meanwhile: of a piece with exits, a proportional part; and never more than
//! it spun. A thread that the guest preempts while it spins at a barrier or semaphore is not followed. A wait that is not over
//! when the measuring ends has nobody who ended it, and is what it looks like: RUN or HALT. VMs of more than [`MOST_VCPUS`](super::state_recorder::MOST_VCPUS) vCPUs have no CSTP.
//!
//! Recording changes nothing else: the same events happen, and the results are the same.

use crate::trace::VcpuState;

use super::simulation::World;
use super::state::NONE;
use super::state_recorder::{Siblings, VcpuRecord};

impl World {
    /// Another vCPU comes to a pCPU, or it becomes idle: until now they waited for who was there.
    #[inline]
    pub(crate) fn pcpu_changes(&mut self, p: u32) {
        if let Some(recorder) = &mut self.waits {
            let occupant = self.pcpus[p as usize].current;
            recorder.states.charge(p, occupant, self.now);
        }
    }

    /// A runnable vCPU is in the queue of a pCPU and not on it.
    #[inline]
    pub(crate) fn waits_for_pcpu(&mut self, v: u32, p: u32) {
        self.pcpu_changes(p);
        if let Some(recorder) = &mut self.waits {
            recorder.states.add(v, p);
        }
    }

    /// It is on a pCPU, or in no queue.
    #[inline]
    pub(crate) fn waits_no_more(&mut self, v: u32) {
        let recorder = self.waits.as_ref();
        let Some(p) = recorder.and_then(|recorder| recorder.states.waits_on(v)) else {
            return;
        };
        self.pcpu_changes(p);
        if let Some(recorder) = &mut self.waits {
            recorder.states.remove(v);
        }
    }

    /// A vCPU, up to date, is about to enter another state.
    pub(crate) fn state_changes(&mut self, v: u32, to: VcpuState) {
        let vcpu = &self.vcpus[v as usize];
        let (from, t) = (vcpu.state, vcpu.thread);
        if t != NONE {
            // What a thread waits on a pCPU and off it are pieces of their own.
            self.count_piece(t);
        }
        match (from, to) {
            (VcpuState::Running, VcpuState::Halted | VcpuState::HaltPolling) => {
                self.wait_of_all_begins(v, NONE);
            }
            (VcpuState::Running, _) => self.spinning_pauses(v),
            (_, VcpuState::Running) => self.spinning_goes_on(v),
            _ => {}
        }
    }

    /// The guest of a vCPU, up to date, is about to choose its thread anew: what that one spun until now is its own.
    #[inline]
    pub(crate) fn guest_switches(&mut self, v: u32, before: u32) {
        if self.waits.is_some() && before != NONE {
            debug_assert_eq!(self.vcpus[v as usize].thread, before);
            self.count_piece(before);
        }
    }

    /// A thread is about to become the current one.
    #[inline]
    pub(crate) fn thread_comes(&mut self, v: u32, t: u32, before: u32) {
        if self.waits.is_none() || t == before {
            return;
        }
        self.count_piece(t);
        self.with_siblings(v, |_, _, _, record| record.spinner = NONE);
    }

    /// A vCPU, up to date, halts, or its thread begins to spin: any of its siblings may end that.
    pub(crate) fn wait_of_all_begins(&mut self, v: u32, spinner: u32) {
        let spun = self.spun_by(v);
        self.with_siblings(v, |world, index, siblings, record| {
            record.spinner = spinner;
            record.spun_before = spun;
            siblings.forget(index);
            world.see_siblings(v, |sibling, off| siblings.begin(index, sibling, off));
        });
    }

    fn spinning_pauses(&mut self, v: u32) {
        self.with_siblings(v, |world, index, siblings, record| {
            if record.spinner != NONE {
                world.see_siblings(v, |sibling, off| siblings.gather(index, sibling, off));
            }
        });
    }

    fn spinning_goes_on(&mut self, v: u32) {
        self.with_siblings(v, |world, index, siblings, record| {
            if record.spinner != NONE {
                world.see_siblings(v, |sibling, off| siblings.begin(index, sibling, off));
            }
        });
    }

    /// Sibling `by` ends the spinning of thread `t`, whose vCPU is up to date.
    pub(crate) fn spinning_ends(&mut self, t: u32, by: u32) {
        let v = self.threads[t as usize].vcpu;
        let (spun, off) = (self.spun_by(v), self.stolen(by));
        self.with_siblings(v, |world, index, siblings, record| {
            if record.spinner != t {
                return;
            }
            record.spinner = NONE;
            let running = world.vcpus[v as usize].state == VcpuState::Running;
            let by = by - world.first_sibling(v);
            let off = siblings.off(index, by, off, running);
            let time = off.min(spun - record.spun_before);
            record.costop_spinning += time;
            siblings.charge(index, by, time);
        });
    }

    /// An interrupt of sibling `by` is about to wake a halted vCPU.
    pub(crate) fn halt_ends(&mut self, v: u32, by: u32) {
        let off = self.stolen(by);
        self.with_siblings(v, |world, index, siblings, record| {
            let vcpu = &world.vcpus[v as usize];
            // With a thread it waits for a paravirtual lock, piece by piece.
            if vcpu.state != VcpuState::Halted || vcpu.thread != NONE {
                return;
            }
            let by = by - world.first_sibling(v);
            let halted = world.now - vcpu.since;
            let time = siblings.off(index, by, off, true).min(halted);
            record.costop_halted += time;
            siblings.charge(index, by, time);
        });
    }

    /// A vCPU waited for a spin lock for some time, in which it spun for `spun` and the holder was `off`.
    pub(crate) fn lock_waited(&mut self, v: u32, holder: u32, time: u64, spun: u64, off: u64) {
        let halted = self.vcpus[v as usize].state == VcpuState::Halted;
        self.with_siblings(v, |world, index, siblings, record| {
            let holder = holder - world.first_sibling(v);
            if halted {
                record.costop_halted += off;
                siblings.charge(index, holder, off);
                return;
            }
            let part = u128::from(off) * u128::from(spun) / u128::from(time.max(1));
            record.costop_spinning += part as u64;
            siblings.charge(index, holder, part as u64);
        });
    }

    /// A directed yield of `v` to its sibling `to`, and whether that got the pCPU.
    pub(crate) fn yielded(&mut self, v: u32, to: u32, taken: bool) {
        self.with_siblings(v, |world, index, siblings, _| {
            siblings.yielded(index, to - world.first_sibling(v), taken);
        });
    }

    /// What was recorded so far does not count; the results were just begun anew.
    pub(crate) fn forget_states(&mut self) {
        for p in 0..self.pcpus.len() as u32 {
            self.pcpu_changes(p);
        }
        let Some(mut recorder) = self.waits.take() else {
            return;
        };
        recorder.states.forget();
        for (record, vcpu) in recorder.states.vcpus.iter_mut().zip(&self.vcpus) {
            record.runs_before = vcpu.runs_total;
        }
        for piece in &mut recorder.pieces {
            piece.spun = 0;
        }
        self.waits = Some(recorder);
        for v in 0..self.vcpus.len() as u32 {
            self.with_siblings(v, |world, index, siblings, _| {
                world.see_siblings(v, |sibling, off| siblings.begin(index, sibling, off));
            });
        }
    }

    /// What a vCPU spun since the measuring began, as far as it is up to date.
    pub(super) fn spun_by(&self, v: u32) -> u64 {
        let ran = &self.vcpus[v as usize].results.ran;
        (ran.spin_user + ran.spin_kernel + ran.shootdown_wait).0
    }

    fn first_sibling(&self, v: u32) -> u32 {
        self.vms[self.vcpus[v as usize].vm as usize].first_vcpu
    }

    /// With each sibling's number in its VM, and its stolen time.
    fn see_siblings(&self, v: u32, mut each: impl FnMut(u32, u64)) {
        let vm = &self.vms[self.vcpus[v as usize].vm as usize];
        for sibling in 0..vm.vcpus {
            each(sibling, self.stolen(vm.first_vcpu + sibling));
        }
    }

    /// With the vCPU's number in its VM and what is recorded of both; nothing where that is not recorded.
    fn with_siblings(
        &mut self,
        v: u32,
        act: impl FnOnce(&World, u32, &mut Siblings, &mut VcpuRecord),
    ) {
        let Some(mut recorder) = self.waits.take() else {
            return;
        };
        let vm = self.vcpus[v as usize].vm;
        if let Some((siblings, record)) = recorder.states.of(vm, v) {
            act(self, v - self.first_sibling(v), siblings, record);
        }
        self.waits = Some(recorder);
    }
}
