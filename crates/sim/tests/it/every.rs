//! The step `every`: threads whose periods follow the clock, whatever service they get.

use crate::common::{FREE, HOG, near, run, scenario};
use tandem_model::Nanos;
use tandem_sim::World;

/// Work per second of a program alone on a pCPU, or next to a VM that always computes.
fn rate(program: &str, has_neighbour: bool) -> f64 {
    let neighbour =
        if has_neighbour { "[[vm]]\nname = \"hog\"\nvcpus = 1\nworkload = \"hog\"\n" } else { "" };
    let text = format!(
        "duration = \"10s\"\n[machine]\npcpus = 1\n{FREE}{HOG}
        [[workload]]\nname = \"timed\"\n[[workload.role]]\nprogram = [ {program} ]
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"timed\"\n{neighbour}"
    );
    let results = run(&text, &[]);
    results.vms[0].work as f64 / results.measured.as_secs_f64()
}

#[test]
fn period_does_not_drift() {
    let every =
        "{ forever = [ { every = \"10ms\" }, { compute = \"uniform(1ms, 3ms)\" }, \"work\" ] }";
    near("alone", rate(every, false), 100.0, 0.002);
    near("with a neighbour", rate(every, true), 100.0, 0.002);
    let sleep = every.replace("every = \"10ms\"", "sleep = \"8ms\"");
    near("sleeping, alone", rate(&sleep, false), 100.0, 0.01);
    let slipped = rate(&sleep, true);
    assert!(slipped < 95.0, "a sleep after the work adds each wait to the period: {slipped}");
}

#[test]
fn late_thread_never_sleeps() {
    let program = "{ forever = [ { every = \"10ms\" }, { compute = \"15ms\" }, \"work\" ] }";
    near("back to back", rate(program, false), 1000.0 / 15.0, 0.002);
}

#[test]
fn missed_periods_are_skipped() {
    // The long part ends at 105 ms: periods 20 … 90 are skipped, 100 starts late, 110 in time.
    let program = "{ every = \"10ms\" }, { compute = \"95ms\" },
        { repeat = 90, do = [ { every = \"10ms\" }, { compute = \"1ms\" }, \"work\" ] }, { sleep = \"9s\" }, \"work\"";
    let text = format!(
        "duration = \"995ms\"\n[machine]\npcpus = 1\n{FREE}
        [[workload]]\nname = \"timed\"\n[[workload.role]]\nprogram = [ {program} ]
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"timed\"\n"
    );
    // At 105, 110, 120 … 990 ms.
    assert_eq!(run(&text, &[]).vms[0].work, 90);
}

#[test]
fn portions_of_a_run_change_nothing() {
    // No event falls on the end of the warm-up: the only thread sleeps then.
    let text = "duration = \"60ms\"\nwarmup = \"30ms\"\n[machine]\npcpus = 1
        [[workload]]\nname = \"timed\"\n[[workload.role]]
        program = [ { forever = [ { sleep = \"exp(3ms)\" }, { compute = \"70us\" }, \"work\" ] } ]
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"timed\"\n";
    let scenario = scenario(text, &[]);
    let whole = World::new(&scenario).run();
    assert_eq!(whole.measured, Nanos::from_millis(30));
    let mut world = World::new(&scenario);
    let mut until = Nanos::ZERO;
    while !world.run_until(until) {
        until += Nanos::from_millis(1);
    }
    assert_eq!(world.results(), whole);
}
