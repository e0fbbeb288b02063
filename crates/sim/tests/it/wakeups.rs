//! Wake-up latency of threads: from the due time of the timer, not from its handling by the vCPU.

use crate::common::{FREE, run};
use tandem_model::Nanos;
use tandem_sim::results::VmResults;

/// A thread that wakes every 20 ms and computes for 1 ms, on one pCPU shared with `hogs` computing VMs.
fn woken(hogs: u32, settings: &[&str]) -> VmResults {
    served(hogs, "1ms", settings)
}

/// Like [`woken`], with another computing time.
fn served(hogs: u32, compute: &str, settings: &[&str]) -> VmResults {
    all_served(hogs, compute, settings).remove(0)
}

/// Like [`served`], with the results of all VMs.
fn all_served(hogs: u32, compute: &str, settings: &[&str]) -> Vec<VmResults> {
    let neighbours = match hogs {
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
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"timer\"\n{neighbours}"
    );
    run(&text, settings).vms
}

#[test]
fn timer_steal_delays_wakee_or_current() {
    let steal = "machine.costs.timer_steal=50000";
    let alone = woken(0, &[steal]);
    assert_eq!(alone.request_time.max, Nanos(1_050_000));
    // About a hundred wake-ups of 50 µs take 5 ms from the hog, which works in steps of 1 ms.
    let hog = |costs: &[&str]| {
        let settings = [&["vm.a.weight=128"], costs].concat();
        all_served(1, "1ms", &settings)[1].work
    };
    let lost = hog(&[]) - hog(&[steal]);
    assert!((4..=6).contains(&lost), "{lost} ms");
}

#[test]
fn idle_pcpu_runs_wakee_at_once() {
    let alone = woken(0, &[]);
    assert!(alone.wake_latency.count >= 99, "{}", alone.wake_latency.count);
    assert_eq!(alone.wake_latency.max, Nanos(0));
}

#[test]
fn wake_latency_includes_pcpu_wait() {
    // Its deadline is eight slices away, so others run first.
    let shared = woken(1, &["vm.a.weight=128"]);
    assert!(shared.wake_latency.count >= 90, "{}", shared.wake_latency.count);
    let mean = shared.wake_latency.sum.0 / shared.wake_latency.count;
    let waited = shared.vcpus[0].steal.0 / shared.wake_latency.count;
    assert!(mean >= 500_000, "{mean} ns; {:?} {:?}", shared.vcpus, shared.wake_latency.max);
    // Steal time also includes preemptions within its millisecond.
    assert!(mean <= waited, "{mean} ns of {waited} ns");
}

#[test]
fn request_time_includes_wait_and_service() {
    let alone = woken(0, &[]);
    let times = &alone.request_time;
    assert!(times.count >= 99, "{}", times.count);
    assert_eq!((times.mean(), times.max), (Some(Nanos(1_000_000)), Nanos(1_000_000)));
    let shared = woken(1, &["vm.a.weight=128"]);
    let times = &shared.request_time;
    let requests = times.count;
    assert!(requests >= 90, "{requests}");
    // The wait to run, and then the computing, with preemptions.
    let least = shared.wake_latency.sum.0 + (requests - 1) * 1_000_000;
    let most = shared.vcpus[0].steal.0 + (requests + 1) * 1_000_000;
    assert!((least..=most).contains(&times.sum.0), "{least} {most} {:?}", times.sum);
}

#[test]
fn late_request_arrives_at_its_period_start() {
    // Periods begin at 20, 40, 60, 80 and 100 ms; the thread is ready at 20, 45, 70, 95 and 120 ms.
    let late = served(0, "25ms", &[]);
    let times = &late.request_time;
    assert_eq!(times.count, 79);
    assert_eq!(times.max, Nanos(40_000_000));
    let mean = times.mean().unwrap().0;
    assert!((32_000_000..33_000_000).contains(&mean), "{mean}");
}

#[test]
fn credit_rate_limit_delays_wakee_by_timer() {
    // At the wake-up, the other VM has run for 0.3 ms of the limit of 1 ms; Xen's timer covers the whole limit from the wake-up.
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
