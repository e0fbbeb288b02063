//! cgroup v2: `cpu.weight`, and threaded cgroups for the vCPU threads.
//!
//! In v2 all threads of a process are in one cgroup, unless that cgroup is the root of a *threaded* subtree.
//! Single threads may then move to the threaded cgroups below.
//! vCPU threads therefore go to a threaded child of their process's cgroup, which thereby becomes a threaded domain.
//! A cgroup has a weight only if every cgroup above enables the cpu controller (`+cpu` in `cgroup.subtree_control`).
//! The actuator takes these steps:
//!
//! 1. write `+cpu` in each ancestor where it is missing, from the root down, the process's own cgroup last
//!    (the kernel allows that in a cgroup with processes because cpu is a threaded controller);
//! 2. create the child, and write `threaded` to its `cgroup.type`;
//! 3. write thread IDs to its `cgroup.threads`.
//!
//! The kernel returns EBUSY or EOPNOTSUPP if the process's cgroup cannot be a threaded domain.
//! The cgroup then enables domain controllers (memory, io, …) for its children, or has children with processes.
//! [`V2::check_parent`] checks for both first, so that the error names the obstacle.
//! It refuses a cgroup with more than 256 children without examining them.
//!
//! `+cpu` makes the children of a cgroup compete by weight, whose threads competed individually before.
//! The restore reverts it like all changes.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst, "Threads"; kernel/cgroup/cgroup.c,
//! cgroup_vet_subtree_control_enable() and cgroup_enable_threaded().

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

/// CGROUP_WEIGHT_MIN and CGROUP_WEIGHT_MAX, include/linux/cgroup.h.
const WEIGHTS: (Weight, Weight) = (Weight::constant(1.0), Weight::constant(10_000.0));

/// The controllers that work in threaded cgroups; any other makes a cgroup's children domains.
const THREADED: [&str; 4] = ["cpu", "cpuset", "perf_event", "pids"];

/// Maximum number of children that are examined: a tenant can create any number, and each takes reads.
const MAX_CHILDREN: usize = 256;

const SUBTREE: &str = "cgroup.subtree_control";

/// The v2 hierarchy.
#[derive(Debug)]
pub struct V2 {
    files: Hierarchy,
}

impl V2 {
    /// The hierarchy mounted at `mount`.
    pub fn new(procfs: &ProcFs, mount: &Path) -> V2 {
        V2 { files: Hierarchy::new(procfs, mount) }
    }

    fn words(&self, cgroup: &CgroupPath, file: &str) -> Result<Vec<String>, CgroupError> {
        let text = self.files.read(cgroup, file)?;
        Ok(text.split_ascii_whitespace().map(str::to_owned).collect())
    }

    fn enables_cpu(&self, cgroup: &CgroupPath) -> Result<bool, CgroupError> {
        Ok(self.words(cgroup, SUBTREE)?.iter().any(|c| c == "cpu"))
    }

    /// Reads `cgroup.type`; the root has no such file and is a domain that may hold threaded and other children.
    fn kind(&self, cgroup: &CgroupPath) -> Result<String, CgroupError> {
        if cgroup.is_root() {
            Ok("root".to_owned())
        } else {
            self.files.read(cgroup, "cgroup.type")
        }
    }

    fn is_populated(&self, cgroup: &CgroupPath) -> bool {
        self.files
            .read(cgroup, "cgroup.events")
            .is_ok_and(|text| text.lines().any(|line| line == "populated 1"))
    }

    /// The children; `None` if there are more than [`MAX_CHILDREN`].
    fn few_children(&self, cgroup: &CgroupPath) -> Result<Option<Vec<CgroupPath>>, CgroupError> {
        let children = self.files.some_children(cgroup, MAX_CHILDREN + 1)?;
        Ok((children.len() <= MAX_CHILDREN).then_some(children))
    }

