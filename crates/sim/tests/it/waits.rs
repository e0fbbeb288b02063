//! Attribution of waits within a VM: worked cases on a machine without costs, and the same figures computed independently from traces and histograms.

use crate::common::FREE;
use tandem_model::Nanos;
use tandem_sim::results::{WaitMatrix, Waits};
use tandem_sim::trace::{ThreadState, TraceEvent, VcpuState};
use tandem_sim::{Results, World};

fn recorded(text: &str, settings: &[&str]) -> (Results, Vec<TraceEvent>) {
    let mut world = World::new(&crate::common::scenario(text, settings));
    world.record_waits();
    world.record_trace(10_000_000);
    let results = world.run();
    (results, world.take_trace().1)
}

fn waits(results: &Results) -> &Waits {
    results.vms[0].waits.as_ref().expect("recorded")
}

fn all(matrix: &WaitMatrix) -> Nanos {
    let (running, off) = matrix.total();
    running + off
}

/// Three threads that arrive 1 ms apart and hold a lock for 10 ms each.
fn queue(lock: &str) -> String {
    let role = |number: u32| {
        format!(
            "[[workload.role]]\nname = \"r{number}\"\npins = [{number}]
            program = [ {{ compute = \"{}ms\" }}, {{ locked = \"l\", do = [ {{ compute = \"10ms\" }} ] }} ]\n",
            number + 1
        )
    };
    format!(
        "duration = \"1s\"\n[machine]\npcpus = 3\n{FREE}
        [host]\nplacement = \"pin\"\n[host.pause_loop]\npolicy = \"off\"
        [[workload]]\nname = \"q\"\n[workload.objects]\nl = {{ kind = \"spin\", {lock} }}
        {}{}{}[[vm]]\nname = \"a\"\nvcpus = 3\nworkload = \"q\"\n",
        role(0),
        role(1),
        role(2)
    )
}

#[test]
fn waiters_are_charged_to_successive_holders() {
    for lock in ["lock = \"ticket\"", "lock = \"queued\", space = \"user\""] {
        let (results, _) = recorded(&queue(lock), &[]);
        let waits = waits(&results);
        let ms = |row: [u64; 3]| row.map(Nanos::from_millis).to_vec();
        let expected = vec![ms([0, 0, 0]), ms([9, 0, 0]), ms([8, 10, 0])];
        assert_eq!(waits.locks.running, expected, "{lock}");
        assert_eq!(waits.locks.total().1, Nanos::ZERO, "{lock}");
    }
}

#[test]
fn recording_is_optional_and_changes_no_results() {
    let text = contended("ticket");
    let plain = crate::common::run(&text, &[]);
    assert!(plain.vms.iter().all(|vm| vm.waits.is_none()));
    let (mut recorded, _) = recorded(&text, &[]);
    for vm in &mut recorded.vms {
        assert!(vm.waits.take().is_some());
    }
    assert!(recorded.observed.take().is_some() && plain.observed.is_none());
    assert_eq!(plain, recorded);
}

/// Two VMs of two vCPUs each that compete for two pCPUs and, within each VM, for a lock.
fn contended(lock: &str) -> String {
    format!(
        "duration = \"400ms\"\n[machine]\npcpus = 2
        [[workload]]\nname = \"w\"\n[workload.objects]\nl = {{ kind = \"spin\", lock = \"{lock}\" }}
        [[workload.role]]\nthreads = \"1 per vcpu\"
        program = [ {{ repeat = 2000, do = [ {{ compute = \"exp(30us)\" }},
            {{ locked = \"l\", do = [ {{ compute = \"exp(20us)\" }} ] }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"w\"\n
        [[vm]]\nname = \"b\"\nvcpus = 2\nworkload = \"w\"\n"
    )
}

/// VM a has a pCPU of its own for vCPU 0 and shares that of vCPU 1 with VM b.
const HALF_SHARED: &str = "
[[vm]]\nname = \"a\"\nvcpus = 2\npins = [\"0\", \"1\"]\nworkload = \"w\"\n
[[vm]]\nname = \"b\"\nvcpus = 1\npins = [\"1\"]\nworkload = \"hog\"\n";

/// Time during which thread 0 spun while vCPU 1 waited for a pCPU.
fn spin_time_while_sibling_off(events: &[TraceEvent]) -> u64 {
    let off = |event: &TraceEvent| match *event {
        TraceEvent::Vcpu { vcpu: 1, state: VcpuState::Ready, from, to } => Some((from, to)),
        _ => None,
    };
    let spun = |event: &TraceEvent| match *event {
        TraceEvent::Thread {
            thread: 0, state: ThreadState::Spinning(Some(_)), from, to, ..
        } => Some((from, to)),
        _ => None,
    };
    let mut sum = 0;
    for (from, to) in events.iter().filter_map(spun) {
        let common = |(a, b): (u64, u64)| b.min(to).saturating_sub(a.max(from));
        sum += events.iter().filter_map(off).map(common).sum::<u64>();
    }
    sum
}

#[test]
fn preempted_holder_wait_matches_trace() {
    for lock in ["ticket", "queued"] {
        let text = format!(
            "duration = \"100ms\"\n[machine]\npcpus = 2\n{FREE}{}
            [[workload]]\nname = \"w\"\n[workload.objects]\nl = {{ kind = \"spin\", lock = \"{lock}\" }}
            [[workload.role]]\nthreads = \"1 per vcpu\"
            program = [ {{ forever = [ {{ compute = \"exp(300us)\" }},
                {{ locked = \"l\", do = [ {{ compute = \"exp(200us)\" }} ] }} ] }} ]
            {HALF_SHARED}",
            crate::common::HOG
        );
        let (results, events) = recorded(&text, &["host.pause_loop.policy=off"]);
        let off = &waits(&results).locks.off;
        assert!(off[0][1] > Nanos::from_millis(1), "{lock}: {off:?}");
        assert_eq!(off[0][1].0, spin_time_while_sibling_off(&events), "{lock}");
        assert_eq!(off[1][0], Nanos::ZERO, "{lock}: vCPU 0 is never off");
    }
}

#[test]
fn pieces_sum_to_the_wait_histogram() {
    for lock in ["test-and-set", "ticket", "queued", "paravirtual"] {
        let (results, _) = recorded(&contended(lock), &["duration=10s"]);
        for vm in &results.vms {
            assert!(vm.finished.is_some(), "{lock}: no wait is left open");
            let waits = vm.waits.as_ref().expect("recorded");
            let free: Nanos = waits.free.iter().copied().sum();
            assert!(vm.lock_wait.sum > Nanos::ZERO, "{lock}");
            assert_eq!(all(&waits.locks) + free, vm.lock_wait.sum, "{lock}");
            for v in 0..2 {
                let own = waits.locks.running[v][v] + waits.locks.off[v][v];
                assert_eq!(own, Nanos::ZERO, "{lock}: no vCPU waits for itself");
            }
        }
    }
}

#[test]
fn warmup_waits_are_excluded() {
    let text = queue("lock = \"ticket\"");
    // The third thread waits from 3 ms to 11 ms for the first, and then to 21 ms for the second.
    let (results, _) = recorded(&text, &["warmup=5ms", "duration=13ms"]);
    let row = &waits(&results).locks.running[2];
    assert_eq!(row, &[6, 2, 0].map(Nanos::from_millis));
}

/// One thread flushes the TLBs of another, whose vCPU shares its pCPU with another VM.
const FLUSHES: &str = "
[[workload]]\nname = \"w\"
[[workload.role]]\nname = \"first\"\npins = [0]
program = [ { repeat = 50, do = [ { unmap = \"10us\" }, { compute = \"500us\" } ] } ]
[[workload.role]]\nname = \"other\"\npins = [1]
program = [ { forever = [ { compute = \"1ms\" } ] } ]\n";

#[test]
fn late_flush_answer_counts_as_off() {
    let text = format!(
        "duration = \"2s\"\n[machine]\npcpus = 2\n{FREE}{}{FLUSHES}{HALF_SHARED}",
        crate::common::HOG
    );
    let (results, _) = recorded(&text, &["host.pause_loop.policy=off"]);
    let vm = &results.vms[0];
    let flushes = &waits(&results).flushes;
    assert_eq!(vm.shootdown_latency.count, 50);
    // A single vCPU is asked, so its answer takes as long as the flush.
    assert_eq!(all(flushes), vm.shootdown_latency.sum);
    assert_eq!(flushes.total().1, flushes.off[0][1], "only 0 waits, for 1");
    // A running vCPU answers at once, as costs are zero.
    assert!(flushes.off[0][1] > Nanos::from_millis(5), "{flushes:?}");
    assert_eq!(flushes.running[0][1], Nanos::ZERO);
}

#[test]
fn large_vms_have_no_matrix() {
    let text = format!(
        "duration = \"1ms\"\n[machine]\npcpus = 2\n{}
        [[vm]]\nname = \"a\"\nvcpus = 65\nworkload = \"hog\"
        [[vm]]\nname = \"b\"\nvcpus = 64\nworkload = \"hog\"\n",
        crate::common::HOG
    );
    let (results, _) = recorded(&text, &[]);
    assert!(results.vms[0].waits.is_none());
    assert_eq!(waits_len(&results.vms[1].waits), Some(64));
}

fn waits_len(waits: &Option<Waits>) -> Option<usize> {
    waits.as_ref().map(|waits| waits.locks.running.len())
}
