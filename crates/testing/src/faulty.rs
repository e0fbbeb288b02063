//! Fault injection into the calls of a host and a disk.
//!
//! The call with the chosen number fails with the chosen error.
//! Later calls succeed, except writes to a disk that has become read-only.
//! A failing write writes half of its bytes.
//! The kernel returns `ESRCH` for a thread that has ended, so injecting it ends the thread.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::{AffinityError, Threads};
use tandem_linux::cgroup::{CgroupError, CgroupId, CgroupPath, CpuController, Knob, Version};
use tandem_linux::disk::{Disk, HostDisk, How};
use tandem_linux::sched_attr::SchedAttrError;
use tandem_linux::thread::{Pid, ThreadError, ThreadRef, Tid};
use tandem_model::{Nanos, Nice, PcpuSet, Weight};

use crate::fake_host::Fake;

/// Injected faults and counters.
#[derive(Debug, Default)]
struct Plan {
    /// Calls before the one that fails, and its error.
    fuse: Option<(usize, i32)>,
    /// Writes to the disk up to the one that fails.
    writes: Option<usize>,
    has_fired: bool,
    is_read_only: bool,
    /// Calls so far, including renames.
    calls: usize,
    renames: usize,
    /// Bytes written so far.
    bytes: usize,
    /// Listings of a cgroup's children so far.
    children_looks: usize,
}

/// A handle to the faults; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

/// Opens an actuator on a host and a disk with these faults.
pub fn open(host: &Fake, faults: &Faults, dir: &Path) -> Actuator {
    let counted = FaultyHost { host: host.clone(), faults: faults.clone() };
    let disk = Box::new(FaultyDisk(faults.clone()));
    let threads = Box::new(counted.clone());
    let opened = Actuator::open_on(disk, Box::new(counted), threads, dir, "boot");
    opened.unwrap().0
}

impl Faults {
    /// Makes the call after `calls` others fail.
    pub fn fail_after(&self, calls: usize, error: i32) {
        let mut plan = self.0.lock().unwrap();
        plan.fuse = Some((calls, error));
        plan.has_fired = false;
    }

    /// Makes the write to the disk with this number from here fail, counted from 1.
    pub fn fail_at_write(&self, number: usize) {
        let mut plan = self.0.lock().unwrap();
        (plan.writes, plan.has_fired) = (Some(number), false);
    }

    /// Makes all writes fail from now on.
    pub fn be_read_only(&self) {
        self.0.lock().unwrap().is_read_only = true;
    }

    /// Stops all faults.
    pub fn stop(&self) {
        let mut plan = self.0.lock().unwrap();
        (plan.fuse, plan.writes, plan.is_read_only) = (None, None, false);
    }

    /// Numbers of calls and of renames so far.
    pub fn calls(&self) -> (usize, usize) {
        let plan = self.0.lock().unwrap();
        (plan.calls, plan.renames)
    }

    /// Number of bytes written so far.
    pub fn bytes(&self) -> usize {
        self.0.lock().unwrap().bytes
    }

    /// Number of listings of a cgroup's children so far.
    pub fn children_looks(&self) -> usize {
        self.0.lock().unwrap().children_looks
    }

    /// Whether the chosen call failed.
    pub fn has_fired(&self) -> bool {
        self.0.lock().unwrap().has_fired
    }

    fn hit(&self) -> Option<i32> {
        let mut plan = self.0.lock().unwrap();
        plan.calls += 1;
        let (left, error) = plan.fuse?;
        if left > 0 {
            plan.fuse = Some((left - 1, error));
            return None;
        }
        (plan.fuse, plan.has_fired) = (None, true);
        Some(error)
    }

    fn check(&self) -> io::Result<()> {
        match self.hit() {
            Some(error) => Err(io::Error::from_raw_os_error(error)),
            None => Ok(()),
        }
    }

    fn check_write(&self) -> io::Result<()> {
        let is_read_only = self.0.lock().unwrap().is_read_only;
        if is_read_only { Err(io::Error::from_raw_os_error(libc::EROFS)) } else { self.check() }
    }

