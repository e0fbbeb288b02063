//! Synthetic intervals, recorded and replayed.

use std::ops::Range;
use std::path::Path;

use tandem_linux::cgroup::{CgroupPath, Quota, Version};
use tandem_model::states::edges::{Amount, EdgeKind, EdgesBuilder, Evidence, Party};
use tandem_model::states::interval::HostTotals;
use tandem_model::{State, VcpuId, VcpuTimes, Weight};
use tandem_observe::findings::{Kind, KnownQuota, KnownVm};
use tandem_observe::record::{DEFAULT_MAX_BYTES, Recorder};

use super::*;
use crate::columns::Style;
use crate::fixtures::intervals::{interval, vcpu_on, vm_interval};
use crate::fixtures::ms;
use crate::record::{Settings, frame};
use crate::top::text::text;
use crate::weights::Weights;

/// One second on two pCPUs, the `n`-th: `db` waits for `batch` on one of them, and exists in the first two only.
fn second(n: u64) -> (Scan, Interval, Weights) {
    let known = |name: &str, pid, vcpus: u32| RecordedVm {
        name: name.to_owned(),
        pid,
        program: "cloud-hypervisor".to_owned(),
        weight: None,
        due: None,
        tids: (0..vcpus).map(|n| (VcpuId(n), pid + 1 + n)).collect(),
        settings: None,
    };
    let (db, batch) = (VmId(4), VmId(2));
    let mut vms = vec![found(batch, &known("batch", 200, 1))];
    let vcpu =
        |index, ran, waited| vcpu_on("0", index, &[(State::Run, ran), (State::Ready, waited)], 3);
    let mut edges = EdgesBuilder::new();
    let mut measured = vec![vm_interval(batch.0, vec![vcpu(0, 1_000, 0)])];
    if n < 2 {
        vms.push(found(db, &known("db", 400, 2)));
        measured[0] = vm_interval(batch.0, vec![vcpu(0, 600, 400)]);
        measured.push(vm_interval(db.0, vec![vcpu(0, 400, 600), vcpu(1, 0, 0)]));
        let victim = edges.party(&Party::Vcpu { vm: db, vcpu: VcpuId(0) });
        let culprit = edges.party(&Party::Vcpu { vm: batch, vcpu: VcpuId(0) });
        let amount = Amount::time(ms(600));
        edges.add(victim, culprit, EdgeKind::Pcpu, Evidence::Estimated, amount);
    }
    let (idle, vcpus) = (Some(ms(1_000)), ms(1_000));
    let host = HostTotals { pcpus: 2, idle, vcpus, ..HostTotals::default() };
    let interval = interval(start(n), measured, edges.all(), host);
    let scan = Scan { vms, unreadable_vmms: 1, ..Scan::default() };
    let weights = [db, batch].map(|vm| (vm, Weight::constant(100.0)));
    (scan, interval, weights.into_iter().collect())
}

/// Start of the `n`-th second by CLOCK_MONOTONIC; an hour without intervals precedes the third.
fn start(n: u64) -> Nanos {
    Nanos::from_secs(50 + n + if n >= 3 { 3_600 } else { 0 })
}

/// The same by the wall clock.
fn begin(n: u64) -> Nanos {
    start(n) + Nanos::from_secs(1_700_000_000)
}

/// Settings with a quota on `db`, and the host.
fn settings() -> Settings {
    let cgroup = CgroupPath("/machine.slice/db".to_owned());
    let db = KnownVm {
        weight: 1.0,
        cgroup: Some(cgroup.clone()),
        quotas: vec![KnownQuota {
            cgroup,
            quota: Quota { quota_us: 40_000, period_us: 100_000 },
            throttled: None,
        }],
        ..KnownVm::default()
    };
    Settings {
        vms: BTreeMap::from([(VmId(4), db)]),
        host: Some(KnownHost {
            version: Version::V1,
            mount: "/sys/fs/cgroup/cpu".into(),
            online: "0-1".parse().unwrap(),
            isolated: Default::default(),
            caches: Vec::new(),
            cores: Vec::new(),
            kernel: Some((6, 18)),
            has_autogroup: false,
        }),
    }
}

/// A record of five seconds.
fn recorded(folder: &Path) -> Record {
    let mut recorder = Recorder::create(folder, DEFAULT_MAX_BYTES).unwrap();
    for n in 0..5 {
        let (scan, interval, weights) = second(n);
        let end = begin(n) + interval.length;
        let nothing = Settings::default();
        recorder.add(frame(&scan, interval, &weights, &nothing, end)).unwrap();
    }
    recorder.finish(None).unwrap();
    Record::open(folder).unwrap()
}

