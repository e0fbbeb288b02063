//! A tenant with many processes, cgroups or deep trees of them only uses up their own share of the journal.

#[allow(dead_code, reason = "not every test uses all of it")]
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::affinity::{AffinityError, HostThreads, Threads};
use tandem_linux::cgroup::{CgroupPath, MAX_PATH_LENGTH, Version};
use tandem_linux::procfs::ProcFs;
use tandem_linux::sched_attr::SchedAttrError;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::{Nanos, Nice, PcpuId, PcpuSet, Weight};
use tandem_testing::fake_host::Fake;

/// Number of the tenant's processes, its user, and a process of another user.
const PROCESSES: u32 = 64;
const TENANT: u32 = 100_000;
const OTHERS: Pid = Pid(7);
const OTHER: u32 = 1000;

/// The fake host's threads; the users of their processes come from a folder.
struct Owned {
    host: Fake,
    owners: HostThreads,
    /// Whether setting an affinity fails, so that none can be restored.
    is_stuck: Arc<AtomicBool>,
}

impl Threads for Owned {
    fn is_alive(&self, thread: &ThreadRef) -> bool {
        self.host.is_alive(thread)
    }

    fn user(&self, pid: Pid) -> Option<u32> {
        self.owners.user(pid)
    }

    fn affinity(&self, tid: Tid) -> Result<PcpuSet, AffinityError> {
        self.host.affinity(tid)
    }

    fn set_affinity(&self, tid: Tid, pcpus: &PcpuSet) -> Result<(), AffinityError> {
        if self.is_stuck.load(Ordering::Relaxed) {
            return Err(AffinityError::Kernel {
                action: "set",
                tid,
                source: io::Error::from_raw_os_error(libc::EINVAL),
            });
        }
        self.host.set_affinity(tid, pcpus)
    }

    fn nice(&self, tid: Tid) -> Result<Nice, SchedAttrError> {
        self.host.nice(tid)
    }

    fn set_nice(&self, tid: Tid, nice: Nice) -> Result<(), SchedAttrError> {
        self.host.set_nice(tid, nice)
    }

    fn slice(&self, tid: Tid) -> Result<Option<Nanos>, SchedAttrError> {
        self.host.slice(tid)
    }

    fn set_slice(&self, tid: Tid, slice: Option<Nanos>) -> Result<(), SchedAttrError> {
        self.host.set_slice(tid, slice)
    }
}

