//! The source without BPF, mostly usable without root: kernel statistics, read once per thread and interval.
//!
//! | state | from |
//! |---|---|
//! | RUN, POLL, VMM together | `schedstat`: time on a pCPU |
//! | RUN against VMM | guest time (field 43 of `stat`), if the kernel counts it for the VM |
//! | POLL | KVM statistics of each vCPU ([`crate::poll`]): needs root, and a VMM that holds them open |
//! | RDY and LIM together | `schedstat`: time runnable without running |
//! | LIM | throttled time of the vCPU's cgroups |
//! | CSTP | not measured: requires IPIs and wake-ups |
//! | HALT | the rest |
//!
//! Wake-ups are voluntary switches in `status`, one more file for each active vCPU; they are read on request only
//! ([`Source::count_wakeups`]).
//!
//! Limits of the figures:
//! - The kernel counts a wait when it ends. A vCPU that was runnable at both ends of an interval, and neither ran nor ended a
//!   wait in it, waited for all of it. This wait counts at once, and is not counted again when it ends.
//!   A wait that begins in the interval and does not end is unknown. It counts in the interval in which it ends, at most for that
//!   interval's length.
//! - A VM did not run if the CPU clock of its process stood still. Whether its vCPUs wait is checked every fourth interval, and every
//!   interval once one does. So up to four intervals of a VM that never gets a pCPU count as sleep.
//! - For a vCPU that ran and waited less than a thousandth of the interval, only `schedstat` is read, except in every fourth interval.
//!   Such small amounts of POLL and guest time, and of run time of a VM's other threads, count later.
//! - vCPUs are read one after the other, so each has its own wall time.
//! - On pCPUs without a clock tick (nohz_full), the statistics of a vCPU that runs alone advance once a second. Short intervals may
//!   show it as waiting.
//! - Most kernels sample guest time by clock ticks: over a second, the error of VMM is about 1 % of the time.
//! - Edges are estimated, see `charge.rs`.
//!
//! Files of vCPUs in `/proc` stay open (by [`Sampler`]), and a process whose CPU clock stood still is not read.

mod account;
mod charge;
mod places;
mod quota;
mod round;
mod spread;
mod tasks;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rustix::time::{ClockId, clock_gettime};
use tandem_linux::cgroup;
use tandem_linux::cgroup::CpuController;
use tandem_linux::procfs::{ProcFs, read_text};
use tandem_linux::sampler::{SampleError, Sampler, VcpuSample};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::states::interval::{Interval, Missing, SourceName};
use tandem_model::{Nanos, PcpuId, VcpuId, VmId};

use crate::poll::{NoPoll, Polls};
use crate::source::{ObserveError, Source, WatchedVcpu, WatchedVm};

use account::{Account, Before};
use places::Places;
use quota::{Quotas, Wait};
use round::{NoGuest, Round, VmRound};
use tasks::Tasks;
pub(crate) use tasks::{kernel_name, vhost_of};

/// Number of intervals after which the vCPUs of a VM that stood still are checked for waits.
const RELOOK: u64 = 4;

/// Reciprocal of the part of an interval below which a vCPU's, or a VM's other threads', activity is read later.
const LITTLE: u64 = 1_000;

/// Returns the current time.
type Clock = Box<dyn Fn() -> Nanos + Send>;

/// Number of intervals after which the affinity of a sleeping vCPU is read again; a multiple of [`RELOOK`].
const REREAD_ALLOWED: u64 = 8 * RELOOK;

/// Accounts of a VM's vCPUs, and the reasons for missing POLL and VMM.
type VmRead = (Vec<(VcpuId, Account)>, Option<NoPoll>, Option<NoGuest>);

/// A vCPU with its current and its previous reading.
type VcpuRead = (WatchedVcpu, Before, Option<Before>);

/// Run time of a process and its vCPUs so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Listed {
    process: Nanos,
    vcpus: Nanos,
    which: Vec<Tid>,
}

/// Reads `/proc`, CPU clocks, cgroups and KVM statistics.
pub struct Plain {
    procfs: ProcFs,
    sampler: Sampler,
    controller: Option<Box<dyn CpuController>>,
    /// The error if there is none.
    no_controller: String,
    polls: Polls,
    quotas: Quotas,
    tasks: Tasks,
    vcpus: HashMap<ThreadRef, Before>,
    /// The other threads of VMs' processes, with their run and wait times so far.
    threads: BTreeMap<(Pid, Tid), (ThreadRef, VcpuSample)>,
    /// Run times of VMs' processes and their vCPUs when the other threads were last read.
    listed: BTreeMap<Pid, Listed>,
    places: Places,
    /// Whether wake-ups are requested.
    counts_wakeups: bool,
    rounds: u64,
    idle: Option<BTreeMap<PcpuId, Nanos>>,
    clock: Clock,
    last: Nanos,
}

