//! Linux 7.3: the meanings of group weights, and lazy preemption.
//!
//! Two VMs of equal weight with 6 and 2 vCPUs that always compute share four pCPUs, in each mode.
//! In one of five runs, a real kernel 7.3.4 gave tasks in cgroups the CPU time of `MEASURED` (QEMU, four CPUs), scaled to 8 s of all CPUs.
//! As there, the smaller group starts after the larger one.
//! Other runs gave the smaller group 10.6 … 14.8 s in `up`, and up to 10.7 s in `concur`.
//! Modes `up` and `tasks` have a second stable placement, real and simulated (`research/docs/kernel-comparison.md`).
//! Lazy preemption delays a vCPU that another pCPU wakes until the running vCPU exits or ticks.

use crate::common::{FREE, HOG, run, scenario};
use tandem_model::Nanos;

/// CPU seconds of the cgroup with two tasks in that run, of the 32 s of both, by mode.
const MEASURED: [(&str, f64); 5] =
    [("up", 16.0), ("smp", 16.0), ("concur", 6.85), ("max", 16.0), ("tasks", 8.75)];

#[test]
fn group_weights_match_real_kernel_in_each_mode() {
    let text = format!(
        "duration = \"11s\"\nwarmup = \"3s\"\n[machine]\npcpus = 4\n[host.eevdf]\nas_of = \"7.3\"
        {HOG}
        [[vm]]\nname = \"large\"\nvcpus = 6\nworkload = \"hog\"
        [[vm]]\nname = \"small\"\nvcpus = 2\nstarts = \"10ms\"\nworkload = \"hog\"\n"
    );
    for (mode, measured) in MEASURED {
        let vms = run(&text, &[&format!("host.eevdf.cgroup_mode={mode}")]).vms;
        let used = [0, 1].map(|vm| vms[vm].received.0 as f64 / 1e9);
        for (used, measured) in used.into_iter().zip([32.0 - measured, measured]) {
            let error = used / measured - 1.0;
            assert!(error.abs() < 0.05, "{mode}: {used:.2} s, {measured} s on a real kernel");
        }
    }
}

/// Mean and maximum time for which a vCPU waits that a sibling wakes every 7 ms from another pCPU, next to a hog.
fn waits_of_woken_vcpu(settings: &[&str]) -> (Nanos, Nanos) {
    let text = format!(
        "duration = \"4s\"\n[machine]\npcpus = 2\n{FREE}
        [host]\nhalt_poll = 0
        {HOG}
        [[workload]]\nname = \"pair\"
        [workload.objects]\ntoken = {{ kind = \"semaphore\", units = 0 }}
        [[workload.role]]\nname = \"wakes\"\nprogram = [ {{ forever = [ {{ every = \"7ms\" }}, {{ release = \"token\" }} ] }} ]
        [[workload.role]]\nname = \"woken\"\nprogram = [ {{ forever = [ {{ acquire = \"token\" }}, {{ compute = \"10us\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"pair\"\nvcpus = 2\npins = [\"0\", \"1\"]\nweight = 8192\nworkload = \"pair\"
        [[vm]]\nname = \"hog\"\nvcpus = 1\npins = \"1\"\nworkload = \"hog\"\n"
    );
    let vms = run(&text, settings).vms;
    assert!(vms[0].work > 500, "{}", vms[0].work);
    let woken = &vms[0].vcpus[1];
    (Nanos(woken.steal.0 / vms[0].work), vms[0].wake_latency.max)
}

#[test]
fn woken_vcpu_waits_for_exit_or_tick() {
    let (eager, _) = waits_of_woken_vcpu(&[]);
    assert!(eager < Nanos(200_000), "{eager:?}");
    // The guest's and the host's tick are 4 ms, and the hog exits only at these.
    let (lazy, longest) = waits_of_woken_vcpu(&["host.eevdf.as_of=7.3"]);
    assert!(lazy > Nanos(500_000), "{lazy:?}");
    assert!(longest <= Nanos::from_millis(4), "{longest:?}");
}

#[test]
fn cgroup_mode_needs_7_3_and_known_name() {
    let text = format!(
        "duration = \"1s\"\n[machine]\npcpus = 1\n{HOG}\n[[vm]]\nvcpus = 1\nworkload = \"hog\"\n"
    );
    let error = |settings: &[&str]| {
        let result = std::panic::catch_unwind(|| scenario(&text, settings));
        *result.unwrap_err().downcast::<String>().unwrap()
    };
    let older = error(&["host.eevdf.cgroup_mode=max"]);
    assert!(older.contains("needs as_of = \"7.3\""), "{older}");
    let unknown = error(&["host.eevdf.as_of=7.3", "host.eevdf.cgroup_mode=most"]);
    assert!(unknown.contains("concur"), "{unknown}");
}
