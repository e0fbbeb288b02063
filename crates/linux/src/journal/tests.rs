//! The journal on disk: order, torn ends, malformed lines, other owners, compaction.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::*;
use crate::cgroup::{CgroupId, CgroupPath, Knob, Version};
use crate::ids::Tid;
use crate::thread::{StartTime, ThreadRef};

fn stamp() -> Stamp {
    Stamp::new("boot-a".into(), Version::V1, "/sys/fs/cgroup/cpu".into())
}

fn created(name: &str) -> Record {
    Record::Created { cgroup: CgroupPath(name.into()) }
}

fn records(journal: &Journal) -> Vec<Record> {
    journal.records().cloned().collect()
}

fn samples() -> Vec<Record> {
    let thread = ThreadRef { pid: Pid(10), tid: Tid(11), start: StartTime(12) };
    vec![
        Record::Enabled { cgroup: CgroupPath::root(), id: CgroupId(1) },
        created("/g \"quoted\"\n"),
        Record::Knob {
            cgroup: CgroupPath("/a".into()),
            id: CgroupId(u64::MAX),
            knob: Knob::Quota,
            original: "max 100000".into(),
        },
        Record::Moved { thread, from: CgroupPath("/a".into()), to: CgroupPath("/g".into()) },
        Record::Affinity { thread, original: "0-3,7".parse().unwrap() },
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
    assert_eq!(records(&journal), samples());
    assert!(samples().iter().all(|record| journal.knows(&record.key())));
}

#[test]
fn second_owner_error_names_the_holder() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    let error = Journal::<Record>::open(dir.path(), stamp()).unwrap_err().to_string();
    let me = format!("process {}", std::process::id());
    assert!(error.contains(&me), "{error}");
}

#[test]
fn torn_ends_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let path = dir.path().join("journal");
    let bytes = fs::read(&path).unwrap();
    for length in (0..=bytes.len()).step_by(7) {
        fs::write(&path, &bytes[..length]).unwrap();
        let whole = bytes[..length].iter().filter(|&&b| b == b'\n').count();
        let mut journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
        assert_eq!(records(&journal), &samples()[..whole.saturating_sub(1)]);
        journal.append(created("/next")).unwrap();
        drop(journal);
        let journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
        assert_eq!(journal.records().count(), whole.saturating_sub(1) + 1);
    }
}

#[test]
fn errors_name_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    filled(dir.path());
    let good = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = good.lines().collect();
    lines.insert(3, "{\"change\":\"created\"}");
    let cases = [
        ("garbage\n".to_owned(), "does not begin"),
        ("\n".to_owned(), "does not begin"),
        (format!("{}\n", lines.join("\n")), "line 4"),
        (good.replace("created", "invented"), "line 3"),
        (good.replace("\"tandem_journal\":1", "\"tandem_journal\":9"), "format 9"),
        (good.replace("0-3,7", "3-0"), "backwards"),
    ];
    for (text, wanted) in cases {
        fs::write(&path, &text).unwrap();
        let error = Journal::<Record>::open(dir.path(), stamp()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "unchanged");
    }
}

#[test]
fn journal_of_earlier_boot_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let later = Stamp { boot: "boot-b".into(), ..stamp() };
    let journal = Journal::<Record>::open(dir.path(), later).unwrap();
    assert_eq!(records(&journal), []);
    assert!(!is_pending(dir.path()));
}

#[test]
fn other_hierarchy_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let other = Stamp { version: Version::V2, ..stamp() };
    let error = Journal::<Record>::open(dir.path(), other).unwrap_err().to_string();
    assert!(error.contains("cgroup v1"), "{error}");
    assert!(is_pending(dir.path()));
}

#[test]
fn keep_drops_other_records() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let mut journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    journal.keep(|record| samples()[..2].contains(record)).unwrap();
    journal.append(created("/later")).unwrap();
    drop(journal);
    let mut journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    assert_eq!(journal.records().count(), 3);
    assert!(!journal.knows(&samples()[3].key()));
    journal.keep(|_| false).unwrap();
    assert!(!is_pending(dir.path()));
}

#[test]
fn unreadable_journal_is_pending() {
    let dir = tempfile::tempdir().unwrap();
    assert!(!is_pending(&dir.path().join("none")));
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(is_pending(&file));
    let restored = crate::restore::restore_pending(&file, |dir| {
        Journal::<Record>::open(dir, stamp()).map(|journal| (journal, Default::default()))
    });
    let error = restored.unwrap_err().to_string();
    assert!(error.contains(file.to_str().unwrap()), "{error}");
}

/// A record about a weight.
fn weight(text: &str) -> Record {
    Record::Knob {
        cgroup: CgroupPath("/a".into()),
        id: CgroupId(7),
        knob: Knob::Weight,
        original: text.into(),
    }
}

