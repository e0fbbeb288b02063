//! A remedy as journaled changes: its targets, its permission checks, and how it is applied and reverted.
//!
//! VMs that were not named are not changed.
//! A cgroup that holds another VM, or a process that may be one, is left as it is.
//! Settings of the host, outside any VM, need `--yes`.
//! The targets are looked up again before the change, since threads and processes come and go.
//! Threads that may be vCPUs, processes that may differ from the measured ones, and threads bound by their cpuset are left alone.

use std::collections::{BTreeMap, BTreeSet};

use tandem_linux::actuator::{Actuator, ActuatorError, Outcome};
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::ownership::{find_own_cgroup, residence};
use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController, Knob};
use tandem_linux::procfs::{ProcFs, read_text};
use tandem_linux::restore::RestoreReport;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::{Nice, PcpuSet, VmId, Weight};
use tandem_observe::findings::Change;

use crate::cpusets::Cpusets;
use crate::discovery::{Vm, count_kvm_vcpus};
use crate::vmm::VcpuName;

/// One journaled change.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Sets the affinity of a thread.
    Affinity(ThreadRef, PcpuSet),
    /// Sets the nice value of a thread.
    Nice(ThreadRef, Nice),
    /// Removes the quota of a cgroup.
    NoQuota(CgroupPath),
    /// Sets the weight of a cgroup.
    Weight(CgroupPath, Weight),
}

/// Target of a step. No two remedies may change the same target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// A thread.
    Thread(ThreadRef),
    /// A knob of a cgroup.
    Knob(CgroupPath, Knob),
}

impl Step {
    /// Returns the target of the step.
    pub(super) fn target(&self) -> Target {
        match self {
            Step::Affinity(thread, _) | Step::Nice(thread, _) => Target::Thread(*thread),
            Step::NoQuota(cgroup) => Target::Knob(cgroup.clone(), Knob::Quota),
            Step::Weight(cgroup, _) => Target::Knob(cgroup.clone(), Knob::Weight),
        }
    }
}

/// The state of the host that decides whether a remedy may be applied.
pub(super) struct Ground<'a> {
    pub(super) procfs: &'a ProcFs,
    pub(super) controller: &'a dyn CpuController,
    /// All VMs of the host at present.
    pub(super) vms: &'a [Vm],
    /// Number of processes with a VMM's name that cannot be inspected.
    pub(super) unreadable: usize,
    /// Processes that remedies refer to and that existed for the whole measurement.
    pub(super) processes: &'a BTreeMap<u32, ThreadRef>,
    /// The VMs that may be changed.
    pub(super) selected: &'a BTreeSet<VmId>,
    /// Whether host settings may be changed.
    pub(super) yes: bool,
}

