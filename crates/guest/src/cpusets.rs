//! The cpuset controller, which restricts the vCPUs of a cgroup's processes.
//!
//! v1: every cgroup has `cpuset.cpus` and `cpuset.mems`, initially empty, and accepts no process until both are set.
//! A cgroup cannot lose a vCPU that one of its children has.
//! The agent's cgroup is a child of the workload's cgroup, with `cpuset.sched_load_balance` off.
//! Changing it therefore does not rebuild the scheduling domains of the whole VM.
//!
//! v2: `cpuset.cpus` is a request, empty for none; the effective set is `cpuset.cpus.effective`.
//! A cgroup has the controller only if every ancestor enables it, and processes live in leaves only.
//!
//! Source: Documentation/admin-guide/cgroup-v1/cpusets.rst, cgroup-v2.rst; kernel/cgroup/cpuset*.c.
//!
//! This module does not journal; [`crate::actuator::Actuator`] does.

use std::path::Path;
use std::{fs, io};

use tandem_linux::ProcFs;
use tandem_linux::cgroup::files::Hierarchy;
use tandem_linux::cgroup::{CgroupError, CgroupId, CgroupPath, Version, mounts};
use tandem_linux::thread::{Pid, ThreadRef, ThreadStat, Tid};
use tandem_model::PcpuSet;

const CPUS: &str = "cpuset.cpus";
const SUBTREE: &str = "cgroup.subtree_control";

/// The hierarchy that holds the cpuset controller.
#[derive(Debug)]
pub struct Cpusets {
    version: Version,
    files: Hierarchy,
    procfs: ProcFs,
}

impl Cpusets {
    /// Finds the mounted hierarchy.
    pub fn open(procfs: &ProcFs) -> Result<Cpusets, CgroupError> {
        let (version, mount) = mounts::find(procfs, "cpuset")?;
        Ok(Cpusets { version, files: Hierarchy::new(procfs, &mount), procfs: procfs.clone() })
    }

    /// Returns the version of the interface.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the mount point.
    pub fn mount(&self) -> &Path {
        self.files.mount()
    }

    /// Returns the current cgroup of a process.
    pub fn cgroup_of(&self, process: &ThreadRef) -> Result<CgroupPath, CgroupError> {
        self.files.cgroup_of(process, self.version, "cpuset")
    }

    /// Returns the id of the cgroup that is currently at this path.
    pub fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError> {
        self.files.id(cgroup)
    }

    /// Returns true if the cgroup exists.
    pub fn exists(&self, cgroup: &CgroupPath) -> bool {
        self.id(cgroup).is_ok()
    }

    /// Returns true if the cgroup has the controller; on v1 every cgroup has it.
    pub fn has_controller(&self, cgroup: &CgroupPath) -> bool {
        self.files.file(cgroup, CPUS).exists()
    }

    /// Returns the text of `cpuset.cpus`.
    pub fn text(&self, cgroup: &CgroupPath) -> Result<String, CgroupError> {
        self.files.read(cgroup, CPUS)
    }

    /// Writes `cpuset.cpus`.
    pub fn set_text(&self, cgroup: &CgroupPath, text: &str) -> Result<(), CgroupError> {
        // Without the newline, an empty text would not result in a write(2).
        let line = format!("{text}\n");
        self.files.write(cgroup, CPUS, &line, cpus_hint)
    }

    /// Returns the effective vCPUs of the cgroup.
    pub fn vcpus(&self, cgroup: &CgroupPath) -> Result<PcpuSet, CgroupError> {
        let file = match self.version {
            Version::V1 => "cpuset.effective_cpus",
            Version::V2 => "cpuset.cpus.effective",
        };
        let mut at = cgroup.clone();
        // A cgroup without the controller has the vCPUs of its nearest ancestor with it.
        while !self.files.file(&at, file).exists() {
            match at.parent() {
                Some(parent) => at = parent,
                None => break,
            }
        }
        let file = if self.files.file(&at, file).exists() { file } else { CPUS };
        let text = self.files.read(&at, file)?;
        text.parse().map_err(|_| CgroupError::Malformed {
            path: self.files.file(&at, file),
            text,
            wanted: "a list of vCPUs such as 0-3,7",
        })
    }

