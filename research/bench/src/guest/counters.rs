//! Awake time of this machine's vCPUs: busy, or polling while idle instead of halted.
//!
//! Sources: `/proc/stat`, whose first line has idle, iowait and steal time of all vCPUs in ticks, and
//! cpuidle, whose state POLL is idle time in which the vCPU did not halt ([`tandem_guest::counters`]).
//! Over a window of length Δt on n vCPUs:
//!
//! - busy  = n Δt − idle − iowait − steal
//! - awake = busy + time in POLL
//!
//! During awake time a vCPU needs a core of the host, so awake time per unit of work stands for energy here; a guest has no better measure.
//! It omits the host's own halt polling and exits.
//! Both figures cover the whole machine, which should be otherwise idle.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tandem_guest::counters::{CLOCK_TICK, CounterError, IdleStates, Stat};
use tandem_linux::ProcFs;
use tandem_model::units::PcpuId;

/// Counters of the machine at one time, since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Time of the reading on CLOCK_MONOTONIC, in nanoseconds.
    at_ns: u64,
    /// Online vCPUs.
    cpus: u64,
    /// Idle, iowait and steal time of all vCPUs, in nanoseconds.
    not_busy_ns: u64,
    /// Idle time spent polling, in nanoseconds.
    poll_ns: u64,
    /// Time of tasks on all vCPUs, in nanoseconds.
    tasks_ns: u64,
}

/// Time of all vCPUs together over a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Awake {
    /// Busy time, in seconds.
    pub busy: f64,
    /// Busy time and time spent polling while idle, in seconds.
    pub awake: f64,
    /// Time of tasks, in seconds; unlike busy time, without the cost of wake-ups in the idle loop.
    pub tasks: f64,
}

impl Counters {
    /// Reads the counters.
    pub fn read() -> Result<Counters, CounterError> {
        let procfs = ProcFs::host();
        let stat = Stat::read(&procfs)?;
        let now = monotonic_ns();
        let idle = |vcpu: &u32| IdleStates::open(&procfs, PcpuId(*vcpu)).read();
        let idle = stat.vcpus.keys().filter_map(idle);
        let polled = idle.map(|idle| idle.polled).sum();
        Ok(Counters::of(&stat, now, polled))
    }

    fn of(stat: &Stat, at_ns: u64, poll_ns: u64) -> Counters {
        let [user, nice, system, idle, iowait, _, _, stolen] = stat.all;
        Counters {
            at_ns,
            cpus: stat.vcpus.len() as u64,
            not_busy_ns: (idle + iowait + stolen).saturating_mul(CLOCK_TICK),
            poll_ns,
            tasks_ns: (user + nice + system).saturating_mul(CLOCK_TICK),
        }
    }

    /// Returns the times from `self` to `end`.
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

/// Returns CLOCK_MONOTONIC, which all processes share, in nanoseconds.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_iowait_and_steal_are_not_busy() {
        let stat = "cpu  100 20 30 4000 50 6 7 80 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n\
                    cpu1 1 2 3 4 5 6 7 8 0 0\nctxt 5\n";
        let counters = Counters::of(&Stat::parse(stat).unwrap(), 7, 9);
        let expected = Counters {
            at_ns: 7,
            cpus: 2,
            not_busy_ns: 4130 * CLOCK_TICK,
            poll_ns: 9,
            tasks_ns: 150 * CLOCK_TICK,
        };
        assert_eq!(counters, expected);
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
    fn this_machine_has_counters() {
        let first = Counters::read().unwrap();
        let window = first.until(&Counters::read().unwrap());
        assert!(first.cpus > 0 && window.awake >= window.busy && window.busy >= 0.0);
    }
}
