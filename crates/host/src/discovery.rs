//! Finding the VMs of this host, of any VMM, again and again at little cost.
//!
//! A VM is a process that holds KVM vCPUs: file descriptors that read `anon_inode:kvm-vcpu:N`. Two
//! VMMs run vCPUs without KVM and are known by their threads' names alone (see [`crate::vmm`]).
//! Which thread runs which vCPU is told by the thread's name, or by QEMU itself over QMP when a
//! socket is given. A process whose threads carry VM names may hold several VMs.
//!
//! What it costs: reading the list of processes at every scan, and little else.
//! - A process that is no VM is looked into again after 0.25, 0.5, 1, 2, … 32 s, because a shell
//!   may turn into a VMM by exec, and a VMM makes its vCPUs some time after it starts. Threads of
//!   the kernel are never looked into again.
//! - Of a known VM the threads are counted, and listed only when their number changed or every few
//!   scans; then the names of new threads are read. A thread without a vCPU's name is looked at
//!   again at the same growing ages, since names are given after birth. Even that is left out while
//!   the VM's process does not run (see [`tandem_linux::cpu_clock`]).
//!
//! That a listed process is the one seen before is told by the inode number of its folder in
//! `/proc`, which comes with the list for free. The kernel normally gives a later process of the
//! same number another inode, but does not promise it. So start times, which are certain, are
//! compared again every few scans, and whoever acts on a thread compares them too.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirEntryExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use tandem_policy::Nanos;
use tandem_policy::VcpuId;
use tandem_policy::VmId;
use thiserror::Error;

use crate::qmp;
use crate::qmp::QmpError;
use crate::qmp::SocketPattern;
use crate::vmm::PatternError;
use crate::vmm::ThreadPattern;
use crate::vmm::VcpuName;
use crate::vmm::Vmm;
use tandem_linux::cpu_clock::process_cpu_time;
use tandem_linux::procfs::ProcFs;
use tandem_linux::procfs::read_text;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::ThreadStat;
use tandem_linux::thread::Tid;

mod look;
mod qmp_sockets;

use look::Look;
use qmp_sockets::QmpSockets;

/// What a thread that runs a vCPU's KVM_RUN holds open.
const VCPU_LINK: &str = "anon_inode:kvm-vcpu";

/// Every so many scans a VM's threads are listed although their number has not changed: one may have
/// taken the place of another.
const LIST_EVERY: u64 = 8;

/// Every so many scans the start times of a VM's threads are compared.
const VERIFY_EVERY: u64 = 32;

/// Why VMs cannot be looked for.
#[derive(Debug, Error)]
pub enum DiscoveryError {
    /// The list of processes cannot be read.
    #[error("cannot list processes in {path}: {source}; is /proc mounted?")]
    Proc {
        /// Where it should be.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The pattern of thread names cannot be used.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The pattern of QMP sockets cannot be used.
    #[error(transparent)]
    Qmp(#[from] QmpError),
}

/// What the operator knows about the VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryOptions {
    /// The names of vCPU threads of a VMM that is not known, with `{n}` for the vCPU's number.
    pub thread_pattern: Option<String>,
    /// QMP sockets, as globs. Which process each belongs to is told by the threads it names.
    pub qmp_sockets: Vec<String>,
    /// QMP sockets of single processes.
    pub qmp_by_pid: BTreeMap<Pid, PathBuf>,
}

/// A vCPU and the thread that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct VcpuThread {
    /// The vCPU's number in its VM.
    pub index: VcpuId,
    /// Its thread.
    pub thread: ThreadRef,
}

/// One VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// A number that this [`Discovery`] gives to no other VM, ever.
    pub id: VmId,
    /// Its process.
    pub process: ThreadRef,
    /// What its VMM calls it, or else program and pid.
    pub name: String,
    /// The program that runs it.
    pub vmm: Vmm,
    /// Its vCPUs by number.
    pub vcpus: Vec<VcpuThread>,
    /// How many KVM vCPUs it holds beyond those: their threads are not known.
    pub unidentified: usize,
}

/// What one scan found.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// All VMs, by pid, then by name.
    pub vms: Vec<Vm>,
    /// How many processes could not be looked into for want of permission.
    pub unreadable: usize,
    /// How many of these are VMMs by their names.
    pub unreadable_vmms: usize,
    /// What an operator should know, such as a QMP socket that does not answer.
    pub problems: Vec<String>,
}

/// Looks for VMs, and remembers what it saw.
pub struct Discovery {
    procfs: ProcFs,
    /// CPU clocks are the machine's own, so they say nothing about a tree made for a test.
    has_clocks: bool,
    pattern: Option<ThreadPattern>,
    qmp: QmpSockets,
    others: HashMap<Pid, Other>,
    hosts: BTreeMap<Pid, Host>,
    next_id: u64,
    scans: u64,
}