impl Source for Plain {
    fn name(&self) -> SourceName {
        SourceName::Plain
    }

    fn count_wakeups(&mut self) {
        self.counts_wakeups = true;
    }

    fn begin(&mut self, vms: &[WatchedVm]) -> Result<(), ObserveError> {
        self.vcpus.clear();
        self.threads.clear();
        self.listed.clear();
        self.interval(vms).map(drop)
    }

    fn missing(&self) -> Vec<Missing> {
        round::missing_always(self.polls.never(), &self.no_controller)
    }

    /// Reads everything once; the differences from the last reading are the interval.
    fn interval(&mut self, vms: &[WatchedVm]) -> Result<Interval, ObserveError> {
        let now = (self.clock)();
        let start = std::mem::replace(&mut self.last, now);
        self.rounds += 1;
        self.sampler.begin_round();
        self.places.begin_round();
        let mut round = Round::new(start, now.saturating_sub(start));
        for vm in vms {
            self.read_vm(vm, &mut round)?;
        }
        self.read_other_threads(vms, &mut round);
        self.limit(&mut round);
        self.read_tasks(vms, &mut round)?;
        self.read_idle(&mut round);
        self.forget(vms, &round);
        Ok(round.finish(&self.no_controller))
    }
}

/// Whether a vCPU that slept at the previous reading did next to nothing since.
fn did_little(before: &Before, now: &VcpuSample, at: Nanos) -> bool {
    let ran = now.ran.saturating_sub(before.sample.ran);
    let waited = now.waited.saturating_sub(before.sample.waited);
    let wall = at.saturating_sub(before.at);
    !before.runnable && (ran + waited).0.saturating_mul(LITTLE) < wall.0
}

/// Returns the number of times that a thread went to sleep voluntarily, which equals its wake-ups, past or pending.
fn voluntary_switches(procfs: &ProcFs, thread: &ThreadRef) -> Option<u64> {
    let status = read_text(&procfs.task(thread.pid, thread.tid).join("status")).ok()?;
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count?.trim().parse().ok()
}

/// Returns CLOCK_MONOTONIC.
fn monotonic() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

impl Plain {
    /// Creates the source for a tree of `/proc` without reading it. Without a cpu controller, LIM is not measured.
    pub fn new(procfs: ProcFs) -> Plain {
        let (controller, no_controller) = match cgroup::open(&procfs) {
            Ok(controller) => (Some(controller), String::new()),
            Err(error) => (None, error.to_string()),
        };
        Plain {
            sampler: Sampler::new(procfs.clone()),
            controller,
            no_controller,
            polls: Polls::new(),
            quotas: Quotas::default(),
            tasks: Tasks::new(procfs.clone()),
            vcpus: HashMap::new(),
            threads: BTreeMap::new(),
            listed: BTreeMap::new(),
            places: Places::new(procfs.clone()),
            counts_wakeups: false,
            rounds: 0,
            idle: None,
            clock: Box::new(monotonic),
            last: Nanos::ZERO,
            procfs,
        }
    }

    fn read_vm(&mut self, vm: &WatchedVm, round: &mut Round) -> Result<(), ObserveError> {
        let (vcpus, no_poll, no_guest) = if self.stood_still(vm) {
            self.leave_asleep(vm, round)
        } else {
            self.read_awake(vm, round)?
        };
        if !vcpus.is_empty() {
            round.no_poll.extend(no_poll);
            round.no_guest.extend(no_guest);
            round.vms.push(VmRound {
                vm: vm.vm,
                vcpus,
                threads: BTreeMap::new(),
                other_waits: Vec::new(),
            });
        }
        Ok(())
    }

    /// Whether the vCPUs of a VM are unchanged: its process's clock stood still, and none of them waits.
    fn stood_still(&mut self, vm: &WatchedVm) -> bool {
        let sleeps = |vcpu: &WatchedVcpu| {
            let before = self.vcpus.get(&vcpu.thread);
            before.is_some_and(|before| !before.runnable)
        };
        self.sampler.stood_still(vm.process.pid)
            && !self.is_due(vm, RELOOK)
            && vm.vcpus.iter().all(sleeps)
    }

