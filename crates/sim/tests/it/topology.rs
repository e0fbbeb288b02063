//! Worked cases of machines with SMT and NUMA, without other costs.
//!
//! The speeds of slowed threads are those of `costs.toml`: 62 % next to a working thread, 90 % next to a pausing one.
//! Hosts of one core have pCPUs 0 and 1 as its threads; with n cores, the siblings are p and n + p.

use tandem_model::Nanos;
use tandem_sim::results::Results;
use tandem_sim::world::World;

use crate::common::{FREE, HOG, pcpus, scenario, vm};

/// A host of these cores, nodes of two cores, and SMT.
fn host(cores: u32, costs: &str) -> String {
    let nodes = cores.div_ceil(2);
    format!(
        "duration = \"1s\"\n[machine.topology]\nsockets = {nodes}\ncores_per_cache = {}\n\
         threads_per_core = 2\n{costs}\n[host.pause_loop]\npolicy = \"off\"\n{HOG}",
        cores / nodes
    )
}

/// A VM of one vCPU that starts on `pcpu`.
fn vm_on(name: &str, workload: &str, pcpu: u32) -> String {
    format!(
        "[[vm]]\nname = \"{name}\"\nvcpus = 1\nworkload = \"{workload}\"\nbegins_on = [{pcpu}]\n"
    )
}

/// Runs a host, and checks the invariants, conservation of time among them, at ten times and the end.
fn run(text: &str, settings: &[&str]) -> Results {
    let mut world = World::new(&scenario(text, settings));
    for tenth in 1..=10 {
        world.run_until(Nanos::from_millis(tenth * 100));
        world.check_all().unwrap();
    }
    let results = world.results();
    for vcpu in results.vms.iter().flat_map(|vm| &vm.vcpus) {
        assert_eq!(vcpu.ran.total() + vcpu.steal + vcpu.halted, results.measured);
    }
    results
}