    /// Describes a child that would lose settings without the controller.
    /// Examines all children of root's cgroups, but at most [`MAX_CHILDREN`] of a tenant's.
    fn cpu_user(&self, cgroup: &CgroupPath) -> Result<Option<String>, CgroupError> {
        let children = match self.owners(cgroup)?.folder {
            0 => self.files.children(cgroup)?,
            owner => match self.few_children(cgroup)? {
                Some(children) => children,
                None => {
                    return Ok(Some(format!(
                        "perhaps one of the more than {MAX_CHILDREN} cgroups of user {owner} below it"
                    )));
                }
            },
        };
        for child in children {
            let set = |file: &str, default: &str| {
                self.files.read(&child, file).is_ok_and(|text| text != default)
            };
            if set("cpu.weight", "100")
                || set("cpu.max", "max 100000")
                || set("cpu.idle", "0")
                || self.enables_cpu(&child).unwrap_or(false)
            {
                return Ok(Some(child.to_string()));
            }
        }
        Ok(None)
    }

    fn not_threadable(parent: &CgroupPath, reason: String) -> CgroupError {
        CgroupError::NotThreadable { parent: parent.clone(), reason }
    }
}

fn enable_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "; the cgroup holds both processes and cgroups with processes: start the VM in a \
             cgroup of its own"
        }
        Some(libc::EOPNOTSUPP) => {
            "; the cgroup is 'domain invalid' (see its cgroup.type): start the VM outside of the \
             threaded cgroup above"
        }
        Some(libc::EINVAL) => {
            "; kernels with CONFIG_RT_GROUP_SCHED enable the cpu controller only while all \
             real-time processes are in the root cgroup"
        }
        Some(libc::ENOENT) => "; the cgroup above does not offer the cpu controller",
        Some(libc::EACCES | libc::EPERM) => "; run Tandem as root",
        _ => "",
    }
}

fn move_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            "; the cgroup is not in the threaded subtree that the thread's process is in"
        }
        Some(libc::EBUSY) => "; the cgroup enables controllers for cgroups below it",
        Some(libc::EACCES | libc::EPERM) => "; run Tandem as root",
        _ => "",
    }
}

fn knob_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EINVAL) => "; the value is out of range, or cpu.idle is set",
        Some(libc::EACCES | libc::EPERM) => "; run Tandem as root",
        _ => "",
    }
}

/// Maps the error of a threaded cgroup, whose processes belong to the cgroup above, to an empty list.
fn or_none(pids: Result<Vec<Pid>, CgroupError>) -> Result<Vec<Pid>, CgroupError> {
    match pids {
        Err(CgroupError::Read { source, .. })
            if source.raw_os_error() == Some(libc::EOPNOTSUPP) =>
        {
            Ok(Vec::new())
        }
        other => other,
    }
}

impl CpuController for V2 {
    fn version(&self) -> Version {
        Version::V2
    }

    fn mount(&self) -> &Path {
        self.files.mount()
    }

    fn default_weight(&self) -> Weight {
        Weight::constant(100.0)
    }

    fn weight_range(&self) -> (Weight, Weight) {
        WEIGHTS
    }

    fn cgroup_of(&self, thread: &ThreadRef) -> Result<CgroupPath, CgroupError> {
        self.files.cgroup_of(thread, Version::V2, "cpu")
    }

    fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError> {
        self.files.id(cgroup)
    }

    fn owners(&self, cgroup: &CgroupPath) -> Result<Owners, CgroupError> {
        self.files.owners(cgroup, "cpu.weight")
    }

    fn read_knob(&self, cgroup: &CgroupPath, knob: Knob) -> Result<String, CgroupError> {
        if cgroup.is_root() {
            return Err(CgroupError::RootHasNone(knob));
        }
        match knob {
            Knob::Weight => self.files.read(cgroup, "cpu.weight"),
            Knob::Quota => self.files.read(cgroup, "cpu.max"),
            Knob::Idle => self.files.read(cgroup, "cpu.idle"),
        }
    }

