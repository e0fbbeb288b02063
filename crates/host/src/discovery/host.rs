//! A process that holds at least one VM: its threads, and what they are called.

use std::collections::BTreeMap;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use std::time::Instant;
use std::{fs, io};

use tandem_model::{Nanos, VcpuId, VmId};

use super::budget::Slice;
use super::descriptors::{Count, Counted};
use super::look::Look;
use super::vm::{VcpuThread, Vm};
use crate::vmm::{ThreadPattern, VcpuName, Vmm};
use tandem_linux::printable::printable;
use tandem_linux::procfs::{ProcFs, read_head};
use tandem_linux::tenants::Owner;
use tandem_linux::thread::{Pid, ThreadRef, ThreadStat, Tid};

/// The most vCPUs that a process may have under care: what KVM gives a VM on x86 (KVM_MAX_VCPUS).
pub const MOST_VCPUS: usize = 4096;

/// A process of more threads than that is left alone.
pub const MOST_THREADS: usize = 8192;

/// So much of a command line is read: VMMs are told a VM's name early, and arguments may be megabytes.
const COMMAND_LINE: usize = 4096;

/// The longest name of a VM, in characters.
const LONGEST_NAME: usize = 128;

/// Threads read between two looks at the clock.
const CHUNK: usize = 16;

/// A process that holds at least one VM.
pub(super) struct Host {
    pub(super) inode: u64,
    pub(super) process: ThreadRef,
    /// Whose it is.
    pub(super) owner: Owner,
    /// Whether the operator named it: then names count though it holds no KVM vCPU.
    pub(super) is_named: bool,
    /// Whether names count only where KVM vCPUs are seen.
    pub(super) strict: bool,
    comm: String,
    /// What its command line calls the VM, as each VMM is told.
    names: Vec<(Vmm, String)>,
    pub(super) tasks: BTreeMap<Tid, Task>,
    /// Whether some of its threads have not been read yet.
    is_unread: bool,
    /// Whether it has more threads than are looked at.
    pub(super) is_crowded: bool,
    /// KVM vCPUs held; `None` if that could not be read.
    kvm_vcpus: Option<usize>,
    /// How far these have been counted, if that is not done.
    pub(super) count: Option<Count>,
    /// Whether threads came or went since that began.
    is_stale: bool,
    recount: Look,
    /// When to look into it again where there is no room for its VMs.
    pub(super) look: Look,
    /// The process's CPU clock before its threads were last listed.
    pub(super) clock: Option<Nanos>,
    /// The links of its list of threads before they were last listed: one per thread and some.
    links: Option<u64>,
    /// The VMs by their thread names' prefix; one without a prefix for most VMMs.
    ids: BTreeMap<Option<String>, VmId>,
    pub(super) qmp: BTreeMap<Tid, VcpuId>,
    pub(super) qmp_wanted: bool,
}

pub(super) struct Task {
    inode: u64,
    thread: ThreadRef,
    vcpu: Option<VcpuName>,
    look: Look,
}

impl Host {
    /// A process of which nothing else is known yet.
    pub(super) fn new(
        inode: u64,
        pid: Pid,
        stat: &ThreadStat,
        kvm_vcpus: Option<usize>,
        now: Instant,
    ) -> Host {
        Host {
            inode,
            process: ThreadRef { pid, tid: pid.main_thread(), start: stat.start },
            owner: Owner::default(),
            is_named: false,
            strict: false,
            comm: stat.comm.clone(),
            names: Vec::new(),
            tasks: BTreeMap::new(),
            is_unread: false,
            is_crowded: false,
            kvm_vcpus,
            count: None,
            is_stale: false,
            recount: Look::first(now),
            look: Look::due(now),
            clock: None,
            links: None,
            ids: BTreeMap::new(),
            qmp: BTreeMap::new(),
            qmp_wanted: true,
        }
    }

    /// Whether something was left for the next scan.
    pub(super) fn is_unfinished(&self) -> bool {
        self.is_unread || self.count.is_some()
    }

