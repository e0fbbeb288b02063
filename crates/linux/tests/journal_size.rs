//! Size of the journal of a full host, in its file and in this process's memory.
//!
//! The host has the maximum number of vCPUs of a daemon, and cgroups with paths of the maximum length.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use tandem_linux::cgroup::{CgroupPath, MAX_PATH_LENGTH, Version};
use tandem_linux::journal::{Journal, JournalError, Record, Stamp};
use tandem_linux::thread::{Pid, StartTime, ThreadRef, Tid};

/// Limits of a host.
const VCPUS: u32 = 65_536;
const USERS: u32 = 4;
const PER_VM: u32 = 64;

/// Memory limit of the daemon's unit, in bytes.
const MEMORY_MAX: usize = 256 << 20;

/// Counts the allocated bytes and their peak.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system's allocator and only counts sizes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the layout is the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the block is from `alloc` with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn open(dir: &Path) -> Journal {
    let stamp = Stamp::new("boot".to_owned(), Version::V2, "/sys/fs/cgroup".into());
    Journal::open(dir, stamp).unwrap()
}

/// Record of moving a vCPU thread to its VM's group, in a cgroup whose path has `length` bytes.
fn moved(vcpu: u32, length: usize) -> Record {
    let vm = vcpu / PER_VM;
    let name = format!("/vm-{vm}.scope");
    let mut home = String::from("/user.slice");
    while home.len() + name.len() < length {
        let left = (length - home.len() - name.len()).min(100);
        home += &format!("/{}", "x".repeat(left.saturating_sub(1).max(1)));
    }
    home += &name;
    let thread = ThreadRef {
        pid: Pid(4_000_000 + vm),
        tid: Tid(3_000_000 + vcpu),
        start: StartTime(1_000_000_000 + u64::from(vcpu)),
    };
    Record::Moved {
        thread,
        to: CgroupPath(home.clone()).child(&format!("tandem-web-{}", thread.pid.0)),
        from: CgroupPath(home),
    }
}

/// Journals the moves of a full host; returns the errors, and the bytes of memory and of the file.
fn fill(dir: &Path, length: usize) -> (Vec<JournalError>, usize, usize) {
    let mut journal = open(dir);
    let before = NOW.load(Ordering::Relaxed);
    let mut refused = Vec::new();
    for vcpu in 0..VCPUS {
        let user = 1000 + vcpu / (VCPUS / USERS);
        let appended = journal.append_of(moved(vcpu, length), Some(user));
        refused.extend(appended.err());
        if journal.wants_compaction() {
            journal.compact().unwrap();
        }
    }
    let held = NOW.load(Ordering::Relaxed) - before;
    let file = std::fs::metadata(journal.path()).unwrap().len();
    (refused, held, file as usize)
}

// The only test, because the allocations of a concurrent one would be counted, too.
#[test]
fn full_hosts_journal_fits_the_memory_limit() {
    let shm = Path::new("/dev/shm");
    for length in [100, MAX_PATH_LENGTH] {
        let dir = if shm.is_dir() {
            tempfile::tempdir_in(shm).unwrap()
        } else {
            tempfile::tempdir().unwrap()
        };
        PEAK.store(NOW.load(Ordering::Relaxed), Ordering::Relaxed);
        let (refused, held, file) = fill(dir.path(), length);
        let filling = PEAK.load(Ordering::Relaxed);
        PEAK.store(NOW.load(Ordering::Relaxed), Ordering::Relaxed);
        let journal = open(dir.path());
        let reading = PEAK.load(Ordering::Relaxed);
        let kept = journal.records().count();
        println!(
            "paths of {length} bytes: {kept} vCPUs, {held} bytes of memory, {file} of file; peak {filling} while writing, {reading} while reading"
        );
        assert_eq!(kept + refused.len(), VCPUS as usize);
        match length {
            100 => assert!(refused.is_empty(), "{}", refused[0]),
            _ => {
                let said = refused[0].to_string();
                assert!(said.contains("user 1000 ") && said.contains("10 MiB"), "{said}");
                // Each user's error is their own, whatever the others have.
                let last = refused.iter().map(JournalError::to_string);
                let kinds: std::collections::BTreeSet<String> = last.collect();
                assert_eq!(kinds.len(), USERS as usize, "{kinds:?}");
            }
        }
        // The file is in memory (tmpfs), and there are two during a replacement.
        assert!(filling + 2 * file < MEMORY_MAX * 3 / 4, "{filling} and {file} bytes");
        assert!(reading + 2 * file < MEMORY_MAX * 3 / 4, "{reading} and {file} bytes");
    }
}
