//! Made-up intervals, recorded and replayed.

use std::path::Path;

use tandem_observe::Interval;
use tandem_observe::record::DEFAULT_MAX_BYTES;
use tandem_observe::record::Recorder;
use tandem_policy::State;
use tandem_policy::VcpuId;
use tandem_policy::VcpuTimes;
use tandem_policy::Weight;
use tandem_policy::states::edges::Amount;
use tandem_policy::states::edges::EdgeKind;
use tandem_policy::states::edges::EdgesBuilder;
use tandem_policy::states::edges::Evidence;
use tandem_policy::states::edges::Party;
use tandem_policy::states::interval::HostTotals;
use tandem_policy::states::interval::SourceName;
use tandem_policy::states::interval::VcpuInterval;
use tandem_policy::states::interval::VmInterval;

use super::*;
use crate::columns::Style;
use crate::record::frame;
use crate::top::text::text;

/// One second on two pCPUs, the `n`-th: `db` waits for `batch` on one of them, and is there in the first two only.
fn second(n: u64) -> (Scan, Interval, BTreeMap<VmId, Weight>) {
    let known = |name: &str, pid, vcpus: u32| RecordedVm {
        name: name.to_owned(),
        pid,
        program: "cloud-hypervisor".to_owned(),
        weight: None,
        due: None,
        tids: (0..vcpus).map(|n| (VcpuId(n), pid + 1 + n)).collect(),
    };
    let (db, batch) = (VmId(4), VmId(2));
    let mut vms = vec![found(batch, &known("batch", 200, 1))];
    let ms = Nanos::from_millis;
    let vcpu = |index, ran, waited| VcpuInterval {
        vcpu: VcpuId(index),
        times: VcpuTimes::from_parts(
            ms(1_000),
            [(State::Run, ms(ran)), (State::Ready, ms(waited))],
        )
        .unwrap(),
        ran: ms(ran),
        waited: ms(waited),
        runs: 3,
        runnable: true,
        allowed: "0".parse().unwrap(),
    };
    let vm = |vm, vcpus| VmInterval {
        vm,
        vcpus,
        threads: Vec::new(),
    };
    let mut edges = EdgesBuilder::new();
    let mut measured = vec![vm(batch, vec![vcpu(0, 1_000, 0)])];
    if n < 2 {
        vms.push(found(db, &known("db", 400, 2)));
        measured[0] = vm(batch, vec![vcpu(0, 600, 400)]);
        measured.push(vm(db, vec![vcpu(0, 400, 600), vcpu(1, 0, 0)]));
        let victim = edges.party(&Party::Vcpu {
            vm: db,
            vcpu: VcpuId(0),
        });
        let culprit = edges.party(&Party::Vcpu {
            vm: batch,
            vcpu: VcpuId(0),
        });
        let amount = Amount::time(ms(600));
        edges.add(victim, culprit, EdgeKind::Pcpu, Evidence::Estimated, amount);
    }
    let interval = Interval {
        source: SourceName::Plain,
        start: Nanos::from_secs(50 + n),
        length: ms(1_000),
        vms: measured,
        edges: edges.all(),
        host: HostTotals {
            pcpus: 2,
            idle: Some(ms(1_000)),
            vcpus: ms(1_000),
            ..HostTotals::default()
        },
        missing: Vec::new(),
    };
    let scan = Scan {
        vms,
        unreadable_vmms: 1,
        ..Scan::default()
    };
    let weights = BTreeMap::from([
        (db, Weight::constant(100.0)),
        (batch, Weight::constant(100.0)),
    ]);
    (scan, interval, weights)
}

/// When the `n`-th second begins; before the third nobody looked for an hour.
fn begin(n: u64) -> Nanos {
    Nanos::from_secs(1_700_000_000 + n + if n >= 3 { 3_600 } else { 0 })
}

/// A record of five seconds.
fn recorded(folder: &Path) -> Record {
    let mut recorder = Recorder::create(folder, DEFAULT_MAX_BYTES).unwrap();
    for n in 0..5 {
        let (scan, interval, weights) = second(n);
        let end = begin(n) + interval.length;
        recorder.add(frame(&scan, interval, &weights, end)).unwrap();
    }
    recorder.finish().unwrap();
    Record::open(folder).unwrap()
}

fn at(n: u64) -> Range<Nanos> {
    let at = begin(n) + Nanos(5);
    at..at + Nanos(1)
}

#[test]
fn a_replayed_interval_is_what_top_showed() {
    let dir = tempfile::tempdir().unwrap();
    let record = recorded(dir.path());
    for n in 0..5 {
        let (scan, interval, weights) = second(n);
        let top = shown(&scan, &interval, &weights, |_| true);
        let replayed = replay(&record, at(n), &[]).unwrap();
        assert_eq!(replayed, Some(top), "second {n}");
    }
    let (scan, interval, weights) = second(1);
    let only = shown(&scan, &interval, &weights, |vm| vm.name == "db");
    let replayed = replay(&record, at(1), &["d*".to_owned()]).unwrap();
    assert_eq!(replayed, Some(only));
    let before = Nanos(0)..begin(0);
    assert_eq!(replay(&record, before, &[]).unwrap(), None);
}

#[test]
fn a_range_is_one_interval_in_which_vms_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let record = recorded(dir.path());
    let top = replay(&record, ALWAYS, &[]).unwrap().unwrap();
    for vm in &top.vms {
        let times = State::ALL.iter().filter_map(|state| vm.times.get(*state));
        assert_eq!(times.sum::<Nanos>(), vm.times.wall(), "{}", vm.name);
    }
    // Two seconds of two vCPUs; due is one half of a pCPU in each of them.
    let db = &top.vms[0];
    assert_eq!(
        (db.name.as_str(), db.times.wall()),
        ("db", Nanos::from_secs(4))
    );
    assert_eq!((db.due, db.received), (0.2, 0.16));
    assert!((db.lag - 0.2).abs() < 1e-9, "{}", db.lag);
    // What is gone or sleeps, and who looked for an hour, is not in it.
    assert_eq!(top.seconds, 5.0);
    let golden = "\
VM    vCPU RUN POLL VMM RDY LIM HALT  due recv lag% waits for
db       2  20    –   –  30   –   50 0.20 0.16  +20 batch 100%
batch    1  84    –   –  16   –  0.0 0.80 0.84   -5
2 VMs    3  56    –   –  22   –   22 1.00 1.00
2 pCPUs over 5.00 s: vCPUs 1.00, other threads of VMs 0.00, idle 1.00
kernel threads 0.00, host tasks 0.00";
    assert_eq!(text(&top, false, Style::default()), golden);
}

#[test]
fn a_listing_has_vms_and_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let listing = list(&recorded(dir.path())).unwrap();
    assert_eq!((listing.intervals, listing.dropped), (5, 0));
    assert_eq!(listing.vcpu_intervals, 2 * 3 + 3);
    assert_eq!((listing.complete, listing.written), (true, false));
    assert_eq!(listing.from, Some(begin(0)));
    assert_eq!(listing.to, Some(begin(5)));
    let vms: Vec<(&str, u64, Nanos)> = listing
        .vms
        .iter()
        .map(|vm| (vm.name.as_str(), vm.intervals, vm.to))
        .collect();
    assert_eq!(vms, [("batch", 5, begin(5)), ("db", 2, begin(2))]);
    let hour = Gap {
        from: begin(2) + Nanos::from_secs(1),
        to: begin(3),
    };
    assert_eq!(listing.gaps, [hour]);
}
