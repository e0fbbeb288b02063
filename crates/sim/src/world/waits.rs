//! Attribution of waits within a VM.
//!
//! Each vCPU's waits for spin locks are charged to the vCPU that held them, and its waits for TLB flushes to the vCPU that had to answer.
//!
//! Both are split by whether the other vCPU was on a pCPU or waited for one.
//! The first part is contention, which a bigger machine reduces.
//! The second part is the cost of overcommit (lock-holder and lock-waiter preemption, late answers), at which pause-loop exiting and its policies aim.
//!
//! A wait is cut where its lock changes hands, and each piece is charged to the holder during it.
//! A piece counts even if the waiter itself was off its pCPU, as in the histogram `lock_wait`: over finished waits, both have the same sum.
//! A lock that was handed to a waiter whose vCPU is off is held by that waiter.
//! A lock that stays free while its waiters are off is waited for without a holder.
//! A waiter in user space counts for its present vCPU, and a holder that the guest migrates for its vCPU at the start of the piece.
//!
//! The split costs nothing at context switches.
//! Every vCPU has a clock of its steal time, and the difference over a piece is the time in which the vCPU was off.
//! A hand-over visits each waiter of the lock.
//! Waits are therefore recorded on request only ([`World::record_waits`]), and for VMs of up to
//! [`MAX_VCPUS`](super::state_recorder::MAX_VCPUS) vCPUs, whose matrices are allocated once.
//! Times are ns.

use crate::results::Waits;
use crate::trace::VcpuState;

use super::simulation::World;
use super::state::NONE;
use super::state_recorder::StateRecorder;
use super::wait_recorder::{Cell, Matrices, Piece, WaitRecorder};

impl World {
    /// Starts recording the states of vCPUs and the attribution of their waits.
    pub fn record_waits(&mut self) {
        self.waits = Some(Box::new(WaitRecorder {
            vms: self.vms.iter().map(|vm| Matrices::new(vm.vcpus)).collect(),
            pieces: vec![Piece::default(); self.threads.len()],
            states: StateRecorder::new(&self.vms, self.pcpus.len(), self.now),
        }));
        for v in 0..self.vcpus.len() as u32 {
            let vcpu = &self.vcpus[v as usize];
            if vcpu.state == VcpuState::Ready && vcpu.queued {
                self.begin_pcpu_wait(v, vcpu.pcpu);
            }
        }
    }

    /// A vCPU's steal time since boot.
    pub(super) fn stolen(&self, v: u32) -> u64 {
        let vcpu = &self.vcpus[v as usize];
        match vcpu.state {
            VcpuState::Ready => vcpu.waited_total + self.now - vcpu.since,
            _ => vcpu.waited_total,
        }
    }

    /// A thread has joined the waiters of a spin lock.
    #[inline]
    pub(crate) fn wait_begins(&mut self, t: u32, lock: u32) {
        if self.waits.is_some() {
            self.next_piece(t, self.objects[lock as usize].owner);
        }
    }

    /// A thread has taken the spin lock for which it waited.
    #[inline]
    pub(crate) fn wait_is_over(&mut self, t: u32) {
        if self.waits.is_some() {
            self.count_piece(t);
            if let Some(waits) = &mut self.waits {
                waits.pieces[t as usize].waits = false;
            }
        }
    }

    /// A spin lock has a new holder, or none: begins a new piece of every wait for it.
    #[inline]
    pub(crate) fn holder_changed(&mut self, lock: u32) {
        if self.waits.is_none() {
            return;
        }
        let object = &self.objects[lock as usize];
        let (owner, mut t) = (object.owner, object.waiters.head);
        while t != NONE {
            self.count_piece(t);
            self.next_piece(t, owner);
            t = self.threads[t as usize].next;
        }
    }

