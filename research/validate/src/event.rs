//! What a measurement has to tell while it lasts.
//!
//! Whoever starts one hands in what to do with these; the command line prints them on stderr.

use std::fmt;

/// Something that happened during a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// What the kernel's own work costs is being measured.
    Costs,
    /// Thread programs run for real.
    RealRun {
        /// Which run of them, from 1.
        run: u32,
        /// Of how many.
        runs: u32,
    },
    /// MicroVMs run.
    Round {
        /// Which round of them, from 1.
        round: u32,
        /// Of how many.
        rounds: u32,
        /// How many setups run in it.
        setups: usize,
        /// About how long it takes, s.
        seconds: f64,
    },
    /// The real runs are over, and the simulator computes theirs.
    Simulating,
}

/// What is done with events.
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
