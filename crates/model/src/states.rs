//! Where the time of a vCPU goes, and who waits for whom: the model that every source of observation fills, live, recorded or
//! simulated.
//!
//! A vCPU is in exactly one [`State`] at a time, so the times of an interval sum to its length. No source sees every
//! state: what it cannot tell apart is `None`, "not measured", and its time is then in the state that contains it
//! ([`State::within`]): POLL in VMM, VMM in RUN, LIM in RDY, and all others in HALT. So a sum over vCPUs of which one has POLL
//! measured and the other has not still sums to their wall time.
//!
//! The edges between parties are in [`edges`]: a vCPU that is RDY waits for whoever runs on the pCPUs where it may. What a source
//! answers about a host and some time is an [`interval::Interval`]; several in a row are added up by [`sum::IntervalSum`]; what they are sums of, switch by
//! switch, is a [`trace::HostTrace`].
//!
//! The names are those of the field: RDY, CSTP and LIM are what esxtop shows as %RDY, %CSTP and %MLMTD. Times are integer
//! nanoseconds. Nothing here reads, measures or estimates.

pub mod column;
pub mod edges;
pub mod interval;
pub mod latency;
pub mod party;
pub mod programs;
pub mod sum;
pub mod trace;

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::units::Nanos;

/// What a vCPU is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Guest code runs on a pCPU.
    Run,
    /// The host polls for an interrupt after the guest halted, on a pCPU.
    Poll,
    /// The host works for the guest on a pCPU: exits, emulation, the VMM's own code in the vCPU's thread.
    Vmm,
    /// Runnable, and waits for a pCPU.
    Ready,
    /// Kept off all pCPUs by a quota.
    Limited,
    /// Idle or spinning only because a sibling that it waits for does not run (co-stop).
    Costop,
    /// Halted: nothing to do.
    Halted,
}

impl State {
    /// All, in the order in which they are shown.
    pub const ALL: [State; 7] = [
        State::Run,
        State::Poll,
        State::Vmm,
        State::Ready,
        State::Limited,
        State::Costop,
        State::Halted,
    ];

