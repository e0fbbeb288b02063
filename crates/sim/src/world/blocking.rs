//! Primitives that block: futex mutex, condition variable, barrier, semaphore, bounded queue.
//!
//! Each has a fast path in user space.
//! The slow path follows kernel/futex: take the spin lock of the hash bucket, check again, queue the thread or wake others, release the lock, and block.
//! Blocking programs are therefore subject to lock-holder preemption: others spin while a preempted vCPU holds the bucket's lock.
//! A queue is a pipe: it is always in the kernel, under a lock of its own.
//!
//! A mutex is not handed over: the woken thread tries again, and another may have come first.
//! The lock of an address space is handed over in old kernels.
//! A thread woken from a condition takes the mutex again.
//! At a barrier made of a mutex and a condition variable, waiters are moved to the mutex (FUTEX_CMP_REQUEUE of glibc up to 2.24).
//! Each woken waiter then wakes the next.

use crate::trace::ThreadState;
use crate::workload::{Spin, Wake};

use super::code::{Family, OpOutcome};
use super::simulation::World;
use super::state::{Doing, KERNEL, NONE, ObjectKind, Phase};

impl World {
    /// Enters the kernel and takes the bucket's lock.
    pub(super) fn enter_bucket(&mut self, t: u32, v: u32, object: u32, syscall: bool) -> OpOutcome {
        if syscall {
            self.owe(v, KERNEL, self.costs.syscall);
        }
        let bucket = self.objects[object as usize].bucket;
        let flow = self.spin_lock(t, v, bucket);
        let thread = &mut self.threads[t as usize];
        thread.object = object;
        thread.phase = Phase::Bucket;
        flow
    }

    /// Works for `time` ns under the bucket's lock, which the thread holds.
    pub(super) fn work_in_bucket(&mut self, t: u32, time: u64) -> OpOutcome {
        let thread = &mut self.threads[t as usize];
        thread.remaining = time;
        thread.doing = Doing::Hold;
        OpOutcome::Busy
    }

    pub(super) fn leave_bucket(&mut self, t: u32, v: u32, object: u32) {
        let bucket = self.objects[object as usize].bucket;
        self.spin_unlock(t, v, bucket);
    }

    /// Queues the thread on the object and blocks it. The bucket's lock is still held here.
    pub(super) fn wait_on(&mut self, t: u32, v: u32, object: u32, putter: bool) -> OpOutcome {
        self.append(object, t, putter);
        self.blocks_in(t, v, object)
    }

    /// Blocks a thread that is queued on the object, whose bucket's lock is still held.
    pub(super) fn blocks_in(&mut self, t: u32, v: u32, object: u32) -> OpOutcome {
        self.leave_bucket(t, v, object);
        self.threads[t as usize].phase = Phase::Woken;
        let first = self.vms[self.threads[t as usize].vm as usize].first_object;
        self.block(t, v, ThreadState::Blocked(object - first));
        OpOutcome::Left
    }

    /// Wakes the longest waiter, if there is one.
    fn wake_one(&mut self, t: u32, v: u32, object: u32, putter: bool) -> bool {
        match self.pop_waiter(object, putter) {
            Some(waiter) => {
                self.wake(waiter, v, t);
                true
            }
            None => false,
        }
    }

    pub(crate) fn mutex_lock(&mut self, t: u32, v: u32, family: Family) -> OpOutcome {
        if self.threads[t as usize].phase == Phase::Start {
            self.threads[t as usize].object = self.threads[t as usize].pick(family);
        }
        let mutex = self.threads[t as usize].object;
        let flow = self.take_mutex(t, v, mutex);
        if flow == OpOutcome::Next {
            self.threads[t as usize].hold(mutex);
        }
        flow
    }

