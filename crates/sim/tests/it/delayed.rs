//! Delayed scheduling in a simulated guest of one vCPU (spec 30): a worked case by hand, the bound, and refused settings.

use crate::common::{FREE, run, scenario};
use tandem_sim::results::VmResults;
use tandem_sim::scenario::load::{Setting, Source};

/// Three threads that wake by timers. From 100 ms on, computed by hand, in each period of 10 ms:
///
/// ```text
/// a wakes at 0 and 5 ms, b at 0.5 ms, c at 5.5 or 5.6 ms (it first computed for 5 ms); each computes for 100 us
/// stock:       a at 0 | b at 0.5 | a at 5 | c at 5.5      4 idle periods
/// delayed by 1 ms: a and b at 1.0 | a and c at 6.0        2 idle periods
/// ```
fn three_threads(costs: &str) -> String {
    let every = |period: &str| {
        format!(
            "{{ forever = [ {{ every = \"{period}\" }}, {{ compute = \"100us\" }}, \"work\" ] }}"
        )
    };
    format!(
        "duration = \"1100ms\"\nwarmup = \"100ms\"\n[machine]\npcpus = 1\n{costs}
        [host]\nhalt_poll = 0
        [[workload]]\nname = \"timers\"
        [[workload.role]]\nname = \"a\"\nprogram = [ {five} ]
        [[workload.role]]\nname = \"b\"\nprogram = [ {{ compute = \"500us\" }}, {ten} ]
        [[workload.role]]\nname = \"c\"\nprogram = [ {{ compute = \"5ms\" }}, {ten} ]
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"timers\"\n",
        five = every("5ms"),
        ten = every("10ms"),
    )
}

fn vm(costs: &str, settings: &[&str]) -> VmResults {
    run(&three_threads(costs), settings).vms.remove(0)
}

const DELAY: &str = "vm.a.wake_delay=1ms";

#[test]
fn delay_halves_idle_periods() {
    let (stock, delayed) = (vm(FREE, &[]), vm(FREE, &[DELAY]));
    assert_eq!((stock.counts.halts, delayed.counts.halts), (400, 200));
    // The work is the same, as periods are kept.
    assert_eq!((stock.work, delayed.work), (400, 400));
    assert_eq!(stock.received, delayed.received, "without costs it takes the same time");
    // The first thread waits for 1 ms, and the last one also for at most two others.
    assert!(stock.wake_latency.max.0 <= 100_000, "{:?}", stock.wake_latency.max);
    let longest = delayed.wake_latency.max.0;
    assert!((1_000_000..=1_200_000).contains(&longest), "{longest}");
}

#[test]
fn delay_reduces_cpu_time_with_costs() {
    let (stock, delayed) = (vm("", &[]), vm("", &[DELAY]));
    assert_eq!(stock.work, delayed.work);
    assert_eq!(delayed.counts.halts * 2, stock.counts.halts);
    assert!(delayed.received < stock.received, "{} against {}", delayed.received, stock.received);
}

#[test]
fn busy_vcpu_delays_no_wakeup() {
    let hog = "vm.a.workload=hog";
    let text = three_threads(FREE)
        + "[[workload]]\nname = \"hog\"
        [[workload.role]]\nprogram = [ { forever = [ { compute = \"1ms\" }, \"work\" ] } ]
        [[workload.role]]\nname = \"naps\"\nprogram = [ { forever = [ { sleep = \"2ms\" }, { compute = \"10us\" }, \"work\" ] } ]\n";
    let (stock, delayed) = (run(&text, &[hog]), run(&text, &[hog, DELAY]));
    assert_eq!(stock.vms, delayed.vms);
}

#[test]
fn zero_delay_is_default_and_changes_nothing() {
    assert_eq!(vm("", &[]), vm("", &["vm.a.wake_delay=0"]));
    let text = serde_json::to_string(&scenario(&three_threads(FREE), &[])).unwrap();
    assert!(!text.contains("wake_delay"), "{text}");
}

#[test]
fn invalid_delays_are_refused_with_valid_form() {
    let error = |settings: &[(&str, &str)]| {
        let mut source = Source::from_text("test.toml", &three_threads(FREE)).unwrap();
        for (key, value) in settings {
            source.set(Setting::new(*key, *value));
        }
        source.scenario().unwrap_err().to_string()
    };
    let many = error(&[("vm.a.vcpus", "2"), ("vm.a.wake_delay", "1ms")]);
    assert!(many.contains("VMs of one vCPU, and this one has 2"), "{many}");
    let long = error(&[("vm.a.wake_delay", "2s")]);
    assert!(
        long.contains("wake_delay") && long.contains("100 ms") || long.contains("100ms"),
        "{long}"
    );
    let unit = error(&[("vm.a.wake_delay", "5")]);
    assert!(unit.contains("unit"), "{unit}");
}