impl Ground<'_> {
    /// Returns the steps of a VM's remedy, or the reason not to try it.
    pub(super) fn steps(&self, vm: VmId, changes: &[Change]) -> Result<Vec<Step>, String> {
        let vm = self.vms.iter().find(|one| one.id == vm);
        let vm = vm.ok_or("the VM is gone")?;
        if changes.is_empty() {
            return Err(
                "the remedy is not a setting that --try can apply and revert; use the commands above"
                    .to_owned(),
            );
        }
        let mut steps = Vec::new();
        for change in changes {
            steps.extend(self.of(vm, change)?);
        }
        self.check_cpusets(&steps)?;
        if steps.is_empty() {
            Err("the threads of this remedy have ended".to_owned())
        } else {
            Ok(steps)
        }
    }

    fn of(&self, vm: &Vm, change: &Change) -> Result<Vec<Step>, String> {
        match change {
            Change::Vcpu { vcpu, pcpus } => {
                let of_vcpu = vm.vcpus.iter().filter(|known| known.index == *vcpu);
                Ok(of_vcpu.map(|known| Step::Affinity(known.thread, pcpus.clone())).collect())
            }
            Change::ThreadsTo { name, pcpus } => {
                let threads = self.other_threads(vm, name)?.into_iter();
                Ok(threads.map(|thread| Step::Affinity(thread, pcpus.clone())).collect())
            }
            Change::ThreadsNice { name, nice } => {
                let threads = self.other_threads(vm, name)?.into_iter();
                Ok(threads.map(|thread| Step::Nice(thread, *nice)).collect())
            }
            Change::NoQuota { cgroup } => {
                let own = self.own_cgroup(vm)?;
                if !own.is_some_and(|own| cgroup.is_within(&own)) {
                    self.check_yes("a cgroup that is not the VM's alone")?;
                }
                self.check_cgroup(cgroup)?;
                Ok(vec![Step::NoQuota(cgroup.clone())])
            }
            Change::VmWeight { percent } => self.vm_weight(vm, *percent).map(|step| vec![step]),
            Change::Weight { cgroup, weight } => {
                self.check_yes("a cgroup of the host's")?;
                self.check_cgroup(cgroup)?;
                Ok(vec![Step::Weight(cgroup.clone(), Weight::saturating(f64::from(*weight)))])
            }
            Change::ProcessNice { pid, name, nice } => {
                self.check_yes("a process of the host's")?;
                let Some(process) = self.host_process(Pid(*pid), name)? else {
                    return Ok(Vec::new());
                };
                let threads = self.threads(process.pid).into_iter();
                Ok(threads.map(|(thread, _)| Step::Nice(thread, *nice)).collect())
            }
        }
    }

    /// Returns a process of the host that was measured and is no VM; `None` if it has ended.
    fn host_process(&self, pid: Pid, name: &str) -> Result<Option<ThreadRef>, String> {
        let Ok(process) = ThreadRef::of_process(self.procfs, pid) else {
            return Ok(None);
        };
        let folder = self.procfs.process(pid);
        let comm = read_text(&folder.join("comm")).unwrap_or_default();
        // The PID may have been reused.
        if comm.trim_end() != name {
            return Ok(None);
        }
        if self.processes.get(&pid.0) != Some(&process) {
            return Err(format!(
                "process {pid} ({name}) did not exist for the whole measurement: its PID may have been reused"
            ));
        }
        if let Some(vm) = self.vms.iter().find(|vm| vm.process.pid == pid) {
            return Err(format!("process {pid} ({name}) runs {}", vm.name));
        }
        match count_kvm_vcpus(&folder) {
            Some(0) => Ok(Some(process)),
            Some(_) => Err(format!("process {pid} ({name}) holds vCPUs of a VM")),
            None => Err(format!("whether process {pid} ({name}) holds a VM cannot be looked up")),
        }
    }

    /// Checks that the cpusets of all threads allow their new affinity.
    fn check_cpusets(&self, steps: &[Step]) -> Result<(), String> {
        let mut cpusets = Cpusets::open(self.procfs);
        for step in steps {
            if let Step::Affinity(thread, pcpus) = step
                && let Some(bound) = cpusets.of(thread, false)
                && pcpus.common(&bound) < pcpus.len()
            {
                return Err(format!(
                    "the cpuset of {thread} holds it to pCPUs {bound}, as libvirt's vcpupin and emulatorpin do: the cpuset has to change too, which the command above does if there is one"
                ));
            }
        }
        Ok(())
    }

    fn check_yes(&self, what: &str) -> Result<(), String> {
        if self.yes { Ok(()) } else { Err(format!("it changes {what}: pass --yes to allow it")) }
    }

    /// Checks that a cgroup holds only VMs that may be changed.
    fn check_cgroup(&self, cgroup: &CgroupPath) -> Result<(), String> {
        if self.unreadable > 0 {
            return Err(format!(
                "{} processes that may be VMs cannot be inspected: {cgroup} may hold a VM that was not named",
                self.unreadable
            ));
        }
        let mut names = Vec::new();
        let others = self.vms.iter().filter(|vm| !self.selected.contains(&vm.id));
        for vm in others {
            let threads = vm.vcpus.iter().map(|vcpu| &vcpu.thread);
            let mut holds = false;
            for thread in threads.chain([&vm.process]) {
                match self.controller.cgroup_of(thread) {
                    Ok(place) => holds |= place.is_within(cgroup),
                    Err(error) if error.is_gone() => {}
                    Err(error) => return Err(unknown(vm, &error)),
                }
            }
            names.extend(holds.then_some(vm.name.as_str()));
        }
        if names.is_empty() {
            Ok(())
        } else {
            Err(format!("{cgroup} also holds {}, which was not named", names.join(", ")))
        }
    }

    /// Returns the cgroup that holds only this VM, if there is one. Fails if the cgroup of any VM is unknown.
    fn own_cgroup(&self, vm: &Vm) -> Result<Option<CgroupPath>, String> {
        let (mut own, mut others) = (None, Vec::new());
        for other in self.vms {
            let vcpus: Vec<ThreadRef> = other.vcpus.iter().map(|vcpu| vcpu.thread).collect();
            match residence(self.controller, &other.process, &vcpus) {
                Ok(home) if other.id == vm.id => own = Some(home),
                Ok(home) => others.push(home),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(unknown(other, &error)),
            }
        }
        let own = own.ok_or("the VM is gone")?;
        let found = find_own_cgroup(self.controller, self.procfs, &own, &others);
        found.map_err(|error| error.to_string())
    }

    fn vm_weight(&self, vm: &Vm, percent: u32) -> Result<Step, String> {
        let own = self.own_cgroup(vm)?;
        let own = own.ok_or("the VM has no cgroup of its own, so its weight cannot be raised")?;
        let now = self.controller.weight(&own);
        let now = now.map_err(|error| error.to_string())?;
        let raised = now.times(f64::from(percent) / 100.0);
        Ok(Step::Weight(own, raised))
    }

    /// Returns the threads of a process with their names.
    fn threads(&self, pid: Pid) -> Vec<(ThreadRef, String)> {
        let folder = self.procfs.process(pid).join("task");
        let tasks = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut tids: Vec<Tid> =
            tasks.filter_map(|task| Some(Tid(task.file_name().to_str()?.parse().ok()?))).collect();
        tids.sort_unstable();
        let threads = tids.into_iter().filter_map(|tid| {
            let thread = ThreadRef::read(self.procfs, pid, tid).ok()?;
            let comm = read_text(&self.procfs.task(pid, tid).join("comm")).ok()?;
            Some((thread, comm.trim_end().to_owned()))
        });
        threads.collect()
    }

    /// Returns the threads of that name that are not vCPUs of any VM.
    fn other_threads(&self, vm: &Vm, name: &str) -> Result<Vec<ThreadRef>, String> {
        let pid = vm.process.pid;
        let of_process = self.vms.iter().filter(|other| other.process.pid == pid);
        if let Some(other) = of_process.clone().find(|other| !self.selected.contains(&other.id)) {
            return Err(format!("process {pid} also runs {}, which was not named", other.name));
        }
        if let Some(vm) = of_process.clone().find(|vm| vm.unidentified > 0) {
            return Err(format!(
                "{} of the vCPUs of {} have no known thread: '{name}' may be one of them",
                vm.unidentified, vm.name
            ));
        }
        if VcpuName::parse(name).is_some() {
            return Err(format!("threads that are called '{name}' may be vCPUs"));
        }
        let vcpus: BTreeSet<Tid> =
            of_process.flat_map(|vm| vm.vcpus.iter().map(|vcpu| vcpu.thread.tid)).collect();
        let threads = self.threads(pid).into_iter();
        let named = threads.filter(|(thread, comm)| comm == name && !vcpus.contains(&thread.tid));
        Ok(named.map(|(thread, _)| thread).collect())
    }
}

