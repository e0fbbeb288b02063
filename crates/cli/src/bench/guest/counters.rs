//! How long the vCPUs of this machine were awake: busy, or polling while idle instead of halted.
//!
//! Sources: `/proc/stat`, whose first line has idle, iowait and stolen time of all vCPUs in ticks, and
//! `/sys/devices/system/cpu/cpu*/cpuidle/state*/{name,time}`, whose state POLL is idle time in which
//! the vCPU did not halt, in µs. Over a window of length Δt on n vCPUs:
//!
//! - busy  = n Δt − idle − iowait − stolen
//! - awake = busy + time in POLL
//!
//! Awake time is what a host has to give a core to, so awake time per unit of work stands for energy
//! here; a guest has no better measure. What a host spends on its own halt polling or on exits does
//! not show in it. Both are of the whole machine: nothing else should run.

use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use serde::Serialize;

/// The machine's counters at one moment, all since it booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// When, on CLOCK_MONOTONIC, in nanoseconds.
    at_ns: u64,
    /// vCPUs that are online.
    cpus: u64,
    /// Idle time, with waits for I/O, and stolen time of all vCPUs, in nanoseconds.
    not_busy_ns: u64,
    /// Idle time spent polling, in nanoseconds.
    poll_ns: u64,
    /// Time of tasks on all vCPUs, in nanoseconds.
    tasks_ns: u64,
}

/// What the vCPUs did together over a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Awake {
    /// Time in which something ran, in seconds.
    pub busy: f64,
    /// The same with time spent polling while idle.
    pub awake: f64,
    /// Time of tasks alone: what wake-ups cost in the idle loop is busy, but no task's.
    pub tasks: f64,
}

impl Counters {
    /// Reads them now.
    pub fn read() -> anyhow::Result<Counters> {
        let stat = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let now = monotonic_ns();
        let ticks =
            Ticks::parse(&stat).context("/proc/stat has no line 'cpu' as proc_stat(5) says")?;
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Ok(Counters {
            at_ns: now,
            cpus: ticks.cpus,
            not_busy_ns: ticks.not_busy.saturating_mul(tick_ns),
            tasks_ns: ticks.tasks.saturating_mul(tick_ns),
            poll_ns: polled_us(Path::new("/sys/devices/system/cpu")).saturating_mul(1000),
        })
    }

    /// What happened from `self` to `end`.
    pub fn until(&self, end: &Counters) -> Awake {
        let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9;
        let all = seconds(self.at_ns, end.at_ns) * end.cpus as f64;
        let busy = (all - seconds(self.not_busy_ns, end.not_busy_ns)).max(0.0);
        Awake {
            busy,
            awake: busy + seconds(self.poll_ns, end.poll_ns),
            tasks: seconds(self.tasks_ns, end.tasks_ns),
        }
    }
}

/// CLOCK_MONOTONIC, which is the same for all processes, in nanoseconds.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a timespec that the kernel may write to; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// What `/proc/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    /// vCPUs that are online.
    cpus: u64,
    /// Idle, waiting for I/O, or stolen.
    not_busy: u64,
    /// Of tasks, in user mode or in the kernel.
    tasks: u64,
}

impl Ticks {
    fn parse(stat: &str) -> Option<Ticks> {
        let all: Vec<u64> = stat
            .lines()
            .find_map(|line| line.strip_prefix("cpu "))?
            .split_ascii_whitespace()
            .map_while(|number| number.parse().ok())
            .collect();
        let is_cpu = |line: &&str| {
            let number = line.strip_prefix("cpu");
            number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
        };
        // user nice system idle iowait irq softirq steal
        Some(Ticks {
            cpus: stat.lines().filter(is_cpu).count() as u64,
            not_busy: all.get(3)? + all.get(4)? + all.get(7).unwrap_or(&0),
            tasks: all.iter().take(3).sum(),
        })
    }
}

/// Time in the idle state POLL of all vCPUs, in µs; none where the kernel has no idle states.
fn polled_us(cpus: &Path) -> u64 {
    let folders = |path: &Path, prefix: &str| -> Vec<_> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let named = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| name.starts_with(prefix))
        });
        named.map(|entry| entry.path()).collect()
    };
    let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = folders(cpus, "cpu").into_iter();
    cpus.flat_map(|cpu| folders(&cpu.join("cpuidle"), "state"))
        .filter(|state| text(&state.join("name")).trim() == "POLL")
        .filter_map(|state| text(&state.join("time")).trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 20 30 4000 50 6 7 80 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n\
                        cpu1 1 2 3 4 5 6 7 8 0 0\nintr 5\n";

    #[test]
    fn idle_waiting_and_stolen_time_is_not_busy() {
        let ticks = Ticks {
            cpus: 2,
            not_busy: 4130,
            tasks: 150,
        };
        assert_eq!(Ticks::parse(STAT), Some(ticks));
        assert_eq!(Ticks::parse("intr 5\n"), None);
        assert_eq!(Ticks::parse("cpu  1 2\n"), None);
    }

    #[test]
    fn awake_is_busy_and_polling() {
        let at = |at_ns: u64, not_busy_ns: u64, poll_ns: u64| Counters {
            at_ns,
            cpus: 2,
            not_busy_ns,
            poll_ns,
            tasks_ns: at_ns / 4,
        };
        let second = 1_000_000_000;
        // Two vCPUs for 2 s, together idle for 3 s, of which 0.5 s polling.
        let window = at(0, second, 0).until(&at(2 * second, 4 * second, second / 2));
        assert_eq!((window.busy, window.awake, window.tasks), (1.0, 1.5, 0.5));
        let nothing = at(5, 7, 7).until(&at(5, 9, 7));
        assert_eq!((nothing.busy, nothing.awake), (0.0, 0.0));
    }

    #[test]
    fn only_polling_states_count() {
        let dir = tempfile::tempdir().unwrap();
        for (cpu, state, name, time) in [
            ("cpu0", "state0", "POLL\n", "10\n"),
            ("cpu0", "state1", "haltpoll idle\n", "1000\n"),
            ("cpu1", "state0", "POLL\n", "5\n"),
            ("cpufreq", "state0", "none\n", "1\n"),
        ] {
            let folder = dir.path().join(cpu).join("cpuidle").join(state);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("name"), name).unwrap();
            std::fs::write(folder.join("time"), time).unwrap();
        }
        assert_eq!(polled_us(dir.path()), 15);
        assert_eq!(polled_us(&dir.path().join("gone")), 0);
    }

    #[test]
    fn this_machine_has_counters() {
        let first = Counters::read().unwrap();
        let window = first.until(&Counters::read().unwrap());
        assert!(first.cpus > 0 && window.awake >= window.busy && window.busy >= 0.0);
    }
}
