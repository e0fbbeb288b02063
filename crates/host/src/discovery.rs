//! Finds the VMs of this host, of any VMM, at every scan.
//!
//! A VM is a process that holds KVM vCPUs: descriptors that read `anon_inode:kvm-vcpu:N`.
//! A thread name alone never identifies a VM: names map the threads of such a process to vCPUs ([`crate::vmm`]), or QMP does.
//! A process without KVM vCPUs is a VM only if the operator named it (`named`).
//! A process whose threads carry VM names may hold several VMs.
//!
//! Cost: a scan reads the list of processes, and little else.
//! - A process that is no VM is read again after 0.25, 0.5, 1, … 32 s, because it may become a VMM by exec.
//!   Kernel threads and this process are read once.
//! - The threads of a known VM are counted; they are listed when the count changes, and every few scans.
//!   Unnamed threads are read again at the same ages, and not while the process sleeps ([`tandem_linux::cpu_clock`]).
//! - A scan ends at its deadline, and the next continues it (`budget`).
//!   Bounds hold per process ([`MAX_VCPUS`], [`MAX_THREADS`]), user ([`MAX_VMS_OF_USER`], [`MAX_VCPUS_OF_USER`]) and
//!   host ([`MAX_VMS_OF_HOST`], [`MAX_VCPUS_OF_HOST`], [`MAX_THREADS_OF_HOST`]).
//!
//! The inode of a `/proc` folder identifies a process between scans.
//! The kernel does not promise that it is unique, so start times are compared every few scans.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::qmp;
use crate::qmp::{QmpAnswer, QmpError, SocketPattern};
use crate::vmm::{PatternError, ThreadPattern, Vmm};
use tandem_linux::cpu_clock::process_cpu_time;
use tandem_linux::procfs::{ProcFs, user_of};
use tandem_linux::thread::{Pid, ThreadStat};

mod bounds;
mod budget;
mod descriptors;
mod host;
mod look;
mod named;
mod qmp_sockets;
mod vm;

pub use bounds::{
    MAX_THREADS_OF_HOST, MAX_VCPUS_OF_HOST, MAX_VCPUS_OF_USER, MAX_VMS_OF_HOST, MAX_VMS_OF_USER,
};
pub use host::{MAX_THREADS, MAX_VCPUS};
pub use named::{NamedError, check_named};
pub use vm::{VcpuThread, Vm};

use bounds::{Bound, Claim, Size};
use budget::{Budget, Slice};
use descriptors::{Count, Counted};
use host::{Host, numbered_folders};
use look::Look;
use named::Named;
use qmp_sockets::QmpSockets;

/// Deadline of a scan without other duties. Only processes with very many descriptors make a scan take that long.
pub const UNHURRIED: Duration = Duration::from_secs(5);

/// Number of descriptors of a single process, too many for one slice, from which a line is logged.
const HOARD: usize = 4096;

/// Number of scans after which a VM's threads are listed although their number is unchanged: one may have replaced another.
const LIST_EVERY: u64 = 8;

/// Number of scans after which the start times of a VM's threads are compared.
const VERIFY_EVERY: u64 = 32;

/// Why VMs cannot be discovered.
#[derive(Debug, Error)]
pub enum DiscoveryError {
    /// The list of processes cannot be read.
    #[error("cannot list processes in {path}: {source}; is /proc mounted?")]
    Proc {
        /// The expected path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The pattern of thread names is invalid.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The pattern of QMP sockets is invalid.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// A name of processes without KVM is invalid.
    #[error(transparent)]
    Named(#[from] NamedError),
}

/// The operator's knowledge of the VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryOptions {
    /// Names of the vCPU threads of an unknown VMM, with `{n}` for the vCPU's number.
    pub thread_pattern: Option<String>,
    /// QMP sockets, as globs. The threads that a socket names identify its process.
    pub qmp_sockets: Vec<String>,
    /// QMP sockets of single processes.
    pub qmp_by_pid: BTreeMap<Pid, PathBuf>,
    /// Processes whose thread names count without KVM vCPUs ([`check_named`]).
    pub without_kvm: Vec<String>,
    /// Whether a VM must hold visible KVM vCPUs. A read-only display may trust thread names of processes that it cannot inspect.
    pub strict: bool,
}

/// Result of a scan.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// All VMs, by PID, then by name.
    pub vms: Vec<Vm>,
    /// Number of processes that could not be inspected without permission.
    pub unreadable: usize,
    /// Number of these with a VMM's name.
    pub unreadable_vmms: usize,
    /// Number of VMs beyond the limits per user and host.
    pub left_out: usize,
    /// Problems for the operator, such as a QMP socket that does not answer.
    pub problems: Vec<String>,
}

