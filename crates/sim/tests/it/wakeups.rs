//! How long a thread that is woken waits until it runs: from when its timer is due, not from when its vCPU comes to handle it.

use crate::common::{FREE, run};
use tandem_model::Nanos;
use tandem_sim::results::VmResults;

/// A thread that wakes every 20 ms and computes for 1 ms, on the one pCPU, beside so many VMs that compute.
fn woken(hogs: u32, settings: &[&str]) -> VmResults {
    served(hogs, "1ms", settings)
}

/// The same that computes for so long.
fn served(hogs: u32, compute: &str, settings: &[&str]) -> VmResults {
    all_served(hogs, compute, settings).remove(0)
}

/// And all VMs.
fn all_served(hogs: u32, compute: &str, settings: &[&str]) -> Vec<VmResults> {
    let beside = match hogs {
        0 => String::new(),
        hogs => format!("[[vm]]\nname = \"b\"\ncount = {hogs}\nvcpus = 1\nworkload = \"hog\"\n"),
    };
    let text = format!(
        "duration = \"2s\"\n[machine]\npcpus = 1\n{FREE}
        [host]\nscheduler = \"eevdf\"\nhalt_poll = 0\n[host.pause_loop]\npolicy = \"off\"
        [[workload]]\nname = \"timer\"
        [[workload.role]]\nname = \"t\"\nprogram = [ {{ forever = [ {{ every = \"20ms\" }}, \"request\", {{ compute = \"{compute}\" }}, \"work\" ] }} ]
        [[workload]]\nname = \"hog\"
        [[workload.role]]\nname = \"h\"\nprogram = [ {{ forever = [ {{ compute = \"1ms\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"timer\"\n{beside}"
    );
    run(&text, settings).vms
}

#[test]
fn a_timers_interrupt_delays_who_wakes_at_once_and_else_takes_from_who_runs() {
    let steal = "machine.costs.timer_steal=50000";
    let alone = woken(0, &[steal]);
    assert_eq!(alone.request_time.max, Nanos(1_050_000));
    // Some hundred wake-ups, and the hog works for a millisecond at a time.
    let hog = |costs: &[&str]| {
        let settings = [&["vm.a.weight=128"], costs].concat();
        all_served(1, "1ms", &settings)[1].work
    };
    let lost = hog(&[]) - hog(&[steal]);
    assert!((4..=6).contains(&lost), "{lost} ms");
}

#[test]
fn who_is_woken_on_an_idle_pcpu_runs_at_once() {
    let alone = woken(0, &[]);
    assert!(alone.wake_latency.count >= 99, "{}", alone.wake_latency.count);
    assert_eq!(alone.wake_latency.max, Nanos(0));
}

#[test]
fn waiting_for_the_pcpu_is_part_of_a_wakeups_latency() {
    // Its deadline is eight slices away: others run first.
    let beside = woken(1, &["vm.a.weight=128"]);
    assert!(beside.wake_latency.count >= 90, "{}", beside.wake_latency.count);
    let mean = beside.wake_latency.sum.0 / beside.wake_latency.count;
    let waited = beside.vcpus[0].steal.0 / beside.wake_latency.count;
    assert!(mean >= 500_000, "{mean} ns; {:?} {:?}", beside.vcpus, beside.wake_latency.max);
    // And it waits for nothing else, but for being preempted in its millisecond.
    assert!(mean <= waited, "{mean} ns of {waited} ns");
}

#[test]
fn a_request_takes_what_its_thread_waits_and_computes() {
    let alone = woken(0, &[]);
    let times = &alone.request_time;
    assert!(times.count >= 99, "{}", times.count);
    assert_eq!((times.mean(), times.max), (Some(Nanos(1_000_000)), Nanos(1_000_000)));
    let beside = woken(1, &["vm.a.weight=128"]);
    let times = &beside.request_time;
    let requests = times.count;
    assert!(requests >= 90, "{requests}");
    // Waiting to run, and then computing, in which it is preempted.
    let least = beside.wake_latency.sum.0 + (requests - 1) * 1_000_000;
    let most = beside.vcpus[0].steal.0 + (requests + 1) * 1_000_000;
    assert!((least..=most).contains(&times.sum.0), "{least} {most} {:?}", times.sum);
}

#[test]
fn a_request_for_which_nobody_was_there_in_time_came_when_its_period_began() {
    // Periods begin at 20, 40, 60, 80 and 100 ms; it is there at 20, 45, 70, 95 and 120 ms.
    let late = served(0, "25ms", &[]);
    let times = &late.request_time;
    assert_eq!(times.count, 79);
    assert_eq!(times.max, Nanos(40_000_000));
    let mean = times.mean().unwrap().0;
    assert!((32_000_000..33_000_000).contains(&mean), "{mean}");
}

#[test]
fn who_wakes_within_credits_rate_limit_waits_for_its_timer_and_no_tick() {
    // After the sleep the other VM has run for 0.3 ms: the limit is 1 ms, and counts from the wake-up.
    let text = format!(
        "duration = \"2s\"\n[machine]\npcpus = 1\n{FREE}
        [host]\nscheduler = \"credit\"\nhalt_poll = 0\n[host.pause_loop]\npolicy = \"off\"
        [[workload]]\nname = \"timer\"
        [[workload.role]]\nname = \"t\"\nprogram = [ {{ forever = [ {{ every = \"20ms\" }}, {{ compute = \"100us\" }}, {{ sleep = \"300us\" }}, {{ compute = \"100us\" }}, \"work\" ] }} ]
        [[workload]]\nname = \"hog\"
        [[workload.role]]\nname = \"h\"\nprogram = [ {{ forever = [ {{ compute = \"1ms\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"timer\"\n[[vm]]\nname = \"b\"\nvcpus = 1\nworkload = \"hog\"\n"
    );
    let waits = |limit: &str| {
        let setting = format!("host.credit.ratelimit={limit}");
        let latency = run(&text, &[&setting]).vms.remove(0).wake_latency;
        assert!(latency.count >= 190, "{}", latency.count);
        (latency.sum.0 / latency.count, latency.max.0)
    };
    let (mean, most) = waits("1ms");
    assert!((490_000..=510_000).contains(&mean), "{mean} ns");
    assert!((1_000_000..=1_010_000).contains(&most), "{most} ns");
    assert_eq!(waits("0s"), (0, 0));
}
