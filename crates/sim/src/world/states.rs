//! States of vCPUs and attribution of their waits, as defined by the model in [`tandem_model::states`].
//!
//! | state | here |
//! |---|---|
//! | RUN | on a pCPU, except for the states below |
//! | POLL | halted, while the host polls on the pCPU |
//! | VMM | exits and entries, with the hypervisor's work between them |
//! | RDY | queued on a pCPU that another vCPU occupies |
//! | LIM | runnable and in no queue: the VM has used up its cap |
//! | CSTP | spinning or halted because of a sibling that was kept off pCPUs |
//! | HALT | halted otherwise |
//!
//! All states but CSTP divide the times of the results differently, so they sum to the measured time, to the ns.
//! A vCPU that waits for a pCPU waits for its occupant: RDY is the sum of the vCPU's edges.
//!
//! Co-stop is charged to the sibling that ends the wait, using that sibling's clock of steal time.
//! The wait would have been shorter by the time that the sibling was kept off pCPUs meanwhile.
//! The charged siblings are:
//! - for a spin lock, its holder, piece by piece (see `waits`);
//! - for a spinning barrier or semaphore, or a TLB flush, the last one to arrive or answer;
//! - for a halted vCPU, the sender of the interrupt that wakes it.
//!
//! Only the victim's spinning counts, not its exits meanwhile: of a piece with exits, a proportional part; and never more than the time spun.
//! A thread that the guest preempts while it spins at a barrier or semaphore is not followed.
//! A wait in progress at the end of the measurement has no culprit, and counts as RUN or HALT.
//! VMs of more than [`MAX_VCPUS`](super::state_recorder::MAX_VCPUS) vCPUs have no CSTP.
//!
//! Recording does not affect the simulation: events and results are the same.

use crate::trace::VcpuState;

use super::simulation::World;
use super::state::NONE;
use super::state_recorder::{Siblings, VcpuRecord};

impl World {
    /// Charges the vCPUs that wait for a pCPU, before its occupant or its list changes.
    #[inline]
    pub(crate) fn charge_pcpu_waits(&mut self, p: u32) {
        if let Some(recorder) = &mut self.waits {
            let occupant = self.pcpus[p as usize].current;
            recorder.states.charge(p, occupant, self.now);
        }
    }

    /// A runnable vCPU begins to wait in the queue of a pCPU.
    #[inline]
    pub(crate) fn begin_pcpu_wait(&mut self, v: u32, p: u32) {
        self.charge_pcpu_waits(p);
        if let Some(recorder) = &mut self.waits {
            recorder.states.add(v, p);
        }
    }

    /// A vCPU no longer waits for a pCPU: it runs, or is in no queue.
    #[inline]
    pub(crate) fn end_pcpu_wait(&mut self, v: u32) {
        let recorder = self.waits.as_ref();
        let Some(p) = recorder.and_then(|recorder| recorder.states.waits_on(v)) else {
            return;
        };
        self.charge_pcpu_waits(p);
        if let Some(recorder) = &mut self.waits {
            recorder.states.remove(v);
        }
    }

    /// A vCPU, up to date, is about to change its state.
    pub(crate) fn state_changes(&mut self, v: u32, to: VcpuState) {
        let vcpu = &self.vcpus[v as usize];
        let (from, t) = (vcpu.state, vcpu.thread);
        if t != NONE {
            // Waits on a pCPU and off it are separate pieces.
            self.count_piece(t);
        }
        match (from, to) {
            (VcpuState::Running, VcpuState::Halted | VcpuState::HaltPolling) => {
                self.begin_sibling_wait(v, NONE);
            }
            (VcpuState::Running, _) => self.pause_spinning(v),
            (_, VcpuState::Running) => self.resume_spinning(v),
            _ => {}
        }
    }

    /// The guest of a vCPU, up to date, is about to choose another thread: accounts the spinning of the present one.
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

    /// A vCPU, up to date, halts, or its thread begins to spin: any sibling may end this wait.
    pub(crate) fn begin_sibling_wait(&mut self, v: u32, spinner: u32) {
        let spun = self.spun_by(v);
        self.with_siblings(v, |world, index, siblings, record| {
            record.spinner = spinner;
            record.spun_before = spun;
            siblings.forget(index);
            world.see_siblings(v, |sibling, off| siblings.begin(index, sibling, off));
        });
    }

    fn pause_spinning(&mut self, v: u32) {
        self.with_siblings(v, |world, index, siblings, record| {
            if record.spinner != NONE {
                world.see_siblings(v, |sibling, off| siblings.gather(index, sibling, off));
            }
        });
    }

    fn resume_spinning(&mut self, v: u32) {
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
            // With a thread, it waits for a paravirtual lock, which is counted piece by piece.
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

    /// A vCPU waited for a spin lock for `time`, of which it spun for `spun` while the holder was off pCPUs for `off`.
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

    /// Records a directed yield of `v` to its sibling `to`, and whether the scheduler followed it.
    pub(crate) fn yielded(&mut self, v: u32, to: u32, taken: bool) {
        self.with_siblings(v, |world, index, siblings, _| {
            siblings.yielded(index, to - world.first_sibling(v), taken);
        });
    }

    /// Resets the recorded states, after a reset of the results.
    pub(crate) fn forget_states(&mut self) {
        for p in 0..self.pcpus.len() as u32 {
            self.charge_pcpu_waits(p);
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

    /// A vCPU's spinning time since the measurement began, up to its last `sync`.
    pub(super) fn spun_by(&self, v: u32) -> u64 {
        let ran = &self.vcpus[v as usize].results.ran;
        (ran.spin_user + ran.spin_kernel + ran.shootdown_wait).0
    }

    fn first_sibling(&self, v: u32) -> u32 {
        self.vms[self.vcpus[v as usize].vm as usize].first_vcpu
    }

    /// Calls `each` with each sibling's number in its VM and its steal time.
    fn see_siblings(&self, v: u32, mut each: impl FnMut(u32, u64)) {
        let vm = &self.vms[self.vcpus[v as usize].vm as usize];
        for sibling in 0..vm.vcpus {
            each(sibling, self.stolen(vm.first_vcpu + sibling));
        }
    }

    /// Calls `act` with the vCPU's number in its VM and both records, if the VM is recorded.
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
