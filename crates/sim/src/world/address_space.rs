//! The lock of an address space where some take it for reading (`mm_readers`).
//!
//! Page faults and giving memory back (madvise with MADV_DONTNEED) read the map of the address space: many at a time, also
//! while they flush TLBs. Mapping and unmapping write it. The lock is the kernel's rw_semaphore (kernel/locking/rwsem-xadd.c):
//!
//! - Who reads takes it unless somebody writes or waits; else it blocks and is given it in turn. All readers at the front of the
//!   queue get it at once.
//! - Who writes takes a free lock before those that wait, from Linux 3.9 on; a writer at the front of the queue is woken and tries
//!   again, and is the first in the queue again if another was faster. Up to 3.8 the lock is handed over.
//! - From 3.16 on a writer spins in the kernel while another writes, and a free lock goes to the one that has spun longest if
//!   that runs. Readers do not spin, and nobody spins for readers.
//!
//! Simplified: who writes where writers spin is not preempted by the guest, so a spinning writer never finds that the owner sleeps; one whose vCPU
//! the guest wants for another thread stays in the queue of those that spin.

use crate::scenario::MmLock;
use crate::trace::ThreadState;

use super::code::OpOutcome;
use super::simulation::World;
use super::state::{Doing, KERNEL, MmWait, NONE, ObjectKind, Phase, Work};

impl World {
    /// How writers wait, if the object is the lock of an address space with readers.
    pub(crate) fn address_space(&self, object: u32) -> Option<MmLock> {
        match self.objects[object as usize].kind {
            ObjectKind::AddressSpace(how) => Some(how),
            _ => None,
        }
    }

    fn nobody_has(&self, mm: u32) -> bool {
        let object = &self.objects[mm as usize];
        object.owner == NONE && object.count == 0
    }

    /// Whether a thread that has not waited yet may have the lock now.
    fn may_have(&self, mm: u32, write: bool) -> bool {
        let object = &self.objects[mm as usize];
        let nobody_waits = object.waiters.count == 0 && object.generation == 0;
        let steals = self.address_space(mm) != Some(MmLock::HandedOver);
        match write {
            true => self.nobody_has(mm) && (steals || nobody_waits),
            false => object.owner == NONE && nobody_waits,
        }
    }

    /// The thread has the lock.
    fn has_mm(&mut self, t: u32, mm: u32, write: bool) -> OpOutcome {
        let spins = self.address_space(mm) == Some(MmLock::Spinning);
        if write {
            self.objects[mm as usize].owner = t;
            self.threads[t as usize].no_preempt += u32::from(spins);
        } else {
            self.objects[mm as usize].count += 1;
        }
        OpOutcome::Next
    }

    /// Takes the lock, for writing or for reading, or waits for it.
    pub(crate) fn take_mm(&mut self, t: u32, v: u32, mm: u32, write: bool) -> OpOutcome {
        match self.threads[t as usize].phase {
            Phase::Start => {
                self.counts(v).locks += 1;
                self.owe(v, KERNEL, self.costs.lock_free);
                self.threads[t as usize].mm_wait =
                    if write { MmWait::Writer } else { MmWait::Reader };
                if self.may_have(mm, write) {
                    return self.has_mm(t, mm, write);
                }
                self.counts(v).contended += 1;
                let spins = self.address_space(mm) == Some(MmLock::Spinning);
                match write && spins && self.objects[mm as usize].owner != NONE {
                    true => self.spin_for_mm(t, mm),
                    false => self.enter_bucket(t, v, mm, false),
                }
            }
            Phase::Bucket => self.work_in_bucket(t, self.costs.futex_work),
            Phase::Held => {
                let was_woken = self.threads[t as usize].mm_wait == MmWait::WokenWriter;
                let object = &mut self.objects[mm as usize];
                object.generation -= u32::from(was_woken);
                let may = if was_woken { self.nobody_has(mm) } else { self.may_have(mm, write) };
                if may {
                    self.leave_bucket(t, v, mm);
                    return self.has_mm(t, mm, write);
                }
                if !was_woken {
                    return self.wait_on(t, v, mm, false);
                }
                self.threads[t as usize].mm_wait = MmWait::Writer;
                self.prepend(mm, t);
                self.blocks_in(t, v, mm)
            }
            // It was given the lock while it spun, or while it was blocked.
            Phase::Done => OpOutcome::Next,
            Phase::Woken if !write || self.objects[mm as usize].owner == t => OpOutcome::Next,
            Phase::Woken if self.nobody_has(mm) => {
                self.objects[mm as usize].generation -= 1;
                self.has_mm(t, mm, write)
            }
            Phase::Woken => self.enter_bucket(t, v, mm, false),
        }
    }