/// A process that holds no VM.
struct Other {
    inode: u64,
    kernel: bool,
    readable: bool,
    vmm: Vmm,
    look: Look,
}

/// A process that holds at least one VM.
struct Host {
    inode: u64,
    process: ThreadRef,
    comm: String,
    args: Vec<String>,
    tasks: BTreeMap<Tid, Task>,
    /// KVM vCPUs held; `None` if that could not be read.
    kvm_vcpus: Option<usize>,
    recount: Look,
    /// The process's CPU clock before its threads were last listed.
    clock: Option<Nanos>,
    /// The links of its list of threads before they were last listed: one per thread and some.
    links: Option<u64>,
    /// The VMs by their thread names' prefix; one without a prefix for most VMMs.
    ids: BTreeMap<Option<String>, VmId>,
    qmp: BTreeMap<Tid, VcpuId>,
    qmp_wanted: bool,
}

struct Task {
    inode: u64,
    thread: ThreadRef,
    vcpu: Option<VcpuName>,
    look: Look,
}

impl Discovery {
    /// Nothing is looked at yet; patterns are checked.
    pub fn new(options: DiscoveryOptions, procfs: ProcFs) -> Result<Discovery, DiscoveryError> {
        let pattern = options.thread_pattern.as_deref().map(ThreadPattern::new);
        let patterns = options.qmp_sockets.iter().map(|p| SocketPattern::new(p));
        Ok(Discovery {
            pattern: pattern.transpose()?,
            qmp: QmpSockets::new(
                patterns.collect::<Result<_, _>>()?,
                options.qmp_by_pid,
                procfs.resolve("/"),
            ),
            has_clocks: procfs == ProcFs::host(),
            procfs,
            others: HashMap::new(),
            hosts: BTreeMap::new(),
            next_id: 1,
            scans: 0,
        })
    }

    /// The VMs that are there now.
    pub fn scan(&mut self) -> Result<Scan, DiscoveryError> {
        self.scan_at(Instant::now())
    }

    /// The same, as if it were `now`: times given must not run backwards.
    fn scan_at(&mut self, now: Instant) -> Result<Scan, DiscoveryError> {
        self.scans += 1;
        let path = self.procfs.resolve("/proc");
        let listed = numbered_folders(&path)
            .map_err(|source| DiscoveryError::Proc { path, source })?
            .into_iter()
            .map(|(number, inode)| (Pid(number), inode))
            .collect::<HashMap<_, _>>();
        let is_listed = |pid: &Pid, inode: u64| listed.get(pid) == Some(&inode);
        self.others.retain(|pid, other| is_listed(pid, other.inode));
        self.hosts.retain(|pid, host| is_listed(pid, host.inode));

        let pids: Vec<Pid> = self.hosts.keys().copied().collect();
        for pid in pids {
            self.refresh(pid, now);
        }
        for (&pid, &inode) in &listed {
            let is_known = self.hosts.contains_key(&pid);
            let is_due = |other: &Other| !other.kernel && other.look.is_due(now);
            if !is_known && self.others.get(&pid).is_none_or(is_due) {
                self.look_into(pid, inode, now);
            }
        }
        let unreadable = || self.others.values().filter(|other| !other.readable);
        let is_vmm = |other: &&Other| other.vmm != Vmm::Other;
        let mut scan = Scan {
            unreadable: unreadable().count(),
            unreadable_vmms: unreadable().filter(is_vmm).count(),
            ..Scan::default()
        };
        self.ask_qmp(now, &mut scan.problems);
        let (hosts, next_id) = (&mut self.hosts, &mut self.next_id);
        for host in hosts.values_mut() {
            scan.vms.extend(host.vms(next_id));
        }
        Ok(scan)
    }

    /// Decides whether a process holds VMs.
    fn look_into(&mut self, pid: Pid, inode: u64, now: Instant) {
        let folder = self.procfs.process(pid);
        let Ok(stat) = ThreadStat::read(&folder) else {
            self.others.remove(&pid);
            return;
        };
        let vmm = Vmm::of_process(&stat.comm);
        let kvm_vcpus = match stat.kernel_thread {
            true => Some(0),
            false => count_kvm_vcpus(&folder),
        };
        if !stat.kernel_thread {
            let mut host = Host {
                inode,
                process: ThreadRef {
                    pid,
                    tid: pid.main_thread(),
                    start: stat.start,
                },
                comm: stat.comm,
                args: Vec::new(),
                tasks: BTreeMap::new(),
                kvm_vcpus,
                recount: Look::first(now),
                clock: None,
                links: None,
                ids: BTreeMap::new(),
                qmp: BTreeMap::new(),
                qmp_wanted: true,
            };
            // Names matter only where there is something for them to name.
            if kvm_vcpus != Some(0) || stat.threads > 1 {
                host.read_tasks(&self.procfs, self.pattern.as_ref(), now, false);
            }
            if host.holds_vm() {
                let text = read_text(&folder.join("cmdline")).unwrap_or_default();
                host.args = text.split('\0').map(str::to_owned).collect();
                self.others.remove(&pid);
                self.hosts.insert(pid, host);
                return;
            }
        }
        let other = self.others.entry(pid).or_insert(Other {
            inode,
            kernel: stat.kernel_thread,
            readable: true,
            vmm: Vmm::Other,
            look: Look::due(now),
        });
        other.vmm = vmm;
        other.readable = kvm_vcpus.is_some();
        other.look.again(now);
    }

