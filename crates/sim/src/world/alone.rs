//! Operations that concern only a thread and its vCPU: computing, loops, units of work, and free spin locks without waiters.
//!
//! Most operations are of this kind.
//! A row of them is done with one lookup of the thread and its vCPU.
//! The end of a computation is planned at once if no other event of the vCPU may come before it.
//! Any other operation ends the row: `program` does it and returns here.

use crate::trace::VcpuState;
use crate::workload::Pick;

use super::calendar::Event;
use super::code::{Family, Instr, Turns};
use super::simulation::World;
use super::state::{Doing, KERNEL, NONE, Phase, Thread};

/// Why a row of operations ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowEnd {
    /// The thread computes, and the end of that is planned.
    Planned,
    /// The thread computes, and the caller must plan the vCPU.
    Busy,
    /// The guest wants the vCPU for another thread.
    Preempted,
    /// The next operation involves other threads or vCPUs.
    Concerns,
    /// The next operation takes this spin lock, which is held or has waiters.
    Takes(u32),
    /// The thread releases this spin lock, which has waiters.
    Releases(u32),
    /// The limit of operations at one instant is reached.
    Enough,
}

impl World {
    /// Runs local operations of the current thread of a running vCPU; `operations` is the remaining number, and counts down.
    #[inline]
    pub(super) fn go_alone(&mut self, t: u32, v: u32, operations: &mut u32) -> RowEnd {
        let code = self.code.as_slice();
        let thread = &mut self.threads[t as usize];
        let vcpu = &mut self.vcpus[v as usize];
        while *operations > 0 {
            match &code[thread.pc as usize] {
                Instr::Compute { time } => {
                    // In any other phase the computation was interrupted or has ended.
                    if thread.phase == Phase::Start {
                        thread.remaining = time.draw(&mut thread.random);
                        if vcpu.slower_percent > 0 {
                            let percent = 100 + vcpu.slower_percent;
                            thread.remaining = thread.remaining.saturating_mul(percent) / 100;
                        }
                    }
                    if thread.remaining > 0 {
                        thread.phase = Phase::Done;
                        thread.doing = Doing::Compute;
                        let is_only_this = vcpu.state == VcpuState::Running
                            && !vcpu.cold
                            && vcpu.search == NONE
                            && self.smt.is_none()
                            && vcpu.answers.is_empty();
                        if !is_only_this {
                            return RowEnd::Busy;
                        }
                        debug_assert_eq!(vcpu.synced, self.now, "planned before it was counted");
                        let end = self.now + vcpu.owed() + thread.remaining;
                        self.calendar.set(Event::Execution, v, end);
                        return RowEnd::Planned;
                    }
                }
                Instr::SpinLock(family) => {
                    if thread.phase == Phase::Start {
                        let lock = thread.pick(*family);
                        let object = &mut self.objects[lock as usize];
                        if object.owner != NONE || object.waiters.count > 0 {
                            return RowEnd::Takes(lock);
                        }
                        object.owner = t;
                        thread.object = lock;
                        thread.no_preempt += u32::from(object.kind.is_of_kernel());
                        vcpu.owed[KERNEL] += self.costs.lock_free;
                        self.vms[vcpu.vm as usize].counts.locks += 1;
                    }
                    thread.hold(thread.object);
                }
                Instr::SpinUnlock(family) => {
                    if let Some(lock) = thread.unhold(*family) {
                        let object = &mut self.objects[lock as usize];
                        debug_assert_eq!(object.owner, t, "not the holder");
                        if object.waiters.count > 0 {
                            return RowEnd::Releases(lock);
                        }
                        object.owner = NONE;
                        thread.no_preempt -= u32::from(object.kind.is_of_kernel());
                        vcpu.owed[KERNEL] += self.costs.lock_free;
                    }
                }
                Instr::Loop { turns, end, depth } => {
                    if *turns != Turns::Endless {
                        let done = &mut thread.loops[*depth as usize];
                        if turns.are_over(*done, thread.number) {
                            *done = 0;
                            thread.pc = *end;
                            *operations -= 1;
                            continue;
                        }
                        *done += 1;
                    }
                }
                Instr::Again { begin } => {
                    thread.pc = *begin;
                    *operations -= 1;
                    continue;
                }
                Instr::Request => {
                    // A request that did not wait starts now.
                    thread.request =
                        std::mem::replace(&mut thread.ready_at, u64::MAX).min(self.now);
                }
                Instr::Work => {
                    thread.work += 1;
                    if thread.request != u64::MAX {
                        let came = std::mem::replace(&mut thread.request, u64::MAX);
                        self.vms[vcpu.vm as usize].request_time.add(self.now - came);
                    }
                }
                _ => return RowEnd::Concerns,
            }
            *operations -= 1;
            thread.pc += 1;
            thread.phase = Phase::Start;
            if vcpu.need_resched && thread.no_preempt == 0 {
                thread.doing = Doing::Go;
                return RowEnd::Preempted;
            }
        }
        RowEnd::Enough
    }
}

impl Thread {
    /// Picks an object of the family.
    #[inline]
    pub fn pick(&mut self, family: Family) -> u32 {
        family.first
            + match family.pick {
                Pick::Fixed(which) => which.min(family.count - 1),
                Pick::Random | Pick::Peer => self.random.below(family.count),
                Pick::Own => self.number % family.count,
                Pick::Next => (self.number + 1) % family.count,
            }
    }

    /// Remembers a lock taken.
    #[inline]
    pub fn hold(&mut self, lock: u32) {
        if let Some(place) = self.held.get_mut(self.held_count as usize) {
            *place = lock;
            self.held_count += 1;
        }
    }

    /// Forgets the most recently taken lock of the family, and returns it.
    #[inline]
    pub fn unhold(&mut self, family: Family) -> Option<u32> {
        let held = &mut self.held[..self.held_count as usize];
        let is_meant = |lock: u32| lock.wrapping_sub(family.first) < family.count;
        // Fast path: the most recent lock of all.
        let lock = match held.last() {
            Some(&lock) if is_meant(lock) => lock,
            _ => {
                let at = held.iter().rposition(|&lock| is_meant(lock))?;
                let lock = held[at];
                held.copy_within(at + 1.., at);
                lock
            }
        };
        self.held_count -= 1;
        Some(lock)
    }
}
