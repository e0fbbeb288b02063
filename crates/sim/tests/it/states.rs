//! States of vCPUs and attribution of waits, as an interval: sums that always hold, and the same figures computed independently from traces.

use crate::common::{FREE, HOG};
use tandem_model::states::edges::{EdgeKind, Edges, Party};
use tandem_model::states::interval::{Column, Interval, SourceName, VcpuInterval};
use tandem_model::{Nanos, State, VcpuId, VmId};
use tandem_sim::trace::{ThreadState, TraceEvent, VcpuState};
use tandem_sim::{Results, World};

fn recorded(text: &str, settings: &[&str]) -> (Results, Vec<TraceEvent>) {
    let mut world = World::new(&crate::common::scenario(text, settings));
    world.record_waits();
    world.record_trace(10_000_000);
    let results = world.run();
    (results, world.take_trace().1)
}

fn interval(results: &Results) -> &Interval {
    &results.observed.as_ref().expect("recorded").interval
}

fn vcpu(vm: u64, vcpu: u32) -> Party {
    Party::Vcpu { vm: VmId(vm), vcpu: VcpuId(vcpu) }
}

fn waited(edges: &Edges, victim: &Party, kind: EdgeKind) -> Nanos {
    edges.of(victim, kind).map(|edge| edge.time()).sum()
}

fn time(edges: &Edges, victim: &Party, kind: EdgeKind, culprit: &Party) -> Nanos {
    let edges = edges.of(victim, kind);
    let of = edges.filter(|edge| edge.culprit == culprit);
    of.map(|edge| edge.time()).sum()
}

fn get(vcpu: &VcpuInterval, state: State) -> u64 {
    vcpu.times.get(state).expect("measured").0
}

/// Checks the invariants of every interval of a simulated host.
fn check(results: &Results, what: &str) {
    let interval = interval(results);
    assert_eq!(interval.source, SourceName::Simulator);
    assert_eq!(interval.length, results.measured, "{what}");
    assert_eq!(interval.host.unseen(interval.length), Some(Nanos::ZERO));
    for (number, (vm, of)) in interval.vms.iter().zip(&results.vms).enumerate() {
        assert_eq!(vm.vcpus.len(), of.vcpus.len());
        for (vcpu, is) in vm.vcpus.iter().zip(&of.vcpus) {
            let name = format!("{what}: {number}/{}", vcpu.vcpu);
            let all: u64 = State::ALL.iter().map(|state| get(vcpu, *state)).sum();
            let wall = vcpu.times.wall();
            assert_eq!(all, wall.0, "{name}");
            // An interval excludes the time before a VM's start, which the results count as halted.
            let before = interval.length - wall;
            let victim = Party::Vcpu { vm: vm.vm, vcpu: vcpu.vcpu };
            let edges = |kind| waited(&interval.edges, &victim, kind).0;
            assert_eq!(edges(EdgeKind::Pcpu), get(vcpu, State::Ready), "{name}");
            assert_eq!(edges(EdgeKind::Sibling), get(vcpu, State::Costop), "{name}");
            // The results, which are counted independently, must agree.
            let waits = get(vcpu, State::Ready) + get(vcpu, State::Limited);
            assert_eq!((waits, vcpu.waited), (is.steal.0, is.steal), "{name}");
            assert_eq!(get(vcpu, State::Vmm), is.ran.exits.0, "{name}");
            let polled = get(vcpu, State::Poll);
            assert_eq!(vcpu.ran.0, is.ran.total().0 + polled, "{name}");
            let rest = get(vcpu, State::Run) + get(vcpu, State::Costop) + get(vcpu, State::Halted);
            let expected = is.ran.total() - is.ran.exits + is.halted - before;
            assert_eq!(rest + polled, expected.0, "{name}");
            assert!(get(vcpu, State::Halted) + polled <= (is.halted - before).0, "{name}");
        }
    }
    assert_eq!(interval.missing, []);
}