/// A thread spins at a barrier, and another arrives there after the end.
const SPINNER: &str = "[[workload]]\nname = \"spinner\"
    objects = { gate = { kind = \"barrier\", wait = \"spin\" } }
    [[workload.role]]\nname = \"early\"\nprogram = [ { barrier = \"gate\" } ]
    [[workload.role]]\nname = \"late\"\nprogram = [ { compute = \"9s\" }, { barrier = \"gate\" } ]
    [[vm]]\nname = \"b\"\nvcpus = 2\nworkload = \"spinner\"\npins = [\"2\", \"1\"]\n";

#[test]
fn two_working_threads_outdo_one_alone() {
    let alone = host(1, FREE) + &vm_on("a", "hog", 0);
    assert_eq!(run(&alone, &[]).vms[0].work, 1000);
    let both = alone + &vm_on("b", "hog", 1);
    let results = run(&both, &[]);
    // 1.24 times the work of one thread, in 1 s of CPU time each.
    assert_eq!(results.vms.iter().map(|vm| vm.work).collect::<Vec<_>>(), [620, 620]);
    assert_eq!((pcpus(&results, 0), pcpus(&results, 1)), (1.0, 1.0));
    let apart =
        run(&both, &["machine.topology.threads_per_core=1", "machine.topology.cores_per_cache=2"]);
    assert_eq!(apart.vms[1].work, 1000, "on a core of its own");
}

#[test]
fn pausing_thread_slows_its_sibling_less() {
    let text = host(2, FREE) + SPINNER + &vm_on("a", "hog", 0) + "pins = \"0\"\n";
    let results = run(&text, &[]);
    assert_eq!(vm(&results, "a").work, 900);
    assert_eq!(vm(&results, "b").vcpus[0].ran.spin_user, results.measured);
}

#[test]
fn remaining_work_is_rescaled_when_the_sibling_stops() {
    let once =
        "[[workload]]\nname = \"once\"\n[[workload.role]]\nprogram = [ { compute = \"100ms\" } ]\n";
    let text = host(1, FREE) + once + &vm_on("a", "hog", 0) + &vm_on("b", "once", 1);
    let results = run(&text, &[]);
    // 100 ms of work at 62 %.
    let ended = results.vms[1].finished.unwrap();
    assert_eq!(ended, Nanos(161_290_323));
    // The neighbour does the same meanwhile, and then works at full speed: 100 + 838.7 ms.
    assert_eq!(results.vms[0].work, 938);
    assert_eq!(results.vms[1].received, ended);
}

#[test]
fn fractions_of_a_ns_are_not_lost() {
    // Each change of the sibling's activity ends a period of the hog: 20,000 periods of 50 µs.
    let blinks = "[[workload]]\nname = \"blinks\"\n[[workload.role]]
        program = [ { forever = [ { compute = \"25us\" }, { sleep = \"25001ns\" }, \"work\" ] } ]\n";
    let text = host(1, FREE) + blinks + &vm_on("a", "hog", 0) + &vm_on("b", "blinks", 1);
    let results = run(&text, &["machine.costs.smt_working_percent=37", "host.halt_poll=0"]);
    let [hog, other] = &results.vms[..] else { panic!() };
    assert!(other.work > 9_000, "{}", other.work);
    let slowed = other.received.0;
    let work = (results.measured.0 - slowed) + slowed * 37 / 100;
    assert_eq!(hog.work, work / 1_000_000);
}

#[test]
fn running_vcpu_moves_to_idle_core() {
    let text = host(2, FREE) + &vm_on("a", "hog", 0) + &vm_on("b", "hog", 2);
    let results = run(&text, &[]);
    let moved: u64 = results.vms.iter().map(|vm| vm.counts.vcpu_migrations).sum();
    assert_eq!(moved, 1);
    // After four intervals of 4 ms, and two ticks of 4 ms at most, each has a core.
    let least = 620 * 24 / 1000 + 976;
    assert!(results.vms.iter().all(|vm| (least..1000).contains(&vm.work)), "{results:?}");
}

#[test]
fn core_scheduling_alternates_vms_of_a_core() {
    let text = host(1, FREE) + &vm_on("a", "hog", 0) + &vm_on("b", "hog", 1);
    let results = run(&text, &["host.core_scheduling=vm"]);
    // One VM at a time, at full speed: 1000 instead of 1240 units, and half of the time forced idle.
    for (vm, pcpu) in results.vms.iter().zip(&results.pcpus) {
        assert!((490..=510).contains(&vm.work), "{}", vm.work);
        assert_eq!(pcpu.idle, pcpu.forced_idle);
    }
    let forced: Nanos = results.pcpus.iter().map(|pcpu| pcpu.forced_idle).sum();
    assert_eq!(forced, results.measured);
    // vCPUs of one VM share the core.
    let siblings = host(1, FREE) + "[[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"hog\"\n";
    let results = run(&siblings, &["host.core_scheduling=vm"]);
    assert_eq!((results.vms[0].work, results.pcpus[0].forced_idle), (1240, Nanos(0)));
}

/// Both run queues of EEVDF: with groups, and flat.
const RELEASES: [&str; 2] = ["host.eevdf.as_of=6.12", "host.eevdf.as_of=7.3"];

#[test]
fn core_scheduling_matches_waiting_vcpus() {
    // Each thread of the core has a vCPU of both VMs.
    let both = |name: &str| {
        format!("[[vm]]\nname = \"{name}\"\nvcpus = 2\nworkload = \"hog\"\npins = [\"0\", \"1\"]\n")
    };
    let text = host(1, FREE) + &both("a") + &both("b");
    for release in RELEASES {
        let results = run(&text, &[release, "host.core_scheduling=vm"]);
        let forced: Nanos = results.pcpus.iter().map(|pcpu| pcpu.forced_idle).sum();
        assert!(forced.0 < results.measured.0 / 100, "{release}: {forced:?}");
        for vm in &results.vms {
            assert!((600..=640).contains(&vm.work), "{release}: {}", vm.work);
        }
    }
}

#[test]
fn full_socket_spreads_to_other() {
    let vms = [0, 4, 1, 5].map(|pcpu| vm_on(&format!("vm{pcpu}"), "hog", pcpu)).concat();
    let text = host(4, FREE) + &vms;
    for release in RELEASES {
        let results = run(&text, &[release]);
        assert_eq!(results.vms.iter().map(|vm| vm.counts.vcpu_migrations).sum::<u64>(), 2);
        // After more than three intervals of 8 ms, each has a core.
        for vm in &results.vms {
            assert!((970..1000).contains(&vm.work), "{release}: {}", vm.work);
        }
        // Four more VMs use the second threads, and four after these wait.
        let crowd =
            format!("{text}[[vm]]\nname = \"crowd\"\ncount = 4\nvcpus = 2\nworkload = \"hog\"\n");
        let results = run(&crowd, &[release]);
        let work: u64 = results.vms.iter().map(|vm| vm.work).sum();
        assert!((4900..=4960).contains(&work), "{release}: {work}");
    }
}

#[test]
fn remote_memory_costs_more() {
    // One of two vCPUs with working sets of 128 KiB moves to the other socket after 100 ms; its memory stays.
    let costs: String = FREE
        .lines()
        .filter(|line| !line.starts_with("refill"))
        .map(|line| format!("{line}\n"))
        .collect();
    let costs = costs
        + "refill_per_kib = 10\nrefill_kernel_per_kib = 0\nrefill_far_per_kib = 1000\nkernel_kib = 0\n";
    let data = "[[workload]]\nname = \"data\"\n[[workload.role]]\nworking_set = \"128KiB\"
        program = [ { forever = [ { compute = \"1ms\" }, \"work\" ] } ]
        [[workload]]\nname = \"short\"\n[[workload.role]]\nprogram = [ { compute = \"100ms\" } ]\n";
    let pinned = |name: &str, workload: &str, pcpu: u32, pins: &str| {
        format!("{}pins = \"{pins}\"\n", vm_on(name, workload, pcpu))
    };
    let text = host(4, &costs).replace("threads_per_core = 2", "threads_per_core = 1")
        + data
        + &pinned("a", "data", 0, "0,2")
        + &pinned("b", "data", 0, "0,2")
        + &pinned("short", "short", 2, "2");
    for (percent, price) in [(170, 1700), (100, 1000)] {
        let results = run(&text, &[&format!("machine.costs.remote_memory_percent={percent}")]);
        let vms = || results.vms.iter();
        assert_eq!(vms().map(|vm| vm.counts.vcpu_migrations).sum::<u64>(), 1);
        let refills: Nanos = vms().map(|vm| vm.vcpus[0].ran.cache).sum();
        assert_eq!(refills, Nanos(2 * 128 * 10 + 128 * price));
    }
}
