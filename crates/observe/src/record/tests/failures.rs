//! Records after incidents: cut off, damaged, ended by an error, with changes of the clock, or of an earlier version.

use super::*;
use crate::record::durable::synced;

/// Begins a record with this many seconds, without ending it.
fn begun(folder: &Path, seconds: u64) -> Recorder {
    let mut recorder = Recorder::create(folder, DEFAULT_MAX_BYTES).unwrap();
    for n in 0..seconds {
        recorder.add(second(n)).unwrap();
    }
    recorder
}

fn numbers(folder: &Path, wanted: Wanted) -> (Vec<u64>, Vec<Damage>) {
    let mut numbers = Vec::new();
    let record = Record::open(folder).unwrap();
    let damages = record.read(wanted, |number, _| {
        numbers.push(number);
        Ok::<(), RecordError>(())
    });
    (numbers, damages.unwrap())
}

/// Returns the segment with this first interval.
fn segment_of(folder: &Path, first: u64) -> PathBuf {
    let begin = format!("{first:010}-");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| entry.path())
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&begin))
        .unwrap()
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(path, bytes).unwrap();
}

#[test]
fn header_is_synced_before_intervals() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("r");
    synced::take();
    let recorder = begun(&folder, 0);
    let expected = [folder.join(HEADER), folder.clone(), dir.path().to_owned()];
    assert_eq!(synced::take(), expected);
    let mut recorder = {
        let mut recorder = recorder;
        recorder.add(second(0)).unwrap();
        recorder
    };
    recorder.add(second(1)).unwrap();
    synced::take();
    recorder.finish(None).unwrap();
    let synced = synced::take();
    // The segment, its name, the removal of its journal, the end, and its name.
    assert_eq!(synced.len(), 5, "{synced:?}");
    assert_eq!(synced[0], folder.join("0000000000.part"));
    assert_eq!(synced[3], folder.join("end.json.part"));
    for place in [1, 2, 4] {
        assert_eq!(synced[place], folder, "{synced:?}");
    }
}

#[test]
fn record_without_an_end_was_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = begun(dir.path(), 300);
    drop(recorder);
    // Killed after a segment was completed, before the next journal began.
    let frames: Vec<Frame> = (0..300).map(second).collect();
    segment::write(dir.path(), 0, &frames).unwrap();
    fs::remove_file(part(dir.path(), 0, JOURNAL)).unwrap();
    let record = Record::open(dir.path()).unwrap();
    assert!(!record.is_complete().unwrap());
    assert_eq!(record.end().unwrap(), None);
    assert_eq!(all(dir.path()).unwrap().len(), 300);
}

#[test]
fn end_names_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = begun(dir.path(), 3);
    recorder.failed("the host is on fire");
    recorder.finish(Some("no space left".to_owned())).unwrap();
    let record = Record::open(dir.path()).unwrap();
    assert!(!record.is_complete().unwrap());
    let end = record.end().unwrap().unwrap();
    assert_eq!((end.intervals, end.dropped, end.failed), (3, 0, 1));
    assert_eq!(end.failure.as_deref(), Some("the host is on fire"));
    assert_eq!(end.error.as_deref(), Some("no space left"));
}

#[test]
fn failed_readings_are_in_the_next_interval() {
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = begun(dir.path(), 1);
    recorder.failed("first");
    recorder.failed(&"second ".repeat(1_000));
    recorder.add(second(1)).unwrap();
    recorder.add(second(2)).unwrap();
    recorder.finish(None).unwrap();
    let frames = all(dir.path()).unwrap();
    let failed: Vec<u64> = frames.iter().map(|(_, frame)| frame.failed).collect();
    assert_eq!(failed, [0, 2, 0]);
    let failure = frames[1].1.failure.as_deref().unwrap();
    assert!(failure.starts_with("second ") && failure.len() <= 300, "{failure}");
}

