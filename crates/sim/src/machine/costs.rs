//! What things cost: one table of integers, each with its source, in `costs.toml` beside this file.
//!
//! A scenario may override single keys. In native mode everything that a hypervisor does costs
//! nothing (see [`Costs::native`]).

use serde::{Deserialize, Serialize};

/// The table as it stands in the source tree.
pub const TABLE: &str = include_str!("costs.toml");

/// Costs in ns unless the name says otherwise; see [`TABLE`] for sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Clock of a pCPU in cycles per µs.
    pub cycles_per_us: u64,
    /// A light exit, its handling and the entry.
    pub vm_exit: u64,
    /// HLT: exit and getting off the pCPU.
    pub halt_exit: u64,
    /// A halted vCPU's thread is woken: wake-up, schedule in, entry.
    pub halt_wake: u64,
    /// The same while the host still polled.
    pub halt_poll_wake: u64,
    /// So much more where the vCPU's pCPU was idle when it was woken.
    pub idle_pcpu_wake: u64,
    /// Interrupt command register write: exit and emulation.
    pub ipi_send_exit: u64,
    /// An interrupt for a running vCPU without APIC virtualization.
    pub interrupt_exit: u64,
    /// The same with APIC virtualization.
    pub posted_interrupt: u64,
    /// End of interrupt without APIC virtualization.
    pub eoi_exit: u64,
    /// Pause-loop exit: exit, search, entry, without the switch.
    pub ple_exit: u64,
    /// Paravirtual lock kick.
    pub kick_hypercall: u64,
    /// Switch between vCPU threads on a pCPU.
    pub vcpu_switch: u64,
    /// By so many percent the last two vary, up and down.
    pub jitter_percent: u64,
    /// Guest tick: interrupt, reprogramming the timer.
    pub timer_exit: u64,
    /// So much more does a switch between threads take in a VM.
    pub nested_switch: u64,
    /// By so many percent computing is slower in a VM.
    pub nested_paging_percent: u64,
    /// So much more where the VM has more vCPUs than share a last-level cache.
    pub blind_numa_percent: u64,
    /// Physical IPI: sent to seen.
    pub ipi_flight: u64,
    /// Cycles between two PAUSEs of a spin loop.
    pub pause_cycles: u64,
    /// PAUSEs further apart belong to two loops, cycles.
    pub ple_gap: u64,
    /// PAUSEs until the exit on AMD.
    pub pause_filter_count: u64,
    /// Sending an IPI without an exit.
    pub native_ipi_send: u64,
    /// Leaving the idle state of a real CPU.
    pub native_idle_wake: u64,
    /// Entering and leaving an interrupt, without exits.
    pub interrupt_handler: u64,
    /// Switch between threads.
    pub thread_switch: u64,
    /// Choosing a CPU for a woken thread and queueing it.
    pub wakeup: u64,
    /// Entering and leaving the kernel.
    pub syscall: u64,
    /// Under the hash bucket's lock, for one thread.
    pub futex_work: u64,
    /// The clock tick's own work.
    pub tick_work: u64,
    /// Flushing one CPU's TLB on request.
    pub tlb_flush: u64,
    /// Copying an item into or out of a queue.
    pub queue_work: u64,
    /// Reading a vCPU's branch counters at a tick, and judging them.
    pub branch_counters: u64,
    /// A sleep ends this much later.
    pub timer_slack: u64,
    /// The host's work for a timer that wakes a vCPU.
    pub timer_steal: u64,
    /// Programming a timer and its interrupt's work.
    pub timer_work: u64,
    /// An atomic instruction on a lock in the own cache.
    pub lock_free: u64,
    /// A released lock's cache line reaches the next waiter.
    pub lock_handoff: u64,
    /// More for each further waiter on the same cache line.
    pub ticket_per_waiter: u64,
    /// A paravirtual lock's waiter halts after spinning so long: 2^15 turns of 40 cycles.
    pub pv_spin_cycles: u64,
    /// A thread's data, from the same last-level cache.
    pub refill_per_kib: u64,
    /// A kernel's text and data, from the last-level cache.
    pub refill_kernel_per_kib: u64,
    /// A thread's data, after a move to another last-level cache.
    pub refill_far_per_kib: u64,
    /// Private cache of a pCPU.
    pub cache_kib: u64,
    /// What the host's kernel, and every VM's, use of it for a switch or a wake-up.
    pub kernel_kib: u64,
    /// Executing.
    pub active_mw: u64,
    /// Polling in an idle loop.
    pub polling_mw: u64,
    /// Idle.
    pub idle_mw: u64,
}

impl Default for Costs {
    fn default() -> Costs {
        // The table is part of the program; a test reads it.
        toml::from_str(TABLE).unwrap_or_else(|error| panic!("costs.toml: {error}"))
    }
}

impl Costs {
    /// The same machine without a hypervisor: nothing exits.
    pub fn native(self) -> Costs {
        Costs {
            vm_exit: 0,
            halt_exit: 0,
            halt_wake: 0,
            halt_poll_wake: 0,
            idle_pcpu_wake: 0,
            ipi_send_exit: self.native_ipi_send,
            interrupt_exit: 0,
            posted_interrupt: 0,
            eoi_exit: 0,
            ple_exit: 0,
            kick_hypercall: 0,
            vcpu_switch: 0,
            timer_exit: 0,
            nested_switch: 0,
            nested_paging_percent: 0,
            blind_numa_percent: 0,
            ..self
        }
    }

    /// A number of cycles in ns, rounded up.
    pub fn cycles(&self, cycles: u64) -> u64 {
        (cycles * 1000).div_ceil(self.cycles_per_us.max(1))
    }

    /// A time of `ns` in cycles, rounded down.
    pub fn in_cycles(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.cycles_per_us) / 1000) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_has_a_value_and_a_source() {
        let costs = Costs::default();
        assert!(costs.vm_exit > 0 && costs.native().vm_exit == 0);
        for line in TABLE.lines().filter(|line| line.contains(" = ")) {
            let (_, remark) = line.split_once('#').expect("a remark");
            assert!(remark.contains(';'), "no source: {line}");
        }
    }
}
