//! One vCPU over one interval: two readings of its accounts, and where its time went between them.

use std::sync::Arc;

use tandem_linux::cgroup::CgroupPath;
use tandem_linux::sampler::VcpuSample;
use tandem_model::{Nanos, PcpuSet, State, VcpuTimes};

/// A vCPU as it was when the interval began.
#[derive(Clone, Debug)]
pub(super) struct Before {
    /// When this was read.
    pub(super) at: Nanos,
    pub(super) sample: VcpuSample,
    pub(super) guest: Nanos,
    pub(super) polled: Option<Nanos>,
    pub(super) runnable: bool,
    pub(super) allowed: PcpuSet,
    /// How often it went to sleep so far; `None`: not asked for, or not known.
    pub(super) sleeps: Option<u64>,
    /// Of the wait that is not over, what was counted in earlier intervals.
    pub(super) counted: Nanos,
}

/// What a vCPU did in the interval.
#[derive(Debug)]
pub(super) struct Account {
    /// Between the two readings.
    pub(super) wall: Nanos,
    pub(super) ran: Nanos,
    pub(super) polled: Option<Nanos>,
    pub(super) guest: Option<Nanos>,
    pub(super) waited: Nanos,
    /// Whether the kernel counted what it waited; else it waited all the time and goes on.
    pub(super) is_over: bool,
    pub(super) limited: Option<Nanos>,
    pub(super) runs: u64,
    pub(super) wakeups: Option<u64>,
    pub(super) runnable: bool,
    pub(super) allowed: PcpuSet,
    pub(super) cgroup: Option<Arc<CgroupPath>>,
}

impl Account {
    /// The difference of two readings. Of the later one, what was counted of a wait that is not over is brought up to date.
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
            // It did not wait while it ran.
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

    /// Of a vCPU that slept until now and did nothing else, which is as it was but for when it was looked at.
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

    /// Where the time went. What ran is POLL as far as KVM counted, then RUN as far as the kernel found it in the guest, then VMM.
    /// The host polls outside of the guest: where only POLL is not measured it is in VMM.
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
