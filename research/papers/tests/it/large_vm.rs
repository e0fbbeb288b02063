//! Many vCPUs on few pCPUs: one thread per vCPU, flushes by hypercall, fast reactivation.

use crate::common::run;
use tandem_sim::results::VmResults;

/// Threads that change their address space, on four pCPUs.
const FLUSHES: &str = "duration = \"600ms\"\nwarmup = \"100ms\"\n[machine]\npcpus = 4
    [host]\napicv = false\nhalt_poll = 0
    [[workload]]\nname = \"unmaps\"
    [[workload.role]]\nthreads = \"1 per vcpu\"
    program = [ { forever = [ { compute = \"exp(200us)\" }, { unmap = \"2us\" }, \"work\" ] } ]
    [[workload]]\nname = \"pairs\"
    objects = { there = { kind = \"semaphore\", count = 64, units = 0 } }
    [[workload.role]]\nname = \"waits\"\nthreads = \"1 per vcpu\"
    program = [ { forever = [ { acquire = \"there[own]\" }, { compute = \"50us\" }, { release = \"there[peer]\" }, \"work\" ] } ]
    [[workload.role]]\nname = \"begins\"
    program = [ { repeat = 24, do = [ { release = \"there[random]\" } ] } ]
    [[vm]]\nname = \"a\"\nvcpus = 8\nworkload = \"unmaps\"\n";

fn vm(settings: &[&str]) -> VmResults {
    let mut results = run(FLUSHES, settings);
    results.vms.remove(0)
}

fn mean_flush(vcpus: u32, how: &str) -> f64 {
    let vm = vm(&[
        &format!("vm.a.vcpus={vcpus}"),
        "vm.a.sized_for=8",
        "vm.a.per_thread=true",
        &format!("vm.a.tlb={how}"),
        "vm.a.idle_tlb=asked",
    ]);
    assert!(vm.counts.shootdowns > 100);
    vm.shootdown_latency.mean().unwrap().0 as f64
}

#[test]
fn hypercall_flush_waits_for_running_vcpus_only() {
    let (ipi, hypercall) = (mean_flush(32, "ipi"), mean_flush(32, "hypercall"));
    assert!(hypercall * 5.0 < ipi, "{hypercall} against {ipi} ns");
}

#[test]
fn hypercall_flush_interrupts_at_most_other_pcpus() {
    let vm = vm(&["vm.a.vcpus=32", "vm.a.tlb=hypercall"]);
    let ipis = vm.counts.shootdown_ipis as f64 / vm.counts.shootdowns as f64;
    assert!(ipis > 1.0 && ipis <= 3.0, "{ipis}");
}

#[test]
fn hypercall_flush_time_is_independent_of_vcpus() {
    let (few, many) = (mean_flush(8, "hypercall"), mean_flush(64, "hypercall"));
    assert!((many / few - 1.0).abs() < 0.2, "{few} and {many} ns");
}

#[test]
fn per_thread_vcpus_prevent_thread_migration() {
    let settings = ["vm.a.vcpus=4", "vm.a.sized_for=6"];
    let free = vm(&settings);
    let pinned = vm(&["vm.a.per_thread=true", settings[0], settings[1]]);
    assert_eq!(pinned.roles[0].threads, 6);
    assert!(free.counts.thread_migrations > 0);
    assert_eq!(pinned.counts.thread_migrations, 0);
}

#[test]
fn fast_reactivation_reduces_ipi_latency() {
    let run = |fast: &str| {
        vm(&[
            "vm.a.workload=pairs",
            "vm.a.vcpus=40",
            "vm.a.per_thread=true",
            // In half a second the gain of 1 % or more is below the spread between seeds.
            "duration=2s",
            fast,
        ])
    };
    let without = run("host.fast_reactivation=false");
    let with = run("host.fast_reactivation=true");
    let mean = |vm: &VmResults| vm.ipi_latency.mean().unwrap().0 as f64;
    assert!(mean(&with) < 0.99 * mean(&without));
    // Other vCPUs lose no work.
    assert!(with.work as f64 > 0.97 * without.work as f64);
}

#[test]
fn paravirtual_lock_outperforms_ticket_lock() {
    // 64 threads and vCPUs on four pCPUs contend for the spinning lock of one address space.
    let rate = |locks: &str| {
        let vm = vm(&[
            "vm.a.vcpus=64",
            "vm.a.mm_lock=spinning",
            "vm.a.tlb=paravirtual",
            &format!("vm.a.spin_locks={locks}"),
        ]);
        (vm.work, vm.counts.halts)
    };
    let ((ticket, _), (paravirtual, halts)) = (rate("ticket"), rate("paravirtual"));
    assert!(paravirtual > 2 * ticket, "{paravirtual} against {ticket}");
    assert!(halts > 100, "long waiters halt");
}