    /// Returns the processes in the cgroup itself.
    pub fn processes(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError> {
        self.files.read_pids(cgroup)
    }

    /// Returns the processes in the cgroup and its descendants, in ascending order.
    pub fn processes_within(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError> {
        self.within(cgroup, &|cgroup| self.processes(cgroup))
    }

    /// Returns the threads in the cgroup and its descendants, in ascending order.
    ///
    /// Listing `/proc/PID/task` instead makes the kernel cache an entry for each thread.
    /// Dropping the entry at the thread's exit costs the observed program a third of a millisecond.
    pub fn threads_within(&self, cgroup: &CgroupPath) -> Result<Vec<Tid>, CgroupError> {
        let threads = self.threads_file();
        self.within(cgroup, &|cgroup| self.files.read_tids(cgroup, threads))
    }

    fn within<T: Ord>(
        &self,
        cgroup: &CgroupPath,
        members: &dyn Fn(&CgroupPath) -> Result<Vec<T>, CgroupError>,
    ) -> Result<Vec<T>, CgroupError> {
        let mut all = members(cgroup)?;
        for child in self.files.children(cgroup)? {
            match self.within(&child, members) {
                Ok(below) => all.extend(below),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    fn threads_file(&self) -> &'static str {
        match self.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.threads",
        }
    }

    /// Returns the children of the cgroup.
    pub fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        self.files.children(cgroup)
    }

    /// Moves a process with all its threads.
    pub fn move_process(&self, pid: Pid, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.files.write_tid(cgroup, "cgroup.procs", Tid(pid.0), move_hint)
    }

    /// Returns the file to which a process writes `0` to move itself into the cgroup.
    pub fn entrance(&self, cgroup: &CgroupPath) -> std::path::PathBuf {
        self.files.file(cgroup, "cgroup.procs")
    }

    /// Creates a cgroup with the vCPUs of its parent.
    pub fn make(&self, parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError> {
        let made = self.files.make(parent, name)?;
        if self.version == Version::V1 {
            let inherit = || {
                for file in ["cpuset.mems", CPUS] {
                    let text = self.files.read(parent, file)?;
                    self.files.write(&made, file, &text, cpus_hint)?;
                }
                self.files.write(&made, "cpuset.sched_load_balance", "0", |_| "")
            };
            if let Err(error) = inherit() {
                let _ = self.remove(&made);
                return Err(error);
            }
        }
        Ok(made)
    }

    /// Removes a cgroup without processes.
    pub fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.files.remove(cgroup, self.threads_file())
    }

    /// Returns the ancestors that must enable the controller before `cgroup` has it, topmost first.
    pub fn missing_enables(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        let mut missing = Vec::new();
        if self.version == Version::V2 {
            for above in cgroup.ancestors() {
                if !self.enables(&above)? {
                    missing.push(above);
                }
            }
        }
        Ok(missing)
    }

    fn enables(&self, cgroup: &CgroupPath) -> Result<bool, CgroupError> {
        let text = self.files.read(cgroup, SUBTREE)?;
        Ok(text.split_ascii_whitespace().any(|c| c == "cpuset"))
    }

    /// Enables the controller for the children.
    pub fn enable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.files.write(cgroup, SUBTREE, "+cpuset", enable_hint)
    }

    /// Restores the original `cpuset.cpus` of a cgroup.
    /// On v2 it was usually empty, which the kernel refuses (ENOSPC) while the cgroup has processes.
    /// The cgroup then gets the vCPUs of its parent, which has the same effect.
    pub fn restore_text(&self, cgroup: &CgroupPath, original: &str) -> Result<(), CgroupError> {
        match self.set_text(cgroup, original) {
            Err(CgroupError::Write { source, .. })
                if original.is_empty() && source.raw_os_error() == Some(libc::ENOSPC) =>
            {
                let above = cgroup.parent().unwrap_or_else(CgroupPath::root);
                self.set_text(cgroup, &self.vcpus(&above)?.to_string())
            }
            other => other,
        }
    }

    /// Disables the controller for the children.
    /// If a child that is not in `ours` has settings of its own, returns that child and leaves the controller enabled.
    pub fn disable(
        &self,
        cgroup: &CgroupPath,
        ours: &[&CgroupPath],
    ) -> Result<Option<CgroupPath>, CgroupError> {
        if !self.enables(cgroup)? {
            return Ok(None);
        }
        for child in self.children(cgroup)? {
            let is_ours = ours.contains(&&child);
            let set = |file: &str| {
                let text = self.files.read(&child, file);
                text.is_ok_and(|text| !text.is_empty())
            };
            if set(CPUS) && !is_ours || set("cpuset.mems") || self.enables(&child).unwrap_or(false)
            {
                return Ok(Some(child));
            }
        }
        self.files.write(cgroup, SUBTREE, "-cpuset", enable_hint)?;
        Ok(None)
    }

    /// Returns the process and its descendants, as far as they are found.
    pub fn family(&self, pid: Pid) -> io::Result<Vec<Pid>> {
        self.families(&[pid])
    }

    /// Returns these processes and their descendants.
    pub fn families(&self, of: &[Pid]) -> io::Result<Vec<Pid>> {
        let mut parents = Vec::new();
        for entry in fs::read_dir(self.procfs.resolve("/proc"))? {
            let name = entry?.file_name();
            let Some(child) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if let Some(parent) = parent_of(&self.procfs, Pid(child)) {
                parents.push((Pid(child), parent));
            }
        }
        let mut family = of.to_vec();
        let mut at = 0;
        while let Some(&parent) = family.get(at) {
            let children = parents.iter().filter(|(_, of)| *of == parent);
            family.extend(children.map(|(child, _)| *child));
            at += 1;
        }
        family.sort_unstable();
        family.dedup();
        Ok(family)
    }
}

/// Returns the parent of a process, if it is found.
pub(crate) fn parent_of(procfs: &ProcFs, pid: Pid) -> Option<Pid> {
    let stat = ThreadStat::read(&procfs.process(pid)).ok()?;
    Some(stat.parent)
}

fn cpus_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "; a cgroup below has more vCPUs than that: name that one with --cgroup instead"
        }
        Some(libc::EINVAL | libc::EACCES) => "; a cgroup above has fewer vCPUs, or exclusive ones",
        Some(libc::EPERM) => "; run Tandem as root",
        _ => "",
    }
}

