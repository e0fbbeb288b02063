//! Invariants, checked while debug builds run and by property tests.
//!
//! - A pCPU's current vCPU is on no other pCPU.
//! - Under core scheduling, a core runs vCPUs of one VM.
//! - A thread is in exactly one place: current or queued on its vCPU, in one object's list, asleep or ended.
//! - A spin lock or mutex has at most one holder, which is a thread of its VM.
//! - CPU time is conserved: the vCPUs' run times sum to the pCPUs' busy times, and each pCPU's times to the elapsed time.
//! - The guest does not count a vCPU with a thread as idle, and the vCPU's tick is pending while it runs.
//! - A vCPU recorded as waiting for a pCPU is in that pCPU's queue, and not running.
//! - Time never goes back (checked in the event loop).
//!
//! Each check examines the whole world, so large worlds are checked rarely.

use crate::bits::has_bit;
use crate::trace::VcpuState;

use super::calendar::Event;
use super::simulation::World;
use super::state::{Doing, Idle, NONE, ObjectKind, PcpuState};

impl World {
    /// Called after every event of a debug build.
    pub(crate) fn check(&self) {
        let size = (self.threads.len() + self.vcpus.len()) as u64;
        if self.events.is_multiple_of(1 + size * size / 64)
            && let Err(broken) = self.check_all()
        {
            panic!("at {} ns, event {}: {broken}", self.now, self.events);
        }
    }

    /// Returns the first violated invariant as an error. For tests.
    #[doc(hidden)]
    pub fn check_all(&self) -> Result<(), String> {
        self.check_pcpus()?;
        self.check_threads()?;
        self.check_objects()?;
        self.check_waiting()?;
        self.check_time()
    }

    fn check_pcpus(&self) -> Result<(), String> {
        if let Some((p, q)) = self.mixed_core() {
            return Err(format!("pCPUs {p} and {q}, of one core, run two VMs"));
        }
        let mut on = vec![NONE; self.vcpus.len()];
        for (p, pcpu) in self.pcpus.iter().enumerate() {
            let v = pcpu.current;
            if v == NONE {
                continue;
            }
            if on[v as usize] != NONE {
                return Err(format!("vCPU {v} on pCPUs {} and {p}", on[v as usize]));
            }
            on[v as usize] = p as u32;
        }
        for (v, vcpu) in self.vcpus.iter().enumerate() {
            let is_on = on[v] != NONE;
            let should = self.is_on_pcpu(v as u32) || (self.native && is_on);
            if is_on != should {
                return Err(format!("vCPU {v} is {:?} but on {:?}", vcpu.state, on[v]));
            }
            if vcpu.state == VcpuState::Halted && vcpu.thread != NONE && !vcpu.pv_halted {
                return Err(format!("vCPU {v} halted with thread {}", vcpu.thread));
            }
            // A thread halted by a paravirtual lock keeps its vCPU.
            if vcpu.thread == NONE || vcpu.pv_halted {
                continue;
            }
            let vm = &self.vms[vcpu.vm as usize];
            if vcpu.idle != Idle::Busy || has_bit(&vm.idle, v as u32 - vm.first_vcpu) {
                return Err(format!(
                    "vCPU {v}, {:?}, is {:?} with thread {}",
                    vcpu.state, vcpu.idle, vcpu.thread
                ));
            }
            let has_tick = self.calendar.is_set(Event::GuestTick, v as u32);
            if vcpu.state == VcpuState::Running && !has_tick {
                return Err(format!("vCPU {v} runs thread {} without ticks", vcpu.thread));
            }
        }
        Ok(())
    }

    fn check_threads(&self) -> Result<(), String> {
        let mut places = vec![0u32; self.threads.len()];
        for (v, vcpu) in self.vcpus.iter().enumerate() {
            if vcpu.thread != NONE {
                places[vcpu.thread as usize] += 1;
                if self.threads[vcpu.thread as usize].vcpu != v as u32 {
                    return Err(format!("thread {} is not of vCPU {v}", vcpu.thread));
                }
            }
            for t in self.queued_threads(v as u32) {
                places[t as usize] += 1;
                if self.threads[t as usize].vcpu != v as u32 {
                    return Err(format!("thread {t} is queued on vCPU {v}, not its own"));
                }
            }
        }
        for (t, thread) in self.threads.iter().enumerate() {
            let started = self.vms[thread.vm as usize].started <= self.now
                && self.vms[thread.vm as usize].started != u64::MAX;
            let wanted = match thread.doing {
                Doing::Blocked | Doing::Ended => 0,
                _ if !started => 0,
                _ => 1,
            };
            if places[t] != wanted {
                return Err(format!(
                    "thread {t}, {:?}, is in {} places instead of {wanted}",
                    thread.doing, places[t]
                ));
            }
        }
        Ok(())
    }

    fn check_objects(&self) -> Result<(), String> {
        let mut waits = vec![0u32; self.threads.len()];
        for (o, object) in self.objects.iter().enumerate() {
            if object.owner != NONE
                && matches!(object.kind, ObjectKind::Spin { .. } | ObjectKind::Mutex { .. })
                && self.threads[object.owner as usize].vm != object.vm
            {
                return Err(format!("object {o} is held from another VM"));
            }
            for list in [object.waiters, object.putters] {
                let (mut at, mut count) = (list.head, 0);
                while at != NONE {
                    waits[at as usize] += 1;
                    count += 1;
                    at = self.threads[at as usize].next;
                    if count > list.count {
                        return Err(format!("object {o}'s list is longer than it says"));
                    }
                }
                if count != list.count {
                    return Err(format!("object {o} has {count} of {} waiters", list.count));
                }
            }
        }
        match waits.iter().position(|&lists| lists > 1) {
            Some(t) => Err(format!("thread {t} waits in {} lists", waits[t])),
            None => Ok(()),
        }
    }

    fn check_waiting(&self) -> Result<(), String> {
        let Some(recorder) = &self.waits else {
            return Ok(());
        };
        for (v, vcpu) in self.vcpus.iter().enumerate() {
            let waits = vcpu.state == VcpuState::Ready && vcpu.queued;
            let (is, should) = (recorder.states.waits_on(v as u32), waits.then_some(vcpu.pcpu));
            if is != should {
                return Err(format!("vCPU {v} waits for {should:?} and is recorded for {is:?}"));
            }
        }
        Ok(())
    }

    fn check_time(&self) -> Result<(), String> {
        let vcpus: u64 = self.vcpus.iter().map(|vcpu| vcpu.results.ran.total().0).sum();
        let running: u64 = self
            .vcpus
            .iter()
            .filter(|vcpu| vcpu.state == VcpuState::Running)
            .map(|vcpu| self.now - vcpu.synced)
            .sum();
        let busy: u64 = self
            .pcpus
            .iter()
            .map(|pcpu| {
                let open = match pcpu.state {
                    PcpuState::Busy => self.now - pcpu.since,
                    PcpuState::Idle | PcpuState::Polling => 0,
                };
                pcpu.results.busy.0 + open
            })
            .sum();
        if vcpus + running != busy {
            return Err(format!("vCPUs ran {} ns, pCPUs were busy {busy} ns", vcpus + running));
        }
        let elapsed = self.now - self.measured_from;
        for (p, pcpu) in self.pcpus.iter().enumerate() {
            let counted = pcpu.results.busy + pcpu.results.idle + pcpu.results.polling;
            let open = self.now - pcpu.since;
            if counted.0 + open != elapsed {
                return Err(format!("pCPU {p} has {} of {elapsed} ns", counted.0 + open));
            }
        }
        Ok(())
    }
}
