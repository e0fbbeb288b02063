//! Samples vCPUs and workload per period, mostly from files that every kernel has.
//!
//! | figure | source | resolution |
//! |---|---|---|
//! | idle time, idle periods of a vCPU | `/sys/devices/system/cpu/cpuN/cpuidle/state*/{time,usage}` | 1 us |
//! | stolen time; idle time without cpuidle | `/proc/stat` | 10 ms |
//! | work of a vCPU | the rest of the period | |
//! | context switches | `/proc/stat` `ctxt`, less those to the idle thread | exact |
//! | time in user mode | the cgroup's `cpu.stat` (v2), else `/proc/stat` | sampled at ticks |
//! | CPU time, turns on a vCPU, waiting for one | `/proc/TID/schedstat` of up to [`MAX_THREADS`] threads, [`MAX_THREADS_DELAYED`] with delayed scheduling | exact |
//! | voluntary sleeps, with delayed scheduling | `/proc/TID/status` of these threads | exact |
//! | calls of read and write | `/proc/PID/io` of up to [`MAX_PROCESSES`] processes | exact |
//! | messages on sockets, during trials of delayed scheduling | a counter of the tracepoint `sock_send_length` on the active vCPUs | exact, of all processes there |
//!
//! It uses no other tracepoint: a BPF program at sched_switch costs time in each switch of the observed program.
//! A program that passes a token between threads switches 200,000 times per second.
//! With these files the agent takes less than 1 % of a vCPU for any program.
//!
//! If the workload is not the only one in the VM, work and switches are those of the whole VM, for which its vCPUs must suffice.
//! The benefit of a change is judged by the workload's own calls and user time.
//!
//! A vCPU that the kernel's haltpoll keeps awake first enters its polling state, then halts; this counts as one idle period.
//!
//! Sources: drivers/cpuidle/sysfs.c, fs/proc/stat.c, kernel/sched/stats.h.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tandem_linux::ProcFs;
use tandem_linux::procfs::read_text;
use tandem_linux::thread::{Pid, Tid};
use tandem_model::units::PcpuId;
use tandem_model::{Nanos, PcpuSet};
use tandem_policy::gleaner::{Observation, ThreadPeriod, VcpuPeriod};

use crate::counters::{CLOCK_TICK, CounterError, Idle, IdleStates, Stat};
use crate::sends::Sends;

/// Maximum number of sampled threads.
pub const MAX_THREADS: usize = 8;

/// Maximum number of sampled threads with delayed scheduling.
/// Their sleeps, and the longest wait among them, judge it.
pub const MAX_THREADS_DELAYED: usize = 64;

/// Maximum number of processes whose calls are read.
pub const MAX_PROCESSES: usize = 8;

/// Counters of the workload's threads and processes since their start.
#[derive(Clone, Debug, Default)]
struct WorkloadCounters {
    ran: BTreeMap<Tid, u64>,
    turns: BTreeMap<Tid, u64>,
    waited: BTreeMap<Tid, u64>,
    wakes: BTreeMap<Tid, u64>,
    calls: BTreeMap<Pid, u64>,
}

/// Counters of one vCPU since boot.
#[derive(Clone, Copy, Debug)]
struct VcpuCounters {
    idle: Idle,
    stolen: u64,
}

/// All counters at one time.
#[derive(Clone, Debug)]
struct Moment {
    at: Instant,
    vcpus: Vec<VcpuCounters>,
    switches: u64,
    user: u64,
    /// Messages on sockets, if counted.
    sends: Option<u64>,
    workload: WorkloadCounters,
}

/// Sample of one period.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Input of the policy; active vCPUs only, in ascending order.
    pub observed: Observation,
    /// Time that vCPUs polled instead of halting, in total.
    pub polled: Nanos,
}

/// Level of detail about the workload's threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Closeness {
    /// Run and wait times of [`MAX_THREADS`] threads.
    #[default]
    Usual,
    /// With delayed threads: run and wait times and sleeps of [`MAX_THREADS_DELAYED`] threads, which give the wait per wake-up.
    Sleeps,
    /// During trials of delayed scheduling: also messages on sockets.
    Trial,
}

/// Reads a VM's counters once per period.
#[derive(Debug)]
pub struct Sampler {
    procfs: ProcFs,
    vcpus: Vec<(PcpuId, IdleStates)>,
    /// `cpu.stat` with the workload's own CPU time, if available.
    cpu_stat: Option<PathBuf>,
    tick: Nanos,
    last: Option<Moment>,
    closeness: Closeness,
    sends: Option<Sends>,
}

