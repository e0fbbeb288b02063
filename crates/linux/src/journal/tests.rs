//! The journal on disk: order, torn ends, malformed lines, other owners, compaction.

use super::*;
use crate::ids::Pid;

fn stamp() -> Stamp {
    Stamp::new("boot-a".into(), Version::V1, "/sys/fs/cgroup/cpu".into())
}

fn created(name: &str) -> Record {
    Record::Created {
        cgroup: CgroupPath(name.into()),
    }
}

fn samples() -> Vec<Record> {
    let thread = ThreadRef {
        pid: Pid(10),
        tid: Tid(11),
        start: StartTime(12),
    };
    vec![
        Record::Enabled {
            cgroup: CgroupPath::root(),
            id: CgroupId(1),
        },
        created("/g \"quoted\"\n"),
        Record::Knob {
            cgroup: CgroupPath("/a".into()),
            id: CgroupId(u64::MAX),
            knob: Knob::Quota,
            original: "max 100000".into(),
        },
        Record::Moved {
            thread,
            from: CgroupPath("/a".into()),
            to: CgroupPath("/g".into()),
        },
        Record::Affinity {
            thread,
            original: "0-3,7".parse().unwrap(),
        },
    ]
}

fn filled(dir: &Path) {
    let mut journal = Journal::<Record>::open(dir, stamp()).unwrap();
    for record in samples() {
        journal.append(record).unwrap();
    }
}

#[test]
fn records_are_read_back_in_order() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    assert_eq!(journal.records(), samples());
    assert!(samples().iter().all(|record| journal.knows(&record.key())));
}

#[test]
fn a_second_owner_is_refused_and_told_who_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    let error = Journal::<Record>::open(dir.path(), stamp())
        .unwrap_err()
        .to_string();
    let me = format!("process {}", std::process::id());
    assert!(error.contains(&me), "{error}");
}

#[test]
fn any_torn_end_is_ignored_and_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let path = dir.path().join("journal");
    let bytes = fs::read(&path).unwrap();
    for length in (0..=bytes.len()).step_by(7) {
        fs::write(&path, &bytes[..length]).unwrap();
        let whole = bytes[..length].iter().filter(|&&b| b == b'\n').count();
        let mut journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
        assert_eq!(journal.records(), &samples()[..whole.saturating_sub(1)]);
        journal.append(created("/next")).unwrap();
        drop(journal);
        let journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
        assert_eq!(journal.records().len(), whole.saturating_sub(1) + 1);
    }
}

#[test]
fn malformed_lines_name_the_file_and_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    filled(dir.path());
    let good = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = good.lines().collect();
    lines.insert(3, "{\"change\":\"created\"}");
    let cases = [
        ("garbage\n".to_owned(), "line 1"),
        ("\n".to_owned(), "line 1"),
        (format!("{}\n", lines.join("\n")), "line 4"),
        (good.replace("created", "invented"), "line 3"),
        (
            good.replace("\"tandem_journal\":1", "\"tandem_journal\":9"),
            "format 9",
        ),
        (good.replace("0-3,7", "3-0"), "backwards"),
    ];
    for (text, wanted) in cases {
        fs::write(&path, &text).unwrap();
        let error = Journal::<Record>::open(dir.path(), stamp())
            .unwrap_err()
            .to_string();
        assert!(error.contains(wanted), "{error}");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "left untouched");
    }
}

#[test]
fn an_earlier_boot_leaves_nothing_to_put_back() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let later = Stamp {
        boot: "boot-b".into(),
        ..stamp()
    };
    let journal = Journal::<Record>::open(dir.path(), later).unwrap();
    assert_eq!(journal.records(), []);
    assert!(!is_pending(dir.path()));
}

#[test]
fn another_hierarchy_of_the_same_boot_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let other = Stamp {
        version: Version::V2,
        ..stamp()
    };
    let error = Journal::<Record>::open(dir.path(), other)
        .unwrap_err()
        .to_string();
    assert!(error.contains("cgroup v1"), "{error}");
    assert!(is_pending(dir.path()));
}

#[test]
fn compaction_keeps_what_it_is_told_and_empties_on_nothing() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let mut journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    journal.rewrite(samples()[..2].to_vec()).unwrap();
    journal.append(created("/later")).unwrap();
    drop(journal);
    let mut journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    assert_eq!(journal.records().len(), 3);
    assert!(!journal.knows(&samples()[3].key()));
    journal.rewrite(Vec::new()).unwrap();
    assert!(!is_pending(dir.path()));
}
