//! APLE and HVS in the simulator: events reach the kernel's code, and its decisions take effect.
//!
//! `crates/kpolicy` tests the decisions themselves.

use crate::common::{run, traced};
use tandem_sim::trace::TraceEvent;

/// A VM with a ticket lock, held for `hold` on average, and a VM that computes.
fn locks(hold: &str) -> String {
    format!(
        "duration = \"2s\"\n[machine]\npcpus = 4\n[host]\nscheduler = \"cfs\"
        [host.pause_loop]\npolicy = \"aple\"\naple = {{ epoch_exits = 100 }}
        [[workload]]\nname = \"lock\"
        [workload.objects]\nlock = {{ kind = \"spin\", lock = \"ticket\" }}
        [[workload.role]]\nthreads = \"1 per vcpu\"
        program = [ {{ forever = [ {{ compute = \"exp(30us)\" }},
            {{ locked = \"lock\", do = [ {{ compute = \"exp({hold})\" }} ] }}, \"work\" ] }} ]
        [[workload]]\nname = \"hog\"
        [[workload.role]]\nthreads = \"1 per vcpu\"
        program = [ {{ forever = [ {{ compute = \"1ms\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nvcpus = 4\nworkload = \"lock\"
        [[vm]]\nname = \"b\"\nvcpus = 4\nworkload = \"hog\"\n"
    )
}

#[test]
fn aple_adapts_window_of_spinning_vm_only() {
    let results = run(&locks("4us"), &[]);
    let [spins, computes] = results.vms.as_slice() else {
        panic!("{results:?}");
    };
    let windows: Vec<u32> = spins.windows.iter().map(|(_, window)| *window).collect();
    assert!(windows.len() > 2, "{windows:?}");
    let mut before = 8192;
    for &window in &windows {
        assert!((4096..=32768).contains(&window), "{windows:?}");
        assert!(window.abs_diff(before) <= 1024, "{windows:?}");
        before = window;
    }
    assert!(spins.counts.ple_exits >= 300 * (windows.len() as u64 - 1));
    assert!(computes.windows.is_empty() && computes.counts.ple_exits == 0);
}

#[test]
fn aple_widens_window_if_exits_are_expensive() {
    // Three waiters of 4 µs: exits before 30,000 cycles stop vCPUs shortly before they get the lock.
    let mean = |exit: u32, seed: u32| {
        let settings = [
            "vm.b.vcpus=2".to_owned(),
            format!("machine.costs.ple_exit={exit}"),
            format!("seed={seed}"),
        ];
        let results = run(&locks("4us"), &settings.each_ref().map(String::as_str));
        let windows = &results.vms[0].windows;
        let sum: u32 = windows.iter().map(|(_, window)| *window).sum();
        sum / windows.len().max(1) as u32
    };
    let of = |exit: u32| (1..=4).map(|seed| mean(exit, seed)).sum::<u32>() / 4;
    let (expensive, cheap) = (of(20_000), of(200));
    assert!(expensive > 10_000, "{expensive} with expensive exits");
    assert!(cheap < 8_000, "{cheap} with cheap exits");
}

#[test]
fn window_stays_without_exits() {
    let results = run(&locks("100ns"), &["machine.pcpus=8"]);
    let vm = &results.vms[0];
    assert!(vm.counts.ple_exits < 100 && vm.windows.is_empty(), "{:?}", vm.counts);
}

/// Counts the yields of VM `a` to its most recently descheduled vCPU, and to other vCPUs.
fn yields_to_the_latest(settings: &[&str]) -> (u32, u32) {
    let text = locks("4us").replacen("vcpus = 4", "vcpus = 8", 1);
    let (_, events) = traced(&text, settings);
    let mut off_since: [Option<u64>; 8] = [None; 8];
    let (mut latest, mut others) = (0, 0);
    let mut ordered: Vec<(u64, u8, u32)> = Vec::new();
    for event in &events {
        match *event {
            TraceEvent::PcpuRan { vcpu, from, to, .. } if vcpu < 8 => {
                ordered.push((from, 1, vcpu));
                ordered.push((to, 0, vcpu));
            }
            TraceEvent::Yield { from, to, at } if from < 8 => ordered.push((at, 2, to)),
            _ => {}
        }
    }
    // At equal times: yields, which see the state before, then descheduled vCPUs, then scheduled ones.
    ordered.sort_by_key(|&(at, kind, _)| (at, if kind == 2 { 0 } else { kind + 1 }));
    for (at, kind, vcpu) in ordered {
        match kind {
            0 => off_since[vcpu as usize] = Some(at),
            1 => off_since[vcpu as usize] = None,
            _ => {
                let newest = off_since.iter().flatten().max();
                if off_since[vcpu as usize].as_ref() == newest { latest += 1 } else { others += 1 }
            }
        }
    }
    (latest, others)
}

#[test]
fn candidate_order_decides_lock_waiter_to_resume() {
    // Nearly all descheduled vCPUs here were stopped while they spun: lock-waiters.
    let of = |candidate: &str| {
        let setting = format!("host.pause_loop.candidate={candidate}");
        let (latest, others) = yields_to_the_latest(&[&setting]);
        f64::from(latest) / f64::from(latest + others)
    };
    let (earliest_first, latest_first) = (of("hvs"), of("cpth-l"));
    assert!(latest_first > 2.0 * earliest_first, "{latest_first} {earliest_first}");
}

#[test]
fn every_variant_yields_and_gains_work() {
    let none = run(&locks("4us"), &["host.pause_loop.candidate=none"]);
    let (none, counts) = (none.vms[0].work, none.vms[0].counts.yields);
    assert_eq!(counts, 0);
    for candidate in ["hvs", "cpth-r", "cpth-l", "cch"] {
        let setting = format!("host.pause_loop.candidate={candidate}");
        let results = run(&locks("4us"), &[&setting]);
        let vm = &results.vms[0];
        assert!(vm.counts.yields > 100, "{candidate}: {:?}", vm.counts);
        assert!(vm.work > 2 * none, "{candidate}: {} against {none}", vm.work);
    }
}
