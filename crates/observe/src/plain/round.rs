//! The data of one reading, and the interval built from it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use tandem_linux::cgroup::CgroupPath;
use tandem_linux::thread::ThreadRef;
use tandem_model::states::edges::Party;
use tandem_model::states::interval::{
    Column, HostTotals, Interval, Missing, ProcessTime, SourceName, ThreadTime, VcpuInterval,
    VmInterval,
};
use tandem_model::{Nanos, PcpuSet, State, VcpuId, VmId};

use crate::poll::NoPoll;

use super::account::{Account, Before};
use super::charge::{Ran, Waited, charge};
use super::tasks::TaskRan;

/// Maximum number of host processes named in totals.
const TOP_TASKS: usize = 5;

/// The reason for missing CSTP.
const NO_COSTOP: &str = "it takes IPIs and wake-ups, which BPF sees";

/// Run time without any guest time from which the kernel is known not to count guest time, since some clock ticks would have hit the guest.
/// Guest time is in clock ticks of 10 ms, and sampled by ticks on most kernels.
const TELLING: Nanos = Nanos::from_millis(100);

/// The reason for missing guest time of a VM's vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoGuest {
    /// They hardly ran so far, so zero guest time is not conclusive.
    RanTooLittle,
    /// They ran, and no guest time was counted.
    NotCounted,
}

impl NoGuest {
    /// Returns the reason for a VM with these vCPUs; `None` if any of them has guest time: then the kernel counts it for all.
    pub(super) fn of<'a>(vcpus: impl Iterator<Item = &'a Before>) -> Option<NoGuest> {
        let mut ran = Nanos::ZERO;
        for vcpu in vcpus {
            if vcpu.guest > Nanos::ZERO {
                return None;
            }
            ran += vcpu.sample.ran;
        }
        if ran < TELLING { Some(NoGuest::RanTooLittle) } else { Some(NoGuest::NotCounted) }
    }

    fn want(self) -> &'static str {
        match self {
            NoGuest::RanTooLittle => {
                "their vCPUs ran for less than 100 ms so far, too little to tell whether the kernel counts guest time"
            }
            NoGuest::NotCounted => {
                "the kernel counts no guest time for their vCPUs (no KVM, or a KVM that does not tell)"
            }
        }
    }
}

/// A VM in the interval.
#[derive(Debug)]
pub(super) struct VmRound {
    pub(super) vm: VmId,
    pub(super) vcpus: Vec<(VcpuId, Account)>,
    pub(super) threads: BTreeMap<String, Nanos>,
    /// Waits of its other threads, with their cgroups.
    pub(super) other_waits: Vec<(Arc<CgroupPath>, Nanos)>,
}

/// The data of one reading.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) start: Nanos,
    pub(super) length: Nanos,
    pub(super) vms: Vec<VmRound>,
    pub(super) host: HostTotals,
    /// Run times other than vCPUs'.
    pub(super) ran: Vec<Ran>,
    pub(super) no_poll: Vec<NoPoll>,
    /// The reason for each VM without guest time.
    pub(super) no_guest: Vec<NoGuest>,
    /// All threads with open files.
    pub(super) threads: HashSet<ThreadRef>,
    /// Cgroups of vCPUs and of VMs' other threads.
    pub(super) cgroups: BTreeSet<Arc<CgroupPath>>,
}

impl Round {
    pub(super) fn new(start: Nanos, length: Nanos) -> Round {
        Round {
            start,
            length,
            vms: Vec::new(),
            host: HostTotals::default(),
            ran: Vec::new(),
            no_poll: Vec::new(),
            no_guest: Vec::new(),
            threads: HashSet::new(),
            cgroups: BTreeSet::new(),
        }
    }

    /// Adds the cgroup of a thread.
    pub(super) fn cgroup(&mut self, cgroup: Option<&Arc<CgroupPath>>) {
        if let Some(cgroup) = cgroup
            && !self.cgroups.contains(cgroup)
        {
            self.cgroups.insert(Arc::clone(cgroup));
        }
    }

    pub(super) fn vm_thread_waited(&mut self, vm: VmId, cgroup: Arc<CgroupPath>, time: Nanos) {
        self.cgroup(Some(&cgroup));
        if let Some(round) = self.vms.iter_mut().find(|round| round.vm == vm) {
            round.other_waits.push((cgroup, time));
        }
    }