fn in_memory() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { tempfile::tempdir_in(shm).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// A host on which the tenant has processes 100, 101 …, and another user has [`OTHERS`].
struct Subject {
    dir: tempfile::TempDir,
    host: Fake,
    is_stuck: Arc<AtomicBool>,
}

impl Subject {
    fn new() -> Subject {
        let subject =
            Subject { dir: in_memory(), host: Fake::new(Version::V2), is_stuck: Arc::default() };
        (0..PROCESSES).for_each(|n| subject.has(tenants(n), TENANT));
        subject.has(OTHERS, OTHER);
        subject
    }

    /// Sets the user of a process.
    fn has(&self, pid: Pid, uid: u32) {
        let process = self.dir.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&process).unwrap();
        let status = format!("Name:\tvmm\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
        fs::write(process.join("status"), status).unwrap();
    }

    fn open(&self) -> Actuator {
        let threads = Owned {
            host: self.host.clone(),
            owners: HostThreads::new(ProcFs::at(self.dir.path())),
            is_stuck: Arc::clone(&self.is_stuck),
        };
        let state = self.dir.path().join("state");
        let (host, threads) = (self.host.controller(), Box::new(threads));
        Actuator::open_with(host, threads, &state, "boot").unwrap().0
    }

    /// Opens an actuator that is never dropped: its restore of so many cgroups takes minutes on the fake host.
    fn open_without_drop(&self) -> ManuallyDrop<Actuator> {
        ManuallyDrop::new(self.open())
    }

    /// Creates a cgroup with a path of nearly the maximum length, and those above it.
    fn long(&self, name: &str) -> CgroupPath {
        let mut cgroup = CgroupPath("/vms".to_owned());
        while cgroup.0.len() + name.len() + 1 < MAX_PATH_LENGTH - 10 {
            let free = MAX_PATH_LENGTH - 10 - cgroup.0.len() - name.len();
            cgroup = cgroup.child(&"x".repeat(free.clamp(1, 100)));
            self.host.make_cgroup(&cgroup);
        }
        let cgroup = cgroup.child(name);
        self.host.make_cgroup(&cgroup);
        cgroup
    }

    /// Creates a cgroup as deep below one of this name as the maximum length allows, and all above it.
    fn deep(&self, name: &str) -> CgroupPath {
        let mut cgroup = CgroupPath(format!("/vms/{name}"));
        self.host.make_cgroup(&cgroup);
        while cgroup.0.len() < 500 {
            cgroup = cgroup.child("xxx");
            self.host.make_cgroup(&cgroup);
        }
        cgroup
    }
}

/// The tenant's processes.
fn tenants(n: u32) -> Pid {
    Pid(100 + n % PROCESSES)
}

/// The number of changes before the first refused one, and its error.
fn first_refused<T>(
    most: u32,
    mut change: impl FnMut(u32) -> Result<T, ActuatorError>,
) -> (u32, String) {
    let refused = (0..most).find_map(|n| change(n).err().map(|error| (n, error.to_string())));
    refused.unwrap_or_else(|| panic!("none of {most} was refused"))
}

fn assert_is_the_tenants(said: &str) {
    assert!(said.contains(&format!("user {TENANT} ")) && said.contains("10 MiB"), "{said}");
}

/// Changes the affinity of a thread of this process; the original is so long that the journal has 20 kB of it.
fn bind(subject: &Subject, actuator: &mut Actuator, pid: Pid) -> Result<ThreadRef, ActuatorError> {
    let every_second: PcpuSet = (0..8192).step_by(2).map(PcpuId).collect();
    let thread = subject.host.start_in(&CgroupPath("/vms/shared".to_owned()));
    subject.host.operator_sets_affinity(&thread, &every_second);
    let one = [PcpuId(0)].into_iter().collect();
    let thread = ThreadRef { pid, ..thread };
    actuator.set_affinity(&thread, &one)?;
    Ok(thread)
}

#[test]
fn hostile_processes_share_one_quota() {
    let subject = Subject::new();
    let mut actuator = subject.open();
    let mut bind = |pid| bind(&subject, &mut actuator, pid);
    let (many, said) = first_refused(1_000, |n| bind(tenants(n)));
    assert_is_the_tenants(&said);
    assert!(many > 400, "{many}");
    for _ in 0..200 {
        bind(OTHERS).unwrap();
    }
}

#[test]
fn hostile_leftover_threads_count_after_restart() {
    let subject = Subject::new();
    let mut actuator = subject.open();
    let (many, _) = first_refused(1_000, |n| bind(&subject, &mut actuator, tenants(n % 8)));
    assert!(many > 400, "{many}");
    subject.is_stuck.store(true, Ordering::Relaxed);
    actuator.abandon();
    let mut actuator = subject.open();
    subject.is_stuck.store(false, Ordering::Relaxed);
    let (more, said) = first_refused(1_000, |n| bind(&subject, &mut actuator, tenants(8 + n)));
    assert_is_the_tenants(&said);
    assert!(more < 10, "{many}, and {more} more");
    bind(&subject, &mut actuator, OTHERS).unwrap();
}

#[test]
fn hostile_reused_pid_counts_for_new_user() {
    let subject = Subject::new();
    let mut actuator = subject.open();
    let (first, next) = (tenants(0), tenants(1));
    let threads: Vec<ThreadRef> =
        (0..8).map(|_| bind(&subject, &mut actuator, first).unwrap()).collect();
    first_refused(1_000, |_| bind(&subject, &mut actuator, next));
    // The records of ended threads stay until the next scan.
    threads.iter().for_each(|thread| subject.host.end(thread));
    subject.has(first, OTHER);
    let cgroup = CgroupPath("/vms/shared".to_owned());
    actuator.charge_to(&cgroup, first);
    assert_eq!(actuator.charged_user(&cgroup), Some(OTHER));
    for n in 0..200 {
        let bound = bind(&subject, &mut actuator, first);
        assert!(bound.is_ok(), "{n}: {bound:?}");
    }
}

#[test]
fn hostile_leftover_groups_count_after_restart() {
    // Either many groups in one cgroup with a long path, or one deep below, with the controller enabled in those above.
    for is_deep in [false, true] {
        let subject = Subject::new();
        let (home, groups) =
            if is_deep { (subject.deep("home"), 1) } else { (subject.long("home"), 200) };
        let name = |n: u32| format!("tandem-{n}");
        let mut actuator = subject.open();
        for n in 0..groups {
            actuator.charge_to(&home.child(&name(n)), tenants(n));
            let group = actuator.create_group(&home, &name(n)).unwrap();
            let thread = subject.host.start_in(&group);
            subject.host.begin_end(&thread);
        }
        let (before, said) = first_refused(1_000, |n| bind(&subject, &mut actuator, tenants(n)));
        assert_is_the_tenants(&said);
        actuator.abandon();
        let mut actuator = subject.open_without_drop();
        for n in 0..groups {
            actuator.charge_to(&home.child(&name(n)), tenants(n));
        }
        let (after, said) = first_refused(1_000, |n| bind(&subject, &mut actuator, tenants(n)));
        assert_is_the_tenants(&said);
        assert_eq!(after, before, "they count as before");
        bind(&subject, &mut actuator, OTHERS).unwrap();
    }
}

#[test]
fn hostile_cgroups_share_one_quota() {
    for is_made in [true, false] {
        let subject = Subject::new();
        let mut actuator = subject.open_without_drop();
        let home = subject.long("home");
        let mut change = |n: u32, pid| {
            if is_made {
                let name = format!("tandem-{n}");
                actuator.charge_to(&home.child(&name), pid);
                actuator.create_group(&home, &name).map(drop)
            } else {
                let cgroup = home.child(&format!("{n}"));
                subject.host.make_cgroup(&cgroup);
                actuator.charge_to(&cgroup, pid);
                (1..5u32).try_for_each(|n| {
                    let weight = Weight::constant(f64::from(200 + n));
                    actuator.set_weight(&cgroup, weight).map(drop)
                })
            }
        };
        let (many, said) = first_refused(12_000, |n| change(n, tenants(n)));
        assert_is_the_tenants(&said);
        assert!(many > 4_000, "{many}");
        for n in 20_000..21_000 {
            change(n, OTHERS).unwrap();
        }
    }
}

#[test]
fn hostile_cgroup_trees_share_one_quota() {
    let subject = Subject::new();
    let mut actuator = subject.open_without_drop();
    let mut change = |n: u32, pid| {
        let cgroup = subject.deep(&n.to_string());
        actuator.charge_to(&cgroup, pid);
        actuator.set_weight(&cgroup, Weight::constant(200.0)).map(drop)
    };
    let (many, said) = first_refused(600, |n| change(n, tenants(n)));
    assert_is_the_tenants(&said);
    assert!(many > 100, "{many}");
    for n in 1_000..1_030 {
        change(n, OTHERS).unwrap();
    }
}