    /// Whether there are as many threads as when they were last listed, and none of them is due to
    /// be looked at. The kernel counts them in the link count of `/proc/PID/task`
    /// (fs/proc/base.c, proc_task_getattr), which costs a fraction of reading the list.
    pub(super) fn has_same_threads(&mut self, procfs: &ProcFs, now: Instant) -> bool {
        let links = self.read_links(procfs);
        let is_same = links.is_some() && links == self.links;
        self.links = links;
        let is_due = |task: &Task| task.vcpu.is_none() && task.look.is_due(now);
        is_same && !self.is_unread && !self.tasks.values().any(is_due)
    }

    fn read_links(&self, procfs: &ProcFs) -> Option<u64> {
        let path = procfs.process(self.process.pid).join("task");
        fs::metadata(path).ok().map(|metadata| metadata.nlink())
    }

    /// Brings the threads up to date, as far as the slice goes. Returns whether any came or went.
    pub(super) fn read_tasks(
        &mut self,
        procfs: &ProcFs,
        pattern: Option<&ThreadPattern>,
        now: Instant,
        verify: bool,
        slice: Slice,
    ) -> bool {
        let pid = self.process.pid;
        self.is_unread = false;
        self.is_crowded =
            self.read_links(procfs).is_some_and(|links| links > MOST_THREADS as u64 + 2);
        let listed = match self.is_crowded {
            true => Ok(Vec::new()),
            false => numbered_folders(&procfs.process(pid).join("task")),
        };
        let Ok(listed) = listed else {
            self.tasks.clear();
            return true;
        };
        let listed: BTreeMap<Tid, u64> =
            listed.into_iter().map(|(n, inode)| (Tid(n), inode)).collect();
        let before = self.tasks.len();
        self.tasks.retain(|tid, task| {
            listed.get(tid) == Some(&task.inode)
                && (!verify || task.vcpu.is_none() || task.thread.stat(procfs).is_ok())
        });
        let mut changed = self.tasks.len() != before;
        // Those first that were never read, or others that are due again would keep them from it.
        let mut due: Vec<(bool, Tid, u64)> = listed
            .into_iter()
            .map(|(tid, inode)| (self.tasks.contains_key(&tid), tid, inode))
            .filter(|(_, tid, _)| {
                let known = self.tasks.get(tid);
                known.is_none_or(|task| task.vcpu.is_none() && task.look.is_due(now))
            })
            .collect();
        due.sort_unstable();
        for (read, (_, tid, inode)) in due.into_iter().enumerate() {
            if read > 0 && read.is_multiple_of(CHUNK) && slice.is_over() {
                self.is_unread = true;
                break;
            }
            let known = self.tasks.get(&tid);
            let Ok(stat) = ThreadStat::read(&procfs.task(pid, tid)) else {
                continue;
            };
            let vcpu = VcpuName::parse(&stat.comm).or_else(|| {
                let index = pattern?.index(&stat.comm)?;
                Some(VcpuName { vmm: Vmm::Other, index, vm: None, without_kvm: true })
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
            let thread = ThreadRef { pid, tid, start: stat.start };
            let task = Task { inode, thread, vcpu, look };
            self.tasks.insert(tid, task);
        }
        changed
    }

    /// Counts the KVM vCPUs again, if it is time or threads came or went, as far as the slice goes.
    pub(super) fn recount(&mut self, folder: &Path, changed: bool, now: Instant, slice: Slice) {
        let begun = self.count.take();
        if begun.is_none() && !changed && !self.recount.is_due(now) {
            return;
        }
        self.is_stale |= begun.is_some() && changed;
        let mut count = begun.unwrap_or_default();
        match count.go_on(folder, slice) {
            Counted::Unfinished => {
                self.kvm_vcpus = self.kvm_vcpus.max(Some(count.vcpus));
                self.count = Some(count);
            }
            Counted::All(kvm_vcpus) => {
                self.qmp_wanted |= kvm_vcpus != self.kvm_vcpus;
                self.kvm_vcpus = kvm_vcpus;
                match std::mem::take(&mut self.is_stale) {
                    // What came since may be where the count had been already.
                    true => self.count = Some(Count::default()),
                    false => self.recount.again(now),
                }
            }
        }
    }

    /// Whether names of threads count, of any VMM.
    pub(super) fn names_count(&self) -> bool {
        match self.kvm_vcpus {
            Some(count) => count > 0,
            None => !self.strict,
        }
    }

    /// A thread's vCPU, if its name counts in this process.
    fn vcpu_name<'a>(&self, task: &'a Task) -> Option<&'a VcpuName> {
        let counts = self.names_count();
        task.vcpu.as_ref().filter(|name| counts || (self.is_named && name.without_kvm))
    }