    /// Accounts a VM that stood still as asleep.
    fn leave_asleep(&mut self, vm: &WatchedVm, round: &mut Round) -> VmRead {
        let at = (self.clock)();
        let known = vm.vcpus.iter().map(|vcpu| &vcpu.thread);
        let no_guest = NoGuest::of(known.filter_map(|thread| self.vcpus.get(thread)));
        let controller = self.controller.as_deref();
        let mut vcpus = Vec::with_capacity(vm.vcpus.len());
        for vcpu in &vm.vcpus {
            let Some(before) = self.vcpus.get_mut(&vcpu.thread) else {
                continue;
            };
            round.threads.insert(vcpu.thread);
            let mut account = Account::asleep(before, at, no_guest.is_none());
            account.cgroup = self.places.cgroup_as_was(controller, &vcpu.thread);
            round.cgroup(account.cgroup.as_ref());
            vcpus.push((vcpu.vcpu, account));
        }
        (vcpus, self.polls.why_not(&vm.process), no_guest)
    }

    /// Reads a VM that may have run or may wait.
    fn read_awake(&mut self, vm: &WatchedVm, round: &mut Round) -> Result<VmRead, ObserveError> {
        let (read, no_poll) = self.read_vcpus(vm)?;
        let no_guest = NoGuest::of(read.iter().map(|(_, now, _)| now));
        let mut vcpus = Vec::with_capacity(read.len());
        for (vcpu, mut now, before) in read {
            round.threads.insert(vcpu.thread);
            let controller = self.controller.as_deref();
            let cgroup = self.places.cgroup(controller, &vcpu.thread);
            round.cgroup(cgroup.as_ref());
            if let Some(before) = before {
                let mut account = Account::new(&before, &mut now, no_guest.is_none());
                account.cgroup = cgroup;
                vcpus.push((vcpu.vcpu, account));
            }
            self.vcpus.insert(vcpu.thread, now);
        }
        Ok((vcpus, no_poll, no_guest))
    }

    /// Whether a VM is to be read in full in this interval. VMs are spread over intervals.
    fn is_due(&self, vm: &WatchedVm, every: u64) -> bool {
        (self.rounds + u64::from(vm.process.pid.0)).is_multiple_of(every)
    }

    /// Reads the statistics of a VM's vCPUs, each with the previous reading, and the reason for missing POLL.
    fn read_vcpus(
        &mut self,
        vm: &WatchedVm,
    ) -> Result<(Vec<VcpuRead>, Option<NoPoll>), ObserveError> {
        let is_due = self.is_due(vm, RELOOK);
        let is_moved_due = self.is_due(vm, REREAD_ALLOWED);
        let polls = self.polls.of(&self.procfs, &vm.process, vm.vcpus.len());
        let (mut polls, mut no_poll) = match polls {
            Ok(polls) => (Some(polls), None),
            Err(why) => (None, Some(why)),
        };
        let mut read = Vec::with_capacity(vm.vcpus.len());
        for (index, vcpu) in vm.vcpus.iter().enumerate() {
            let thread = &vcpu.thread;
            let at = (self.clock)();
            let sample = match self.sampler.sample(thread) {
                Ok(sample) => sample,
                Err(
                    error @ (SampleError::NoSchedstat { .. } | SampleError::TooManyFiles { .. }),
                ) => return Err(error.into()),
                // It exited.
                Err(_) => continue,
            };
            let before = self.vcpus.remove(thread);
            if let Some(before) = &before
                && !is_due
                && did_little(before, &sample, at)
            {
                let now = Before { at, sample, ..before.clone() };
                read.push((*vcpu, now, Some(before.clone())));
                continue;
            }
            let Ok(activity) = self.sampler.read_activity(thread) else {
                continue;
            };
            let before_polled = before.as_ref().and_then(|before| before.polled);
            let has_run = before.as_ref().is_none_or(|before| before.sample != sample);
            let polled = match &mut polls {
                // A vCPU that did not run did not poll.
                Some(_) if !has_run && before_polled.is_some() => before_polled,
                Some(polls) => match polls.polled(index) {
                    Ok(polled) => Some(polled),
                    Err(why) => {
                        no_poll = Some(why);
                        None
                    }
                },
                None => None,
            };
            let runnable = activity.state.is_runnable();
            let slept = before.as_ref().filter(|_| !has_run && !runnable);
            let now = Before {
                at,
                sample,
                guest: activity.guest,
                polled,
                runnable,
                allowed: match slept {
                    Some(before) if !is_moved_due => before.allowed.clone(),
                    _ => self.places.allowed(thread),
                },
                sleeps: match slept.and_then(|before| before.sleeps) {
                    None if self.counts_wakeups => voluntary_switches(&self.procfs, thread),
                    known => known,
                },
                counted: before.as_ref().map_or(Nanos::ZERO, |before| before.counted),
            };
            read.push((*vcpu, now, before));
        }
        if polls.is_some() && no_poll.is_some() {
            self.polls.look_again(&vm.process);
        }
        Ok((read, no_poll))
    }