    /// Resets the recorded waits at the start of the measurement.
    pub(crate) fn forget_waits(&mut self) {
        self.count_waits();
        let Some(mut waits) = self.waits.take() else {
            return;
        };
        for (vm, matrices) in self.vms.iter().zip(&mut waits.vms) {
            let Some(matrices) = matrices else { continue };
            matrices.locks.fill(Cell::default());
            matrices.flushes.fill(Cell::default());
            matrices.free.fill(0);
            for row in matrices.asked.chunks_mut(vm.vcpus as usize) {
                for (asked, v) in row.iter_mut().zip(vm.first_vcpu..) {
                    *asked = self.stolen(v);
                }
            }
        }
        self.waits = Some(waits);
    }

    /// Counts all waits up to now.
    pub(crate) fn count_waits(&mut self) {
        if self.waits.is_none() {
            return;
        }
        for t in 0..self.threads.len() as u32 {
            self.count_piece(t);
        }
    }

    /// Returns the recorded waits of a VM.
    pub(crate) fn waits_of(&self, vm: usize) -> Option<Waits> {
        let matrices = self.waits.as_ref()?.vms.get(vm)?.as_ref()?;
        Some(matrices.results())
    }

    /// A vCPU is asked to flush its TLB.
    #[inline]
    pub(crate) fn flush_asked(&mut self, asker: u32, asked: u32) {
        if self.waits.is_none() {
            return;
        }
        let stolen = self.stolen(asked);
        if let Some((matrices, at)) = self.cell(asker, asked) {
            matrices.asked[at] = stolen;
        }
    }

    /// A vCPU has answered.
    #[inline]
    pub(crate) fn flush_answered(&mut self, asker: u32, asked: u32, sent: u64) {
        if self.waits.is_none() {
            return;
        }
        let stolen = self.stolen(asked);
        let time = self.now - sent.max(self.measured_from);
        if let Some((matrices, at)) = self.cell(asker, asked) {
            let stolen = stolen - matrices.asked[at];
            matrices.flushes[at].add(time, stolen);
        }
    }

    /// A VM's matrices, and the position of two of its vCPUs in them.
    fn cell(&mut self, waiter: u32, other: u32) -> Option<(&mut Matrices, usize)> {
        let vm = self.vcpus[waiter as usize].vm;
        let first = self.vms[vm as usize].first_vcpu;
        let matrices = self.waits.as_mut()?.vms[vm as usize].as_mut()?;
        let row = (waiter - first) as usize * matrices.vcpus;
        Some((matrices, row + (other - first) as usize))
    }

    fn next_piece(&mut self, t: u32, owner: u32) {
        let holder = match owner {
            NONE => NONE,
            owner => self.threads[owner as usize].vcpu,
        };
        let stolen = match holder {
            NONE => 0,
            holder => self.stolen(holder),
        };
        let (since, spun) = (self.now, self.spun_by(self.threads[t as usize].vcpu));
        if let Some(waits) = &mut self.waits {
            waits.pieces[t as usize] = Piece { waits: true, holder, since, stolen, spun };
        }
    }

    /// Counts the present piece of a thread's wait up to now, and continues it.
    pub(super) fn count_piece(&mut self, t: u32) {
        let Some(waits) = &self.waits else { return };
        let piece = waits.pieces[t as usize];
        if !piece.waits {
            return;
        }
        let (waiter, time) = (self.threads[t as usize].vcpu, self.now - piece.since);
        let is_current = self.vcpus[waiter as usize].thread == t;
        if is_current {
            self.sync(waiter);
        }
        let (mut stolen, spun) = (0, self.spun_by(waiter));
        if piece.holder == NONE {
            if let Some((matrices, at)) = self.cell(waiter, waiter) {
                matrices.free[at / matrices.vcpus] += time;
            }
        } else {
            stolen = self.stolen(piece.holder);
            if let Some((matrices, at)) = self.cell(waiter, piece.holder) {
                matrices.locks[at].add(time, stolen - piece.stolen);
            }
            if is_current {
                let spun = (spun - piece.spun).min(time);
                let off = (stolen - piece.stolen).min(time);
                self.lock_waited(waiter, piece.holder, time, spun, off);
            }
        }
        let since = self.now;
        if let Some(waits) = &mut self.waits {
            waits.pieces[t as usize] = Piece { since, stolen, spun, ..piece };
        }
    }
}