/// Error text for an unknown cgroup of a VM.
fn unknown(vm: &Vm, error: &CgroupError) -> String {
    format!("the cgroup of {} cannot be read: {error}", vm.name)
}

/// Makes these changes. If one fails, [`take_back`] reverts the earlier ones.
pub(super) fn make(actuator: &mut Actuator, steps: &[Step]) -> Result<(), String> {
    for step in steps {
        let outcome = match step {
            Step::Affinity(thread, pcpus) => actuator.set_affinity(thread, pcpus),
            Step::Nice(thread, nice) => actuator.set_nice(thread, *nice),
            Step::NoQuota(cgroup) => actuator.set_quota(cgroup, None).map(|()| Outcome::Done),
            Step::Weight(cgroup, weight) => {
                let set = actuator.set_weight(cgroup, *weight);
                set.map(|_| Outcome::Done)
            }
        };
        match outcome.map_err(|error| error.to_string())? {
            Outcome::Done => {}
            Outcome::Gone => return Err("a thread ended meanwhile".to_owned()),
        }
        // A cpuset may allow fewer pCPUs than requested.
        if let Step::Affinity(thread, pcpus) = step {
            let now = affinity(thread.tid).map_err(|error| error.to_string())?;
            if now != *pcpus {
                return Err(format!(
                    "{thread} may run on pCPUs {now} only, not on all of {pcpus}: its cpuset bounds it"
                ));
            }
        }
    }
    Ok(())
}