#[test]
fn damaged_segment_costs_only_its_intervals() {
    let dir = tempfile::tempdir().unwrap();
    begun(dir.path(), 1_000).finish(None).unwrap();
    damage(&segment_of(dir.path(), 300));
    let (read, damages) = numbers(dir.path(), Wanted::ALL);
    let expected: Vec<u64> = (0..300).chain(600..1_000).collect();
    assert_eq!(read, expected);
    let [only] = &damages[..] else { panic!("{damages:?}") };
    assert_eq!((only.first, only.intervals), (300, Some(300)));
    let said = only.to_string();
    assert!(said.contains("/0000000300-"), "{said}");
    assert!(said.ends_with("300 intervals are lost, from number 300 on"), "{said}");
    // Other ranges are complete. Interval n is at 1000 + n seconds of the wall clock, and at n of the steady clock.
    let wall = |from, to| Wanted::from(Nanos::from_secs(from)..Nanos::from_secs(to));
    assert_eq!(numbers(dir.path(), wall(1_000, 1_300)), ((0..300).collect(), vec![]));
    assert_eq!(numbers(dir.path(), wall(1_600, 9_000)), ((600..1_000).collect(), vec![]));
    let (read, damages) = numbers(dir.path(), wall(1_299, 1_301));
    assert_eq!((read, damages.len()), (vec![299], 1));
    let steady = Wanted { steady: Nanos::from_secs(700)..Nanos::from_secs(702), ..Wanted::ALL };
    assert_eq!(numbers(dir.path(), steady), (vec![700, 701], vec![]));
    // For the last segment, the end contains the number of intervals.
    damage(&segment_of(dir.path(), 900));
    let (_, damages) = numbers(dir.path(), Wanted::ALL);
    assert_eq!(damages.len(), 2);
    assert_eq!((damages[1].first, damages[1].intervals), (900, Some(100)));
    fs::remove_file(dir.path().join(END)).unwrap();
    let (_, damages) = numbers(dir.path(), Wanted::ALL);
    assert_eq!(damages[1].intervals, None);
    assert!(damages[1].to_string().contains("is not known"), "{}", damages[1]);
}

#[test]
fn missing_segments_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    begun(dir.path(), 1_000).finish(None).unwrap();
    let lost = |damages: &[Damage]| -> Vec<(u64, Option<u64>)> {
        let lost = damages.iter();
        lost.map(|damage| (damage.first, damage.intervals)).collect()
    };
    fs::remove_file(segment_of(dir.path(), 300)).unwrap();
    let (read, damages) = numbers(dir.path(), Wanted::ALL);
    let expected: Vec<u64> = (0..300).chain(600..1_000).collect();
    assert_eq!(read, expected);
    assert_eq!(lost(&damages), [(300, Some(300))], "{damages:?}");
    assert!(damages[0].what.contains("lacks a segment"), "{}", damages[0]);
    // Other ranges are complete.
    let wall = Wanted::from(Nanos::from_secs(1_600)..Nanos::from_secs(9_000));
    assert_eq!(numbers(dir.path(), wall), ((600..1_000).collect(), vec![]));
    // For the first and the last segment, the end contains the number of intervals.
    fs::remove_file(segment_of(dir.path(), 0)).unwrap();
    fs::remove_file(segment_of(dir.path(), 900)).unwrap();
    let (read, damages) = numbers(dir.path(), Wanted::ALL);
    assert_eq!(read, (600..900).collect::<Vec<u64>>());
    assert_eq!(lost(&damages), [(0, Some(600)), (900, Some(100))]);
    fs::remove_file(segment_of(dir.path(), 600)).unwrap();
    let (read, damages) = numbers(dir.path(), Wanted::ALL);
    assert_eq!((read.len(), lost(&damages)), (0, vec![(0, Some(1_000))]));
}

#[test]
fn unreadable_end_is_reported_as_damage() {
    let dir = tempfile::tempdir().unwrap();
    begun(dir.path(), 5).finish(None).unwrap();
    let end = dir.path().join(END);
    let check = || {
        let (read, damages) = numbers(dir.path(), Wanted::ALL);
        assert_eq!(read, [0, 1, 2, 3, 4]);
        let [only] = &damages[..] else { panic!("{damages:?}") };
        assert!(only.what.contains("end.json"), "{only}");
        assert_eq!((only.first, only.intervals), (5, None));
        let record = Record::open(dir.path()).unwrap();
        assert!(record.end().is_err() && !record.is_complete().unwrap());
    };
    fs::write(&end, "{\"at\":").unwrap();
    check();
    // The file exists, but reading fails.
    fs::remove_file(&end).unwrap();
    fs::create_dir(&end).unwrap();
    check();
}

