//! The lock of an address space with readers: page faults and discards next to mappings and unmappings.

use crate::common::{FREE, near, run};
use tandem_sim::results::VmResults;

const LOCKS: [&str; 3] = ["stealing", "handed-over", "spinning"];

/// Threads on four CPUs that repeat `steps` for ever, and one that repeats `other` unless that is empty.
fn world(threads: u32, steps: &str, other: &str) -> String {
    let other = match other {
        "" => String::new(),
        steps => format!(
            "[[workload.role]]\nname = \"other\"\nprogram = [ {{ forever = [ {steps}, \"work\" ] }} ]\n"
        ),
    };
    format!(
        "duration = \"100ms\"\n[machine]\npcpus = 4\nmode = \"native\"\n{FREE}
        [[workload]]\nname = \"maps\"
        [[workload.role]]\nname = \"each\"\nthreads = {threads}
        program = [ {{ forever = [ {steps}, \"work\" ] }} ]\n{other}
        [[vm]]\nname = \"a\"\nworkload = \"maps\"\n"
    )
}

fn vm(text: &str, lock: &str, readers: bool) -> VmResults {
    let settings = [&format!("vm.a.mm_lock={lock}")[..], &format!("vm.a.mm_readers={readers}")];
    run(text, &settings).vms.remove(0)
}

#[test]
fn readers_share_lock_and_writers_exclude() {
    for lock in LOCKS {
        for (steps, readers, at_once) in [
            ("{ fault = \"10us\" }", true, 4.0),
            ("{ fault = \"10us\" }", false, 1.0),
            ("{ discard = \"10us\" }", true, 4.0),
            ("{ discard = \"10us\" }", false, 1.0),
            ("{ protect = \"10us\" }", true, 1.0),
            ("{ protect = \"10us\" }", false, 1.0),
            ("{ unmap = \"10us\" }", true, 1.0),
        ] {
            let vm = vm(&world(4, steps, ""), lock, readers);
            let what = format!("{lock}, {steps}, readers = {readers}");
            near(&what, vm.work as f64, at_once * 10_000.0, 0.02);
            let flushes =
                if steps.contains("fault") || steps.contains("protect") { 0 } else { vm.work };
            assert!(vm.counts.shootdowns.abs_diff(flushes) <= 4, "{what}");
        }
    }
}

#[test]
fn discard_writes_without_mm_readers() {
    for lock in LOCKS {
        let steps =
            |verb: &str| format!("{{ compute = \"exp(5us)\" }}, {{ {verb} = \"exp(10us)\" }}");
        let [discards, changes] =
            ["discard", "unmap"].map(|verb| vm(&world(6, &steps(verb), ""), lock, false));
        assert_eq!(discards.work, changes.work, "{lock}");
        assert_eq!(discards.counts, changes.counts, "{lock}");
    }
}

#[test]
fn writer_waits_for_readers_and_blocks_new_ones() {
    // Three threads read for 10 µs at a time and one writes for 10 µs, in turn: 20 µs per round.
    for lock in LOCKS {
        let text = world(3, "{ fault = \"10us\" }", "{ compute = \"1us\" }, { unmap = \"10us\" }");
        let vm = vm(&text, lock, true);
        let (read, written) = (vm.roles[0].work as f64 / 3.0, vm.roles[1].work as f64);
        assert!((read + written) * 10.0 <= 100_000.0 * 1.001, "{lock}: {read}, {written}");
        near(&format!("{lock}: read"), read, 5_000.0, 0.06);
        near(&format!("{lock}: written"), written, 5_000.0, 0.06);
    }
}

#[test]
fn spinning_writers_skip_wakeup_latency() {
    let text = world(2, "{ compute = \"1us\" }, { unmap = \"10us\" }", "");
    let each = |lock: &str| {
        let settings = [
            "machine.costs.native_idle_wake=20000",
            "vm.a.mm_readers=true",
            &format!("vm.a.mm_lock={lock}"),
        ];
        100_000.0 / run(&text, &settings).vms[0].work as f64
    };
    near("spinning", each("spinning"), 10.0, 0.02);
    near("handed over", each("handed-over"), 30.0, 0.05);
}

#[test]
fn all_waiters_progress_under_overcommit() {
    for lock in LOCKS {
        let text = "duration = \"1200ms\"\n[machine]\npcpus = 3\n[host]\nhalt_poll = 0
            [[workload]]\nname = \"maps\"
            [[workload.role]]\nname = \"reads\"\nthreads = 5\nprogram = [ { forever = [
                { compute = \"exp(20us)\" }, { fault = \"exp(5us)\" }, { discard = \"exp(3us)\" }, \"work\" ] } ]
            [[workload.role]]\nname = \"writes\"\nthreads = 3\nprogram = [ { forever = [
                { compute = \"exp(100us)\" }, { unmap = \"exp(5us)\" }, \"work\" ] } ]
            [[vm]]\nname = \"a\"\ncount = 2\nvcpus = 3\nworkload = \"maps\"\n";
        let settings = |duration: &str| {
            [
                format!("vm.*.mm_lock={lock}"),
                "vm.*.mm_readers=true".to_owned(),
                format!("duration={duration}"),
            ]
        };
        let works = |duration: &str| -> Vec<u64> {
            let settings = settings(duration);
            let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
            let vms = run(text, &settings).vms;
            let roles = vms.iter().flat_map(|vm| &vm.roles);
            roles.map(|role| role.work).collect()
        };
        let (half, whole) = (works("600ms"), works("1200ms"));
        for (half, whole) in half.iter().zip(&whole) {
            assert!(*half > 100, "{lock}: {half}");
            assert!(*whole as f64 > 1.3 * *half as f64, "{lock}: {half}, then {whole}");
        }
    }
}
