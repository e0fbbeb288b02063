//! What the vCPUs and the workload did in a period, from files that any kernel has.
//!
//! | figure | from | exact? |
//! |---|---|---|
//! | idle time, idle periods of a vCPU | `/sys/devices/system/cpu/cpuN/cpuidle/state*/{time,usage}` | to 1 us |
//! | stolen time; idle time without cpuidle | `/proc/stat` | to 10 ms |
//! | work of a vCPU | the rest of the period | |
//! | context switches | `/proc/stat` `ctxt`, less those to the idle thread | yes |
//! | time in user mode | the cgroup's `cpu.stat` (v2), else `/proc/stat` | sampled at ticks |
//! | CPU time, turns on a vCPU, waiting for one | `/proc/TID/schedstat` of up to [`MOST_THREADS`] threads, [`MOST_THREADS_HELD_BACK`] while delayed scheduling is on trial or in force | yes |
//! | sleeps of their own accord, while delayed scheduling is on trial or in force | `/proc/TID/status` of these threads | yes |
//! | calls of read and write | `/proc/PID/io` of up to [`MOST_PROCESSES`] processes | yes |
//! | messages on sockets, while delayed scheduling is on trial | a counter of the tracepoint `sock_send_length` on the active vCPUs | yes, of all that send there |
//!
//! No other tracepoint is used: a BPF program at sched_switch costs each switch of the program that it watches
//! something, and a program that hands a token on switches 200,000 times a second; with these files
//! the agent takes less than 1 % of a vCPU, whatever the program does.
//!
//! Where the workload is not the only one in the VM, work and switches are those of the whole VM. That is what its
//! vCPUs must have room for; how far a change helped is told by the workload's own calls and user time.
//!
//! A vCPU that the kernel's haltpoll keeps awake goes through its polling state first, then halts: such a
//! period of idleness is counted once. Sources: drivers/cpuidle/sysfs.c, fs/proc/stat.c, kernel/sched/stats.h.

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

/// Of so many threads the waiting time is read.
pub const MOST_THREADS: usize = 8;

/// And of so many while delayed scheduling is on trial or in force, which is judged by how often they sleep and by the one that waits longest.
pub const MOST_THREADS_HELD_BACK: usize = 64;

/// Of so many processes the calls are read.
pub const MOST_PROCESSES: usize = 8;

/// Counters of the workload since each thread's start.
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

/// Everything at one moment.
#[derive(Clone, Debug)]
struct Moment {
    at: Instant,
    vcpus: Vec<VcpuCounters>,
    switches: u64,
    user: u64,
    /// Messages on sockets, while they are counted.
    sends: Option<u64>,
    workload: WorkloadCounters,
}

/// One period.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// For the policy; vCPUs in ascending order of their numbers, active ones only.
    pub observed: Observation,
    /// For how long vCPUs polled instead of halting, all together.
    pub polled: Nanos,
}

/// How much of the workload's threads is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Closeness {
    /// How long [`MOST_THREADS`] of them ran and waited.
    #[default]
    Usual,
    /// That of [`MOST_THREADS_HELD_BACK`], and how often they slept, which tells how long a thread waits that was woken: threads are held back.
    Sleeps,
    /// And messages on sockets: delayed scheduling is on trial.
    Trial,
}

/// Reads a VM's counters, period by period.
#[derive(Debug)]
pub struct Sampler {
    procfs: ProcFs,
    vcpus: Vec<(PcpuId, IdleStates)>,
    /// Where the workload's own CPU time stands, if anywhere.
    cpu_stat: Option<PathBuf>,
    tick: Nanos,
    last: Option<Moment>,
    closeness: Closeness,
    sends: Option<Sends>,
}

impl Sampler {
    /// For a workload that may use these vCPUs, and whose CPU time is in `cpu_stat` (a v2 cgroup's).
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

    /// How closely is looked from now on, with these vCPUs in use. Kernels that do not count messages on sockets are asked once a trial.
    pub fn look(&mut self, closeness: Closeness, active: &PcpuSet) {
        let before = std::mem::replace(&mut self.closeness, closeness);
        if closeness != Closeness::Trial {
            self.sends = None;
        } else if before != Closeness::Trial {
            self.sends = Sends::open(&self.procfs, active.iter()).ok();
        }
    }

    /// What happened since the last time, with `active` in use and these processes and threads; `None` the first time.
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
        observed.calls = gained(&then.workload.calls, &now.workload.calls);
        observed.messages = sent.map_or(0, |(now, then)| since(now, then));
        observed.waiting = Nanos(gained(&then.workload.waited, &now.workload.waited));
        observed.wakes = gained(&then.workload.wakes, &now.workload.wakes);
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

    /// Processes and threads may end at any moment, and then count no more.
    fn workload(&self, processes: &[Pid], threads: &[Tid]) -> WorkloadCounters {
        let calls = processes.iter().take(MOST_PROCESSES);
        // A thread has a folder of its own in /proc, which is not listed, but there.
        let file = |tid: Tid, name: &str| self.procfs.process(Pid(tid.0)).join(name);
        let most = match self.closeness {
            Closeness::Usual => MOST_THREADS,
            Closeness::Sleeps | Closeness::Trial => MOST_THREADS_HELD_BACK,
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

/// What each thread did that was there before, where sleeps are known, ascending.
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

/// The sum of what grew, over what is in both.
fn gained<K: Ord>(then: &BTreeMap<K, u64>, now: &BTreeMap<K, u64>) -> u64 {
    let both = now.iter().filter_map(|(key, now)| then.get(key).map(|then| (now, then)));
    both.map(|(now, then)| now.saturating_sub(*then)).sum()
}

/// `user_usec` of a v2 cgroup.
fn user_of(path: &Path) -> Result<u64, CounterError> {
    let text = match read_text(path) {
        Ok(text) => text,
        // Its cgroup was removed: the workload is over.
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

/// Fields of `schedstat`: ns for which the thread ran, for which it waited for a vCPU, and how often it was given one.
fn schedstat_of(path: &Path) -> Option<[u64; 3]> {
    let text = read_text(path).ok()?;
    let mut fields = text.split_ascii_whitespace().map(str::parse);
    let mut next = || fields.next()?.ok();
    Some([next()?, next()?, next()?])
}

/// `voluntary_ctxt_switches` of `status`: how often the thread went to sleep of its own accord.
fn sleeps_of(path: &Path) -> Option<u64> {
    let text = read_text(path).ok()?;
    let mut lines = text.lines();
    let number = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    number.trim().parse().ok()
}

/// `syscr` and `syscw` of a process.
fn calls_of(folder: &Path) -> Option<u64> {
    let text = read_text(&folder.join("io")).ok()?;
    let of = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some(of("syscr:")? + of("syscw:")?)
}

/// The timer tick at which user time is sampled. The kernel does not tell; what it does tell is the resolution
/// of its coarse clock, which advances at each tick.
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
    fn a_period_is_what_grew() {
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
    fn sleeps_of_their_own_accord_are_counted() {
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
        // Others on this machine send, too.
        assert!(counted[0] >= 20_000 && counted[1] < 20_000, "{counted:?}");
    }

    #[test]
    fn processes_that_end_count_no_more() {
        let then = BTreeMap::from([(1, 10), (2, 20)]);
        let now = BTreeMap::from([(2, 25), (3, 100)]);
        assert_eq!(gained(&then, &now), 5);
    }
}
