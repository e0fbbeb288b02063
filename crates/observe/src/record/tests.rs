//! Records of artificial intervals: round trips, bounded size, and reports of damage.

use std::collections::BTreeMap;
use std::fs;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use tandem_linux::cgroup::{CgroupPath, Quota, Version};
use tandem_model::states::edges::{Amount, EdgeKind, Edges, EdgesBuilder, Evidence, Party};
use tandem_model::states::interval::{
    Column, HostColumn, HostTotals, Interval, Missing, ProcessTime, SourceName, ThreadTime,
    VcpuInterval, VmInterval,
};
use tandem_model::states::latency::{BUCKETS, Latency};
use tandem_model::states::programs::{Estimated, NotCounted, NotSeen, Programs};
use tandem_model::{PcpuId, State, VcpuId, VcpuTimes, VmId, Weight};

use super::*;
use crate::findings::{KnownHost, KnownQuota, KnownVm};

mod failures;

fn nanos() -> impl Strategy<Value = Nanos> {
    prop_oneof![Just(0), 0..2_000_000_000u64, any::<u64>()].prop_map(Nanos)
}

/// Arbitrary names.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z/]{1,6}", "\\PC{0,8}", "[\0-\x7f]{0,4}"]
}

fn times() -> impl Strategy<Value = VcpuTimes> {
    let states = State::ALL[..6].to_vec();
    let parts = proptest::sample::subsequence(states, 0..=6);
    let parts = parts.prop_flat_map(|states| {
        let times = vec(nanos(), states.len());
        times.prop_map(move |times| states.clone().into_iter().zip(times).collect::<Vec<_>>())
    });
    (nanos(), parts).prop_map(|(wall, parts)| VcpuTimes::from_parts(wall, parts).unwrap())
}

fn vcpu() -> impl Strategy<Value = VcpuInterval> {
    let pcpus = vec(0..200u32, 0..5);
    (times(), nanos(), nanos(), (any::<u64>(), option::of(0..u64::MAX >> 8)), any::<bool>(), pcpus)
        .prop_map(|(times, ran, waited, counts, runnable, pcpus)| VcpuInterval {
            vcpu: VcpuId(0),
            times,
            ran,
            waited,
            runs: counts.0,
            wakeups: counts.1,
            runnable,
            allowed: pcpus.into_iter().map(PcpuId).collect(),
        })
}

fn vm() -> impl Strategy<Value = VmInterval> {
    let threads = vec((text(), nanos()), 0..3);
    (btree_map(0..9u32, vcpu(), 0..4), threads).prop_map(|(vcpus, threads)| VmInterval {
        vm: VmId(0),
        // In reverse, since the order is the source's.
        vcpus: vcpus
            .into_iter()
            .rev()
            .map(|(n, vcpu)| VcpuInterval { vcpu: VcpuId(n), ..vcpu })
            .collect(),
        threads: threads.into_iter().map(|(name, time)| ThreadTime { name, time }).collect(),
    })
}

fn party() -> impl Strategy<Value = Party> {
    let vm = || (0..3u64).prop_map(VmId);
    prop_oneof![
        (vm(), 0..3u32).prop_map(|(vm, n)| Party::Vcpu { vm, vcpu: VcpuId(n) }),
        vm().prop_map(Party::Vm),
        (vm(), text()).prop_map(|(vm, name)| Party::VmThread { vm, name }),
        (text(), option::of(text())).prop_map(|(name, cgroup)| Party::Process { name, cgroup }),
        text().prop_map(Party::KernelThread),
        Just(Party::Unseen),
        Just(Party::Others),
    ]
}

fn edges() -> impl Strategy<Value = Edges> {
    let kind = proptest::sample::select(EdgeKind::ALL.to_vec());
    let edge = (party(), party(), kind, any::<bool>(), 0..u64::MAX >> 8, option::of(0..9u64));
    (vec(edge, 0..12), prop_oneof![Just(2), Just(usize::MAX)]).prop_map(|(edges, top)| {
        let mut builder = EdgesBuilder::new();
        for (victim, culprit, kind, is_seen, time, count) in edges {
            let (victim, culprit) = (builder.party(&victim), builder.party(&culprit));
            let evidence = if is_seen { Evidence::Measured } else { Evidence::Estimated };
            let time = Nanos(time);
            builder.add(victim, culprit, kind, evidence, Amount { time, count });
        }
        builder.top(top)
    })
}