/// Discovers VMs, and caches its findings.
pub struct Discovery {
    procfs: ProcFs,
    /// Whether CPU clocks can be used: they belong to the machine, not to the tree of a test.
    has_clocks: bool,
    /// This process, inspected once: it makes no VMs while it scans, and may hold two descriptors per vCPU.
    me: Option<Pid>,
    strict: bool,
    pattern: Option<ThreadPattern>,
    named: Named,
    qmp: QmpSockets,
    others: HashMap<Pid, Other>,
    hosts: BTreeMap<Pid, Host>,
    /// Users whose processes hold very many descriptors, found by this scan.
    hoarders: BTreeSet<Option<u32>>,
    /// The VM refreshed last and the process inspected last; the next scan continues after them.
    last_refreshed: Pid,
    last_looked_into: Pid,
    next_id: u64,
    scans: u64,
}

/// A process without VMs, or whose VMs are beyond the limits.
struct Other {
    inode: u64,
    kernel: bool,
    readable: bool,
    vmm: Vmm,
    look: Look,
    /// The real user of the process, if it could be read.
    user: Option<u32>,
    /// Progress of counting its descriptors, if that is unfinished.
    count: Option<Count>,
    /// The exceeded limit, and the number of its VMs beyond it.
    left_out: Option<(Bound, usize)>,
}

impl Other {
    fn new(inode: u64, kernel: bool, user: Option<u32>, now: Instant) -> Other {
        Other {
            inode,
            kernel,
            readable: true,
            vmm: Vmm::Other,
            look: Look::due(now),
            user,
            count: None,
            left_out: None,
        }
    }

    /// A process whose VMs are beyond a limit.
    fn left_out(host: &Host, left_out: (Bound, usize), now: Instant) -> Other {
        let mut look = host.look;
        look.again(now);
        Other {
            vmm: host.program(),
            look,
            left_out: Some(left_out),
            ..Other::new(host.inode, false, host.user, now)
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        !self.kernel && (self.count.is_some() || self.look.is_due(now))
    }
}

impl Discovery {
    /// Checks the patterns; scans nothing.
    pub fn new(options: DiscoveryOptions, procfs: ProcFs) -> Result<Discovery, DiscoveryError> {
        let pattern = options.thread_pattern.as_deref().map(ThreadPattern::new);
        let patterns = options.qmp_sockets.iter().map(|p| SocketPattern::new(p));
        Ok(Discovery {
            pattern: pattern.transpose()?,
            named: Named::new(&options.without_kvm)?,
            strict: options.strict,
            qmp: QmpSockets::new(
                patterns.collect::<Result<_, _>>()?,
                options.qmp_by_pid,
                procfs.resolve("/"),
            ),
            has_clocks: procfs == ProcFs::host(),
            me: (procfs == ProcFs::host()).then(|| Pid(std::process::id())),
            procfs,
            others: HashMap::new(),
            hosts: BTreeMap::new(),
            hoarders: BTreeSet::new(),
            last_refreshed: Pid(0),
            last_looked_into: Pid(0),
            next_id: 1,
            scans: 0,
        })
    }

    /// Returns the present VMs.
    pub fn scan(&mut self) -> Result<Scan, DiscoveryError> {
        self.scan_within(UNHURRIED)
    }

    /// Like [`Self::scan`], but takes about `time`, for callers with other duties. The next scans do the remaining work.
    pub fn scan_within(&mut self, time: Duration) -> Result<Scan, DiscoveryError> {
        self.scan_at(Instant::now(), time)
    }

