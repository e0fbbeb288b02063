//! Retention: keeps an idle vCPU awake for a time before it may halt (Gleaner's resource retention).
//!
//! An idle vCPU that is awake runs its thread at once when that is woken.
//! A vCPU that halts costs a round trip through the hypervisor, and delays waiters for the thread as well.
//! The CPU time is free only while the host has nothing else to run, which stolen time shows. So
//!
//! - retention covers two idle periods of average length, so that most end before it (six of
//!   seven if they are exponential): the measured cost of a round trip, doubled until it does;
//! - idle periods over half of [`RetentionConfig::most`] on average are too long to begin with
//!   it, over `most` too long to go on;
//! - a workload that does next to nothing ([`RetentionConfig::least_work`]) is not worth it,
//!   however often it polls for work;
//! - if the host steals over [`RetentionConfig::most_stolen`] of the vCPUs' time, retention stops
//!   until less than half of that has been stolen for [`RetentionConfig::calm`] periods.
//!
//! The paper has none of these rules ([`RetentionConfig::paper`]): its retention is always the
//! measured cost of a round trip.
//! Other threads preempt the yielding thread on the vCPU, but the pCPU is taken from other VMs.
//!
//! It can be implemented by a yielding thread of the lowest class on each active vCPU, as in the
//! paper, or by the kernel's own polling (the haltpoll governor's guest_halt_poll_ns).

use std::fmt;

use serde::Serialize;

use crate::settings::settings;
use tandem_model::units::Nanos;

use super::{Averages, Observation};

/// Maximum retention.
pub const MAX_RETENTION: Nanos = Nanos::from_millis(100);

settings! {
    /// Tunables of retention.
    pub struct RetentionConfig {
        /// Measured cost of a halt and its wake-up: the minimum retention.
        pub round_trip: Nanos = Nanos(50_000), (Nanos(1), Nanos::from_secs(1));
        /// Whether retention adapts to idle periods, work and stolen time.
        /// False: it is always the cost of a round trip, and the settings below have no effect.
        pub adapts: bool = true;
        /// Maximum retention. Longer helps programs that block rarely, and burns more.
        pub most: Nanos = Nanos::from_millis(2), (Nanos::ZERO, MAX_RETENTION);
        /// Minimum fraction of the active vCPUs' time that the workload uses.
        pub least_work: f64 = 0.05, (0.0, 1.0);
        /// Minimum idle fraction of the active vCPUs' time; below it nothing can be gained.
        pub least_idle: f64 = 0.0, (0.0, 1.0);
        /// Maximum fraction of the vCPUs' time that the host may steal.
        pub most_stolen: f64 = 0.01, (0.0, 1.0);
        /// Weight of the newest period in the stolen fraction. With 1, only that one counts; less tolerates single periods.
        pub smoothing: f64 = 1.0, (0.0, 1.0);
        /// Periods with little stolen time before retention resumes.
        pub calm: u32 = 20;
    }
}

impl RetentionConfig {
    /// The settings of the paper.
    pub fn paper() -> RetentionConfig {
        RetentionConfig { adapts: false, ..RetentionConfig::default() }
    }
}

/// Reason for retaining idle vCPUs or not.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum Because {
    /// It does not adapt.
    Fixed,
    /// Idle periods are short.
    Short {
        /// l_idle, ns.
        idles: f64,
    },
    /// Idle periods are long.
    Long {
        /// l_idle, ns.
        idles: f64,
    },
    /// The workload does next to nothing.
    LittleWork {
        /// Fraction of the vCPUs' time, 0 … 1.
        utilization: f64,
    },
    /// No vCPU was idle, or too little to matter: unchanged.
    NeverIdle,
    /// The host has other tasks to run.
    Stolen {
        /// Fraction of the time, 0 … 1.
        part: f64,
    },
    /// It had recently.
    NotCalmYet,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Fixed => f.write_str("always as long as a halt and its wake-up take"),
            Because::Short { idles } => {
                write!(f, "idle periods are short: {:.1} us", idles / 1e3)
            }
            Because::Long { idles } => write!(f, "idle periods are long: {:.1} us", idles / 1e3),
            Because::LittleWork { utilization } => {
                write!(f, "the workload uses {:.1} % of its vCPUs", utilization * 100.0)
            }
            Because::NeverIdle => f.write_str("vCPUs were hardly idle"),
            Because::Stolen { part } => {
                write!(f, "the host took {:.1} % of the vCPUs' time", part * 100.0)
            }
            Because::NotCalmYet => f.write_str("the host took time lately"),
        }
    }
}

/// Retention, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Time for which an idle vCPU is kept awake. Zero: it halts at once.
    pub time: Nanos,
    /// Reason.
    pub because: Because,
}

/// The controller of one VM.
#[derive(Clone, Debug)]
pub struct Retention {
    config: RetentionConfig,
    time: Nanos,
    /// Calm periods that are still needed.
    missing: u32,
    /// Stolen fraction of the time, smoothed.
    stolen: f64,
}

impl Retention {
    /// Creates a controller with vCPUs that halt at once.
    pub fn new(config: RetentionConfig) -> Retention {
        Retention { config, time: Nanos::ZERO, missing: 0, stolen: 0.0 }
    }

    /// Time for which an idle vCPU is kept awake now.
    pub fn time(&self) -> Nanos {
        self.time
    }

    /// Decides after a period.
    pub fn decide(&mut self, observed: &Observation) -> Choice {
        let because = self.consider(&Averages::of(observed));
        Choice { time: self.time(), because }
    }

    fn consider(&mut self, now: &Averages) -> Because {
        if !self.config.adapts {
            self.time = self.config.round_trip;
            return Because::Fixed;
        }
        self.stolen += self.config.smoothing * (now.stolen - self.stolen);
        if self.stolen > self.config.most_stolen {
            self.time = Nanos::ZERO;
            self.missing = self.config.calm;
            return Because::Stolen { part: self.stolen };
        }
        if self.missing > 0 {
            if self.stolen <= self.config.most_stolen / 2.0 {
                self.missing -= 1;
            } else {
                self.missing = self.config.calm;
            }
            return Because::NotCalmYet;
        }
        let is_busy = now.idle < self.config.least_idle;
        if !now.computes.is_finite() || now.idles == 0.0 || is_busy {
            return Because::NeverIdle;
        }
        if now.utilization < self.config.least_work {
            self.time = Nanos::ZERO;
            return Because::LittleWork { utilization: now.utilization };
        }
        let longest = match self.time {
            Nanos::ZERO => self.config.most.0 / 2,
            _ => self.config.most.0,
        };
        if now.idles > longest as f64 {
            self.time = Nanos::ZERO;
            return Because::Long { idles: now.idles };
        }
        let mut time = self.config.round_trip.0.max(1);
        while (time as f64) < 2.0 * now.idles && time < self.config.most.0 {
            time *= 2;
        }
        self.time = Nanos(time.min(self.config.most.0));
        Because::Short { idles: now.idles }
    }
}