#[test]
fn first_record_is_original_later_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), stamp()).unwrap();
    journal.append(weight("512")).unwrap();
    assert!(journal.is_ours(&weight("9")), "without written values any value is ours");
    for text in ["1", "2", "3", "4", "4"] {
        journal.will_write(weight(text)).unwrap();
    }
    for compacted in [false, true] {
        if compacted {
            journal.compact().unwrap();
        }
        drop(journal);
        journal = Journal::open(dir.path(), stamp()).unwrap();
        assert_eq!(records(&journal), [weight("512")]);
        let ours: Vec<&str> = ["1", "2", "3", "4", "5", "512"]
            .into_iter()
            .filter(|text| journal.is_ours(&weight(text)))
            .collect();
        assert_eq!(ours, ["2", "3", "4", "512"], "the newest, and the original");
    }
    // After a failed write, the value before it is current.
    journal.will_write(weight("6")).unwrap();
    journal.write_failed(&weight("6").key());
    assert_eq!(journal.written(&weight("").key()).last(), Some(&weight("4")));
    journal.replace_original(weight("1024")).unwrap();
    drop(journal);
    let journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    assert_eq!(records(&journal), [weight("1024")]);
    assert_eq!(journal.written(&weight("").key()), []);
}

#[test]
fn journal_writable_by_others_is_refused() {
    let open = |dir: &Path| {
        let opened = Journal::<Record>::open(dir, stamp());
        opened.map(drop).map_err(|error| error.to_string())
    };
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let path = dir.path().join("journal");
    for (what, mode, good) in [(dir.path(), 0o777, 0o700), (&path, 0o666, 0o600)] {
        fs::set_permissions(what, fs::Permissions::from_mode(mode)).unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(error.contains("cannot be trusted"), "{error}");
        fs::set_permissions(what, fs::Permissions::from_mode(good)).unwrap();
    }
    // A link is not followed.
    fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
    assert!(open(dir.path()).is_err());
    fs::remove_file(&path).unwrap();
    open(dir.path()).unwrap();
}

#[test]
fn paths_outside_the_hierarchy_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for cgroup in ["/../../etc", "etc"] {
        let mut text = line(&stamp());
        text.extend(line(&created(cgroup)));
        fs::write(dir.path().join("journal"), text).unwrap();
        let error = Journal::<Record>::open(dir.path(), stamp()).unwrap_err();
        assert!(error.to_string().contains("within the hierarchy"), "{error}");
    }
}

/// A disk that may be full or unable to open directories, and that counts new files.
#[derive(Clone, Debug, Default)]
struct Full(Arc<Room>);

#[derive(Debug, Default)]
struct Room {
    /// Maximum length of a file in bytes; 0 for unlimited.
    most: AtomicU64,
    opens_no_directories: AtomicBool,
    new_files: AtomicUsize,
}

impl Full {
    fn set_limit(&self, most: u64) {
        self.0.most.store(most, Ordering::Relaxed);
    }

    fn new_files(&self) -> usize {
        self.0.new_files.load(Ordering::Relaxed)
    }
}

impl Disk for Full {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        HostDisk.make_dir(dir)
    }

    fn open(&self, path: &Path, how: How) -> io::Result<File> {
        if path.is_dir() && self.0.opens_no_directories.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        if how == How::Fresh {
            self.0.new_files.fetch_add(1, Ordering::Relaxed);
        }
        HostDisk.open(path, how)
    }

    fn read(&self, file: &File) -> io::Result<Vec<u8>> {
        HostDisk.read(file)
    }

    /// Writes as much as fits before it fails.
    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        let room = match self.0.most.load(Ordering::Relaxed) {
            0 => bytes.len(),
            most => most.saturating_sub(at).min(bytes.len() as u64) as usize,
        };
        HostDisk.write_at(file, &bytes[..room], at)?;
        if room == bytes.len() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn set_len(&self, file: &File, length: u64) -> io::Result<()> {
        HostDisk.set_len(file, length)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        HostDisk.sync(file)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        HostDisk.rename(from, to)
    }

    fn lock(&self, file: &File) -> io::Result<()> {
        HostDisk.lock(file)
    }
}