impl Sampler {
    /// Samples these vCPUs, and the workload's CPU time from `cpu_stat` (of a v2 cgroup).
    pub fn new(procfs: &ProcFs, vcpus: &PcpuSet, cpu_stat: Option<PathBuf>) -> Sampler {
        let states = |vcpu: PcpuId| IdleStates::open(procfs, vcpu);
        Sampler {
            vcpus: vcpus.iter().map(|vcpu| (vcpu, states(vcpu))).collect(),
            cpu_stat: cpu_stat.filter(|path| path.exists()),
            procfs: procfs.clone(),
            tick: tick(),
            last: None,
            closeness: Closeness::default(),
            sends: None,
        }
    }

    /// Sets the level of detail, with these vCPUs in use.
    /// Counters of messages are opened once per trial.
    pub fn look(&mut self, closeness: Closeness, active: &PcpuSet) {
        let before = std::mem::replace(&mut self.closeness, closeness);
        if closeness != Closeness::Trial {
            self.sends = None;
        } else if before != Closeness::Trial {
            self.sends = Sends::open(&self.procfs, active.iter()).ok();
        }
    }

    /// Returns the sample since the last call; `None` at the first call.
    pub fn sample(
        &mut self,
        active: &PcpuSet,
        processes: &[Pid],
        threads: &[Tid],
    ) -> Result<Option<Sample>, CounterError> {
        let now = self.moment(processes, threads)?;
        let Some(then) = self.last.replace(now.clone()) else {
            return Ok(None);
        };
        let period = u64::try_from((now.at - then.at).as_nanos()).unwrap_or(u64::MAX);
        let mut sample = Sample::default();
        let observed = &mut sample.observed;
        observed.period = Nanos(period);
        observed.tick = self.tick;
        let mut idle_periods = 0;
        let since = |now: u64, then: u64| now.saturating_sub(then);
        for ((vcpu, _), (now, then)) in self.vcpus.iter().zip(now.vcpus.iter().zip(&then.vcpus)) {
            let idle = since(now.idle.time, then.idle.time).min(period);
            let stolen = since(now.stolen, then.stolen).min(period - idle);
            let polls = since(now.idle.polls, then.idle.polls);
            let halts = since(now.idle.halts, then.idle.halts);
            let periods = polls.max(halts);
            idle_periods += periods;
            sample.polled += Nanos(since(now.idle.polled, then.idle.polled));
            if active.contains(*vcpu) {
                observed.vcpus.push(VcpuPeriod {
                    work: Nanos(period - idle - stolen),
                    idle: Nanos(idle),
                    idle_periods: periods,
                    stolen: Nanos(stolen),
                });
            }
        }
        observed.switches = since(now.switches, then.switches).saturating_sub(idle_periods);
        observed.user = Nanos(since(now.user, then.user));
        let sent = now.sends.zip(then.sends);
        observed.calls = sum_of_increments(&then.workload.calls, &now.workload.calls);
        observed.messages = sent.map_or(0, |(now, then)| since(now, then));
        observed.waiting = Nanos(sum_of_increments(&then.workload.waited, &now.workload.waited));
        observed.wakes = sum_of_increments(&then.workload.wakes, &now.workload.wakes);
        observed.threads = threads_since(&then.workload, &now.workload);
        Ok(Some(sample))
    }

    fn moment(&mut self, processes: &[Pid], threads: &[Tid]) -> Result<Moment, CounterError> {
        let stat = Stat::read(&self.procfs)?;
        let mut vcpus = Vec::with_capacity(self.vcpus.len());
        for (vcpu, states) in &self.vcpus {
            let line = stat.vcpu(*vcpu);
            let idle = states
                .read()
                .unwrap_or(Idle { time: (line[3] + line[4]) * CLOCK_TICK, ..Idle::default() });
            vcpus.push(VcpuCounters { idle, stolen: line[7] * CLOCK_TICK });
        }
        let user = match &self.cpu_stat {
            Some(path) => user_of(path)?,
            None => (stat.all[0] + stat.all[1]) * CLOCK_TICK,
        };
        Ok(Moment {
            at: Instant::now(),
            vcpus,
            switches: stat.switches,
            user,
            sends: self.sends.as_mut().and_then(|sends| sends.count().ok()),
            workload: self.workload(processes, threads),
        })
    }