/// Reverts these changes in reverse order. Failures stay in the journal.
pub(super) fn take_back(
    actuator: &mut Actuator,
    steps: &[Step],
) -> Result<RestoreReport, ActuatorError> {
    let mut report = RestoreReport::default();
    for step in steps.iter().rev() {
        report.add(match step.target() {
            Target::Thread(thread) => actuator.release_thread(&thread)?,
            Target::Knob(cgroup, knob) => actuator.release_knob(&cgroup, knob)?,
        });
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tandem_linux::cgroup;
    use tandem_model::VcpuId;

    use crate::fixtures::{thread, vm};

    use super::*;

    /// A host with the v1 cpu controller and these threads: process, TID, name, cgroup.
    fn host(threads: &[(u32, u32, &str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let cgroups = root.join("sys/fs/cgroup/cpu");
        let write = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(&root.join("proc/mounts"), "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n");
        for (pid, tid, name, cgroup) in threads {
            let process = root.join(format!("proc/{pid}"));
            let task = process.join(format!("task/{tid}"));
            let zeros = "0 ".repeat(11);
            let stat = format!("{tid} ({name}) S 1 1 1 0 -1 {zeros}1 0 1 0 0\n");
            for folder in [&process, &task] {
                write(&folder.join("stat"), &stat);
                write(&folder.join("comm"), &format!("{name}\n"));
                write(&folder.join("cgroup"), &format!("2:cpu:{cgroup}\n"));
            }
            let path = CgroupPath((*cgroup).to_owned());
            for above in path.ancestors() {
                let folder = cgroups.join(above.0.trim_start_matches('/'));
                if !folder.join("cgroup.procs").exists() {
                    write(&folder.join("cgroup.procs"), "");
                }
            }
            let folder = cgroups.join(cgroup.trim_start_matches('/'));
            write(&folder.join("cgroup.procs"), &format!("{pid}\n"));
            write(&folder.join("cpu.shares"), "1024\n");
        }
        dir
    }

    /// VMs 1 and 2, each with one vCPU in a cgroup of its own below /vms, and these further threads.
    fn two(more: &[(u32, u32, &str, &str)]) -> tempfile::TempDir {
        let vms = [
            (100, 100, "qemu", "/vms/a"),
            (100, 101, "CPU 0/KVM", "/vms/a"),
            (200, 200, "qemu", "/vms/b"),
            (200, 201, "CPU 0/KVM", "/vms/b"),
        ];
        host(&[&vms, more].concat())
    }

    fn steps(
        dir: &tempfile::TempDir,
        selected: &[u64],
        yes: bool,
        change: Change,
    ) -> Result<Vec<Step>, String> {
        let vms = [vm(1, "a", 1), vm(2, "b", 1)];
        of_vms(dir, &vms, 0, (selected, yes), change)
    }

    /// Process 300 existed for the whole measurement.
    fn of_vms(
        dir: &tempfile::TempDir,
        vms: &[Vm],
        unreadable: usize,
        (selected, yes): (&[u64], bool),
        change: Change,
    ) -> Result<Vec<Step>, String> {
        let procfs = ProcFs::at(dir.path());
        let controller = cgroup::open(&procfs).unwrap();
        let ground = Ground {
            procfs: &procfs,
            controller: &*controller,
            vms,
            unreadable,
            processes: &BTreeMap::from([(300, thread(300, 300))]),
            selected: &selected.iter().map(|id| VmId(*id)).collect(),
            yes,
        };
        ground.steps(VmId(1), &[change])
    }

    fn path(text: &str) -> CgroupPath {
        CgroupPath(text.to_owned())
    }

    #[test]
    fn unnamed_vm_is_not_changed() {
        let dir = two(&[]);
        let lift = |cgroup: &str, selected: &[u64], yes| {
            let cgroup = path(cgroup);
            steps(&dir, selected, yes, Change::NoQuota { cgroup })
        };
        assert_eq!(lift("/vms/a", &[1], false), Ok(vec![Step::NoQuota(path("/vms/a"))]));
        let refused = lift("/vms", &[1], true).unwrap_err();
        assert!(refused.contains("/vms also holds b"), "{refused}");
        let refused = lift("/vms", &[1, 2], false).unwrap_err();
        assert!(refused.contains("--yes"), "{refused}");
        assert!(lift("/vms", &[1, 2], true).is_ok());
    }

    #[test]
    fn host_settings_need_yes() {
        let dir = two(&[(300, 300, "dd", "/"), (300, 301, "dd", "/")]);
        let calm = |yes, name: &str| {
            let change = Change::ProcessNice { pid: 300, name: name.to_owned(), nice: Nice::MOST };
            steps(&dir, &[1], yes, change)
        };
        assert!(calm(false, "dd").unwrap_err().contains("--yes"));
        let tids: Vec<Target> = calm(true, "dd").unwrap().iter().map(Step::target).collect();
        let both = [300, 301].map(|tid| Target::Thread(thread(300, tid)));
        assert_eq!(tids, both, "all of its threads");
        let other = calm(true, "cc1").unwrap_err();
        assert!(other.contains("have ended"), "the PID was reused: {other}");
        // The same name, but started later.
        let stat = dir.path().join("proc/300/task/300/stat");
        let later = fs::read_to_string(&stat).unwrap().replace(" 1 0 0\n", " 2 0 0\n");
        fs::write(&stat, later).unwrap();
        let refused = calm(true, "dd").unwrap_err();
        assert!(refused.contains("may have been reused"), "{refused}");
        let weight = Change::Weight { cgroup: path("/vms/b"), weight: 102 };
        let refused = steps(&dir, &[1], true, weight).unwrap_err();
        assert!(refused.contains("also holds b"), "{refused}");
    }

    #[test]
    fn vmm_is_not_a_host_process() {
        let dir = two(&[(300, 300, "dd", "/")]);
        let calm = |vms: &[Vm]| {
            let change = Change::ProcessNice { pid: 300, name: "dd".to_owned(), nice: Nice::MOST };
            of_vms(&dir, vms, 0, (&[1], true), change)
        };
        let named = [vm(1, "a", 1), vm(3, "c", 1)];
        let refused = calm(&named).unwrap_err();
        assert!(refused.contains("runs c"), "{refused}");
        assert!(calm(&named[..1]).is_ok());
        let fds = dir.path().join("proc/300/fd");
        fs::create_dir_all(&fds).unwrap();
        std::os::unix::fs::symlink("anon_inode:kvm-vcpu:0", fds.join("7")).unwrap();
        let refused = calm(&named[..1]).unwrap_err();
        assert!(refused.contains("holds vCPUs of a VM"), "{refused}");
    }

    #[test]
    fn unreadable_cgroup_is_refused() {
        let dir = two(&[]);
        let (vms, cgroup) = ([vm(1, "a", 1), vm(2, "b", 1)], path("/vms/a"));
        let lift = |unreadable| {
            let change = Change::NoQuota { cgroup: cgroup.clone() };
            of_vms(&dir, &vms, unreadable, (&[1], true), change)
        };
        assert!(lift(0).is_ok());
        let refused = lift(1).unwrap_err();
        assert!(refused.contains("cannot be inspected"), "{refused}");
        let of_b = dir.path().join("proc/200/task/201/cgroup");
        fs::write(&of_b, "nonsense\n").unwrap();
        let refused = lift(0).unwrap_err();
        assert!(refused.contains("the cgroup of b cannot be read"), "{refused}");
        let raise = steps(&dir, &[1], false, Change::VmWeight { percent: 150 });
        assert!(raise.unwrap_err().contains("the cgroup of b cannot be read"));
        // A VM that has ended holds no cgroup.
        fs::remove_dir_all(dir.path().join("proc/200")).unwrap();
        assert!(lift(0).is_ok());
    }

    #[test]
    fn vcpu_bound_by_cpuset_is_refused() {
        let dir = two(&[]);
        let root = dir.path();
        let mounts = fs::read_to_string(root.join("proc/mounts")).unwrap();
        let mounts = mounts + "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n";
        fs::write(root.join("proc/mounts"), mounts).unwrap();
        let place = "2:cpu:/vms/a\n3:cpuset:/vms/a/vcpu0\n";
        fs::write(root.join("proc/100/task/101/cgroup"), place).unwrap();
        let cpuset = root.join("sys/fs/cgroup/cpuset/vms/a/vcpu0");
        fs::create_dir_all(&cpuset).unwrap();
        let send = |pcpus: &str| {
            let change = Change::Vcpu { vcpu: VcpuId(0), pcpus: pcpus.parse().unwrap() };
            steps(&dir, &[1], false, change)
        };
        fs::write(cpuset.join("cpuset.effective_cpus"), "0-1\n").unwrap();
        assert!(send("0-1").is_ok());
        fs::write(cpuset.join("cpuset.effective_cpus"), "0\n").unwrap();
        let refused = send("0-1").unwrap_err();
        assert!(
            refused.contains("holds it to pCPUs 0") && refused.contains("vcpupin"),
            "{refused}"
        );
    }

    #[test]
    fn named_threads_exclude_vcpus() {
        let dir = two(&[(100, 102, "CPU 0/KVM", "/vms/a"), (100, 103, "worker", "/vms/a")]);
        let change =
            |name: &str| Change::ThreadsTo { name: name.to_owned(), pcpus: "1".parse().unwrap() };
        let of = |name: &str| {
            let steps = steps(&dir, &[1], false, change(name)).unwrap();
            steps.iter().map(Step::target).collect::<Vec<_>>()
        };
        let refused = steps(&dir, &[1], false, change("CPU 0/KVM")).unwrap_err();
        assert!(refused.contains("may be vCPUs"), "plugged in meanwhile: {refused}");
        let mut growing = vm(1, "a", 1);
        growing.unidentified = 1;
        let refused = of_vms(&dir, &[growing], 0, (&[1], false), change("worker"));
        assert!(refused.unwrap_err().contains("no known thread"));
        assert_eq!(of("worker"), [Target::Thread(thread(100, 103))]);
        assert!(steps(&dir, &[1], false, change("nobody")).is_err());
    }

    #[test]
    fn vm_weight_is_that_of_own_cgroup() {
        let raised =
            |dir: &tempfile::TempDir| steps(dir, &[1], false, Change::VmWeight { percent: 150 });
        let own = raised(&two(&[]));
        assert_eq!(own, Ok(vec![Step::Weight(path("/vms/a"), Weight::constant(1536.0))]));
        let shared = host(&[
            (100, 100, "qemu", "/vms"),
            (100, 101, "CPU 0/KVM", "/vms"),
            (200, 200, "qemu", "/vms"),
            (200, 201, "CPU 0/KVM", "/vms"),
        ]);
        let refused = raised(&shared).unwrap_err();
        assert!(refused.contains("no cgroup of its own"), "{refused}");
    }

    #[test]
    fn vcpu_moves_to_pcpus_of_remedy() {
        let dir = two(&[]);
        let pcpus: PcpuSet = "0-1".parse().unwrap();
        let send = |vcpu| Change::Vcpu { vcpu: VcpuId(vcpu), pcpus: pcpus.clone() };
        let step = Step::Affinity(thread(100, 101), pcpus.clone());
        assert_eq!(steps(&dir, &[1], false, send(0)), Ok(vec![step]));
        assert!(steps(&dir, &[1], false, send(7)).is_err());
    }
}