fn missing() -> impl Strategy<Value = Missing> {
    let mut columns: Vec<Column> = State::ALL.into_iter().map(Column::State).collect();
    columns.extend(EdgeKind::ALL.map(Column::Edges));
    columns.push(Column::Host(HostColumn::Idle));
    let what = proptest::sample::select(columns);
    (what, 0..9usize, 0..9usize, text()).prop_map(|(what, vms, of, want)| Missing {
        what,
        vms,
        of,
        want,
    })
}

fn programs() -> impl Strategy<Value = Programs> {
    let latency = (vec(any::<u64>(), BUCKETS), nanos()).prop_map(|(counts, time)| Latency {
        counts: std::array::from_fn(|bucket| counts[bucket]),
        time,
    });
    let not_seen = (text(), text(), text()).prop_map(|(event, lacks, because)| NotSeen {
        event,
        lacks,
        because,
    });
    let estimated =
        (missing(), text()).prop_map(|(missing, how)| Estimated { what: missing.what, how });
    (
        vec(not_seen, 0..3),
        [(); 6].map(|()| any::<u64>()),
        vec(estimated, 0..2),
        btree_map((0..5u64).prop_map(VmId), latency, 0..3),
    )
        .prop_map(|(not_seen, counts, estimated, latency)| Programs {
            not_seen,
            not_counted: NotCounted {
                waits: counts[0],
                wait_time: Nanos(counts[1]),
                edges: counts[2],
                edge_time: Nanos(counts[3]),
                links: counts[4],
                events: counts[5],
            },
            estimated,
            latency,
        })
}

fn host() -> impl Strategy<Value = HostTotals> {
    let process = (text(), any::<u32>(), option::of(text()), nanos());
    let sums = [(); 4].map(|()| nanos());
    (0..500usize, option::of(nanos()), sums, vec(process, 0..3)).prop_map(
        |(pcpus, idle, [vcpus, vm_threads, tasks, kernel], named)| HostTotals {
            pcpus,
            idle,
            vcpus,
            vm_threads,
            tasks,
            top_tasks: named
                .into_iter()
                .map(|(name, pid, cgroup, time)| ProcessTime { name, pid, cgroup, time })
                .collect(),
            kernel,
        },
    )
}

fn known() -> impl Strategy<Value = RecordedVm> {
    let weight = option::of(-1e12..1e12f64);
    let tids = btree_map((0..9u32).prop_map(VcpuId), any::<u32>(), 0..4);
    (text(), any::<u32>(), text(), weight, option::of(nanos()), tids).prop_map(
        |(name, pid, program, weight, due, tids)| RecordedVm {
            name,
            pid,
            program,
            weight: weight.map(Weight::saturating),
            due,
            tids,
            settings: None,
        },
    )
}

/// Configuration of a VM and of the host.
fn settings() -> (KnownVm, KnownHost) {
    let vm = KnownVm {
        cgroup: Some(CgroupPath("/machine.slice/a".to_owned())),
        quotas: vec![KnownQuota {
            cgroup: CgroupPath("/machine.slice".to_owned()),
            quota: Quota { quota_us: 50_000, period_us: 100_000 },
            throttled: None,
        }],
        is_libvirt: true,
        takes_turns: true,
        ..KnownVm::default()
    };
    let host = KnownHost {
        version: Version::V2,
        mount: "/sys/fs/cgroup".into(),
        online: "0-3".parse().unwrap(),
        isolated: "3".parse().unwrap(),
        caches: vec!["0-1".parse().unwrap(), "2-3".parse().unwrap()],
        cores: vec!["0-1".parse().unwrap(), "2-3".parse().unwrap()],
        kernel: Some((6, 18)),
        has_autogroup: true,
    };
    (vm, host)
}

