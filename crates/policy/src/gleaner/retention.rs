//! For how long an idle vCPU is kept awake: Gleaner's resource retention.
//!
//! An idle vCPU that stays awake is there at once when its thread is woken; one that halts costs a round
//! trip through the hypervisor. To stay awake for as long as that round trip costs is never worse than twice
//! the best choice (the ski-rental argument that halt polling rests on), so the measured cost of a round
//! trip is the time-out. It is worth its CPU time only while idle periods are about as short as that, and
//! only while the host has nobody else to run: time that is stolen says that it has. So retention stands
//! back
//!
//! - when idle periods grow to [`RetentionConfig::far`] time-outs on average, until they are down to
//!   [`RetentionConfig::near`];
//! - when the host steals over [`RetentionConfig::most_stolen`] of the vCPUs' time, until it has stolen
//!   less than half of that for [`RetentionConfig::calm`] periods.
//!
//! Who carries it out may use a yielding thread of the lowest class on each active vCPU, as the paper does, or the
//! kernel's own polling (the haltpoll governor's guest_halt_poll_ns).

use std::fmt;

use serde::Deserialize;
use serde::Serialize;

use crate::units::Nanos;

use super::Averages;
use super::Observation;

/// Tunables of retention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    /// The measured cost of a halt and its wake-up. Default 50 us.
    pub timeout: Nanos,
    /// Idle periods of up to this many time-outs on average are worth it. Default 4.
    pub near: f64,
    /// Idle periods of more than this many time-outs on average are not. Default 8.
    pub far: f64,
    /// Part of the vCPUs' time that the host may take, 0 … 1. Default 0.01.
    pub most_stolen: f64,
    /// Periods with little stolen before retention comes back. Default 20.
    pub calm: u32,
}

impl Default for RetentionConfig {
    fn default() -> RetentionConfig {
        RetentionConfig {
            timeout: Nanos(50_000),
            near: 4.0,
            far: 8.0,
            most_stolen: 0.01,
            calm: 20,
        }
    }
}

/// Why idle vCPUs stay awake, or do not.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum Because {
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
    /// No vCPU was idle: as before.
    NeverIdle,
    /// The host has others to run.
    Stolen {
        /// Part of the time, 0 … 1.
        part: f64,
    },
    /// It had lately.
    NotCalmYet,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Short { idles } => {
                write!(f, "idle periods are short: {:.1} us", idles / 1e3)
            }
            Because::Long { idles } => write!(f, "idle periods are long: {:.1} us", idles / 1e3),
            Because::NeverIdle => f.write_str("no vCPU was idle"),
            Because::Stolen { part } => {
                write!(f, "the host took {:.1} % of the vCPUs' time", part * 100.0)
            }
            Because::NotCalmYet => f.write_str("the host took time lately"),
        }
    }
}

/// For how long an idle vCPU stays awake, and why.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Zero: it halts at once.
    pub timeout: Nanos,
    /// Why.
    pub because: Because,
}

/// The controller of one VM.
#[derive(Clone, Debug)]
pub struct Retention {
    config: RetentionConfig,
    stays_awake: bool,
    /// Calm periods still missing.
    missing: u32,
}

impl Retention {
    /// Begins with vCPUs that halt at once.
    pub fn new(config: RetentionConfig) -> Retention {
        Retention {
            config,
            stays_awake: false,
            missing: 0,
        }
    }

    /// The time-out now.
    pub fn timeout(&self) -> Nanos {
        match self.stays_awake {
            true => self.config.timeout,
            false => Nanos::ZERO,
        }
    }

    /// A period is over.
    pub fn decide(&mut self, observed: &Observation) -> Choice {
        let because = self.consider(&Averages::of(observed));
        Choice {
            timeout: self.timeout(),
            because,
        }
    }

    fn consider(&mut self, now: &Averages) -> Because {
        if now.stolen > self.config.most_stolen {
            self.stays_awake = false;
            self.missing = self.config.calm;
            return Because::Stolen { part: now.stolen };
        }
        if self.missing > 0 {
            match now.stolen <= self.config.most_stolen / 2.0 {
                true => self.missing -= 1,
                false => self.missing = self.config.calm,
            }
            return Because::NotCalmYet;
        }
        if !now.computes.is_finite() || now.idles == 0.0 {
            return Because::NeverIdle;
        }
        let timeout = self.config.timeout.0 as f64;
        let bound = match self.stays_awake {
            true => self.config.far,
            false => self.config.near,
        };
        self.stays_awake = now.idles <= bound * timeout;
        match self.stays_awake {
            true => Because::Short { idles: now.idles },
            false => Because::Long { idles: now.idles },
        }
    }
}