#[test]
fn failed_replacement_on_full_disk_is_rate_limited() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Full::default();
    let mut journal =
        Journal::<Record>::open_on(Box::new(disk.clone()), dir.path(), stamp()).unwrap();
    let name = |n: u32| created(&format!("/{n:04}"));
    for n in 0..1_000 {
        journal.append(name(n)).unwrap();
    }
    disk.set_limit(10_000);
    journal.keep(|record| *record != name(0)).unwrap_err();
    let length = fs::metadata(dir.path().join("journal.new")).unwrap().len();
    assert_eq!(length, 0);
    let before = disk.new_files();
    for n in 1_000..2_000 {
        journal.append(name(n)).unwrap_err();
        journal.will_write(weight("7")).unwrap_err();
    }
    // On a busy machine this may take seconds, and a retry is due each second.
    assert!(disk.new_files() - before < 100, "{}", disk.new_files() - before);
    disk.set_limit(0);
    journal.not_replaced = None;
    journal.append(name(2_000)).unwrap();
    drop(journal);
    let journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    assert_eq!(journal.records().count(), 1_000);
    assert!(journal.knows(&name(2_000).key()) && !journal.knows(&name(0).key()));
}

#[test]
fn unwritten_key_is_dropped_on_full_disk() {
    for needs_replacing in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Full::default();
        let mut journal =
            Journal::<Record>::open_on(Box::new(disk.clone()), dir.path(), stamp()).unwrap();
        journal.append(created("/a")).unwrap();
        journal.append(weight("512")).unwrap();
        disk.set_limit(1);
        if needs_replacing {
            // The earlier record cannot be removed from the file.
            journal.keep(|record| *record != created("/a")).unwrap_err();
        }
        journal.will_write(weight("7")).unwrap_err();
        assert!(!journal.knows(&weight("").key()), "{needs_replacing}");
        disk.set_limit(0);
        journal.not_replaced = None;
        journal.append(created("/b")).unwrap();
        let remembered = records(&journal);
        drop(journal);
        let journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
        assert_eq!(records(&journal), remembered);
        assert!(!journal.knows(&weight("").key()));
    }
}

#[test]
fn records_after_replacement_reach_the_new_file() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let disk = Full::default();
    disk.0.opens_no_directories.store(true, Ordering::Relaxed);
    let mut journal = Journal::<Record>::open_on(Box::new(disk), dir.path(), stamp()).unwrap();
    let _ = journal.keep(|record| samples()[..2].contains(record));
    journal.append(created("/later")).unwrap();
    drop(journal);
    let journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    assert_eq!(journal.records().next_back(), Some(&created("/later")));
}

/// A record that counts the accesses to all records.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Counted(u32, String);

thread_local! {
    static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.1)
    }
}

impl Entry for Counted {
    type Key = u32;

    const RESTORE: &'static str = "none";

    const MAX_BYTES: usize = 1 << 20;

    fn key(&self) -> u32 {
        LOOKS.set(LOOKS.get() + 1);
        self.0
    }

    fn thread(&self) -> Option<&ThreadRef> {
        None
    }

    fn results_from(&self, written: &Counted) -> bool {
        LOOKS.set(LOOKS.get() + 1);
        self == written
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn lookup_cost_is_independent_of_other_records() {
    let looks = |others: u32| {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), stamp()).unwrap();
        let of = |key, text: &str| Counted(key, text.to_owned());
        for key in 0..others {
            journal.append(of(key, "own")).unwrap();
            journal.will_write(of(key, "ours")).unwrap();
        }
        let before = LOOKS.get();
        for key in others - 20..others {
            assert!(!journal.is_ours(&of(key, "theirs")));
            journal.keep_current(of(key, "own")).unwrap();
            journal.replace_original(of(key, "theirs")).unwrap();
            assert_eq!(journal.record(&key), Some(&of(key, "theirs")));
            journal.forget(&key).unwrap();
        }
        LOOKS.get() - before
    };
    let few = looks(100);
    assert!(few <= 20 * 40, "{few}");
    assert_eq!(looks(3_000), few);
}

#[test]
fn full_journal_only_replaces_written_values() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), stamp()).unwrap();
    let of = |key, first: char| Counted(key, format!("{first}{}", "-".repeat(1_000)));
    journal.append(of(0, 'o')).unwrap();
    for given in 'a'..='j' {
        journal.will_write(of(0, given)).unwrap();
    }
    let beyond = (1..10_000).find(|key| journal.append(of(*key, 'o')).is_err());
    let last = beyond.expect("it is full") - 1;
    for given in 'k'..='t' {
        journal.will_write(of(0, given)).unwrap();
    }
    assert!(journal.will_write(of(last, 'a')).is_err());
    // Its value is not ours.
    assert!(!journal.knows(&last) && journal.knows(&(last - 1)));
}

