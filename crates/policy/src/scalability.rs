//! How far an application scales on a machine and on a VM, and what it could reach: speedup by
//! utilization efficiency.
//!
//! Source: Shan's dissertation (NJIT 2018), chapter 4. Speedup on N units of execution is N times the
//! part of the CPU time available that is used. What is lost differs: a physical machine loses what
//! its cores idle or busy-wait; a VM loses the switches that idle and spinning vCPUs cost, and the
//! part of its time slices that is left over at the end of an allocation period, as that is not carried
//! over. A vCPU that idles does not lose time by that: others may use its slice.
//!
//! Times are [`Nanos`] over the same span of execution. Pure functions: who measures the times, and
//! over which span, is the caller's business.

use serde::Serialize;
use thiserror::Error;

use tandem_model::units::Nanos;

/// How many times as fast as on one unit of execution.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Speedup(pub f64);

/// A part of something, 0 … 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Fraction(f64);

impl Fraction {
    /// None of it.
    pub const NONE: Fraction = Fraction(0.0);

    /// All of it.
    pub const ALL: Fraction = Fraction(1.0);

    /// A number of 0 … 1 as a part.
    pub fn new(value: f64) -> Result<Fraction, ScalabilityError> {
        match (0.0..=1.0).contains(&value) {
            true => Ok(Fraction(value)),
            false => Err(ScalabilityError::NotAFraction(value)),
        }
    }

    /// As a number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// `part` of `whole`.
    fn of(part: Nanos, whole: Nanos) -> Result<Fraction, ScalabilityError> {
        match part <= whole && whole > Nanos::ZERO {
            true => Ok(Fraction(part.0 as f64 / whole.0 as f64)),
            false => Err(ScalabilityError::NotAPart { part, whole }),
        }
    }
}

/// What cannot be computed with.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum ScalabilityError {
    /// Not between 0 and 1.
    #[error("{0} is not a part of a whole: expected 0 … 1")]
    NotAFraction(f64),
    /// More was lost than there was, or there was nothing.
    #[error(
        "{part} cannot be a part of {whole}: expected a time of at most as much, of more than 0 ns"
    )]
    NotAPart {
        /// The part.
        part: Nanos,
        /// The whole.
        whole: Nanos,
    },
    /// There is nothing to run on.
    #[error("0 units of execution cannot run anything: expected 1 or more")]
    NoUnits,
}

/// What the cores of a physical machine did while an application ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalRun {
    /// Cores, N.
    pub cores: u32,
    /// Time of execution, wall clock.
    pub execution: Nanos,
    /// Idle, summed over the cores.
    pub idle: Nanos,
    /// Busy-waiting, summed over the cores.
    pub busy_waiting: Nanos,
}

impl PhysicalRun {
    /// Available: N × execution time.
    fn available(&self) -> Result<Nanos, ScalabilityError> {
        match self.cores {
            0 => Err(ScalabilityError::NoUnits),
            cores => Ok(Nanos(self.execution.0.saturating_mul(u64::from(cores)))),
        }
    }

    /// 1 − (idle + busy-waiting) ÷ (N × execution time).
    pub fn efficiency(&self) -> Result<Fraction, ScalabilityError> {
        let lost = Nanos(self.idle.0.saturating_add(self.busy_waiting.0));
        efficiency(lost, self.available()?)
    }

    /// Speedup_PM = N − (idle + busy-waiting, summed over the cores) ÷ execution time.
    pub fn speedup(&self) -> Result<Speedup, ScalabilityError> {
        Ok(speedup(self.cores, self.efficiency()?))
    }
}

/// What a VM did with the CPU time that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualRun {
    /// vCPUs, N.
    pub vcpus: u32,
    /// Time slices allocated to the VM.
    pub allocated: Nanos,
    /// Switching out vCPUs that idle or spin, and back in.
    pub switching: Nanos,
    /// Left unused at the ends of allocation periods.
    pub unused: Nanos,
}

impl VirtualRun {
    /// 1 − (switching + unused) ÷ allocated.
    pub fn efficiency(&self) -> Result<Fraction, ScalabilityError> {
        if self.vcpus == 0 {
            return Err(ScalabilityError::NoUnits);
        }
        let lost = Nanos(self.switching.0.saturating_add(self.unused.0));
        efficiency(lost, self.allocated)
    }

    /// Speedup_VM = N − N × (switching + unused) ÷ allocated.
    pub fn speedup(&self) -> Result<Speedup, ScalabilityError> {
        Ok(speedup(self.vcpus, self.efficiency()?))
    }
}

fn efficiency(lost: Nanos, available: Nanos) -> Result<Fraction, ScalabilityError> {
    Fraction::of(lost, available).map(|lost| Fraction(1.0 - lost.0))
}

/// Speedup = N × efficiency.
fn speedup(units: u32, efficiency: Fraction) -> Speedup {
    Speedup(f64::from(units) * efficiency.0)
}

/// Potential of an application on a VM in one allocation period:
/// efficiency = min(1, utilization ÷ the VM's share of the host).
///
/// `utilization` is that on a physical machine of the same size: what does not use more of the
/// machine than the VM's share can, with the slices where the work is, use all that it is given.
pub fn potential_efficiency(
    utilization: Fraction,
    share: Fraction,
) -> Result<Fraction, ScalabilityError> {
    match share.0 > 0.0 {
        true => Ok(Fraction((utilization.0 / share.0).min(1.0))),
        false => Err(ScalabilityError::NotAFraction(share.0)),
    }
}

/// From this part of N active CPUs on, workload parallelism is high.
pub const HIGH_PARALLELISM: f64 = 0.75;

/// What an application is like, wherever it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Features {
    /// Units of execution, N.
    pub units: u32,
    /// Workload parallelism: active CPUs on average.
    pub active: f64,
    /// Synchronization frequency: voluntary switches of one thread per second.
    pub voluntary_switches_per_second: f64,
    /// The time slice: who blocks at least once in it synchronizes often.
    pub timeslice: Nanos,
}

/// The four types of applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Type {
    /// Type 1, high parallelism and rare synchronization: scales on both.
    ScalesOnBoth,
    /// Type 2, low parallelism and frequent synchronization: scales poorly on both.
    PoorOnBoth,
    /// Type 3, high parallelism and frequent synchronization: scales worse on a VM.
    WorseOnVm,
    /// Type 4, low parallelism and rare synchronization: scales better on a VM.
    BetterOnVm,
}

impl Type {
    /// The type's number in the source, 1 … 4.
    pub fn number(self) -> u8 {
        match self {
            Type::ScalesOnBoth => 1,
            Type::PoorOnBoth => 2,
            Type::WorseOnVm => 3,
            Type::BetterOnVm => 4,
        }
    }
}

impl Features {
    /// Whether at least 75 % of the CPUs are active on average.
    pub fn high_parallelism(&self) -> bool {
        self.active >= HIGH_PARALLELISM * f64::from(self.units)
    }

    /// Whether a thread blocks at least once in a time slice.
    pub fn frequent_synchronization(&self) -> bool {
        self.voluntary_switches_per_second * self.timeslice.as_secs_f64() >= 1.0
    }

    /// Its type.
    pub fn class(&self) -> Type {
        match (self.high_parallelism(), self.frequent_synchronization()) {
            (true, false) => Type::ScalesOnBoth,
            (false, true) => Type::PoorOnBoth,
            (true, true) => Type::WorseOnVm,
            (false, false) => Type::BetterOnVm,
        }
    }
}
