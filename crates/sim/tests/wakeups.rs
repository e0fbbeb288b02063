//! How long a thread that is woken waits until it runs: from when its timer is due, not from when its vCPU comes to handle it.

mod common;

use common::FREE;
use common::run;
use tandem_policy::Nanos;
use tandem_sim::results::VmResults;

/// A thread that wakes every 20 ms and computes for 1 ms, on the one pCPU, beside so many VMs that compute.
fn woken(hogs: u32, settings: &[&str]) -> VmResults {
    let beside = match hogs {
        0 => String::new(),
        hogs => format!("[[vm]]\nname = \"b\"\ncount = {hogs}\nvcpus = 1\nworkload = \"hog\"\n"),
    };
    let text = format!(
        "duration = \"2s\"\n[machine]\npcpus = 1\n{FREE}
        [host]\nscheduler = \"eevdf\"\nhalt_poll = 0\n[host.pause_loop]\npolicy = \"off\"
        [[workload]]\nname = \"timer\"
        [[workload.role]]\nname = \"t\"\nprogram = [ {{ forever = [ {{ every = \"20ms\" }}, {{ compute = \"1ms\" }}, \"work\" ] }} ]
        [[workload]]\nname = \"hog\"
        [[workload.role]]\nname = \"h\"\nprogram = [ {{ forever = [ {{ compute = \"1ms\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"timer\"\n{beside}"
    );
    run(&text, settings).vms.remove(0)
}

#[test]
fn who_is_woken_on_an_idle_pcpu_runs_at_once() {
    let alone = woken(0, &[]);
    assert!(
        alone.wake_latency.count >= 99,
        "{}",
        alone.wake_latency.count
    );
    assert_eq!(alone.wake_latency.max, Nanos(0));
}

#[test]
fn waiting_for_the_pcpu_is_part_of_a_wakeups_latency() {
    // Its deadline is eight slices away: others run first.
    let beside = woken(1, &["vm.a.weight=128"]);
    assert!(
        beside.wake_latency.count >= 90,
        "{}",
        beside.wake_latency.count
    );
    let mean = beside.wake_latency.sum.0 / beside.wake_latency.count;
    let waited = beside.vcpus[0].steal.0 / beside.wake_latency.count;
    assert!(
        mean >= 500_000,
        "{mean} ns; {:?} {:?}",
        beside.vcpus,
        beside.wake_latency.max
    );
    // And it waits for nothing else, but for being preempted in its millisecond.
    assert!(mean <= waited, "{mean} ns of {waited} ns");
}
