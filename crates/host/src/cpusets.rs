//! Limits of vCPU affinities: the cpuset of the cgroup, isolated pCPUs, and the pCPUs of each last-level cache.
//!
//! The kernel confines a new affinity to the thread's cpuset, and rejects one that lies outside of it.
//! libvirt gives each vCPU a cgroup `vcpuN` whose cpuset is its pin, and changes both together, so there the parent cgroup counts.
//!
//! Source: Documentation/admin-guide/cgroup-v1/cpusets.rst, cgroup-v2.rst; Documentation/ABI/testing/sysfs-devices-system-cpu.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use tandem_linux::cgroup::files::Hierarchy;
use tandem_linux::cgroup::{CgroupPath, Version, mounts};
use tandem_linux::procfs::{ProcFs, read_text};
use tandem_linux::thread::ThreadRef;
use tandem_model::{PcpuId, PcpuSet};

/// The cpusets of threads' cgroups, each read once.
pub(crate) struct Cpusets {
    /// The hierarchy; `None` on a host without cpusets.
    hierarchy: Option<(Version, Hierarchy)>,
    read: BTreeMap<CgroupPath, Option<PcpuSet>>,
}

impl Cpusets {
    /// Finds the hierarchy.
    pub(crate) fn open(procfs: &ProcFs) -> Cpusets {
        let found = mounts::find(procfs, "cpuset").ok();
        Cpusets {
            hierarchy: found.map(|(version, mount)| (version, Hierarchy::new(procfs, &mount))),
            read: BTreeMap::new(),
        }
    }

    /// Returns the pCPUs to which a vCPU's thread may be moved; `None` without a known limit.
    pub(crate) fn of(&mut self, thread: &ThreadRef, is_libvirt: bool) -> Option<PcpuSet> {
        let (version, files) = self.hierarchy.as_ref()?;
        let cgroup = files.cgroup_of(thread, *version, "cpuset").ok()?;
        let is_pin = is_libvirt && cgroup.name().starts_with("vcpu");
        let cgroup = if is_pin { cgroup.parent()? } else { cgroup };
        if let Some(known) = self.read.get(&cgroup) {
            return known.clone();
        }
        let pcpus = effective(*version, files, &cgroup);
        self.read.insert(cgroup, pcpus.clone());
        pcpus
    }
}

/// Returns the pCPUs of a cgroup, or of the closest ancestor with the controller.
fn effective(version: Version, files: &Hierarchy, cgroup: &CgroupPath) -> Option<PcpuSet> {
    let file = match version {
        Version::V1 => "cpuset.effective_cpus",
        Version::V2 => "cpuset.cpus.effective",
    };
    let at_and_above = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent);
    let mut texts = at_and_above.filter_map(|at| files.read(&at, file).ok());
    texts.next()?.parse().ok()
}

/// Returns the pCPUs that the kernel's command line isolates (isolcpus); empty if unknown.
pub(crate) fn isolated(procfs: &ProcFs) -> PcpuSet {
    let text = read_text(&procfs.resolve("/sys/devices/system/cpu/isolated"));
    let isolated = text.ok().and_then(|text| text.trim().parse().ok());
    isolated.unwrap_or_default()
}

/// The pCPUs of each last-level cache and of each core, read again when the online pCPUs change.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    online: PcpuSet,
    caches: Vec<PcpuSet>,
    cores: Vec<PcpuSet>,
}

impl Caches {
    /// Returns the caches of these pCPUs.
    ///
    /// Source: Documentation/ABI/testing/sysfs-devices-system-cpu, cache/index*/{level,shared_cpu_list}.
    pub(crate) fn of(&mut self, procfs: &ProcFs, online: &PcpuSet) -> &[PcpuSet] {
        if self.online != *online {
            let caches = online.iter().filter_map(|pcpu| last_cache(procfs, pcpu));
            let caches: BTreeSet<PcpuSet> = caches.collect();
            self.caches = caches.into_iter().collect();
            let cores: Option<BTreeSet<PcpuSet>> =
                online.iter().map(|pcpu| core(procfs, pcpu)).collect();
            self.cores = cores.unwrap_or_default().into_iter().collect();
            self.online = online.clone();
        }
        &self.caches
    }

    /// Returns the pCPUs of each core, read with the caches; empty unless known for all of them.
    ///
    /// Source: Documentation/ABI/stable/sysfs-devices-system-cpu, topology/thread_siblings_list.
    pub(crate) fn cores(&self) -> &[PcpuSet] {
        &self.cores
    }
}

fn core(procfs: &ProcFs, pcpu: PcpuId) -> Option<PcpuSet> {
    let file = format!("/sys/devices/system/cpu/cpu{pcpu}/topology/thread_siblings_list");
    let text = read_text(&procfs.resolve(file)).ok()?;
    text.trim().parse().ok()
}