fn at(n: u64) -> Range<Nanos> {
    let at = begin(n) + Nanos(5);
    at..at + Nanos(1)
}

/// Reads a record that has no damage.
fn read(record: &Record, wanted: impl Into<Wanted>) -> Option<Replayed> {
    let read = replay(record, wanted).unwrap();
    assert_eq!(read.damages, []);
    read.found
}

/// A pattern of VM names.
fn named(glob: &str) -> [VmPattern; 1] {
    [VmPattern::Name(glob.to_owned())]
}

#[test]
fn a_replayed_interval_is_what_top_showed() {
    let dir = tempfile::tempdir().unwrap();
    let record = recorded(dir.path());
    for n in 0..5 {
        let (scan, interval, weights) = second(n);
        let top = shown(&scan, &interval, &assessed(&interval, &weights), |_| true);
        let replayed = read(&record, at(n)).unwrap();
        assert_eq!(replayed.shown(&[]), top, "second {n}");
    }
    let (scan, interval, weights) = second(1);
    let only = shown(&scan, &interval, &assessed(&interval, &weights), |vm| vm.name == "db");
    let replayed = read(&record, at(1)).unwrap();
    assert_eq!(replayed.shown(&named("d*")), only);
    assert!(read(&record, Nanos(0)..begin(0)).is_none());
}

#[test]
fn range_sums_intervals_of_changing_vms() {
    let dir = tempfile::tempdir().unwrap();
    let record = recorded(dir.path());
    let top = read(&record, Wanted::ALL).unwrap().shown(&[]);
    for vm in &top.vms {
        let times = State::ALL.iter().filter_map(|state| vm.times.get(*state));
        assert_eq!(times.sum::<Nanos>(), vm.times.wall(), "{}", vm.name);
    }
    // Two seconds of two vCPUs; the fair share is half a pCPU in each of them.
    let db = &top.vms[0];
    assert_eq!((db.name.as_str(), db.times.wall()), ("db", Nanos::from_secs(4)));
    assert_eq!((db.figures.due, db.figures.received), (0.2, 0.16));
    assert!((db.figures.lag - 0.2).abs() < 1e-9, "{db:?}");
    // The hour without intervals, VMs that ended and sleep do not count.
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
    let vms: Vec<(&str, u64, Nanos)> =
        listing.vms.iter().map(|vm| (vm.name.as_str(), vm.intervals, vm.to)).collect();
    assert_eq!(vms, [("batch", 5, begin(5)), ("db", 2, begin(2))]);
    let hour = Gap { from: begin(2) + Nanos::from_secs(1), to: begin(3), failed: 0, why: None };
    assert_eq!(listing.gaps, [hour]);
    assert_eq!((listing.clock_set.len(), listing.failed), (0, 0));
}

#[test]
fn record_without_segment_is_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let record = recorded(dir.path());
    let entries = std::fs::read_dir(dir.path()).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    let segment = paths.find(|path| path.extension().is_some_and(|end| end == "parquet"));
    std::fs::remove_file(segment.unwrap()).unwrap();
    let listing = list(&record).unwrap();
    assert_eq!((listing.complete, listing.intervals), (false, 0));
    assert_eq!(listing.damaged[0].intervals, Some(5));
    let text = text::text(&listing, Style::default());
    assert!(
        text.contains(", damaged")
            && text.contains("cannot be read: ")
            && !text.contains("cut off"),
        "{text}"
    );
}

/// Six seconds; after the third, the clock is set back by ten.
fn set_back(folder: &Path) -> Record {
    let mut recorder = Recorder::create(folder, DEFAULT_MAX_BYTES).unwrap();
    for n in 0..6 {
        let (scan, mut interval, weights) = second(0);
        interval.start = Nanos::from_secs(50 + n);
        let wall = 1_000 + n - if n >= 3 { 10 } else { 0 };
        let end = Nanos::from_secs(wall + 1);
        let frame = frame(&scan, interval, &weights, &Settings::default(), end);
        recorder.add(frame).unwrap();
    }
    recorder.finish(None).unwrap();
    Record::open(folder).unwrap()
}

