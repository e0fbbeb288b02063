//! The lock of an address space with readers (`mm_readers`).
//!
//! Page faults and madvise(MADV_DONTNEED) take the lock for reading: many at a time, even while they flush TLBs.
//! Mapping and unmapping take it for writing.
//! The lock is the kernel's rw_semaphore (kernel/locking/rwsem-xadd.c):
//!
//! - A reader takes the lock if it has neither a writer nor waiters.
//!   Otherwise it blocks and gets the lock in queue order, together with all readers at the front of the queue.
//! - From Linux 3.9 on, a writer takes a free lock ahead of the waiters.
//!   A writer at the front of the queue is woken and tries again; if it fails, it returns to the front.
//!   Up to 3.8, the lock is handed over.
//! - From 3.16 on, a writer spins in the kernel while another writer holds the lock.
//!   A free lock goes to the longest spinner if that is on a pCPU.
//!   Readers do not spin, and writers do not spin for readers.
//!
//! Simplified: where writers spin, the guest does not preempt the holder, so a spinning writer never finds its owner asleep.
//! A spinning writer that the guest preempts stays in the queue of spinners.

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

    /// Whether the lock has neither a writer nor readers.
    fn is_free(&self, mm: u32) -> bool {
        let object = &self.objects[mm as usize];
        object.owner == NONE && object.count == 0
    }

    /// Whether a thread that has not waited yet may take the lock now.
    fn may_take(&self, mm: u32, write: bool) -> bool {
        let object = &self.objects[mm as usize];
        let no_waiters = object.waiters.count == 0 && object.generation == 0;
        let steals = self.address_space(mm) != Some(MmLock::HandedOver);
        if write {
            self.is_free(mm) && (steals || no_waiters)
        } else {
            object.owner == NONE && no_waiters
        }
    }

    /// Makes the thread a holder of the lock.
    fn acquire_mm(&mut self, t: u32, mm: u32, write: bool) -> OpOutcome {
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
                if self.may_take(mm, write) {
                    return self.acquire_mm(t, mm, write);
                }
                self.counts(v).contended += 1;
                let spins = self.address_space(mm) == Some(MmLock::Spinning);
                if write && spins && self.objects[mm as usize].owner != NONE {
                    self.spin_for_mm(t, mm)
                } else {
                    self.enter_bucket(t, v, mm, false)
                }
            }
            Phase::Bucket => self.work_in_bucket(t, self.costs.futex_work),
            Phase::Held => {
                let was_woken = self.threads[t as usize].mm_wait == MmWait::WokenWriter;
                let object = &mut self.objects[mm as usize];
                object.generation -= u32::from(was_woken);
                let may = if was_woken { self.is_free(mm) } else { self.may_take(mm, write) };
                if may {
                    self.leave_bucket(t, v, mm);
                    return self.acquire_mm(t, mm, write);
                }
                if !was_woken {
                    return self.wait_on(t, v, mm, false);
                }
                self.threads[t as usize].mm_wait = MmWait::Writer;
                self.prepend(mm, t);
                self.blocks_in(t, v, mm)
            }
            // The lock was granted while the thread spun or was blocked.
            Phase::Done => OpOutcome::Next,
            Phase::Woken if !write || self.objects[mm as usize].owner == t => OpOutcome::Next,
            Phase::Woken if self.is_free(mm) => {
                self.objects[mm as usize].generation -= 1;
                self.acquire_mm(t, mm, write)
            }
            Phase::Woken => self.enter_bucket(t, v, mm, false),
        }
    }

    /// Releases the lock, and passes it to a spinner or wakes the next waiters.
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
                    // Otherwise the thread owns the lock until the hand-over.
                    object.owner = NONE;
                }
                let wakes = waiters && object.generation == 0 && object.count == 0;
                if write && how == Some(MmLock::Spinning) {
                    self.threads[t as usize].no_preempt -= 1;
                }
                if self.is_free(mm) && self.mm_goes_to_spinner(mm) {
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

    /// Wakes the front of the queue: a writer, which tries again or owns the lock at once, or all leading readers, which own it.
    fn wake_for_mm(&mut self, t: u32, v: u32, mm: u32) {
        let hands_over = self.address_space(mm) == Some(MmLock::HandedOver);
        let object = &mut self.objects[mm as usize];
        if hands_over && object.owner == t {
            object.owner = NONE;
        }
        let (first, tries) = (object.waiters.head, object.generation > 0);
        if first == NONE || tries || !self.is_free(mm) {
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

    /// Grants the free lock to the longest spinner among the threads that are current in the guest, if that is on a pCPU.
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

    /// Grants the lock to a spinning writer, which continues as soon as it runs.
    fn give_mm(&mut self, mm: u32, to: u32) {
        let on = self.threads[to as usize].vcpu;
        self.sync(on);
        self.remove(mm, to, true);
        self.acquire_mm(to, mm, true);
        self.owe(on, KERNEL, self.costs.lock_handoff);
        let thread = &mut self.threads[to as usize];
        thread.doing = Doing::Go;
        let (waited, vm) = (self.now - thread.wait_since, thread.vm);
        self.vms[vm as usize].lock_wait.add(waited);
        self.work.push(Work::Go(to));
    }

    /// A spinning writer is back on a pCPU and takes the lock if that is free; returns whether it did.
    pub(crate) fn retry_mm(&mut self, t: u32, mm: u32) -> bool {
        let free = self.is_free(mm);
        if free {
            self.give_mm(mm, t);
            // `give_mm` has queued the thread as work, and so does the caller.
            self.work.pop();
        }
        free
    }
}