fn frame() -> impl Strategy<Value = Frame> {
    let source =
        proptest::sample::select(vec![SourceName::Plain, SourceName::Bpf, SourceName::Simulator]);
    let interval = (
        source,
        nanos(),
        nanos(),
        btree_map(0..5u64, vm(), 0..4),
        edges(),
        host(),
        vec(missing(), 0..3),
        option::of(programs()),
    );
    let interval =
        interval.prop_map(|(source, start, length, vms, edges, host, missing, programs)| {
            Interval {
                source,
                start,
                length,
                vms: vms
                    .into_iter()
                    .rev()
                    .map(|(id, vm)| VmInterval { vm: VmId(id), ..vm })
                    .collect(),
                edges,
                host,
                missing,
                programs,
            }
        });
    let vms = btree_map((0..5u64).prop_map(VmId), known(), 0..5);
    let looks = (0..9usize, 0..9u64, option::of(text()), any::<bool>());
    (nanos(), interval, vms, looks).prop_map(|(at, interval, mut vms, looks)| {
        let (unreadable, failed, failure, has_settings) = looks;
        let (of_vm, of_host) = settings();
        for vm in vms.values_mut().filter(|_| has_settings) {
            vm.settings = Some(of_vm.clone());
        }
        Frame {
            at,
            interval,
            vms,
            unreadable,
            failed,
            failure,
            host: has_settings.then_some(of_host),
        }
    })
}

/// Frames and their numbers.
type Frames = Vec<(u64, Frame)>;

/// Returns all frames of a record, and its damages.
fn everything(folder: &Path) -> Result<(Frames, Vec<Damage>), RecordError> {
    let mut frames = Vec::new();
    let damages = Record::open(folder)?.read(Wanted::ALL, |number, frame| {
        frames.push((number, frame));
        Ok::<(), RecordError>(())
    })?;
    Ok((frames, damages))
}

/// Returns all frames of an undamaged record.
fn all(folder: &Path) -> Result<Frames, RecordError> {
    let (frames, damages) = everything(folder)?;
    assert_eq!(damages, []);
    Ok(frames)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// A segment preserves all frames.
    #[test]
    fn segment_round_trips(frames in vec(frame(), 1..4), first in 0..1_000_000_000u64) {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = segment::write(folder.path(), first, &frames).unwrap();
        prop_assert_eq!(bytes, fs::metadata(&path).unwrap().len());
        let opened = segment::open(&path).unwrap();
        prop_assert_eq!(Some(opened.summary.clone()), segment::Summary::of(first, &frames));
        let read: Vec<(u64, Frame)> = opened.frames(&path).unwrap().into_iter().collect();
        prop_assert_eq!(read, (first..).zip(frames).collect::<Vec<_>>());
    }

    /// A journal preserves all frames.
    #[test]
    fn journal_round_trips(frame in frame()) {
        let line = recorder::Line { number: 7, frame: &frame };
        let text = serde_json::to_string(&line).unwrap();
        let read: recorder::Line<Frame> = serde_json::from_str(&text).unwrap();
        prop_assert_eq!((read.number, read.frame), (7, frame));
    }

    /// A file with a changed byte is refused with an error.
    #[test]
    fn changed_byte_is_reported(frame in frame(), index in any::<prop::sample::Index>(), change in 1..=255u8) {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = segment::write(folder.path(), 0, &[frame]).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let at = index.index(bytes.len());
        bytes[at] ^= change;
        fs::write(&path, bytes).unwrap();
        let error = segment::open(&path).map(drop).unwrap_err().to_string();
        prop_assert!(error.contains("is not as it was written"), "{}", error);
    }
}

/// The `n`-th second of a VM with two vCPUs.
fn second(n: u64) -> Frame {
    let parts = [
        (State::Run, Nanos(600_000_000 + n * 7_919)),
        (State::Ready, Nanos(30_000_000 + n * 104_729)),
    ];
    let vcpu = |index| VcpuInterval {
        vcpu: VcpuId(index),
        times: VcpuTimes::from_parts(Nanos::from_secs(1), parts).unwrap(),
        ran: parts[0].1,
        waited: parts[1].1,
        runs: n,
        wakeups: Some(n / 2),
        runnable: true,
        allowed: "0-3".parse().unwrap(),
    };
    let interval = Interval {
        source: SourceName::Plain,
        start: Nanos::from_secs(n),
        length: Nanos::from_secs(1),
        vms: vec![VmInterval { vm: VmId(1), vcpus: vec![vcpu(0), vcpu(1)], threads: Vec::new() }],
        edges: EdgesBuilder::new().all(),
        host: HostTotals::default(),
        missing: Vec::new(),
        programs: None,
    };
    let known = RecordedVm {
        name: "db".to_owned(),
        pid: 9,
        program: "qemu".to_owned(),
        weight: Some(Weight::constant(100.0)),
        due: Some(Nanos(5)),
        tids: BTreeMap::from([(VcpuId(0), 10), (VcpuId(1), 11)]),
        settings: Some(settings().0),
    };
    Frame {
        at: Nanos::from_secs(1_000 + n),
        interval,
        vms: BTreeMap::from([(VmId(1), known)]),
        unreadable: 0,
        failed: 0,
        failure: None,
        host: Some(settings().1),
    }
}

