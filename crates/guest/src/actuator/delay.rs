//! Changes of delayed scheduling: timer slack and scheduling policy of threads, made and reverted.
//!
//! New threads inherit both, and a killed agent may not have journaled them.
//! [`Actuator::revert_heirs`] finds them among three groups of processes:
//! processes in the journal, their descendants, and processes in cgroups of the agent or the workload.
//! It reverts exactly the values that the agent set.

use tandem_linux::affinity::Threads;
use tandem_linux::journal::Entry;
use tandem_linux::restore::{RestoreReport, Undone};
use tandem_linux::sched_attr;
use tandem_linux::sched_attr::FairScheduling;
use tandem_linux::thread::{Pid, ThreadRef, ThreadStat, Tid};
use tandem_model::Nanos;

use super::{Actuator, ActuatorError, foreign, threads_of};
use crate::delaying;
use crate::journal::Change;

impl Actuator {
    /// Sets a thread's timer slack and journals `original` for the revert.
    /// A value that another process set meanwhile becomes the new original.
    pub fn set_timer_slack(
        &mut self,
        thread: ThreadRef,
        slack: Nanos,
        original: Nanos,
    ) -> Result<(), ActuatorError> {
        let tid = thread.tid;
        let now = delaying::timer_slack(&self.procfs, tid)
            .map_err(|source| ActuatorError::TimerSlackUnread { tid, source })?;
        let record = |original| Change::TimerSlack { thread, original };
        let is_new = !self.journal.knows(&record(now).key());
        if now == slack && (!is_new || now == original) {
            return Ok(());
        }
        // A thread created by one with our value has inherited it, so `now` is not its original.
        let key = self.before(record(if is_new { original } else { now }), record(slack))?;
        let written = delaying::set_timer_slack(&self.procfs, thread.tid, slack);
        if written.is_err() {
            self.journal.write_failed(&key);
        }
        written.map_err(|source| ActuatorError::TimerSlack { thread, source })
    }

    /// Sets the scheduling policy and slice of a fair-class thread and journals `original` for the revert.
    pub fn set_scheduling(
        &mut self,
        thread: ThreadRef,
        scheduling: FairScheduling,
        original: FairScheduling,
    ) -> Result<(), ActuatorError> {
        let Some(now) = sched_attr::fair_scheduling(thread.tid)? else {
            return Ok(());
        };
        let record = |original| Change::Scheduling { thread, original };
        let is_new = !self.journal.knows(&record(now).key());
        if now == scheduling && (!is_new || now == original) {
            return Ok(());
        }
        let key = self.before(record(if is_new { original } else { now }), record(scheduling))?;
        let set = sched_attr::set_fair_scheduling(thread.tid, scheduling);
        if set.is_err() {
            self.journal.write_failed(&key);
        }
        Ok(set?)
    }

    /// Reverts threads that a killed agent did not see.
    /// They inherited the values of their process or cgroup, and get its originals.
    pub(super) fn revert_heirs(&self, report: &mut RestoreReport) {
        let records = self.journal.records();
        let slacks = records.clone().filter_map(|record| match record {
            Change::TimerSlack { thread, original } => Some((thread, *original)),
            _ => None,
        });
        let slacks: Vec<(&ThreadRef, Nanos)> = slacks.collect();
        let schedulings = records.filter_map(|record| match record {
            Change::Scheduling { thread, original } => Some((thread, *original)),
            _ => None,
        });
        let schedulings: Vec<(&ThreadRef, FairScheduling)> = schedulings.collect();
        let threads = || {
            let slacks = slacks.iter().map(|(thread, _)| *thread);
            slacks.chain(schedulings.iter().map(|(thread, _)| *thread))
        };
        // The TID of an exited thread may have been reused.
        let known = |tid: Tid| {
            let mut same = threads().filter(|thread| thread.tid == tid);
            same.any(|thread| self.threads.is_alive(thread))
        };
        for pid in self.heirs(threads()) {
            let maker =
                delaying::maker(&self.procfs, pid, |pid| threads().any(|thread| thread.pid == pid));
            for tid in threads_of(&self.procfs, pid) {
                if known(tid) {
                    continue;
                }
                let of = |thread: &ThreadRef| Some(thread.pid) == maker;
                let slack = slacks.iter().find(|(t, _)| of(t)).or(slacks.first());
                if let (Some(&(thread, original)), Ok(now)) =
                    (slack, delaying::timer_slack(&self.procfs, tid))
                    && self.was_set(&Change::TimerSlack { thread: *thread, original: now })
                    && delaying::set_timer_slack(&self.procfs, tid, original).is_ok()
                {
                    report.put_back += 1;
                }
                let scheduling = schedulings.iter().find(|(t, _)| of(t));
                if let (Some(&(thread, original)), Ok(Some(now))) =
                    (scheduling.or(schedulings.first()), sched_attr::fair_scheduling(tid))
                    && self.was_set(&Change::Scheduling { thread: *thread, original: now })
                    && sched_attr::set_fair_scheduling(tid, original).is_ok()
                {
                    report.put_back += 1;
                }
            }
        }
    }