#[test]
fn clock_set_back_is_reported_without_gap() {
    let dir = tempfile::tempdir().unwrap();
    let record = set_back(dir.path());
    let listing = list(&record).unwrap();
    assert_eq!(listing.gaps, []);
    let set = ClockSet { at: Nanos::from_secs(993), by: -10_000_000_000 };
    assert_eq!(listing.clock_set, [set]);
    // As recorded: the last interval ends before the first began.
    assert_eq!(listing.from, Some(Nanos::from_secs(1_000)));
    assert_eq!(listing.to, Some(Nanos::from_secs(996)));
    let text = text::text(&listing, Style::default());
    assert!(text.contains("set back by 10.0 s, to 1970-01-01T00:16:33.000Z"), "{text}");
    // Relative times follow the order of the record.
    let seconds = |from: &str, to: &str| {
        let moment = |text: &str| tandem_observe::moment::moment(text).unwrap();
        let wanted = wanted(&record, None, Some(moment(from)), Some(moment(to))).unwrap();
        read(&record, wanted).unwrap().interval
    };
    let last = seconds("-2s", "-0s");
    assert_eq!((last.start, last.length), (Nanos::from_secs(54), Nanos::from_secs(2)));
    let first = seconds("+0s", "+4s");
    assert_eq!((first.start, first.length), (Nanos::from_secs(50), Nanos::from_secs(4)));
}

#[test]
fn empty_ranges_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let record = recorded(dir.path());
    let moment = |text: &str| Some(tandem_observe::moment::moment(text).unwrap());
    let said = |from, to| wanted(&record, None, from, to).unwrap_err().to_string();
    let relative = said(moment("+3s"), moment("+1s"));
    assert!(relative.contains("is not before --to"), "{relative}");
    assert!(relative.contains(&printed(begin(0) + Nanos::from_secs(3))), "{relative}");
    let absolute = said(moment("2026-01-02T00:00:00Z"), moment("2026-01-01T00:00:00Z"));
    assert!(absolute.contains("--from 2026-01-02T00:00:00.000Z"), "{absolute}");
    for outside in ["+99h", "-99h"] {
        let error = wanted(&record, moment(outside), None, None).unwrap_err();
        assert!(error.is_of_nothing());
        let said = error.to_string();
        assert!(
            said.contains(&format!("begins at {}", printed(begin(0)))) && said.contains("ends at"),
            "{said}"
        );
    }
    let at = wanted(&record, moment("-0s"), None, None).unwrap();
    let last = read(&record, at).unwrap().interval;
    assert_eq!((last.start, last.length), (start(4), Nanos::from_secs(1)));
}

/// Two seconds in which `db` is throttled while a pCPU idles.
fn throttled(folder: &Path, settings: &[Settings]) -> Record {
    let mut recorder = Recorder::create(folder, DEFAULT_MAX_BYTES).unwrap();
    for (n, settings) in (0..).zip(settings) {
        let (scan, mut interval, weights) = second(n);
        let ms = Nanos::from_millis;
        let db = interval.vms.iter_mut().find(|vm| vm.vm == VmId(4)).unwrap();
        let parts = [(State::Run, ms(400)), (State::Ready, ms(0)), (State::Limited, ms(600))];
        db.vcpus[0].times = VcpuTimes::from_parts(ms(1_000), parts).unwrap();
        let idle = [(State::Run, ms(0)), (State::Ready, ms(0)), (State::Limited, ms(0))];
        db.vcpus[1].times = VcpuTimes::from_parts(ms(1_000), idle).unwrap();
        interval.edges = EdgesBuilder::new().all();
        let end = begin(n) + interval.length;
        recorder.add(frame(&scan, interval, &weights, settings, end)).unwrap();
    }
    recorder.finish(None).unwrap();
    Record::open(folder).unwrap()
}

#[test]
fn why_uses_recorded_settings() {
    let dir = tempfile::tempdir().unwrap();
    let record = throttled(dir.path(), &[settings(), settings()]);
    let replayed = read(&record, Wanted::ALL).unwrap();
    let why = replayed.why(&named("db"));
    assert_eq!(why.vms, ["db"]);
    let [finding] = &why.findings[..] else { panic!("{why:#?}") };
    assert_eq!((finding.kind, finding.pid), (Kind::Quota, 400));
    let quota = "the quota of /machine.slice/db is 0.40 pCPUs (40000 of 100000 µs)";
    assert!(finding.evidence.iter().any(|line| line.contains(quota)), "{finding:#?}");
    assert!(!finding.cure.commands.is_empty());
    assert!(why.not_looked_for.iter().all(|not| !not.what.contains("settings")));
    assert!(replayed.heading().contains(&printed(begin(0))));
    let other = read(&record, Wanted::ALL).unwrap().why(&named("batch"));
    assert!(other.findings.iter().all(|finding| finding.vm == "batch"));
}