    /// Takes a mutex, or the next step towards it.
    fn take_mutex(&mut self, t: u32, v: u32, mutex: u32) -> OpOutcome {
        let is_free = self.objects[mutex as usize].owner == NONE;
        match self.threads[t as usize].phase {
            // The previous owner handed it over.
            Phase::Woken if self.objects[mutex as usize].owner == t => OpOutcome::Next,
            Phase::Bucket => self.work_in_bucket(t, self.costs.futex_work),
            Phase::Held if !is_free => self.wait_on(t, v, mutex, false),
            Phase::Held => {
                self.leave_bucket(t, v, mutex);
                self.objects[mutex as usize].owner = t;
                OpOutcome::Next
            }
            Phase::Start | Phase::Woken | Phase::Done if is_free => {
                self.owe(v, KERNEL, self.costs.lock_free);
                self.objects[mutex as usize].owner = t;
                OpOutcome::Next
            }
            Phase::Start | Phase::Woken | Phase::Done => self.enter_bucket(t, v, mutex, true),
        }
    }

    fn is_fair(&self, mutex: u32) -> bool {
        self.objects[mutex as usize].kind == ObjectKind::Mutex { fair: true }
    }

    pub(crate) fn mutex_unlock(&mut self, t: u32, v: u32, family: Family) -> OpOutcome {
        match self.threads[t as usize].phase {
            Phase::Start => {
                let Some(mutex) = self.threads[t as usize].unhold(family) else {
                    return OpOutcome::Next;
                };
                self.threads[t as usize].object = mutex;
                self.owe(v, KERNEL, self.costs.lock_free);
                let has_waiters = self.objects[mutex as usize].waiters.count > 0;
                if !(has_waiters && self.is_fair(mutex)) {
                    self.objects[mutex as usize].owner = NONE;
                }
                if has_waiters { self.enter_bucket(t, v, mutex, true) } else { OpOutcome::Next }
            }
            Phase::Bucket => self.work_in_bucket(t, self.costs.futex_work),
            _ => {
                let mutex = self.threads[t as usize].object;
                self.leave_bucket(t, v, mutex);
                if self.is_fair(mutex) {
                    self.objects[mutex as usize].owner = self.objects[mutex as usize].waiters.head;
                }
                self.wake_one(t, v, mutex, false);
                OpOutcome::Next
            }
        }
    }

    pub(crate) fn wait(&mut self, t: u32, v: u32, condition: Family, mutex: Family) -> OpOutcome {
        match self.threads[t as usize].phase {
            Phase::Start => {
                let condition = self.threads[t as usize].pick(condition);
                let Some(held) = self.threads[t as usize].unhold(mutex) else {
                    return OpOutcome::Next;
                };
                self.threads[t as usize].relock = held;
                self.enter_bucket(t, v, condition, true)
            }
            _ if self.threads[t as usize].object == self.threads[t as usize].relock => {
                self.relock(t, v)
            }
            Phase::Bucket => self.work_in_bucket(t, self.costs.futex_work),
            Phase::Held => {
                // Queue on the condition before releasing the mutex, so that no signal is lost.
                let (condition, mutex) = {
                    let thread = &self.threads[t as usize];
                    (thread.object, thread.relock)
                };
                self.objects[mutex as usize].owner = NONE;
                if self.objects[mutex as usize].waiters.count > 0 {
                    self.owe(v, KERNEL, self.costs.futex_work);
                    self.wake_one(t, v, mutex, false);
                }
                self.wait_on(t, v, condition, false)
            }
            Phase::Woken | Phase::Done => {
                let thread = &mut self.threads[t as usize];
                thread.object = thread.relock;
                self.relock(t, v)
            }
        }
    }

    fn relock(&mut self, t: u32, v: u32) -> OpOutcome {
        let mutex = self.threads[t as usize].relock;
        let flow = self.take_mutex(t, v, mutex);
        if flow == OpOutcome::Next {
            self.threads[t as usize].hold(mutex);
        }
        flow
    }

    pub(crate) fn signal(&mut self, t: u32, v: u32, family: Family, all: bool) -> OpOutcome {
        match self.threads[t as usize].phase {
            Phase::Start => {
                let condition = self.threads[t as usize].pick(family);
                self.owe(v, KERNEL, self.costs.lock_free);
                if self.objects[condition as usize].waiters.count == 0 {
                    return OpOutcome::Next;
                }
                self.enter_bucket(t, v, condition, true)
            }
            Phase::Bucket => {
                let condition = self.threads[t as usize].object;
                let woken = if all {
                    u64::from(self.objects[condition as usize].waiters.count).max(1)
                } else {
                    1
                };
                self.work_in_bucket(t, self.costs.futex_work * woken)
            }
            _ => {
                let condition = self.threads[t as usize].object;
                self.leave_bucket(t, v, condition);
                while self.wake_one(t, v, condition, false) && all {}
                OpOutcome::Next
            }
        }
    }

