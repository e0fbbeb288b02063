//! Maps the culprits that the programs report to the processes, VMs and cgroups that users know.

use std::collections::BTreeMap;

use tandem_linux::cgroup;
use tandem_linux::cgroup::CpuController;
use tandem_linux::procfs::{ProcFs, read_text};
use tandem_linux::thread::{Pid, ThreadRef};
use tandem_model::VmId;
use tandem_model::states::edges::Party;

use super::Culprit;
use crate::plain::{kernel_name, vhost_of};

/// Number of cached cgroup paths above which the cache is cleared, since cgroups come and go.
const MAX_CGROUPS: usize = 4096;

/// Names processes and cgroups.
pub struct Parties {
    procfs: ProcFs,
    controller: Option<Box<dyn CpuController>>,
    /// Paths by number. They also serve culprits that exited, if another process of the cgroup was looked up.
    cgroups: BTreeMap<u64, String>,
    /// Names of the processes of this reading.
    processes: BTreeMap<Pid, Option<String>>,
}

impl Parties {
    /// Creates an empty cache for this host.
    pub fn new(procfs: ProcFs) -> Parties {
        Parties {
            controller: cgroup::open(&procfs).ok(),
            procfs,
            cgroups: BTreeMap::new(),
            processes: BTreeMap::new(),
        }
    }

    /// Begins a reading.
    pub fn begin(&mut self) {
        self.processes.clear();
        if self.cgroups.len() > MAX_CGROUPS {
            self.cgroups.clear();
        }
    }

    /// Returns the party of a culprit that is not a watched thread. VMs are identified by their processes.
    pub fn of(&mut self, culprit: &Culprit, vms: &BTreeMap<Pid, VmId>) -> Party {
        match culprit {
            Culprit::Watched(_) | Culprit::Idle => Party::Unseen,
            Culprit::Kernel { comm, .. } => match vhost_of(comm).and_then(|pid| vms.get(&pid)) {
                Some(vm) => Party::VmThread { vm: *vm, name: "vhost".to_owned() },
                None => Party::KernelThread(kernel_name(comm)),
            },
            Culprit::Task { pid, comm, cgroup, .. } => match pid.and_then(|pid| vms.get(&pid)) {
                Some(vm) => Party::VmThread { vm: *vm, name: comm.clone() },
                None if comm.is_empty() => Party::Unseen,
                None => {
                    let name = pid.and_then(|pid| self.process(pid));
                    Party::Process {
                        name: name.unwrap_or_else(|| comm.clone()),
                        cgroup: match cgroup {
                            Some(cgroup) => self.cgroup(*cgroup, *pid),
                            None => pid.and_then(|pid| self.cgroup_of(pid)),
                        },
                    }
                }
            },
        }
    }

    /// Returns the name of a process, if it still lives.
    fn process(&mut self, pid: Pid) -> Option<String> {
        let procfs = &self.procfs;
        let look = || {
            let comm = read_text(&procfs.process(pid).join("comm")).ok()?;
            Some(comm.trim_end().to_owned())
        };
        self.processes.entry(pid).or_insert_with(look).clone()
    }

    fn cgroup(&mut self, number: u64, pid: Option<Pid>) -> Option<String> {
        if let Some(path) = self.cgroups.get(&number) {
            return Some(path.clone());
        }
        let path = self.cgroup_of(pid?)?;
        self.cgroups.insert(number, path.clone());
        Some(path)
    }

    /// Returns the cgroup of a process, if it still lives.
    fn cgroup_of(&self, pid: Pid) -> Option<String> {
        let process = ThreadRef::of_process(&self.procfs, pid).ok()?;
        let path = self.controller.as_ref()?.cgroup_of(&process).ok()?;
        Some(path.to_string())
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::thread::Tid;

    use super::*;

    #[test]
    fn culprits_map_to_their_parties() {
        let mut parties = Parties::new(ProcFs::host());
        let vms = BTreeMap::from([(Pid(4711), VmId(7))]);
        let task = |pid: Option<u32>, comm: &str| Culprit::Task {
            tid: Tid(4712),
            pid: pid.map(Pid),
            comm: comm.to_owned(),
            cgroup: None,
        };
        let kernel = |comm: &str| Culprit::Kernel { tid: Tid(9), comm: comm.to_owned() };
        let vm_thread = |name: &str| Party::VmThread { vm: VmId(7), name: name.to_owned() };
        for (culprit, party) in [
            (task(Some(4711), "iothread"), vm_thread("iothread")),
            (kernel("vhost-4711"), vm_thread("vhost")),
            (kernel("kworker/1:2-events"), Party::KernelThread("kworker".to_owned())),
            (task(None, ""), Party::Unseen),
            (Culprit::Idle, Party::Unseen),
        ] {
            assert_eq!(parties.of(&culprit, &vms), party, "{culprit:?}");
        }
    }

    #[test]
    fn threads_use_the_name_of_a_live_process() {
        let mut parties = Parties::new(ProcFs::host());
        let me = Pid(std::process::id());
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        let mut culprit =
            Culprit::Task { tid: Tid(1), pid: Some(me), comm: "worker-9".to_owned(), cgroup: None };
        let name = |party: Party| match party {
            Party::Process { name, .. } => name,
            other => panic!("{other} is a process"),
        };
        let vms = BTreeMap::new();
        assert_eq!(name(parties.of(&culprit, &vms)), comm.trim_end());
        // Without a cgroup from the programs, that of the process is used, if there is a controller.
        if let Ok(controller) = cgroup::open(&ProcFs::host()) {
            let process = ThreadRef::of_process(&ProcFs::host(), me).unwrap();
            let path = controller.cgroup_of(&process).map(|path| path.to_string());
            match parties.of(&culprit, &vms) {
                Party::Process { cgroup, .. } => assert_eq!(cgroup, path.ok()),
                other => panic!("{other} is a process"),
            }
        }
        // No process can have this number.
        if let Culprit::Task { pid, .. } = &mut culprit {
            *pid = Some(Pid(u32::MAX));
        }
        assert_eq!(name(parties.of(&culprit, &vms)), "worker-9");
    }
}