    pub(super) fn holds_vm(&self) -> bool {
        self.kvm_vcpus.is_some_and(|count| count > 0)
            || self.tasks.values().any(|task| self.vcpu_name(task).is_some())
    }

    /// How many threads can be vCPUs: no more than there are vCPUs, whatever threads are called.
    fn most_vcpus(&self) -> usize {
        match self.kvm_vcpus {
            Some(count) if !self.is_named => count.min(MOST_VCPUS),
            _ => MOST_VCPUS,
        }
    }

    /// The VMs of this process as they are now.
    pub(super) fn vms(&mut self, next_id: &mut u64) -> Vec<Vm> {
        let mut vms: BTreeMap<Option<String>, (Vmm, Vec<VcpuThread>)> = BTreeMap::new();
        let identified = self.tasks.iter().filter_map(|(tid, task)| {
            let name = self.vcpu_name(task);
            let by_qmp = self.qmp.get(tid).copied();
            let index = by_qmp.or(name.map(|name| name.index))?;
            Some((index, task.thread, name))
        });
        for (index, thread, name) in identified.take(self.most_vcpus()) {
            let (vmm, prefix) = match name {
                Some(name) => (name.vmm, name.vm.clone()),
                None => (Vmm::Qemu, None),
            };
            let (_, vcpus) = vms.entry(prefix).or_insert((vmm, Vec::new()));
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
            let vmm = match self.program() {
                Vmm::Other => vmm,
                known => known,
            };
            found.push(Vm {
                tenant: self.owner.tenant,
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

    /// What the name of the process says.
    pub(super) fn program(&self) -> Vmm {
        Vmm::of_process(&self.comm)
    }

    /// Reads what the command line calls the VM; no more of it is kept. `folder` is the process's in `/proc`.
    pub(super) fn read_names(&mut self, folder: &Path) {
        let head = read_head(&folder.join("cmdline"), COMMAND_LINE).unwrap_or_default();
        // What was cut off is no argument.
        let whole = match head.len() < COMMAND_LINE {
            true => head.len(),
            false => head.iter().rposition(|&byte| byte == 0).unwrap_or(0),
        };
        let text = String::from_utf8_lossy(&head[..whole]);
        let args: Vec<&str> = text.split('\0').collect();
        let named = Vmm::ALL.into_iter().filter_map(|vmm| {
            let name: String = vmm.vm_name(&args)?.chars().take(LONGEST_NAME).collect();
            Some((vmm, printable(&name).into_owned()))
        });
        self.names = named.collect();
    }

    fn vm_name(&self, vmm: Vmm) -> String {
        let given = self.names.iter().find(|(of, _)| *of == vmm);
        match given {
            Some((_, name)) => name.clone(),
            None => format!("{}-{}", self.comm, self.process.pid),
        }
    }
}

/// The folders in `path` whose names are numbers, with their inode numbers.
pub(super) fn numbered_folders(path: &Path) -> io::Result<Vec<(u32, u64)>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if let Some(number) = entry.file_name().to_str().and_then(|n| n.parse().ok()) {
            folders.push((number, entry.ino()));
        }
    }
    Ok(folders)
}