    /// A thread arrives at a barrier; returns whether it is the last.
    fn arrive(&mut self, t: u32, v: u32, barrier: u32) -> bool {
        self.owe(v, KERNEL, self.costs.lock_free);
        let object = &mut self.objects[barrier as usize];
        let ObjectKind::Barrier { parties, .. } = object.kind else {
            return true;
        };
        self.threads[t as usize].generation = object.generation;
        object.count += 1;
        if object.count < parties {
            return false;
        }
        object.count = 0;
        object.generation = object.generation.wrapping_add(1);
        true
    }

    /// A thread at a barrier spins in user space for a time, then blocks; the last one to arrive releases all.
    pub(crate) fn barrier(&mut self, t: u32, v: u32, family: Family) -> OpOutcome {
        let barrier = match self.threads[t as usize].phase {
            Phase::Start => self.threads[t as usize].pick(family),
            _ => self.threads[t as usize].object,
        };
        let ObjectKind::Barrier { spin, wake, .. } = self.objects[barrier as usize].kind else {
            return OpOutcome::Next;
        };
        match self.threads[t as usize].phase {
            Phase::Start => {
                let last = self.arrive(t, v, barrier);
                match (last, spin) {
                    (true, _) => {
                        self.release_spinners(barrier, v);
                        match self.objects[barrier as usize].waiters.count {
                            0 => OpOutcome::Next,
                            _ => self.enter_bucket(t, v, barrier, true),
                        }
                    }
                    (false, Spin::Never) => self.enter_bucket(t, v, barrier, true),
                    (false, Spin::For(time)) => self.spin_at(t, barrier, time),
                    (false, Spin::Forever) => self.spin_at(t, barrier, u64::MAX),
                }
            }
            Phase::Done if self.is_passed(t, barrier) => OpOutcome::Next,
            // The spin timed out.
            Phase::Done => self.enter_bucket(t, v, barrier, true),
            Phase::Bucket => {
                let woken = match (self.is_passed(t, barrier), wake) {
                    (true, Wake::All) => u64::from(self.objects[barrier as usize].waiters.count),
                    _ => 1,
                };
                self.work_in_bucket(t, self.costs.futex_work * woken.max(1))
            }
            Phase::Held => {
                if !self.is_passed(t, barrier) {
                    return self.wait_on(t, v, barrier, false);
                }
                self.leave_bucket(t, v, barrier);
                while self.has_passed_waiter(barrier) {
                    self.wake_one(t, v, barrier, false);
                    if wake == Wake::OneByOne {
                        break;
                    }
                }
                OpOutcome::Next
            }
            Phase::Woken if wake == Wake::OneByOne && self.has_passed_waiter(barrier) => {
                self.enter_bucket(t, v, barrier, true)
            }
            Phase::Woken => OpOutcome::Next,
        }
    }

    fn spin_at(&mut self, t: u32, barrier: u32, time: u64) -> OpOutcome {
        let thread = &mut self.threads[t as usize];
        thread.phase = Phase::Done;
        thread.doing = Doing::SpinUser(barrier);
        thread.remaining = time;
        thread.object = barrier;
        thread.wait_since = self.now;
        self.append(barrier, t, true);
        self.begin_sibling_wait(self.threads[t as usize].vcpu, t);
        let first = self.vms[self.threads[t as usize].vm as usize].first_object;
        self.thread_state(t, ThreadState::Spinning(Some(barrier - first)));
        OpOutcome::Busy
    }

    /// All have arrived: releases the spinners, each of which continues as soon as it runs.
    fn release_spinners(&mut self, barrier: u32, by: u32) {
        while self.release_spinner(barrier, by) {}
    }

    /// Releases the longest spinner, which continues as soon as it runs; returns false without spinners.
    fn release_spinner(&mut self, object: u32, by: u32) -> bool {
        let Some(waiter) = self.pop_waiter(object, true) else {
            return false;
        };
        let on = self.threads[waiter as usize].vcpu;
        if self.vcpus[on as usize].thread == waiter {
            self.sync(on);
            self.owe(on, KERNEL, self.costs.lock_handoff);
        }
        self.spinning_ends(waiter, by);
        self.threads[waiter as usize].doing = Doing::Go;
        self.work.push(super::state::Work::Go(waiter));
        true
    }