    fn write_knob(&self, cgroup: &CgroupPath, knob: Knob, text: &str) -> Result<(), CgroupError> {
        if cgroup.is_root() {
            return Err(CgroupError::RootHasNone(knob));
        }
        let file = match knob {
            Knob::Weight => "cpu.weight",
            Knob::Quota => "cpu.max",
            Knob::Idle => "cpu.idle",
        };
        self.files.write(cgroup, file, text, knob_hint)
    }

    fn stat(&self, cgroup: &CgroupPath) -> Result<String, CgroupError> {
        self.files.read(cgroup, "cpu.stat")
    }

    fn threads(&self, cgroup: &CgroupPath) -> Result<Vec<Tid>, CgroupError> {
        self.files.read_tids(cgroup, "cgroup.threads")
    }

    fn processes(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError> {
        or_none(self.files.read_pids(cgroup))
    }

    fn some_processes(&self, cgroup: &CgroupPath, most: usize) -> Result<Vec<Pid>, CgroupError> {
        or_none(self.files.some_pids(cgroup, most))
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
        self.files.write_tid(cgroup, "cgroup.threads", tid, move_hint)
    }

    fn check_parent(&self, parent: &CgroupPath) -> Result<(), CgroupError> {
        self.files.id(parent)?;
        match self.kind(parent)?.as_str() {
            "domain invalid" => Err(V2::not_threadable(
                parent,
                "its cgroup.type is 'domain invalid', because a cgroup above is threaded; start \
                 the VM in a cgroup outside of that one"
                    .to_owned(),
            )),
            "domain" => {
                let mut domain = self.words(parent, SUBTREE)?;
                domain.retain(|c| !THREADED.contains(&c.as_str()));
                if !domain.is_empty() {
                    return Err(V2::not_threadable(
                        parent,
                        format!(
                            "its cgroup.subtree_control enables {}, which single threads cannot \
                             have; start the VM in a cgroup of its own",
                            domain.join(", ")
                        ),
                    ));
                }
                let Some(children) = self.few_children(parent)? else {
                    return Err(V2::not_threadable(
                        parent,
                        format!(
                            "there are more than {MAX_CHILDREN} cgroups below it, and any that holds processes would be in the way; \
                             start the VM in a cgroup of its own"
                        ),
                    ));
                };
                match children.iter().find(|child| {
                    self.is_populated(child) && self.kind(child).is_ok_and(|kind| kind == "domain")
                }) {
                    None => Ok(()),
                    Some(child) => Err(V2::not_threadable(
                        parent,
                        format!(
                            "the processes in {child} would be in the way; start the VM in a \
                             cgroup of its own"
                        ),
                    )),
                }
            }
            _ => Ok(()),
        }
    }

    fn create_child(&self, parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError> {
        let child = self.files.make(parent, name)?;
        let threaded = self.files.write(&child, "cgroup.type", "threaded", |_| "");
        match threaded {
            Ok(()) => Ok(child),
            Err(error) => {
                self.files.remove(&child, "cgroup.threads")?;
                Err(match error {
                    CgroupError::Write { source, .. } => V2::not_threadable(
                        parent,
                        format!("the kernel refuses a threaded cgroup there: {source}"),
                    ),
                    other => other,
                })
            }
        }
    }

    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.files.remove(cgroup, "cgroup.threads")
    }

    fn missing_enables(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        let mut missing = Vec::new();
        for above in cgroup.ancestors() {
            if !self.enables_cpu(&above)? {
                missing.push(above);
            }
        }
        Ok(missing)
    }

    fn enable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.files.write(cgroup, SUBTREE, "+cpu", enable_hint)
    }

    fn disable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        let in_use = |user: String| CgroupError::InUse { cgroup: cgroup.clone(), user };
        if !self.enables_cpu(cgroup)? {
            return Ok(());
        }
        if let Some(user) = self.cpu_user(cgroup)? {
            return Err(in_use(user));
        }
        match self.files.write(cgroup, SUBTREE, "-cpu", |_| "") {
            Err(CgroupError::Write { source, .. })
                if source.raw_os_error() == Some(libc::EBUSY) =>
            {
                Err(in_use("a cgroup below it".to_owned()))
            }
            other => other,
        }
    }
}