fn folder_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn ended_record_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("r");
    let mut recorder = Recorder::create(&folder, DEFAULT_MAX_BYTES).unwrap();
    let record = Record::open(&folder).unwrap();
    assert!(record.is_written());
    for n in 0..700 {
        recorder.add(second(n)).unwrap();
    }
    assert!(!record.is_complete().unwrap(), "the last are in a journal");
    let expected: Vec<(u64, Frame)> = (0..700).map(|n| (n, second(n))).collect();
    assert_eq!(all(&folder).unwrap(), expected, "while it is written");
    let finished = recorder.finish(None).unwrap();
    assert_eq!((finished.intervals, finished.dropped), (700, 0));
    assert!(!record.is_written() && record.is_complete().unwrap());
    assert_eq!(all(&folder).unwrap(), expected);
    // Only the requested range is read.
    let mut numbers = Vec::new();
    let range = Nanos::from_secs(1_299)..Nanos::from_secs(1_302);
    let read = record.read(range, |number, _| {
        numbers.push(number);
        Ok::<(), RecordError>(())
    });
    read.unwrap();
    assert_eq!(numbers, [299, 300, 301], "of two segments");
}

#[test]
fn intervals_survive_a_killed_recorder() {
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::create(dir.path(), DEFAULT_MAX_BYTES).unwrap();
    for n in 0..305 {
        recorder.add(second(n)).unwrap();
    }
    drop(recorder);
    let expected: Vec<(u64, Frame)> = (0..305).map(|n| (n, second(n))).collect();
    assert_eq!(all(dir.path()).unwrap(), expected);
    let record = Record::open(dir.path()).unwrap();
    assert!(!record.is_complete().unwrap() && !record.is_written());
    // Killed while writing a line.
    let path = part(dir.path(), 300, JOURNAL);
    let text = fs::read(&path).unwrap();
    fs::write(&path, &text[..text.len() - 40]).unwrap();
    assert_eq!(all(dir.path()).unwrap(), expected[..304]);
    // Killed between writing the segment and removing its journal: no duplicates. Killed while writing a segment: its file is ignored.
    let frames: Vec<Frame> = (300..305).map(second).collect();
    segment::write(dir.path(), 300, &frames).unwrap();
    fs::write(dir.path().join("0000000300.part"), "PAR1").unwrap();
    assert_eq!(all(dir.path()).unwrap(), expected);
}

#[test]
fn size_is_bounded_at_all_times() {
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::create(dir.path(), MIN_MAX_BYTES).unwrap();
    let mut largest = 0;
    for n in 0..40_000 {
        recorder.add(second(n)).unwrap();
        if n % 7 == 0 {
            largest = largest.max(folder_bytes(dir.path()));
        }
    }
    let finished = recorder.finish(None).unwrap();
    assert!(largest <= MIN_MAX_BYTES, "{largest} bytes");
    assert!(largest > MIN_MAX_BYTES / 2, "room is used: {largest}");
    assert!(folder_bytes(dir.path()) <= MIN_MAX_BYTES);
    let frames = all(dir.path()).unwrap();
    assert!(finished.dropped > 0);
    assert_eq!(frames.first().unwrap().0, finished.dropped);
    assert_eq!(frames.last().unwrap().0, 39_999);
    assert_eq!(frames.len() as u64, 40_000 - finished.dropped);
    let Finished { bytes, .. } = finished;
    println!(
        "{:.1} bytes for each of 2 vCPUs and interval",
        bytes as f64 / 2.0 / frames.len() as f64
    );
}

