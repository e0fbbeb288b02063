//! The times of one vCPU in one interval, from two readings of its statistics.

use std::sync::Arc;

use tandem_linux::cgroup::CgroupPath;
use tandem_linux::sampler::VcpuSample;
use tandem_model::{Nanos, PcpuSet, State, VcpuTimes};

/// A reading of a vCPU, from which the next interval begins.
#[derive(Clone, Debug)]
pub(super) struct Before {
    /// Time of the reading.
    pub(super) at: Nanos,
    pub(super) sample: VcpuSample,
    pub(super) guest: Nanos,
    pub(super) polled: Option<Nanos>,
    pub(super) runnable: bool,
    pub(super) allowed: PcpuSet,
    /// Number of times it went to sleep so far; `None`: not requested, or unknown.
    pub(super) sleeps: Option<u64>,
    /// Part of a pending wait that was counted in earlier intervals.
    pub(super) counted: Nanos,
}

/// The activity of a vCPU in the interval.
#[derive(Debug)]
pub(super) struct Account {
    /// Time between the two readings.
    pub(super) wall: Nanos,
    pub(super) ran: Nanos,
    pub(super) polled: Option<Nanos>,
    pub(super) guest: Option<Nanos>,
    pub(super) waited: Nanos,
    /// Whether the wait ended and was counted by the kernel; else it lasted all the interval and continues.
    pub(super) is_over: bool,
    pub(super) limited: Option<Nanos>,
    pub(super) runs: u64,
    pub(super) wakeups: Option<u64>,
    pub(super) runnable: bool,
    pub(super) allowed: PcpuSet,
    pub(super) cgroup: Option<Arc<CgroupPath>>,
}

impl Account {
    /// Returns the difference of two readings. Updates the counted part of a pending wait in the later one.
    pub(super) fn new(before: &Before, now: &mut Before, counts_guest: bool) -> Account {
        let wall = now.at.saturating_sub(before.at);
        let ran = now.sample.ran.saturating_sub(before.sample.ran);
        let ended = now.sample.waited.saturating_sub(before.sample.waited);
        let waits = ran == Nanos::ZERO
            && ended == Nanos::ZERO
            && now.sample.runs == before.sample.runs
            && before.runnable
            && now.runnable;
        let waited = if waits {
            now.counted = before.counted + wall;
            wall
        } else {
            now.counted = Nanos::ZERO;
            ended.saturating_sub(before.counted)
        };
        let grown = |now: Nanos, before: Nanos| now.saturating_sub(before);
        Account {
            wall,
            ran,
            polled: now.polled.zip(before.polled).map(|(now, before)| grown(now, before)),
            guest: counts_guest.then(|| grown(now.guest, before.guest)),
            // Running and waiting exclude each other.
            waited: waited.min(wall.saturating_sub(ran)),
            is_over: !waits,
            limited: None,
            runs: now.sample.runs.saturating_sub(before.sample.runs),
            wakeups: now.sleeps.zip(before.sleeps).map(|(now, before)| now.saturating_sub(before)),
            runnable: now.runnable,
            allowed: now.allowed.clone(),
            cgroup: None,
        }
    }

    /// Returns the account of a vCPU that slept until now. Updates the time of its reading.
    pub(super) fn asleep(before: &mut Before, at: Nanos, counts_guest: bool) -> Account {
        let wall = at.saturating_sub(std::mem::replace(&mut before.at, at));
        before.counted = Nanos::ZERO;
        Account {
            wall,
            ran: Nanos::ZERO,
            polled: before.polled.map(|_| Nanos::ZERO),
            guest: counts_guest.then_some(Nanos::ZERO),
            waited: Nanos::ZERO,
            is_over: true,
            limited: None,
            runs: 0,
            wakeups: before.sleeps.map(|_| 0),
            runnable: false,
            allowed: before.allowed.clone(),
            cgroup: None,
        }
    }

    /// Divides the time into states. Run time is POLL as counted by KVM, then RUN as counted as guest time, then VMM.
    /// The host polls outside of the guest, so VMM includes POLL if only POLL is not measured.
    pub(super) fn times(&self) -> VcpuTimes {
        let ran = self.ran.min(self.wall);
        let polled = self.polled.map(|polled| polled.min(ran));
        let rest = ran.saturating_sub(polled.unwrap_or_default());
        let run = self.guest.map_or(rest, |guest| guest.min(rest));
        let limited = self.limited.unwrap_or_default();
        let parts = [
            Some((State::Run, run)),
            polled.map(|polled| (State::Poll, polled)),
            self.guest.map(|_| (State::Vmm, rest.saturating_sub(run))),
            Some((State::Ready, self.waited.saturating_sub(limited))),
            self.limited.map(|limited| (State::Limited, limited)),
        ];
        VcpuTimes::from_parts(self.wall, parts.into_iter().flatten())
            .expect("five states, none of them twice, and not HALT")
    }
}