    /// Like [`Self::scan_within`], at the given time, which must not run backwards.
    fn scan_at(&mut self, now: Instant, time: Duration) -> Result<Scan, DiscoveryError> {
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

        let mut problems = Vec::new();
        self.refresh_all(now, &mut Budget::new(time / 2), &mut problems);
        self.look_into_due(&listed, now, &mut Budget::new(time / 2));
        problems.extend(std::mem::take(&mut self.hoarders).into_iter().map(holds_much));
        let unreadable = || self.others.values().filter(|other| !other.readable);
        let is_vmm = |other: &&Other| other.vmm != Vmm::Other;
        let mut scan = Scan {
            unreadable: unreadable().count(),
            unreadable_vmms: unreadable().filter(is_vmm).count(),
            problems,
            ..Scan::default()
        };
        self.ask_qmp(now, &mut scan.problems);
        self.assemble(now, &mut scan);
        Ok(scan)
    }

    /// Refreshes the known VMs, starting with those that the last scan left out.
    fn refresh_all(&mut self, now: Instant, budget: &mut Budget, problems: &mut Vec<String>) {
        let pids = in_turn(self.hosts.keys().copied().collect(), self.last_refreshed);
        for (done, pid) in pids.into_iter().enumerate() {
            if done > 0 && budget.is_over() {
                return;
            }
            self.last_refreshed = pid;
            let user = self.hosts.get(&pid).and_then(|host| host.user);
            if budget.is_over_for(user) {
                continue;
            }
            let slice = budget.slice();
            self.refresh(pid, now, slice);
            budget.charge(user, slice);
            if self.hosts.get(&pid).is_some_and(|host| host.is_crowded) {
                problems.push(format!(
                    "process {pid} has more than {MAX_THREADS} threads: it is left alone"
                ));
            }
        }
    }

    /// Whether a process that is no known VM is due for inspection.
    fn is_due(&self, pid: Pid, now: Instant) -> bool {
        match self.others.get(&pid) {
            Some(_) if self.me == Some(pid) => false,
            Some(other) => other.is_due(now),
            None => !self.hosts.contains_key(&pid),
        }
    }

    /// Inspects the processes that are due, starting with those that the last scan left out.
    fn look_into_due(&mut self, listed: &HashMap<Pid, u64>, now: Instant, budget: &mut Budget) {
        let due = listed.keys().copied();
        let due = due.filter(|pid| self.is_due(*pid, now)).collect();
        for (done, pid) in in_turn(due, self.last_looked_into).into_iter().enumerate() {
            if done > 0 && budget.is_over() {
                return;
            }
            self.last_looked_into = pid;
            let known = self.others.get(&pid).map(|other| other.user);
            if let Some(user) = known
                && budget.is_over_for(user)
            {
                continue;
            }
            if let Some(&inode) = listed.get(&pid) {
                self.look_into(pid, inode, now, budget);
            }
        }
    }

    /// Determines whether a process holds VMs.
    fn look_into(&mut self, pid: Pid, inode: u64, now: Instant, budget: &mut Budget) {
        let folder = self.procfs.process(pid);
        let known = self.others.remove(&pid);
        let Ok(stat) = ThreadStat::read(&folder) else {
            return;
        };
        let mut other = known.unwrap_or_else(|| {
            let user = if stat.kernel_thread { Some(0) } else { user_of(&folder) };
            Other::new(inode, stat.kernel_thread, user, now)
        });
        let user = other.user;
        if other.kernel || budget.is_over_for(user) {
            self.others.insert(pid, other);
            return;
        }
        other.left_out = None;
        let slice = budget.slice();
        let mut count = other.count.take().unwrap_or_default();
        let counted = count.go_on(&folder, slice);
        let is_unfinished = counted == Counted::Unfinished;
        if is_unfinished && count.looked_at >= HOARD {
            self.hoarders.insert(user);
        }
        let kvm_vcpus = match counted {
            Counted::Unfinished => Some(count.vcpus),
            Counted::All(vcpus) => vcpus,
        };
        if !is_unfinished || count.vcpus > 0 {
            let mut host = Host::new(inode, pid, &stat, kvm_vcpus, now);
            host.user = user;
            host.strict = self.strict;
            host.is_named = self.named.includes(pid, user, &folder);
            host.look = other.look;
            host.count = is_unfinished.then_some(count);
            // Names matter only in processes that may have vCPUs.
            if host.names_count() || (host.is_named && stat.threads > 1) {
                host.read_tasks(&self.procfs, self.pattern.as_ref(), now, false, slice);
            }
            if host.holds_vm() {
                host.read_names(&folder);
                self.hosts.insert(pid, host);
                budget.charge(user, slice);
                return;
            }
        }
        budget.charge(user, slice);
        other.vmm = Vmm::of_process(&stat.comm);
        other.readable = kvm_vcpus.is_some();
        other.count = is_unfinished.then_some(count);
        if !is_unfinished {
            other.look.again(now);
        }
        self.others.insert(pid, other);
    }

