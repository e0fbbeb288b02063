//! A process that holds at least one VM: its threads and their names.

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
use tandem_linux::thread::{Pid, ThreadRef, ThreadStat, Tid};

/// Maximum number of managed vCPUs of a process: KVM's limit per VM on x86 (KVM_MAX_VCPUS).
pub const MAX_VCPUS: usize = 4096;

/// Maximum number of threads of a managed process.
pub const MAX_THREADS: usize = 8192;

/// Number of bytes read of a command line: VM names come early, and arguments may be megabytes.
const COMMAND_LINE: usize = 4096;

/// Maximum length of a VM's name, in characters.
const MAX_NAME: usize = 128;

/// Number of threads between two reads of the clock.
const CHUNK: usize = 16;

/// A process that holds at least one VM.
pub(super) struct Host {
    pub(super) inode: u64,
    pub(super) process: ThreadRef,
    /// Its real user, if it could be read.
    pub(super) user: Option<u32>,
    /// Whether the operator named it: thread names then count without KVM vCPUs.
    pub(super) is_named: bool,
    /// Whether names count only with visible KVM vCPUs.
    pub(super) strict: bool,
    comm: String,
    /// Names of the VM on the command line, by the syntax of each VMM.
    names: Vec<(Vmm, String)>,
    pub(super) tasks: BTreeMap<Tid, Task>,
    /// Whether some of its threads are unread.
    is_unread: bool,
    /// Whether it has more threads than the maximum.
    pub(super) is_crowded: bool,
    /// KVM vCPUs held; `None` without permission.
    kvm_vcpus: Option<usize>,
    /// Progress of their count, if that is unfinished.
    pub(super) count: Option<Count>,
    /// Whether threads came or went since the count began.
    is_stale: bool,
    recount: Look,
    /// When to inspect it again if its VMs are beyond a limit.
    pub(super) look: Look,
    /// The process's CPU clock before its threads were last listed.
    pub(super) clock: Option<Nanos>,
    /// Link count of its list of threads before they were last listed: one per thread plus a constant.
    links: Option<u64>,
    /// Ids of the VMs by the prefix of their thread names; most VMMs have one VM without a prefix.
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
    /// A process before its first inspection.
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
            user: None,
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

    /// Whether work remains for the next scan.
    pub(super) fn is_unfinished(&self) -> bool {
        self.is_unread || self.count.is_some()
    }

    /// Whether the number of threads is unchanged since they were last listed, and none is due for inspection.
    /// The link count of `/proc/PID/task` is that number (fs/proc/base.c, proc_task_getattr).
    /// Reading it costs a fraction of reading the list.
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

    /// Refreshes the threads within the slice. Returns whether any came or went.
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
            self.read_links(procfs).is_some_and(|links| links > MAX_THREADS as u64 + 2);
        let listed = if self.is_crowded {
            Ok(Vec::new())
        } else {
            numbered_folders(&procfs.process(pid).join("task"))
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
        // Unread threads come first, so that threads due again cannot keep them from it.
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

    /// Counts the KVM vCPUs again within the slice, if that is due or threads came or went.
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
                if std::mem::take(&mut self.is_stale) {
                    // New descriptors may precede the position of the count.
                    self.count = Some(Count::default());
                } else {
                    self.recount.again(now);
                }
            }
        }
    }

    /// Whether thread names of any VMM count.
    pub(super) fn names_count(&self) -> bool {
        match self.kvm_vcpus {
            Some(count) => count > 0,
            None => !self.strict,
        }
    }

    /// Returns a thread's vCPU, if its name counts in this process.
    fn vcpu_name<'a>(&self, task: &'a Task) -> Option<&'a VcpuName> {
        let counts = self.names_count();
        task.vcpu.as_ref().filter(|name| counts || (self.is_named && name.without_kvm))
    }

    pub(super) fn holds_vm(&self) -> bool {
        self.kvm_vcpus.is_some_and(|count| count > 0)
            || self.tasks.values().any(|task| self.vcpu_name(task).is_some())
    }

    /// Returns the maximum number of vCPU threads: at most the number of vCPUs, independent of thread names.
    fn most_vcpus(&self) -> usize {
        match self.kvm_vcpus {
            Some(count) if !self.is_named => count.min(MAX_VCPUS),
            _ => MAX_VCPUS,
        }
    }

    /// Returns the present VMs of this process.
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
            // The process's own name is more reliable than a thread's, which any VMM may use.
            let vmm = match self.program() {
                Vmm::Other => vmm,
                known => known,
            };
            found.push(Vm {
                user: self.user,
                id,
                process: self.process,
                name: prefix.unwrap_or_else(|| self.vm_name(vmm)),
                vmm,
                vcpus,
                // Their VM is unknown, so the first one reports them.
                unidentified: std::mem::take(&mut unidentified),
            });
        }
        found
    }

    /// Returns the VMM by the process's name.
    pub(super) fn program(&self) -> Vmm {
        Vmm::of_process(&self.comm)
    }

    /// Reads the VM's name from the command line and keeps nothing else. `folder` is the process's in `/proc`.
    pub(super) fn read_names(&mut self, folder: &Path) {
        let head = read_head(&folder.join("cmdline"), COMMAND_LINE).unwrap_or_default();
        // An argument that was cut off does not count.
        let whole = if head.len() < COMMAND_LINE {
            head.len()
        } else {
            head.iter().rposition(|&byte| byte == 0).unwrap_or(0)
        };
        let text = String::from_utf8_lossy(&head[..whole]);
        let args: Vec<&str> = text.split('\0').collect();
        let named = Vmm::ALL.into_iter().filter_map(|vmm| {
            let name: String = vmm.vm_name(&args)?.chars().take(MAX_NAME).collect();
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

/// Returns the numeric folders in `path`, with their inode numbers.
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