/// The second VM starts after one of the two measured seconds.
#[test]
fn vm_time_begins_at_its_start() {
    let text = "duration = \"2s\"\n[machine]\npcpus = 1\n
[[workload]]\nname = \"burn\"
[[workload.role]]\nname = \"r\"\nthreads = \"1 per vcpu\"\nprogram = [ { forever = [ { compute = \"1ms\" } ] } ]
[[vm]]\nname = \"early\"\nvcpus = 1\nworkload = \"burn\"
[[vm]]\nname = \"late\"\nvcpus = 1\nworkload = \"burn\"\nstarts = \"1s\"\n";
    let (results, _) = recorded(text, &[]);
    let [early, late] = &interval(&results).vms[..] else {
        panic!("{results:?}");
    };
    assert_eq!(early.vcpus[0].times.wall(), Nanos::from_secs(2));
    let times = late.vcpus[0].times;
    assert_eq!(times.wall(), Nanos::from_secs(1));
    // It always runs or waits, except at its start.
    let halted = times.get(State::Halted).unwrap();
    assert!(halted < Nanos::from_millis(1), "{halted}");
    assert!(times.get(State::Ready).unwrap() > Nanos::from_millis(400));
}

/// Locks, TLB flushes, a spinning barrier, sleep and a queue, in VMs of two sizes.
const MIXED: &str = "
[[workload]]\nname = \"mixed\"
[workload.objects]
spin = { kind = \"spin\", lock = \"ticket\" }
user = { kind = \"spin\", lock = \"test-and-set\", space = \"user\" }
mutex = \"mutex\"
all = { kind = \"barrier\", wait = \"spin\" }
pipe = { kind = \"queue\", capacity = 2 }
[[workload.role]]\nname = \"worker\"\nthreads = \"1 per vcpu\"
program = [ { forever = [ { compute = \"exp(40us)\" }, { locked = \"spin\", do = [ { compute = \"5us\" } ] },
    { locked = \"user\", do = [ { compute = \"3us\" } ] }, { locked = \"mutex\", do = [ { compute = \"9us\" } ] },
    { unmap = \"1us\" }, { barrier = \"all\" }, { sleep = \"exp(100us)\" }, \"work\" ] } ]
[[workload.role]]\nname = \"in\"\nthreads = 1
program = [ { forever = [ { compute = \"exp(30us)\" }, { put = \"pipe\" } ] } ]
[[workload.role]]\nname = \"out\"\nthreads = 1
program = [ { forever = [ { get = \"pipe\" }, { compute = \"exp(30us)\" } ] } ]
[[vm]]\nname = \"a\"\nvcpus = 3\nworkload = \"mixed\"
[[vm]]\nname = \"b\"\nvcpus = 2\nweight = 512\nworkload = \"mixed\"
";

#[test]
fn states_and_edges_sum_under_every_scheduler() {
    let text = format!(
        "duration = \"120ms\"\nwarmup = \"20ms\"\n[machine]\npcpus = 3\n{MIXED}{HOG}
        [[vm]]\nname = \"c\"\nvcpus = 3\nworkload = \"hog\"\nstarts = \"30ms\"\n"
    );
    for settings in [
        &["host.scheduler=cfs"][..],
        &["host.scheduler=eevdf"],
        &["host.scheduler=credit"],
        &["host.cap=true"],
        &["host.placement=no-stacking", "host.pause_loop.policy=off"],
        &["host.halt_poll=0", "host.together=gang"],
        &["host.pause_loop.policy=aple"],
    ] {
        let (results, _) = recorded(&text, settings);
        check(&results, &settings.join(" "));
        let vms = &interval(&results).vms;
        let ready = |vm: usize| vms[vm].vcpus.iter().map(|v| get(v, State::Ready)).sum::<u64>();
        assert!((0..3).all(|vm| ready(vm) > 0), "{settings:?}: every VM waits");
        // The measurement covers 20 ms to 120 ms.
        let wall = vms[2].vcpus[0].times.wall();
        assert_eq!(wall, Nanos::from_millis(90), "it starts at 30 ms");
    }
}

#[test]
fn capped_vm_is_limited_without_edges() {
    let text = format!(
        "duration = \"400ms\"\n[machine]\npcpus = 2\n{FREE}[host]\ncap = true\nplacement = \"pin\"\n{HOG}
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"hog\"\nweight = 1024
        [[vm]]\nname = \"b\"\nvcpus = 1\nworkload = \"hog\"\nweight = 1024
        [[vm]]\nname = \"c\"\nvcpus = 2\nworkload = \"hog\"\nweight = 1024\n"
    );
    let (results, _) = recorded(&text, &[]);
    check(&results, "cap");
    let vms = &interval(&results).vms;
    let limited = |vm: usize| vms[vm].vcpus.iter().map(|v| get(v, State::Limited)).sum::<u64>();
    assert!((0..3).map(limited).sum::<u64>() > 10_000_000, "{vms:?}");
}

#[test]
fn unavailable_columns_are_missing() {
    let text = format!(
        "duration = \"20ms\"\n[machine]\npcpus = 2\n{HOG}
        [[vm]]\nname = \"a\"\nvcpus = 65\nworkload = \"hog\"
        [[vm]]\nname = \"b\"\nvcpus = 2\nworkload = \"hog\"\n"
    );
    let (results, _) = recorded(&text, &["host.scheduler=credit", "host.cap=true"]);
    let interval = interval(&results);
    let large = &interval.vms[0].vcpus[0].times;
    assert_eq!((large.get(State::Costop), large.get(State::Limited)), (None, None));
    assert!(interval.vms[1].vcpus[0].times.get(State::Costop).is_some());
    let what: Vec<Column> = interval.missing.iter().map(|missing| missing.what).collect();
    assert!(what.contains(&Column::State(State::Limited)));
    assert!(what.contains(&Column::State(State::Costop)));
    let said: Vec<String> = interval.missing.iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|said| said.contains("for 1 of 2 VMs")), "{said:?}");
}

/// Time spans in which a vCPU was in a state.
fn spans(events: &[TraceEvent], number: u32, wanted: VcpuState) -> Vec<(u64, u64)> {
    let span = |event: &TraceEvent| match *event {
        TraceEvent::Vcpu { vcpu, state, from, to } if vcpu == number && state == wanted => {
            Some((from, to))
        }
        _ => None,
    };
    events.iter().filter_map(span).collect()
}

fn overlap(one: &[(u64, u64)], two: &[(u64, u64)]) -> u64 {
    let common = |(a, b): (u64, u64), (c, d): (u64, u64)| b.min(d).saturating_sub(a.max(c));
    one.iter().map(|&span| two.iter().map(|&other| common(span, other)).sum::<u64>()).sum()
}

/// A, B and C share one pCPU with weights 1, 2 and 4: A waits for B twice as long as it runs itself, and for C four times as long.
#[test]
fn culprits_are_charged_their_run_time() {
    let vm = |name: &str, weight: u32| {
        format!("[[vm]]\nname = \"{name}\"\nvcpus = 1\nweight = {weight}\nworkload = \"hog\"\n")
    };
    let text = format!(
        "duration = \"8s\"\nwarmup = \"1s\"\n[machine]\npcpus = 1\n{HOG}{}{}{}",
        vm("a", 1024),
        vm("b", 2048),
        vm("c", 4096)
    );
    for scheduler in ["cfs", "eevdf"] {
        let (results, events) = recorded(&text, &[&format!("host.scheduler={scheduler}")]);
        check(&results, scheduler);
        let edges = &interval(&results).edges;
        for (victim, others) in [(0u32, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
            let ready = spans(&events, victim, VcpuState::Ready);
            for culprit in others {
                let ran = spans(&events, culprit, VcpuState::Running);
                let after = |spans: &[(u64, u64)]| -> Vec<(u64, u64)> {
                    let from = 1_000_000_000;
                    spans.iter().map(|&(a, b)| (a.max(from), b.max(from))).collect()
                };
                let truth = overlap(&after(&ready), &after(&ran));
                let (one, two) = (vcpu(victim.into(), 0), vcpu(culprit.into(), 0));
                let edge = time(edges, &one, EdgeKind::Pcpu, &two);
                assert_eq!(edge.0, truth, "{scheduler}: {victim} for {culprit}");
            }
        }
        // In 7 s, A runs for one, B for two and C for four; each waits for another as long as that one runs.
        let of = |victim: u64, culprit: u64| {
            time(edges, &vcpu(victim, 0), EdgeKind::Pcpu, &vcpu(culprit, 0)).as_secs_f64()
        };
        for (what, is, wanted) in [
            ("A for B", of(0, 1), 2.0),
            ("A for C", of(0, 2), 4.0),
            ("B for A", of(1, 0), 1.0),
            ("C for B", of(2, 1), 2.0),
        ] {
            crate::common::near(&format!("{scheduler}: {what}"), is, wanted, 0.01);
        }
    }
}

#[test]
fn stacked_siblings_wait_for_each_other() {
    let text = format!(
        "duration = \"1s\"\n[machine]\npcpus = 2\n{FREE}{HOG}
        [[vm]]\nname = \"a\"\nvcpus = 2\npins = [\"0\", \"0\"]\nworkload = \"hog\"
        [[vm]]\nname = \"b\"\nvcpus = 1\npins = [\"1\"]\nworkload = \"hog\"\n"
    );
    let (results, _) = recorded(&text, &[]);
    check(&results, "stacked");
    let edges = &interval(&results).edges;
    let own = time(edges, &vcpu(0, 0), EdgeKind::Pcpu, &vcpu(0, 1));
    crate::common::near("a's own", own.as_secs_f64(), 0.5, 0.02);
    assert_eq!(waited(edges, &vcpu(1, 0), EdgeKind::Pcpu), Nanos::ZERO);
}

/// VM a has a pCPU of its own for vCPU 0 and shares that of vCPU 1 with VM b.
const HALF_SHARED: &str = "
[[vm]]\nname = \"a\"\nvcpus = 2\npins = [\"0\", \"1\"]\nworkload = \"w\"\n
[[vm]]\nname = \"b\"\nvcpus = 1\npins = [\"1\"]\nworkload = \"hog\"\n";

/// Time spans in which a thread was in a state.
fn thread_spans(
    events: &[TraceEvent],
    number: u32,
    wanted: fn(ThreadState) -> bool,
) -> Vec<(u64, u64)> {
    let span = |event: &TraceEvent| match *event {
        TraceEvent::Thread { thread, state, from, to, .. } if thread == number && wanted(state) => {
            Some((from, to))
        }
        _ => None,
    };
    events.iter().filter_map(span).collect()
}

/// A vCPU that spins for a sibling off its pCPU is in co-stop: for a lock's holder, at a barrier, for a TLB flush.
#[test]
fn costop_of_spinning_matches_trace() {
    let turn = |what: &str| {
        format!("[ {{ repeat = 60, do = [ {{ compute = \"exp(300us)\" }}, {what}, \"work\" ] }} ]")
    };
    let under_lock = turn("{ locked = \"l\", do = [ { compute = \"exp(200us)\" } ] }");
    for (name, objects, program) in [
        ("kernel lock", "l = { kind = \"spin\", lock = \"ticket\" }", under_lock.clone()),
        (
            "user lock",
            "l = { kind = \"spin\", lock = \"test-and-set\", space = \"user\" }",
            under_lock,
        ),
        ("barrier", "all = { kind = \"barrier\", wait = \"spin\" }", turn("{ barrier = \"all\" }")),
        ("flush", "unused = \"mutex\"", turn("{ unmap = \"1us\" }")),
    ] {
        // A flushing thread holds a lock for which a second one would block.
        let other = match name {
            "flush" => turn("{ compute = \"3ms\" }"),
            _ => program.clone(),
        };
        let text = format!(
            "duration = \"3s\"\n[machine]\npcpus = 2\n{FREE}{HOG}
            [[workload]]\nname = \"w\"\n[workload.objects]\n{objects}
            [[workload.role]]\nname = \"first\"\npins = [0]\nprogram = {program}
            [[workload.role]]\nname = \"other\"\npins = [1]\nprogram = {other}\n{HALF_SHARED}"
        );
        let (results, events) = recorded(&text, &["host.pause_loop.policy=off"]);
        check(&results, name);
        assert!(results.vms[0].finished.is_some(), "{name}: no wait is left open");
        let spun = thread_spans(&events, 0, |state| matches!(state, ThreadState::Spinning(_)));
        let truth = overlap(&spun, &spans(&events, 1, VcpuState::Ready));
        let interval = interval(&results);
        let costop = get(&interval.vms[0].vcpus[0], State::Costop);
        assert!(truth > 5_000_000, "{name}: {truth}");
        assert_eq!(costop, truth, "{name}");
        let edge = time(&interval.edges, &vcpu(0, 0), EdgeKind::Sibling, &vcpu(0, 1));
        assert_eq!(edge.0, truth, "{name}");
        // vCPU 0 is never off, so it causes no co-stop.
        assert_eq!(get(&interval.vms[0].vcpus[1], State::Costop), 0, "{name}");
    }
}

/// A halted vCPU woken by a sibling was in co-stop while that sibling was kept off its pCPU.
#[test]
fn costop_of_halting_matches_trace() {
    let text = format!(
        "duration = \"3s\"\n[machine]\npcpus = 2\n{FREE}{HOG}
        [[workload]]\nname = \"w\"\n[workload.objects]
        token = {{ kind = \"semaphore\", units = 0, count = 2 }}
        [[workload.role]]\nname = \"first\"\npins = [0]
        program = [ {{ repeat = 100, do = [ {{ compute = \"200us\" }}, {{ release = \"token[0]\" }}, {{ acquire = \"token[1]\" }} ] }} ]
        [[workload.role]]\nname = \"second\"\npins = [1]
        program = [ {{ repeat = 100, do = [ {{ acquire = \"token[0]\" }}, {{ compute = \"3ms\" }}, {{ release = \"token[1]\" }}, \"work\" ] }} ]
        {HALF_SHARED}"
    );
    let (results, events) = recorded(&text, &["host.halt_poll=0"]);
    check(&results, "token");
    let halted = spans(&events, 0, VcpuState::Halted);
    // The final halt, after the thread's end, is not co-stop.
    let woken: Vec<(u64, u64)> = halted[..halted.len() - 1].to_vec();
    let truth = overlap(&woken, &spans(&events, 1, VcpuState::Ready));
    let costop = get(&interval(&results).vms[0].vcpus[0], State::Costop);
    assert!(truth > 20_000_000, "{truth}");
    assert_eq!(costop, truth);
}

#[test]
fn directed_yields_are_edges_with_a_count() {
    let text = "duration = \"300ms\"\n[machine]\npcpus = 2
        [[workload]]\nname = \"w\"\n[workload.objects]\nl = { kind = \"spin\", lock = \"ticket\" }
        [[workload.role]]\nthreads = \"1 per vcpu\"
        program = [ { forever = [ { compute = \"exp(30us)\" }, { locked = \"l\", do = [ { compute = \"exp(20us)\" } ] } ] } ]
        [[vm]]\nname = \"a\"\nvcpus = 4\nworkload = \"w\"\n";
    let (results, _) = recorded(text, &[]);
    check(&results, "yields");
    let count = |kind: EdgeKind| -> u64 {
        let edges = interval(&results).edges.iter();
        let of_kind = edges.filter(|edge| edge.kind == kind);
        of_kind.filter_map(|edge| edge.amount.count).sum()
    };
    assert!(results.vms[0].counts.yields > 10);
    assert_eq!(count(EdgeKind::YieldTaken), results.vms[0].counts.yields);
}

#[test]
fn interval_excludes_warmup() {
    let text = format!("duration = \"150ms\"\nwarmup = \"100ms\"\n[machine]\npcpus = 2\n{MIXED}");
    let (results, _) = recorded(&text, &[]);
    check(&results, "warm-up");
    assert_eq!(interval(&results).start, Nanos::from_millis(100));
    assert_eq!(interval(&results).length, Nanos::from_millis(50));
}

#[test]
fn native_cpus_have_no_edges() {
    let text = format!(
        "duration = \"50ms\"\n[machine]\npcpus = 2\nmode = \"native\"\n{HOG}
        [[vm]]\nname = \"a\"\nworkload = \"hog\"\n"
    );
    let (results, _) = recorded(&text, &[]);
    check(&results, "native");
    assert!(interval(&results).edges.is_empty());
}