    /// The short name, for headings of columns.
    pub fn name(self) -> &'static str {
        match self {
            State::Run => "RUN",
            State::Poll => "POLL",
            State::Vmm => "VMM",
            State::Ready => "RDY",
            State::Limited => "LIM",
            State::Costop => "CSTP",
            State::Halted => "HALT",
        }
    }

    /// The state that this one's time is in where it is not measured; none for HALT, which is the rest.
    pub fn within(self) -> Option<State> {
        match self {
            // The host polls outside of the guest, so no account of guest time has it.
            State::Poll => Some(State::Vmm),
            State::Vmm => Some(State::Run),
            State::Limited => Some(State::Ready),
            State::Run | State::Ready | State::Costop => Some(State::Halted),
            State::Halted => None,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why parts are not the times of a vCPU.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StatesError {
    /// HALT is what is left.
    #[error("HALT is the rest of the wall time and cannot be given; give the other states")]
    HaltedGiven,
    /// Two times for one state.
    #[error("{0} is given twice; give one time for each state")]
    Twice(State),
    /// Something read that cannot be.
    #[error("the times in all states sum to {sum} of {wall}; they must be equal")]
    NotTheWall {
        /// What they sum to.
        sum: Nanos,
        /// The wall time.
        wall: Nanos,
    },
}

/// The order in which parts that exceed the wall time are served: what ran is exact, a wait may have begun before the
/// interval.
const SERVED: [State; 6] =
    [State::Run, State::Poll, State::Vmm, State::Limited, State::Ready, State::Costop];

/// What a vCPU did within some wall time, or several vCPUs within the sum of theirs. The measured times sum to the wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Read")]
pub struct VcpuTimes {
    /// Wall time, summed over the vCPUs.
    wall: Nanos,
    run: Option<Nanos>,
    poll: Option<Nanos>,
    vmm: Option<Nanos>,
    ready: Option<Nanos>,
    limited: Option<Nanos>,
    costop: Option<Nanos>,
    halted: Option<Nanos>,
}

/// Times as they are read, before they are checked.
#[derive(Deserialize)]
struct Read {
    wall: Nanos,
    run: Option<Nanos>,
    poll: Option<Nanos>,
    vmm: Option<Nanos>,
    ready: Option<Nanos>,
    limited: Option<Nanos>,
    costop: Option<Nanos>,
    halted: Option<Nanos>,
}

impl TryFrom<Read> for VcpuTimes {
    type Error = StatesError;

    fn try_from(read: Read) -> Result<VcpuTimes, StatesError> {
        let times = VcpuTimes {
            wall: read.wall,
            run: read.run,
            poll: read.poll,
            vmm: read.vmm,
            ready: read.ready,
            limited: read.limited,
            costop: read.costop,
            halted: read.halted,
        };
        let measured = State::ALL.iter().filter_map(|state| times.get(*state));
        let sum = measured.fold(0u64, |sum, time| sum.saturating_add(time.0));
        match sum == times.wall.0 {
            true => Ok(times),
            false => Err(StatesError::NotTheWall { sum: Nanos(sum), wall: times.wall }),
        }
    }
}

impl VcpuTimes {
    /// From what was measured; the rest of `wall` is HALT. A state that is not in `measured` is not measured.
    ///
    /// Clocks are read one after the other, and a kernel counts a wait only when it is over, so parts may sum to more
    /// than `wall`. Then they are served in the order RUN, POLL, VMM, LIM, RDY, CSTP, and each gets at most what is left of
    /// it: CPU time is exact, while a wait may have begun before the interval.
    pub fn from_parts(
        wall: Nanos,
        measured: impl IntoIterator<Item = (State, Nanos)>,
    ) -> Result<VcpuTimes, StatesError> {
        let mut given = VcpuTimes { wall, ..VcpuTimes::default() };
        for (state, time) in measured {
            if state == State::Halted {
                return Err(StatesError::HaltedGiven);
            }
            if given.slot(state).replace(time).is_some() {
                return Err(StatesError::Twice(state));
            }
        }
        let mut left = wall;
        for state in SERVED {
            if let Some(time) = given.slot(state) {
                *time = (*time).min(left);
                left = left - *time;
            }
        }
        given.halted = Some(left);
        Ok(given)
    }

    /// From the times in all states, in the order of [`State::ALL`], as something that was measured before; they must sum to `wall`.
    pub fn from_all(wall: Nanos, times: [Option<Nanos>; 7]) -> Result<VcpuTimes, StatesError> {
        let [run, poll, vmm, ready, limited, costop, halted] = times;
        VcpuTimes::try_from(Read { wall, run, poll, vmm, ready, limited, costop, halted })
    }

    /// How long it was looked at; of several vCPUs, the sum.
    pub fn wall(&self) -> Nanos {
        self.wall
    }

    /// The time in a state; `None` where that is not measured.
    pub fn get(&self, state: State) -> Option<Nanos> {
        match state {
            State::Run => self.run,
            State::Poll => self.poll,
            State::Vmm => self.vmm,
            State::Ready => self.ready,
            State::Limited => self.limited,
            State::Costop => self.costop,
            State::Halted => self.halted,
        }
    }

    fn slot(&mut self, state: State) -> &mut Option<Nanos> {
        match state {
            State::Run => &mut self.run,
            State::Poll => &mut self.poll,
            State::Vmm => &mut self.vmm,
            State::Ready => &mut self.ready,
            State::Limited => &mut self.limited,
            State::Costop => &mut self.costop,
            State::Halted => &mut self.halted,
        }
    }

    /// The part of the wall time in a state, 0…1; of several vCPUs, their mean. `None` where that is not measured, or there
    /// was no time.
    pub fn share(&self, state: State) -> Option<f64> {
        let time = self.get(state)?;
        (self.wall > Nanos::ZERO).then(|| time.0 as f64 / self.wall.0 as f64)
    }

    /// The sum over vCPUs; `None` over none. What is measured of some of them only is not measured of the sum, and its time
    /// moves to the state that contains it.
    pub fn sum<'a>(times: impl IntoIterator<Item = &'a VcpuTimes>) -> Option<VcpuTimes> {
        times.into_iter().copied().reduce(VcpuTimes::plus)
    }

    fn plus(mut self, mut other: VcpuTimes) -> VcpuTimes {
        // From the inside out: what moves out of LIM may move on out of RDY.
        for state in
            [State::Poll, State::Vmm, State::Limited, State::Costop, State::Run, State::Ready]
        {
            match (self.get(state), other.get(state)) {
                (Some(_), None) => self.fold(state),
                (None, Some(_)) => other.fold(state),
                _ => {}
            }
        }
        let mut sum = VcpuTimes { wall: self.wall + other.wall, ..VcpuTimes::default() };
        for state in State::ALL {
            *sum.slot(state) = self.get(state).zip(other.get(state)).map(|(one, two)| one + two);
        }
        sum
    }

    /// Makes a state not measured; its time goes to the nearest state around it that is.
    fn fold(&mut self, state: State) {
        let Some(time) = self.slot(state).take() else {
            return;
        };
        let mut around = state.within();
        while let Some(outer) = around {
            if let Some(known) = self.slot(outer) {
                *known += time;
                return;
            }
            around = outer.within();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn times(wall: u64, parts: &[(State, u64)]) -> VcpuTimes {
        let parts = parts.iter().map(|(state, time)| (*state, ms(*time)));
        VcpuTimes::from_parts(ms(wall), parts).unwrap()
    }

    fn measured(times: &VcpuTimes) -> Nanos {
        State::ALL.iter().filter_map(|state| times.get(*state)).sum()
    }

    #[test]
    fn the_rest_is_halt_and_what_is_not_given_is_not_measured() {
        let times = times(100, &[(State::Run, 60), (State::Ready, 15)]);
        assert_eq!(times.get(State::Run), Some(ms(60)));
        assert_eq!(times.get(State::Halted), Some(ms(25)));
        for state in [State::Poll, State::Vmm, State::Limited, State::Costop] {
            assert_eq!(times.get(state), None, "{state}");
            assert_eq!(times.share(state), None, "{state}");
        }
        assert_eq!(times.share(State::Ready), Some(0.15));
        assert_eq!(measured(&times), times.wall());
    }

    #[test]
    fn a_wait_that_began_before_the_interval_is_cut_and_cpu_time_is_not() {
        let times = times(100, &[(State::Ready, 500), (State::Run, 30), (State::Limited, 20)]);
        assert_eq!(times.get(State::Run), Some(ms(30)));
        assert_eq!(times.get(State::Limited), Some(ms(20)));
        assert_eq!(times.get(State::Ready), Some(ms(50)));
        assert_eq!(times.get(State::Halted), Some(Nanos::ZERO));
    }

    #[test]
    fn every_state_can_be_cut_to_nothing() {
        let all = SERVED.map(|state| (state, 100));
        let times = times(100, &all);
        assert_eq!(times.get(State::Run), Some(ms(100)));
        assert_eq!(times.get(State::Costop), Some(Nanos::ZERO));
        assert_eq!(measured(&times), ms(100));
        let none = VcpuTimes::from_parts(Nanos::ZERO, [(State::Run, ms(1))]).unwrap();
        assert_eq!(none.get(State::Run), Some(Nanos::ZERO));
        assert_eq!(none.share(State::Run), None, "of no time there is no part");
    }

    #[test]
    fn halt_and_doubles_are_refused() {
        let halted = VcpuTimes::from_parts(ms(1), [(State::Halted, ms(1))]);
        assert_eq!(halted, Err(StatesError::HaltedGiven));
        let twice = VcpuTimes::from_parts(ms(9), [(State::Poll, ms(1)), (State::Poll, ms(2))]);
        let error = twice.unwrap_err().to_string();
        assert!(error.contains("POLL is given twice"), "{error}");
    }

    #[test]
    fn sums_keep_the_wall_time_whatever_is_measured_of_some_only() {
        let one = times(
            100,
            &[
                (State::Run, 40),
                (State::Poll, 10),
                (State::Vmm, 5),
                (State::Limited, 3),
                (State::Ready, 7),
            ],
        );
        let two = times(200, &[(State::Run, 100), (State::Vmm, 20), (State::Ready, 30)]);
        let sum = VcpuTimes::sum([&one, &two]).unwrap();
        assert_eq!(sum.wall(), ms(300));
        assert_eq!(sum.get(State::Poll), None);
        assert_eq!(sum.get(State::Limited), None);
        assert_eq!(sum.get(State::Run), Some(ms(140)));
        assert_eq!(sum.get(State::Vmm), Some(ms(35)), "with the first's POLL");
        assert_eq!(sum.get(State::Ready), Some(ms(40)), "with the first's LIM");
        assert_eq!(measured(&sum), sum.wall());
        assert_eq!(VcpuTimes::sum([&two, &one]), Some(sum), "in any order");
        assert_eq!(VcpuTimes::sum([]), None);
    }

    #[test]
    fn what_no_state_around_it_holds_goes_to_halt() {
        let one = times(100, &[(State::Limited, 10), (State::Costop, 20)]);
        let two = times(100, &[(State::Run, 50)]);
        let sum = VcpuTimes::sum([&one, &two]).unwrap();
        assert_eq!(sum.get(State::Halted), Some(ms(200)));
        assert_eq!((sum.get(State::Run), sum.get(State::Limited)), (None, None));
    }

    #[test]
    fn names_are_short_and_pad() {
        let names: Vec<&str> = State::ALL.iter().map(|state| state.name()).collect();
        assert_eq!(names, ["RUN", "POLL", "VMM", "RDY", "LIM", "CSTP", "HALT"]);
        assert_eq!(format!("{:>5}", State::Ready), "  RDY");
    }
}