    pub(super) fn vm_thread(&mut self, vm: VmId, name: String, time: Nanos, allowed: PcpuSet) {
        self.host.vm_threads += time;
        if let Some(round) = self.vms.iter_mut().find(|round| round.vm == vm) {
            *round.threads.entry(name.clone()).or_default() += time;
        }
        let party = Party::VmThread { vm, name };
        self.ran.push(Ran { party, time, allowed });
    }

    pub(super) fn task(&mut self, task: TaskRan, cgroup: Option<String>, allowed: PcpuSet) {
        let party = if task.kernel {
            self.host.kernel += task.time;
            Party::KernelThread(task.name)
        } else {
            self.host.tasks += task.time;
            if self.host.top_tasks.len() < TOP_TASKS {
                self.host.top_tasks.push(ProcessTime {
                    name: task.name.clone(),
                    pid: task.process.pid.0,
                    cgroup: cgroup.clone(),
                    time: task.time,
                });
            }
            Party::Process { name: task.name, cgroup }
        };
        self.ran.push(Ran { party, time: task.time, allowed });
    }

    pub(super) fn finish(mut self, no_controller: &str) -> Interval {
        let mut waits = Vec::new();
        let mut vms = Vec::with_capacity(self.vms.len());
        let mut no_limit = 0;
        for vm in self.vms {
            let mut vcpus = Vec::with_capacity(vm.vcpus.len());
            no_limit += usize::from(vm.vcpus.iter().any(|(_, account)| account.limited.is_none()));
            for (vcpu, account) in vm.vcpus {
                let times = account.times();
                self.host.vcpus += account.ran;
                // Most vCPUs of a host sleep.
                if account.ran > Nanos::ZERO {
                    self.ran.push(Ran {
                        party: Party::Vcpu { vm: vm.vm, vcpu },
                        time: account.ran,
                        allowed: account.allowed.clone(),
                    });
                }
                let ready = times.get(State::Ready).unwrap_or_default();
                if ready > Nanos::ZERO {
                    waits.push(Waited {
                        vm: vm.vm,
                        vcpu,
                        time: ready,
                        ran: account.ran,
                        allowed: account.allowed.clone(),
                    });
                }
                vcpus.push(VcpuInterval {
                    vcpu,
                    times,
                    ran: account.ran,
                    waited: account.waited,
                    runs: account.runs,
                    wakeups: account.wakeups,
                    runnable: account.runnable,
                    allowed: account.allowed,
                });
            }
            let threads = vm.threads.into_iter();
            let mut threads: Vec<_> =
                threads.map(|(name, time)| ThreadTime { name, time }).collect();
            threads.sort_by_key(|thread| std::cmp::Reverse(thread.time));
            vms.push(VmInterval { vm: vm.vm, vcpus, threads });
        }
        Interval {
            source: SourceName::Plain,
            start: self.start,
            length: self.length,
            missing: missing(vms.len(), &self.no_poll, &self.no_guest, no_limit, no_controller),
            edges: charge(&waits, &self.ran, self.length),
            vms,
            host: self.host,
            programs: None,
        }
    }
}

/// Returns the figures that this source never measures on this host.
pub(super) fn missing_always(no_poll: Option<NoPoll>, no_controller: &str) -> Vec<Missing> {
    let poll = no_poll.map(|why| Missing::of_all(Column::State(State::Poll), why.want()));
    let limited = (!no_controller.is_empty())
        .then(|| Missing::of_all(Column::State(State::Limited), no_controller));
    let costop = Missing::of_all(Column::State(State::Costop), NO_COSTOP);
    poll.into_iter().chain(limited).chain([costop]).collect()
}

/// Returns the unmeasured figures, with the number of VMs without them out of `of`.
fn missing(
    of: usize,
    no_poll: &[NoPoll],
    no_guest: &[NoGuest],
    no_limit: usize,
    no_controller: &str,
) -> Vec<Missing> {
    let mut missing = Vec::new();
    let mut add = |state, vms, want: &str| {
        if vms > 0 {
            let want = want.to_owned();
            missing.push(Missing { what: Column::State(state), vms, of, want });
        }
    };
    for why in NoPoll::ALL {
        let vms = no_poll.iter().filter(|other| **other == why).count();
        add(State::Poll, vms, why.want());
    }
    for why in [NoGuest::RanTooLittle, NoGuest::NotCounted] {
        let vms = no_guest.iter().filter(|other| **other == why).count();
        add(State::Vmm, vms, why.want());
    }
    add(
        State::Limited,
        no_limit,
        match no_controller {
            "" => "the vCPUs' cgroups cannot be read",
            error => error,
        },
    );
    add(State::Costop, of, NO_COSTOP);
    missing
}
