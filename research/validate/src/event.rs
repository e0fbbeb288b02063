//! Progress events of a measurement.
//!
//! The caller supplies the handler; the command line prints events to stderr.

use std::fmt;

/// A progress event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// The measurement of the kernel's costs starts.
    Costs,
    /// A real run of the thread programs starts.
    RealRun {
        /// Number of the run, from 1.
        run: u32,
        /// Number of runs.
        runs: u32,
    },
    /// A round of microVMs starts.
    Round {
        /// Number of the round, from 1.
        round: u32,
        /// Number of rounds.
        rounds: u32,
        /// Number of setups in the round.
        setups: usize,
        /// Expected duration, s.
        seconds: f64,
    },
    /// The simulation starts.
    Simulating,
}

/// Handler of events.
pub type Tell<'a> = &'a dyn Fn(Event);

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Costs => f.write_str("measuring what the kernel's work costs here …"),
            Event::RealRun { run, runs } => write!(f, "real run {run} of {runs} …"),
            Event::Round { round, rounds, setups, seconds } => {
                write!(f, "round {round} of {rounds}: {setups} setups, about {seconds:.0} s …")
            }
            Event::Simulating => f.write_str("simulating …"),
        }
    }
}