    /// Brings a known VM's threads up to date; drops it when it is gone or no VM any more.
    fn refresh(&mut self, pid: Pid, now: Instant) {
        let Some(host) = self.hosts.get_mut(&pid) else {
            return;
        };
        let verify = (self.scans + u64::from(pid.0)).is_multiple_of(VERIFY_EVERY);
        let clock = self.has_clocks.then(|| process_cpu_time(pid)).flatten();
        if clock.is_some() && clock == host.clock && !verify {
            return;
        }
        host.clock = clock;
        let is_same = !verify || host.process.stat(&self.procfs).is_ok();
        let list = (self.scans + u64::from(pid.0)).is_multiple_of(LIST_EVERY);
        let changed = match self.has_clocks && !list && host.has_same_threads(&self.procfs, now) {
            true => false,
            false => host.read_tasks(&self.procfs, self.pattern.as_ref(), now, verify),
        };
        if changed || host.recount.is_due(now) {
            let kvm_vcpus = count_kvm_vcpus(&self.procfs.process(pid));
            host.qmp_wanted |= kvm_vcpus != host.kvm_vcpus;
            host.kvm_vcpus = kvm_vcpus;
            host.recount.again(now);
        }
        if !is_same || !host.holds_vm() {
            self.hosts.remove(&pid);
        }
    }

    /// Asks QMP sockets about the processes whose vCPUs changed.
    fn ask_qmp(&mut self, now: Instant, problems: &mut Vec<String>) {
        if !self.qmp.is_used() || !self.hosts.values().any(|host| host.qmp_wanted) {
            return;
        }
        let hosts = &mut self.hosts;
        for path in self
            .qmp
            .due(now, |pid| hosts.get(&pid).map(|h| h.qmp_wanted))
        {
            let answer = qmp::query_vcpus(&path, qmp::DEADLINE);
            let owner = match &answer {
                Ok(vcpus) => hosts
                    .values_mut()
                    .find(|host| vcpus.iter().any(|vcpu| host.tasks.contains_key(&vcpu.tid))),
                Err(error) => {
                    problems.push(error.to_string());
                    None
                }
            };
            let pid = owner.as_ref().map(|host| host.process.pid);
            if let (Some(host), Ok(vcpus)) = (owner, answer) {
                host.qmp = vcpus.iter().map(|vcpu| (vcpu.tid, vcpu.index)).collect();
                host.qmp_wanted = false;
            }
            self.qmp.asked(path, pid, now);
        }
    }
}

impl Host {
    /// Whether there are as many threads as when they were last listed, and none of them is due to
    /// be looked at. The kernel counts them in the link count of `/proc/PID/task`
    /// (fs/proc/base.c, proc_task_getattr), which costs a fraction of reading the list.
    fn has_same_threads(&mut self, procfs: &ProcFs, now: Instant) -> bool {
        let path = procfs.process(self.process.pid).join("task");
        let links = fs::metadata(path).ok().map(|metadata| metadata.nlink());
        let is_same = links.is_some() && links == self.links;
        self.links = links;
        let is_due = |task: &Task| task.vcpu.is_none() && task.look.is_due(now);
        is_same && !self.tasks.values().any(is_due)
    }

