//! Kernels that refuse a program: the others keep working, and the unavailable figures are named.

use std::thread::sleep;
use std::time::Duration;

use tandem_linux::ProcFs;
use tandem_linux::thread::ThreadRef;
use tandem_model::states::edges::{EdgeKind, Evidence};
use tandem_model::states::interval::{Column, SourceName};
use tandem_model::{Nanos, State, VcpuId, VmId};
use tandem_observe::bpf::{Absence, Bpf, BpfError, BpfSource, Options};
use tandem_observe::{Source, WatchedVcpu, WatchedVm};

use crate::harness::Skip;
use crate::{helper, is_near, myself, open, spinning, start_sleeper, watch};

fn without(program: &'static str) -> Options {
    Options { refused: Some(program), ..Options::default() }
}

/// Programs that a kernel may refuse, with their events.
const PROGRAMS: [(&str, &str); 7] = [
    ("on_wakeup", "tracepoint sched_wakeup"),
    ("on_wakeup_new", "tracepoint sched_wakeup_new"),
    ("on_migrate", "tracepoint sched_migrate_task"),
    ("on_exit", "tracepoint sched_process_exit"),
    ("on_waking", "tracepoint sched_waking"),
    ("find_out", "program find_out"),
    ("settle", "program settle"),
];

/// A VM of two vCPUs that spin on one pCPU, measured by sources without one program each.
pub fn columns() -> Result<(), Skip> {
    let all: Vec<String> = open()?.missing().into_iter().map(|missing| missing.event).collect();
    let refused = Bpf::open(without("on_switch")).map(drop);
    assert!(matches!(refused, Err(BpfError::Load { .. })), "{refused:?}");

    let (vm, threads) = spinning(2, 2);
    let vcpus =
        (0..).zip(&threads).map(|(n, thread)| WatchedVcpu { vcpu: VcpuId(n), thread: *thread });
    let process = ThreadRef::of_process(&ProcFs::host(), vm.pid()).expect("it lives");
    let vms = [WatchedVm { vm: VmId(7), process, vcpus: vcpus.collect() }];
    for (program, event) in PROGRAMS {
        let bpf = Bpf::open(without(program)).expect("the other programs are loaded");
        let missing = bpf.missing();
        let lost: Vec<_> = missing.iter().filter(|one| !all.contains(&one.event)).collect();
        assert_eq!(lost.len(), 1, "{program}: {lost:?}");
        assert_eq!((lost[0].event.as_str(), lost[0].absence), (event, Absence::Refused));
        drop(bpf);

        let mut source =
            BpfSource::open(ProcFs::host(), without(program)).expect("it was possible just now");
        source.begin(&vms).expect("it begins");
        sleep(Duration::from_millis(400));
        let interval = source.interval(&vms).expect("an interval");
        assert_eq!(interval.source, SourceName::Bpf);
        let programs = interval.programs.as_ref().expect("they are there");
        let names = programs.not_seen.iter().filter(|one| one.event == event);
        assert_eq!(names.count(), 1, "{program}: {programs:?}");
        let siblings = interval.missing.iter().find(|missing| {
            missing.what == Column::Edges(EdgeKind::Sibling) && missing.want.contains(event)
        });
        let needs_wakers = program == "on_wakeup" || program == "on_waking";
        assert_eq!(siblings.is_some(), needs_wakers, "{program}: {:?}", interval.missing);
        for vcpu in &interval.vms[0].vcpus {
            let time = |state| vcpu.times.get(state).expect("it is measured").0;
            let (run, ready) = (time(State::Run), time(State::Ready));
            assert!(run > 0 && ready > vcpu.times.wall().0 / 4, "{program}: {vcpu:?}");
        }
        let evidence: Vec<Evidence> = interval
            .edges
            .iter()
            .filter(|edge| edge.kind == EdgeKind::Pcpu)
            .map(|edge| edge.evidence)
            .collect();
        let expected =
            if program == "on_migrate" { Evidence::Estimated } else { Evidence::Measured };
        assert!(!evidence.is_empty(), "{program}");
        assert!(evidence.iter().all(|evidence| *evidence == expected), "{program}");
    }
    Ok(())
}

/// Threads that exit or wait, without the programs for these events.
pub fn threads() -> Result<(), Skip> {
    let _ = open()?;
    let mut bpf = Bpf::open(without("on_exit")).expect("the other programs are loaded");
    let (tid, sender, thread) = start_sleeper();
    bpf.watch(&watch(&[myself(tid)])).expect("it can be watched");
    bpf.read().expect("a reading");
    drop(sender);
    thread.join().expect("it ends");
    helper::wait_until("it is reported as ended", || {
        bpf.read().expect("a reading").vcpus.iter().any(|vcpu| vcpu.ended)
    });
    assert_eq!(bpf.read().expect("a reading").vcpus, []);

    // Without the search for threads, the first switch shows their state.
    let mut bpf = Bpf::open(without("find_out")).expect("the other programs are loaded");
    let (_vm, threads) = spinning(2, 2);
    bpf.watch(&watch(&threads)).expect("they can be watched");
    sleep(Duration::from_millis(300));
    bpf.read().expect("a reading");
    sleep(Duration::from_millis(500));
    for vcpu in bpf.read().expect("a reading").vcpus {
        assert!(!vcpu.ended);
        let on_and_waiting = vcpu.times.on_pcpu() + vcpu.times.ready;
        assert!(is_near(on_and_waiting, vcpu.wall, 0.05), "{vcpu:?}");
        assert!(vcpu.times.ready > Nanos::ZERO, "{vcpu:?}");
    }
    Ok(())
}