fn last_cache(procfs: &ProcFs, pcpu: PcpuId) -> Option<PcpuSet> {
    let folder = procfs.resolve(format!("/sys/devices/system/cpu/cpu{pcpu}/cache"));
    let mut by_level: BTreeMap<u32, PcpuSet> = BTreeMap::new();
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let read = |file: &str| read_text(&entry.path().join(file)).ok();
        let level = read("level").and_then(|text| text.trim().parse().ok());
        let shared = read("shared_cpu_list").and_then(|text| text.trim().parse().ok());
        by_level.extend(level.zip(shared));
    }
    by_level.into_values().next_back()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::fixtures::thread;

    use super::*;

    fn set(text: &str) -> PcpuSet {
        text.parse().unwrap()
    }

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn cache(root: &Path, pcpu: u32, index: u32, level: &str, shared: &str) {
        let folder = format!("sys/devices/system/cpu/cpu{pcpu}/cache/index{index}");
        write(root, &format!("{folder}/level"), level);
        write(root, &format!("{folder}/shared_cpu_list"), &format!("{shared}\n"));
    }

    #[test]
    fn last_level_cache_has_highest_level() {
        let dir = tempfile::tempdir().unwrap();
        cache(dir.path(), 0, 0, "1", "0");
        cache(dir.path(), 0, 1, "3", "0-3");
        cache(dir.path(), 0, 2, "2", "0-1");
        let procfs = ProcFs::at(dir.path());
        assert_eq!(last_cache(&procfs, PcpuId(0)), Some(set("0-3")));
        assert_eq!(last_cache(&procfs, PcpuId(1)), None);
    }

    #[test]
    fn cores_are_known_for_all_pcpus_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let file =
            |pcpu: u32| format!("sys/devices/system/cpu/cpu{pcpu}/topology/thread_siblings_list");
        for (pcpu, core) in [(0, "0,2\n"), (1, "1\n"), (2, "0,2\n")] {
            write(dir.path(), &file(pcpu), core);
        }
        let procfs = ProcFs::at(dir.path());
        let mut caches = Caches::default();
        caches.of(&procfs, &set("0-2"));
        assert_eq!(caches.cores(), [set("1"), set("0,2")]);
        caches.of(&procfs, &set("0-3"));
        assert_eq!(caches.cores(), []);
    }

    #[test]
    fn caches_are_read_once_per_online_set() {
        let dir = tempfile::tempdir().unwrap();
        cache(dir.path(), 0, 0, "3", "0-1");
        cache(dir.path(), 1, 0, "3", "0-1");
        let procfs = ProcFs::at(dir.path());
        let mut caches = Caches::default();
        assert_eq!(caches.of(&procfs, &set("0-1")), [set("0-1")]);
        cache(dir.path(), 0, 0, "3", "0");
        cache(dir.path(), 1, 0, "3", "1");
        assert_eq!(caches.of(&procfs, &set("0-1")), [set("0-1")], "not again");
        assert_eq!(caches.of(&procfs, &set("0")), [set("0")]);
    }

    #[test]
    fn isolated_pcpus_are_those_of_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let procfs = ProcFs::at(dir.path());
        assert_eq!(isolated(&procfs), PcpuSet::default());
        write(dir.path(), "sys/devices/system/cpu/isolated", "2-3\n");
        assert_eq!(isolated(&procfs), set("2-3"));
        write(dir.path(), "sys/devices/system/cpu/isolated", "\n");
        assert_eq!(isolated(&procfs), PcpuSet::default());
    }

    /// A host whose thread 11 of process 7 is in this cgroup.
    fn host(mounts: &str, cgroup: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "proc/mounts", mounts);
        write(dir.path(), "proc/7/task/11/cgroup", cgroup);
        dir
    }

    #[test]
    fn vcpu_may_use_its_cpuset() {
        let dir = host(
            "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n",
            "3:cpuset:/vms/web/vcpu0\n",
        );
        let cpusets = "sys/fs/cgroup/cpuset/vms/web";
        write(dir.path(), &format!("{cpusets}/cpuset.effective_cpus"), "0-5\n");
        write(dir.path(), &format!("{cpusets}/vcpu0/cpuset.effective_cpus"), "2\n");
        let of = |is_libvirt| Cpusets::open(&ProcFs::at(dir.path())).of(&thread(7, 11), is_libvirt);
        assert_eq!(of(false), Some(set("2")));
        assert_eq!(of(true), Some(set("0-5")), "libvirt's pin is no limit");
    }

    #[test]
    fn ancestor_counts_without_the_controller() {
        let dir = host("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "0::/vms/web/inner\n");
        write(dir.path(), "sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n");
        write(dir.path(), "sys/fs/cgroup/vms/cpuset.cpus.effective", "1-3\n");
        let mut cpusets = Cpusets::open(&ProcFs::at(dir.path()));
        assert_eq!(cpusets.of(&thread(7, 11), false), Some(set("1-3")));
        assert_eq!(cpusets.of(&thread(7, 12), false), None, "one that ended");
        let none = tempfile::tempdir().unwrap();
        let mut none = Cpusets::open(&ProcFs::at(none.path()));
        assert_eq!(none.of(&thread(7, 11), false), None);
    }
}