fn move_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EBUSY) => "; the cgroup enables controllers for its children",
        Some(libc::ENOSPC) => "; the cgroup has no vCPU or no memory node",
        Some(libc::EINVAL) => "; a thread of it is bound to its vCPU by the kernel",
        Some(libc::EACCES | libc::EPERM) => "; run Tandem as root",
        _ => "",
    }
}

fn enable_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "; the cgroup holds processes and child cgroups: name a leaf with --cgroup"
        }
        Some(libc::ENOENT) => "; the cgroup above does not offer the cpuset controller",
        Some(libc::EACCES | libc::EPERM) => "; run Tandem as root",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_listed_without_proc() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let at = |path: &str| CgroupPath(path.to_owned());
        write("proc/mounts", "none /cg cgroup2 rw 0 0\n");
        write("cg/cgroup.controllers", "cpuset cpu\n");
        write("cg/a/cgroup.procs", "9\n4\n");
        write("cg/a/cgroup.threads", "10\n9\n4\n");
        write("cg/a/b/cgroup.procs", "7\n");
        write("cg/a/b/cgroup.threads", "7\n8\n");
        let cpusets = Cpusets::open(&ProcFs::at(root.path())).unwrap();
        let a = at("/a");
        assert_eq!(cpusets.processes_within(&a).unwrap(), [Pid(4), Pid(7), Pid(9)]);
        let tids = cpusets.threads_within(&a).unwrap();
        assert_eq!(tids, [4, 7, 8, 9, 10].map(Tid));
        assert!(cpusets.threads_within(&at("/c")).unwrap_err().is_gone());
    }
}