#[test]
fn closed_key_starts_over() {
    for given in [0, 1, 5] {
        for follows in [None, Some("2048")] {
            let dir = tempfile::tempdir().unwrap();
            let mut journal = Journal::open(dir.path(), stamp()).unwrap();
            journal.append(created("/other")).unwrap();
            journal.append(weight("512")).unwrap();
            for text in 0..given {
                let written = weight(&text.to_string());
                journal.will_write(written).unwrap();
            }
            journal.forget(&weight("").key()).unwrap();
            assert!(!journal.knows(&weight("").key()));
            if let Some(text) = follows {
                journal.append(weight(text)).unwrap();
                journal.will_write(weight("9")).unwrap();
            }
            let remembered = records(&journal);
            drop(journal);
            let journal = Journal::open(dir.path(), stamp()).unwrap();
            assert_eq!(records(&journal), remembered, "{given} {follows:?}");
            assert_eq!(journal.knows(&weight("").key()), follows.is_some());
            let written = journal.written(&weight("").key());
            assert_eq!(written.len(), usize::from(follows.is_some()));
        }
    }
}

#[test]
fn forgotten_last_line_is_truncated() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    for name in ["/a", "/b", "/c"] {
        journal.append(created(name)).unwrap();
    }
    journal.forget(&created("/c").key()).unwrap();
    let text = fs::read_to_string(dir.path().join("journal")).unwrap();
    assert!(!text.contains("\"/c\"") && text.contains("\"/b\""), "{text}");
    journal.forget(&created("/a").key()).unwrap();
    drop(journal);
    let journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    assert_eq!(records(&journal), [created("/b")]);
}

/// If the file ends after the closing line, before the new original, the key has no record.
#[test]
fn torn_new_original_leaves_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), stamp()).unwrap();
    journal.append(weight("512")).unwrap();
    journal.will_write(weight("7")).unwrap();
    journal.replace_original(weight("1024")).unwrap();
    drop(journal);
    let path = dir.path().join("journal");
    let bytes = fs::read(&path).unwrap();
    let is_end = |(at, byte): (usize, &u8)| (*byte == b'\n').then_some(at + 1);
    let ends: Vec<usize> = bytes.iter().enumerate().filter_map(is_end).collect();
    let originals = ends.iter().map(|&end| {
        fs::write(&path, &bytes[..end]).unwrap();
        let journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
        records(&journal).pop()
    });
    let originals: Vec<_> = originals.collect();
    let own = Some(weight("512"));
    let wanted = [None, own.clone(), own, None, Some(weight("1024"))];
    assert_eq!(originals, wanted);
}

#[test]
fn undone_records_are_forgotten_despite_write_errors() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    journal.append(created("/a")).unwrap();
    journal.append(created("/b")).unwrap();
    // A folder in the place of the new file.
    let blocker = dir.path().join("journal.new");
    fs::create_dir(&blocker).unwrap();
    journal.keep(|record| *record == created("/b")).unwrap_err();
    assert_eq!(records(&journal), [created("/b")]);
    let error = journal.append(created("/c")).unwrap_err();
    assert!(error.is_of_disk(), "{error}");
    fs::remove_dir(&blocker).unwrap();
    // Simulates the retry delay.
    journal.not_replaced = None;
    journal.append(created("/c")).unwrap();
    drop(journal);
    let journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    assert_eq!(records(&journal), [created("/b"), created("/c")]);
}

#[test]
fn removed_file_is_recreated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!journal.wants_compaction(), "without records no file is needed");
    journal.append(created("/a")).unwrap();
    assert!(is_pending(dir.path()));
    fs::remove_file(&path).unwrap();
    assert!(journal.wants_compaction());
    journal.compact().unwrap();
    assert!(is_pending(dir.path()) && !journal.wants_compaction());
    fs::remove_file(&path).unwrap();
    journal.append(created("/b")).unwrap();
    drop(journal);
    let mut journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    assert!(records(&journal).starts_with(&[created("/a")]));
    assert!(journal.knows(&created("/b").key()));
    fs::remove_file(&path).unwrap();
    journal.keep(|_| false).unwrap();
    assert!(!is_pending(dir.path()));
}

#[test]
fn journal_without_writer_is_abandoned() {
    let dir = tempfile::tempdir().unwrap();
    assert!(!is_abandoned(dir.path()));
    let mut journal = Journal::<Record>::open(dir.path(), stamp()).unwrap();
    journal.append(created("/a")).unwrap();
    assert!(!is_abandoned(dir.path()));
    drop(journal);
    assert!(is_abandoned(dir.path()));
    // Also a journal that cannot be parsed.
    fs::write(dir.path().join("journal"), "?").unwrap();
    assert!(is_abandoned(dir.path()));
    // A pipe in the place of the lock does not block.
    let lock = dir.path().join("lock");
    fs::remove_file(&lock).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &lock, rustix::fs::Mode::RUSR).unwrap();
    is_abandoned(dir.path());
    let said = Journal::<Record>::open(dir.path(), stamp()).unwrap_err();
    assert!(said.to_string().contains("Move it away"), "{said}");
    fs::write(dir.path().join("journal"), "").unwrap();
    assert!(!is_abandoned(dir.path()));
}