#[test]
fn damaged_line_costs_one_interval() {
    let dir = tempfile::tempdir().unwrap();
    drop(begun(dir.path(), 5));
    let path = part(dir.path(), 0, JOURNAL);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let broken = [&lines[0], &lines[1][..50], &lines[2][..9], &lines[3], &lines[4]]
        .map(|line| format!("{line}\n"));
    fs::write(&path, broken.concat()).unwrap();
    let (read, damages) = numbers(dir.path(), Wanted::ALL);
    assert_eq!(read, [0, 3, 4]);
    assert_eq!((damages[0].first, damages[0].intervals), (1, Some(2)));
    assert!(damages[0].what.contains("0000000000.jsonl is damaged: line 2: "), "{}", damages[0]);
}

#[test]
fn journal_replaces_a_damaged_segment() {
    let dir = tempfile::tempdir().unwrap();
    drop(begun(dir.path(), 5));
    let frames: Vec<Frame> = (0..5).map(second).collect();
    let (path, _) = segment::write(dir.path(), 0, &frames).unwrap();
    damage(&path);
    assert_eq!(numbers(dir.path(), Wanted::ALL), ((0..5).collect(), vec![]));
}

#[test]
fn clock_set_back_keeps_the_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = begun(dir.path(), 3);
    for n in 3..6 {
        let mut frame = second(n);
        frame.at = frame.at.saturating_sub(Nanos::from_secs(3));
        recorder.add(frame).unwrap();
    }
    recorder.finish(None).unwrap();
    assert_eq!(numbers(dir.path(), Wanted::ALL).0, [0, 1, 2, 3, 4, 5]);
    // A repeated time selects both; CLOCK_MONOTONIC distinguishes them.
    let twice = Nanos::from_secs(1_001)..Nanos::from_secs(1_002);
    assert_eq!(numbers(dir.path(), twice.clone().into()).0, [1, 4]);
    let second_time = Wanted { wall: twice, steady: Nanos::from_secs(3)..Nanos(u64::MAX) };
    assert_eq!(numbers(dir.path(), second_time).0, [4]);
}

/// A record of version 1: other versions in header and segment, no `end.json`, and lines without later fields.
#[test]
fn version_1_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(HEADER), r#"{"tandem_record":1,"begun":7}"#).unwrap();
    let (path, _) = segment::write(dir.path(), 0, &[second(0)]).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let key = b"tandem_record";
    let at = bytes.windows(key.len()).position(|bytes| bytes == key);
    let at = at.unwrap() + key.len();
    let version = bytes[at..].iter().position(|byte| *byte == b'2').unwrap();
    bytes[at + version] = b'1';
    fs::write(&path, &bytes).unwrap();
    let sum = segment::check_sum(&path).unwrap();
    let sealed = dir.path().join(format!("0000000000-{sum:016x}.parquet"));
    fs::rename(&path, &sealed).unwrap();
    assert_eq!(all(dir.path()).unwrap(), [(0, second(0))]);
    let record = Record::open(dir.path()).unwrap();
    assert!(record.is_complete().unwrap(), "there is no journal");
    assert_eq!(record.end().unwrap(), None, "version 1 has no end");

    let line = recorder::Line { number: 1, frame: second(1) };
    let mut line = serde_json::to_value(&line).unwrap();
    let frame = line["frame"].as_object_mut().unwrap();
    for later in ["failed", "failure", "host"] {
        assert!(frame.remove(later).is_some(), "{later}");
    }
    let vms = frame["vms"].as_object_mut().unwrap();
    for vm in vms.values_mut() {
        assert!(vm.as_object_mut().unwrap().remove("settings").is_some());
    }
    fs::write(part(dir.path(), 1, JOURNAL), format!("{line}\n")).unwrap();
    let mut expected = second(1);
    expected.host = None;
    expected.vms.get_mut(&VmId(1)).unwrap().settings = None;
    assert_eq!(all(dir.path()).unwrap(), [(0, second(0)), (1, expected)]);
    assert!(!record.is_complete().unwrap(), "it was cut off");
}
