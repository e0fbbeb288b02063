//! cgroup v2: `cpu.weight`, and threaded cgroups for the vCPU threads.
//!
//! In v2 a process is in one cgroup with all its threads, unless that cgroup is the root of a
//! *threaded* subtree: then single threads may move to the threaded cgroups below. So vCPU threads
//! go to a threaded child of the cgroup their process is in, which thereby becomes a threaded
//! domain. And a cgroup has a weight only if every cgroup above lets the cpu controller down
//! (`+cpu` in `cgroup.subtree_control`). The steps, in the order in which the actuator takes them:
//!
//! 1. `+cpu` in each ancestor where it is missing, from the root down, the process's own cgroup
//!    last (the kernel allows that beside processes because cpu is a threaded controller);
//! 2. make the child, and write `threaded` to its `cgroup.type`;
//! 3. write thread numbers to its `cgroup.threads`.
//!
//! The kernel answers EBUSY or EOPNOTSUPP where the process's cgroup cannot be a threaded domain:
//! it has domain controllers (memory, io, …) enabled for its children, or children that hold
//! processes. [`V2::check_parent`] looks for both first, so that the operator reads which; a cgroup with more than 256 children is
//! refused unseen.
//!
//! Enabling `+cpu` somewhere makes that cgroup's children compete by weight where their threads
//! competed one by one before; it is undone like everything else.
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

/// So many cgroups right below one are looked at: a tenant can make any number in one of his, and each takes reads.
const MOST_CHILDREN: usize = 256;

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

    /// `cgroup.type`; the root has no such file and is a domain that may hold threaded children
    /// beside others.
    fn kind(&self, cgroup: &CgroupPath) -> Result<String, CgroupError> {
        match cgroup.is_root() {
            true => Ok("root".to_owned()),
            false => self.files.read(cgroup, "cgroup.type"),
        }
    }

    fn is_populated(&self, cgroup: &CgroupPath) -> bool {
        self.files
            .read(cgroup, "cgroup.events")
            .is_ok_and(|text| text.lines().any(|line| line == "populated 1"))
    }

    /// The children; `None`: there are more than are looked at.
    fn few_children(&self, cgroup: &CgroupPath) -> Result<Option<Vec<CgroupPath>>, CgroupError> {
        let children = self.files.some_children(cgroup, MOST_CHILDREN + 1)?;
        Ok((children.len() <= MOST_CHILDREN).then_some(children))
    }

    /// A child that would lose settings if the controller went, in words. Root's cgroups are looked through whole, a tenant's as far as
    /// he can keep nobody waiting.
    fn user_of_cpu(&self, cgroup: &CgroupPath) -> Result<Option<String>, CgroupError> {
        let children = match self.owners(cgroup)?.folder {
            0 => self.files.children(cgroup)?,
            owner => match self.few_children(cgroup)? {
                Some(children) => children,
                None => {
                    return Ok(Some(format!(
                        "perhaps one of the more than {MOST_CHILDREN} cgroups of user {owner} below it"
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
            "; the cgroup holds processes beside cgroups with processes: start the VM in a cgroup \
             of its own"
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

/// What a threaded cgroup, whose processes belong to the cgroup above, says of them.
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
                            "there are more than {MOST_CHILDREN} cgroups below it, and any that holds processes would be in the way; \
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
        if let Some(user) = self.user_of_cpu(cgroup)? {
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
