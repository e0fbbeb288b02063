//! TLB shootdowns: a vCPU asks the others to flush and waits for all answers.
//!
//! By IPI (kernel/smp.c, smp_call_function_many_cond), it asks every other vCPU of the VM that runs a thread.
//! A preempted vCPU answers when it is back on a pCPU, and the asker spins until then with preemption off.
//! Idle vCPUs are left out (lazy TLB).
//! Before Linux 4.20, the first flush since a vCPU became idle asks it too, even if it has halted.
//! With upstream's paravirtual flush (arch/x86/kernel/kvm.c, kvm_flush_tlb_multi), preempted vCPUs are only marked.
//!
//! With Tandem's hypercall, the asker exits once.
//! The hypervisor interrupts the pCPUs on which vCPUs of the VM run, with its own IPIs.
//! Every other vCPU is flushed before it runs again, and the asker does not wait for it.
//!
//! All threads of a VM belong to one process.

use crate::scenario::{Apic, IdleTlb, TlbFlush};
use crate::trace::{ExitReason, IpiKind, ThreadState, VcpuState};

use super::code::OpOutcome;
use super::simulation::World;
use super::state::{Doing, EXITS, Idle, KERNEL, Message, NONE, Phase, Work};

impl World {
    /// The flush operation: asks the other vCPUs, then waits.
    pub(crate) fn flush(&mut self, t: u32, v: u32) -> OpOutcome {
        if self.threads[t as usize].phase == Phase::Done {
            return OpOutcome::Next;
        }
        let vm = &self.vms[self.vcpus[v as usize].vm as usize];
        let (first, size, how) = (vm.first_vcpu, vm.vcpus, vm.guest.tlb);
        let asks_idle = vm.guest.idle_tlb == IdleTlb::Asked;
        let apic =
            if self.native || how == TlbFlush::Hypercall { Apic::Cluster } else { vm.guest.apic };
        let at_once = apic.receivers(size);
        self.owe(v, KERNEL, self.costs.tlb_flush);
        self.counts(v).shootdowns += 1;
        if how == TlbFlush::Hypercall {
            self.exit(v, ExitReason::Hypercall, self.costs.vm_exit);
        }
        let (mut asked, mut last) = (0, NONE);
        for to in first..first + size {
            let vcpu = &mut self.vcpus[to as usize];
            if to == v || (vcpu.thread == NONE && !(asks_idle && vcpu.has_tlb)) {
                continue;
            }
            vcpu.has_tlb = vcpu.thread != NONE;
            if how != TlbFlush::Ipi && vcpu.state != VcpuState::Running {
                vcpu.flush_on_entry = true;
                continue;
            }
            if asked % at_once == 0 {
                match how {
                    TlbFlush::Hypercall => self.owe(v, EXITS, self.costs.native_ipi_send),
                    TlbFlush::Ipi | TlbFlush::Paravirtual => self.pay_for_sending(v),
                }
            }
            asked += 1;
            last = to;
            self.counts(v).shootdown_ipis += 1;
            self.flush_asked(v, to);
            self.send(Message { from: v, to, kind: IpiKind::Shootdown, sent: self.now, thread: t });
        }
        if how != TlbFlush::Hypercall && (at_once == 1 || asked % at_once == 1) && last != NONE {
            // The last write reached a single vCPU.
            self.track_ipi(v, last);
        }
        let thread = &mut self.threads[t as usize];
        thread.phase = Phase::Done;
        thread.answers_left = asked;
        thread.wait_since = self.now;
        if asked == 0 {
            return OpOutcome::Again;
        }
        thread.doing = Doing::FlushWait;
        self.thread_state(t, ThreadState::Spinning(None));
        self.begin_sibling_wait(v, t);
        OpOutcome::Busy
    }

    /// Whether the VM of a vCPU flushes by Tandem's hypercall.
    pub(crate) fn flushes_by_hypercall(&self, v: u32) -> bool {
        let vm = self.vcpus[v as usize].vm;
        self.vms[vm as usize].guest.tlb == TlbFlush::Hypercall
    }

    /// A running vCPU begins a flush for a waiting thread, and answers when it has paid for it.
    pub(crate) fn begin_flush(&mut self, v: u32, thread: u32, sent: u64) {
        self.owe(v, KERNEL, self.costs.tlb_flush);
        self.ipi_ended(self.threads[thread as usize].vcpu, v);
        self.vcpus[v as usize].answers.push((thread, sent));
    }

    /// A physical IPI for a flush arrives at a pCPU that no longer runs the target vCPU.
    pub(crate) fn flush_came_late(&mut self, v: u32, thread: u32, sent: u64) {
        self.vcpus[v as usize].flush_on_entry = true;
        self.answered(v, thread, sent);
    }

    /// One of the vCPUs that a thread waits for has flushed.
    fn answered(&mut self, v: u32, t: u32, sent: u64) {
        let asker = self.threads[t as usize].vcpu;
        self.ipi_done(asker, v, IpiKind::Shootdown, sent);
        self.flush_answered(asker, v, sent);
        let thread = &mut self.threads[t as usize];
        thread.answers_left -= 1;
        if thread.answers_left > 0 {
            return;
        }
        let (vm, waited) = (thread.vm, self.now - thread.wait_since);
        self.vms[vm as usize].shootdown_latency.add(waited);
        self.sync(asker);
        self.spinning_ends(t, v);
        self.threads[t as usize].doing = Doing::Go;
        self.work.push(Work::Go(t));
    }

    /// Answers all flushes of a vCPU, which are done.
    pub(crate) fn answer_flushes(&mut self, v: u32) {
        while let Some((t, sent)) = self.vcpus[v as usize].answers.pop() {
            self.answered(v, t, sent);
        }
        // A vCPU woken only for the flush halts again.
        let vcpu = &self.vcpus[v as usize];
        if vcpu.thread == NONE && vcpu.idle == Idle::Halted && !vcpu.need_resched {
            self.begin_halt(v);
        }
    }
}
