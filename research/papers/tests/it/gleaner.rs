//! Gleaner in simulated guests: consolidation, retention, no loss of work, and the paper's settings.

use std::path::Path;

use crate::common::run;
use tandem_sim::World;
use tandem_sim::results::{AgentChoice, VmResults};
use tandem_sim::scenario::load::{Setting, Source};

/// Two threads that pass a token back and forth, and other workloads.
const TOKEN: &str = "duration = \"4s\"\nwarmup = \"2s\"\n[machine]\npcpus = 2
    [host]\nhalt_poll = 0\napicv = false
    [[workload]]\nname = \"token\"
    objects = { there = { kind = \"semaphore\", units = 0 }, back = { kind = \"semaphore\", units = 0 } }
    [[workload.role]]\nname = \"ping\"
    program = [ { forever = [ { compute = \"2us\" }, { release = \"there\" }, { acquire = \"back\" }, \"work\" ] } ]
    [[workload.role]]\nname = \"pong\"
    program = [ { forever = [ { acquire = \"there\" }, { compute = \"2us\" }, { release = \"back\" } ] } ]
    [[workload]]\nname = \"computes\"
    [[workload.role]]\nthreads = \"1 per vcpu\"
    program = [ { forever = [ { compute = \"1ms\" }, \"work\" ] } ]
    [[workload]]\nname = \"phases\"
    objects = { meet = { kind = \"barrier\", wait = \"block\" } }
    [[workload.role]]\nthreads = \"1 per vcpu\"
    program = [ { forever = [ { compute = \"normal(900us, 200us)\" }, { barrier = \"meet\" }, \"work\" ] } ]
    [[workload]]\nname = \"naps\"
    [[workload.role]]\nthreads = \"1 per vcpu\"
    program = [ { forever = [ { compute = \"500us\" }, { sleep = \"400us\" }, \"work\" ] } ]
    [[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"token\"\n";

fn vm(settings: &[&str]) -> VmResults {
    let mut results = run(TOKEN, settings);
    results.vms.remove(0)
}

/// Asserts that Gleaner yields more than `factor` times the work.
#[track_caller]
fn assert_gains(factor: f64, without: &VmResults, with: &VmResults) {
    assert!(
        with.work as f64 > factor * without.work as f64,
        "{} against {}: {:?}",
        with.work,
        without.work,
        with.gleaner
    );
}

fn last_choice(vm: &VmResults) -> u32 {
    vm.gleaner.last().map_or(2, |choice| choice.vcpus)
}

#[test]
fn token_passing_gains_from_consolidation() {
    let (without, with) = (vm(&[]), vm(&["vm.a.gleaner={ retain = false }"]));
    assert!(without.gleaner.is_empty());
    assert_eq!(last_choice(&with), 1, "{:?}", with.gleaner);
    assert_gains(4.0, &without, &with);
    // Within 3 s of the program's start.
    assert!(with.gleaner[0].at.0 < 3_000_000_000, "{:?}", with.gleaner);
}

#[test]
fn retention_alone_gains_and_costs_cpu_time() {
    let (without, with) = (vm(&[]), vm(&["vm.a.gleaner={ consolidate = false }"]));
    assert!(with.gleaner.last().unwrap().retention.0 > 0);
    assert_gains(1.5, &without, &with);
    assert!(with.received > without.received);
}

#[test]
fn computing_threads_are_not_consolidated() {
    let of = |gleaner: &str| vm(&["vm.a.workload=computes", gleaner]);
    let (without, with) = (of("vm.a.gleaner=false"), of("vm.a.gleaner=true"));
    assert_eq!(last_choice(&with), 2);
    assert_eq!(with.work, without.work);
}

#[test]
fn long_phases_lose_nothing() {
    let of = |gleaner: &str| vm(&["vm.a.workload=phases", gleaner]);
    let (without, with) = (of("vm.a.gleaner=false"), of("vm.a.gleaner=true"));
    assert_gains(0.98, &without, &with);
}

/// Token passing with retention only under a controller, next to a VM that computes on the same pCPUs from 2 s on.
fn with_computing_neighbour(control: &str) -> VmResults {
    let vms = format!(
        "vm=[{{ name = \"a\", vcpus = 2, workload = \"token\", \
         gleaner = {{ control = \"{control}\", consolidate = false }} }}, \
         {{ name = \"b\", vcpus = 2, workload = \"computes\", starts = \"2s\" }}]"
    );
    vm(&[&vms])
}

#[test]
fn retention_ends_when_host_is_contended() {
    for control in ["ours", "agent"] {
        let with = with_computing_neighbour(control);
        let begins = with.gleaner.iter().find(|choice| choice.retention.0 > 0);
        assert!(begins.is_some_and(|choice| choice.at.0 < 2_000_000_000));
        let last = with.gleaner.last().unwrap();
        assert_eq!(last.retention.0, 0, "{control}: {:?}", with.gleaner);
        assert!(last.at.0 < 3_000_000_000, "{control}: {:?}", with.gleaner);
    }
}

#[test]
fn consolidation_halves_vcpus() {
    let settings =
        ["machine.pcpus=8", "vm.a.vcpus=8", "vm.a.gleaner={ retain = false, confirm = 1 }"];
    let with = vm(&settings);
    let counts: Vec<u32> = with.gleaner.iter().map(|choice| choice.vcpus).collect();
    assert_eq!(counts.first(), Some(&4), "{counts:?}");
    assert!(counts.is_sorted_by(|a, b| a >= b), "{counts:?}");
    assert_eq!(counts.last(), Some(&1), "{counts:?}");
}

const AGENT: &str = "vm.a.gleaner={ control = \"agent\" }";

#[test]
fn live_controller_consolidates_token_and_stays() {
    let (without, with) = (vm(&[]), vm(&[AGENT]));
    assert_gains(4.0, &without, &with);
    let last = with.gleaner.last().unwrap();
    assert_eq!(last.vcpus, 1, "{:?}", with.gleaner);
    assert!(last.at.0 < 3_000_000_000, "{:?}", with.gleaner);
}

#[test]
fn live_controller_retains_without_consolidation() {
    let with = vm(&["vm.a.gleaner={ control = \"agent\", consolidate = false }"]);
    let without = vm(&[]);
    assert!(with.gleaner.iter().all(|choice| choice.vcpus == 2));
    assert_gains(1.5, &without, &with);
}

#[test]
fn live_controller_loses_no_work() {
    for workload in ["computes", "phases"] {
        let of = |gleaner: &str| vm(&[&format!("vm.a.workload={workload}"), gleaner]);
        let (without, with) = (of("vm.a.gleaner=false"), of(AGENT));
        println!("{workload}:");
        assert_gains(0.98, &without, &with);
    }
}

#[test]
fn live_controller_reverts_changes_without_gain() {
    // The rule permits both changes, but the work needs more than one vCPU.
    let (without, with) = (vm(&["vm.a.workload=naps"]), vm(&["vm.a.workload=naps", AGENT]));
    let tried = |of: fn(&AgentChoice) -> bool| with.gleaner.iter().filter(|c| of(c)).count();
    assert!(tried(|choice| choice.vcpus == 1) > 0, "{:?}", with.gleaner);
    assert!(tried(|choice| choice.retention.0 > 0) > 0, "{:?}", with.gleaner);
    let last = with.gleaner.last().unwrap();
    assert_eq!((last.vcpus, last.retention.0), (2, 0), "{:?}", with.gleaner);
    assert_gains(0.97, &without, &with);
}

#[test]
fn paper_removes_one_vcpu_at_a_time() {
    let settings = |control: &str| {
        let gleaner = format!("vm.a.gleaner={{ control = \"{control}\", retain = false }}");
        let with = vm(&["machine.pcpus=8", "vm.a.vcpus=8", &gleaner]);
        with.gleaner[0].vcpus
    };
    assert_eq!((settings("paper"), settings("ours")), (7, 4));
}

#[test]
fn paper_retention_ignores_contention() {
    let with = with_computing_neighbour("paper");
    let retention: Vec<u64> = with.gleaner.iter().map(|choice| choice.retention.0).collect();
    assert_eq!(retention, [50_000]);
    let with = with_computing_neighbour("ours");
    assert_eq!(with.gleaner.last().unwrap().retention.0, 0);
}

#[test]
fn paper_consolidation_oscillates_on_full_vcpu() {
    let with = vm(&["vm.a.gleaner={ control = \"paper\", retain = false }"]);
    let counts: Vec<u32> = with.gleaner.iter().map(|choice| choice.vcpus).collect();
    assert!(counts.len() > 4, "{counts:?}");
    assert_eq!(counts[..4], [1, 2, 1, 2]);
}

#[test]
fn agent_handles_spurious_wake_ups() {
    // Connections mostly wait for disk and network, so a woken vCPU often finds that another one took the thread.
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios/papers/gleaner-program.toml");
    let mut source = Source::read(Path::new(file)).unwrap();
    for (key, value) in [
        ("vm.program.workload", "oltp"),
        ("vm.program.sized_for", "24"),
        ("vm.program.gleaner", "true"),
        ("duration", "1500ms"),
    ] {
        source.set(Setting::new(key, value));
    }
    let mut world = World::new(&source.scenario().unwrap());
    world.without_checks();
    let results = world.run();
    assert!(results.vms[0].work > 1000, "{}", results.vms[0].work);
}