    fn check_write_at(&self) -> io::Result<()> {
        let mut plan = self.0.lock().unwrap();
        plan.writes = plan.writes.map(|left| left.saturating_sub(1));
        if plan.writes == Some(0) {
            (plan.writes, plan.has_fired) = (None, true);
            return Err(io::ErrorKind::StorageFull.into());
        }
        drop(plan);
        self.check_write()
    }

    /// Fails as a read of a cgroup's file.
    fn check_cgroup(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.check().map_err(|source| CgroupError::Read { path: cgroup.0.clone().into(), source })
    }
}

/// This host's disk, with faults.
#[derive(Debug)]
pub struct FaultyDisk(pub Faults);

impl Disk for FaultyDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.check_write()?;
        HostDisk.make_dir(dir)
    }

    fn open(&self, path: &Path, how: How) -> io::Result<File> {
        match how {
            How::Read => self.0.check()?,
            How::Write | How::Fresh => self.0.check_write()?,
        }
        HostDisk.open(path, how)
    }

    fn read(&self, file: &File) -> io::Result<Vec<u8>> {
        self.0.check()?;
        HostDisk.read(file)
    }

    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        if let Err(error) = self.0.check_write_at() {
            HostDisk.write_at(file, &bytes[..bytes.len() / 2], at)?;
            return Err(error);
        }
        self.0.0.lock().unwrap().bytes += bytes.len();
        HostDisk.write_at(file, bytes, at)
    }

    fn set_len(&self, file: &File, length: u64) -> io::Result<()> {
        self.0.check_write()?;
        HostDisk.set_len(file, length)
    }

    fn sync(&self, _: &File) -> io::Result<()> {
        // Tests need not survive a crash of the machine.
        self.0.check()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.check_write()?;
        self.0.0.lock().unwrap().renames += 1;
        HostDisk.rename(from, to)
    }

    fn lock(&self, file: &File) -> io::Result<()> {
        self.0.check()?;
        HostDisk.lock(file)
    }
}

/// A host in memory, with faults.
#[derive(Clone)]
pub struct FaultyHost {
    /// The host.
    pub host: Fake,
    /// Its faults.
    pub faults: Faults,
}

impl FaultyHost {
    /// The injected error of a call on a thread, if any.
    fn of_thread(&self, tid: Tid) -> Option<io::Error> {
        let error = self.faults.hit()?;
        if error == libc::ESRCH {
            self.host.end_tid(tid);
        }
        Some(io::Error::from_raw_os_error(error))
    }

    fn affinity_fault(&self, tid: Tid) -> Result<(), AffinityError> {
        match self.of_thread(tid) {
            None => Ok(()),
            Some(source) if source.raw_os_error() == Some(libc::ESRCH) => {
                Err(AffinityError::Gone(tid))
            }
            Some(source) => Err(AffinityError::Kernel { action: "set", tid, source }),
        }
    }

    fn attribute_fault(&self, tid: Tid) -> Result<(), SchedAttrError> {
        match self.of_thread(tid) {
            None => Ok(()),
            Some(source) if source.raw_os_error() == Some(libc::ESRCH) => {
                Err(SchedAttrError::Gone(tid))
            }
            Some(source) => Err(SchedAttrError::Kernel { action: "set an attribute", tid, source }),
        }
    }
}

impl CpuController for FaultyHost {
    fn version(&self) -> Version {
        self.host.version()
    }

    fn mount(&self) -> &Path {
        self.host.mount()
    }

    fn default_weight(&self) -> Weight {
        self.host.default_weight()
    }

    fn weight_range(&self) -> (Weight, Weight) {
        self.host.weight_range()
    }

    fn cgroup_of(&self, thread: &ThreadRef) -> Result<CgroupPath, CgroupError> {
        match self.of_thread(thread.tid) {
            None => self.host.cgroup_of(thread),
            Some(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                Err(ThreadError::Gone(thread.to_string()).into())
            }
            Some(source) => Err(CgroupError::Read { path: "/proc".into(), source }),
        }
    }

    fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError> {
        self.faults.check_cgroup(cgroup)?;
        self.host.id(cgroup)
    }

    fn read_knob(&self, cgroup: &CgroupPath, knob: Knob) -> Result<String, CgroupError> {
        self.faults.check_cgroup(cgroup)?;
        self.host.read_knob(cgroup, knob)
    }

    fn write_knob(&self, cgroup: &CgroupPath, knob: Knob, text: &str) -> Result<(), CgroupError> {
        self.faults.check_cgroup(cgroup)?;
        self.host.write_knob(cgroup, knob, text)
    }

    fn stat(&self, cgroup: &CgroupPath) -> Result<String, CgroupError> {
        self.faults.check_cgroup(cgroup)?;
        self.host.stat(cgroup)
    }

    fn threads(&self, cgroup: &CgroupPath) -> Result<Vec<Tid>, CgroupError> {
        self.faults.check_cgroup(cgroup)?;
        CpuController::threads(&self.host, cgroup)
    }

    fn processes(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError> {
        self.faults.check_cgroup(cgroup)?;
        self.host.processes(cgroup)
    }

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        self.faults.0.lock().unwrap().children_looks += 1;
        self.faults.check_cgroup(cgroup)?;
        self.host.children(cgroup)
    }

    fn move_thread(&self, tid: Tid, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        match self.of_thread(tid) {
            None => self.host.move_thread(tid, cgroup),
            Some(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                Err(CgroupError::ThreadGone(tid))
            }
            Some(source) => Err(CgroupError::Read { path: cgroup.0.clone().into(), source }),
        }
    }

    fn check_parent(&self, parent: &CgroupPath) -> Result<(), CgroupError> {
        self.faults.check_cgroup(parent)?;
        self.host.check_parent(parent)
    }

    /// Takes two steps that can fail; a failure of the second leaves a cgroup behind.
    fn create_child(&self, parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError> {
        self.faults.check_cgroup(parent)?;
        let made = self.host.create_child(parent, name)?;
        self.faults.check_cgroup(&made)?;
        Ok(made)
    }

    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.faults.check_cgroup(cgroup)?;
        self.host.remove(cgroup)
    }

    fn missing_enables(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        self.faults.check_cgroup(cgroup)?;
        self.host.missing_enables(cgroup)
    }

    fn enable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.faults.check_cgroup(cgroup)?;
        self.host.enable(cgroup)
    }

    fn disable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.faults.check_cgroup(cgroup)?;
        self.host.disable(cgroup)
    }
}

impl Threads for FaultyHost {
    fn is_alive(&self, thread: &ThreadRef) -> bool {
        // Like `ThreadRef::is_alive`: an error counts as alive.
        match self.of_thread(thread.tid) {
            Some(error) if error.raw_os_error() != Some(libc::ESRCH) => true,
            _ => self.host.is_alive(thread),
        }
    }

    fn affinity(&self, tid: Tid) -> Result<PcpuSet, AffinityError> {
        self.affinity_fault(tid)?;
        self.host.affinity(tid)
    }

    fn set_affinity(&self, tid: Tid, pcpus: &PcpuSet) -> Result<(), AffinityError> {
        self.affinity_fault(tid)?;
        self.host.set_affinity(tid, pcpus)
    }

    fn nice(&self, tid: Tid) -> Result<Nice, SchedAttrError> {
        self.attribute_fault(tid)?;
        self.host.nice(tid)
    }

    fn set_nice(&self, tid: Tid, nice: Nice) -> Result<(), SchedAttrError> {
        self.attribute_fault(tid)?;
        self.host.set_nice(tid, nice)
    }

    fn slice(&self, tid: Tid) -> Result<Option<Nanos>, SchedAttrError> {
        self.attribute_fault(tid)?;
        self.host.slice(tid)
    }

    fn set_slice(&self, tid: Tid, slice: Option<Nanos>) -> Result<(), SchedAttrError> {
        self.attribute_fault(tid)?;
        self.host.set_slice(tid, slice)
    }
}
