//! cgroup v1: `cpu.shares`, `cpu.cfs_quota_us`, and threads that move one by one through `tasks`.
//!
//! Each thread may be in any cgroup, independent of the rest of its process, and every cgroup has the controller.
//! A group is therefore one folder, and no controller has to be enabled first.
//! Two obstacles remain.
//! If cpuset is mounted together with cpu, new cgroups allow no pCPU until one is set (done here).
//! Kernels with real-time group scheduling refuse real-time threads in a cgroup without real-time budget (the error tells the operator).
//!
//! Source: Documentation/admin-guide/cgroup-v1/cgroups.rst, scheduler/sched-bwc.rst.

use std::io;
use std::path::Path;

use tandem_model::Weight;

use crate::cgroup::controller::CpuController;
use crate::cgroup::error::CgroupError;
use crate::cgroup::files::Hierarchy;
use crate::cgroup::knob::Knob;
use crate::cgroup::path::{CgroupId, CgroupPath, Owners, Version};
use crate::ids::{Pid, Tid};
use crate::procfs::ProcFs;
use crate::thread::ThreadRef;

/// The kernel's MIN_SHARES and MAX_SHARES, kernel/sched/sched.h.
const SHARES: (Weight, Weight) = (Weight::constant(2.0), Weight::constant(262_144.0));

/// The v1 hierarchy with the cpu controller.
#[derive(Debug)]
pub struct V1 {
    files: Hierarchy,
}

impl V1 {
    /// The hierarchy mounted at `mount`.
    pub fn new(procfs: &ProcFs, mount: &Path) -> V1 {
        V1 { files: Hierarchy::new(procfs, mount) }
    }

    /// Copies the cpuset of the parent, because a new cgroup of a co-mounted cpuset allows no pCPU.
    fn inherit_cpuset(&self, parent: &CgroupPath, child: &CgroupPath) -> Result<(), CgroupError> {
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if self.files.file(child, file).exists() {
                let allowed = self.files.read(parent, file)?;
                self.files.write(child, file, &allowed, no_hint)?;
            }
        }
        Ok(())
    }
}

fn no_hint(_: &io::Error) -> &'static str {
    ""
}

fn move_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EINVAL) => {
            "; if the thread is real-time, give the cgroup cpu.rt_runtime_us or the thread an \
             ordinary policy"
        }
        Some(libc::EACCES | libc::EPERM) => "; run Tandem as root",
        _ => "",
    }
}

fn knob_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EINVAL) => {
            "; the value is beyond what a cgroup above or below allows, or cpu.idle is set"
        }
        Some(libc::EACCES | libc::EPERM) => "; run Tandem as root",
        _ => "",
    }
}

impl CpuController for V1 {
    fn version(&self) -> Version {
        Version::V1
    }

    fn mount(&self) -> &Path {
        self.files.mount()
    }

    fn default_weight(&self) -> Weight {
        Weight::constant(1024.0)
    }

    fn weight_range(&self) -> (Weight, Weight) {
        SHARES
    }

    fn cgroup_of(&self, thread: &ThreadRef) -> Result<CgroupPath, CgroupError> {
        self.files.cgroup_of(thread, Version::V1, "cpu")
    }

    fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError> {
        self.files.id(cgroup)
    }

    fn owners(&self, cgroup: &CgroupPath) -> Result<Owners, CgroupError> {
        self.files.owners(cgroup, "cpu.shares")
    }

    fn read_knob(&self, cgroup: &CgroupPath, knob: Knob) -> Result<String, CgroupError> {
        match knob {
            Knob::Weight => self.files.read(cgroup, "cpu.shares"),
            Knob::Idle => self.files.read(cgroup, "cpu.idle"),
            Knob::Quota => {
                let quota = self.files.read(cgroup, "cpu.cfs_quota_us")?;
                let period = self.files.read(cgroup, "cpu.cfs_period_us")?;
                match quota.as_str() {
                    "-1" => Ok(format!("max {period}")),
                    _ => Ok(format!("{quota} {period}")),
                }
            }
        }
    }

    fn write_knob(&self, cgroup: &CgroupPath, knob: Knob, text: &str) -> Result<(), CgroupError> {
        if cgroup.is_root() {
            return Err(CgroupError::RootHasNone(knob));
        }
        let write = |file, text| self.files.write(cgroup, file, text, knob_hint);
        match knob {
            Knob::Weight => write("cpu.shares", text),
            Knob::Idle => write("cpu.idle", text),
            Knob::Quota => {
                let (quota, period) = text.split_once(' ').unwrap_or((text, "100000"));
                // The kernel checks each write against the current other value: once the cap is
                // lifted, it accepts any period.
                write("cpu.cfs_quota_us", "-1")?;
                write("cpu.cfs_period_us", period)?;
                match quota {
                    "max" => Ok(()),
                    _ => write("cpu.cfs_quota_us", quota),
                }
            }
        }
    }

    fn stat(&self, cgroup: &CgroupPath) -> Result<String, CgroupError> {
        self.files.read(cgroup, "cpu.stat")
    }

    fn threads(&self, cgroup: &CgroupPath) -> Result<Vec<Tid>, CgroupError> {
        self.files.read_tids(cgroup, "tasks")
    }

    fn processes(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError> {
        self.files.read_pids(cgroup)
    }

    fn some_processes(&self, cgroup: &CgroupPath, most: usize) -> Result<Vec<Pid>, CgroupError> {
        self.files.some_pids(cgroup, most)
    }

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        self.files.children(cgroup)
    }

    fn some_children(
        &self,
        cgroup: &CgroupPath,
        most: usize,
    ) -> Result<Vec<CgroupPath>, CgroupError> {
        self.files.some_children(cgroup, most)
    }

    fn move_thread(&self, tid: Tid, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.files.write_tid(cgroup, "tasks", tid, move_hint)
    }

    fn check_parent(&self, parent: &CgroupPath) -> Result<(), CgroupError> {
        self.files.id(parent).map(|_| ())
    }

    fn create_child(&self, parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError> {
        let child = self.files.make(parent, name)?;
        if let Err(error) = self.inherit_cpuset(parent, &child) {
            self.files.remove(&child, "tasks")?;
            return Err(error);
        }
        Ok(child)
    }

    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.files.remove(cgroup, "tasks")
    }

    fn missing_enables(&self, _: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        Ok(Vec::new())
    }

    fn enable(&self, _: &CgroupPath) -> Result<(), CgroupError> {
        Ok(())
    }

    fn disable(&self, _: &CgroupPath) -> Result<(), CgroupError> {
        Ok(())
    }
}