    /// Divides waits into RDY and LIM.
    fn limit(&mut self, round: &mut Round) {
        let Some(controller) = self.controller.as_deref() else {
            return;
        };
        // This includes new vCPUs, whose next interval begins with this reading.
        let limits = self.quotas.read(controller, round.cgroups.iter().map(|at| &**at));
        let vcpus = round.vms.iter().flat_map(|vm| &vm.vcpus);
        let waits = vcpus.filter_map(|(_, account)| {
            Some(Wait {
                cgroup: account.cgroup.as_deref()?,
                time: account.waited,
                is_over: account.is_over,
            })
        });
        let others = round.vms.iter().flat_map(|vm| &vm.other_waits);
        let others = others.map(|(cgroup, time)| Wait { cgroup, time: *time, is_over: true });
        let waits: Vec<Wait<'_>> = waits.chain(others).collect();
        let mut limited = self.quotas.limited(&waits, &limits).into_iter();
        for (_, account) in round.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
            if account.cgroup.is_some() {
                account.limited = limited.next().flatten();
            }
        }
    }

    /// Reads the threads of VMs' processes that are no vCPUs. If several VMs share a process, they count for the first.
    fn read_other_threads(&mut self, vms: &[WatchedVm], round: &mut Round) {
        let mut by_pid: BTreeMap<Pid, (VmId, Vec<ThreadRef>)> = BTreeMap::new();
        let mut is_vcpu: BTreeSet<Tid> = BTreeSet::new();
        for vm in vms {
            let (_, vcpus) = by_pid.entry(vm.process.pid).or_insert_with(|| (vm.vm, Vec::new()));
            vcpus.extend(vm.vcpus.iter().map(|vcpu| vcpu.thread));
            is_vcpu.extend(vm.vcpus.iter().map(|vcpu| vcpu.thread.tid));
        }
        for (pid, (vm, vcpus)) in by_pid {
            let known = |threads: &BTreeMap<_, (ThreadRef, VcpuSample)>| -> Vec<ThreadRef> {
                let range = threads.range((pid, Tid(0))..=(pid, Tid(u32::MAX)));
                range.map(|(_, (thread, _))| *thread).collect()
            };
            let before = known(&self.threads);
            if !before.is_empty() && self.is_as_listed(pid, &vcpus) {
                round.threads.extend(before);
                continue;
            }
            let ran = self.ran_so_far(pid, &vcpus);
            if !before.is_empty() && self.others_did_little(pid, ran.as_ref(), round.length) {
                round.threads.extend(before);
                continue;
            }
            match ran {
                Some(ran) => self.listed.insert(pid, ran),
                None => self.listed.remove(&pid),
            };
            let folder = self.procfs.process(pid).join("task");
            for (number, _) in tasks::numbered(&folder).unwrap_or_default() {
                let tid = Tid(number);
                if is_vcpu.contains(&tid) {
                    continue;
                }
                let Some((thread, sample)) = self.sample_of(pid, tid) else {
                    continue;
                };
                round.threads.insert(thread);
                let then = match self.threads.insert((pid, tid), (thread, sample)) {
                    Some((same, then)) if same == thread => then,
                    // For a new process, run times before the interval are unknown.
                    None if before.is_empty() => sample,
                    // The thread may have been a vCPU until now.
                    _ => self.vcpus.get(&thread).map_or(VcpuSample::default(), |vcpu| vcpu.sample),
                };
                let ran = sample.ran.saturating_sub(then.ran);
                let waited = sample.waited.saturating_sub(then.waited);
                if waited > Nanos::ZERO
                    && let Some(cgroup) = self.places.cgroup(self.controller.as_deref(), &thread)
                {
                    round.vm_thread_waited(vm, cgroup, waited);
                }
                if ran > Nanos::ZERO {
                    let comm = read_text(&self.procfs.task(pid, tid).join("comm"));
                    let name = comm.unwrap_or_default().trim_end().to_owned();
                    round.vm_thread(vm, name, ran, self.places.allowed(&thread));
                }
            }
        }
    }

    /// Whether a process did not run, and its vCPUs are the same as when its other threads were read.
    fn is_as_listed(&mut self, pid: Pid, vcpus: &[ThreadRef]) -> bool {
        let same = |listed: &Listed| {
            let tids = vcpus.iter().map(|vcpu| vcpu.tid);
            tids.eq(listed.which.iter().copied())
        };
        self.sampler.stood_still(pid) && self.listed.get(&pid).is_some_and(same)
    }

    /// Returns the run times of a process and its vCPUs so far, if the process has a clock.
    fn ran_so_far(&mut self, pid: Pid, vcpus: &[ThreadRef]) -> Option<Listed> {
        let process = self.sampler.process_time(pid)?;
        let mut ran = Listed { process, ..Listed::default() };
        for vcpu in vcpus {
            ran.vcpus += self.vcpus.get(vcpu)?.sample.ran;
            ran.which.push(vcpu.tid);
        }
        Some(ran)
    }

    /// Whether a process ran hardly more than its vCPUs since its other threads were read.
    fn others_did_little(&self, pid: Pid, ran: Option<&Listed>, length: Nanos) -> bool {
        let Some((now, before)) = ran.zip(self.listed.get(&pid)) else {
            return false;
        };
        let process = now.process.saturating_sub(before.process);
        let others = process.saturating_sub(now.vcpus.saturating_sub(before.vcpus));
        now.which == before.which && others.0.saturating_mul(LITTLE) < length.0
    }

    /// Returns the thread of this number, and its statistics. The thread known by that number may have exited.
    fn sample_of(&mut self, pid: Pid, tid: Tid) -> Option<(ThreadRef, VcpuSample)> {
        let known = self.threads.get(&(pid, tid)).map(|(thread, _)| *thread);
        if let Some(thread) = known
            && let Ok(sample) = self.sampler.sample(&thread)
        {
            return Some((thread, sample));
        }
        let thread = ThreadRef::read(&self.procfs, pid, tid).ok()?;
        let sample = self.sampler.sample(&thread).ok()?;
        Some((thread, sample))
    }

    fn read_tasks(&mut self, vms: &[WatchedVm], round: &mut Round) -> Result<(), ObserveError> {
        let vm_of: BTreeMap<Pid, VmId> = vms.iter().map(|vm| (vm.process.pid, vm.vm)).collect();
        let pids = vm_of.keys();
        let clocks = pids.map(|pid| (*pid, self.sampler.process_time(*pid)));
        let mut ran = self.tasks.round(&clocks.collect())?;
        ran.sort_by_key(|task| std::cmp::Reverse(task.time));
        for task in ran {
            let allowed = if task.kernel {
                self.places.allowed(&task.process)
            } else {
                self.places.allowed_process(&task.process, task.time, round.length)
            };
            let vhost = tasks::vhost_of(&task.name).filter(|_| task.kernel);
            match vhost.and_then(|pid| vm_of.get(&pid)) {
                Some(vm) => round.vm_thread(*vm, "vhost".to_owned(), task.time, allowed),
                None => {
                    let cgroup = if task.kernel {
                        None
                    } else {
                        let controller = self.controller.as_deref();
                        let cgroup = self.places.cgroup(controller, &task.process);
                        cgroup.map(|cgroup| cgroup.0.clone())
                    };
                    round.task(task, cgroup, allowed);
                }
            }
        }
        Ok(())
    }

    fn read_idle(&mut self, round: &mut Round) {
        let idle = self.sampler.pcpu_idle().ok();
        let before = std::mem::replace(&mut self.idle, idle);
        let Some(now) = &self.idle else {
            return;
        };
        round.host.pcpus = now.len();
        round.host.idle = before.map(|before| {
            let grown = now.iter().map(|(pcpu, idle)| {
                // A pCPU that came online meanwhile was not idle before.
                idle.saturating_sub(before.get(pcpu).copied().unwrap_or(*idle))
            });
            grown.sum()
        });
    }

    /// Closes the files of threads and processes that exited.
    fn forget(&mut self, vms: &[WatchedVm], round: &Round) {
        let is_there = |thread: &ThreadRef| round.threads.contains(thread);
        self.vcpus.retain(|thread, _| is_there(thread));
        self.threads.retain(|_, (thread, _)| is_there(thread));
        let pids: BTreeSet<Pid> = vms.iter().map(|vm| vm.process.pid).collect();
        self.listed.retain(|pid, _| pids.contains(pid));
        self.sampler.retain(is_there);
        let processes: BTreeSet<ThreadRef> = vms.iter().map(|vm| vm.process).collect();
        self.polls.retain(|process| processes.contains(process));
    }
}

#[cfg(test)]
mod tests;
