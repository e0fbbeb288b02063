//! Costs of vCPUs and threads for caches that others have used: worked cases on a machine without other costs.

use crate::common::FREE;
use tandem_model::Nanos;
use tandem_sim::Results;

/// Time that each VM spent on cache refills.
fn refills(results: &Results) -> Vec<Nanos> {
    let of_vm = |vm: &tandem_sim::results::VmResults| {
        let all: u64 = vm.vcpus.iter().map(|vcpu| vcpu.ran.cache.0).sum();
        Nanos(all)
    };
    results.vms.iter().map(of_vm).collect()
}

fn costs(text: &str) -> String {
    let mut costs: String = FREE
        .lines()
        .filter(|l| !l.starts_with("refill"))
        .fold(String::new(), |all, line| all + line + "\n");
    costs.push_str(text);
    costs
}

/// Two VMs of one vCPU that share a pCPU, each with a thread whose working set is `kib` KiB.
fn two_vms(kib: u32, kernel: u32) -> String {
    let costs = costs(&format!(
        "refill_per_kib = 10\nrefill_kernel_per_kib = 100\nrefill_far_per_kib = 1000
        cache_kib = 256\nkernel_kib = {kernel}\n"
    ));
    format!(
        "duration = \"1001ms\"\n[machine]\npcpus = 1\n{costs}
        [host]\nplacement = \"pin\"
        [[workload]]\nname = \"w\"\n[[workload.role]]\nworking_set = \"{kib}KiB\"
        program = [ {{ forever = [ {{ compute = \"1ms\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"w\"
        [[vm]]\nname = \"b\"\nvcpus = 1\nworkload = \"w\"\n"
    )
}

#[test]
fn fitting_data_is_fetched_once() {
    // Two working sets of 128 KiB fill the cache of 256 KiB exactly, as kernels have none here.
    let fits = crate::common::run(&two_vms(128, 0), &[]);
    assert_eq!(refills(&fits), [Nanos(1_280), Nanos(1_280)]);
    assert!(fits.vms[0].counts.vcpu_switches > 10);
}

#[test]
fn oversized_data_is_fetched_after_every_switch() {
    let results = crate::common::run(&two_vms(256, 0), &[]);
    for (vm, refill) in results.vms.iter().zip(refills(&results)) {
        assert!(vm.counts.vcpu_switches > 10);
        assert_eq!(refill, Nanos(2_560 * vm.counts.vcpu_switches));
    }
}

#[test]
fn interrupted_fetch_continues_next_time() {
    // A fetch takes 12.8 ms, several slices.
    // The total is no more, because a thread evicts only data that it replaces by its own.
    let text = two_vms(128, 0).replace("refill_per_kib = 10\n", "refill_per_kib = 100000\n");
    let results = crate::common::run(&text, &["host.cfs.latency=6ms"]);
    assert_eq!(refills(&results), [Nanos(12_800_000), Nanos(12_800_000)]);
    assert!(results.vms.iter().all(|vm| vm.work > 400), "both make progress");
}

#[test]
fn kernels_lose_their_working_sets_too() {
    // Each switch refetches the thread's data, its kernel's, and the host's, as the other thread fills the cache.
    let results = crate::common::run(&two_vms(256, 64), &[]);
    for (vm, refill) in results.vms.iter().zip(refills(&results)) {
        let each = 2_560 + 6_400 + 6_400;
        assert!(vm.counts.vcpu_switches > 10);
        assert_eq!(refill, Nanos(each * vm.counts.vcpu_switches));
    }
}

/// A thread that always holds a kernel lock and one that spins for it, next to a VM that fills the caches of both pCPUs.
fn spinner_and_holder(kernel: u32) -> String {
    two_vms(256, kernel).replace("pcpus = 1", "pcpus = 2").replace(
        "[[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"w\"",
        "[[workload]]\nname = \"lock\"\n[workload.objects]\nl = { kind = \"spin\", lock = \"ticket\" }
        [[workload.role]]\nname = \"holds\"\npins = [0]\nworking_set = \"256KiB\"
        program = [ { locked = \"l\", do = [ { kernel = \"10s\" } ] } ]
        [[workload.role]]\nname = \"spins\"\npins = [1]\nworking_set = \"256KiB\"
        program = [ { compute = \"1ms\" }, { locked = \"l\", do = [ { kernel = \"1s\" } ] } ]
        [[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"lock\"",
    )
}

#[test]
fn spinners_and_holders_fetch_nothing() {
    let text = spinner_and_holder(0);
    let results = crate::common::run(&text, &["host.pause_loop.policy=off"]);
    let spinner = &results.vms[0];
    assert!(spinner.counts.vcpu_switches > 10);
    // The spinner's data, fetched in the millisecond before it spins.
    assert_eq!(refills(&results)[0], Nanos(2_560));
}

#[test]
fn migration_to_another_cache_fetches_remotely() {
    // When the short VM has ended, its pCPU takes one of the two VMs that share the other pCPU.
    let text = two_vms(128, 0)
        .replace("pcpus = 1", "pcpus = 2\npcpus_per_llc = 1")
        .replace("placement = \"pin\"", "placement = \"load-balancing\"")
        .replace(
            "[[vm]]\nname = \"b\"",
            "[[workload]]\nname = \"short\"
            [[workload.role]]\nprogram = [ { compute = \"100ms\" } ]
            [[vm]]\nname = \"short\"\nvcpus = 1\nworkload = \"short\"
            [[vm]]\nname = \"b\"",
        );
    for (per_llc, price) in [("pcpus_per_llc = 1", 1000), ("pcpus_per_llc = 2", 10)] {
        let results = crate::common::run(&text.replace("pcpus_per_llc = 1", per_llc), &[]);
        let migrations: u64 = results.vms.iter().map(|vm| vm.counts.vcpu_migrations).sum();
        assert_eq!(migrations, 1, "{per_llc}");
        let all: u64 = refills(&results).iter().map(|refill| refill.0).sum();
        // Both fetch once on the first pCPU, and one again on the second.
        assert_eq!(all, 2 * 1_280 + 128 * price, "{per_llc}");
    }
}
