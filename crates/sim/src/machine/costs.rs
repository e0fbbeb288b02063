//! Costs of operations: a table of integers, each with its source, in `costs.toml` next to this file.
//!
//! A scenario may override single keys.
//! In native mode, the costs of the hypervisor are 0 (see [`Costs::native`]).

use serde::{Deserialize, Serialize};

/// The table in the source tree.
pub const TABLE: &str = include_str!("costs.toml");

/// Costs in ns unless the name says otherwise; see [`TABLE`] for sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Clock of a pCPU in cycles per µs.
    pub cycles_per_us: u64,
    /// A light exit, its handling and the entry.
    pub vm_exit: u64,
    /// HLT: exit and switch off the pCPU.
    pub halt_exit: u64,
    /// Wake-up of a halted vCPU's thread: wake-up, schedule in, entry.
    pub halt_wake: u64,
    /// Wake-up while the host still polls.
    pub halt_poll_wake: u64,
    /// Additional cost of a wake-up if the vCPU's pCPU is idle.
    pub idle_pcpu_wake: u64,
    /// Interrupt command register write: exit and emulation.
    pub ipi_send_exit: u64,
    /// An interrupt for a running vCPU without APIC virtualization.
    pub interrupt_exit: u64,
    /// An interrupt for a running vCPU with APIC virtualization.
    pub posted_interrupt: u64,
    /// End of interrupt without APIC virtualization.
    pub eoi_exit: u64,
    /// Pause-loop exit: exit, search, entry, without the switch.
    pub ple_exit: u64,
    /// Paravirtual lock kick.
    pub kick_hypercall: u64,
    /// Switch between vCPU threads on a pCPU.
    pub vcpu_switch: u64,
    /// Variation of `ple_exit` and `vcpu_switch`, ± percent.
    pub jitter_percent: u64,
    /// Guest tick: interrupt, reprogramming the timer.
    pub timer_exit: u64,
    /// Additional cost of a thread switch in a VM.
    pub nested_switch: u64,
    /// Slowdown of computing in a VM, percent.
    pub nested_paging_percent: u64,
    /// Additional slowdown in a VM that has more vCPUs than a last-level cache has pCPUs, percent.
    pub blind_numa_percent: u64,
    /// Physical IPI: from sending to delivery.
    pub ipi_flight: u64,
    /// Cycles between two PAUSEs of a spin loop.
    pub pause_cycles: u64,
    /// Maximum distance of PAUSEs in one loop, cycles.
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
    /// Selecting a CPU for a woken thread and queueing it.
    pub wakeup: u64,
    /// Entering and leaving the kernel.
    pub syscall: u64,
    /// Futex work under the hash bucket's lock, per thread.
    pub futex_work: u64,
    /// The clock tick's own work.
    pub tick_work: u64,
    /// Flushing one CPU's TLB on request.
    pub tlb_flush: u64,
    /// Copying an item into or out of a queue.
    pub queue_work: u64,
    /// Reading and evaluating a vCPU's branch counters at a tick.
    pub branch_counters: u64,
    /// Delay at the end of a sleep.
    pub timer_slack: u64,
    /// The host's work for a timer that wakes a vCPU.
    pub timer_steal: u64,
    /// Programming a timer and handling its interrupt.
    pub timer_work: u64,
    /// An atomic instruction on a lock in the local cache.
    pub lock_free: u64,
    /// Transfer of a released lock's cache line to the next waiter.
    pub lock_handoff: u64,
    /// Additional transfer cost per further waiter on the same cache line.
    pub ticket_per_waiter: u64,
    /// Spin time after which a paravirtual lock's waiter halts, cycles: 2^15 iterations of 40 cycles.
    pub pv_spin_cycles: u64,
    /// Refill of a thread's data from the same last-level cache, per KiB.
    pub refill_per_kib: u64,
    /// Refill of a kernel's text and data from the last-level cache, per KiB.
    pub refill_kernel_per_kib: u64,
    /// Refill of a thread's data after a move to another last-level cache, per KiB.
    pub refill_far_per_kib: u64,
    /// Cost of a refill from the memory of another NUMA node, percent of `refill_far_per_kib`.
    pub remote_memory_percent: u64,
    /// Speed of a thread whose core's other thread works, percent of its speed alone on the core.
    pub smt_working_percent: u64,
    /// Speed of a thread whose core's other thread spins or polls with PAUSE, percent.
    pub smt_pausing_percent: u64,
    /// Private cache of a pCPU, KiB.
    pub cache_kib: u64,
    /// Cache footprint of a switch or wake-up in the host's kernel and in each VM's, KiB.
    pub kernel_kib: u64,
    /// Power of an executing pCPU, mW.
    pub active_mw: u64,
    /// Power of a pCPU that polls in an idle loop, mW.
    pub polling_mw: u64,
    /// Power of an idle pCPU, mW.
    pub idle_mw: u64,
}

impl Default for Costs {
    fn default() -> Costs {
        // The table is part of the program; a test reads it.
        toml::from_str(TABLE).unwrap_or_else(|error| panic!("costs.toml: {error}"))
    }
}

impl Costs {
    /// The same machine without a hypervisor: no exits.
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

    /// Converts cycles to ns, rounded up.
    pub fn cycles(&self, cycles: u64) -> u64 {
        (cycles * 1000).div_ceil(self.cycles_per_us.max(1))
    }

    /// Converts ns to cycles, rounded down.
    pub fn in_cycles(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.cycles_per_us) / 1000) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cost_has_value_and_source() {
        let costs = Costs::default();
        assert!(costs.vm_exit > 0 && costs.native().vm_exit == 0);
        for line in TABLE.lines().filter(|line| line.contains(" = ")) {
            let (_, remark) = line.split_once('#').expect("a remark");
            assert!(remark.contains(';'), "no source: {line}");
        }
    }
}