    /// Refreshes a known VM's threads, and drops the VM when it has ended.
    fn refresh(&mut self, pid: Pid, now: Instant, slice: Slice) {
        let Some(host) = self.hosts.get_mut(&pid) else {
            return;
        };
        let verify = (self.scans + u64::from(pid.0)).is_multiple_of(VERIFY_EVERY);
        let clock = self.has_clocks.then(|| process_cpu_time(pid)).flatten();
        if clock.is_some() && clock == host.clock && !verify && !host.is_unfinished() {
            return;
        }
        host.clock = clock;
        let is_same = !verify || host.process.stat(&self.procfs).is_ok();
        let list = (self.scans + u64::from(pid.0)).is_multiple_of(LIST_EVERY);
        let changed = if self.has_clocks && !list && host.has_same_threads(&self.procfs, now) {
            false
        } else {
            host.read_tasks(&self.procfs, self.pattern.as_ref(), now, verify, slice)
        };
        host.recount(&self.procfs.process(pid), changed, now, slice);
        if !is_same || !host.holds_vm() {
            self.hosts.remove(&pid);
        }
    }

    /// Puts the present VMs into the scan, up to the limits.
    /// A process without any of them is dropped and inspected again at growing intervals.
    fn assemble(&mut self, now: Instant, scan: &mut Scan) {
        let (mut claims, mut vms) = (Vec::new(), Vec::new());
        for host in self.hosts.values_mut() {
            let mut threads = host.tasks.len();
            for vm in host.vms(&mut self.next_id) {
                let size =
                    Size { vms: 1, vcpus: vm.vcpus.len(), threads: std::mem::take(&mut threads) };
                claims.push(Claim { user: host.user, vm: vm.id, size });
                vms.push(vm);
            }
        }
        let verdicts = bounds::admit(&claims);
        let mut full: BTreeSet<(Bound, Option<u32>)> = BTreeSet::new();
        let mut left_out: BTreeMap<Pid, (Bound, usize)> = BTreeMap::new();
        for ((vm, claim), verdict) in vms.into_iter().zip(&claims).zip(verdicts) {
            match verdict {
                None => scan.vms.push(vm),
                Some(bound) => {
                    full.insert((bound, claim.user));
                    left_out.entry(vm.process.pid).or_insert((bound, 0)).1 += 1;
                }
            }
        }
        scan.left_out = left_out.values().map(|(_, vms)| vms).sum();
        for vm in &scan.vms {
            left_out.remove(&vm.process.pid);
        }
        let others = self.others.values();
        for (other, (bound, vms)) in others.filter_map(|other| Some((other, other.left_out?))) {
            full.insert((bound, other.user));
            scan.left_out += vms;
        }
        for (pid, left_out) in left_out {
            if let Some(host) = self.hosts.remove(&pid) {
                self.others.insert(pid, Other::left_out(&host, left_out, now));
            }
        }
        scan.problems.extend(full.into_iter().map(is_full));
        scan.problems.sort();
        scan.problems.dedup();
    }