    /// Reads the workload's counters; skips processes and threads that have exited.
    fn workload(&self, processes: &[Pid], threads: &[Tid]) -> WorkloadCounters {
        let calls = processes.iter().take(MAX_PROCESSES);
        // Each thread has a folder in /proc, which readdir does not list.
        let file = |tid: Tid, name: &str| self.procfs.process(Pid(tid.0)).join(name);
        let most = match self.closeness {
            Closeness::Usual => MAX_THREADS,
            Closeness::Sleeps | Closeness::Trial => MAX_THREADS_DELAYED,
        };
        let threads = || threads.iter().take(most);
        let schedstats: Vec<(Tid, [u64; 3])> = threads()
            .filter_map(|&tid| Some((tid, schedstat_of(&file(tid, "schedstat"))?)))
            .collect();
        let each = |field: usize| {
            let fields = schedstats.iter();
            fields.map(|&(tid, all)| (tid, all[field])).collect()
        };
        WorkloadCounters {
            calls: calls
                .filter_map(|&pid| Some((pid, calls_of(&self.procfs.process(pid))?)))
                .collect(),
            ran: each(0),
            waited: each(1),
            turns: each(2),
            wakes: threads()
                .filter(|_| self.closeness != Closeness::Usual)
                .filter_map(|&tid| Some((tid, sleeps_of(&file(tid, "status"))?)))
                .collect(),
        }
    }
}

/// Returns the activity of threads in both samples whose sleeps are known, in ascending order.
fn threads_since(then: &WorkloadCounters, now: &WorkloadCounters) -> Vec<ThreadPeriod> {
    let since = |tid: Tid, then: &BTreeMap<Tid, u64>, now: &BTreeMap<Tid, u64>| {
        Some(now.get(&tid)?.saturating_sub(*then.get(&tid)?))
    };
    let of = |&tid: &Tid| {
        Some(ThreadPeriod {
            id: u64::from(tid.0),
            wakes: since(tid, &then.wakes, &now.wakes)?,
            turns: since(tid, &then.turns, &now.turns)?,
            ran: Nanos(since(tid, &then.ran, &now.ran)?),
            waited: Nanos(since(tid, &then.waited, &now.waited)?),
        })
    };
    now.wakes.keys().filter_map(of).collect()
}

/// Returns the sum of increments over the keys in both maps.
fn sum_of_increments<K: Ord>(then: &BTreeMap<K, u64>, now: &BTreeMap<K, u64>) -> u64 {
    let both = now.iter().filter_map(|(key, now)| then.get(key).map(|then| (now, then)));
    both.map(|(now, then)| now.saturating_sub(*then)).sum()
}

/// Reads `user_usec` of a v2 cgroup, ns.
fn user_of(path: &Path) -> Result<u64, CounterError> {
    let text = match read_text(path) {
        Ok(text) => text,
        // The cgroup was removed: the workload has ended.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(source) => {
            let path = path.to_owned();
            return Err(CounterError::Read { path, source });
        }
    };
    let line = text.lines().find_map(|line| line.strip_prefix("user_usec "));
    let micros: Option<u64> = line.and_then(|number| number.trim().parse().ok());
    micros.map(|micros| micros * 1000).ok_or_else(|| CounterError::Malformed {
        path: path.to_owned(),
        wanted: "line 'user_usec'".to_owned(),
    })
}

/// Reads `schedstat`: run time, ns; wait for a vCPU, ns; number of turns on a vCPU.
fn schedstat_of(path: &Path) -> Option<[u64; 3]> {
    let text = read_text(path).ok()?;
    let mut fields = text.split_ascii_whitespace().map(str::parse);
    let mut next = || fields.next()?.ok();
    Some([next()?, next()?, next()?])
}

/// Reads `voluntary_ctxt_switches` of `status`, the number of voluntary sleeps.
fn sleeps_of(path: &Path) -> Option<u64> {
    let text = read_text(path).ok()?;
    let mut lines = text.lines();
    let number = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    number.trim().parse().ok()
}

/// Reads the sum of `syscr` and `syscw` of a process.
fn calls_of(folder: &Path) -> Option<u64> {
    let text = read_text(&folder.join("io")).ok()?;
    let of = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some(of("syscr:")? + of("syscw:")?)
}