    /// Lets go of the lock, and wakes or lets go on whoever is to have it.
    pub(crate) fn leave_mm(&mut self, t: u32, v: u32, mm: u32, write: bool) -> OpOutcome {
        match self.threads[t as usize].phase {
            Phase::Start => {
                self.owe(v, KERNEL, self.costs.lock_free);
                let how = self.address_space(mm);
                let object = &mut self.objects[mm as usize];
                let waiters = object.waiters.count > 0;
                if !write {
                    object.count -= 1;
                } else if how != Some(MmLock::HandedOver) || !waiters {
                    // Else it is the thread's until it is handed over.
                    object.owner = NONE;
                }
                let wakes = waiters && object.generation == 0 && object.count == 0;
                if write && how == Some(MmLock::Spinning) {
                    self.threads[t as usize].no_preempt -= 1;
                }
                if self.nobody_has(mm) && self.mm_goes_to_spinner(mm) {
                    return OpOutcome::Next;
                }
                if wakes { self.enter_bucket(t, v, mm, false) } else { OpOutcome::Next }
            }
            Phase::Bucket => self.work_in_bucket(t, self.costs.futex_work),
            _ => {
                self.leave_bucket(t, v, mm);
                self.wake_for_mm(t, v, mm);
                OpOutcome::Next
            }
        }
    }

    /// The first of the queue are woken: a writer to try, or to have the lock; readers have it.
    fn wake_for_mm(&mut self, t: u32, v: u32, mm: u32) {
        let hands_over = self.address_space(mm) == Some(MmLock::HandedOver);
        let object = &mut self.objects[mm as usize];
        if hands_over && object.owner == t {
            object.owner = NONE;
        }
        let (first, tries) = (object.waiters.head, object.generation > 0);
        if first == NONE || tries || !self.nobody_has(mm) {
            return;
        }
        if self.threads[first as usize].mm_wait == MmWait::Writer {
            self.remove(mm, first, false);
            if hands_over {
                self.objects[mm as usize].owner = first;
            } else {
                self.objects[mm as usize].generation += 1;
                self.threads[first as usize].mm_wait = MmWait::WokenWriter;
            }
            self.wake(first, v, t);
            return;
        }
        loop {
            let first = self.objects[mm as usize].waiters.head;
            if first == NONE || self.threads[first as usize].mm_wait != MmWait::Reader {
                return;
            }
            self.remove(mm, first, false);
            self.objects[mm as usize].count += 1;
            self.wake(first, v, t);
        }
    }

    fn spin_for_mm(&mut self, t: u32, mm: u32) -> OpOutcome {
        self.append(mm, t, true);
        let thread = &mut self.threads[t as usize];
        thread.object = mm;
        thread.phase = Phase::Done;
        thread.doing = Doing::Spin(mm);
        thread.remaining = u64::MAX;
        thread.wait_since = self.now;
        let first = self.vms[self.threads[t as usize].vm as usize].first_object;
        self.thread_state(t, ThreadState::Spinning(Some(mm - first)));
        OpOutcome::Busy
    }

    /// The free lock goes to the writer that has spun longest, of those that their guest lets run, if it is on a pCPU.
    fn mm_goes_to_spinner(&mut self, mm: u32) -> bool {
        let mut at = self.objects[mm as usize].putters.head;
        while at != NONE && self.vcpus[self.threads[at as usize].vcpu as usize].thread != at {
            at = self.threads[at as usize].next;
        }
        if at == NONE || !self.is_spinning(at) {
            return false;
        }
        self.give_mm(mm, at);
        true
    }

    /// A writer that spun has the lock, and goes on as soon as it can.
    fn give_mm(&mut self, mm: u32, to: u32) {
        let on = self.threads[to as usize].vcpu;
        self.sync(on);
        self.remove(mm, to, true);
        self.has_mm(to, mm, true);
        self.owe(on, KERNEL, self.costs.lock_handoff);
        let thread = &mut self.threads[to as usize];
        thread.doing = Doing::Go;
        let (waited, vm) = (self.now - thread.wait_since, thread.vm);
        self.vms[vm as usize].lock_wait.add(waited);
        self.work.push(Work::Go(to));
    }

    /// A writer that spins is back on a pCPU: it may find the lock free. True if it has it now.
    pub(crate) fn retry_mm(&mut self, t: u32, mm: u32) -> bool {
        let free = self.nobody_has(mm);
        if free {
            self.give_mm(mm, t);
            // `give_mm` has put the thread on the list of work; the caller does that, too.
            self.work.pop();
        }
        free
    }
}