    /// Returns true if the agent set this value and it differs from the original.
    fn was_set(&self, now: &Change) -> bool {
        let is_original = self.journal.record(&now.key()) == Some(now);
        !is_original && self.journal.written(&now.key()).contains(now)
    }

    /// Returns the live processes of these threads, their descendants, and those in cgroups of the agent or the workload.
    fn heirs<'t>(&self, threads: impl Iterator<Item = &'t ThreadRef>) -> Vec<Pid> {
        let mut threads = threads.peekable();
        if threads.peek().is_none() {
            return Vec::new();
        }
        // A process that started after the journaled thread has reused its PID.
        let is_same = |thread: &&ThreadRef| {
            let leader = ThreadStat::read(&self.procfs.process(thread.pid));
            leader.is_ok_and(|leader| leader.start <= thread.start)
        };
        let mut pids: Vec<Pid> = threads.filter(is_same).map(|thread| thread.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids = self.cpusets.families(&pids).unwrap_or(pids);
        let workload = self.workload.iter();
        for cgroup in workload {
            pids.extend(self.cpusets.processes_within(cgroup).unwrap_or_default());
        }
        for record in self.journal.records() {
            if let Change::Created { cgroup, .. } | Change::Vcpus { cgroup, .. } = record {
                pids.extend(self.cpusets.processes_within(cgroup).unwrap_or_default());
            }
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Reverts a change of delayed scheduling; ignores other changes.
    pub(super) fn undo_delay(&self, change: &Change) -> Result<Undone, String> {
        match change {
            Change::TimerSlack { thread, .. } | Change::Scheduling { thread, .. }
                if !self.threads.is_alive(thread) =>
            {
                Ok(Undone::Nothing)
            }
            Change::TimerSlack { thread, original } => {
                let now = match delaying::timer_slack(&self.procfs, thread.tid) {
                    Ok(now) => now,
                    Err(error) if tandem_linux::procfs::is_gone(&error) => {
                        return Ok(Undone::Nothing);
                    }
                    Err(error) => {
                        return Err(format!("cannot read the timer slack of {thread}: {error}"));
                    }
                };
                let found = Change::TimerSlack { thread: *thread, original: now };
                self.undo_one(now == *original, &found, || {
                    delaying::set_timer_slack(&self.procfs, thread.tid, *original)
                        .map_err(|error| error.to_string())
                })
            }
            Change::Scheduling { thread, original } => {
                let now = match sched_attr::fair_scheduling(thread.tid) {
                    Ok(Some(now)) => now,
                    // The thread left the fair class, for example for a real-time policy.
                    Ok(None) => return Ok(foreign(&format!("the scheduling policy of {thread}"))),
                    Err(error) if error.is_gone() => return Ok(Undone::Nothing),
                    Err(error) => return Err(error.to_string()),
                };
                let found = Change::Scheduling { thread: *thread, original: now };
                self.undo_one(now == *original, &found, || {
                    sched_attr::set_fair_scheduling(thread.tid, *original)
                        .map_err(|error| error.to_string())
                })
            }
            _ => Ok(Undone::Nothing),
        }
    }

    /// Reverts a value if the agent set it.
    fn undo_one(
        &self,
        is_original: bool,
        found: &Change,
        revert: impl FnOnce() -> Result<(), String>,
    ) -> Result<Undone, String> {
        match () {
            () if is_original => Ok(Undone::Nothing),
            () if !self.journal.is_ours(found) => {
                Ok(foreign(&format!("the current value ({found})")))
            }
            () => revert().map(|()| Undone::PutBack),
        }
    }
}