#[test]
fn vm_without_settings_gets_no_command() {
    let dir = tempfile::tempdir().unwrap();
    // The settings of the host and of another VM are there; this VM has just started.
    let mut of_others = settings();
    let other = of_others.vms.remove(&VmId(4)).unwrap();
    of_others.vms.insert(VmId(9), other);
    let record = throttled(dir.path(), &[of_others.clone(), of_others]);
    let why = read(&record, Wanted::ALL).unwrap().why(&named("db"));
    let cure = &why.findings[0].cure;
    assert!(cure.commands.is_empty(), "{cure:?}");
    assert!(cure.remark.contains("its settings are not known"), "{cure:?}");
    let said = why.not_looked_for.iter().map(|not| not.want.as_str());
    assert!(
        said.clone().any(|want| want.starts_with("of db: its settings are not known")),
        "{:?}",
        said.collect::<Vec<_>>()
    );
}

#[test]
fn changed_and_missing_settings_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut later = settings();
    later.vms.get_mut(&VmId(4)).unwrap().quotas[0].quota.quota_us = 30_000;
    let record = throttled(&dir.path().join("changed"), &[settings(), later]);
    let why = read(&record, Wanted::ALL).unwrap().why(&[]);
    let wants: Vec<&str> = why.not_looked_for.iter().map(|not| not.want.as_str()).collect();
    assert!(wants.iter().any(|want| want.starts_with("settings changed")), "{wants:?}");
    assert!(why.findings[0].evidence[1].contains("0.30 pCPUs"), "the last ones: {why:#?}");
    let only_first = read(&record, at(0)).unwrap().why(&[]);
    assert!(only_first.findings[0].evidence[1].contains("0.40 pCPUs"));

    let nothing = [Settings::default(), Settings::default()];
    let record = throttled(&dir.path().join("without"), &nothing);
    let why = read(&record, Wanted::ALL).unwrap().why(&[]);
    assert_eq!(why.findings[0].kind, Kind::Quota);
    assert!(why.findings[0].cure.commands.is_empty());
    let wants: Vec<&str> = why.not_looked_for.iter().map(|not| not.want.as_str()).collect();
    assert!(wants.iter().any(|want| want.contains("has no settings")), "{wants:?}");
}

#[test]
fn steps_keep_sums_for_any_number() {
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::create(dir.path(), DEFAULT_MAX_BYTES).unwrap();
    for n in 0..50 {
        let (scan, mut interval, weights) = second(n % 5);
        // No interval from the 20th to the 30th second.
        let at = n + if n >= 20 { 10 } else { 0 };
        interval.start = Nanos::from_secs(at);
        let end = Nanos::from_secs(9_001 + at);
        recorder.add(frame(&scan, interval, &weights, &Settings::default(), end)).unwrap();
    }
    recorder.finish(None).unwrap();
    let record = Record::open(dir.path()).unwrap();
    let steps = |most| Steps::read(&record, Wanted::ALL, &named("d*"), most).unwrap();
    let fine = steps(100).found.unwrap();
    assert_eq!((fine.steps.len(), fine.length), (50, Nanos::from_secs(1)));
    let coarse = steps(8).found.unwrap();
    assert_eq!(coarse.length, Nanos::from_secs(8));
    // The fourth of eight steps, from the 24th second to the 32nd, has two seconds.
    let lengths: Vec<u64> =
        coarse.steps.iter().map(|(_, interval)| interval.length.0 / 1_000_000_000).collect();
    assert_eq!(lengths, [8, 8, 4, 2, 8, 8, 8, 4]);
    assert_eq!(coarse.whole, fine.whole);
    assert_eq!(coarse.whole, read(&record, Wanted::ALL).unwrap().interval);
    assert_eq!(coarse.steps[1].0, Nanos::from_secs(9_008));
    assert_eq!(coarse.names.len(), 2);
    assert_eq!(coarse.selected, [VmId(4)]);
    assert_eq!(steps(1).found.unwrap().whole, fine.whole);
}
