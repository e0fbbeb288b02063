//! States of vCPUs over time, and waits between parties: the common model of live, recorded and simulated observations.
//!
//! A vCPU is in exactly one [`State`] at a time, so the times of an interval sum to its length.
//! No source measures every state.
//! An unmeasured state is `None`, and its time counts in the state that contains it ([`State::within`]): POLL in VMM, VMM in RUN, LIM in RDY, and all others in HALT.
//! A sum over vCPUs therefore equals their wall time, even if POLL is measured for only one of them.
//!
//! The edges between parties are in [`edges`]: a vCPU that is RDY waits for the threads that run on its allowed pCPUs.
//! A source returns [`interval::Interval`]s; [`sum::IntervalSum`] adds several in a row, and [`trace::HostTrace`] has their context switches.
//!
//! State names follow esxtop: RDY, CSTP and LIM are its %RDY, %CSTP and %MLMTD.
//! Times are integer nanoseconds.
//! This module only holds data; it does not measure or estimate.

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

/// State of a vCPU.
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
    /// All states, in display order.
    pub const ALL: [State; 7] = [
        State::Run,
        State::Poll,
        State::Vmm,
        State::Ready,
        State::Limited,
        State::Costop,
        State::Halted,
    ];

    /// Returns the short name, for column headings.
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

    /// Returns the state that includes this one's time if it is not measured; `None` for HALT, which is the rest.
    pub fn within(self) -> Option<State> {
        match self {
            // The host polls outside of guest mode, so guest time excludes it.
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

/// Reason why parts are not the times of a vCPU.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StatesError {
    /// HALT is the rest and must not be given.
    #[error("HALT is the rest of the wall time and cannot be given; give the other states")]
    HaltedGiven,
    /// Two times for one state.
    #[error("{0} is given twice; give one time for each state")]
    Twice(State),
    /// The times do not sum to the wall time.
    #[error("the times in all states sum to {sum} of {wall}; they must be equal")]
    NotTheWall {
        /// Sum of the times.
        sum: Nanos,
        /// The wall time.
        wall: Nanos,
    },
}

/// Order in which parts are cut to the wall time, if they exceed it.
/// Run times are exact and come first; a wait may have begun before the interval.
const SERVED: [State; 6] =
    [State::Run, State::Poll, State::Vmm, State::Limited, State::Ready, State::Costop];

/// Times of a vCPU in each state, or sums over several vCPUs.
/// The measured times sum to the wall time.
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

/// Deserialized times before validation.
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
        if sum != times.wall.0 {
            return Err(StatesError::NotTheWall { sum: Nanos(sum), wall: times.wall });
        }
        Ok(times)
    }
}

impl VcpuTimes {
    /// Creates times from measured states; the rest of `wall` is HALT, and states not in `measured` are unmeasured.
    ///
    /// Clocks are read one after the other, and a kernel counts a wait only at its end, so parts may sum to more than `wall`.
    /// They are then cut to the wall time in the order RUN, POLL, VMM, LIM, RDY, CSTP: CPU time is exact, while a wait may have begun before the interval.
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

    /// Creates times from earlier values of all states, in the order of [`State::ALL`]; they must sum to `wall`.
    pub fn from_all(wall: Nanos, times: [Option<Nanos>; 7]) -> Result<VcpuTimes, StatesError> {
        let [run, poll, vmm, ready, limited, costop, halted] = times;
        VcpuTimes::try_from(Read { wall, run, poll, vmm, ready, limited, costop, halted })
    }

    /// Returns the wall time; for several vCPUs, the sum.
    pub fn wall(&self) -> Nanos {
        self.wall
    }

    /// Returns the time in a state; `None` if not measured.
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

    /// Returns the fraction of the wall time in a state, 0…1; for several vCPUs, their mean.
    /// Returns `None` if the state is not measured or the wall time is zero.
    pub fn share(&self, state: State) -> Option<f64> {
        let time = self.get(state)?;
        (self.wall > Nanos::ZERO).then(|| time.0 as f64 / self.wall.0 as f64)
    }

    /// Returns the sum over vCPUs; `None` without any.
    /// A state that is not measured for all of them is not measured in the sum, and its time moves to the state that contains it.
    pub fn sum<'a>(times: impl IntoIterator<Item = &'a VcpuTimes>) -> Option<VcpuTimes> {
        times.into_iter().copied().reduce(VcpuTimes::plus)
    }

    fn plus(mut self, mut other: VcpuTimes) -> VcpuTimes {
        // Innermost first: time that moves from LIM to RDY may move on.
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

    /// Makes a state unmeasured and moves its time to the nearest measured state that contains it.
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
    fn rest_is_halt_and_missing_states_are_unmeasured() {
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
    fn early_wait_is_cut_before_cpu_time() {
        let times = times(100, &[(State::Ready, 500), (State::Run, 30), (State::Limited, 20)]);
        assert_eq!(times.get(State::Run), Some(ms(30)));
        assert_eq!(times.get(State::Limited), Some(ms(20)));
        assert_eq!(times.get(State::Ready), Some(ms(50)));
        assert_eq!(times.get(State::Halted), Some(Nanos::ZERO));
    }

    #[test]
    fn every_state_can_be_cut_to_zero() {
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
    fn sums_with_unmeasured_states_keep_wall_time() {
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
    fn time_without_measured_outer_state_is_halt() {
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
