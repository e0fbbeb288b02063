//! APLE and HVS in the simulator: the kernel's code is told what happens, and what it decides is done.
//!
//! What they decide is tested where they are (`crates/kpolicy`).

use crate::common::{run, traced};
use tandem_sim::trace::TraceEvent;

/// Two VMs with one ticket lock each, whose holders need `hold`.
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
fn aple_tries_windows_a_step_apart_for_the_vm_that_spins_and_for_no_other() {
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
fn aple_goes_up_where_waiting_is_worth_it() {
    // Three waiters of 4 µs: exits before 30,000 cycles stop vCPUs whose turn is about to come.
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
    let (dear, cheap) = (of(20_000), of(200));
    assert!(dear > 10_000, "{dear} where an exit is dear");
    assert!(cheap < 8_000, "{cheap} where it costs next to nothing");
}

#[test]
fn without_exits_the_window_stays() {
    let results = run(&locks("100ns"), &["machine.pcpus=8"]);
    let vm = &results.vms[0];
    assert!(vm.counts.ple_exits < 100 && vm.windows.is_empty(), "{:?}", vm.counts);
}

/// When and to whom the vCPUs of VM `a` yield, and when its vCPUs were last taken off their pCPUs.
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
    // At one time: who leaves, then who comes, then the choices, which see what was before them.
    ordered.sort_by_key(|&(at, what, _)| (at, if what == 2 { 0 } else { what + 1 }));
    for (at, what, vcpu) in ordered {
        match what {
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
fn lock_waiters_are_resumed_in_the_order_of_hvs_or_of_its_variant() {
    // Nearly all who are off a pCPU here were stopped while they spun: lock-waiters.
    let of = |candidate: &str| {
        let setting = format!("host.pause_loop.candidate={candidate}");
        let (latest, others) = yields_to_the_latest(&[&setting]);
        f64::from(latest) / f64::from(latest + others)
    };
    let (earliest_first, latest_first) = (of("hvs"), of("cpth-l"));
    assert!(latest_first > 2.0 * earliest_first, "{latest_first} {earliest_first}");
}

#[test]
fn every_variant_yields_and_gets_more_done_than_no_yield() {
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