    /// Brings the threads up to date. Returns whether any came or went.
    fn read_tasks(
        &mut self,
        procfs: &ProcFs,
        pattern: Option<&ThreadPattern>,
        now: Instant,
        verify: bool,
    ) -> bool {
        let pid = self.process.pid;
        let Ok(listed) = numbered_folders(&procfs.process(pid).join("task")) else {
            self.tasks.clear();
            return true;
        };
        let listed: HashMap<Tid, u64> = listed
            .into_iter()
            .map(|(n, inode)| (Tid(n), inode))
            .collect();
        let before = self.tasks.len();
        self.tasks.retain(|tid, task| {
            listed.get(tid) == Some(&task.inode)
                && (!verify || task.vcpu.is_none() || task.thread.stat(procfs).is_ok())
        });
        let mut changed = self.tasks.len() != before;
        for (tid, inode) in listed {
            let known = self.tasks.get(&tid);
            if known.is_some_and(|task| task.vcpu.is_some() || !task.look.is_due(now)) {
                continue;
            }
            let Ok(stat) = ThreadStat::read(&procfs.task(pid, tid)) else {
                continue;
            };
            let vcpu = VcpuName::parse(&stat.comm).or_else(|| {
                let index = pattern?.index(&stat.comm)?;
                Some(VcpuName {
                    vmm: Vmm::Other,
                    index,
                    vm: None,
                    without_kvm: false,
                })
            });
            let look = match known {
                None => {
                    changed = true;
                    Look::first(now)
                }
                Some(task) => {
                    changed |= vcpu.is_some();
                    let mut look = task.look;
                    look.again(now);
                    look
                }
            };
            let thread = ThreadRef {
                pid,
                tid,
                start: stat.start,
            };
            let task = Task {
                inode,
                thread,
                vcpu,
                look,
            };
            self.tasks.insert(tid, task);
        }
        changed
    }

    /// A thread's vCPU, if its name counts in this process.
    fn vcpu_name<'a>(&self, task: &'a Task) -> Option<&'a VcpuName> {
        let has_kvm = self.kvm_vcpus != Some(0);
        task.vcpu
            .as_ref()
            .filter(|name| has_kvm || name.without_kvm)
    }

    fn holds_vm(&self) -> bool {
        self.kvm_vcpus.is_some_and(|count| count > 0)
            || self
                .tasks
                .values()
                .any(|task| self.vcpu_name(task).is_some())
    }

    /// The VMs of this process as they are now.
    fn vms(&mut self, next_id: &mut u64) -> Vec<Vm> {
        let mut vms: BTreeMap<Option<String>, (Vmm, Vec<VcpuThread>)> = BTreeMap::new();
        for (tid, task) in &self.tasks {
            let name = self.vcpu_name(task);
            let by_qmp = self.qmp.get(tid).copied();
            let Some(index) = by_qmp.or(name.map(|name| name.index)) else {
                continue;
            };
            let (vmm, prefix) = match name {
                Some(name) => (name.vmm, name.vm.clone()),
                None => (Vmm::Qemu, None),
            };
            let (_, vcpus) = vms.entry(prefix).or_insert((vmm, Vec::new()));
            let thread = task.thread;
            vcpus.push(VcpuThread { index, thread });
        }
        if vms.is_empty() {
            vms.insert(None, (Vmm::Other, Vec::new()));
        }
        let identified: usize = vms.values().map(|(_, vcpus)| vcpus.len()).sum();
        let mut unidentified = self.kvm_vcpus.unwrap_or(0).saturating_sub(identified);
        self.ids.retain(|prefix, _| vms.contains_key(prefix));
        let mut found = Vec::with_capacity(vms.len());
        for (prefix, (vmm, mut vcpus)) in vms {
            vcpus.sort_unstable();
            let id = *self.ids.entry(prefix.clone()).or_insert_with(|| {
                let id = VmId(*next_id);
                *next_id += 1;
                id
            });
            // The process's own name is surer than a thread's, which any VMM may use.
            let vmm = match Vmm::of_process(&self.comm) {
                Vmm::Other => vmm,
                known => known,
            };
            found.push(Vm {
                id,
                process: self.process,
                name: prefix.unwrap_or_else(|| self.vm_name(vmm)),
                vmm,
                vcpus,
                // Which of several VMs they belong to is not known; they are told once.
                unidentified: std::mem::take(&mut unidentified),
            });
        }
        found
    }

    fn vm_name(&self, vmm: Vmm) -> String {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let given = vmm.vm_name(&args);
        given.unwrap_or_else(|| format!("{}-{}", self.comm, self.process.pid))
    }
}

/// The folders in `path` whose names are numbers, with their inode numbers.
fn numbered_folders(path: &Path) -> io::Result<Vec<(u32, u64)>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if let Some(number) = entry.file_name().to_str().and_then(|n| n.parse().ok()) {
            folders.push((number, entry.ino()));
        }
    }
    Ok(folders)
}

/// How many KVM vCPUs a process holds; `None` if it does not let us look.
pub(crate) fn count_kvm_vcpus(folder: &Path) -> Option<usize> {
    let entries = match fs::read_dir(folder.join("fd")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
        Err(_) => return Some(0),
    };
    let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Some(
        links
            .filter(|link| link.to_str().is_some_and(is_vcpu_link))
            .count(),
    )
}

/// Whether a link is to a vCPU; older kernels leave out its number. A vCPU's figures (`kvm-vcpu-stats:N`), which QEMU holds
/// too, are no vCPU.
fn is_vcpu_link(link: &str) -> bool {
    let rest = link.strip_prefix(VCPU_LINK);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

#[cfg(test)]
mod tests;