/// Returns the timer tick at which user time is sampled.
/// The kernel does not report it, but the resolution of its coarse clock, which advances at each tick.
fn tick() -> Nanos {
    let resolution = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    let nanos = u64::try_from(resolution.tv_nsec).unwrap_or(0);
    Nanos(nanos.max(1_000_000))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::counters::tests::STAT;

    fn vm(stat: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/stat"), stat).unwrap();
        root
    }

    fn idle_state(root: &Path, vcpu: u32, state: u32, name: &str, usage: u64, time: u64) {
        let folder = root.join(format!("sys/devices/system/cpu/cpu{vcpu}/cpuidle/state{state}"));
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in
            [("name", name.to_owned()), ("usage", usage.to_string()), ("time", time.to_string())]
        {
            fs::write(folder.join(file), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn sample_is_increment_of_counters() {
        let root = vm(STAT);
        let procfs = ProcFs::at(root.path());
        idle_state(root.path(), 0, 0, "POLL", 5, 100);
        idle_state(root.path(), 0, 1, "haltpoll idle", 7, 1_000);
        let vcpus: PcpuSet = "0,3".parse().unwrap();
        let mut sampler = Sampler::new(&procfs, &vcpus, None);
        assert!(sampler.sample(&vcpus, &[], &[]).unwrap().is_none());
        // vCPU 0 polled three times, and halted after one of them; vCPU 3 has no idle states.
        idle_state(root.path(), 0, 0, "POLL", 8, 160);
        idle_state(root.path(), 0, 1, "haltpoll idle", 8, 1_200);
        let later = STAT.replace("ctxt 900", "ctxt 1000").replace("cpu  10", "cpu  11");
        fs::write(root.path().join("proc/stat"), later).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let sample = sampler.sample(&vcpus, &[], &[]).unwrap().unwrap();
        let [first, second] = sample.observed.vcpus[..] else {
            panic!("two vCPUs: {sample:?}");
        };
        assert_eq!(first.idle_periods, 3);
        assert_eq!(first.idle, Nanos(260_000));
        assert_eq!(sample.polled, Nanos(60_000));
        assert_eq!(second.idle, Nanos::ZERO);
        assert_eq!(second.work, sample.observed.period);
        assert_eq!(sample.observed.switches, 97);
        assert_eq!(sample.observed.user, Nanos(CLOCK_TICK));
        // Only the vCPUs in use are the workload's.
        let one: PcpuSet = "3".parse().unwrap();
        let sample = sampler.sample(&one, &[], &[]).unwrap().unwrap();
        assert_eq!(sample.observed.vcpus.len(), 1);
    }

    #[test]
    fn voluntary_sleeps_are_read() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let text = "Name:\tx\nvoluntary_ctxt_switches:\t42\nnonvoluntary_ctxt_switches:\t7\n";
        fs::write(path.path(), text).unwrap();
        assert_eq!(sleeps_of(path.path()), Some(42));
        fs::write(path.path(), "Name:\tx\n").unwrap();
        assert_eq!(sleeps_of(path.path()), None);
    }

    #[test]
    fn messages_on_other_vcpus_are_not_counted() {
        let here: PcpuSet = "0".parse().unwrap();
        let there: PcpuSet = "1".parse().unwrap();
        let before = tandem_linux::affinity::affinity(Tid(0)).unwrap();
        let all: PcpuSet = "0-1".parse().unwrap();
        let mut sampler = Sampler::new(&ProcFs::host(), &all, None);
        sampler.look(Closeness::Trial, &here);
        if sampler.sends.is_none() || !before.contains(PcpuId(1)) {
            println!("skipped: messages on sockets cannot be counted, or there is one vCPU only");
            return;
        }
        let mut messages_from = |vcpus: &PcpuSet| {
            tandem_linux::affinity::set_affinity(Tid(0), vcpus).unwrap();
            let _ = sampler.sample(&here, &[], &[]).unwrap();
            let (mut own, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
            for _ in 0..20_000 {
                io::Write::write_all(&mut own, b"x").unwrap();
                io::Read::read_exact(&mut other, &mut [0]).unwrap();
            }
            let sample = sampler.sample(&here, &[], &[]).unwrap().unwrap();
            assert_eq!(sample.observed.calls, 0);
            sample.observed.messages
        };
        let counted = [&here, &there].map(&mut messages_from);
        tandem_linux::affinity::set_affinity(Tid(0), &before).unwrap();
        // Other processes of this machine send, too.
        assert!(counted[0] >= 20_000 && counted[1] < 20_000, "{counted:?}");
    }

    #[test]
    fn exited_processes_do_not_count() {
        let then = BTreeMap::from([(1, 10), (2, 20)]);
        let now = BTreeMap::from([(2, 25), (3, 100)]);
        assert_eq!(sum_of_increments(&then, &now), 5);
    }
}