    /// Queries QMP sockets about the processes whose vCPUs changed.
    fn ask_qmp(&mut self, now: Instant, problems: &mut Vec<String>) {
        if !self.qmp.is_used() || !self.hosts.values().any(|host| host.qmp_wanted) {
            return;
        }
        let hosts = &mut self.hosts;
        let waiting = hosts.values().filter(|host| host.qmp_wanted);
        let waiting: BTreeSet<u32> = waiting.filter_map(|host| host.user).collect();
        let wants = |pid| hosts.get(&pid).map(|host| host.qmp_wanted);
        for socket in self.qmp.due(now, wants, |user| user == 0 || waiting.contains(&user)) {
            let path = &socket.path;
            let opened = self.qmp.open(&socket);
            let asked = opened.and_then(|opened| qmp::query_vcpus(&opened, qmp::DEADLINE));
            let owner = match asked {
                Ok(answer) => match owner_of(hosts, &answer) {
                    Ok(owner) => owner.map(|host| {
                        // Threads of other processes that a socket names do not count.
                        let vcpus = answer.vcpus.iter();
                        let vcpus = vcpus.filter(|vcpu| host.tasks.contains_key(&vcpu.tid));
                        host.qmp = vcpus.map(|vcpu| (vcpu.tid, vcpu.index)).collect();
                        host.qmp_wanted = false;
                        host.process.pid
                    }),
                    Err(problem) => {
                        problems.push(format!("QMP socket {}: {problem}", path.display()));
                        None
                    }
                },
                Err(error) => {
                    problems.push(error.to_string());
                    None
                }
            };
            self.qmp.asked(socket, owner, now);
        }
    }
}

/// Returns the process whose threads an answer names, if any; fails if the answering process is not trusted about it.
fn owner_of<'a>(
    hosts: &'a mut BTreeMap<Pid, Host>,
    answer: &QmpAnswer,
) -> Result<Option<&'a mut Host>, String> {
    let is_vm = hosts.contains_key(&answer.peer.pid);
    let owner = hosts.values_mut().find(|host| {
        let mut vcpus = answer.vcpus.iter();
        vcpus.any(|vcpu| host.tasks.contains_key(&vcpu.tid))
    });
    let Some(host) = owner else {
        return Ok(None);
    };
    let (peer, process) = (answer.peer, host.process.pid);
    if peer.is_trusted_for(process, is_vm) {
        Ok(Some(host))
    } else {
        Err(format!(
            "process {} of user {} answers there and names threads of process {process}: it is not trusted",
            peer.pid, peer.uid
        ))
    }
}

/// Problem text for users whose processes delay the scans.
fn holds_much(user: Option<u32>) -> String {
    format!(
        "processes of user {} hold thousands of descriptors: they are inspected in parts, and VMs among them are found late",
        user_name(user)
    )
}

/// Problem text for users with VMs beyond a limit.
fn is_full((bound, user): (Bound, Option<u32>)) -> String {
    match bound {
        Bound::User => format!(
            "user {} has more than {MAX_VMS_OF_USER} VMs or {MAX_VCPUS_OF_USER} vCPUs: the excess is left alone",
            user_name(user)
        ),
        Bound::Host => format!(
            "this host has more than {MAX_VMS_OF_HOST} VMs, or VMs of more than {MAX_VCPUS_OF_HOST} vCPUs or {MAX_THREADS_OF_HOST} threads: the excess is left alone, starting with the largest users"
        ),
    }
}

/// Returns the number of KVM vCPUs of a process.
/// Returns `None` without permission, or if it has too many descriptors to count in a moment.
/// `folder` is its folder in `/proc`.
pub(crate) fn count_kvm_vcpus(folder: &Path) -> Option<usize> {
    let slice = Budget::new(Duration::from_secs(1)).slice();
    match Count::default().go_on(folder, slice) {
        Counted::All(vcpus) => vcpus,
        Counted::Unfinished => None,
    }
}

fn user_name(user: Option<u32>) -> String {
    user.map_or_else(|| "(not known)".to_owned(), |user| user.to_string())
}

/// Sorts processes by PID, starting after `last` and wrapping around.
fn in_turn(mut pids: Vec<Pid>, last: Pid) -> Vec<Pid> {
    pids.sort_unstable();
    let next = pids.partition_point(|pid| *pid <= last);
    pids.rotate_left(next);
    pids
}

#[cfg(test)]
mod tests;