#[test]
fn oversized_interval_is_refused_with_the_required_size() {
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::create(dir.path(), MIN_MAX_BYTES).unwrap();
    recorder.add(second(0)).unwrap();
    let mut large = second(1);
    large.interval.missing = vec![Missing::of_all(Column::State(State::Poll), "x".repeat(200_000))];
    let error = recorder.add(large).unwrap_err().to_string();
    assert!(error.contains("--max-size must be 1"), "{error}");
    recorder.add(second(1)).unwrap();
    recorder.finish(None).unwrap();
    assert_eq!(all(dir.path()).unwrap().len(), 2);
}

#[test]
fn occupied_folders_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("r");
    let create = || match Recorder::create(&folder, DEFAULT_MAX_BYTES) {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error.to_string(),
    };
    let mut recorder = Recorder::create(&folder, DEFAULT_MAX_BYTES).unwrap();
    assert!(create().starts_with("another recorder writes"), "{}", create());
    recorder.add(second(0)).unwrap();
    recorder.finish(None).unwrap();
    assert!(create().contains("holds a record already"), "{}", create());
    assert_eq!(all(&folder).unwrap().len(), 1, "and it is as it was");
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "text").unwrap();
    assert!(create().contains("is no empty folder"), "{}", create());
    assert_eq!(fs::read(&folder).unwrap(), b"text");
    let nowhere = Recorder::create(&dir.path().join("a/b"), 0).err().unwrap();
    assert!(nowhere.to_string().contains("cannot make"), "{nowhere}");
}

#[test]
fn invalid_and_damaged_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let said = || match everything(dir.path()) {
        Ok((frames, damages)) => match &damages[..] {
            [only] => only.to_string(),
            _ => panic!("{} frames were read, {damages:?}", frames.len()),
        },
        Err(error) => error.to_string(),
    };
    let name = dir.path().to_str().unwrap();
    assert!(said().starts_with(name) && said().contains("has no record.json"), "{}", said());
    let header = dir.path().join(HEADER);
    for (text, why) in [
        ("", "is not a record: record.json"),
        ("{}", "has no version"),
        (r#"{"tandem_record":3}"#, "of version 3, and this program reads versions 1 to 2"),
        (r#"{"tandem_record":2}"#, "missing field `begun`"),
    ] {
        fs::write(&header, text).unwrap();
        assert!(said().contains(why), "{text}: {}", said());
    }
    fs::write(&header, r#"{"tandem_record":2,"begun":0}"#).unwrap();
    assert_eq!(all(dir.path()).unwrap(), []);
    // A truncated segment.
    let (path, _) = segment::write(dir.path(), 0, &[second(0)]).unwrap();
    let whole = fs::read(&path).unwrap();
    for length in [0, 3, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let (said, file) = (said(), path.file_name().unwrap().to_str().unwrap());
        assert!(said.contains(&format!("{file} is damaged")), "{said}");
    }
    // Another version, which is a one-byte text in the metadata.
    let key = b"tandem_record";
    let at = whole.windows(key.len()).position(|bytes| bytes == key);
    let at = at.unwrap() + key.len();
    let mut other = whole.clone();
    let version = other[at..].iter().position(|byte| *byte == b'2');
    other[at + version.unwrap()] = b'7';
    fs::write(&path, &other).unwrap();
    let sum = segment::check_sum(&path).unwrap();
    let sealed = dir.path().join(format!("0000000000-{sum:016x}.parquet"));
    fs::rename(&path, &sealed).unwrap();
    assert!(said().contains("version 7"), "{}", said());
    // A name without a check sum.
    fs::rename(&sealed, dir.path().join("0.parquet")).unwrap();
    assert!(said().contains("its name has no check sum"), "{}", said());
    fs::remove_file(dir.path().join("0.parquet")).unwrap();
    let path = part(dir.path(), 0, JOURNAL);
    fs::write(&path, "{\"number\":0}\n").unwrap();
    let said = said();
    assert!(said.contains("0000000000.jsonl is damaged: line 1: missing field `frame`"), "{said}");
    let file = all(&path).unwrap_err().to_string();
    assert!(file.contains("is not a record: it is no folder"), "{file}");
    let nowhere = all(&dir.path().join("x")).unwrap_err().to_string();
    assert!(nowhere.contains("cannot read") && nowhere.contains("/x"), "{nowhere}");
}