    /// Whether the longest waiter belongs to the round that is over; newer waiters belong to the next.
    fn has_passed_waiter(&self, barrier: u32) -> bool {
        self.first_waiter(barrier).is_some_and(|first| self.is_passed(first, barrier))
    }

    fn first_waiter(&self, object: u32) -> Option<u32> {
        let head = self.objects[object as usize].waiters.head;
        (head != NONE).then_some(head)
    }

    /// Whether all parties have arrived since the thread did.
    fn is_passed(&self, t: u32, barrier: u32) -> bool {
        self.threads[t as usize].generation != self.objects[barrier as usize].generation
    }

    pub(crate) fn acquire(&mut self, t: u32, v: u32, family: Family) -> OpOutcome {
        if self.threads[t as usize].phase == Phase::Start {
            self.threads[t as usize].object = self.threads[t as usize].pick(family);
        }
        let semaphore = self.threads[t as usize].object;
        let units = self.objects[semaphore as usize].count;
        match self.threads[t as usize].phase {
            Phase::Bucket => self.work_in_bucket(t, self.costs.futex_work),
            Phase::Held if units == 0 => self.wait_on(t, v, semaphore, false),
            Phase::Held => {
                self.leave_bucket(t, v, semaphore);
                self.objects[semaphore as usize].count -= 1;
                OpOutcome::Next
            }
            // The thread spun until it received a unit.
            Phase::Done => OpOutcome::Next,
            _ if units > 0 => {
                self.owe(v, KERNEL, self.costs.lock_free);
                self.objects[semaphore as usize].count -= 1;
                OpOutcome::Next
            }
            _ if self.objects[semaphore as usize].kind
                == (ObjectKind::Semaphore { spin: true }) =>
            {
                self.spin_at(t, semaphore, u64::MAX)
            }
            _ => self.enter_bucket(t, v, semaphore, true),
        }
    }

    pub(crate) fn release(&mut self, t: u32, v: u32, family: Family) -> OpOutcome {
        match self.threads[t as usize].phase {
            Phase::Start => {
                let semaphore = self.threads[t as usize].pick(family);
                self.owe(v, KERNEL, self.costs.lock_free);
                if self.release_spinner(semaphore, v) {
                    return OpOutcome::Next;
                }
                let object = &mut self.objects[semaphore as usize];
                object.count += 1;
                if object.waiters.count == 0 {
                    return OpOutcome::Next;
                }
                self.enter_bucket(t, v, semaphore, true)
            }
            Phase::Bucket => self.work_in_bucket(t, self.costs.futex_work),
            _ => {
                let semaphore = self.threads[t as usize].object;
                self.leave_bucket(t, v, semaphore);
                self.wake_one(t, v, semaphore, false);
                OpOutcome::Next
            }
        }
    }

    pub(crate) fn queue_operation(
        &mut self,
        t: u32,
        v: u32,
        family: Family,
        put: bool,
    ) -> OpOutcome {
        if self.threads[t as usize].phase == Phase::Start {
            self.threads[t as usize].object = self.threads[t as usize].pick(family);
        }
        let queue = self.threads[t as usize].object;
        match self.threads[t as usize].phase {
            Phase::Start => self.enter_bucket(t, v, queue, true),
            // Woken within the system call.
            Phase::Woken | Phase::Done => self.enter_bucket(t, v, queue, false),
            Phase::Bucket => self.work_in_bucket(t, self.costs.queue_work),
            Phase::Held => {
                let object = &mut self.objects[queue as usize];
                let ObjectKind::Queue { capacity } = object.kind else {
                    return OpOutcome::Next;
                };
                let possible = if put { object.count < capacity } else { object.count > 0 };
                if !possible {
                    return self.wait_on(t, v, queue, put);
                }
                if put {
                    object.count += 1;
                } else {
                    object.count -= 1;
                }
                self.leave_bucket(t, v, queue);
                self.wake_one(t, v, queue, !put);
                OpOutcome::Next
            }
        }
    }
}
